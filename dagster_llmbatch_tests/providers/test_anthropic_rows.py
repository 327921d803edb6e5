"""Lines of Anthropic's results and realtime replies, to outcomes; and what its errors mean."""

import json
import logging
from typing import Any

import msgspec
import pytest

from dagster_llmbatch.providers.anthropic_rows import classify, fault_of, read_message, read_row
from dagster_llmbatch.providers.contract import EXTRAS, ErrorCategory, Outcome, OutcomeKind

USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 200,
    "cache_read_input_tokens": 3000,
    "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 150},
    "output_tokens": 40,
    "output_tokens_details": {"thinking_tokens": 25},
    "server_tool_use": {"web_search_requests": 1},
    "service_tier": "batch",
}


def text(value: str, **fields: Any) -> "dict[str, Any]":
    """A block of text."""
    return {"type": "text", "text": value, **fields}


def message(*blocks: "dict[str, Any]", stop: "str | None" = "end_turn", **fields: Any) -> "dict[str, Any]":
    """A reply."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": list(blocks),
        "stop_reason": stop, "stop_sequence": None, "stop_details": None, "usage": USAGE, **fields,
    }  # fmt: skip


def row(result: Any, extras: "tuple[str, ...]" = ()) -> Outcome:
    """The outcome of one line."""
    found = read_row(json.dumps({"custom_id": "a", "result": result}).encode(), extras)
    assert found is not None
    assert found.custom_id == "a"
    return found


def succeeded(reply: Any, extras: "tuple[str, ...]" = ()) -> Outcome:
    """The outcome of a row that holds a reply."""
    return row({"type": "succeeded", "message": reply}, extras)


THINKING = {"type": "thinking", "thinking": "hmm", "signature": "c2ln"}
TOOL = {"type": "tool_use", "id": "toolu_1", "name": "save", "input": {"a": [1, 2.5], "ü": None}}
REPLIES: "list[tuple[str, dict[str, Any], OutcomeKind, str | None]]" = [
    ("answer", message(text("yes")), OutcomeKind.ANSWER, "yes"),
    ("after thinking", message(THINKING, text("yes")), OutcomeKind.ANSWER, "yes"),
    ("in blocks", message(text("a"), text("b"), text("c")), OutcomeKind.ANSWER, "abc"),
    ("stop sequence", message(text("yes"), stop="stop_sequence"), OutcomeKind.ANSWER, "yes"),
    ("text and tool", message(text("yes"), TOOL, stop="tool_use"), OutcomeKind.ANSWER, "yes"),
    ("tool only", message(TOOL, stop="tool_use"), OutcomeKind.EMPTY, None),
    ("unfinished turn", message(text("I search"), stop="pause_turn"), OutcomeKind.TRUNCATED, "I search"),
    ("cut off", message(text('{"a":'), stop="max_tokens"), OutcomeKind.TRUNCATED, '{"a":'),
    ("cut off while thinking", message(THINKING, stop="max_tokens"), OutcomeKind.TRUNCATED, None),
    ("window full", message(text("x"), stop="model_context_window_exceeded"), OutcomeKind.TRUNCATED, "x"),
    ("refusal", message(stop="refusal"), OutcomeKind.REFUSAL, None),
    ("refusal midway", message(text("par"), stop="refusal"), OutcomeKind.REFUSAL, "par"),
    ("a reason we do not know", message(text("yes"), stop="moonlight"), OutcomeKind.ANSWER, "yes"),
    ("no reason", message(text("yes"), stop=None), OutcomeKind.ANSWER, "yes"),
    ("nothing", message(), OutcomeKind.EMPTY, None),
    ("thinking only", message(THINKING), OutcomeKind.EMPTY, None),
    ("blank", message(text(" \n")), OutcomeKind.EMPTY, " \n"),
]
every_reply = pytest.mark.parametrize(("reply", "kind", "said"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])


@every_reply
def test_replies(reply: "dict[str, Any]", kind: OutcomeKind, said: "str | None") -> None:
    """A reply is an answer only when it is complete; its model, its stop reason and its text are kept in every case."""
    found = succeeded(reply)
    assert (found.kind, found.text, found.model) == (kind, said, "m-1")
    assert found.finish_reason == reply["stop_reason"]
    assert not found.retryable
    assert found.error_code is None


@every_reply
def test_realtime_means_the_same(reply: "dict[str, Any]", kind: OutcomeKind, said: "str | None") -> None:
    """A realtime reply is what a row's message is, without a custom id."""
    assert read_message(reply, EXTRAS) == msgspec.structs.replace(succeeded(reply, EXTRAS), custom_id="")


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"type": "refusal", "category": "cyber", "explanation": "Not that."}, "cyber: Not that."),
        ({"type": "refusal", "category": None, "explanation": "Not that."}, "Not that."),
        ({"type": "refusal", "category": "bio", "explanation": None}, "bio"),
        ({"type": "refusal", "category": None, "explanation": None}, None),
        (None, None),
    ],
)
def test_why_the_model_declined(details: "dict[str, Any] | None", said: "str | None") -> None:
    """Category and explanation, as far as they are given."""
    assert succeeded(message(stop="refusal", stop_details=details)).refusal == said


