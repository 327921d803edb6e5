"""Rows of Gemini's batch results and realtime replies, to outcomes."""

import json
import logging
from typing import Any

import pytest

from dagster_llmbatch.providers.contract import EXTRAS, ErrorCategory, Outcome, OutcomeKind
from dagster_llmbatch.providers.gemini_rows import read_reply, read_row

USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 10,
    "thoughtsTokenCount": 20,
    "totalTokenCount": 130,
    "serviceTier": "standard",
}


def row(**fields: Any) -> Outcome:
    """The outcome of one line of a results file."""
    found = read_row(json.dumps({"key": "a", **fields}).encode())
    assert found is not None
    assert found.custom_id == "a"
    return found


def reply(*parts: "dict[str, Any]", reason: "str | None" = "STOP", **fields: Any) -> "dict[str, Any]":
    """A reply with one candidate."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    candidate |= {"finishReason": reason} if reason else {}
    return {"candidates": [candidate], "modelVersion": "m-1", "usageMetadata": USAGE, **fields}


def bare(content: "dict[str, Any]", reason: str) -> "dict[str, Any]":
    """A reply with this content, whatever it lacks."""
    return {
        "candidates": [{"content": content, "finishReason": reason}],
        "modelVersion": "m-1",
        "usageMetadata": USAGE,
    }


THOUGHT = {"text": "hmm", "thought": True}
CALL = {"functionCall": {"name": "f", "args": {"x": 1}}}
REPLIES: "list[tuple[str, dict[str, Any], OutcomeKind, str | None]]" = [
    ("answer", reply({"text": "yes", "thoughtSignature": "AA"}), OutcomeKind.ANSWER, "yes"),
    ("answer in parts after a thought", reply(THOUGHT, {"text": "a"}, {"text": "b"}), OutcomeKind.ANSWER, "ab"),
    ("answer with U+2028", reply({"text": "a\u2028b"}), OutcomeKind.ANSWER, "a\u2028b"),
    ("answer without a reason", reply({"text": "yes"}, reason=None), OutcomeKind.ANSWER, "yes"),
    ("thought only", reply(THOUGHT), OutcomeKind.EMPTY, None),
    ("blank", reply({"text": " \n"}), OutcomeKind.EMPTY, " \n"),
    ("tool call", reply(CALL), OutcomeKind.EMPTY, None),
    ("no candidates", {"modelVersion": "m-1", "usageMetadata": USAGE}, OutcomeKind.EMPTY, None),
    ("truncated", reply({"text": '{"a":'}, reason="MAX_TOKENS"), OutcomeKind.TRUNCATED, '{"a":'),
    ("truncated in thought", bare({"role": "model"}, "MAX_TOKENS"), OutcomeKind.TRUNCATED, None),
    ("to be continued", reply({"text": "a"}, reason="CONTINUATION"), OutcomeKind.TRUNCATED, "a"),
    ("blocked", bare({}, "SAFETY"), OutcomeKind.REFUSAL, None),
    ("blocked midway", reply({"text": "par"}, reason="RECITATION"), OutcomeKind.REFUSAL, "par"),
    ("blocked image", bare({}, "IMAGE_SAFETY"), OutcomeKind.REFUSAL, None),
    ("malformed call", bare({}, "MALFORMED_FUNCTION_CALL"), OutcomeKind.PROVIDER_ERROR, None),
    ("other", reply({"text": "par"}, reason="OTHER"), OutcomeKind.PROVIDER_ERROR, "par"),
    ("a reason we have not met", reply({"text": "par"}, reason="BORED"), OutcomeKind.PROVIDER_ERROR, "par"),
]


@pytest.mark.parametrize(("body", "kind", "said"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_replies(body: "dict[str, Any]", kind: OutcomeKind, said: "str | None") -> None:
    """A reply is an answer only when it is complete; model, text and tokens are kept in every case, batch or realtime."""
    found = row(response=body)
    assert (found.kind, found.text, found.model) == (kind, said, "m-1")
    assert (found.input_tokens, found.output_tokens) == (100, 30)
    assert (found.cached_tokens, found.reasoning_tokens) == (40, 20)
    realtime = read_reply(body)
    assert realtime.custom_id == ""
    assert (realtime.kind, realtime.text, realtime.output_tokens) == (kind, said, 30)


@pytest.mark.parametrize(
    ("reason", "retryable", "category"),
    [
        ("MALFORMED_RESPONSE", True, ErrorCategory.SERVER_ERROR),
        ("UNEXPECTED_TOOL_CALL", True, ErrorCategory.SERVER_ERROR),
        ("OTHER", False, ErrorCategory.UNKNOWN),
        ("TOO_MANY_TOOL_CALLS", False, ErrorCategory.UNKNOWN),
        ("BORED", False, ErrorCategory.UNKNOWN),
    ],
)
def test_billed_replies_that_are_no_answer(reason: str, retryable: bool, category: ErrorCategory) -> None:
    """They are bought again only where the model stumbled over its own output."""
    found = row(response=bare({}, reason))
    assert (found.retryable, found.error_category) == (retryable, category)
    assert found.error_code == found.finish_reason == reason


def test_a_blocked_prompt() -> None:
    """Without candidates there is the reason of the block; tokens that are left out are zero."""
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"}
    found = row(response={"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 7}, "modelVersion": "m-1"})
    assert (found.kind, found.finish_reason, found.refusal) == (OutcomeKind.REFUSAL, "PROHIBITED_CONTENT", "no")
    assert (found.input_tokens, found.output_tokens, found.retryable) == (7, 0, False)


def test_usage() -> None:
    """Zero where usage leaves a count out, None where there is no usage; what tools read is input."""
    found = row(response={**reply({"text": "x"}), "usageMetadata": {"promptTokenCount": 5}})
    assert (found.input_tokens, found.output_tokens, found.cached_tokens, found.reasoning_tokens) == (5, 0, 0, 0)
    tools = {"promptTokenCount": 5, "toolUsePromptTokenCount": 3}
    assert row(response={**reply({"text": "x"}), "usageMetadata": tools}).input_tokens == 8
    unsaid = reply({"text": "x"})
    del unsaid["usageMetadata"]
    found = row(response=unsaid)
    assert (found.kind, found.input_tokens, found.output_tokens) == (OutcomeKind.ANSWER, None, None)


@pytest.mark.parametrize("fields", [{}, {"response": {}}, {"response": None, "error": None}, {"response": {"x": 1}}])
def test_neither_reply_nor_error(fields: "dict[str, Any]") -> None:
    """Nothing was made: the request may be sent again."""
    found = row(**fields)
    assert (found.kind, found.error_code, found.retryable) == (OutcomeKind.PROVIDER_ERROR, "no_response", True)


PERMANENT = {
    3: ErrorCategory.CLIENT_ERROR,
    5: ErrorCategory.CLIENT_ERROR,
    7: ErrorCategory.AUTH,
    9: ErrorCategory.CLIENT_ERROR,
    11: ErrorCategory.CLIENT_ERROR,
    12: ErrorCategory.CLIENT_ERROR,
    16: ErrorCategory.AUTH,
}
TRANSIENT = {
    2: ErrorCategory.SERVER_ERROR,
    4: ErrorCategory.API_TIMEOUT,
    8: ErrorCategory.RATE_LIMIT,
    10: ErrorCategory.SERVER_ERROR,
    13: ErrorCategory.SERVER_ERROR,
    14: ErrorCategory.SERVER_ERROR,
    99: ErrorCategory.SERVER_ERROR,
}


@pytest.mark.parametrize("message", [{"message": "why"}, {}], ids=["message", "no message"])
@pytest.mark.parametrize(("code", "category"), [*PERMANENT.items(), *TRANSIENT.items()])
def test_row_errors(code: int, category: ErrorCategory, message: "dict[str, str]") -> None:
    """gRPC codes, which are no HTTP statuses, with or without a message."""
    found = row(error={"code": code, **message})
    assert (found.kind, found.error_category) == (OutcomeKind.PROVIDER_ERROR, category)
    assert found.retryable is (code in TRANSIENT)
    assert found.error_message == message.get("message")
    assert found.input_tokens is None


def test_a_request_that_is_too_long() -> None:
    """An invalid argument, told by its text alone."""
    found = row(
        error={"code": 3, "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}
    )
    assert (found.error_category, found.retryable) == (ErrorCategory.CONTEXT_OVERFLOW, False)


def test_cancelled_rows() -> None:
    """Final where the cancel was asked for, else a passing error."""
    line = b'{"key":"a","error":{"code":1}}'
    asked, unasked = read_row(line, cancelled=True), read_row(line)
    assert asked is not None
    assert unasked is not None
    assert (asked.kind, asked.error_category, asked.retryable) == (
        OutcomeKind.CANCELLED,
        ErrorCategory.CANCELLED,
        False,
    )
    assert (unasked.kind, unasked.retryable, unasked.error_code) == (OutcomeKind.PROVIDER_ERROR, True, "CANCELLED")
    other = read_row(b'{"key":"a","error":{"code":14}}', cancelled=True)
    assert other is not None
    assert (other.kind, other.retryable) == (OutcomeKind.PROVIDER_ERROR, True)


def test_inlined_rows_have_their_key_in_the_metadata() -> None:
    """An inlined response carries what was sent with its request."""
    found = read_row(json.dumps({"response": reply({"text": "x"}), "metadata": {"key": "b"}}).encode())
    assert found is not None
    assert (found.custom_id, found.text) == ("b", "x")


@pytest.mark.parametrize(
    "changed",
    [
        {"usageMetadata": {name: str(count) if isinstance(count, int) else count for name, count in USAGE.items()}},
        {"usageMetadata": {name: float(count) if isinstance(count, int) else count for name, count in USAGE.items()}},
        {"promptFeedback": "none", "usageMetadata": USAGE},
        {"modelVersion": 3, "usageMetadata": USAGE},
        {"candidates": [*reply({"text": "yes"})["candidates"], None], "usageMetadata": USAGE},
        {"candidates": [{"content": {"parts": [{"text": "yes", "thought": 0}, {"text": 4}]}, "finishReason": 7}]},
    ],
    ids=["texts", "floats", "feedback", "model", "null candidate", "odd parts"],
)
def test_an_odd_field_costs_no_answer(changed: "dict[str, Any]") -> None:
    """A paid answer is read although something beside it has another shape, batch or realtime."""
    body = {**reply({"text": "yes"}), **changed}
    for found in (row(response=body), read_reply(body)):
        assert (found.kind, found.text) == (OutcomeKind.ANSWER, "yes")
        assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (100, 30, 40)


@pytest.mark.parametrize("count", [None, 2.5, "many", []])
def test_a_count_that_cannot_be_read_is_unknown(count: Any) -> None:
    """It is not taken for zero, alone or in a sum."""
    found = row(response=reply({"text": "yes"}, usageMetadata={**USAGE, "thoughtsTokenCount": count}))
    assert (found.kind, found.text, found.input_tokens) == (OutcomeKind.ANSWER, "yes", 100)
    assert (found.output_tokens, found.reasoning_tokens) == (None, None)


def test_odd_rows() -> None:
    """A key that is a number, an error that is a text, half a surrogate pair."""
    found = read_row(b'{"key":7,"error":"broken"}')
    assert found is not None
    assert (found.custom_id, found.error_message, found.retryable) == ("7", "broken", True)
    found = read_row(b'{"key":"a","response":{"candidates":[{"content":{"parts":[{"text":"x\\ud800"}]}}]}}')
    assert found is not None
    assert found.text == "x\ufffd"


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'"x"', b'{"response":{}}', b'{"key":null}', b"\xff", b'{"metadata":{"k":1}}']
)
def test_what_cannot_be_read_is_skipped(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that says how large it is, not what it says."""
    with caplog.at_level(logging.WARNING):
        assert read_row(line) is None
    assert [r.getMessage() for r in caplog.records] == [f"a result of {len(line)} bytes cannot be read and is skipped."]


