"""What OpenRouter answers: errors, batch objects with their results inside, and what the rows of a batch cost."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from math import fsum
from types import NoneType
from typing import Any

import msgspec

from dagster_llmbatch.providers.classify import Fault
from dagster_llmbatch.providers.contract import BatchHandle, BatchState, BatchStatus, ErrorCategory, Outcome
from dagster_llmbatch.providers.openai_batches import STATES, number
from dagster_llmbatch.providers.openai_extras import with_extras
from dagster_llmbatch.providers.openai_faults import WireError, by_number, wire_error
from dagster_llmbatch.providers.openai_rows import logger, outcome_of
from dagster_llmbatch.providers.openai_wire import Line, decode_line
from dagster_llmbatch.providers.tolerant import loads

NO_BATCH_ENDPOINT = "no_batch_endpoint"
"""Our code for a refusal that has none: the model cannot be batched, or not by this account."""
_FREE_DAY = "free-models-per-day"
_BY_NAME = {
    "context_length_exceeded": ErrorCategory.CONTEXT_OVERFLOW,
    "rate_limit_exceeded": ErrorCategory.RATE_LIMIT,
    "provider_overloaded": ErrorCategory.SERVER_ERROR,
    "refusal": ErrorCategory.REFUSED,
    "content_policy_violation": ErrorCategory.REFUSED,
    "timeout": ErrorCategory.API_TIMEOUT,
}
# a failed batch has no code, only the upstream provider's words
_UPSTREAM_QUEUE = re.compile(r"job-submission-count|enqueued token", re.IGNORECASE)
_UPSTREAM_LIMIT = re.compile(
    r"\bquota\b|rate.?limit|too many requests|overloaded|temporarily|timed? ?out|HTTP (429|5\d\d)\b", re.IGNORECASE
)
_UNPAID = re.compile(r"insufficient|credit|billing|payment", re.IGNORECASE)


def fault_of(status: "int | None", error: WireError) -> Fault:
    """By `error_type`, `type` and text codes, then by status, which `code` may hold; by the text where nothing else tells."""
    metadata: Mapping[str, Any] = error.metadata if isinstance(error.metadata, Mapping) else {}
    names = [n for n in (error.error_type, metadata.get("error_type"), error.type, error.code) if isinstance(n, str)]
    named = names[0] if names else None
    text = f"{error.message or ''} {metadata.get('raw') or ''}".lower()
    if _FREE_DAY in text:
        return Fault(ErrorCategory.INSUFFICIENT_BALANCE, _FREE_DAY)
    found = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if found is not None:
        return Fault(found, named, _until_reset(metadata))
    if "does not have a :batch endpoint" in text:
        return Fault(ErrorCategory.CLIENT_ERROR, NO_BATCH_ENDPOINT)
    if metadata.get("flagged_input") is not None or metadata.get("reasons"):
        return Fault(ErrorCategory.REFUSED, named)
    category = by_number(status, error.code)
    if "maximum context length" in text and category in (ErrorCategory.CLIENT_ERROR, ErrorCategory.UNKNOWN):
        return Fault(ErrorCategory.CONTEXT_OVERFLOW, named)
    return Fault(category, named, _until_reset(metadata))


def classify(status: int, body: "Mapping[str, Any]") -> Fault:
    """What an error answer of OpenRouter's means."""
    return fault_of(status, wire_error(body.get("error")))


def _until_reset(metadata: "Mapping[str, Any]") -> "float | None":
    """Seconds until OpenRouter's own rate limit is lifted; an upstream provider's says nothing."""
    headers = metadata.get("headers")
    given = headers if isinstance(headers, Mapping) else {}
    reset = next((value for name, value in given.items() if str(name).lower() == "x-ratelimit-reset"), None)
    try:
        return None if reset is None else max(0.0, float(reset) / 1000 - time.time())
    except (TypeError, ValueError):
        return None


