"""Rows of OpenAI's result files, one line each, to outcomes."""

import json
import logging
from typing import Any

import msgspec
import pytest

from dagster_llmbatch.providers.contract import EXTRAS, ErrorCategory, Outcome, OutcomeKind
from dagster_llmbatch.providers.openai_rows import read_row

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 10},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 130,
}


def row(body: "dict[str, Any] | None", status: int = 200, error: "dict[str, Any] | None" = None) -> Outcome:
    """The outcome of one line."""
    response = None if body is None else {"status_code": status, "request_id": "r", "body": body}
    found = read_row(msgspec.json.encode({"id": "batch_req_1", "custom_id": "a", "response": response, "error": error}))
    assert found is not None
    assert found.custom_id == "a"
    return found


def message(*parts: "dict[str, Any]") -> "dict[str, Any]":
    """An output item that holds the reply."""
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": list(parts)}


def text(value: str) -> "dict[str, Any]":
    """A part of text."""
    return {"type": "output_text", "annotations": [], "text": value}


def responses(*items: "dict[str, Any]", **fields: Any) -> "dict[str, Any]":
    """A body of /v1/responses."""
    return {"object": "response", "status": "completed", "error": None, "model": "m-1", "output": list(items), **fields}


def chat(content: "str | None", reason: str = "stop", refusal: "str | None" = None) -> "dict[str, Any]":
    """A body of /v1/chat/completions."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, "refusal": refusal}}
    return {"object": "chat.completion", "model": "m-1", "choices": [{**choice, "finish_reason": reason}]}


REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hmm"}]}
TRUNCATED = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
REPLIES: "list[tuple[str, dict[str, Any], OutcomeKind, str | None]]" = [
    ("answer", responses(REASONING, message(text("yes"))), OutcomeKind.ANSWER, "yes"),
    ("answer in parts", responses(message(text("a"), text("b")), message(text("c"))), OutcomeKind.ANSWER, "abc"),
    ("answer with U+2028", responses(message(text("a\u2028b"))), OutcomeKind.ANSWER, "a\u2028b"),
    ("refusal", responses(message({"type": "refusal", "refusal": "no"})), OutcomeKind.REFUSAL, None),
    ("truncated", responses(message(text('{"a":')), **TRUNCATED), OutcomeKind.TRUNCATED, '{"a":'),
    ("truncated while reasoning", responses(REASONING, **TRUNCATED), OutcomeKind.TRUNCATED, None),
    ("filtered", responses(**FILTERED), OutcomeKind.REFUSAL, None),
    ("nothing", responses(), OutcomeKind.EMPTY, None),
    ("reasoning only", responses(REASONING), OutcomeKind.EMPTY, None),
    ("blank", responses(message(text(" \n"))), OutcomeKind.EMPTY, " \n"),
    ("chat answer", chat("yes"), OutcomeKind.ANSWER, "yes"),
    ("chat refusal", chat(None, refusal="no"), OutcomeKind.REFUSAL, None),
    ("chat filtered", chat("par", "content_filter"), OutcomeKind.REFUSAL, "par"),
    ("chat truncated", chat('{"a":', "length"), OutcomeKind.TRUNCATED, '{"a":'),
    ("chat truncated while reasoning", chat("", "length"), OutcomeKind.TRUNCATED, ""),
    ("chat empty", chat(""), OutcomeKind.EMPTY, ""),
    ("chat null", chat(None), OutcomeKind.EMPTY, None),
    ("chat tool call", chat(None, "tool_calls"), OutcomeKind.EMPTY, None),
    ("chat without choices", {"model": "m-1", "choices": []}, OutcomeKind.EMPTY, None),
]


@pytest.mark.parametrize(("body", "kind", "said"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_replies(body: "dict[str, Any]", kind: OutcomeKind, said: "str | None") -> None:
    """A reply is an answer only when it is complete; the model's name and its text are kept in every case."""
    found = row(body)
    assert (found.kind, found.text, found.model) == (kind, said, "m-1")
    assert not found.retryable
    assert found.error_code is None


