"""Gemini's batches: long-running operations, read as statuses."""

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.contract import BatchHandle, BatchState, BatchStatus, ErrorCategory
from dagster_llmbatch.providers.gemini_faults import RPC_CODES, rpc_fault
from dagster_llmbatch.providers.tolerant import loads

FILE_NAME = "fileName"
"""The uploaded input file, `files/...`, among the refs of a batch."""
CANCEL_ASKED = "cancel_asked"
"""Among the refs of a batch's handle once its cancel was asked for: nothing on the wire tells it afterwards."""
RESPONSES_FILE, INLINED_RESPONSES = "responsesFile", "inlinedResponses"
"""Where results are: a file, or the operation itself."""

_STATES = {
    "PENDING": BatchState.RUNNING,
    "QUEUED": BatchState.RUNNING,
    "RUNNING": BatchState.RUNNING,
    "PAUSED": BatchState.RUNNING,
    "UPDATING": BatchState.RUNNING,
    "CANCELLING": BatchState.CANCELLING,
    "SUCCEEDED": BatchState.COMPLETED,
    "PARTIALLY_SUCCEEDED": BatchState.COMPLETED,
    "FAILED": BatchState.FAILED,
    "CANCELLED": BatchState.CANCELLED,
    "EXPIRED": BatchState.EXPIRED,
}
_ENDED_BY_CODE = {"CANCELLED": BatchState.CANCELLED, "DEADLINE_EXCEEDED": BatchState.EXPIRED}


def read_batch(operation: "Mapping[str, Any]", refs: "Mapping[str, str]") -> BatchStatus:
    """An operation as a status. `refs`: what is known of the batch already; its handle keeps them."""
    metadata = _dict(operation.get("metadata"))
    error = _dict(operation.get("error"))
    results = _result_refs(operation, metadata)
    state = _state(operation, metadata, error, results)
    stats = _dict(metadata.get("batchStats"))
    input_file = _dict(metadata.get("inputConfig")).get(FILE_NAME)
    known = {**refs, **({FILE_NAME: str(input_file)} if input_file else {})}
    fault = rpc_fault(error) if state is BatchState.FAILED and error else None
    queue_full = fault is not None and fault.category is ErrorCategory.QUEUE_FULL
    return BatchStatus(
        handle=BatchHandle("gemini", str(operation["name"]), known),
        state=state,
        provider_state=str(metadata.get("state") or ("DONE" if operation.get("done") else "STATE_UNSPECIFIED")),
        total=_count(stats, "requestCount"),
        completed=_count(stats, "successfulRequestCount"),
        failed=_count(stats, "failedRequestCount"),
        created_at=_seconds(metadata.get("createTime")),
        ended_at=_seconds(metadata.get("endTime")),
        result_refs=results,
        error_code=_code(error),
        error_message=str(error["message"]) if error.get("message") else None,
        queue_full=queue_full,
        retryable=fault is not None and fault.retryable and not queue_full and CANCEL_ASKED not in refs,
    )


def _state(
    operation: "Mapping[str, Any]",
    metadata: "Mapping[str, Any]",
    error: "Mapping[str, Any]",
    results: "Mapping[str, str]",
) -> BatchState:
    """The state, by its name after `BATCH_STATE_` or `JOB_STATE_`; `done` ends every batch, whatever its state says."""
    named = _STATES.get(str(metadata.get("state")).rpartition("STATE_")[2], BatchState.UNKNOWN)
    done = bool(operation.get("done"))
    if named is BatchState.COMPLETED and not done and not results:
        # its results are still to be shown: collected now, every row would be missing
        return BatchState.RUNNING
    if named.ended or not done:
        return named
    return _ENDED_BY_CODE.get(_code(error) or "", BatchState.FAILED) if error else BatchState.COMPLETED


def _result_refs(operation: "Mapping[str, Any]", metadata: "Mapping[str, Any]") -> "dict[str, str]":
    """Where the results are. They are shown twice, as `metadata.output` and as `response`: either will do."""
    for output in (_dict(operation.get("response")), _dict(metadata.get("output"))):
        if output.get(RESPONSES_FILE):
            return {RESPONSES_FILE: str(output[RESPONSES_FILE])}
        if output.get(INLINED_RESPONSES):
            return {INLINED_RESPONSES: str(operation["name"])}
    return {}


class _Output(msgspec.Struct, gc=False, rename="camel"):
    inlined_responses: msgspec.Raw = msgspec.Raw()


class _Metadata(msgspec.Struct, gc=False):
    output: "_Output | None" = None


class _Operation(msgspec.Struct, gc=False):
    response: "_Output | None" = None
    metadata: "_Metadata | None" = None


class _Nested(msgspec.Struct, gc=False, rename="camel"):
    inlined_responses: "list[msgspec.Raw]" = []


def inlined_rows(body: bytes) -> "list[bytes]":
    """The rows of an operation's answer, each as its JSON text, from one of the two places where they are shown.

    Raises ValueError for what is no JSON.
    """
    try:
        operation = msgspec.json.decode(body, type=_Operation)
        outputs = (operation.response, operation.metadata.output if operation.metadata else None)
        shown = next(
            (output.inlined_responses for output in outputs if output and bytes(output.inlined_responses)), b"[]"
        )
        # a list in an object of the same name; some samples in the documentation have the list alone
        found = msgspec.json.decode(shown, type=_Nested | list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _tolerant_rows(loads(body))
    return [bytes(row) for row in (found.inlined_responses if isinstance(found, _Nested) else found)]


def _tolerant_rows(operation: Any) -> "list[bytes]":
    """The rows of an operation of which some part has another shape than documented."""
    found = _dict(operation)
    for output in (_dict(found.get("response")), _dict(_dict(found.get("metadata")).get("output"))):
        shown = output.get(INLINED_RESPONSES)
        rows = shown.get(INLINED_RESPONSES) if isinstance(shown, dict) else shown
        if isinstance(rows, list):
            return [json.dumps(row).encode() for row in rows]
    return []


def _code(error: "Mapping[str, Any]") -> "str | None":
    code = error.get("code")
    return None if code is None else RPC_CODES.get(code, str(code))


def _count(stats: "Mapping[str, Any]", name: str) -> "int | None":
    """int64 as text; zeros are left out."""
    return int(stats.get(name) or 0) if stats else None


def _seconds(time: Any) -> "float | None":
    """Unix seconds of an RFC 3339 text, which has nanoseconds here."""
    try:
        return msgspec.convert(time, dt.datetime).timestamp()
    except msgspec.ValidationError:
        return None


def _dict(value: Any) -> "dict[str, Any]":
    return value if isinstance(value, dict) else {}