def test_details_of_another_stop_are_no_refusal() -> None:
    """Only a refusal has refusal text."""
    assert succeeded(message(text("x"), stop_details={"category": "bio"})).refusal is None


# Tokens


def test_input_includes_the_cache() -> None:
    """Anthropic's three parts of the input are one sum here, and the parts are kept."""
    found = succeeded(message(text("x")))
    assert (found.input_tokens, found.output_tokens) == (3210, 40)
    assert (found.cached_tokens, found.cache_write_tokens, found.cache_write_1h_tokens) == (3000, 200, 150)
    assert found.reasoning_tokens == 25


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, (None, None, None, None, None, None)),
        ({}, (None, None, None, None, None, None)),
        ({"input_tokens": 7, "output_tokens": 0}, (7, 0, None, None, None, None)),
        ({"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 0}, (7, 1, 0, None, None, None)),
        ({"output_tokens": 1, "cache_read_input_tokens": 5}, (None, 1, 5, None, None, None)),
        ({"input_tokens": 7, "cache_creation": {}, "output_tokens_details": {}}, (7, None, None, None, None, None)),
    ],
)
def test_unknown_counts_stay_unknown(usage: Any, counts: "tuple[int | None, ...]") -> None:
    """None is unknown and 0 is a known zero; a sum without its main part is unknown."""
    found = succeeded(message(text("x"), usage=usage))
    assert counts == (
        found.input_tokens,
        found.output_tokens,
        found.cached_tokens,
        found.cache_write_tokens,
        found.cache_write_1h_tokens,
        found.reasoning_tokens,
    )


# Rows without a reply


def error(kind: str, said: str = "m", **fields: Any) -> "dict[str, Any]":
    """An error as Anthropic nests it."""
    return {"type": "error", "error": {"type": kind, "message": said, **fields}, "request_id": None}


