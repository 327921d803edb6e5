"""Anthropic's Message Batches, and its realtime messages.

Facts: https://platform.claude.com/docs/en/build-with-claude/batch-processing, read 2026-11-30.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
import msgspec

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotAdoptableError,
    BatchNotFoundError,
    BatchUnprovenError,
)
from dagster_llmbatch.providers.anthropic_requests import AnthropicEncoder, betas_of, create_body, refuse_unbatchable
from dagster_llmbatch.providers.anthropic_rows import classify, read_message, read_row
from dagster_llmbatch.providers.content import Content
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    Outcome,
    RequestTemplate,
    Search,
    Uploaded,
    expect,
)
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.lines import CHUNK_BYTES, split_lines

VERSION = "2023-06-01"
"""The anthropic-version whose shapes are read here."""
MESSAGES, BATCHES = "v1/messages", "v1/messages/batches"
REQUEST_COUNT = "request_count"
"""The ref that a search has to go by: Anthropic lets a batch carry no name of ours."""
CLOCK_SKEW = 300.0
"""Seconds the provider's clock may be behind ours."""
PAGE = 100


class AnthropicBatchProvider:
    """A BatchProvider over Anthropic's messages endpoints."""

    name = "anthropic"
    limits = LIMITS["anthropic"]

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = "https://api.anthropic.com",
        workspace_id: "str | None" = None,
        timeout: float = 120.0,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        headers = {"x-api-key": api_key, "anthropic-version": VERSION}
        headers |= {"anthropic-workspace-id": workspace_id} if workspace_id else {}
        self._http = ProviderHttp(
            self.name,
            base_url=base_url,
            headers=headers,
            classify=classify,
            timeout=timeout,
            transport=transport,
            sleep=sleep,
        )

    def encoder(self, template: RequestTemplate) -> AnthropicEncoder:
        """The encoder of requests of one template. Raises ConfigurationError for params that cannot be batched."""
        refuse_unbatchable(template.params)
        return AnthropicEncoder(template)

    def group(self, template: RequestTemplate) -> str:
        """A batch may mix models and parameters, but has one set of betas."""
        return f"betas:{','.join(betas_of(template.params))}"

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Nothing is sent: the requests go with the create call. Counts them, which a later search goes by."""
        with requests.open("rb") as lines:
            count = sum(piece.count(b"\n") for piece in iter(lambda: lines.read(CHUNK_BYTES), b""))
        return Uploaded({REQUEST_COUNT: str(count)})

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: one POST of all requests, never resent."""
        body = create_body(requests)
        headers = {"content-type": "application/json", "content-length": str(body.length), **_beta_header(template)}
        created = self._http.call_once("POST", BATCHES, content=body, headers=headers)
        if not created.get("id"):
            raise AmbiguousCreateError(
                "anthropic: the create call succeeded without naming a batch.", provider=self.name
            )
        return read_batch(created)

    def find(self, search: Search) -> "BatchStatus | None":
        """Look for a batch of our time and size, and prove it by the custom ids in its results.

        Raises BatchUnprovenError while one that may be ours runs: only its results can tell. BatchNotAdoptableError where
        one that may be ours has no results any more.
        """
        doubts: dict[_Proof, BatchStatus] = {}
        custom_ids = frozenset(search.custom_ids)
        for status in self._candidates(search):
            proof = self._prove(status, custom_ids)
            if proof is _Proof.OURS:
                return status
            if proof is not _Proof.FOREIGN:
                doubts[proof] = status
        if running := doubts.get(_Proof.RUNNING):
            raise BatchUnprovenError(
                f"anthropic: batch {running.handle.batch_id} may be the one that was sent; its results will tell when it "
                "has ended.",
                provider=self.name,
            )
        if gone := doubts.get(_Proof.GONE):
            raise BatchNotAdoptableError(
                f"anthropic: batch {gone.handle.batch_id} has the time and the size of the one that was sent, and no "
                'results that could prove it. Look at it in the provider\'s console; with on_reclaim="resubmit" its '
                "requests are sent, and may be paid, again."
            )
        return None

    def _candidates(self, search: Search) -> "Iterator[BatchStatus]":
        """Batches created since the search's earliest create call, of its size and not known; newest first."""
        since = search.since - CLOCK_SKEW
        count = int(search.uploaded.refs.get(REQUEST_COUNT, len(search.custom_ids)))
        cursor: dict[str, str] = {}
        while True:
            page = self._http.call("GET", BATCHES, params={"limit": PAGE, **cursor})
            found = [read_batch(batch) for batch in page.get("data") or ()]
            for status in found:
                in_time = status.created_at is None or status.created_at >= since
                if in_time and status.total in (count, None) and status.handle.batch_id not in search.known:
                    yield status
            if not found or not page.get("has_more") or (found[-1].created_at or since) < since:
                return
            cursor = {"after_id": page.get("last_id") or found[-1].handle.batch_id}

    def _prove(self, status: BatchStatus, custom_ids: "frozenset[str]") -> "_Proof":
        """Whether a candidate's results hold our custom ids and no other: equal rows of two tables have equal ids, so one
        of them proves little. The first that is not ours ends the reading."""
        if not status.state.ended:
            return _Proof.RUNNING
        ours = False
        try:
            for line in self._results(status):
                custom_id = _custom_id(line)
                if custom_id is not None and custom_id not in custom_ids:
                    return _Proof.FOREIGN
                ours = ours or custom_id is not None
        except BatchNotFoundError:
            return _Proof.GONE
        return _Proof.OURS if ours else _Proof.GONE

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises BatchNotFoundError where the provider does not know it."""
        expect(handle, self.name)
        return read_batch(self._http.call("GET", f"{BATCHES}/{handle.batch_id}"))

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """Stream the results. Raises BatchNotFoundError where the provider keeps them no more."""
        expect(status.handle, self.name)
        for line in self._results(status):
            outcome = read_row(line, extras)
            if outcome is not None:
                yield outcome

    def _results(self, status: BatchStatus) -> "Iterator[bytes]":
        batch_id = status.handle.batch_id
        if "archived_at" in status.result_refs:
            raise BatchNotFoundError(f"anthropic: the results of batch {batch_id} are archived.", provider=self.name)
        # the same path as results_url, which is absolute and would carry the key wherever it points
        with self._http.download(f"{BATCHES}/{batch_id}/results") as pieces:
            yield from split_lines(pieces)

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask to stop: it takes seconds to minutes. What ran is kept and billed."""
        expect(handle, self.name)
        return read_batch(self._http.call("POST", f"{BATCHES}/{handle.batch_id}/cancel"))

    def delete_files(self, status: BatchStatus) -> None:
        """Delete the ended batch, and its results with it; gone already is fine."""
        expect(status.handle, self.name)
        try:
            self._http.call("DELETE", f"{BATCHES}/{status.handle.batch_id}")
        except BatchNotFoundError:
            return

    def complete(self, template: RequestTemplate, prompt: Content, *, extras: "Collection[str]" = ()) -> Outcome:
        """One realtime call, sent once. Its outcome has no custom_id."""
        body = AnthropicEncoder(template).body(prompt)
        return read_message(self._http.call_realtime(MESSAGES, body, headers=_beta_header(template)), extras)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class _Proof(Enum):
    """What is known of a batch that may be ours."""

    OURS = "ours"
    FOREIGN = "foreign"
    RUNNING = "running"
    GONE = "gone"


