"""Rows of OpenAI's result files: one line each, to one outcome. Both endpoints' bodies, told apart by what they hold."""

import json
import logging
from collections.abc import Mapping
from types import NoneType
from typing import Any

import msgspec

from dagster_llmbatch.providers.classify import Fault, by_status
from dagster_llmbatch.providers.contract import ErrorCategory, Outcome, OutcomeKind

logger = logging.getLogger(__name__)


class _Error(msgspec.Struct, gc=False):
    code: Any = None
    message: "str | None" = None
    type: "str | None" = None


class _TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: "int | None" = None
    cache_write_tokens: "int | None" = None
    reasoning_tokens: "int | None" = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: "int | None" = None
    output_tokens: "int | None" = None
    prompt_tokens: "int | None" = None
    completion_tokens: "int | None" = None
    input_tokens_details: "_TokenDetails | None" = None
    output_tokens_details: "_TokenDetails | None" = None
    prompt_tokens_details: "_TokenDetails | None" = None
    completion_tokens_details: "_TokenDetails | None" = None


class _Part(msgspec.Struct, gc=False):
    type: "str | None" = None
    text: "str | None" = None
    refusal: "str | None" = None


class _Item(msgspec.Struct, gc=False):
    type: "str | None" = None
    content: "list[_Part] | None" = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: "str | None" = None


class _Message(msgspec.Struct, gc=False):
    content: "str | None" = None
    refusal: "str | None" = None


class _Choice(msgspec.Struct, gc=False):
    message: "_Message | None" = None
    finish_reason: "str | None" = None


class _Body(msgspec.Struct, gc=False):
    model: "str | None" = None
    status: "str | None" = None
    error: "_Error | None" = None
    incomplete_details: "_Incomplete | None" = None
    output: "list[_Item] | None" = None
    choices: "list[_Choice] | None" = None
    usage: "_Usage | None" = None


class _Response(msgspec.Struct, gc=False):
    status_code: "int | None" = None
    body: "_Body | None" = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: "_Response | None" = None
    error: "_Error | None" = None


_decode = msgspec.json.Decoder(_Line).decode


def read_row(line: bytes) -> "Outcome | None":
    """One line of a result file; None, with a warning, where it cannot be read: its request ends up missing."""
    try:
        row = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        row = _tolerant(line)
    if row is None:
        logger.warning("a result line of %d bytes cannot be read and is skipped.", len(line))
        return None
    if row.error is not None:
        return _row_error(row.custom_id, row.error)
    if row.response is None or row.response.body is None:
        return Outcome(
            row.custom_id,
            OutcomeKind.PROVIDER_ERROR,
            error_code="no_body",
            error_category=ErrorCategory.UNKNOWN,
            retryable=True,
        )
    status, body = row.response.status_code or 200, row.response.body
    if status >= 300 or (body.error is not None and body.choices is None and not body.output):
        return _http_error(row.custom_id, status, body.error or _Error())
    if body.choices is not None:
        return _chat(row.custom_id, body)
    return _responses(row.custom_id, body)


def _tolerant(line: bytes) -> "_Line | None":
    """A line that is JSON and has some field in another shape than documented: its answer was paid for all the same."""
    try:
        found = _plain(json.loads(line))
        return None if not isinstance(found, dict) else msgspec.convert(_reshaped(found), _Line)
    except (ValueError, msgspec.MsgspecError):
        return None


