"""What one row's outcome means: its status, and by a stable name why there is no answer."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from dagster_llmbatch.core.outcomes import PAID_FINAL
from dagster_llmbatch.core.plan import TOO_LARGE
from dagster_llmbatch.providers.contract import ErrorCategory, OutcomeKind
from dagster_llmbatch.schemas.output import AnswerProblem, Invalid
from dagster_llmbatch.schemas.validation import FENCED, Valid

SUCCEEDED, FAILED, REVIEW = "succeeded", "failed", "review"
STATUSES = (SUCCEEDED, FAILED, REVIEW)
ANSWER = OutcomeKind.ANSWER.value
JUDGED = ("kind", "text", "error_category", "error_message", "error_code")
"""The columns of an outcome that decide about its row."""


class Unsent(str, Enum):
    """Why a row has no outcome at all."""

    ROW_TOO_LARGE = "row_too_large"
    PROMPT_FAILED = "prompt_failed"
    NEVER_SENT = "never_sent"


ERROR_NAMES = frozenset(
    {
        FENCED,
        *(problem.value for problem in AnswerProblem),
        *(kind.value for kind in OutcomeKind if kind is not OutcomeKind.ANSWER),
        *(reason.value for reason in Unsent),
    }
)
"""Every value that the column `llm_error_name` can have, beside null."""


class Verdict(NamedTuple):
    """What a row's result says beside its answer."""

    answer: "Sequence[Any] | None"
    """The output columns; None where there is no valid answer."""
    status: str
    error: "str | None"
    name: "str | None"
    """One of ERROR_NAMES; None only for a valid answer as it came."""
    category: "str | None"


def judge(
    validate: "Callable[[str], Valid | Invalid]",
    problem: "str | None",
    kind_name: "str | None",
    text: "str | None",
    category: "str | None",
    message: "str | None",
    code: "str | None",
) -> Verdict:
    """The verdict on one row.

    Args:
        validate: of the output type.
        problem: why the row could not be sent, or None.
        kind_name: of its outcome, as the other arguments are; None where it has none.
    """
    if problem is not None or kind_name is None:
        return _unsent(problem)
    if kind_name == ANSWER:
        found = validate(text or "")
        if isinstance(found, Invalid):
            return Verdict(None, FAILED, found.message, found.problem.value, ErrorCategory.VALIDATION_ERROR.value)
        return Verdict(found.values, SUCCEEDED, None, found.recovered, None)
    kind = OutcomeKind(kind_name)
    category = category or _CATEGORIES.get(kind, ErrorCategory.UNKNOWN).value
    if kind in PAID_FINAL:
        return Verdict(None, FAILED, _REASONS[kind], kind.value, category)
    return Verdict(None, REVIEW, message or code or kind.value, kind.value, category)


def _unsent(problem: "str | None") -> Verdict:
    name, category = Unsent.NEVER_SENT, ErrorCategory.UNKNOWN
    if problem is not None:
        large = problem.startswith(TOO_LARGE)
        name = Unsent.ROW_TOO_LARGE if large else Unsent.PROMPT_FAILED
        category = ErrorCategory.TOO_LARGE if large else ErrorCategory.CLIENT_ERROR
    return Verdict(None, REVIEW, problem or "never sent", name.value, category.value)


_REASONS = {
    OutcomeKind.REFUSAL: "the model declined to answer",
    OutcomeKind.TRUNCATED: "the answer was cut off at the output token limit: raise it in params",
    OutcomeKind.EMPTY: "the reply holds no text",
}
_CATEGORIES = {
    OutcomeKind.REFUSAL: ErrorCategory.REFUSED,
    OutcomeKind.TRUNCATED: ErrorCategory.TRUNCATED,
    OutcomeKind.EMPTY: ErrorCategory.EMPTY,
}
