"""OpenRouter: the body that is read as it arrives, a batch without a name, results and costs inside the batch object."""

import json
import logging
from collections.abc import Callable
from math import fsum
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    BatchUnprovenError,
    CannotCancelError,
    ConfigurationError,
    NotBatchCapableError,
    ProviderError,
    ProviderMismatchError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import DocumentPart, ImagePart, PartKind, TextPart
from dagster_llmbatch.providers.contract import (
    EXTRAS,
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.http import CHUNK_BYTES
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.openrouter import OpenRouterBatchProvider
from dagster_llmbatch.providers.openrouter_requests import OpenRouterEncoder, batch_body
from dagster_llmbatch.providers.openrouter_rows import classify, read_row, share_cost

SECRET = "sk-or-very-secret"
NOW = 2_000_000.0
MODEL = "z-ai/glm-5.3"
TEMPLATE = RequestTemplate(MODEL)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
HANDLE = BatchHandle("openrouter", "batch-1", {"created_at": str(NOW - 1000)})
Answer = Callable[[httpx.Request], httpx.Response]


class Api:
    """A provider over a function that answers its requests, which are noted, at a time that a test sets."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[httpx.Request] = []
        self.now = NOW
        self._answer = answer
        self.provider = OpenRouterBatchProvider(
            api_key=SECRET,
            transport=httpx.MockTransport(self._handle),
            sleep=lambda seconds: None,
            now=lambda: self.now,
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)


def always(content: Any, status: int = 200) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content)


def raising(error: Exception) -> Answer:
    """No answer at all."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def batch(**fields: Any) -> "dict[str, Any]":
    """A batch object as OpenRouter sends it."""
    return {
        "id": "batch-1", "object": "batch", "endpoint": "/v1/chat/completions", "model": "z-ai/glm-5.3-20260816",
        "completion_window": "24h", "status": "in_progress", "created_at": NOW, "expires_at": None, "finalized_at": None,
        "provider": None, "request_counts": {"total": 2, "completed": 0, "failed": 0}, "usage": None, "results": None,
        "error": None, **fields,
    }  # fmt: skip


def reply(content: Any = "yes", tokens: "tuple[int, int] | None" = (10, 5), **fields: Any) -> "dict[str, Any]":
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = None if tokens is None else {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return {"model": "z-ai/glm-5.3:batch", "provider": "DeepInfra", "choices": [choice], "usage": usage, **fields}


def result(custom_id: str, body: Any = None, error: Any = None, status: int = 200) -> "dict[str, Any]":
    """One result of a batch: a reply unless said otherwise."""
    given = reply() if body is None and error is None else body
    response = None if given is None else {"status_code": status, "request_id": "r", "body": given}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": error}


def lines_of(folder: Path, template: RequestTemplate, *prompts: str) -> Path:
    """A file of request lines."""
    encoder, path = OpenRouterEncoder(template), folder / "lines"
    path.write_bytes(b"".join(encoder.line(f"r-{n}", prompt) for n, prompt in enumerate(prompts)))
    return path


# Requests


def test_golden_line() -> None:
    """The custom id and the body: the model stands at the head of the batch."""
    assert OpenRouterEncoder(TEMPLATE).line("r-1", "Hello") == (
        b'{"custom_id":"r-1","body":{"messages":[{"role":"user","content":"Hello"}]}}\n'
    )


def test_golden_create(tmp_path: Path) -> None:
    """Keys in the order the provider reads them in, requests last and as they are in the file, and their length told."""
    params = {"max_tokens": 9, "provider": {"only": ["deepinfra"]}}
    template = RequestTemplate(MODEL, system="S", params=params, schema=SCHEMA)
    api = Api(always(batch(status="validating"), 202))
    lines = lines_of(tmp_path, template, "a\nb", "\u2028")
    found = api.provider.create(lines, Uploaded(), template=template, external_key="k")
    (request,) = api.requests
    assert (request.method, str(request.url)) == ("POST", "https://openrouter.ai/api/v1/batches")
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["content-type"] == "application/json"
    assert int(request.headers["content-length"]) == len(request.content)
    assert "transfer-encoding" not in request.headers
    body = json.loads(request.content)
    assert list(body) == ["endpoint", "model", "completion_window", "provider", "requests"]
    assert body["endpoint"] == "/v1/chat/completions"
    assert (body["model"], body["completion_window"]) == ("z-ai/glm-5.3:batch", "24h")
    assert body["provider"] == {"only": ["deepinfra"]}
    assert [r["custom_id"] for r in body["requests"]] == ["r-0", "r-1"]
    assert [r["body"] for r in body["requests"]] == [
        {
            "max_tokens": 9,
            "response_format": FORMAT,
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": prompt}],
        }
        for prompt in ("a\nb", "\u2028")
    ]
    assert found.handle == BatchHandle("openrouter", "batch-1", {"created_at": str(NOW)})
    assert (found.state, found.provider_state) == (BatchState.RUNNING, "validating")


def test_a_body_without_provider_choice_has_none(tmp_path: Path) -> None:
    """Only what is asked for is sent."""
    _, pieces = batch_body(lines_of(tmp_path, TEMPLATE, "a"), TEMPLATE)
    assert list(json.loads(b"".join(pieces))) == ["endpoint", "model", "completion_window", "requests"]


@pytest.mark.parametrize("size", [-2, -1, 0, 1, 2, CHUNK_BYTES])
def test_the_body_is_whole_at_any_length(size: int, tmp_path: Path) -> None:
    """Where pieces of the file end is seen nowhere in the body."""
    room = CHUNK_BYTES + size - len(OpenRouterEncoder(TEMPLATE).line("r-0", ""))
    lines = lines_of(tmp_path, TEMPLATE, "x" * room, "y")
    length, pieces = batch_body(lines, TEMPLATE)
    body = b"".join(pieces)
    assert len(body) == length
    assert [len(r["body"]["messages"][0]["content"]) for r in json.loads(body)["requests"]] == [room, 1]


@pytest.mark.parametrize(
    ("model", "sent"), [("a/b", "a/b:batch"), ("a/b:batch", "a/b:batch"), ("a/b:free", "a/b:free:batch")]
)
def test_the_batch_slug(model: str, sent: str, tmp_path: Path) -> None:
    """A batch is bought under the model's :batch name."""
    template = RequestTemplate(model)
    _, pieces = batch_body(lines_of(tmp_path, template, "a"), template)
    assert json.loads(b"".join(pieces))["model"] == sent


def test_what_decides_an_answer_is_the_same_for_both_names() -> None:
    """Neither the :batch suffix nor the output cap buys an answer again; model, provider choice and schema do."""

    def identity(model: str = MODEL, **fields: Any) -> bytes:
        return OpenRouterEncoder(RequestTemplate(model, **fields)).identity

    assert identity() == identity(MODEL + ":batch") == identity(params={"max_tokens": 5})
    others = [identity("a/b"), identity(schema=SCHEMA), identity(params={"provider": {"only": ["x"]}})]
    assert len({identity(), *others}) == 4


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (MODEL, {"plugins": [{"id": "web"}]}),
        (MODEL + ":online", {}),
        (MODEL, {"provider": {"order": ["x"]}}),
        (MODEL, {"provider": {"only": ["x"], "sort": "price"}}),
        (MODEL, {"modalities": ["image"]}),
    ],
    ids=str,
)
def test_what_only_realtime_takes(model: str, params: "dict[str, Any]") -> None:
    """Refused for a batch, and sent as it is in realtime."""
    template = RequestTemplate(model, params=params)
    with pytest.raises(NotBatchCapableError, match="realtime"):
        OpenRouterEncoder(template)
    api = Api(always(reply()))
    api.provider.complete(template, "Hi")
    sent = json.loads(api.requests[0].content)
    assert {name: sent[name] for name in params} == params


