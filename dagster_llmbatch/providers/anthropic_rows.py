"""What Anthropic answers, as outcomes: lines of a batch's results, and replies of /v1/messages. And what its errors mean."""

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.classify import Fault, by_status
from dagster_llmbatch.providers.contract import ErrorCategory, Outcome, OutcomeKind

logger = logging.getLogger(__name__)


class _Block(msgspec.Struct, gc=False):
    type: "str | None" = None
    text: "str | None" = None


class _StopDetails(msgspec.Struct, gc=False):
    category: "str | None" = None
    explanation: "str | None" = None


class _CacheCreation(msgspec.Struct, gc=False):
    ephemeral_1h_input_tokens: "int | None" = None


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: "int | None" = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: "int | None" = None
    output_tokens: "int | None" = None
    cache_creation_input_tokens: "int | None" = None
    cache_read_input_tokens: "int | None" = None
    cache_creation: "_CacheCreation | None" = None
    output_tokens_details: "_OutputDetails | None" = None


class _Message(msgspec.Struct, gc=False):
    model: "str | None" = None
    content: "list[_Block] | None" = None
    stop_reason: "str | None" = None
    stop_details: "_StopDetails | None" = None
    usage: "_Usage | None" = None


class _Result(msgspec.Struct, gc=False):
    type: "str | None" = None
    message: "_Message | None" = None
    error: "dict[str, Any] | None" = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: "_Result | None" = None


_decode = msgspec.json.Decoder(_Line).decode


def read_row(line: bytes, extras: "Collection[str]" = ()) -> "Outcome | None":
    """One line of a batch's results; None, with a warning, where it cannot be read: its request ends up missing."""
    try:
        row = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        row = _tolerant_line(line)
    if row is None:
        logger.warning("a result line of %d bytes cannot be read and is skipped.", len(line))
        return None
    outcome = _outcome(row.custom_id, row.result or _Result())
    if extras and row.result is not None and row.result.message is not None:
        return _with_extras(outcome, _loaded(line)["result"]["message"], extras)
    return outcome


def read_message(body: "Mapping[str, Any]", extras: "Collection[str]" = ()) -> Outcome:
    """The reply to a realtime call. Its custom_id is empty: a realtime call has none."""
    try:
        message = msgspec.convert(body, _Message)
    except msgspec.ValidationError:
        message = _tolerant_message(body)
    outcome = _replied("", message)
    return _with_extras(outcome, body, extras) if extras else outcome


def _outcome(custom_id: str, result: _Result) -> Outcome:
    """By what the result holds first: a reply under a type we have not met was paid for all the same."""
    if result.message is not None:
        return _replied(custom_id, result.message)
    if result.type == "canceled":
        return _never_run(custom_id, OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, "canceled")
    if result.type == "expired":
        return _never_run(custom_id, OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, "expired")
    if result.type == "errored" or result.error is not None:
        return _errored(custom_id, result.error or {})
    return Outcome(
        custom_id,
        OutcomeKind.PROVIDER_ERROR,
        error_code="no_message",
        error_category=ErrorCategory.UNKNOWN,
        retryable=True,
    )


def _never_run(custom_id: str, kind: OutcomeKind, category: ErrorCategory, code: str) -> Outcome:
    return Outcome(
        custom_id, kind, error_code=code, error_category=category, retryable=category is ErrorCategory.EXPIRED
    )


def _errored(custom_id: str, error: "Mapping[str, Any]") -> Outcome:
    found = _inner(error)
    fault, message = fault_of(None, found), found.get("message")
    return Outcome(
        custom_id,
        OutcomeKind.PROVIDER_ERROR,
        error_code=fault.code or "errored",
        error_message=message if isinstance(message, str) else None,
        error_category=fault.category,
        # not billed, so that one we do not know may be asked again
        retryable=fault.retryable or fault.category is ErrorCategory.UNKNOWN,
    )


