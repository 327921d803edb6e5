"""Anthropic's own package drives the simulator, unmodified."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageParam
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from pydantic import BaseModel

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.drivers import MESSAGE_SENTIMENT

NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
HELLO: "list[MessageParam]" = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def package() -> "Iterator[anthropic.Anthropic]":
    """Anthropic's own package, without retries."""
    with anthropic.Anthropic(api_key="k", max_retries=0) as found:
        yield found


@pytest.fixture
def client(simulator: SimulatorServer, package: anthropic.Anthropic) -> anthropic.Anthropic:
    """The package at this test's simulator."""
    return package.with_options(base_url=simulator.addresses["anthropic"])


def params(prompt: str = "hello", *, schema: Any = None, **changes: Any) -> "dict[str, Any]":
    """One request's params."""
    body: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 99}
    body["messages"] = [{"role": "user", "content": prompt}]
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return {**body, **changes}


def ask(*prompts: str, **changes: Any) -> "list[Any]":
    """Requests r-0 and on."""
    return [{"custom_id": f"r-{n}", "params": params(prompt, **changes)} for n, prompt in enumerate(prompts)]


def counts(batch: MessageBatch) -> "tuple[int, int, int, int, int]":
    """processing, succeeded, errored, canceled, expired"""
    found = batch.request_counts
    return found.processing, found.succeeded, found.errored, found.canceled, found.expired


def rows(client: anthropic.Anthropic, batch_id: str) -> "dict[str, MessageBatchIndividualResponse]":
    """All rows by custom id, each checked against the package's types."""
    found = list(client.messages.batches.results(batch_id))
    for row in found:
        strictly(MessageBatchIndividualResponse, row)
    assert len({row.custom_id for row in found}) == len(found)
    return {row.custom_id: row for row in found}


def strictly(model: "type[BaseModel]", found: BaseModel) -> None:
    """The package builds its models unchecked; check the fields it was sent against their types."""
    model.model_validate(found.model_dump(mode="json", warnings=False))


def schema_of(optional: int = 0, unions: int = 0, **changes: Any) -> "dict[str, Any]":
    """A closed object with so many optional and nullable properties."""
    left_out: dict[str, Any] = {f"o{n}": {"type": "string"} for n in range(optional)}
    nullable = {f"u{n}": NULLABLE for n in range(unions)}
    properties = {**left_out, **nullable}
    made = {"type": "object", "properties": properties, "required": list(nullable), "additionalProperties": False}
    return {**made, **changes}


def test_a_batch_goes_from_create_to_rows(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """Counts stay zero until the end; then all ids come once, succeeded, at the batch tier."""
    batch = client.messages.batches.create(requests=ask(*[f"text {n}" for n in range(10)], schema=MESSAGE_SENTIMENT))
    strictly(MessageBatch, batch)
    assert (batch.processing_status, counts(batch), batch.results_url) == ("in_progress", (10, 0, 0, 0, 0), None)
    simulator.clock.advance(99)
    batch = client.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch), batch.ended_at) == ("in_progress", (10, 0, 0, 0, 0), None)
    simulator.clock.advance(1)
    batch = client.messages.batches.retrieve(batch.id)
    strictly(MessageBatch, batch)
    assert (batch.processing_status, counts(batch)) == ("ended", (0, 10, 0, 0, 0))
    assert batch.ended_at is not None
    assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
    found = rows(client, batch.id)
    assert set(found) == {f"r-{n}" for n in range(10)}
    for row in found.values():
        assert row.result.type == "succeeded"
        assert (row.result.message.stop_reason, row.result.message.usage.service_tier) == ("end_turn", "batch")
        assert row.result.message.model == "claude-haiku-4-5-20260101"


def test_polls_carry_a_retry_after_until_the_end(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """10 seconds, and every answer a request id."""
    batch = client.messages.batches.create(requests=ask("x"))
    poll = client.messages.batches.with_raw_response.retrieve(batch.id)
    assert poll.headers["retry-after"] == "10"
    assert poll.headers["request-id"]
    simulator.clock.advance(100)
    assert "retry-after" not in client.messages.batches.with_raw_response.retrieve(batch.id).headers


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "at least 1 item"),
        ([{"params": params()}], "custom_id: Field required"),
        ([{"custom_id": "a b", "params": params()}], "should match pattern"),
        ([{"custom_id": "x" * 65, "params": params()}], "should match pattern"),
        (ask("x") + ask("y"), "Duplicate custom_id found: r-0"),
    ],
)
def test_only_ids_are_checked_at_once(
    client: anthropic.Anthropic, simulator: SimulatorServer, requests: Any, words: str
) -> None:
    """With a 400, and no batch is made."""
    with pytest.raises(anthropic.BadRequestError, match=words) as refused:
        client.messages.batches.create(requests=requests)
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # pyright: ignore
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert simulator.book.batches == 0


