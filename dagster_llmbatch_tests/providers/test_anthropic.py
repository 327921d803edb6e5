"""Anthropic's message batches: request lines, the paid call, proving a batch, states, results and realtime."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotAdoptableError,
    BatchNotFoundError,
    BatchUnprovenError,
    ConfigurationError,
    ProviderError,
    ProviderMismatchError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.anthropic import PAGE, REQUEST_COUNT, AnthropicBatchProvider
from dagster_llmbatch.providers.anthropic_requests import MAX_TOKENS, AnthropicEncoder, create_body
from dagster_llmbatch.providers.content import ImagePart, PartKind, TextPart
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.lines import CHUNK_BYTES

SECRET = "sk-ant-very-secret"
TEMPLATE = RequestTemplate("claude-haiku-4-5")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
HANDLE = BatchHandle("anthropic", "msgbatch_1")
STRANGER = BatchHandle("openai", "batch_1")
CREATED, CREATED_AT = "2026-08-19T14:44:51.5+00:00", 1787150691.5
Answer = Callable[[httpx.Request], httpx.Response]


class Api:
    """A provider over a function that answers its requests, which are noted."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self._answer = answer
        self.provider = AnthropicBatchProvider(
            api_key=SECRET, transport=httpx.MockTransport(self._handle), sleep=self.waits.append, **options
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)


def batch(**fields: Any) -> "dict[str, Any]":
    """A batch object as Anthropic sends it."""
    return {
        "id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress", "request_counts": counts(2),
        "created_at": CREATED, "expires_at": "2026-08-20T14:44:51.5+00:00", "ended_at": None, "archived_at": None,
        "cancel_initiated_at": None, "results_url": None, **fields,
    }  # fmt: skip


def counts(processing: int = 0, **fields: int) -> "dict[str, int]":
    """A batch's counts."""
    return {"processing": processing, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0, **fields}


def ended(**fields: Any) -> "dict[str, Any]":
    """A batch object after its end."""
    told = {"processing_status": "ended", "request_counts": counts(succeeded=2), "ended_at": "2026-08-19T14:46:57Z"}
    url = "https://elsewhere.example/v1/messages/batches/msgbatch_1/results"
    return batch(**{**told, "results_url": url, **fields})


def always(content: Any, status: int = 200, headers: "dict[str, str] | None" = None) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content, headers=headers)


def status_of(body: "dict[str, Any]") -> BatchStatus:
    """The status read from a batch object."""
    return Api(always(body)).provider.status(HANDLE)


# Request lines


def test_golden_line_of_plain_text() -> None:
    """A prompt without anything else: a cap, because Anthropic demands one; no temperature."""
    line = AnthropicEncoder(TEMPLATE).line("r-1", "Hello")
    assert line == (
        b'{"custom_id":"r-1","params":{"model":"claude-haiku-4-5","max_tokens":8192,'
        b'"messages":[{"role":"user","content":"Hello"}]}}\n'
    )


def test_golden_line_with_everything() -> None:
    """System prompt, parameters and schema in their places; betas are no part of the body."""
    params = {"max_tokens": 50, "output_config": {"effort": "low"}, "metadata": {"user_id": "u"}, "betas": ["b-1"]}
    template = RequestTemplate("m", system="Be brief.", params=params, schema=SCHEMA)
    assert json.loads(AnthropicEncoder(template).line("r-1", (TextPart("Hi"), ImagePart(url="https://x/y.png")))) == {
        "custom_id": "r-1",
        "params": {
            "model": "m",
            "max_tokens": 50,
            "metadata": {"user_id": "u"},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
            "system": "Be brief.",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                    ],
                }
            ],
        },
    }


@settings(max_examples=60)
@given(st.text(), st.none() | st.text(), st.booleans())
def test_any_prompt_survives_the_line(prompt: str, system: "str | None", in_parts: bool) -> None:
    """One line whatever the text holds, the text comes back from it, and realtime sends the same body."""
    encoder = AnthropicEncoder(RequestTemplate("m", system=system, schema=SCHEMA))
    given_prompt = (TextPart(prompt),) if in_parts else prompt
    line = encoder.line("r-1", given_prompt)
    assert line.count(b"\n") == 1
    params = json.loads(line)["params"]
    (said,) = params["messages"]
    assert said["content"] == ([{"type": "text", "text": prompt}] if in_parts else prompt)
    assert params.get("system") == system
    assert json.loads(encoder.body(given_prompt)) == params