STOPS = {
    "max_tokens": OutcomeKind.TRUNCATED,
    "model_context_window_exceeded": OutcomeKind.TRUNCATED,
    # the turn of a long server tool call, handed back to be sent on: what text there is, is no complete answer
    "pause_turn": OutcomeKind.TRUNCATED,
    "refusal": OutcomeKind.REFUSAL,
}
"""Stop reasons of replies that are no answers. All others end a complete reply."""


def _replied(custom_id: str, message: _Message) -> Outcome:
    texts = [block.text for block in message.content or () if block.type == "text" and block.text is not None]
    text = texts[0] if len(texts) == 1 else ("".join(texts) if texts else None)
    kind = STOPS.get(message.stop_reason or "")
    if kind is None:
        kind = OutcomeKind.ANSWER if (text or "").strip() else OutcomeKind.EMPTY
    refusal = None
    if kind is OutcomeKind.REFUSAL and message.stop_details is not None:
        refusal = ": ".join(filter(None, (message.stop_details.category, message.stop_details.explanation))) or None
    usage = message.usage or _Usage()
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    # Anthropic counts the cached part of the input beside input_tokens, not in it
    given = None if usage.input_tokens is None else usage.input_tokens + (read or 0) + (written or 0)
    return Outcome(
        custom_id,
        kind,
        text=text,
        finish_reason=message.stop_reason,
        refusal=refusal,
        model=message.model,
        input_tokens=given,
        output_tokens=usage.output_tokens,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else None,
        cache_write_1h_tokens=usage.cache_creation.ephemeral_1h_input_tokens if usage.cache_creation else None,
    )


# Extras


def _with_extras(outcome: Outcome, message: "Mapping[str, Any]", extras: "Collection[str]") -> Outcome:
    blocks = [block for block in _list(message.get("content")) if isinstance(block, dict)]
    found = {name: read(message, blocks) for name, read in _READ_EXTRA.items() if name in extras}
    return msgspec.structs.replace(outcome, **found)


def _reasoning(message: "Mapping[str, Any]", blocks: "list[dict[str, Any]]") -> "str | None":
    """The visible thinking; a redacted block has no text."""
    return "\n\n".join(_text(b.get("thinking")) for b in blocks if b.get("type") == "thinking").strip() or None


def _tool_calls(message: "Mapping[str, Any]", blocks: "list[dict[str, Any]]") -> "str | None":
    """Calls of the user's tools. The provider's own tools have run already and belong to the grounding."""
    calls = [
        {"id": b.get("id"), "name": b.get("name"), "arguments": _json(b.get("input"))}
        for b in blocks
        if b.get("type") == "tool_use"
    ]
    return _json(calls) if calls else None


def _grounding(message: "Mapping[str, Any]", blocks: "list[dict[str, Any]]") -> "str | None":
    """The blocks with citations, and those of the provider's own tools (searches and what they found), in order."""
    found = [b for b in blocks if b.get("citations") or _is_server_tool(_text(b.get("type")))]
    return _json(found) if found else None


def _is_server_tool(kind: str) -> bool:
    return kind == "server_tool_use" or kind.endswith("_tool_result")


_READ_EXTRA = {
    "reasoning": _reasoning,
    "tool_calls": _tool_calls,
    "grounding": _grounding,
    "response": lambda message, blocks: _json(message),
}
"""By name of an extra. Anthropic has no logprobs."""


# Errors

SPEND_CODES = frozenset(
    {
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
    }
)
"""A person must pay or raise a limit: waiting does not help, though some come as 429."""
SPEND_TEXTS = ("credit balance is too low", "reached your specified api usage limits")
"""The two spend limits that come as an invalid_request_error without a code."""
OVERFLOW_TEXT = "prompt is too long"
_TYPES = {
    "invalid_request_error": ErrorCategory.CLIENT_ERROR,
    "not_found_error": ErrorCategory.CLIENT_ERROR,
    "authentication_error": ErrorCategory.AUTH,
    "permission_error": ErrorCategory.AUTH,
    "billing_error": ErrorCategory.INSUFFICIENT_BALANCE,
    "request_too_large": ErrorCategory.TOO_LARGE,
    "rate_limit_error": ErrorCategory.RATE_LIMIT,
    "timeout_error": ErrorCategory.API_TIMEOUT,
    "conflict_error": ErrorCategory.SERVER_ERROR,
    "api_error": ErrorCategory.SERVER_ERROR,
    "overloaded_error": ErrorCategory.SERVER_ERROR,
}