@pytest.mark.parametrize("params", [{"provider": "x"}, {"stream": True}, {"model": "x"}], ids=str)
def test_params_nobody_takes(params: "dict[str, Any]") -> None:
    """Refused before anything is sent."""
    with pytest.raises(ConfigurationError):
        OpenRouterEncoder(RequestTemplate(MODEL, params=params))


def test_batches_hold_text_only() -> None:
    """Text parts are sent; a picture is refused before it is bought; limits say so."""
    encoder = OpenRouterEncoder(TEMPLATE)
    assert b'"content":[{"type":"text","text":"a"}]' in encoder.line("r-1", (TextPart("a"),))
    with pytest.raises(NotBatchCapableError, match="image_url"):
        encoder.line("r-1", (ImagePart(url="https://x.test/a.png"),))
    assert LIMITS["openrouter"].batch_parts == {PartKind.TEXT}
    assert LIMITS["openrouter"].realtime_parts == set(PartKind)


def test_groups() -> None:
    """One model, one schema and one choice of providers a batch; prompts and other parameters may differ."""
    group = Api(always({})).provider.group
    alike = [RequestTemplate(MODEL, system=s, params={"seed": n}, schema=SCHEMA) for n, s in enumerate("ab")]
    assert len({group(template) for template in alike}) == 1
    other = [
        RequestTemplate("a/b", schema=SCHEMA),
        RequestTemplate(MODEL),
        RequestTemplate(MODEL, schema={**SCHEMA, "description": "x"}),
        RequestTemplate(MODEL, schema=SCHEMA, schema_name="x"),
        RequestTemplate(MODEL, schema=SCHEMA, params={"provider": {"only": ["x"]}}),
    ]
    assert len({group(template) for template in [*alike, *other]}) == 6
    assert group(RequestTemplate(MODEL, schema={"a": 1, "b": 2})) == group(
        RequestTemplate(MODEL, schema={"b": 2, "a": 1})
    )


# The paid call