@pytest.mark.parametrize("name", ["model", "messages", "stream", "output_format"])
def test_parameters_that_are_ours_are_refused(name: str) -> None:
    """What the package sets cannot be set beside it."""
    with pytest.raises(ConfigurationError, match=name):
        AnthropicEncoder(RequestTemplate("m", params={name: "x"}))


REFUSED_IN_BATCHES = [
    {"speed": "fast"},
    {"store": True},
    {"previous_thread_event_id": "x"},
    {"cache_hint": {}},
    {"context_hint": {}},
    {"billing_policy": {"bill_to": "user_profile"}},
]


@pytest.mark.parametrize("params", REFUSED_IN_BATCHES, ids=str)
def test_what_a_batch_refuses_is_refused_before_it_is_sent(params: "dict[str, Any]") -> None:
    """A batch would answer with an error in every row; a realtime call may take them."""
    template = RequestTemplate("m", params=params)
    api = Api(always({"content": [{"type": "text", "text": "yes"}]}))
    with pytest.raises(ConfigurationError, match=next(iter(params))):
        api.provider.encoder(template)
    assert api.provider.complete(template, "Hi").text == "yes"


@pytest.mark.parametrize("params", [{"speed": None}, {"billing_policy": {"bill_to": "self"}}, {"betas": None}], ids=str)
def test_what_says_nothing_is_not_refused(params: "dict[str, Any]") -> None:
    """Values that stand for the default may be batched."""
    assert Api(always({})).provider.encoder(RequestTemplate("m", params=params)).line("r", "x")


@pytest.mark.parametrize(
    "template",
    [
        RequestTemplate("m", params={"max_tokens": 0}),
        RequestTemplate("m", params={"max_tokens": True}),
        RequestTemplate("m", params={"max_tokens": "9"}),
        RequestTemplate("m", params={"max_tokens": None}),
        RequestTemplate("m", params={"temperature": float("nan")}),
        RequestTemplate("m", params={"thinking": {"budget_tokens": float("inf")}}),
        RequestTemplate("m", params={"tools": [{1, 2}]}),
        RequestTemplate("m", system="a", params={"system": "b"}),
        RequestTemplate("m", schema=SCHEMA, params={"output_config": {"format": {}}}),
        RequestTemplate("m", params={"betas": "b-1"}),
        RequestTemplate("m", params={"betas": ["b-1", ""]}),
        RequestTemplate("m", params={"betas": ["b\r\nx-evil: 1"]}),
        RequestTemplate("m", params={"betas": [1]}),
    ],
    ids=lambda template: str(template.params)[:40],
)
def test_templates_that_contradict_themselves_are_refused(template: RequestTemplate) -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigurationError):
        Api(always({})).provider.encoder(template)


def _identity(**fields: Any) -> bytes:
    return AnthropicEncoder(RequestTemplate(**{"model": "m", **fields})).identity


def test_the_output_cap_is_no_part_of_the_identity() -> None:
    """Raising it changes no fingerprint; it is sent all the same."""
    assert _identity() == _identity(params={"max_tokens": 5}) == _identity(params={"max_tokens": MAX_TOKENS + 1})
    assert b'"max_tokens":5,' in AnthropicEncoder(RequestTemplate("m", params={"max_tokens": 5})).line("r", "x")


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "n"},
        {"system": "s"},
        {"schema": SCHEMA},
        {"params": {"temperature": 0}},
        {"params": {"betas": ["b-1"]}},
    ],
    ids=str,
)
def test_what_changes_the_answer_changes_the_identity(fields: "dict[str, Any]") -> None:
    """Model, system prompt, schema, parameters and betas."""
    assert _identity(**fields) != _identity()


def test_order_is_no_part_of_the_identity() -> None:
    """Neither that of parameters nor that of betas."""
    first = _identity(params={"betas": ["a", "b"], "top_k": 1, "top_p": 1})
    assert first == _identity(params={"top_p": 1, "top_k": 1, "betas": ["b", "a", "b"]})