def test_extras() -> None:
    """Thoughts, tool calls, logprobs, grounds and the whole reply, as text, and only those asked for."""
    body = reply(THOUGHT, {"text": "yes"}, {"functionCall": {"id": "c1", "name": "f", "args": {"x": 1}}})
    body["candidates"][0] |= {
        "logprobsResult": {"topCandidates": []},
        "groundingMetadata": {"webSearchQueries": ["q"]},
        "citationMetadata": {"citationSources": []},
    }
    line = json.dumps({"key": "a", "response": body}).encode()
    plain, full = read_row(line), read_row(line, extras=EXTRAS)
    assert plain is not None
    assert full is not None
    assert {getattr(plain, name) for name in EXTRAS} == {None}
    assert (full.text, full.reasoning) == ("yes", "hmm")
    assert json.loads(full.tool_calls or "") == [{"id": "c1", "name": "f", "arguments": '{"x":1}'}]
    assert json.loads(full.logprobs or "") == {"topCandidates": []}
    assert json.loads(full.grounding or "") == {
        "groundingMetadata": {"webSearchQueries": ["q"]},
        "citationMetadata": {"citationSources": []},
    }
    assert json.loads(full.response or "") == body
    one = read_reply(body, extras=["reasoning"])
    assert (one.reasoning, one.response, one.tool_calls) == ("hmm", None, None)


def test_extras_that_are_not_there() -> None:
    """None, whatever the reply looks like."""
    found = read_reply({"candidates": [{"content": None, "finishReason": "STOP"}], "usageMetadata": {}}, extras=EXTRAS)
    assert (found.reasoning, found.tool_calls, found.logprobs, found.grounding) == (None, None, None, None)
    assert found.response is not None
    assert row(error={"code": 3}).response is None