def create(api: Api, folder: Path) -> BatchStatus:
    """Buy a batch of one request."""
    return api.provider.create(lines_of(folder, TEMPLATE, "a"), Uploaded(), template=TEMPLATE, external_key="k")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (raising(httpx.ConnectError("x")), TransientProviderError),
        (raising(httpx.WriteTimeout("x")), AmbiguousCreateError),
        (raising(httpx.ReadError("x")), AmbiguousCreateError),
        (always({}, 408), AmbiguousCreateError),
        (always({}, 409), AmbiguousCreateError),
        (always({}, 502), AmbiguousCreateError),
        (always([], 202), AmbiguousCreateError),
        (always({"status": "validating"}, 202), AmbiguousCreateError),
        (always({"error": {"message": "m"}}, 400), RejectedError),
        (always({"error": {"message": "m", "code": 401}}, 401), RejectedError),
        (always({"error": {"message": "m", "code": 402}}, 402), QuotaExhaustedError),
        (always({}, 404), RejectedError),
        (always({}, 413), RejectedError),
        (always({}, 422), RejectedError),
        (always({"error": {"message": "m", "code": 429}}, 429), RateLimitedError),
    ],
    ids=str,
)
def test_the_paid_call_is_sent_once(answer: Answer, kind: "type[ProviderError]", tmp_path: Path) -> None:
    """Whatever happens, one POST; what is not provably refused is ambiguous; the key is nowhere in the error."""
    api = Api(answer)
    with pytest.raises(ProviderError) as caught:
        create(api, tmp_path)
    assert type(caught.value) is kind
    assert len(api.requests) == 1
    assert SECRET not in f"{caught.value!s}{caught.value!r}{vars(caught.value)}"


@pytest.mark.parametrize(
    "message",
    [
        "Model 'z-ai/glm-5.3' does not have a :batch endpoint.",
        "HTTP 400: invalid: Model 'x' does not have a :batch endpoint.",
    ],
)
def test_a_model_without_batches_is_named(message: str, tmp_path: Path) -> None:
    """The refusal is free and final, says what to do, and nothing is sent under another name."""
    api = Api(always({"error": {"message": message}}, 400))
    with pytest.raises(RejectedError, match=r"z-ai/glm-5\.3 has no batch endpoint") as caught:
        create(api, tmp_path)
    assert (caught.value.code, caught.value.category) == ("no_batch_endpoint", "client_error")
    assert caught.value.hint
    assert message not in str(caught.value)
    assert len(api.requests) == 1


def test_nothing_is_uploaded(tmp_path: Path) -> None:
    """The requests go in the create call; what is recorded before it is not empty."""
    api = Api(always({}))
    assert api.provider.upload(lines_of(tmp_path, TEMPLATE, "a"), external_key="k").refs
    assert api.requests == []


# States


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("validating", BatchState.RUNNING),
        ("in_progress", BatchState.RUNNING),
        ("finalizing", BatchState.RUNNING),
        ("cancelling", BatchState.CANCELLING),
        ("completed", BatchState.COMPLETED),
        ("failed", BatchState.FAILED),
        ("expired", BatchState.EXPIRED),
        ("cancelled", BatchState.CANCELLED),
        ("paused_by_moonlight", BatchState.UNKNOWN),
    ],
)
def test_states(name: str, state: BatchState) -> None:
    """Every documented state is known; another is unknown and not an end."""
    found = Api(always(batch(status=name, finalized_at=NOW + 5))).provider.status(HANDLE)
    assert (found.handle, found.state, found.provider_state) == (HANDLE, state, name)
    assert (found.ended_at == NOW + 5) is state.ended


def test_the_batch_says_what_it_cost() -> None:
    """Counts, times and USD are read; a small object has an id and a state only."""
    found = Api(always(batch(status="completed", usage={"cost": 0.25, "is_byok": False}))).provider.status(HANDLE)
    assert (found.total, found.completed, found.failed, found.cost_usd) == (2, 0, 0, 0.25)
    assert found.created_at == NOW
    bare = Api(always({"id": "batch-1", "status": "completed", "request_counts": None})).provider.status(HANDLE)
    assert (bare.state, bare.total, bare.cost_usd) == (BatchState.COMPLETED, None, None)


QUOTA = "HTTP 400: invalid batch inference job: job-submission-count for account a, in use: 16, quota: 16"


@pytest.mark.parametrize(
    ("message", "retryable", "full"),
    [
        (QUOTA, True, True),
        ("HTTP 429: slow down", True, False),
        ("upstream rate limit reached", True, False),
        ("Provider overloaded", True, False),
        ("HTTP 503: try later", True, False),
        ("HTTP 400: line 2: unknown parameter", False, False),
        ("insufficient quota: add credits", False, False),
        (None, False, False),
    ],
)
def test_a_failed_batch_may_pass(message: "str | None", retryable: bool, full: bool) -> None:
    """What the upstream provider's limits stopped may be sent again; bad input and an empty purse may not."""
    error = None if message is None else {"message": message}
    found = Api(always(batch(status="failed", error=error))).provider.status(HANDLE)
    assert (found.retryable, found.queue_full, found.error_message) == (retryable, full, message)
    assert found.result_refs == {}


