"""What Gemini's error answers mean."""

from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    ProviderError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.contract import ErrorCategory
from dagster_llmbatch.providers.gemini_faults import classify
from dagster_llmbatch.providers.http import ProviderHttp

TEXT = "the provider's own words"
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "48.9s"}


def problem(status: str, *details: "dict[str, Any]", message: str = TEXT) -> "dict[str, Any]":
    """An error body."""
    return {"error": {"code": 400, "message": message, "status": status, "details": list(details)}}


def quota(*ids: str) -> "dict[str, Any]":
    """A detail that names quotas."""
    return {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaMetric": "m", "quotaId": q} for q in ids],
    }


def bad_key(reason: str) -> "dict[str, Any]":
    """A detail that names a reason."""
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}


EXHAUSTED = "RESOURCE_EXHAUSTED"
QUOTA = "You exceeded your current quota, please check your plan and billing details. "
PRECONDITION = "FAILED_PRECONDITION"
CASES: "list[tuple[str, int, dict[str, Any], ErrorCategory, type[ProviderError]]]" = [
    ("bad request", 400, problem("INVALID_ARGUMENT"), ErrorCategory.CLIENT_ERROR, RejectedError),
    ("bad key", 400, problem("INVALID_ARGUMENT", bad_key("API_KEY_INVALID")), ErrorCategory.AUTH, RejectedError),
    ("no permission", 403, problem("PERMISSION_DENIED"), ErrorCategory.AUTH, RejectedError),
    ("region", 400, problem(PRECONDITION, message="User location"), ErrorCategory.CLIENT_ERROR, RejectedError),
    (
        "billing",
        400,
        problem(PRECONDITION, message="enable billing on your project"),
        ErrorCategory.INSUFFICIENT_BALANCE,
        QuotaExhaustedError,
    ),
    (
        "too long",
        400,
        problem(
            "INVALID_ARGUMENT", message="The input token count (9) exceeds the maximum number of tokens allowed (8)."
        ),
        ErrorCategory.CONTEXT_OVERFLOW,
        RejectedError,
    ),
    (
        "too large",
        400,
        problem("INVALID_ARGUMENT", message="Request payload size exceeds the limit: 20971520 bytes."),
        ErrorCategory.TOO_LARGE,
        RejectedError,
    ),
    (
        "minute",
        429,
        problem(EXHAUSTED, quota("InputTokensPerModelPerMinute"), RETRY, message=QUOTA + "limit: 1000000"),
        ErrorCategory.RATE_LIMIT,
        RateLimitedError,
    ),
    ("unnamed", 429, problem(EXHAUSTED), ErrorCategory.RATE_LIMIT, RateLimitedError),
    ("no body", 429, {}, ErrorCategory.RATE_LIMIT, RateLimitedError),
    (
        "day",
        429,
        problem(EXHAUSTED, quota("RequestsPerMinute", "RequestsPerDayPerProject"), RETRY),
        ErrorCategory.INSUFFICIENT_BALANCE,
        QuotaExhaustedError,
    ),
    (
        "not in the plan",
        429,
        problem(EXHAUSTED, RETRY, message=QUOTA + "limit: 0, model: m"),
        ErrorCategory.INSUFFICIENT_BALANCE,
        QuotaExhaustedError,
    ),
    (
        "prepaid",
        429,
        problem(EXHAUSTED, message="Your prepayment credits are depleted."),
        ErrorCategory.INSUFFICIENT_BALANCE,
        QuotaExhaustedError,
    ),
    (
        "queue",
        429,
        problem(EXHAUSTED, message="Too many enqueued tokens for this model."),
        ErrorCategory.QUEUE_FULL,
        QueueFullError,
    ),
    (
        "queue by quota",
        429,
        problem(EXHAUSTED, quota("BatchEnqueuedTokensPerModel"), message=QUOTA),
        ErrorCategory.QUEUE_FULL,
        QueueFullError,
    ),
    ("internal", 500, problem("INTERNAL"), ErrorCategory.SERVER_ERROR, TransientProviderError),
    ("unavailable", 503, problem("UNAVAILABLE"), ErrorCategory.SERVER_ERROR, TransientProviderError),
    ("cancelled", 499, problem("CANCELLED"), ErrorCategory.SERVER_ERROR, TransientProviderError),
    ("deadline", 504, problem("DEADLINE_EXCEEDED"), ErrorCategory.API_TIMEOUT, TransientProviderError),
    ("gateway", 502, {}, ErrorCategory.SERVER_ERROR, TransientProviderError),
]


@pytest.mark.parametrize(("status", "body", "category", "kind"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("wrapped", [False, True], ids=["object", "list of one"])
def test_errors(
    status: int, body: "dict[str, Any]", category: ErrorCategory, kind: "type[ProviderError]", wrapped: bool
) -> None:
    """Category and error by status, names and details, also in a list of one; never with the provider's text."""
    http = ProviderHttp("gemini", base_url="https://api.test", headers={}, classify=classify, timeout=1.0)
    error = http.error(httpx.Response(status, json=[body] if wrapped else body))
    http.close()
    assert (type(error), error.category) == (kind, category.value)
    said = body.get("error", {})
    assert error.code == said.get("status")
    assert TEXT not in str(error)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (problem(EXHAUSTED, RETRY), 48.9),
        (problem(EXHAUSTED, {"retryDelay": "7s"}), 7.0),
        (problem(EXHAUSTED, {"retryDelay": "soon"}, message="Please retry in 3.5s."), 3.5),
        (problem(EXHAUSTED, message="Please retry in 1.2.3s."), None),
        (problem(EXHAUSTED), None),
        (problem(EXHAUSTED, RETRY, message="limit: 0"), None),
    ],
)
def test_how_long_to_wait(body: "dict[str, Any]", seconds: "float | None") -> None:
    """The delay of RetryInfo, else of the text; none where waiting does not help."""
    assert classify(429, body).retry_after == seconds


@pytest.mark.parametrize(
    "body", [{"error": "x"}, {"error": {"status": 5, "details": {}, "message": []}}, {"error": None}]
)
def test_odd_bodies(body: "dict[str, Any]") -> None:
    """What cannot be read leaves the status."""
    assert classify(400, body).category is ErrorCategory.CLIENT_ERROR
    assert classify(503, body).category is ErrorCategory.SERVER_ERROR


def test_a_limit_that_starts_with_a_zero_is_no_zero() -> None:
    """0.5 is a limit to wait for."""
    assert classify(429, problem(EXHAUSTED, message="limit: 0.5")).category is ErrorCategory.RATE_LIMIT