ERRORS: "list[tuple[str, dict[str, Any], ErrorCategory, bool]]" = [
    ("bad request", error("invalid_request_error"), ErrorCategory.CLIENT_ERROR, False),
    ("model", error("not_found_error"), ErrorCategory.CLIENT_ERROR, False),
    ("key", error("authentication_error"), ErrorCategory.AUTH, False),
    ("forbidden", error("permission_error"), ErrorCategory.AUTH, False),
    ("too large", error("request_too_large"), ErrorCategory.TOO_LARGE, False),
    ("billing", error("billing_error"), ErrorCategory.INSUFFICIENT_BALANCE, False),
    ("rate", error("rate_limit_error"), ErrorCategory.RATE_LIMIT, True),
    ("timeout", error("timeout_error"), ErrorCategory.API_TIMEOUT, True),
    ("conflict", error("conflict_error"), ErrorCategory.SERVER_ERROR, True),
    ("server", error("api_error"), ErrorCategory.SERVER_ERROR, True),
    ("overloaded", error("overloaded_error"), ErrorCategory.SERVER_ERROR, True),
    ("never met", error("moonlight_error"), ErrorCategory.UNKNOWN, True),
    (
        "context",
        error("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        ErrorCategory.CONTEXT_OVERFLOW,
        False,
    ),
    (
        "credit",
        error("invalid_request_error", "Your credit balance is too low to access the API."),
        ErrorCategory.INSUFFICIENT_BALANCE,
        False,
    ),
    (
        "own limit",
        error("invalid_request_error", "You have reached your specified API usage limits."),
        ErrorCategory.INSUFFICIENT_BALANCE,
        False,
    ),
    (
        "spend limit",
        error("rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
        ErrorCategory.INSUFFICIENT_BALANCE,
        False,
    ),
    (
        "undocumented details",
        error("api_error", details={"error_visibility": "user_facing"}),
        ErrorCategory.SERVER_ERROR,
        True,
    ),
]
every_error = pytest.mark.parametrize(
    ("found", "category", "retryable"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)


@every_error
@pytest.mark.parametrize("bare", [False, True], ids=["nested", "bare"])
def test_errored_rows(found: "dict[str, Any]", category: ErrorCategory, retryable: bool, bare: bool) -> None:
    """The inner error counts, and so does one that was not wrapped; what may pass is told from what stays."""
    outcome = row({"type": "errored", "error": found["error"] if bare else found})
    assert (outcome.kind, outcome.error_category) == (OutcomeKind.PROVIDER_ERROR, category)
    assert outcome.retryable is retryable
    assert outcome.error_code in (found["error"]["type"], found["error"].get("details", {}).get("error_code"))
    assert outcome.error_message == found["error"]["message"]
    assert (outcome.input_tokens, outcome.text) == (None, None)


@pytest.mark.parametrize(
    ("kind", "outcome", "category", "retryable"),
    [
        ("canceled", OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False),
        ("expired", OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True),
    ],
)
def test_rows_that_never_ran(kind: str, outcome: OutcomeKind, category: ErrorCategory, retryable: bool) -> None:
    """Neither is billed; only what ran out of time is asked again by itself."""
    found = row({"type": kind})
    assert (found.kind, found.error_category, found.retryable) == (outcome, category, retryable)
    assert found.error_code == kind


@pytest.mark.parametrize("result", [None, {}, {"type": "succeeded"}, {"type": "moonlight"}, "x", []], ids=str)
def test_a_row_without_a_reply_may_be_asked_again(result: Any) -> None:
    """Nothing was answered, whatever it is called."""
    found = row(result)
    assert (found.kind, found.error_category) == (OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN)
    assert (found.error_code, found.retryable) == ("no_message", True)


def test_a_reply_under_an_unknown_type_is_kept() -> None:
    """It was paid for."""
    assert row({"type": "moonlight", "message": message(text("yes"))}).text == "yes"


# Error answers

STATUSES: "list[tuple[int, dict[str, Any], ErrorCategory]]" = [
    (400, error("invalid_request_error"), ErrorCategory.CLIENT_ERROR),
    (400, error("invalid_request_error", "prompt is too long: 3 tokens > 2 maximum"), ErrorCategory.CONTEXT_OVERFLOW),
    (400, error("invalid_request_error", "Your credit balance is too low"), ErrorCategory.INSUFFICIENT_BALANCE),
    (401, error("authentication_error"), ErrorCategory.AUTH),
    (402, error("billing_error"), ErrorCategory.INSUFFICIENT_BALANCE),
    (402, {}, ErrorCategory.INSUFFICIENT_BALANCE),
    (403, error("permission_error"), ErrorCategory.AUTH),
    (404, error("not_found_error"), ErrorCategory.CLIENT_ERROR),
    (409, error("conflict_error"), ErrorCategory.SERVER_ERROR),
    (413, error("request_too_large"), ErrorCategory.TOO_LARGE),
    (429, error("rate_limit_error"), ErrorCategory.RATE_LIMIT),
    (429, error("rate_limit_error", details={"error_code": "ramp_limit_exceeded"}), ErrorCategory.RATE_LIMIT),
    (500, error("api_error"), ErrorCategory.SERVER_ERROR),
    (504, error("timeout_error"), ErrorCategory.API_TIMEOUT),
    (529, error("overloaded_error"), ErrorCategory.SERVER_ERROR),
    (502, {}, ErrorCategory.SERVER_ERROR),
    (500, {"error": "text"}, ErrorCategory.SERVER_ERROR),
    (429, {"type": "error", "error": {"type": ["x"], "message": 1, "details": "y"}}, ErrorCategory.RATE_LIMIT),
    (429, {"error": {"details": {"error_code": ["x"]}}}, ErrorCategory.RATE_LIMIT),
]


@pytest.mark.parametrize(("status", "body", "category"), STATUSES)
def test_error_answers(status: int, body: "dict[str, Any]", category: ErrorCategory) -> None:
    """Every documented status, and bodies that say nothing readable."""
    assert classify(status, body).category is category


@pytest.mark.parametrize(
    "code",
    [
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
    ],
)
@pytest.mark.parametrize("status", [400, 403, 429])
def test_a_spend_limit_is_no_rate_limit(code: str, status: int) -> None:
    """The code decides against the status: waiting would not help, a person must act."""
    found = classify(status, error("rate_limit_error", details={"error_code": code}))
    assert (found.category, found.code, found.retryable) == (ErrorCategory.INSUFFICIENT_BALANCE, code, False)


def test_a_text_alone_decides_nothing() -> None:
    """Words of a prompt quoted in another error are not taken for its meaning."""
    found = fault_of(500, {"type": "api_error", "message": "prompt is too long; credit balance is too low"})
    assert found.category is ErrorCategory.SERVER_ERROR


# Extras

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
HITS = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "https://example.com"}]}
CITED = text("yes", citations=[{"type": "web_search_result_location", "url": "https://example.com"}])
RICH = message(THINKING, {"type": "redacted_thinking", "data": "x"}, SEARCH, HITS, CITED, TOOL, THINKING)