@pytest.mark.parametrize(
    "body", [responses(message({"type": "refusal", "refusal": "I cannot"})), chat(None, refusal="I cannot")]
)
def test_the_refusals_words_are_kept(body: "dict[str, Any]") -> None:
    """What the model said instead stands in its own field."""
    assert row(body).refusal == "I cannot"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (responses(message(text("x"))), "completed"),
        (responses(message(text("x")), **TRUNCATED), "max_output_tokens"),
        (responses(**FILTERED), "content_filter"),
        (responses(status="incomplete"), "incomplete"),
        (chat("x"), "stop"),
        (chat("x", "length"), "length"),
        (chat("x", "content_filter"), "content_filter"),
    ],
)
def test_finish_reasons(body: "dict[str, Any]", reason: str) -> None:
    """Why the model stopped, in the provider's word."""
    assert row(body).finish_reason == reason


ERRORS: "list[tuple[str, int, str | None, str | None, ErrorCategory, bool]]" = [
    ("bad parameter", 400, "decimal_above_max_value", "invalid_request_error", ErrorCategory.CLIENT_ERROR, False),
    ("too long", 400, "context_length_exceeded", "invalid_request_error", ErrorCategory.CONTEXT_OVERFLOW, False),
    ("billing 400", 400, "billing_hard_limit_reached", None, ErrorCategory.INSUFFICIENT_BALANCE, False),
    ("key", 401, "invalid_api_key", None, ErrorCategory.AUTH, False),
    ("filtered prompt", 400, "content_filter", None, ErrorCategory.REFUSED, False),
    ("paid out", 402, None, None, ErrorCategory.INSUFFICIENT_BALANCE, False),
    ("forbidden", 403, None, None, ErrorCategory.AUTH, False),
    ("model", 404, "model_not_found", None, ErrorCategory.CLIENT_ERROR, False),
    ("timeout", 408, None, None, ErrorCategory.API_TIMEOUT, True),
    ("conflict", 409, None, None, ErrorCategory.SERVER_ERROR, True),
    ("rate", 429, "rate_limit_exceeded", None, ErrorCategory.RATE_LIMIT, True),
    ("quota", 429, "insufficient_quota", None, ErrorCategory.INSUFFICIENT_BALANCE, False),
    ("quota by type", 429, None, "insufficient_quota", ErrorCategory.INSUFFICIENT_BALANCE, False),
    ("server", 500, "server_error", None, ErrorCategory.SERVER_ERROR, True),
    ("overloaded", 503, "server_is_overloaded", None, ErrorCategory.SERVER_ERROR, True),
]


