"""What Gemini's errors mean: HTTP bodies of calls, and google.rpc.Status of rows and batches. Both name the same codes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dagster_llmbatch.providers.classify import Fault, by_status
from dagster_llmbatch.providers.contract import ErrorCategory

RPC_CODES = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
"""The numbers of google.rpc.Code. They are no HTTP statuses."""

_CATEGORIES = {
    "INVALID_ARGUMENT": ErrorCategory.CLIENT_ERROR,
    "NOT_FOUND": ErrorCategory.CLIENT_ERROR,
    "ALREADY_EXISTS": ErrorCategory.CLIENT_ERROR,
    "FAILED_PRECONDITION": ErrorCategory.CLIENT_ERROR,
    "OUT_OF_RANGE": ErrorCategory.CLIENT_ERROR,
    "UNIMPLEMENTED": ErrorCategory.CLIENT_ERROR,
    "PERMISSION_DENIED": ErrorCategory.AUTH,
    "UNAUTHENTICATED": ErrorCategory.AUTH,
    "DEADLINE_EXCEEDED": ErrorCategory.API_TIMEOUT,
    "RESOURCE_EXHAUSTED": ErrorCategory.RATE_LIMIT,
    # who asked for the cancel is the caller's to know: unasked for, it passes
    "CANCELLED": ErrorCategory.SERVER_ERROR,
    "UNKNOWN": ErrorCategory.SERVER_ERROR,
    "ABORTED": ErrorCategory.SERVER_ERROR,
    "INTERNAL": ErrorCategory.SERVER_ERROR,
    "UNAVAILABLE": ErrorCategory.SERVER_ERROR,
    "DATA_LOSS": ErrorCategory.SERVER_ERROR,
}
_BAD_KEY = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED"})
_TOO_LONG = re.compile(r"token count\b.*exceeds the maximum|exceeds the maximum number of tokens", re.I | re.S)
_TOO_LARGE = re.compile(r"payload size exceeds", re.I)
_NO_QUOTA = re.compile(r"limit: 0(?![.\d])|prepay", re.I)
"""A limit of 0: the plan does not include the model. Prepaid credit that is used up."""
_NO_BILLING = re.compile(r"billing|prepay", re.I)
_ENQUEUED = re.compile(r"enqueued", re.I)
_RETRY_IN = re.compile(r"retry in ([\d.]+)s", re.I)
_SECONDS = re.compile(r"([\d.]+)s")


def classify(status: int, body: "Mapping[str, Any]") -> Fault:
    """What an error answer of Gemini's means."""
    error = body.get("error")
    found = error if isinstance(error, dict) else {}
    name = found.get("status")
    return _fault(name if isinstance(name, str) else None, by_status(status), found)


def rpc_fault(error: "Mapping[str, Any]") -> Fault:
    """What a google.rpc.Status means. Code 1 is taken as a passing fault: the caller knows whether a cancel was asked for."""
    code = error.get("code")
    name = RPC_CODES.get(code) if isinstance(code, int) else None
    # a code we have not met: nothing says that the request is at fault
    return _fault(name or (None if code is None else str(code)), ErrorCategory.SERVER_ERROR, error)


def _fault(name: "str | None", otherwise: ErrorCategory, error: "Mapping[str, Any]") -> Fault:
    text = error.get("message")
    message = text if isinstance(text, str) else ""
    details = [detail for detail in _list(error.get("details")) if isinstance(detail, dict)]
    category = _CATEGORIES.get(name or "", otherwise)
    if category is ErrorCategory.RATE_LIMIT:
        category = _exhausted(message, details)
    elif category is ErrorCategory.CLIENT_ERROR:
        category = _refused(name, message, details)
    # where waiting does not help, the delay they give all the same would mislead
    asked = _retry_after(message, details) if Fault(category).retryable else None
    return Fault(category, name, asked)


def _exhausted(message: str, details: "list[dict[str, Any]]") -> ErrorCategory:
    """What is exhausted: the batch queue, the day or the plan, or the minute."""
    quotas = [str(violation.get(key, "")) for violation in _violations(details) for key in ("quotaId", "quotaMetric")]
    if any(_ENQUEUED.search(text) for text in (message, *quotas)):
        return ErrorCategory.QUEUE_FULL
    if _NO_QUOTA.search(message) or any("PerDay" in quota for quota in quotas):
        return ErrorCategory.INSUFFICIENT_BALANCE
    return ErrorCategory.RATE_LIMIT


def _refused(name: "str | None", message: str, details: "list[dict[str, Any]]") -> ErrorCategory:
    """Why a request is refused: a bad key, too, comes as an invalid argument."""
    if any(detail.get("reason") in _BAD_KEY for detail in details):
        return ErrorCategory.AUTH
    if name == "FAILED_PRECONDITION" and _NO_BILLING.search(message):
        return ErrorCategory.INSUFFICIENT_BALANCE
    if _TOO_LONG.search(message):
        return ErrorCategory.CONTEXT_OVERFLOW
    return ErrorCategory.TOO_LARGE if _TOO_LARGE.search(message) else ErrorCategory.CLIENT_ERROR


def _violations(details: "list[dict[str, Any]]") -> "Iterator[dict[str, Any]]":
    for detail in details:
        yield from (v for v in _list(detail.get("violations")) if isinstance(v, dict))


def _retry_after(message: str, details: "list[dict[str, Any]]") -> "float | None":
    """Seconds to wait: RetryInfo's delay, else the one in the text."""
    delays = (_SECONDS.fullmatch(str(detail["retryDelay"])) for detail in details if "retryDelay" in detail)
    found = next(filter(None, delays), None) or _RETRY_IN.search(message)
    try:
        return float(found.group(1)) if found else None
    except ValueError:
        return None


def _list(value: Any) -> "list[Any]":
    return value if isinstance(value, list) else []
