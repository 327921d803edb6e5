"""OpenAI's batch API: golden requests, the paid call, looking for a batch, states and results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    ConfigurationError,
    ProviderError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import DocumentPart, TextPart
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.openai import KEY, OpenAIBatchProvider
from dagster_llmbatch.providers.openai_batches import PAGE
from dagster_llmbatch.providers.openai_requests import CHAT, RESPONSES, OpenAIEncoder

SECRET = "sk-very-secret"
TEMPLATE = RequestTemplate("gpt-5-mini")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
Answer = Callable[[httpx.Request], httpx.Response]


class Api:
    """A provider over a function that answers its requests, which are noted."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer
        self.provider = OpenAIBatchProvider(
            api_key=SECRET, transport=httpx.MockTransport(self._handle), sleep=lambda seconds: None, **options
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)


def batch(**fields: Any) -> "dict[str, Any]":
    """A batch object as OpenAI sends it."""
    return {
        "id": "batch_1", "object": "batch", "endpoint": RESPONSES, "errors": None, "input_file_id": "file-in",
        "completion_window": "24h", "status": "in_progress", "output_file_id": None, "error_file_id": None,
        "created_at": 1_000_000, "expires_at": 1_086_400, "completed_at": None, "failed_at": None, "expired_at": None,
        "cancelled_at": None, "request_counts": {"total": 3, "completed": 1, "failed": 0}, "metadata": None, **fields,
    }  # fmt: skip


def always(content: Any, status: int = 200) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content)


def _raise(error: Exception) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def status_of(**fields: Any) -> BatchStatus:
    """The status read from a batch object."""
    return Api(always(batch(**fields))).provider.status(BatchHandle("openai", "batch_1"))


# Request lines


def test_golden_line_of_plain_text() -> None:
    """A prompt without anything else, to /v1/responses: not stored, no temperature, no cap."""
    line = OpenAIEncoder(TEMPLATE, RESPONSES).line("r-1", "Hello")
    assert line == (
        b'{"custom_id":"r-1","method":"POST","url":"/v1/responses","body":{"model":"gpt-5-mini","store":false,'
        b'"input":[{"role":"user","content":"Hello"}]}}\n'
    )


def test_golden_line_with_everything() -> None:
    """System prompt, parameters and strict schema in their places; the user's prompt last."""
    params = {"max_output_tokens": 50, "store": True, "text": {"verbosity": "low"}}
    template = RequestTemplate("gpt-5-mini", system="Be brief.", params=params, schema=SCHEMA, schema_name="review")
    line = OpenAIEncoder(template, RESPONSES).line("r-1", "Hi")
    assert json.loads(line) == {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/responses",
        "body": {
            "model": "gpt-5-mini",
            "max_output_tokens": 50,
            "store": True,
            "text": {
                "verbosity": "low",
                "format": {"type": "json_schema", "name": "review", "schema": SCHEMA, "strict": True},
            },
            "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        },
    }
    assert line.endswith(b'"content":"Hi"}]}}\n')


def test_golden_line_of_chat() -> None:
    """Chat completions take messages and response_format."""
    template = RequestTemplate("m", system="S", params={"temperature": 0}, schema=SCHEMA)
    assert json.loads(OpenAIEncoder(template, CHAT).line("r-1", "Hi")) == {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "temperature": 0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            },
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
        },
    }


@settings(max_examples=60)
@given(st.text(), st.sampled_from([RESPONSES, CHAT]), st.none() | st.text())
def test_any_prompt_survives_the_line(prompt: str, endpoint: str, system: "str | None") -> None:
    """One line whatever the text holds, and the text comes back from it."""
    line = OpenAIEncoder(RequestTemplate("m", system=system, schema=SCHEMA), endpoint).line("r-1", prompt)
    assert line.count(b"\n") == 1
    body = json.loads(line)["body"]
    messages = body["input"] if endpoint == RESPONSES else body["messages"]
    assert messages[-1] == {"role": "user", "content": prompt}
    assert [m["content"] for m in messages[:-1]] == ([] if system is None else [system])


@pytest.mark.parametrize(
    "name", ["model", "input", "messages", "stream", "background", "instructions", "response_format"]
)
def test_parameters_that_are_ours_are_refused(name: str) -> None:
    """What the package sets cannot be set beside it."""
    with pytest.raises(ConfigurationError, match=name):
        OpenAIEncoder(RequestTemplate("m", params={name: "x"}), RESPONSES)


def test_a_format_beside_an_output_is_refused() -> None:
    """Two answers' shapes contradict each other."""
    with pytest.raises(ConfigurationError, match="format"):
        OpenAIEncoder(RequestTemplate("m", params={"text": {"format": {}}}, schema=SCHEMA), RESPONSES)


