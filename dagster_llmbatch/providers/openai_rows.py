"""Rows of result files in OpenAI's form: one line each, to one outcome. Both endpoints' bodies, told apart by what they hold.

A realtime reply is read the same way, put into a row.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.classify import Fault
from dagster_llmbatch.providers.contract import ErrorCategory, Outcome, OutcomeKind
from dagster_llmbatch.providers.openai_extras import with_extras
from dagster_llmbatch.providers.openai_faults import FaultOf, WireError, fault_of
from dagster_llmbatch.providers.openai_wire import Body, Line, TokenDetails, Usage, decode_line

logger = logging.getLogger(__name__)


def read_row(line: bytes, extras: "Collection[str]" = ()) -> "Outcome | None":
    """One line of a result file; None, with a warning, where it cannot be read: its request ends up missing."""
    row = decode_line(line)
    if row is None:
        logger.warning("a result line of %d bytes cannot be read and is skipped.", len(line))
        return None
    outcome = outcome_of(row, fault_of)
    return with_extras(outcome, line, extras) if extras else outcome


def reply_line(reply: "Mapping[str, Any]") -> bytes:
    """A realtime reply as a line of a result file, without a custom id."""
    return msgspec.json.encode({"custom_id": "", "response": {"status_code": 200, "body": reply}})


def unreadable_reply() -> Outcome:
    """The outcome of a realtime reply that is JSON and nothing we can read."""
    return _unknown("", "unreadable_reply")


def outcome_of(row: Line, fault: FaultOf) -> Outcome:
    """What one row means, its errors by a dialect."""
    if row.error is not None:
        return _row_error(row.custom_id, row.error, fault)
    if row.response is None or row.response.body is None:
        return _unknown(row.custom_id, "no_body")
    status, body = row.response.status_code or 200, row.response.body
    if status >= 300 or (body.error is not None and not body.choices and not body.output):
        return _failed(row.custom_id, status, body.error or WireError(), body, fault)
    if body.choices is not None:
        return _chat(row.custom_id, body, fault)
    if body.output is None and body.status is None:
        return _unknown(row.custom_id, "no_body")
    return _responses(row.custom_id, body, fault)


def _unknown(custom_id: str, code: str) -> Outcome:
    """A gap of the provider's: asking again may fill it."""
    return Outcome(
        custom_id,
        OutcomeKind.PROVIDER_ERROR,
        error_code=code,
        error_category=ErrorCategory.UNKNOWN,
        retryable=True,
    )


_NOT_RUN = {
    "batch_expired": (OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True),
    "batch_cancelled": (OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False),
}


def _row_error(custom_id: str, error: WireError, fault: FaultOf) -> Outcome:
    found = fault(None, error)
    kind, category, retryable = _NOT_RUN.get(str(error.code), (_kind(found.category), found.category, _may_pass(found)))
    return Outcome(
        custom_id,
        kind,
        error_code=found.code or (None if error.code is None else str(error.code)),
        error_message=error.message,
        error_category=category,
        retryable=retryable,
    )


def _failed(custom_id: str, status: int, error: WireError, body: Body, fault: FaultOf) -> Outcome:
    found = fault(status, error)
    return _replied(
        custom_id,
        body,
        _kind(found.category),
        error_code=found.code or (f"http_{status}" if status >= 300 else "error_in_reply"),
        error_message=error.message,
        error_category=found.category,
        retryable=_may_pass(found),
    )


def _kind(category: ErrorCategory) -> OutcomeKind:
    return OutcomeKind.REFUSAL if category is ErrorCategory.REFUSED else OutcomeKind.PROVIDER_ERROR


def _may_pass(fault: Fault) -> bool:
    # what nobody explained is asked again rather than given up
    return fault.retryable or fault.category is ErrorCategory.UNKNOWN


def _chat(custom_id: str, body: Body, fault: FaultOf) -> Outcome:
    choice = body.choices[0] if body.choices else None
    if choice is not None and (choice.error is not None or choice.finish_reason == "error"):
        return _failed(custom_id, 200, choice.error or WireError("finish_error"), body, fault)
    if choice is None or choice.message is None:
        return _replied(custom_id, body, OutcomeKind.EMPTY)
    reason, message = choice.finish_reason, choice.message
    if message.refusal or reason in ("content_filter", "refusal"):
        kind = OutcomeKind.REFUSAL
    elif reason == "length":
        kind = OutcomeKind.TRUNCATED
    else:
        kind = _answer_or_empty(message.content)
    refusal = message.refusal if kind is OutcomeKind.REFUSAL else None
    return _replied(custom_id, body, kind, text=message.content, finish_reason=reason, refusal=refusal)


def _responses(custom_id: str, body: Body, fault: FaultOf) -> Outcome:
    texts: list[str] = []
    refusals: list[str] = []
    for item in body.output or ():
        if item.type == "message":
            for part in item.content or ():
                if part.refusal:
                    refusals.append(part.refusal)
                elif part.text is not None:
                    texts.append(part.text)
    text = texts[0] if len(texts) == 1 else ("".join(texts) if texts else None)
    if body.status == "incomplete":
        reason = body.incomplete_details.reason if body.incomplete_details else None
        kind = OutcomeKind.REFUSAL if reason == "content_filter" else OutcomeKind.TRUNCATED
        return _replied(custom_id, body, kind, text=text, finish_reason=reason or "incomplete")
    if body.status in ("failed", "cancelled"):
        return _failed(custom_id, 500, body.error or WireError(code=body.status), body, fault)
    kind = OutcomeKind.REFUSAL if refusals else _answer_or_empty(text)
    refusal = "".join(refusals) or None
    return _replied(custom_id, body, kind, text=text, finish_reason=body.status, refusal=refusal)


def _answer_or_empty(text: "str | None") -> OutcomeKind:
    return OutcomeKind.ANSWER if (text or "").strip() else OutcomeKind.EMPTY


def _replied(
    custom_id: str,
    body: Body,
    kind: OutcomeKind,
    *,
    text: "str | None" = None,
    finish_reason: "str | None" = None,
    refusal: "str | None" = None,
    error_code: "str | None" = None,
    error_message: "str | None" = None,
    error_category: "ErrorCategory | None" = None,
    retryable: bool = False,
) -> Outcome:
    usage = body.usage or Usage()
    given = usage.input_tokens_details or usage.prompt_tokens_details or TokenDetails()
    made = usage.output_tokens_details or usage.completion_tokens_details or TokenDetails()
    return Outcome(
        custom_id,
        kind,
        text=text,
        finish_reason=finish_reason,
        refusal=refusal,
        model=body.model,
        input_tokens=usage.input_tokens if usage.input_tokens is not None else usage.prompt_tokens,
        output_tokens=usage.output_tokens if usage.output_tokens is not None else usage.completion_tokens,
        cached_tokens=given.cached_tokens,
        cache_write_tokens=given.cache_write_tokens,
        reasoning_tokens=made.reasoning_tokens,
        error_code=error_code,
        error_message=error_message,
        error_category=error_category,
        retryable=retryable,
    )