def test_wrong_params_become_errored_rows(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """The error nested twice, without a request id; the batch still ends."""
    wrong = {
        "model": {**params(), "model": "no-such-model"},
        "messages": {"model": "claude-haiku-4-5", "max_tokens": 9},
        "tokens": {**params(), "max_tokens": 0},
        "stream": params(stream=True),
        "schema": params(schema=schema_of(optional=25)),
        "nothing": {},
    }
    requests: list[Any] = [{"custom_id": name, "params": found} for name, found in wrong.items()]
    batch = client.messages.batches.create(requests=[*requests, *ask("fine")])
    simulator.clock.advance(100)
    found = rows(client, batch.id)
    assert found.pop("r-0").result.type == "succeeded"
    types = {}
    for name, row in found.items():
        assert row.result.type == "errored"
        assert (row.result.error.type, row.result.error.request_id) == ("error", None)
        types[name] = row.result.error.error.type
    assert types.pop("model") == "not_found_error"
    assert set(types.values()) == {"invalid_request_error"}
    assert counts(client.messages.batches.retrieve(batch.id)) == (0, 1, 6, 0, 0)


def test_a_cancel_settles_as_ended_with_canceled_rows(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """`canceling` first; what was done stays and is paid; a second cancel changes nothing."""
    simulator.store.cancel_seconds = 300
    batch = client.messages.batches.create(requests=ask(*["x"] * 10))
    simulator.clock.advance(60)
    first = client.messages.batches.cancel(batch.id)
    assert (first.processing_status, counts(first)) == ("canceling", (10, 0, 0, 0, 0))
    simulator.clock.advance(299)
    assert client.messages.batches.cancel(batch.id).cancel_initiated_at == first.cancel_initiated_at
    simulator.clock.advance(1)
    batch = client.messages.batches.retrieve(batch.id)
    kinds = [row.result.type for row in rows(client, batch.id).values()]
    assert (batch.processing_status, set(kinds)) == ("ended", {"succeeded", "canceled"})
    assert counts(batch) == (0, kinds.count("succeeded"), 0, kinds.count("canceled"), 0)
    assert simulator.book.requests == kinds.count("succeeded")


def test_a_cancel_before_the_start_leaves_every_row_canceled(
    client: anthropic.Anthropic, simulator: SimulatorServer
) -> None:
    """Every id still comes back."""
    batch = client.messages.batches.create(requests=ask("x", "y"))
    client.messages.batches.cancel(batch.id)
    assert counts(client.messages.batches.retrieve(batch.id)) == (0, 0, 0, 2, 0)
    assert {row.result.type for row in rows(client, batch.id).values()} == {"canceled"}
    assert simulator.book.requests == 0


def test_an_ended_batch_only_can_be_deleted(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """400 before, and gone with its results after."""
    batch = client.messages.batches.create(requests=ask("x"))
    with pytest.raises(anthropic.BadRequestError, match="cannot be deleted"):
        client.messages.batches.delete(batch.id)
    simulator.clock.advance(100)
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


def test_there_are_no_results_before_the_end(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """404 of the results' own address; the package looks at the batch first and finds no address."""
    batch = client.messages.batches.create(requests=ask("x"))
    with pytest.raises(anthropic.AnthropicError, match="results_url"):
        client.messages.batches.results(batch.id)
    address = f"{simulator.addresses['anthropic']}/v1/messages/batches/{batch.id}/results"
    answer = httpx.get(address, headers={"x-api-key": "k"}, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_the_list_pages_both_ways(client: anthropic.Anthropic) -> None:
    """Newest first by after_id, and back by before_id."""
    made = [client.messages.batches.create(requests=ask("x")).id for _ in range(7)][::-1]
    assert [batch.id for batch in client.messages.batches.list(limit=3)] == made
    page = client.messages.batches.list(limit=3)
    assert (page.first_id, page.last_id, page.has_more) == (made[0], made[2], True)
    back = client.messages.batches.list(limit=2, before_id=made[4])
    assert ([batch.id for batch in back.data], back.has_more) == (made[2:4], True)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.list(limit=1001)


def test_a_message_is_answered_at_once(client: anthropic.Anthropic) -> None:
    """At the standard tier, with what tells refusals and cuts apart."""
    found = client.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=HELLO)
    strictly(Message, found)
    assert (found.stop_reason, found.usage.service_tier) == ("end_turn", "standard")
    refused = client.messages.create(**params("[[sim:refuse]]"))
    assert (refused.stop_reason, refused.content) == ("refusal", [])
    assert refused.stop_details is not None
    assert client.messages.create(**params("[[sim:truncate]]")).stop_reason == "max_tokens"


def test_parse_gives_the_model(client: anthropic.Anthropic) -> None:
    """messages.parse rewrites the schema and reads the answer into the pydantic model."""

    class Ticket(BaseModel):
        product: str
        urgency: int
        note: "str | None" = None

    found = client.messages.parse(model="claude-haiku-4-5", max_tokens=9, messages=HELLO, output_format=Ticket)
    assert isinstance(found.parsed_output, Ticket)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (schema_of(optional=25), "too many optional parameters"),
        (schema_of(unions=17), "exceeds the limit: 16"),
        (schema_of(additionalProperties=True), "additionalProperties"),
        ({"type": "object", "properties": {}}, "additionalProperties"),
        (schema_of(properties={"a": {"type": "integer", "minimum": 1}}), "'minimum' is not supported"),
        (schema_of(properties={"a": {"type": "string", "maxLength": 9}}), "'maxLength' is not supported"),
        (schema_of(properties={"a": {"oneOf": [{"type": "string"}]}}), "'oneOf' is not supported"),
        (schema_of(properties={"a": {"type": "array", "items": {"type": "string"}, "minItems": 2}}), "minItems"),
        (schema_of(properties={"a": {"type": "string", "format": "color"}}), "format 'color'"),
        (schema_of(properties={"a": {"$ref": "#"}}), "Recursive"),
        (schema_of(properties={"a": {"$ref": "http://x"}}), "External"),
    ],
)
def test_schemas_beyond_the_limits_are_refused(client: anthropic.Anthropic, schema: Any, words: str) -> None:
    """At once, when alone."""
    with pytest.raises(anthropic.BadRequestError, match=words):
        client.messages.create(**params(schema=schema))


def test_schemas_at_the_limits_pass(client: anthropic.Anthropic) -> None:
    """24 optional and 16 nullable properties, and a definition used twice."""
    client.messages.create(**params(schema=schema_of(optional=24, unions=16)))
    twice = {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}}
    definition = {"A": {"type": "object", "properties": {}, "additionalProperties": False}}
    client.messages.create(**params(schema={**schema_of(properties=twice), "$defs": definition}))


def test_optional_properties_are_sometimes_left_out(client: anthropic.Anthropic) -> None:
    """And required ones come first."""
    schema = schema_of(properties={"maybe": {"type": "string"}, "sure": {"type": "string"}}, required=["sure"])
    texts = [client.messages.create(**params(f"text {n}", schema=schema)).content[0] for n in range(20)]
    found = [list(Answer.model_validate_json(text.text).model_dump(exclude_unset=True)) for text in texts]  # pyright: ignore
    assert {tuple(names) for names in found} == {("sure",), ("sure", "maybe")}


class Answer(BaseModel, extra="allow"):
    """Any answer."""


def test_cached_tokens_are_not_among_the_input_tokens(client: anthropic.Anthropic) -> None:
    """The sum of the three is the prompt; a short prefix is not cached; the hour has its own counter."""
    long = [{"type": "text", "text": "word " * 2000, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    totals, read, written = set(), 0, 0
    for n in range(20):
        usage = client.messages.create(**params(f"text {n:02}", system=long)).usage
        kept, fresh = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        assert usage.cache_creation is not None
        assert (usage.cache_creation.ephemeral_1h_input_tokens, usage.input_tokens < 10) == (fresh, True)
        totals.add(usage.input_tokens + kept + fresh)
        read, written = read + (kept > 0), written + (fresh > 0)
    assert len(totals) == 1
    assert read + written == 20
    assert read > 0
    assert written > 0
    short = client.messages.create(**params(system=[{**long[0], "text": "short"}])).usage
    assert (short.cache_read_input_tokens, short.cache_creation_input_tokens) == (0, 0)


def test_errors_reach_the_package_as_its_own(client: anthropic.Anthropic, simulator: SimulatorServer) -> None:
    """By status, with type and request id."""
    for status, error, kind in (
        (401, anthropic.AuthenticationError, "authentication_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.APIStatusError, "overloaded_error"),
    ):
        simulator.faults.add("list", "status_before", status)
        with pytest.raises(error) as raised:
            client.messages.batches.list()
        assert raised.value.body["error"]["type"] == kind  # pyright: ignore
        assert raised.value.request_id == raised.value.body["request_id"]  # pyright: ignore
        assert ("retry-after" in raised.value.response.headers) == (status == 429)
