"""OpenAI's own package drives the simulator: its view of the wire is not ours."""

from typing import Literal

import httpx
import openai
import pytest
from openai.types import Batch, FileObject
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel, Field

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import CHAT, RESPONSES, lines_of, request, rows_of, submit


class Ticket(BaseModel):
    """What the parse helpers ask for."""

    product: Literal["phone", "laptop"]
    urgency: int = Field(ge=1, le=5)
    tags: list[str]
    note: str | None


def strictly(model: "type[BaseModel]", found: BaseModel) -> None:
    """The package builds its models unchecked; check the fields it was sent against their types."""
    model.model_validate(found.model_dump(mode="json", warnings=False))


def test_a_file_is_uploaded_read_downloaded_and_deleted(client: openai.OpenAI) -> None:
    """The file calls give back the bytes and the facts of an upload."""
    content = lines_of([request("r-1")])
    file = client.files.create(file=("batch.jsonl", content), purpose="batch")
    strictly(FileObject, file)
    assert (file.bytes, file.filename, file.purpose, file.object) == (len(content), "batch.jsonl", "batch", "file")
    assert client.files.retrieve(file.id) == file
    assert [found.id for found in client.files.list(purpose="batch")] == [file.id]
    assert client.files.content(file.id).content == content
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


@pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
def test_a_batch_goes_from_create_to_a_body_the_package_can_read(
    client: openai.OpenAI, simulator: SimulatorServer, endpoint: str
) -> None:
    """Every row of the output is a whole reply of the endpoint, under its custom id."""
    ids = [f"r-{n} é/{'x' * 120}" for n in range(5)]
    batch = submit(client, [request(i, f"text {i}", url=endpoint) for i in ids], endpoint=endpoint)
    strictly(Batch, batch)
    assert (batch.status, batch.endpoint, batch.completion_window) == ("validating", endpoint, "24h")
    simulator.clock.advance(100)
    batch = client.batches.retrieve(batch.id)
    strictly(Batch, batch)
    assert batch.status == "completed"
    assert batch.error_file_id is None
    rows = rows_of(client, batch.output_file_id)
    assert sorted(row["custom_id"] for row in rows) == sorted(ids)
    for row in rows:
        assert set(row) == {"id", "custom_id", "response", "error"}
        assert row["response"]["status_code"] == 200
        (ChatCompletion if endpoint == CHAT else Response).model_validate(row["response"]["body"])
    assert batch.usage is not None
    names = ("prompt_tokens", "completion_tokens") if endpoint == CHAT else ("input_tokens", "output_tokens")
    usages = [row["response"]["body"]["usage"] for row in rows]
    assert [sum(u[name] for u in usages) for name in names] == [batch.usage.input_tokens, batch.usage.output_tokens]


def test_metadata_comes_back_and_the_list_pages_itself(client: openai.OpenAI) -> None:
    """Auto-pagination visits every batch once, newest first, with the stamp each was made with."""
    made = [submit(client, [request("r")], metadata={"stamp": str(n)}) for n in range(7)]
    listed = list(client.batches.list(limit=3))
    assert [batch.id for batch in listed] == [batch.id for batch in reversed(made)]
    assert [batch.metadata for batch in listed] == [{"stamp": str(n)} for n in reversed(range(7))]
    first = client.batches.list(limit=3)
    assert first.has_more
    assert len(first.data) == 3


def test_cancel_answers_cancelling_and_then_is_cancelled(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A cancel is an intention first; the batch is cancelled when it has settled."""
    batch = submit(client, [request(f"r-{n}") for n in range(10)])
    simulator.clock.advance(50)
    assert client.batches.cancel(batch.id).status == "cancelling"
    ended = client.batches.retrieve(batch.id)
    assert ended.status == "cancelled"
    assert ended.cancelling_at is not None
    assert ended.cancelled_at is not None


def test_an_unknown_batch_is_a_404(client: openai.OpenAI) -> None:
    """With the provider's words."""
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_none'"):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        client.batches.cancel("batch_none")


def test_an_empty_key_is_refused(simulator: SimulatorServer) -> None:
    """As 401 invalid_api_key, before any work."""
    answer = httpx.post(f"{simulator.base_url}/batches", json={}, headers={"authorization": "Bearer"}, trust_env=False)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert simulator.book.batches == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"completion_window": "48h"},
        {"endpoint": "/v1/nowhere"},
        {"metadata": {str(n): "" for n in range(17)}},
        {"metadata": {"k" * 65: ""}},
        {"metadata": {"k": "v" * 513}},
        {"metadata": {"k": 1}},
    ],
)
def test_a_wrong_create_is_refused(client: openai.OpenAI, simulator: SimulatorServer, wrong: "dict") -> None:
    """With 400, and no batch is made."""
    file = client.files.create(file=("batch.jsonl", lines_of([request("r")])), purpose="batch")
    given = {"input_file_id": file.id, "endpoint": RESPONSES, "completion_window": "24h", **wrong}
    with pytest.raises(openai.BadRequestError):
        client.batches.create(**given)
    assert simulator.book.batches == 0


