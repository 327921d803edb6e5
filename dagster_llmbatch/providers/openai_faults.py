"""What errors mean in OpenAI's form: of calls, of result rows, and inside replies."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.classify import Fault, by_status
from dagster_llmbatch.providers.contract import ErrorCategory


class WireError(msgspec.Struct, gc=False):
    """An error object. Servers differ in which fields they give, and in their types."""

    code: Any = None
    message: "str | None" = None
    type: Any = None
    error_type: Any = None
    metadata: Any = None


FaultOf = Callable[["int | None", WireError], Fault]
"""(HTTP status, None where there is none) and an error object to what it means. One a dialect."""

QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
    }
)
"""A person must pay or raise a limit: waiting does not help."""
QUEUE_FULL_CODES = frozenset({"token_limit_exceeded"})
# content_filter is the name that hosts of OpenAI's models give to a prompt their filter stopped
_BY_NAME = {
    **dict.fromkeys(QUEUE_FULL_CODES, ErrorCategory.QUEUE_FULL),
    **dict.fromkeys(QUOTA_CODES, ErrorCategory.INSUFFICIENT_BALANCE),
    "context_length_exceeded": ErrorCategory.CONTEXT_OVERFLOW,
    "content_filter": ErrorCategory.REFUSED,
    "content_policy_violation": ErrorCategory.REFUSED,
    "rate_limit_exceeded": ErrorCategory.RATE_LIMIT,
    "request_timeout": ErrorCategory.API_TIMEOUT,
}


def fault_of(status: "int | None", error: WireError) -> Fault:
    """By the error's `code` and `type`, then by status; by its text only where that alone tells."""
    names = [str(name) for name in (error.code, error.type) if name]
    named = names[0] if names else None
    if "enqueued token" in (error.message or "").lower():
        return Fault(ErrorCategory.QUEUE_FULL, named)
    found = next((category for name, category in _BY_NAME.items() if name in names), None)
    return Fault(found or by_number(status, error.code), named)


def by_number(status: "int | None", code: Any) -> ErrorCategory:
    """The category of an error status, or of a `code` that is one inside a success; UNKNOWN without either."""
    if status is not None and status >= 300:
        return by_status(status)
    if isinstance(code, int) and 400 <= code < 600:
        return by_status(code)
    return ErrorCategory.UNKNOWN if status is None else by_status(status)


def wire_error(found: Any) -> WireError:
    """The error object of an answer's JSON, whatever shape it has."""
    given = found if isinstance(found, Mapping) else {"message": found}
    message = given.get("message")
    return WireError(
        given.get("code"),
        message if isinstance(message, str) else None,
        given.get("type"),
        given.get("error_type"),
        given.get("metadata"),
    )


def classify(status: int, body: "Mapping[str, Any]") -> Fault:
    """What an error answer of OpenAI's means."""
    return fault_of(status, wire_error(body.get("error")))
