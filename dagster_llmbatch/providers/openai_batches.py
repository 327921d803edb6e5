"""Batch objects in OpenAI's form, and lists of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from dagster_llmbatch.providers.contract import BatchHandle, BatchState, BatchStatus
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.openai_faults import QUEUE_FULL_CODES

CLOCK_SKEW = 300.0
"""Seconds the provider's clock may be behind ours."""
PAGE = 100
STATES = {
    "validating": BatchState.RUNNING,
    "in_progress": BatchState.RUNNING,
    "finalizing": BatchState.RUNNING,
    "cancelling": BatchState.CANCELLING,
    "completed": BatchState.COMPLETED,
    "failed": BatchState.FAILED,
    "expired": BatchState.EXPIRED,
    "cancelled": BatchState.CANCELLED,
}
_ENDED_AT = ("completed_at", "failed_at", "expired_at", "cancelled_at")


def listed(http: ProviderHttp, filters: "Mapping[str, Any]", *, since: float) -> "Iterator[dict[str, Any]]":
    """Batches newest first, page by page, until a page reaches back before `since` (unix seconds)."""
    after: dict[str, Any] = {}
    seen: set[str] = set()
    while True:
        page = http.call("GET", "batches", params={"limit": PAGE, **filters, **after})
        data = page.get("data")
        batches = [b for b in data if isinstance(b, dict) and b.get("id")] if isinstance(data, list) else []
        fresh = [b for b in batches if b["id"] not in seen]
        yield from fresh
        # a server that does not say whether there is more has more where the page is full and not the one before
        more = page.get("has_more", len(batches) >= PAGE)
        if not more or not fresh or _reaches_back(fresh, since):
            return
        seen.update(b["id"] for b in fresh)
        after = {"after": page.get("last_id") or fresh[-1]["id"]}


def _reaches_back(page: "list[dict[str, Any]]", since: float) -> bool:
    """Whether a page that is newest first ends before `since`; one in another order, or without times, never does."""
    newest, oldest = (number(page[at].get("created_at")) for at in (0, -1))
    return newest is not None and oldest is not None and oldest < since and newest >= oldest


def read_batch(body: "Mapping[str, Any]", provider: str, refs: "Mapping[str, str] | None" = None) -> BatchStatus:
    """A batch object as a status. Old objects and compatible servers lack fields; either file id may be null, empty or absent.

    `refs`: what is known of it already.
    """
    raw = str(body.get("status"))
    state = STATES.get(raw.lower(), BatchState.UNKNOWN)
    counts = body.get("request_counts") or {}
    error = _first_error(body.get("errors"))
    given = {"input_file_id": str(body["input_file_id"])} if body.get("input_file_id") else {}
    ended = next((found for name in _ENDED_AT if (found := number(body.get(name)))), None)
    return BatchStatus(
        handle=BatchHandle(provider, str(body["id"]), {**(refs or {}), **given}),
        state=state,
        provider_state=raw,
        total=counts.get("total"),
        completed=counts.get("completed"),
        failed=counts.get("failed"),
        created_at=number(body.get("created_at")),
        expires_at=number(body.get("expires_at")),
        ended_at=ended,
        result_refs={name: str(body[name]) for name in ("output_file_id", "error_file_id") if body.get(name)},
        error_code=error.get("code"),
        error_message=error.get("message"),
        queue_full=state is BatchState.FAILED and error.get("code") in QUEUE_FULL_CODES,
    )


def _first_error(errors: Any) -> "dict[str, Any]":
    """The first entry of a batch's errors: a list object at OpenAI, a bare list elsewhere."""
    entries = errors.get("data") if isinstance(errors, dict) else errors
    first = entries[0] if isinstance(entries, list) and entries else {}
    return first if isinstance(first, dict) else {"message": str(first)}


def number(value: Any) -> "float | None":
    """A JSON number, or None for anything else."""
    return value if isinstance(value, int | float) else None
