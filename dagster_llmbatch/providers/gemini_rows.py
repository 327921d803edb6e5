"""Rows of Gemini's batch results, and replies of generateContent: each to one outcome."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.contract import ErrorCategory, Outcome, OutcomeKind
from dagster_llmbatch.providers.gemini_extras import read_extras
from dagster_llmbatch.providers.gemini_faults import rpc_fault
from dagster_llmbatch.providers.tolerant import loads, plain

logger = logging.getLogger(__name__)

CANCELLED_CODE = 1


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    """Zeros are left out on the wire; None stands for a count that cannot be read."""

    prompt_token_count: "int | None" = 0
    """Includes cached tokens."""
    tool_use_prompt_token_count: "int | None" = 0
    cached_content_token_count: "int | None" = 0
    candidates_token_count: "int | None" = 0
    """Without thoughts."""
    thoughts_token_count: "int | None" = 0


class _Part(msgspec.Struct, gc=False):
    text: "str | None" = None
    thought: "bool | None" = None


class _Content(msgspec.Struct, gc=False):
    parts: "list[_Part] | None" = None


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: "_Content | None" = None
    finish_reason: "str | None" = None


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: "str | None" = None
    block_reason_message: "str | None" = None


class _Reply(msgspec.Struct, gc=False, rename="camel"):
    candidates: "list[_Candidate] | None" = None
    prompt_feedback: "_Feedback | None" = None
    usage_metadata: "_Usage | None" = None
    model_version: "str | None" = None


class _Row(msgspec.Struct, gc=False):
    """A line of a results file has a key, an inlined response has it in its metadata."""

    key: "str | None" = None
    metadata: "dict[str, Any] | None" = None
    response: "_Reply | None" = None
    error: "dict[str, Any] | None" = None


_decode = msgspec.json.Decoder(_Row).decode


def read_row(line: bytes, *, cancelled: bool = False, extras: "Collection[str]" = ()) -> "Outcome | None":
    """One row of a batch's results; None, with a warning, where it cannot be read: its request ends up missing.

    Args:
        cancelled: whether this batch's cancel was asked for; rows that were cancelled unasked may be sent again.
    """
    try:
        row = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        row = _tolerant_row(line)
    key = None if row is None else row.key or (row.metadata or {}).get("key")
    if row is None or not isinstance(key, str):
        logger.warning("a result of %d bytes cannot be read and is skipped.", len(line))
        return None
    if row.response is None:
        return _nothing(key) if row.error is None else _error(key, row.error, cancelled)
    outcome = _replied(key, row.response)
    return _with_extras(outcome, loads(line).get("response"), extras) if extras else outcome


def read_reply(body: "Mapping[str, Any]", *, extras: "Collection[str]" = ()) -> Outcome:
    """The reply of a realtime call. Its outcome has no custom_id."""
    try:
        reply = msgspec.convert(body, _Reply)
    except msgspec.ValidationError:
        reply = _tolerant_reply(plain(body))
    outcome = _replied("", reply)
    return _with_extras(outcome, body, extras) if extras else outcome


def _with_extras(outcome: Outcome, reply: Any, extras: "Collection[str]") -> Outcome:
    return msgspec.structs.replace(outcome, **read_extras(reply, extras))


def _nothing(key: str) -> Outcome:
    """Neither a reply nor an error: nothing was made or billed as far as can be seen."""
    return Outcome(
        key,
        OutcomeKind.PROVIDER_ERROR,
        error_code="no_response",
        error_category=ErrorCategory.SERVER_ERROR,
        retryable=True,
    )


def _error(key: str, error: "Mapping[str, Any]", cancelled: bool) -> Outcome:
    """A google.rpc.Status. Rows of a cancelled batch have code 1, and so have rows the provider gave up by itself."""
    fault, message = rpc_fault(error), error.get("message")
    asked_for = error.get("code") == CANCELLED_CODE and cancelled
    return Outcome(
        key,
        OutcomeKind.CANCELLED if asked_for else OutcomeKind.PROVIDER_ERROR,
        error_code=fault.code,
        error_message=message if isinstance(message, str) else None,
        error_category=ErrorCategory.CANCELLED if asked_for else fault.category,
        retryable=fault.retryable and not asked_for,
    )


_TRUNCATED = frozenset({"MAX_TOKENS", "CONTINUATION"})
_REFUSED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "ESCALATION",
        "MODEL_ARMOR",
        "PUP_LIMITED_DISABLED",
    }
)
_REFUSED_PREFIX = "IMAGE_"
_SPOILT = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""The model made something unusable: another sample may be better."""