@pytest.mark.parametrize(
    ("status", "code", "kind", "category", "retryable"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)
def test_http_errors(
    status: int, code: "str | None", kind: "str | None", category: ErrorCategory, retryable: bool
) -> None:
    """A row with an error status is an error whatever the top-level error says; what may pass is told from what stays."""
    found = row({"error": {"message": "m", "type": kind, "param": None, "code": code}}, status)
    expected = OutcomeKind.REFUSAL if category is ErrorCategory.REFUSED else OutcomeKind.PROVIDER_ERROR
    assert (found.kind, found.error_category, found.retryable) == (expected, category, retryable)
    assert found.error_code == (code or kind or f"http_{status}")
    assert found.error_message == "m"
    assert found.input_tokens is None


@pytest.mark.parametrize(
    ("code", "kind", "category", "retryable"),
    [
        ("batch_expired", OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True),
        ("batch_cancelled", OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False),
        ("request_timeout", OutcomeKind.PROVIDER_ERROR, ErrorCategory.API_TIMEOUT, True),
        ("never_met", OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN, True),
        (None, OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN, True),
        (17, OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN, True),
    ],
)
def test_row_errors(code: Any, kind: OutcomeKind, category: ErrorCategory, retryable: bool) -> None:
    """A request that did not run says why in the top-level error."""
    found = row(None, error={"code": code, "message": "m"})
    assert (found.kind, found.error_category, found.retryable) == (kind, category, retryable)
    assert found.error_code == (None if code is None else str(code))


def test_a_row_with_nothing_inside_may_be_sent_again() -> None:
    """No reply and no error is a gap of the provider's."""
    for line in (b'{"custom_id":"a","response":null,"error":null}', b'{"custom_id":"a"}'):
        found = read_row(line)
        assert found is not None
        assert (found.kind, found.error_code, found.retryable) == (OutcomeKind.PROVIDER_ERROR, "no_body", True)


def test_an_error_inside_a_success_is_an_error() -> None:
    """HTTP 200 with an error object and no output is not a reply."""
    found = row({"error": {"code": "server_error", "message": "m"}})
    assert (found.kind, found.error_code, found.retryable) == (OutcomeKind.PROVIDER_ERROR, "server_error", True)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_reply_that_failed_may_be_sent_again(status: str) -> None:
    """A response object that failed is an error although its row has status 200."""
    found = row(responses(status=status, error={"code": "server_error", "message": "m"}))
    assert (found.kind, found.retryable) == (OutcomeKind.PROVIDER_ERROR, True)


def test_tokens_of_responses() -> None:
    """All five counts are read."""
    found = row(responses(message(text("x")), usage=USAGE))
    counts = (found.input_tokens, found.output_tokens, found.cached_tokens, found.cache_write_tokens)
    assert (*counts, found.reasoning_tokens) == (100, 30, 40, 10, 20)


def test_tokens_of_chat() -> None:
    """Chat's names for the same counts are read; what it does not say is unknown; zero stays zero."""
    usage = {
        "prompt_tokens": 0,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    found = row({**chat("x"), "usage": usage})
    assert (found.input_tokens, found.output_tokens, found.cached_tokens, found.reasoning_tokens) == (0, 7, 0, 3)
    assert found.cache_write_tokens is None


def test_billed_replies_keep_their_tokens() -> None:
    """Refused and cut-off replies were paid for."""
    for body in (responses(message({"type": "refusal", "refusal": "no"})), responses(**TRUNCATED), responses()):
        assert row({**body, "usage": USAGE}).output_tokens == 30


def test_unknown_tokens_are_unknown() -> None:
    """Without usage there is no count, rather than 0."""
    found = row(responses(message(text("x"))))
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        b"not json SECRET",
        b'{"custom_id":"a","response":{"status_code":200,"body":{"SECRET"',
        b'{"response":null,"error":null,"x":"SECRET"}',
        b'{"custom_id":null,"x":"SECRET"}',
        b'["SECRET"]',
        b'{"custom_id":"a\xff","x":"SECRET"}',
    ],
    ids=["no json", "cut off", "no id", "null id", "list", "not utf-8"],
)
def test_unreadable_lines_are_skipped_and_said(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A warning gives the line's size and none of its content."""
    with caplog.at_level(logging.WARNING):
        assert read_row(line) is None
    assert f"{len(line)} bytes" in caplog.text
    assert "SECRET" not in caplog.text


def _line(body: str, status: int = 200) -> bytes:
    return f'{{"custom_id":"a","response":{{"status_code":{status},"body":{body}}},"error":null}}'.encode()


PART = '{"type":"message","content":[{"type":"output_text","text":"yes"}]}'


@pytest.mark.parametrize(
    "body",
    [
        '{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"yes\\ud83d"}]}]}',
        '{"status":"completed","output":[' + PART + '],"usage":{"input_tokens":10.0,"output_tokens":1}}',
        '{"status":"completed","output":[{"type":"tool_result","content":"x"},' + PART + "]}",
        '{"choices":[{"message":{"content":[{"type":"text","text":"yes"}]},"finish_reason":"stop"}]}',
    ],
    ids=["half an emoji", "float tokens", "other item", "content in parts"],
)
def test_an_odd_field_costs_no_answer(body: str) -> None:
    """The answer is kept where something beside it, or a broken character in it, is not as documented."""
    found = read_row(_line(body))
    assert found is not None
    assert found.kind is OutcomeKind.ANSWER
    assert (found.text or "").startswith("yes")


@pytest.mark.parametrize(
    ("body", "status", "category"),
    [
        ('{"error":"bad request"}', 400, ErrorCategory.CLIENT_ERROR),
        ('"<html>"', 502, ErrorCategory.SERVER_ERROR),
        ('{"error":{"message":{"detail":"x"},"code":"c"}}', 400, ErrorCategory.CLIENT_ERROR),
    ],
    ids=["error as text", "body as text", "message as object"],
)
def test_error_rows_of_another_shape_keep_their_status(body: str, status: int, category: ErrorCategory) -> None:
    """The status alone says what happened."""
    found = read_row(_line(body, status))
    assert found is not None
    assert found.error_category is category


def test_a_reply_that_failed_by_a_rate_limit_says_so() -> None:
    """The code inside the reply gives the category."""
    found = row(responses(status="failed", error={"code": "rate_limit_exceeded", "message": "m"}))
    assert found.error_category is ErrorCategory.RATE_LIMIT


# Extras

TOP = [{"token": "y", "logprob": -0.1, "bytes": [121], "top_logprobs": []}]
CITED = [{"type": "url_citation", "url": "https://x.test", "title": "X", "start_index": 0, "end_index": 3}]
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"a": 1}'}
FULL_RESPONSE = responses(
    {**REASONING, "content": [{"type": "reasoning_text", "text": "so"}]},
    {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
    CALL,
    {"type": "custom_tool_call", "call_id": "call_2", "name": "run", "input": "x = 1"},
    message({"type": "output_text", "text": "yes", "annotations": CITED, "logprobs": TOP}),
)
FULL_CHAT: "dict[str, Any]" = {
    "model": "m-1",
    "choices": [
        {
            "finish_reason": "stop",
            "logprobs": {"content": TOP, "refusal": None},
            "message": {
                "content": "yes",
                "reasoning": "hmm\n\nso",
                "annotations": CITED,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
                    {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "x = 1"}},
                ],
            },
        }
    ],
}
CALLS = [
    {"id": "call_1", "name": "look", "arguments": '{"a": 1}'},
    {"id": "call_2", "name": "run", "arguments": "x = 1"},
]