def test_responses_parse_gives_the_model(client: openai.OpenAI) -> None:
    """responses.parse turns the answer into the pydantic model, with usage."""
    found = client.responses.parse(model="gpt-5-nano", input="My phone is broken.", text_format=Ticket)
    assert isinstance(found.output_parsed, Ticket)
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens


def test_responses_create_gives_text(client: openai.OpenAI) -> None:
    """Without a schema the answer is a sentence."""
    found = client.responses.create(model="gpt-5-nano", input="hello")
    assert found.output_text.startswith("Noted:")
    assert (found.status, found.model) == ("completed", "gpt-5-nano-2026-01-01")


def test_chat_parse_gives_the_model(client: openai.OpenAI) -> None:
    """chat.completions.parse turns the answer into the pydantic model."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "My laptop is slow."}]}]
    found = client.chat.completions.parse(model="gpt-5-nano", messages=messages, response_format=Ticket)
    assert isinstance(found.choices[0].message.parsed, Ticket)


def test_chat_create_gives_text(client: openai.OpenAI) -> None:
    """Without a schema the answer is a sentence, finished by a stop."""
    found = client.chat.completions.create(model="gpt-5-nano", messages=[{"role": "user", "content": "hello"}])
    assert (found.choices[0].message.content or "").startswith("Noted:")
    assert found.choices[0].finish_reason == "stop"


def test_a_refusal_and_a_cut_reach_the_parse_helpers(client: openai.OpenAI) -> None:
    """As the package documents them: `refusal`, no parsed value, LengthFinishReasonError."""
    messages = [{"role": "user", "content": "[[sim:refuse]]"}]
    chat = client.chat.completions.parse(model="gpt-5-nano", messages=messages, response_format=Ticket)
    assert chat.choices[0].message.refusal
    assert chat.choices[0].message.parsed is None
    found = client.responses.parse(model="gpt-5-nano", input="[[sim:refuse]]", text_format=Ticket)
    assert found.output_parsed is None
    assert found.output[0].content[0].type == "refusal"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="gpt-5-nano", messages=[{"role": "user", "content": "[[sim:truncate]]"}], response_format=Ticket
        )
    cut = client.responses.create(model="gpt-5-nano", input="[[sim:truncate]]")
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("error_400", openai.BadRequestError),
        ("error_429", openai.RateLimitError),
        ("error_500", openai.InternalServerError),
    ],
)
def test_realtime_errors_raise_what_the_package_raises(
    client: openai.OpenAI, simulator: SimulatorServer, fault: str, error: "type[Exception]"
) -> None:
    """A row fault of a realtime call is its HTTP status, and nothing is paid."""
    with pytest.raises(error):
        client.responses.create(model="gpt-5-nano", input=f"[[sim:{fault}]]")
    assert simulator.book.requests == 0


def test_an_unknown_model_is_400_on_responses_and_404_on_chat(client: openai.OpenAI) -> None:
    """The two endpoints differ, as recorded."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="no-such-model", input="hello")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "hello"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="gpt-5-nano", input="hello", stream=True)


def test_realtime_calls_are_in_the_book_with_their_tokens(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """What a realtime call reports as usage is what it cost."""
    found = client.responses.create(model="gpt-5-nano", input="hello there")
    assert found.usage is not None
    book = simulator.book
    assert (book.requests, book.input_tokens, book.output_tokens) == (
        1,
        found.usage.input_tokens,
        found.usage.output_tokens,
    )