def _replied(key: str, reply: _Reply) -> Outcome:
    candidate = reply.candidates[0] if reply.candidates else None
    if candidate is None:
        feedback = reply.prompt_feedback or _Feedback()
        if feedback.block_reason is None and reply.usage_metadata is None:
            return _nothing(key)
        kind = OutcomeKind.REFUSAL if feedback.block_reason else OutcomeKind.EMPTY
        return _outcome(key, reply, kind, None, feedback.block_reason, feedback.block_reason_message)
    parts = (candidate.content.parts if candidate.content else None) or ()
    texts = [part.text for part in parts if part.text is not None and not part.thought]
    text = "".join(texts) if texts else None
    reason = candidate.finish_reason
    if reason in _TRUNCATED:
        return _outcome(key, reply, OutcomeKind.TRUNCATED, text, reason)
    if reason in _REFUSED or (reason or "").startswith(_REFUSED_PREFIX):
        return _outcome(key, reply, OutcomeKind.REFUSAL, text, reason)
    if reason not in (None, "STOP", "FINISH_REASON_UNSPECIFIED"):
        return _stopped(_outcome(key, reply, OutcomeKind.PROVIDER_ERROR, text, reason))
    kind = OutcomeKind.ANSWER if (text or "").strip() else OutcomeKind.EMPTY
    return _outcome(key, reply, kind, text, reason)


def _stopped(outcome: Outcome) -> Outcome:
    """A reply that ended in a way that is no answer. It is billed, so it is sent again only where that may help."""
    spoilt = outcome.finish_reason in _SPOILT
    return msgspec.structs.replace(
        outcome,
        error_code=outcome.finish_reason,
        error_category=ErrorCategory.SERVER_ERROR if spoilt else ErrorCategory.UNKNOWN,
        retryable=spoilt,
    )


def _outcome(
    key: str, reply: _Reply, kind: OutcomeKind, text: "str | None", reason: "str | None", refusal: "str | None" = None
) -> Outcome:
    usage = reply.usage_metadata
    if usage is None:
        return Outcome(key, kind, text=text, finish_reason=reason, refusal=refusal, model=reply.model_version)
    return Outcome(
        key,
        kind,
        text=text,
        finish_reason=reason,
        refusal=refusal,
        model=reply.model_version,
        input_tokens=_sum(usage.prompt_token_count, usage.tool_use_prompt_token_count),
        output_tokens=_sum(usage.candidates_token_count, usage.thoughts_token_count),
        cached_tokens=usage.cached_content_token_count,
        reasoning_tokens=usage.thoughts_token_count,
    )


def _sum(one: "int | None", other: "int | None") -> "int | None":
    return None if one is None or other is None else one + other


def _tolerant_row(line: bytes) -> "_Row | None":
    """A row that is JSON and has some field in another shape than documented: its answer was paid for all the same."""
    try:
        found = loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    key, metadata = found.get("key"), _dict(found.get("metadata"))
    key = metadata.get("key") if key is None else key
    error, response = found.get("error"), found.get("response")
    if error is not None and not isinstance(error, dict):
        error = {"message": str(error)}
    return _Row(
        key=None if key is None else str(key),
        response=_tolerant_reply(response) if isinstance(response, dict) else None,
        error=error,
    )


def _tolerant_reply(found: "Mapping[str, Any]") -> _Reply:
    """Every field that has a usable shape, the others as if they were not there."""
    usage, feedback = found.get("usageMetadata"), _dict(found.get("promptFeedback"))
    return _Reply(
        candidates=[_tolerant_candidate(candidate) for candidate in _dicts(found.get("candidates"))],
        prompt_feedback=_Feedback(_text(feedback.get("blockReason")), _text(feedback.get("blockReasonMessage"))),
        usage_metadata=_tolerant_usage(usage) if isinstance(usage, dict) else None,
        model_version=_text(found.get("modelVersion")),
    )


def _tolerant_candidate(found: "dict[str, Any]") -> _Candidate:
    parts = _dicts(_dict(found.get("content")).get("parts"))
    return _Candidate(
        content=_Content([_Part(_text(part.get("text")), bool(part.get("thought"))) for part in parts]),
        finish_reason=_text(found.get("finishReason")),
    )


def _tolerant_usage(found: "dict[str, Any]") -> _Usage:
    """Counts may be int64 strings, as elsewhere in this API."""
    given = (str(found.get(name, 0)) for name in _Usage.__struct_encode_fields__)
    return _Usage(*(int(count) if count.isdecimal() else None for count in given))


def _text(value: Any) -> "str | None":
    return value if isinstance(value, str) else None


def _dict(value: Any) -> "dict[str, Any]":
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> "list[dict[str, Any]]":
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