def with_all(body: Any, status: int = 200) -> Outcome:
    """The outcome of a row with every extra."""
    found = read_row(_line(json.dumps(body), status), EXTRAS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "logprobs"),
    [(FULL_RESPONSE, TOP), (FULL_CHAT, {"content": TOP, "refusal": None})],
    ids=["responses", "chat"],
)
def test_extras_are_read_where_asked_for(body: "dict[str, Any]", logprobs: Any) -> None:
    """Reasoning as text, the rest as JSON in the provider's own words; the outcome is the same otherwise."""
    found = with_all(body)
    assert found.reasoning == "hmm\n\nso"
    assert json.loads(found.tool_calls or "") == CALLS
    assert json.loads(found.logprobs or "") == logprobs
    assert json.loads(found.grounding or "") == CITED
    assert json.loads(found.response or "") == body
    bare = row(body)
    assert (bare.kind, bare.text) == (OutcomeKind.ANSWER, "yes")
    assert bare == msgspec.structs.replace(found, **dict.fromkeys(EXTRAS))


@pytest.mark.parametrize("name", EXTRAS)
def test_only_what_is_asked_for_is_read(name: str) -> None:
    """One extra brings no other."""
    found = read_row(_line(json.dumps(FULL_CHAT)), [name])
    assert [extra for extra in EXTRAS if getattr(found, extra) is not None] == [name]


@pytest.mark.parametrize(
    "body",
    [
        responses(message(text("yes"))),
        responses(),
        responses({"type": "reasoning", "summary": []}),
        chat("yes"),
        {"choices": [{"message": {"content": "yes", "tool_calls": [], "annotations": [], "reasoning": None}}]},
        {"choices": [{"message": None}]},
        {"choices": [None]},
        {"output": "x", "status": "completed"},
    ],
    ids=str,
)
def test_extras_that_are_not_there(body: Any) -> None:
    """Nothing is None, in every column but the whole reply."""
    found = read_row(_line(json.dumps(body)), EXTRAS)
    assert found is None or {name for name in EXTRAS if getattr(found, name) is not None} == {"response"}


def test_extras_of_other_servers() -> None:
    """`reasoning_content` is reasoning, and arguments given as an object are written as JSON."""
    call = {"id": "c", "function": {"name": "look", "arguments": {"a": 1}}}
    choice = {"message": {"content": "yes", "reasoning_content": "hmm", "tool_calls": [call]}, "finish_reason": "stop"}
    found = with_all({"choices": [choice]})
    assert (found.reasoning, found.tool_calls) == ("hmm", '[{"id":"c","name":"look","arguments":"{\\"a\\":1}"}]')


def test_extras_of_what_is_no_answer() -> None:
    """A refused or failed request shows its reply too; one that never ran has none."""
    assert with_all({"error": {"code": "c", "message": "m"}}, 400).response == '{"error":{"code":"c","message":"m"}}'
    assert with_all({**FULL_RESPONSE, **TRUNCATED}).reasoning == "hmm\n\nso"
    never = read_row(b'{"custom_id":"a","response":null,"error":{"code":"batch_expired"}}', EXTRAS)
    assert never is not None
    assert (never.kind, never.response) == (OutcomeKind.EXPIRED, None)


def test_extras_survive_half_an_emoji() -> None:
    """What Parquet cannot hold is replaced, in the extras as in the text."""
    found = read_row(_line('{"choices":[{"message":{"content":"y","reasoning":"h\\ud83d"}}]}'), EXTRAS)
    assert found is not None
    assert found.reasoning == "h\ufffd"
    assert (found.response or "").encode()