def test_groups() -> None:
    """Models, parameters and schemas share a batch; sets of betas do not, whatever their order."""
    group = Api(always({})).provider.group
    assert group(TEMPLATE) == group(RequestTemplate("other", params={"temperature": 0}, schema=SCHEMA))
    one, two = ({"betas": names} for names in (["a", "b"], ["b", "a", "a"]))
    assert group(RequestTemplate("m", params=one)) == group(RequestTemplate("m", params=two)) != group(TEMPLATE)


# Upload and create


def written(folder: Path, lines: "Iterable[bytes]") -> Path:
    """A file of request lines."""
    path = folder / "lines"
    path.write_bytes(b"".join(lines))
    return path


def test_upload_sends_nothing_and_counts(tmp_path: Path) -> None:
    """The count is what a later search goes by; it is there although nothing was handed over."""
    encoder, api = AnthropicEncoder(TEMPLATE), Api(always({}))
    path = written(tmp_path, (encoder.line(f"r-{n}", "a\nb\u2028") for n in range(3)))
    assert api.provider.upload(path, external_key="k") == Uploaded({REQUEST_COUNT: "3"})
    assert api.requests == []


@pytest.mark.parametrize("betas", [(), ("b-2", "b-1")], ids=["plain", "betas"])
def test_golden_create(betas: "tuple[str, ...]", tmp_path: Path) -> None:
    """All lines in one body of known length, the betas of the batch in one header; the answer is a status."""
    api = Api(always(batch(), headers={"retry-after": "10"}), workspace_id="wrkspc_1")
    template = RequestTemplate("m", params={"betas": list(betas)})
    lines = [AnthropicEncoder(template).line(f"r-{n}", 'x, "]}\n' * n) for n in range(3)]
    path = written(tmp_path, lines)
    found = api.provider.create(path, Uploaded({REQUEST_COUNT: "3"}), template=template, external_key="k")
    (request,) = api.requests
    assert (request.method, str(request.url)) == ("POST", "https://api.anthropic.com/v1/messages/batches")
    assert json.loads(request.content) == {"requests": [json.loads(line) for line in lines]}
    assert request.headers["content-length"] == str(len(request.content))
    assert "transfer-encoding" not in request.headers
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-api-key"] == SECRET
    assert request.headers["anthropic-workspace-id"] == "wrkspc_1"
    assert request.headers.get("anthropic-beta") == ("b-1,b-2" if betas else None)
    assert (found.handle, found.state, found.total) == (HANDLE, BatchState.RUNNING, 2)


def test_the_body_is_streamed(tmp_path: Path) -> None:
    """However large the file, a piece of it is in memory at a time; no byte is lost between pieces, and it can be repeated."""
    line = AnthropicEncoder(TEMPLATE).line("r-1", "x" * 1000)
    lines = [line] * (3 * CHUNK_BYTES // len(line))
    body = create_body(written(tmp_path, lines))
    pieces = list(body)
    assert max(map(len, pieces)) <= CHUNK_BYTES < body.length == sum(map(len, pieces))
    assert b"".join(pieces) == b'{"requests":[' + b",".join(each[:-1] for each in lines) + b"]}"
    assert list(body) == pieces


def test_the_largest_file_makes_a_body_within_the_limit() -> None:
    """The limit counts lines; with the envelope the body stays below the provider's number."""
    limits = AnthropicBatchProvider.limits
    assert limits.max_bytes + len(b'{"requests":[') - len(b"\n") + len(b"]}") <= 250_000_000
    assert limits.batch_parts == limits.realtime_parts == set(PartKind)


def _raise(error: Exception) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def refused(kind: str, **fields: Any) -> "dict[str, Any]":
    """An error body."""
    return {"type": "error", "error": {"type": kind, "message": "MESSAGE", **fields}, "request_id": "req_1"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_raise(httpx.ConnectError("x")), TransientProviderError),
        (_raise(httpx.ReadTimeout("x")), AmbiguousCreateError),
        (_raise(httpx.WriteError("x")), AmbiguousCreateError),
        (always({}, 408), AmbiguousCreateError),
        (always(refused("conflict_error"), 409), AmbiguousCreateError),
        (always(refused("api_error"), 500), AmbiguousCreateError),
        (always(refused("overloaded_error"), 529), AmbiguousCreateError),
        (always(refused("authentication_error"), 401), RejectedError),
        (always(refused("billing_error"), 402), QuotaExhaustedError),
        (always(refused("not_found_error"), 404), RejectedError),
        (always(refused("request_too_large"), 413), RejectedError),
        (always(refused("rate_limit_error"), 429, {"retry-after": "23"}), RateLimitedError),
        (
            always(refused("rate_limit_error", details={"error_code": "contract_spend_limit_reached"}), 429),
            QuotaExhaustedError,
        ),
        (always([]), AmbiguousCreateError),
        (always({}), AmbiguousCreateError),
        (always({"type": "message_batch", "processing_status": "in_progress"}), AmbiguousCreateError),
    ],
)
def test_the_paid_call_is_sent_once(answer: Answer, kind: "type[ProviderError]", tmp_path: Path) -> None:
    """Whatever happens, one POST; what is not provably refused is ambiguous; neither key nor text is in the error."""
    api, path = Api(answer), written(tmp_path, [AnthropicEncoder(TEMPLATE).line("r-1", "PROMPT")])
    with pytest.raises(ProviderError) as caught:
        api.provider.create(path, Uploaded({REQUEST_COUNT: "1"}), template=TEMPLATE, external_key="k")
    assert type(caught.value) is kind
    assert len(api.requests) == 1
    shown = f"{caught.value!s}{caught.value!r}{vars(caught.value)}"
    assert not [secret for secret in (SECRET, "PROMPT", "MESSAGE") if secret in shown]


