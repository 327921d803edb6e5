"""OpenRouter's results: read however the batch ended, each with its share of the cost; rows to outcomes."""

import json
import logging
from math import fsum
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import (
    TransientProviderError,
)
from dagster_llmbatch.providers.contract import (
    EXTRAS,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    OutcomeKind,
)
from dagster_llmbatch.providers.openrouter_rows import read_row, share_cost
from dagster_llmbatch_tests.providers.openrouter_traffic import (
    HANDLE,
    TEMPLATE,
    Api,
    always,
    batch,
    reply,
    result,
)

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


@pytest.mark.parametrize("cost", [None, "0.1", {"total": 1}])
def test_a_cost_that_is_no_number_is_unknown(cost: Any) -> None:
    """Never 0 for unknown; 0 stays 0."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    assert row(reply(usage={**usage, "cost": cost})).cost_usd is None
    assert row(reply(usage={**usage, "cost": 0})).cost_usd == 0