def test_a_note_on_a_completed_batch_changes_nothing() -> None:
    """All rows failed: the batch is completed and carries a message."""
    found = Api(always(batch(status="completed", error={"message": QUOTA}))).provider.status(HANDLE)
    assert (found.state, found.retryable, found.queue_full) == (BatchState.COMPLETED, False, False)


MISSING = {"error": {"message": "Batch job batch-1 not found.", "code": 404}}


@pytest.mark.parametrize(
    ("age", "kind"), [(0.0, TransientProviderError), (299.0, TransientProviderError), (301.0, BatchNotFoundError)]
)
def test_a_young_batch_may_not_show_yet(age: float, kind: "type[ProviderError]", tmp_path: Path) -> None:
    """For five minutes after the create call 404 says nothing; after them the batch is gone."""
    handle = create(Api(always(batch(), 202)), tmp_path).handle
    api = Api(always(MISSING, 404))
    api.now = NOW + age
    with pytest.raises(ProviderError) as caught:
        api.provider.status(handle)
    assert type(caught.value) is kind


def test_a_handle_without_its_time_is_not_young() -> None:
    """An old record says not found at once."""
    with pytest.raises(BatchNotFoundError):
        Api(always(MISSING, 404)).provider.status(BatchHandle("openrouter", "batch-1"))


@pytest.mark.parametrize(
    ("status", "kind"), [(402, QuotaExhaustedError), (410, BatchNotFoundError), (401, RejectedError)]
)
def test_results_that_are_withheld_or_gone(status: int, kind: "type[ProviderError]") -> None:
    """402 waits for credit, and nothing is lost; 410 is the end of the results, also of a young batch."""
    api = Api(always({"error": {"message": "m"}}, status))
    young = BatchHandle("openrouter", "batch-1", {"created_at": str(NOW)})
    for call in (
        lambda: api.provider.status(young),
        lambda: list(api.provider.outcomes(BatchStatus(young, BatchState.COMPLETED, "completed"))),
    ):
        with pytest.raises(ProviderError) as caught:
            call()
        assert type(caught.value) is kind


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"id":"batch-1","results":17}'])
def test_an_answer_that_is_no_batch(content: bytes) -> None:
    """Asked again later: it says nothing about the batch."""
    with pytest.raises(TransientProviderError):
        Api(lambda request: httpx.Response(200, content=content)).provider.status(HANDLE)


def test_there_is_no_cancel() -> None:
    """Said, and nothing is sent."""
    api = Api(always(batch()))
    with pytest.raises(CannotCancelError):
        api.provider.cancel(HANDLE)
    assert api.requests == []
    assert not api.provider.limits.can_cancel


@pytest.mark.parametrize("status", [200, 404, 410])
def test_an_ended_batch_is_deleted(status: int) -> None:
    """Gone already is fine; one that runs cannot be deleted, and is not asked for."""
    api = Api(always({}, status))
    api.provider.delete_files(BatchStatus(HANDLE, BatchState.COMPLETED, "completed"))
    assert [(r.method, r.url.path) for r in api.requests] == [("DELETE", "/api/v1/batches/batch-1")]
    api.provider.delete_files(BatchStatus(HANDLE, BatchState.RUNNING, "in_progress"))
    assert len(api.requests) == 1


def test_a_batch_that_cannot_be_deleted_says_so() -> None:
    """A refusal is not taken for success."""
    with pytest.raises(RejectedError):
        Api(always({}, 403)).provider.delete_files(BatchStatus(HANDLE, BatchState.COMPLETED, "completed"))


def test_a_batch_of_another_provider_is_not_looked_for() -> None:
    """It is collected where it was submitted."""
    provider, other = Api(always(batch())).provider, BatchHandle("openai", "batch-1")
    ended = BatchStatus(other, BatchState.COMPLETED, "completed")
    for call in (
        lambda: provider.status(other),
        lambda: provider.cancel(other),
        lambda: list(provider.outcomes(ended)),
        lambda: provider.delete_files(ended),
    ):
        with pytest.raises(ProviderMismatchError):
            call()


# Results