# Find

OURS, THEIRS = ("r-1", "r-2"), ("x-1", "x-2")


def result(custom_id: str, text: str = "yes") -> bytes:
    """A line of results that holds an answer."""
    reply = {"type": "message", "model": "m", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    row = {"custom_id": custom_id, "result": {"type": "succeeded", "message": reply}}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


class Account:
    """Batches by page, newest first, and the custom ids or lines in their results."""

    def __init__(self, *pages: "list[dict[str, Any]]", results: "dict[str, Any] | None" = None) -> None:
        self._pages, self._results = pages, results or {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a list or a results call."""
        *_, batch_id, last = request.url.path.split("/")
        if last == "results":
            found = self._results.get(batch_id)
            if found is None:
                return httpx.Response(404, json=refused("not_found_error"))
            content = found if isinstance(found, bytes) else b"".join(map(result, found))
            return httpx.Response(200, content=content)
        after = request.url.params.get("after_id")
        starts = {page[-1]["id"]: number + 1 for number, page in enumerate(self._pages) if page}
        number = 0 if after is None else starts[after]
        data, more = self._pages[number], number + 1 < len(self._pages)
        page = {"data": data, "has_more": more, "first_id": None, "last_id": data[-1]["id"] if data else None}
        return httpx.Response(200, json=page)


def search(
    known: "tuple[str, ...]" = (), since: float = CREATED_AT - 1, refs: "dict[str, str] | None" = None
) -> Search:
    """A search for a batch of two requests, created a second after the call began."""
    return Search("k", Uploaded({REQUEST_COUNT: "2"} if refs is None else refs), since, list(OURS), known)


def test_a_batch_is_proven_by_its_results() -> None:
    """Of two ended batches of our time and size, the one whose results hold our custom ids, in any order."""
    account = Account([ended(id="theirs"), ended(id="ours")], results={"theirs": THEIRS, "ours": tuple(reversed(OURS))})
    found = Api(account).provider.find(search())
    assert found is not None
    assert (found.handle, found.state) == (BatchHandle("anthropic", "ours"), BatchState.COMPLETED)


def test_an_equal_row_of_another_table_proves_nothing() -> None:
    """Equal rows have equal custom ids: a batch that shares one with ours is not ours."""
    api = Api(Account([ended(id="theirs")], results={"theirs": ("r-1", "x-2")}))
    assert api.provider.find(search()) is None


def test_errors_and_cancelled_rows_prove_it_too() -> None:
    """Every row of a batch names its request, whatever became of it; an unreadable one says nothing."""
    lines = b'{"custom_id":"r-2","result":{"type":"canceled"}}\n{broken\n'
    body = ended(id="ours", cancel_initiated_at=CREATED, request_counts=counts(canceled=2))
    found = Api(Account([body], results={"ours": lines})).provider.find(search())
    assert found is not None
    assert found.state is BatchState.CANCELLED


@pytest.mark.parametrize("state", ["in_progress", "canceling", "moonlight"])
def test_a_running_batch_cannot_be_proven_yet(state: str) -> None:
    """It may be ours: nothing may be bought until its results can tell. It is named, and its results are not asked for."""
    api = Api(Account([batch(id="maybe", processing_status=state)], results={"maybe": OURS}))
    with pytest.raises(BatchUnprovenError, match="maybe") as caught:
        api.provider.find(search())
    assert caught.value.retryable
    assert len(api.requests) == 1


def test_a_proven_batch_ends_the_doubt() -> None:
    """One that is proven is taken, although another still runs or has no results."""
    pages = [batch(id="maybe"), ended(id="gone"), ended(id="ours")]
    found = Api(Account(pages, results={"ours": OURS})).provider.find(search())
    assert found is not None
    assert found.handle.batch_id == "ours"


@pytest.mark.parametrize(
    ("body", "results"),
    [
        (ended(id="gone", archived_at="2026-09-17T14:44:51Z", results_url=None), {"gone": OURS}),
        (ended(id="gone"), {}),
        (ended(id="gone"), {"gone": b""}),
        (ended(id="gone"), {"gone": b"{broken\n"}),
    ],
    ids=["archived", "not found", "empty", "unreadable"],
)
def test_a_batch_without_results_can_never_be_proven(body: "dict[str, Any]", results: "dict[str, Any]") -> None:
    """Time and size match and nothing else can tell: a person decides whether to pay again."""
    with pytest.raises(BatchNotAdoptableError, match="gone"):
        Api(Account([body], results=results)).provider.find(search())


def test_a_running_batch_is_waited_for_before_one_is_given_up() -> None:
    """While one may still be proven, nobody is asked to decide."""
    with pytest.raises(BatchUnprovenError):
        Api(Account([ended(id="gone"), batch(id="maybe")])).provider.find(search())


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (batch(request_counts=counts(3)), False),
        (batch(request_counts=counts(1)), False),
        (batch(request_counts=counts(1, errored=1)), True),
        (batch(request_counts={}), True),
        (batch(created_at="2026-08-19T14:30:00Z"), False),
        (batch(created_at="2026-08-19T14:42:00Z"), True),
        (batch(created_at=None), True),
        (batch(id="known"), False),
    ],
    ids=["larger", "smaller", "same sum", "no counts", "older", "clock behind ours", "no time", "known"],
)
def test_candidates(body: "dict[str, Any]", found: bool) -> None:
    """Only a batch of our size, our time and unknown to us can be ours; what it does not say counts for it."""
    api = Api(Account([body]))
    if found:
        with pytest.raises(BatchUnprovenError):
            api.provider.find(search(known=("known",)))
    else:
        assert api.provider.find(search(known=("known",))) is None


def test_the_size_is_known_without_refs() -> None:
    """The custom ids that were sent are as many."""
    with pytest.raises(BatchUnprovenError):
        Api(Account([batch()])).provider.find(search(refs={}))


def test_pages_are_read_back_to_our_time() -> None:
    """Newest first, by cursor, until a page reaches back before the call."""
    strangers = [[ended(id=f"s-{page}-{n}", request_counts=counts(9)) for n in range(2)] for page in range(2)]
    old = [ended(id="old", created_at="2026-08-01T00:00:00Z")]
    api = Api(Account(strangers[0], [*strangers[1], ended(id="ours")], old, old, results={"ours": OURS}))
    found = api.provider.find(search())
    assert found is not None
    assert [dict(r.url.params) for r in api.requests[:2]] == [
        {"limit": str(PAGE)},
        {"limit": str(PAGE), "after_id": "s-0-1"},
    ]
    api = Api(Account(*strangers, old, old))
    assert api.provider.find(search()) is None
    assert len(api.requests) == 3


def test_find_nothing() -> None:
    """An account without batches, and a page that says there are more and holds none."""
    assert Api(Account([])).provider.find(search()) is None
    assert Api(always({"data": [], "has_more": True})).provider.find(search()) is None


# States


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"processing_status": "in_progress"}, BatchState.RUNNING),
        ({"processing_status": "canceling", "cancel_initiated_at": CREATED}, BatchState.CANCELLING),
        ({"processing_status": "ended"}, BatchState.COMPLETED),
        ({"processing_status": "ended", "request_counts": counts(expired=2)}, BatchState.COMPLETED),
        ({"processing_status": "ended", "cancel_initiated_at": CREATED}, BatchState.CANCELLED),
        ({"processing_status": "moonlight"}, BatchState.UNKNOWN),
        ({"processing_status": None}, BatchState.UNKNOWN),
    ],
    ids=str,
)
def test_states(fields: "dict[str, Any]", state: BatchState) -> None:
    """`ended` is the only end; a cancelled batch's unanswered rows are cancelled, another's are missing or expired."""
    found = status_of(batch(**fields))
    assert (found.state, found.provider_state) == (state, str(fields["processing_status"]))
    assert found.state.ended == (fields["processing_status"] == "ended")


def test_counts_and_times() -> None:
    """Counts are summed; times are unix seconds, with or without fractions and in either notation of UTC."""
    found = status_of(ended(request_counts=counts(succeeded=5, errored=2, canceled=1, expired=3)))
    assert (found.total, found.completed, found.failed) == (11, 5, 2)
    assert (found.created_at, found.expires_at) == (CREATED_AT, CREATED_AT + 86_400)
    assert found.ended_at == 1787150817
    assert (found.error_code, found.retryable, found.cost_usd) == (None, False, None)


def test_an_object_may_lack_fields() -> None:
    """An id and a state are enough; a time that is none is unknown."""
    found = status_of({"id": "msgbatch_1", "processing_status": "ended", "created_at": "yesterday"})
    assert (found.state, found.total, found.created_at) == (BatchState.COMPLETED, None, None)


def test_a_success_with_retry_after_is_a_success() -> None:
    """Polling answers carry the header as advice: one call, no wait."""
    api = Api(always(batch(), headers={"retry-after": "10"}))
    assert api.provider.status(HANDLE).state is BatchState.RUNNING
    assert (len(api.requests), api.waits) == (1, [])


def test_an_unknown_batch_is_not_found() -> None:
    """404 to a status call."""
    with pytest.raises(BatchNotFoundError):
        Api(always(refused("not_found_error"), 404)).provider.status(HANDLE)


def test_cancel_asks_once() -> None:
    """POST to the batch's cancel; the answer's state is read."""
    api = Api(always(batch(processing_status="canceling", cancel_initiated_at=CREATED)))
    assert api.provider.cancel(HANDLE).state is BatchState.CANCELLING
    assert [(r.method, r.url.path) for r in api.requests] == [("POST", "/v1/messages/batches/msgbatch_1/cancel")]


def test_a_batch_of_another_provider_is_refused() -> None:
    """Before anything is sent."""
    api = Api(always(ended()))
    status = BatchStatus(STRANGER, BatchState.COMPLETED, "completed")
    for call in (
        lambda: api.provider.status(STRANGER),
        lambda: api.provider.cancel(STRANGER),
        lambda: api.provider.delete_files(status),
        lambda: list(api.provider.outcomes(status)),
    ):
        with pytest.raises(ProviderMismatchError):
            call()
    assert api.requests == []


# Results


def served(content: bytes) -> Api:
    """A provider whose results are these bytes."""
    return Api(lambda request: httpx.Response(200, content=content))


def test_results_come_from_our_own_host() -> None:
    """`results_url` is absolute: the same path is asked at the configured address, where alone the key goes."""
    api = served(result("a"))
    assert [o.custom_id for o in api.provider.outcomes(status_of(ended()))] == ["a"]
    assert str(api.requests[0].url) == "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results"


def test_every_kind_of_row_is_read() -> None:
    """Answers, errors, cancelled and expired rows of one batch, in its order; one that is broken loses no other."""
    content = b"".join(
        [
            result("a", "x\u2028y"),
            b'{"custom_id":"b","result":{"type":"errored","error":{"type":"error","error":{"type":"api_error"}}}}\r\n',
            b"{broken\n\n",
            b'{"custom_id":"c","result":{"type":"canceled"}}\n',
            b'{"custom_id":"d","result":{"type":"expired"}}',
        ]
    )
    found = list(served(content).provider.outcomes(status_of(ended())))
    assert [(o.custom_id, o.kind) for o in found] == [
        ("a", OutcomeKind.ANSWER),
        ("b", OutcomeKind.PROVIDER_ERROR),
        ("c", OutcomeKind.CANCELLED),
        ("d", OutcomeKind.EXPIRED),
    ]
    assert found[0].text == "x\u2028y"


def test_extras_are_handed_on() -> None:
    """Only what is asked for is read."""
    api = served(result("a"))
    (plain,), (full,) = (list(api.provider.outcomes(status_of(ended()), extras=e)) for e in ((), ("response",)))
    assert plain.response is None
    assert json.loads(full.response or "")["model"] == "m"


def test_results_that_are_gone_are_not_found() -> None:
    """An archived batch is not asked; one that the provider has no results of answers 404."""
    api = Api(always(refused("not_found_error"), 404))
    for body, calls in ((ended(archived_at=CREATED, results_url=None), 0), (ended(), 1)):
        with pytest.raises(BatchNotFoundError):
            list(api.provider.outcomes(status_of(body)))
        assert len(api.requests) == calls


def test_deleting_takes_the_batch() -> None:
    """Its results go with it; gone already is fine; a batch that runs is not deleted, and that is said."""
    for status in (200, 404):
        api = Api(always({"id": "msgbatch_1", "type": "message_batch_deleted"}, status))
        api.provider.delete_files(status_of(ended()))
        assert [(r.method, r.url.path) for r in api.requests] == [("DELETE", "/v1/messages/batches/msgbatch_1")]
    with pytest.raises(RejectedError):
        Api(always(refused("invalid_request_error"), 400)).provider.delete_files(status_of(batch()))


# Realtime


def test_a_realtime_call() -> None:
    """The same body as in a batch, with its betas; retry-after on a success is advice."""
    reply = json.loads(result("", "yes"))["result"]["message"]
    api = Api(always(reply, headers={"retry-after": "55"}))
    template = RequestTemplate("m", params={"betas": ["b-1"], "temperature": 0})
    found = api.provider.complete(template, "Hi", extras=("response",))
    (request,) = api.requests
    assert (request.method, request.url.path) == ("POST", "/v1/messages")
    assert request.headers["anthropic-beta"] == "b-1"
    assert request.content == AnthropicEncoder(template).body("Hi")
    assert (found.custom_id, found.kind, found.text) == ("", OutcomeKind.ANSWER, "yes")
    assert json.loads(found.response or "") == reply


@pytest.mark.parametrize(
    ("answer", "kind", "category"),
    [
        (_raise(httpx.ReadTimeout("x")), TransientProviderError, ErrorCategory.API_TIMEOUT),
        (always(refused("overloaded_error"), 529), TransientProviderError, ErrorCategory.SERVER_ERROR),
        (always(refused("rate_limit_error"), 429, {"retry-after": "23"}), RateLimitedError, ErrorCategory.RATE_LIMIT),
        (always(refused("not_found_error"), 404), RejectedError, ErrorCategory.CLIENT_ERROR),
        (always(refused("billing_error"), 402), QuotaExhaustedError, ErrorCategory.INSUFFICIENT_BALANCE),
    ],
)
def test_a_realtime_call_is_sent_once(answer: Answer, kind: "type[ProviderError]", category: ErrorCategory) -> None:
    """What it could not do is an error with its category and the wait that was asked for; nothing is sent again here."""
    api = Api(answer)
    with pytest.raises(ProviderError) as caught:
        api.provider.complete(TEMPLATE, "PROMPT")
    assert (type(caught.value), caught.value.category) == (kind, category.value)
    assert caught.value.retry_after == (23 if kind is RateLimitedError else None)
    assert (len(api.requests), api.waits) == (1, [])
    assert "MESSAGE" not in str(caught.value)


def test_the_key_is_in_no_representation() -> None:
    """Printing the provider, its parts or its statuses shows no key."""
    provider = Api(always(batch())).provider
    assert SECRET not in f"{provider!r}{vars(provider)!r}{vars(provider._http)!r}{status_of(batch())!r}"