def classify(status: int, body: "Mapping[str, Any]") -> Fault:
    """What an error answer of Anthropic's means."""
    return fault_of(status, _inner(body))


def fault_of(status: "int | None", error: "Mapping[str, Any]") -> Fault:
    """What an error object means; `status` is None for one in a result line, which has none.

    By its codes first; by its text only where Anthropic gives nothing else: a prompt too long, no credit.
    """
    kind, code = _text(error.get("type")), _text(_dict(error.get("details")).get("error_code"))
    named = code or kind or None
    if code in SPEND_CODES or kind == "billing_error":
        return Fault(ErrorCategory.INSUFFICIENT_BALANCE, named)
    if kind == "invalid_request_error":
        text = _text(error.get("message")).lower()
        if OVERFLOW_TEXT in text:
            return Fault(ErrorCategory.CONTEXT_OVERFLOW, named)
        if any(limit in text for limit in SPEND_TEXTS):
            return Fault(ErrorCategory.INSUFFICIENT_BALANCE, named)
    if status is not None:
        return Fault(by_status(status), named)
    return Fault(_TYPES.get(kind, ErrorCategory.UNKNOWN), named)


def _inner(error: "Mapping[str, Any]") -> "Mapping[str, Any]":
    """The error itself: Anthropic wraps it into another that says only `error`; some gateways do not."""
    nested = error.get("error")
    return nested if isinstance(nested, dict) else error


# Shapes that are not as documented


def _tolerant_line(line: bytes) -> "_Line | None":
    """A line that is JSON and has some field in another shape than documented: its answer was paid for all the same."""
    try:
        found = _loaded(line)
    except ValueError:
        return None
    custom_id = found.get("custom_id") if isinstance(found, dict) else None
    if not isinstance(custom_id, str):
        return None
    result = _dict(found.get("result"))
    error = result.get("error")
    shown = error if isinstance(error, dict) or error is None else {"message": _text(error)}
    message = result.get("message")
    read = _tolerant_message(message) if isinstance(message, dict) else None
    return _Line(custom_id, _Result(_text(result.get("type")) or None, read, shown))


def _tolerant_message(found: "Mapping[str, Any]") -> _Message:
    """A reply of whatever shape: each field is read where it is what it should be, and unknown elsewhere."""
    content, usage, stop = found.get("content"), _dict(found.get("usage")), _dict(found.get("stop_details"))
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content)
    counts = {name: _count(usage.get(name)) for name in _Usage.__struct_fields__[:4]}
    return _Message(
        _text(found.get("model")) or None,
        [
            _Block(_text(b.get("type")), b["text"] if isinstance(b.get("text"), str) else None)
            for b in blocks
            if isinstance(b, dict)
        ],
        _text(found.get("stop_reason")) or None,
        _StopDetails(_text(stop.get("category")) or None, _text(stop.get("explanation")) or None),
        _Usage(
            **counts,
            cache_creation=_CacheCreation(_count(_dict(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))),
            output_tokens_details=_OutputDetails(
                _count(_dict(usage.get("output_tokens_details")).get("thinking_tokens"))
            ),
        ),
    )


def _loaded(line: bytes) -> Any:
    return _storable(json.loads(line))


def _storable(value: Any) -> Any:
    """Text without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_storable(v) for v in value]
    return {_storable(k): _storable(v) for k, v in value.items()} if isinstance(value, dict) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> "int | None":
    return int(value) if isinstance(value, int | float) and value == value // 1 else None


def _dict(value: Any) -> "dict[str, Any]":
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> "list[Any]":
    return value if isinstance(value, list) else []