def read_row(line: bytes, extras: "Collection[str]" = ()) -> "Outcome | None":
    """One result; None, with a warning, where it cannot be read: its request ends up missing."""
    row = decode_line(line)
    if row is not None and not _has_choices(row):
        line = _unnested(line)
        row = decode_line(line)
    if row is None:
        logger.warning("a result of %d bytes cannot be read and is skipped.", len(line))
        return None
    outcome = outcome_of(row, fault_of)
    cost = row.response.body.usage.cost if row.response and row.response.body and row.response.body.usage else None
    if isinstance(cost, int | float):
        outcome = msgspec.structs.replace(outcome, cost_usd=float(cost))
    return with_extras(outcome, line, extras) if extras else outcome


def _has_choices(row: Line) -> bool:
    return row.response is not None and row.response.body is not None and bool(row.response.body.choices)


def _unnested(line: bytes) -> bytes:
    """The line with the completion in its place where it stands under `provider`."""
    row = loads(line)
    response = row.get("response") or {}
    body = response.get("body")
    nested = body.get("provider") if isinstance(body, dict) else None
    if not isinstance(nested, dict) or not nested.get("choices"):
        return line
    response["body"] = nested
    return msgspec.json.encode(row)


def custom_id_of(row: bytes) -> "str | None":
    """The custom id of one result, or None."""
    found = decode_line(row)
    return None if found is None else found.custom_id


def split_rows(content: bytes, name: str) -> "tuple[dict[str, Any], list[bytes] | None]":
    """A JSON object without the list of that name, and the list's rows as they came. Raises ValueError for anything else."""
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        rows = msgspec.json.decode(found.pop(name, b"null"), type=list[msgspec.Raw] | None)
        body = {key: msgspec.json.decode(value) for key, value in found.items()}
        return body, None if rows is None else [bytes(row) for row in rows]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # half an emoji in one row would hide all the others
        body = loads(content.decode("utf-8", "replace"))
    given = body.pop(name, None) if isinstance(body, dict) else body
    if not isinstance(body, dict) or not isinstance(given, list | NoneType):
        raise ValueError("no object with a list in it")
    return body, None if given is None else [msgspec.json.encode(row) for row in given]


def read_batch(
    body: "Mapping[str, Any]", handle: BatchHandle, results: "Collection[bytes] | None" = None
) -> BatchStatus:
    """A batch object as a status. Every field but its state may be absent."""
    raw = str(body.get("status"))
    state = STATES.get(raw, BatchState.UNKNOWN)
    counts, usage = body.get("request_counts") or {}, body.get("usage") or {}
    error = body.get("error")
    found = wire_error(error)
    text = (found.message or "") if state is BatchState.FAILED else ""
    full = _UPSTREAM_QUEUE.search(text) is not None
    return BatchStatus(
        handle=handle,
        state=state,
        provider_state=raw,
        total=counts.get("total"),
        completed=counts.get("completed"),
        failed=counts.get("failed"),
        created_at=number(body.get("created_at")),
        expires_at=number(body.get("expires_at")),
        ended_at=number(body.get("finalized_at")) if state.ended else None,
        result_refs={"results": handle.batch_id} if results or state is BatchState.COMPLETED else {},
        error_code=None if found.code is None else str(found.code),
        error_message=found.message if error is not None else None,
        queue_full=full,
        retryable=full or (_UPSTREAM_LIMIT.search(text) is not None and _UNPAID.search(text) is None),
        cost_usd=number(usage.get("cost")),
    )


def share_cost(outcomes: "Sequence[Outcome]", total: "float | None") -> "list[Outcome]":
    """The batch's cost over the replies that have tokens, by their number; nothing is known of a single one's.

    The shares add up to the total: the lightest reply takes what rounding leaves.
    """
    weights = {
        at: (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
        for at, outcome in enumerate(outcomes)
        if outcome.input_tokens is not None or outcome.output_tokens is not None
    }
    if total is None or not weights:
        return list(outcomes)
    whole = sum(weights.values())
    if not whole:
        weights, whole = dict.fromkeys(weights, 1), len(weights)
    shares = {at: total * weight / whole for at, weight in weights.items()}
    lightest = min((at for at in weights if weights[at]), key=weights.__getitem__)
    shares[lightest] = fsum([total, *(-share for at, share in shares.items() if at != lightest)])
    return [msgspec.structs.replace(outcome, cost_usd=shares.get(at)) for at, outcome in enumerate(outcomes)]