def collected(body: Any, extras: "tuple[str, ...]" = ()) -> "list[Outcome]":
    """The outcomes of a batch object; no other address is known."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(request: httpx.Request) -> httpx.Response:
        found = request.url.path == "/api/v1/batches/batch-1"
        return httpx.Response(200, content=content) if found else httpx.Response(404)

    return list(Api(answer).provider.outcomes(BatchStatus(HANDLE, BatchState.COMPLETED, "completed"), extras=extras))


@pytest.mark.parametrize("state", ["completed", "failed", "expired", "cancelled"])
def test_results_are_read_however_the_batch_ended(state: str) -> None:
    """What is there was paid for; what is not there is not made up."""
    body = batch(status=state, results=[result("b"), result("a")])
    assert [(o.custom_id, o.text) for o in collected(body)] == [("b", "yes"), ("a", "yes")]
    assert Api(always(body)).provider.status(HANDLE).result_refs
    assert collected(batch(status=state)) == []


@pytest.mark.parametrize(("broken", "kept"), [("\ud83d", [("b", "y\ufffd")]), ("BAD", [])], ids=["surrogate", "byte"])
def test_a_broken_result_loses_no_other(broken: str, kept: "list[tuple[str, str]]") -> None:
    """Half an emoji is replaced, an unreadable row is skipped, and the rows around them are kept."""
    rows = [result("a"), {"x": 1}, 17, result("b", reply("y" + broken)), result("c")]
    content = json.dumps(batch(status="completed", results=rows)).encode().replace(b"BAD", b"\xff")
    assert [(o.custom_id, o.text) for o in collected(content)] == [("a", "yes"), *kept, ("c", "yes")]
    answered = Api(lambda request: httpx.Response(200, content=content)).provider.status(HANDLE)
    assert answered.state is BatchState.COMPLETED


def test_answers_that_are_counted_and_not_shown_are_waited_for() -> None:
    """Nothing is taken for missing while the batch says it has answers."""
    counts = {"total": 2, "completed": 1, "failed": 1}
    for results in (None, []):
        with pytest.raises(TransientProviderError, match="counts 1"):
            collected(batch(status="completed", request_counts=counts, results=results))


def paged(*pages: Any) -> "tuple[list[str], list[str]]":
    """(custom ids, cursors asked for) of a completed batch whose results have an address of their own."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/results"):
            return httpx.Response(200, json=batch(status="completed", usage={"cost": 0.3}))
        asked.append(request.url.params.get("cursor", ""))
        return httpx.Response(200, json=pages[min(len(asked), len(pages)) - 1])

    outcomes = list(Api(answer).provider.outcomes(BatchStatus(HANDLE, BatchState.COMPLETED, "completed")))
    assert not outcomes or fsum(o.cost_usd or 0 for o in outcomes) == 0.3
    return [o.custom_id for o in outcomes], asked


def test_results_from_pages() -> None:
    """Only where the batch has none inside; every page is read, once, and the cost is shared over all."""
    first = {"object": "list", "data": [result("a"), result("b")], "has_more": True, "next_cursor": "c/1&x"}
    second = {"object": "list", "data": [result("c")], "has_more": False, "next_cursor": None}
    assert paged(first, second) == (["a", "b", "c"], ["", "c/1&x"])
    assert paged({"data": None}) == ([], [""])
    assert paged(first) == (["a", "b", "a", "b"], ["", "c/1&x"])


def test_the_cost_is_shared_by_tokens() -> None:
    """A reply of three times the tokens costs three times as much; what has no tokens costs nothing that is known."""
    error = {"type": "server_error", "message": "m"}
    rows = [result("a", reply(tokens=(20, 10))), result("b", reply(tokens=(5, 5))), result("c", None, error)]
    found = collected(batch(status="completed", usage={"cost": 0.04}, results=rows))
    assert [o.cost_usd for o in found] == [pytest.approx(0.03), pytest.approx(0.01), None]
    unknown = collected(batch(status="completed", usage={"prompt_tokens": 1}, results=rows))
    assert [o.cost_usd for o in unknown] == [None, None, None]


@settings(max_examples=200)
@given(
    total=st.floats(1e-9, 1e4),
    tokens=st.lists(st.none() | st.tuples(st.integers(0, 10**6), st.none() | st.integers(0, 10**6)), max_size=40),
)
def test_the_shares_add_up(total: float, tokens: "list[tuple[int, int | None] | None]") -> None:
    """To the last digit, and none is below zero by more than rounding."""
    given_ = [
        Outcome(str(n), OutcomeKind.ANSWER, input_tokens=t and t[0], output_tokens=t and t[1])
        for n, t in enumerate(tokens)
    ]
    shares = [o.cost_usd for o in share_cost(given_, total)]
    assert [s is None for s in shares] == [t is None for t in tokens]
    known = [s for s in shares if s is not None]
    assert not known or fsum(known) == total
    assert all(share >= -1e-9 * total for share in known)


# Rows and replies


def row(body: Any = None, error: Any = None, status: int = 200, extras: "tuple[str, ...]" = ()) -> Outcome:
    """The outcome of one result."""
    found = read_row(json.dumps(result("a", body, error, status)).encode(), extras)
    assert found is not None
    return found