def test_nan_is_refused() -> None:
    """JSON has no NaN."""
    with pytest.raises(ConfigurationError, match="temperature"):
        OpenAIEncoder(RequestTemplate("m", params={"temperature": float("nan")}), RESPONSES)


@pytest.mark.parametrize("params", [{"temperature": float("inf")}, {"reasoning": {"x": float("nan")}}], ids=str)
def test_other_numbers_json_lacks_are_refused(params: "dict[str, Any]") -> None:
    """Infinity, and NaN at any depth, are not quietly changed into null."""
    with pytest.raises(ConfigurationError):
        OpenAIEncoder(RequestTemplate("m", params=params), RESPONSES)


def test_parts_change_nothing_around_them() -> None:
    """A prompt of one text part asks the same as the text, in the form of the endpoint; text beside parts is escaped."""
    encoder = OpenAIEncoder(RequestTemplate("m", system="S", schema=SCHEMA), RESPONSES)
    plain, parts = (json.loads(encoder.line("r-1", prompt)) for prompt in ("a\n\u2028", (TextPart("a\n\u2028"),)))
    assert plain["body"]["input"][-1].pop("content") == "a\n\u2028"
    assert parts["body"]["input"][-1].pop("content") == [{"type": "input_text", "text": "a\n\u2028"}]
    assert plain == parts


def test_chat_takes_no_document_by_url() -> None:
    """Said before anything is sent."""
    encoder = OpenAIEncoder(TEMPLATE, CHAT)
    with pytest.raises(ConfigurationError, match="document"):
        encoder.line("r-1", (DocumentPart(url="https://x.test/a.pdf"),))


def test_requests_of_one_model_share_a_batch() -> None:
    """Schema, system prompt and parameters may differ within a batch; the model may not."""
    group = Api(always({})).provider.group
    assert group(TEMPLATE) == group(RequestTemplate("gpt-5-mini", system="S", params={"a": 1}, schema=SCHEMA))
    assert group(TEMPLATE) != group(RequestTemplate("gpt-5-nano"))


# Realtime


@pytest.mark.parametrize(("endpoint", "path"), [(RESPONSES, "/v1/responses"), (CHAT, "/v1/chat/completions")])
def test_a_realtime_call(endpoint: str, path: str) -> None:
    """One POST whose body is that of a batch line; the reply is an outcome, with extras where asked for."""
    reply = {"model": "m-1", "choices": [{"message": {"content": "yes", "reasoning": "hm"}, "finish_reason": "stop"}]}
    api = Api(always(reply), endpoint=endpoint)
    template = RequestTemplate("gpt-5-mini", system="S", params={"temperature": 0}, schema=SCHEMA)
    found = api.provider.complete(template, "Hi")
    (request,) = api.requests
    assert (request.method, request.url.path) == ("POST", path)
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == json.loads(OpenAIEncoder(template, endpoint).line("r-1", "Hi"))["body"]
    assert (found.kind, found.text, found.model, found.reasoning) == (OutcomeKind.ANSWER, "yes", "m-1", None)
    assert api.provider.complete(template, "Hi", extras=["reasoning"]).reasoning == "hm"


@pytest.mark.parametrize(
    ("answer", "kind", "category"),
    [
        (always({"error": {"code": "invalid_api_key"}}, 401), RejectedError, "auth"),
        (always({"error": {"code": "model_not_found"}}, 404), RejectedError, "client_error"),
        (always({"error": {"code": "context_length_exceeded"}}, 400), RejectedError, "context_overflow"),
        (always({"error": {"code": "rate_limit_exceeded"}}, 429), RateLimitedError, "rate_limit"),
        (always({"error": {"code": "insufficient_quota"}}, 429), QuotaExhaustedError, "insufficient_balance"),
        (always({}, 500), TransientProviderError, "server_error"),
        (_raise(httpx.ReadTimeout("x")), TransientProviderError, "api_timeout"),
    ],
    ids=["key", "model", "too long", "rate", "quota", "server", "timeout"],
)
def test_a_realtime_call_is_sent_once(answer: Answer, kind: "type[ProviderError]", category: str) -> None:
    """Whether to ask again is for the core to say: a lost reply may have been billed."""
    api = Api(answer)
    with pytest.raises(ProviderError) as caught:
        api.provider.complete(TEMPLATE, "Hi")
    assert type(caught.value) is kind
    assert caught.value.category == category
    assert len(api.requests) == 1
    assert SECRET not in f"{caught.value!s}{caught.value!r}{vars(caught.value)}"