def test_extras_are_read_only_where_asked_for() -> None:
    """None of them by default, and one without the others."""
    bare, one = succeeded(RICH), succeeded(RICH, ("reasoning",))
    assert [getattr(bare, name) for name in EXTRAS] == [None] * len(EXTRAS)
    assert [name for name in EXTRAS if getattr(one, name) is not None] == ["reasoning"]
    assert msgspec.structs.replace(one, reasoning=None) == bare


def test_extras() -> None:
    """Thinking as text, calls of the user's tools, what the answer rests on, and the whole reply."""
    found = succeeded(RICH, EXTRAS)
    assert found.reasoning == "hmm\n\nhmm"
    assert found.logprobs is None
    (call,) = json.loads(found.tool_calls or "")
    assert (call["id"], call["name"], json.loads(call["arguments"])) == ("toolu_1", "save", TOOL["input"])
    assert json.loads(found.grounding or "") == [SEARCH, HITS, CITED]
    assert json.loads(found.response or "") == RICH


def test_extras_that_are_not_there_are_none() -> None:
    """No empty lists; a row without a reply has none at all."""
    found = succeeded(message(text("x")), ("reasoning", "tool_calls", "grounding"))
    assert (found.reasoning, found.tool_calls, found.grounding) == (None, None, None)
    assert row({"type": "expired"}, EXTRAS).response is None


# Odd shapes


@pytest.mark.parametrize(
    "reply",
    [
        '{"content":[{"type":"text","text":"yes\\ud83d"}]}',
        '{"content":[{"type":"text","text":"yes"}],"usage":{"input_tokens":10.5,"output_tokens":"1"}}',
        '{"content":[{"type":"text","text":"yes"}],"usage":[1]}',
        '{"content":[{"type":"text","text":"yes"},7,{"type":null,"text":["x"]}],"model":{}}',
        '{"content":"yes"}',
        '{"content":[{"type":"text","text":"yes"}],"stop_reason":{"a":1},"stop_details":"x"}',
    ],
    ids=["half an emoji", "odd counts", "usage as list", "odd blocks", "content as text", "odd stop"],
)
def test_an_odd_field_costs_no_answer(reply: str) -> None:
    """The answer is kept where something beside it, or a broken character in it, is not as documented."""
    line = f'{{"custom_id":"a","result":{{"type":"succeeded","message":{reply}}}}}'.encode()
    found = read_row(line, EXTRAS)
    assert found is not None
    assert (found.custom_id, found.kind) == ("a", OutcomeKind.ANSWER)
    assert (found.text or "").startswith("yes")
    (found.text or "").encode()
    (found.response or "").encode()
    if "ud83d" not in reply:
        assert read_message(json.loads(reply)).text == "yes"


def test_counts_are_read_around_odd_ones() -> None:
    """A float that is a whole number counts; what is none is unknown, and the others stay."""
    usage = {"input_tokens": 10.0, "output_tokens": "x", "cache_read_input_tokens": 5, "cache_creation": 1}
    usage["output_tokens_details"] = {"thinking_tokens": 1.5}
    found = succeeded(message(text("x"), usage=usage))
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (15, None, 5)
    assert found.reasoning_tokens is None


def test_an_error_as_text_is_an_error() -> None:
    """Its kind is unknown, and it is not lost."""
    found = row({"type": "errored", "error": "boom"})
    assert (found.kind, found.error_category) == (OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN)


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"[]",
        b"7",
        b'{"result":{"type":"expired"}}',
        b'{"custom_id":7,"result":{}}',
        b'{"custom_id":"a\xff"}',
    ],
)
def test_a_line_that_cannot_be_read_is_skipped(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that says its size and not its content."""
    with caplog.at_level(logging.WARNING):
        assert read_row(line) is None
    assert f"{len(line)} bytes" in caplog.text
    assert "broken" not in caplog.text