ERRORS: "list[tuple[dict[str, Any], ErrorCategory, bool]]" = [
    ({"error_type": "context_length_exceeded"}, ErrorCategory.CONTEXT_OVERFLOW, False),
    ({"error_type": "rate_limit_exceeded"}, ErrorCategory.RATE_LIMIT, True),
    ({"error_type": "provider_overloaded"}, ErrorCategory.SERVER_ERROR, True),
    ({"error_type": "refusal"}, ErrorCategory.REFUSED, False),
    ({"error_type": "content_policy_violation"}, ErrorCategory.REFUSED, False),
    ({"error_type": "timeout"}, ErrorCategory.API_TIMEOUT, True),
    ({"type": "rate_limit_exceeded"}, ErrorCategory.RATE_LIMIT, True),
    ({"type": "invalid_request_error", "code": 400}, ErrorCategory.CLIENT_ERROR, False),
    ({"code": 402}, ErrorCategory.INSUFFICIENT_BALANCE, False),
    ({"code": 429}, ErrorCategory.RATE_LIMIT, True),
    ({"code": 503}, ErrorCategory.SERVER_ERROR, True),
    ({"code": 400, "message": "maximum context length is 9 tokens"}, ErrorCategory.CONTEXT_OVERFLOW, False),
    ({"message": "maximum context length is 9 tokens"}, ErrorCategory.CONTEXT_OVERFLOW, False),
    ({"code": 403, "metadata": {"reasons": ["violence"], "flagged_input": "x"}}, ErrorCategory.REFUSED, False),
    ({"code": 403}, ErrorCategory.AUTH, False),
    ({"code": 429, "message": "Rate limit exceeded: free-models-per-day"}, ErrorCategory.INSUFFICIENT_BALANCE, False),
    ({"code": 429, "message": "Rate limit exceeded: free-models-per-min"}, ErrorCategory.RATE_LIMIT, True),
    ({"error_type": "never_met", "message": "m"}, ErrorCategory.UNKNOWN, True),
    ({"message": "m"}, ErrorCategory.UNKNOWN, True),
    ({}, ErrorCategory.UNKNOWN, True),
]


@pytest.mark.parametrize(("error", "category", "retryable"), ERRORS, ids=[str(e[0]) for e in ERRORS])
def test_row_errors(error: "dict[str, Any]", category: ErrorCategory, retryable: bool) -> None:
    """By error_type, then by a status given as code; a refusal is one, not a failure; nothing at all may be asked again."""
    found = row(error=error)
    kind = OutcomeKind.REFUSAL if category is ErrorCategory.REFUSED else OutcomeKind.PROVIDER_ERROR
    assert (found.kind, found.error_category, found.retryable) == (kind, category, retryable)


@pytest.mark.parametrize(
    ("status", "category", "retryable"),
    [
        (400, ErrorCategory.CLIENT_ERROR, False),
        (404, ErrorCategory.CLIENT_ERROR, False),
        (408, ErrorCategory.API_TIMEOUT, True),
        (429, ErrorCategory.RATE_LIMIT, True),
        (502, ErrorCategory.SERVER_ERROR, True),
    ],
)
def test_a_status_inside_a_row(status: int, category: ErrorCategory, retryable: bool) -> None:
    """A 4xx may stand in the response instead."""
    found = row({"error": {"message": "m"}}, status=status)
    assert (found.kind, found.error_category, found.retryable) == (OutcomeKind.PROVIDER_ERROR, category, retryable)
    assert found.error_code == f"http_{status}"


def chosen(reason: str, content: Any = "ha", **fields: Any) -> "dict[str, Any]":
    """A reply with a finish reason."""
    return reply(choices=[{"message": {"content": content, **fields}, "finish_reason": reason}])


REPLIES: "list[tuple[str, Any, OutcomeKind, str | None]]" = [
    ("answer", reply(), OutcomeKind.ANSWER, "yes"),
    ("null", reply(None), OutcomeKind.EMPTY, None),
    ("reasoning alone", chosen("stop", None, reasoning="hm"), OutcomeKind.EMPTY, None),
    ("length", chosen("length"), OutcomeKind.TRUNCATED, "ha"),
    ("filter", chosen("content_filter"), OutcomeKind.REFUSAL, "ha"),
    ("refusal", chosen("refusal"), OutcomeKind.REFUSAL, "ha"),
    ("refusal text", chosen("stop", None, refusal="no"), OutcomeKind.REFUSAL, None),
    ("error", chosen("error"), OutcomeKind.PROVIDER_ERROR, None),
    ("choices null", reply(choices=None), OutcomeKind.PROVIDER_ERROR, None),
    ("nested", {"provider": reply()}, OutcomeKind.ANSWER, "yes"),
    ("nested beside null", {"provider": reply(), "choices": None, "model": "x"}, OutcomeKind.ANSWER, "yes"),
    ("error on top", {"error": {"code": 502, "message": "m"}}, OutcomeKind.PROVIDER_ERROR, None),
    ("refused on top", {"error": {"code": 403, "metadata": {"reasons": ["x"]}}}, OutcomeKind.REFUSAL, None),
]