# Upload and create


def test_the_upload_is_a_batch_file(tmp_path: Path) -> None:
    """Multipart with the purpose, a name that carries the key, and the lines as they are, also when retried."""
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"a":"\xe2\x80\xa8"}\n' * 3)
    answers = [httpx.Response(503), httpx.Response(200, json={"id": "file-in"})]
    api = Api(lambda request: answers.pop(0))
    assert api.provider.upload(lines, external_key="llmb-1") == Uploaded({"input_file_id": "file-in"})
    assert len(api.requests) == 2
    for request in api.requests:
        assert (request.method, request.url.path) == ("POST", "/v1/files")
        assert b'name="purpose"\r\n\r\nbatch\r\n' in request.content
        assert b'filename="llmb-1.jsonl"' in request.content
        assert lines.read_bytes() in request.content


@pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
def test_golden_create(endpoint: str) -> None:
    """File, endpoint, window and our key as metadata; the answer is a status."""
    api = Api(always(batch(status="validating")), endpoint=endpoint, organization="org-1", project="proj_1")
    found = api.provider.create(
        Path("unused"), Uploaded({"input_file_id": "file-in"}), template=TEMPLATE, external_key="llmb-1"
    )
    (request,) = api.requests
    assert (request.method, str(request.url)) == ("POST", "https://api.openai.com/v1/batches")
    assert json.loads(request.content) == {
        "input_file_id": "file-in",
        "endpoint": endpoint,
        "completion_window": "24h",
        "metadata": {KEY: "llmb-1"},
    }
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert (request.headers["openai-organization"], request.headers["openai-project"]) == ("org-1", "proj_1")
    assert found.handle == BatchHandle("openai", "batch_1", {"input_file_id": "file-in"})
    assert found.state is BatchState.RUNNING


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_raise(httpx.ConnectError("x")), TransientProviderError),
        (_raise(httpx.ReadTimeout("x")), AmbiguousCreateError),
        (always({}, 408), AmbiguousCreateError),
        (always({}, 409), AmbiguousCreateError),
        (always({}, 500), AmbiguousCreateError),
        (always({"error": {"code": "invalid_api_key"}}, 401), RejectedError),
        (always([]), AmbiguousCreateError),
    ],
    ids=["connect", "read timeout", "408", "409", "500", "401", "no object"],
)
def test_the_paid_call_is_sent_once(answer: Answer, kind: "type[ProviderError]") -> None:
    """Whatever happens, one POST; what is not provably refused is ambiguous; the key is nowhere in the error."""
    api = Api(answer)
    with pytest.raises(ProviderError) as caught:
        api.provider.create(Path("unused"), Uploaded({"input_file_id": "file-in"}), template=TEMPLATE, external_key="k")
    assert type(caught.value) is kind
    assert len(api.requests) == 1
    assert SECRET not in f"{caught.value!s}{caught.value!r}{vars(caught.value)}"


@pytest.mark.parametrize("body", [{}, {"object": "batch", "status": "validating"}], ids=["empty", "no id"])
def test_a_create_answered_without_an_id_is_ambiguous(body: "dict[str, Any]") -> None:
    """A success that names no batch leaves a batch to look for."""
    try:
        Api(always(body)).provider.create(
            Path("unused"), Uploaded({"input_file_id": "f"}), template=TEMPLATE, external_key="k"
        )
    except AmbiguousCreateError:
        return
    except KeyError as error:
        pytest.fail(f"KeyError: {error}")


def test_a_create_answered_with_404_is_rejected() -> None:
    """A wrong address or model is a refusal: there is no batch that could be missing."""
    api = Api(always({"error": {"code": "model_not_found"}}, 404))
    try:
        api.provider.create(Path("unused"), Uploaded({"input_file_id": "f"}), template=TEMPLATE, external_key="k")
    except RejectedError:
        return
    except BatchNotFoundError as error:
        pytest.fail(str(error))


# Find