def _plain(value: Any) -> Any:
    """Whole numbers as integers, and text without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return {_plain(k): _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _reshaped(row: "dict[str, Any]") -> "dict[str, Any]":
    response = row.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if isinstance(response, dict) and not isinstance(body, dict):
        body = response["body"] = None if body is None else {"error": {"message": str(body)}}
    shown: dict[str, Any] = body or {}
    for holder in (row, shown):
        error = holder.get("error")
        if error is not None and not isinstance(error, dict):
            holder["error"] = {"message": str(error)}
        elif error is not None and not isinstance(error.get("message"), str | NoneType):
            error["message"] = json.dumps(error["message"])
    for item in shown.get("output") or ():
        if item.get("type") != "message":
            item.pop("content", None)
        elif isinstance(item.get("content"), str):
            item["content"] = [{"type": "output_text", "text": item["content"]}]
    for choice in shown.get("choices") or ():
        message = choice.get("message") or {}
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part.get("text") or "" for part in message["content"])
    return row


_ROW_ERRORS = {
    "batch_expired": (OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True),
    "batch_cancelled": (OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False),
    "request_timeout": (OutcomeKind.PROVIDER_ERROR, ErrorCategory.API_TIMEOUT, True),
}


def _row_error(custom_id: str, error: _Error) -> Outcome:
    code = None if error.code is None else str(error.code)
    unknown = (OutcomeKind.PROVIDER_ERROR, ErrorCategory.UNKNOWN, True)
    kind, category, retryable = _ROW_ERRORS.get(code or "", unknown)
    return Outcome(
        custom_id,
        kind,
        error_code=code,
        error_message=error.message,
        error_category=category,
        retryable=retryable,
    )


def _http_error(custom_id: str, status: int, error: _Error) -> Outcome:
    fault = fault_of(status, error.code, error.type, error.message)
    return Outcome(
        custom_id,
        OutcomeKind.PROVIDER_ERROR,
        error_code=fault.code or f"http_{status}",
        error_message=error.message,
        error_category=fault.category,
        retryable=fault.retryable,
    )


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


def fault_of(status: int, code: Any, kind: Any, message: "str | None") -> Fault:
    """What an OpenAI error means, by status and its `code` and `type`; by its text only where that alone tells."""
    names = {str(name) for name in (code, kind) if name}
    named = str(code or kind) if names else None
    if names & QUEUE_FULL_CODES or "enqueued token" in (message or "").lower():
        return Fault(ErrorCategory.QUEUE_FULL, named)
    if names & QUOTA_CODES:
        return Fault(ErrorCategory.INSUFFICIENT_BALANCE, named)
    if "context_length_exceeded" in names:
        return Fault(ErrorCategory.CONTEXT_OVERFLOW, named)
    if "rate_limit_exceeded" in names:
        return Fault(ErrorCategory.RATE_LIMIT, named)
    return Fault(by_status(status), named)


def classify(status: int, body: "Mapping[str, Any]") -> Fault:
    """What an error answer of OpenAI's means."""
    error = body.get("error")
    found = error if isinstance(error, dict) else {}
    message = found.get("message")
    return fault_of(status, found.get("code"), found.get("type"), message if isinstance(message, str) else None)


def _chat(custom_id: str, body: _Body) -> Outcome:
    choice = body.choices[0] if body.choices else None
    if choice is None or choice.message is None:
        return _replied(custom_id, body, OutcomeKind.EMPTY, None, None, None)
    reason, message = choice.finish_reason, choice.message
    if message.refusal or reason == "content_filter":
        return _replied(custom_id, body, OutcomeKind.REFUSAL, message.content, reason, message.refusal)
    if reason == "length":
        return _replied(custom_id, body, OutcomeKind.TRUNCATED, message.content, reason, None)
    kind = OutcomeKind.ANSWER if (message.content or "").strip() else OutcomeKind.EMPTY
    return _replied(custom_id, body, kind, message.content, reason, None)


def _responses(custom_id: str, body: _Body) -> Outcome:
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
        return _replied(custom_id, body, kind, text, reason or "incomplete", None)
    if body.status in ("failed", "cancelled"):
        error = body.error or _Error(code=body.status)
        return _http_error(custom_id, 500, error)
    if refusals:
        return _replied(custom_id, body, OutcomeKind.REFUSAL, text, body.status, "".join(refusals))
    kind = OutcomeKind.ANSWER if (text or "").strip() else OutcomeKind.EMPTY
    return _replied(custom_id, body, kind, text, body.status, None)


def _replied(
    custom_id: str,
    body: _Body,
    kind: OutcomeKind,
    text: "str | None",
    finish_reason: "str | None",
    refusal: "str | None",
) -> Outcome:
    usage = body.usage or _Usage()
    given = usage.input_tokens_details or usage.prompt_tokens_details or _TokenDetails()
    made = usage.output_tokens_details or usage.completion_tokens_details or _TokenDetails()
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
    )