@pytest.mark.parametrize(("body", "kind", "text"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_replies(body: Any, kind: OutcomeKind, text: "str | None") -> None:
    """HTTP 200 is not an answer yet, in a batch as in realtime."""
    found = row(body)
    assert (found.kind, found.text) == (kind, text)
    realtime = Api(always(body)).provider.complete(TEMPLATE, "Hi")
    assert (realtime.kind, realtime.text, realtime.retryable) == (kind, text, found.retryable)


def test_extras() -> None:
    """Reasoning, calls, log probabilities and citations, where asked for."""
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "yes", "reasoning": "hm", "tool_calls": [call], "annotations": [{"type": "url_citation"}]}
    body = reply(choices=[{"message": message, "finish_reason": "stop", "logprobs": {"content": []}}])
    found = row(body, extras=EXTRAS)
    assert all(getattr(found, name) for name in EXTRAS)
    assert found.reasoning == "hm"
    assert json.loads(found.response or "") == body
    assert row({"provider": body}, extras=("reasoning",)).reasoning == "hm"
    assert collected(batch(status="completed", results=[result("a", body)]), extras=("reasoning",))[0].reasoning == "hm"
    assert not any(getattr(row(body), name) for name in EXTRAS)


def test_unreadable_rows_are_skipped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """A warning gives the size and none of the content."""
    with caplog.at_level(logging.WARNING):
        assert read_row(b'{"x":"SECRET"}') is None
    assert "14 bytes" in caplog.text
    assert "SECRET" not in caplog.text


# Realtime


def test_golden_realtime() -> None:
    """Model without its batch suffix, the user's routing kept, and with a schema only providers that keep to it."""
    api = Api(always(reply(usage={"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.0002})))
    template = RequestTemplate(
        MODEL + ":batch", system="S", params={"seed": 1, "provider": {"only": ["x"]}}, schema=SCHEMA
    )
    found = api.provider.complete(template, "Hi")
    (request,) = api.requests
    assert (request.method, str(request.url)) == ("POST", "https://openrouter.ai/api/v1/chat/completions")
    assert json.loads(request.content) == {
        "model": MODEL,
        "provider": {"require_parameters": True, "only": ["x"]},
        "seed": 1,
        "response_format": FORMAT,
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
    }
    assert (found.text, found.cost_usd, found.input_tokens) == ("yes", 0.0002, 10)


@pytest.mark.parametrize("cost", [None, "0.1", {"total": 1}])
def test_a_cost_that_is_no_number_is_unknown(cost: Any) -> None:
    """Never 0 for unknown; 0 stays 0."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    assert row(reply(usage={**usage, "cost": cost})).cost_usd is None
    assert row(reply(usage={**usage, "cost": 0})).cost_usd == 0


def test_realtime_parts() -> None:
    """A document's address goes where its bytes would."""
    api = Api(always(reply()))
    parts = (DocumentPart(url="https://x.test/a.pdf"), ImagePart(url="https://x.test/a.png"))
    api.provider.complete(TEMPLATE, parts)
    assert json.loads(api.requests[0].content)["messages"][0]["content"] == [
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "https://x.test/a.pdf"}},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
    ]


CALL_ERRORS: "list[tuple[int, Any, ErrorCategory]]" = [
    (400, {"message": "m"}, ErrorCategory.CLIENT_ERROR),
    (400, {"message": "This endpoint's maximum context length is 9 tokens"}, ErrorCategory.CONTEXT_OVERFLOW),
    (401, {"message": "m", "code": 401}, ErrorCategory.AUTH),
    (402, {"message": "m"}, ErrorCategory.INSUFFICIENT_BALANCE),
    (403, {"message": "m", "metadata": {"reasons": ["x"]}}, ErrorCategory.REFUSED),
    (404, {"message": "No endpoints found"}, ErrorCategory.CLIENT_ERROR),
    (413, None, ErrorCategory.TOO_LARGE),
    (429, {"message": "Rate limit exceeded: free-models-per-day. Add credits"}, ErrorCategory.INSUFFICIENT_BALANCE),
    (
        429,
        {"message": "m", "metadata": {"raw": "x is limited, free-models-per-day"}},
        ErrorCategory.INSUFFICIENT_BALANCE,
    ),
    (429, {"message": "Provider returned error", "metadata": {"provider_name": "Google"}}, ErrorCategory.RATE_LIMIT),
    (502, "bad gateway", ErrorCategory.SERVER_ERROR),
    (529, {}, ErrorCategory.SERVER_ERROR),
]


@pytest.mark.parametrize(("status", "error", "category"), CALL_ERRORS, ids=str)
def test_errors_of_calls(status: int, error: Any, category: ErrorCategory) -> None:
    """By status where nothing else is said; the day's free calls are not waited for; one POST in every case."""
    assert classify(status, {"error": error}).category is category
    api = Api(always({"error": error}, status))
    with pytest.raises(ProviderError) as caught:
        api.provider.complete(TEMPLATE, "Hi")
    assert caught.value.category == category.value
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [({"X-RateLimit-Reset": "4000000000000"}, 1e6, 4e9), ({"X-RateLimit-Reset": "1000"}, 0, 0)],
)
def test_openrouters_own_limit_says_when(headers: "dict[str, str]", low: float, high: float) -> None:
    """The reset is in epoch milliseconds, inside the body; one in the past asks for no wait."""
    found = classify(429, {"error": {"code": 429, "message": "m", "metadata": {"headers": headers}}})
    assert found.retry_after is not None
    assert low <= found.retry_after <= high
    for given_ in ({}, {"X-RateLimit-Reset": "soon"}, None):
        assert classify(429, {"error": {"code": 429, "metadata": {"headers": given_}}}).retry_after is None


# Find

OURS = ("llmb-1", "llmb-2")
SEARCH = Search("k", Uploaded({"request_bytes": "9"}), NOW, OURS, known=("batch-known",))


class Account:
    """An account's batches, newest first: listed without their results, and read one by one."""

    def __init__(self, *batches: "dict[str, Any]", hidden: "tuple[str, ...]" = ()) -> None:
        self._batches = {b["id"]: b for b in batches}
        self._hidden = hidden
        self.api = Api(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        batch_id = request.url.path.removeprefix("/api/v1/batches").strip("/")
        if not batch_id:
            listed = [{**b, "results": None} for b in self._batches.values()]
            return httpx.Response(200, json={"object": "list", "data": listed, "has_more": False})
        found = None if batch_id in self._hidden else self._batches.get(batch_id)
        return httpx.Response(404, json=MISSING) if found is None else httpx.Response(200, json=found)

    def find(self) -> "BatchStatus | None":
        return self.api.provider.find(SEARCH)

    def read(self) -> "list[str]":
        """Ids of the batches that were read."""
        return [r.url.path.rsplit("/", 1)[1] for r in self.api.requests[1:]]


def ended(batch_id: str, *ids: str, status: str = "completed", **fields: Any) -> "dict[str, Any]":
    """A batch that ended with results for these custom ids."""
    return batch(id=batch_id, status=status, results=[result(i) for i in ids], **fields)


def test_a_batch_is_proven_by_its_results() -> None:
    """Among batches of our size the one whose results have our custom ids; a stranger is told apart."""
    account = Account(ended("batch-x", "other-1", "other-2"), ended("batch-y", "llmb-2"))
    found = account.find()
    assert found is not None
    assert (found.handle.batch_id, found.state) == ("batch-y", BatchState.COMPLETED)
    listed = account.api.requests[0].url
    assert listed.path == "/api/v1/batches"
    assert int(listed.params["created_after"]) <= NOW
    assert account.read() == ["batch-x", "batch-y"]


def test_nothing_is_nothing() -> None:
    """No batch, or strangers only."""
    assert Account().find() is None
    assert Account(ended("batch-x", "other-1")).find() is None


@pytest.mark.parametrize(
    "other",
    [
        batch(id="batch-known"),
        batch(endpoint="/v1/responses"),
        batch(request_counts={"total": 3}),
        batch(created_at=NOW - 1000),
    ],
    ids=["recorded", "endpoint", "size", "older"],
)
def test_what_cannot_be_ours_is_not_read(other: "dict[str, Any]") -> None:
    """Known batches, other endpoints and sizes, and older ones are passed over."""
    account = Account(other)
    assert account.find() is None
    assert account.read() == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "somebody/else"},
        {"status": "validating", "request_counts": {"total": 0}},
        {"request_counts": None},
        {"endpoint": None, "created_at": None},
        {"status": "never_met"},
        {"created_at": NOW - 200},
        {"status": "completed"},
        {"status": "completed", "results": [{"x": 1}]},
    ],
    ids=str,
)
def test_a_batch_that_may_be_ours_is_waited_for(fields: "dict[str, Any]") -> None:
    """While it runs, or shows nothing that proves whose it is, nothing is bought again: whatever its model is called."""
    with pytest.raises(BatchUnprovenError):
        Account(batch(**fields)).find()