def pages(*found: "list[dict[str, Any]]") -> Answer:
    """List pages, chosen by `after`."""

    def answer(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after")
        starts = {page[-1]["id"]: number + 1 for number, page in enumerate(found) if page}
        number = 0 if after is None else starts[after]
        data, more = found[number], number + 1 < len(found)
        last = data[-1]["id"] if data else None
        return httpx.Response(200, json={"object": "list", "data": data, "last_id": last, "has_more": more})

    return answer


def others(page: int, created_at: int = 1_000_000, count: int = 3) -> "list[dict[str, Any]]":
    """Batches of somebody else."""
    return [
        batch(id=f"batch_{page}_{n}", input_file_id=f"file-{page}-{n}", created_at=created_at) for n in range(count)
    ]


def test_find_by_key_on_a_later_page() -> None:
    """Pages are read until the batch with our key comes."""
    mine = batch(id="batch_mine", metadata={KEY: "llmb-1", "other": "x"})
    api = Api(pages(others(0), others(1), [*others(2), mine]))
    found = api.provider.find(Search("llmb-1", Uploaded(), 999_000, ()))
    assert found is not None
    assert found.handle.batch_id == "batch_mine"
    asked = [dict(request.url.params) for request in api.requests]
    assert asked[0] == {"limit": str(PAGE)}
    assert [a.get("after") for a in asked] == [None, "batch_0_2", "batch_1_2"]


def test_find_by_input_file() -> None:
    """A gateway that drops metadata is no obstacle: the file is ours alone."""
    api = Api(pages(others(0), [batch(id="batch_mine", metadata={})]))
    found = api.provider.find(Search("llmb-1", Uploaded({"input_file_id": "file-in"}), 999_000, ()))
    assert found is not None
    assert found.handle == BatchHandle("openai", "batch_mine", {"input_file_id": "file-in"})


def test_find_stops_at_batches_older_than_ours() -> None:
    """Paging ends once a page reaches back before the create, with room for clocks that differ."""
    api = Api(pages(others(0), others(1, created_at=990_000), others(2, created_at=980_000)))
    assert api.provider.find(Search("llmb-1", Uploaded({"input_file_id": "file-in"}), 999_000, ())) is None
    assert len(api.requests) == 2


def test_find_allows_for_a_clock_behind_ours() -> None:
    """A batch stamped two minutes before our create is still found on a later page."""
    mine = batch(id="batch_mine", metadata={KEY: "llmb-1"}, created_at=998_880)
    api = Api(pages(others(0, created_at=998_900), [mine]))
    assert api.provider.find(Search("llmb-1", Uploaded(), 999_000, ())) is not None


@pytest.mark.parametrize("uploaded", [Uploaded({}), Uploaded({"input_file_id": "file-in"})])
def test_find_nothing(uploaded: Uploaded) -> None:
    """An account without batches, or without ours, gives None; another's key is not ours."""
    for answer in (pages([]), pages([batch(input_file_id="x", metadata={KEY: "llmb-2"})])):
        assert Api(answer).provider.find(Search("llmb-1", uploaded, 0, ())) is None


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
        (None, BatchState.UNKNOWN),
    ],
)
def test_states(name: "str | None", state: BatchState) -> None:
    """Every documented state is known; another is unknown, kept by name, and not an end."""
    found = status_of(status=name)
    assert (found.state, found.provider_state) == (state, str(name))
    assert found.state.ended == (name in ("completed", "failed", "expired", "cancelled"))


@pytest.mark.parametrize(
    ("ids", "refs"),
    [
        ({"output_file_id": "o", "error_file_id": "e"}, {"output_file_id": "o", "error_file_id": "e"}),
        ({"output_file_id": None, "error_file_id": "e"}, {"error_file_id": "e"}),
        ({"output_file_id": "o", "error_file_id": ""}, {"output_file_id": "o"}),
        ({"output_file_id": None, "error_file_id": None}, {}),
    ],
    ids=["both", "errors only", "output only", "none"],
)
def test_either_file_may_be_absent(ids: "dict[str, Any]", refs: "dict[str, str]") -> None:
    """Null and empty file ids are no files."""
    assert status_of(status="completed", **ids).result_refs == refs


def test_counts_and_times() -> None:
    """Counts and unix seconds are read; the end is whichever end there was."""
    found = status_of(status="expired", expired_at=1_086_400)
    assert (found.total, found.completed, found.failed) == (3, 1, 0)
    assert (found.created_at, found.expires_at, found.ended_at) == (1_000_000, 1_086_400, 1_086_400)


def test_an_old_object_lacks_fields() -> None:
    """An id and a state are enough."""
    api = Api(always({"id": "batch_1", "status": "completed"}))
    found = api.provider.status(BatchHandle("openai", "batch_1"))
    assert (found.state, found.total, found.result_refs) == (BatchState.COMPLETED, None, {})


@pytest.mark.parametrize(("code", "full"), [("token_limit_exceeded", True), ("mismatched_model", False)])
def test_a_failed_batch_says_why(code: str, full: bool) -> None:
    """The first entry's code and message; a full queue is told from bad input."""
    errors = {"object": "list", "data": [{"code": code, "message": "m", "param": None, "line": 2}]}
    found = status_of(status="failed", errors=errors)
    assert (found.error_code, found.error_message, found.queue_full) == (code, "m", full)