class _CustomId(msgspec.Struct, gc=False):
    custom_id: str


_decode_custom_id = msgspec.json.Decoder(_CustomId).decode


def _custom_id(line: bytes) -> "str | None":
    """The custom id of a result line; None where the line cannot be read, which proves nothing either way."""
    try:
        return _decode_custom_id(line).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _beta_header(template: RequestTemplate) -> "dict[str, str]":
    betas = betas_of(template.params)
    return {"anthropic-beta": ",".join(betas)} if betas else {}


_STATES = {"in_progress": BatchState.RUNNING, "canceling": BatchState.CANCELLING, "ended": BatchState.COMPLETED}


def read_batch(body: "Mapping[str, Any]") -> BatchStatus:
    """A batch object as a status.

    A batch that was cancelled ends as CANCELLED, whatever rows were finished: a request without a result was not run then.
    """
    raw = str(body.get("processing_status"))
    state = _STATES.get(raw, BatchState.UNKNOWN)
    if state is BatchState.COMPLETED and body.get("cancel_initiated_at"):
        state = BatchState.CANCELLED
    counts = {name: n for name, n in (body.get("request_counts") or {}).items() if isinstance(n, int)}
    return BatchStatus(
        handle=BatchHandle("anthropic", str(body["id"])),
        state=state,
        provider_state=raw,
        total=sum(counts.values()) if counts else None,
        completed=counts.get("succeeded"),
        failed=counts.get("errored"),
        created_at=_seconds(body.get("created_at")),
        expires_at=_seconds(body.get("expires_at")),
        ended_at=_seconds(body.get("ended_at")),
        result_refs={name: str(body[name]) for name in ("results_url", "archived_at") if body.get(name)},
    )


def _seconds(value: Any) -> "float | None":
    """Unix seconds of an RFC 3339 time; None for anything else."""
    try:
        found = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