def test_a_listed_batch_that_cannot_be_read_is_waited_for() -> None:
    """Reading lags behind the list, or the other way round."""
    with pytest.raises(BatchUnprovenError):
        Account(ended("batch-x", "llmb-1"), hidden=("batch-x",)).find()


def test_a_proof_beats_a_doubt() -> None:
    """One that runs does not hide the one that is ours."""
    found = Account(batch(id="batch-x"), ended("batch-y", "llmb-1")).find()
    assert found is not None
    assert found.handle.batch_id == "batch-y"
    with pytest.raises(BatchUnprovenError):
        Account(ended("batch-z", "other-1"), batch(id="batch-x")).find()


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled"])
def test_an_end_without_results_leaves_nothing_to_find(status: str) -> None:
    """Whose it is makes no difference: it has no answer that could be collected."""
    assert Account(batch(status=status)).find() is None
    assert Account(ended("batch-y", "llmb-1", status=status)).find() is not None


def test_withheld_results_stop_the_search() -> None:
    """Without credit nobody can tell: a person must act, and nothing is bought."""
    account = Account(ended("batch-x", "llmb-1"))
    answer = account._answer
    api = Api(lambda r: answer(r) if r.url.path.endswith("/batches") else httpx.Response(402, json={}))
    with pytest.raises(QuotaExhaustedError):
        api.provider.find(SEARCH)


def test_the_key_is_in_no_representation() -> None:
    """Printing the provider or its parts shows no key."""
    provider = Api(always(batch())).provider
    assert SECRET not in f"{provider!r}{vars(provider)!r}{vars(provider._http)!r}"