def test_an_unknown_batch_is_not_found() -> None:
    """404 to a status call."""
    api = Api(always({"error": {"message": "No batch found", "type": "invalid_request_error", "code": None}}, 404))
    with pytest.raises(BatchNotFoundError):
        api.provider.status(BatchHandle("openai", "batch_1"))


def test_cancel_asks_once() -> None:
    """POST to the batch's cancel; the answer's state is read."""
    api = Api(always(batch(status="cancelling")))
    assert api.provider.cancel(BatchHandle("openai", "batch_1")).state is BatchState.CANCELLING
    assert [(r.method, r.url.path) for r in api.requests] == [("POST", "/v1/batches/batch_1/cancel")]


# Results


def _row(custom_id: str, text: str = "yes") -> bytes:
    body = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}
    row = {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}
    return json.dumps(row, ensure_ascii=False).encode()


EXPIRED = b'{"custom_id":"e","response":null,"error":{"code":"batch_expired","message":"m"}}'


def files(**content: bytes) -> Answer:
    """Serves files by id; others are not found."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = content.get(request.url.path.split("/")[3])
        return httpx.Response(404, json={}) if found is None else httpx.Response(200, content=found)

    return answer


@pytest.mark.parametrize("state", ["completed", "expired", "cancelled"])
def test_both_files_are_read(state: str) -> None:
    """Output first, then errors, whatever the end was."""
    api = Api(files(o=_row("a") + b"\n" + _row("b") + b"\n", e=EXPIRED))
    ended = status_of(status=state, output_file_id="o", error_file_id="e")
    found = list(api.provider.outcomes(ended))
    assert [(o.custom_id, o.kind) for o in found] == [
        ("a", OutcomeKind.ANSWER),
        ("b", OutcomeKind.ANSWER),
        ("e", OutcomeKind.EXPIRED),
    ]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ({"output_file_id": "o"}, ["a"]),
        ({"error_file_id": "e"}, ["e"]),
        ({}, []),
    ],
    ids=["no errors", "all failed", "no files"],
)
def test_a_file_that_is_absent_is_not_asked_for(ids: "dict[str, str]", found: "list[str]") -> None:
    """Either id may be null, and both."""
    api = Api(files(o=_row("a"), e=EXPIRED))
    assert [o.custom_id for o in api.provider.outcomes(status_of(status="completed", **ids))] == found
    assert len(api.requests) == len(ids)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_lines_end_only_at_newlines(ending: bytes, final: bool) -> None:
    """CRLF, a missing last newline, and U+2028, U+0085 or form feeds inside answers."""
    texts = ["a\u2028b", "c\u0085d", "e\\u000cf"]
    content = ending.join(_row(str(n), t) for n, t in enumerate(texts)) + (ending if final else b"")
    api = Api(files(o=content))
    found = list(api.provider.outcomes(status_of(status="completed", output_file_id="o")))
    assert [o.text for o in found] == texts


def test_extras_of_a_batch() -> None:
    """What is asked for is read from every row."""
    api = Api(files(o=_row("a"), e=EXPIRED))
    ended = status_of(status="completed", output_file_id="o", error_file_id="e")
    found = [(o.custom_id, o.response is not None) for o in api.provider.outcomes(ended, extras=["response"])]
    assert found == [("a", True), ("e", False)]


def test_an_unreadable_line_loses_no_other() -> None:
    """The lines before and after a broken one are read."""
    api = Api(files(o=_row("a") + b"\n{broken\n\n" + _row("b")))
    found = api.provider.outcomes(status_of(status="completed", output_file_id="o"))
    assert [o.custom_id for o in found] == ["a", "b"]


def test_deleting_goes_on_after_a_file_that_is_gone() -> None:
    """Input, output and errors are deleted; one that is gone already is fine."""
    api = Api(lambda r: httpx.Response(404 if r.url.path.endswith("/o") else 200, json={"deleted": True}))
    api.provider.delete_files(status_of(status="completed", output_file_id="o", error_file_id="e"))
    assert [(r.method, r.url.path) for r in api.requests] == [
        ("DELETE", "/v1/files/file-in"),
        ("DELETE", "/v1/files/o"),
        ("DELETE", "/v1/files/e"),
    ]


def test_the_key_is_in_no_representation() -> None:
    """Printing the provider, its parts or its statuses shows no key."""
    provider = Api(always(batch())).provider
    assert SECRET not in f"{provider!r}{vars(provider)!r}{vars(provider._http)!r}{status_of()!r}"
