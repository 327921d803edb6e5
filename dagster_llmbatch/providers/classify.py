"""What an error answer means: one category, whether asking again may help, and what to do.

Status and the provider's own codes decide; the text of a message is looked at last, where a provider gives nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_llmbatch.providers.contract import ErrorCategory

RETRYABLE = frozenset(
    {
        ErrorCategory.API_TIMEOUT,
        ErrorCategory.RATE_LIMIT,
        ErrorCategory.QUEUE_FULL,
        ErrorCategory.SERVER_ERROR,
        ErrorCategory.CONNECTION_ERROR,
        ErrorCategory.EXPIRED,
        ErrorCategory.MISSING,
    }
)
"""Categories of what may pass by itself."""

HINTS = {
    ErrorCategory.API_TIMEOUT: "The provider took too long; it is asked again.",
    ErrorCategory.RATE_LIMIT: "Wait, or lower the rate; it is asked again.",
    ErrorCategory.QUEUE_FULL: "The provider's batch queue is full; it is asked again when there is room.",
    ErrorCategory.INSUFFICIENT_BALANCE: "Add credit or raise the spend limit at the provider, then materialize again.",
    ErrorCategory.CONTEXT_OVERFLOW: "Shorten the prompt, or take a model with a larger context window.",
    ErrorCategory.AUTH: "Check the API key, its project and its permissions.",
    ErrorCategory.CLIENT_ERROR: "Check model, params and output: the provider does not accept the request.",
    ErrorCategory.TOO_LARGE: "Make the request smaller.",
    ErrorCategory.SERVER_ERROR: "The provider has a problem; it is asked again.",
    ErrorCategory.CONNECTION_ERROR: "Check the network and base_url.",
    ErrorCategory.REFUSED: "The model or a filter declined; change the prompt, or take another model.",
}
"""What to do about a category."""


@dataclass(frozen=True)
class Fault:
    """What an error answer means."""

    category: ErrorCategory
    code: "str | None" = None
    """The provider's own code."""
    retry_after: "float | None" = None
    """Seconds the body asks to wait, where headers say nothing."""

    @property
    def retryable(self) -> bool:
        """Whether asking again may help."""
        return self.category in RETRYABLE


Classify = Callable[[int, "Mapping[str, Any]"], Fault]
"""(HTTP status, JSON body or {}) to what it means. One a provider."""


def by_status(status: int) -> ErrorCategory:
    """The category of a status alone, the same at all providers."""
    if status == 402:
        return ErrorCategory.INSUFFICIENT_BALANCE
    if status == 429:
        return ErrorCategory.RATE_LIMIT
    if status in (408, 504):
        return ErrorCategory.API_TIMEOUT
    if status in (401, 403):
        return ErrorCategory.AUTH
    if status == 413:
        return ErrorCategory.TOO_LARGE
    if status == 409 or status >= 500 or status < 300:
        return ErrorCategory.SERVER_ERROR
    return ErrorCategory.CLIENT_ERROR
