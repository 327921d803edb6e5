"""OpenRouter: the body that is read as it arrives, states, a batch that may not show yet, and realtime calls."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
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
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    RequestTemplate,
    Uploaded,
)
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.lines import CHUNK_BYTES
from dagster_llmbatch.providers.openrouter_requests import OpenRouterEncoder, batch_body
from dagster_llmbatch.providers.openrouter_rows import classify
from dagster_llmbatch_tests.providers.openrouter_traffic import (
    FORMAT,
    HANDLE,
    MISSING,
    MODEL,
    NOW,
    SCHEMA,
    SECRET,
    TEMPLATE,
    Answer,
    Api,
    always,
    batch,
    lines_of,
    raising,
    reply,
)

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
    pieces = batch_body(lines_of(tmp_path, TEMPLATE, "a"), TEMPLATE)
    assert list(json.loads(b"".join(pieces))) == ["endpoint", "model", "completion_window", "requests"]


@pytest.mark.parametrize("size", [-2, -1, 0, 1, 2, CHUNK_BYTES])
def test_the_body_is_whole_at_any_length(size: int, tmp_path: Path) -> None:
    """Where pieces of the file end is seen nowhere in the body."""
    room = CHUNK_BYTES + size - len(OpenRouterEncoder(TEMPLATE).line("r-0", ""))
    lines = lines_of(tmp_path, TEMPLATE, "x" * room, "y")
    pieces = batch_body(lines, TEMPLATE)
    length = pieces.length
    body = b"".join(pieces)
    assert len(body) == length
    assert [len(r["body"]["messages"][0]["content"]) for r in json.loads(body)["requests"]] == [room, 1]


@pytest.mark.parametrize(
    ("model", "sent"), [("a/b", "a/b:batch"), ("a/b:batch", "a/b:batch"), ("a/b:free", "a/b:free:batch")]
)
def test_the_batch_slug(model: str, sent: str, tmp_path: Path) -> None:
    """A batch is bought under the model's :batch name."""
    template = RequestTemplate(model)
    pieces = batch_body(lines_of(tmp_path, template, "a"), template)
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
    ids=lambda value: value.__name__ if isinstance(value, type) else "answer",
)
def test_what_only_realtime_takes(model: str, params: "dict[str, Any]") -> None:
    """Refused for a batch, and sent as it is in realtime."""
    template = RequestTemplate(model, params=params)
    with pytest.raises(NotBatchCapableError, match=r"LLMBatchResource\.complete"):
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
    ids=lambda value: value.__name__ if isinstance(value, type) else "answer",
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


def test_the_key_is_in_no_representation() -> None:
    """Printing the provider or its parts shows no key."""
    provider = Api(always(batch())).provider
    assert SECRET not in f"{provider!r}{vars(provider)!r}{vars(provider._http)!r}"
