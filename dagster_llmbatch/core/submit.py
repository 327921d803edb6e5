"""Requests of a wave into provider batches: intent recorded, paid call, handle recorded. And the way back after a crash.

The order of the calls is the promise: nothing is created that the ledger does not know of, and nothing is created
twice without having looked for it.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_llmbatch.core.chunks import Chunk, ChunkSize, split
from dagster_llmbatch.core.identity import CustomIds, external_key
from dagster_llmbatch.core.outcomes import REQUEST_SCHEMA
from dagster_llmbatch.core.plan import BLOCK_ROWS
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.requests import FINGERPRINT, ROW_ID, PlannedRequests
from dagster_llmbatch.core.row_states import RowStates
from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotAdoptableError,
    BatchUnprovenError,
    LeaseLostError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchProvider,
    BatchState,
    BatchStatus,
    RequestTemplate,
    Search,
    Uploaded,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """The run that may spend on an entry now, proven by its fencing token."""

    run_id: str
    fence: int


@dataclass(frozen=True)
class Later:
    """Whether a batch exists cannot be said before `until` (unix seconds)."""

    reason: str
    until: float


@dataclass(frozen=True)
class Submitter:
    """Buys the requests of one entry for one owner."""

    entry: Entry
    owner: Owner
    provider: BatchProvider
    ledger: Ledger
    segments: SegmentStore
    policy: Policy
    now: "Callable[[], float]"
    sleep: "Callable[[float], None]"

    def submit(self, wave: int, states: RowStates) -> None:
        """Send every row of the wave that was not sent in it yet. A full queue ends it early, without an error."""
        self._keep()
        self.ledger.set_wave(self.entry.id, self.owner.run_id, self.owner.fence, wave)
        wanted = states.unsent(self.policy.max_attempts) if wave == max(self.entry.wave, 1) else None
        chosen = states.pending(self.policy.max_attempts) if wanted is None else wanted
        size = ChunkSize.after(self.ledger.batches(self.entry.id), self.policy, self.provider.limits)
        with tempfile.TemporaryDirectory(prefix="llmbatch-") as scratch:
            templates: dict[str, RequestTemplate] = {}
            requests = self._requests(chosen, states, templates)
            path_for = partial(_chunk_path, Path(scratch))
            for number, chunk in enumerate(split(requests, self.provider.limits, size=size, path_for=path_for)):
                if not isinstance(chunk, Chunk):
                    raise AssertionError(f"row {chunk.row} passed the plan and is too large for a batch")
                if self._is_at_the_most():
                    return
                accepted = self._send(self._intend(wave, number, chunk, states), chunk.path, templates[chunk.group])
                chunk.path.unlink()
                if not accepted:
                    return
                size.grow()

    def adopt(self, batch: BatchRecord) -> None:
        """Find the batch of an intent without a handle; buy it only when the provider surely does not have it."""
        self._keep()
        if batch.create_at is not None:  # else nothing can have been created: the time is recorded before the call
            status = self._search(batch, Uploaded(batch.refs), batch.create_at)
            if isinstance(status, Later):
                self.ledger.postpone(batch.id, status.reason, next_poll_at=status.until)
                return
            if status is not None:
                logger.info("adopted batch %s for %s.", status.handle.batch_id, self.entry.key.asset_key)
                self._record_handle(batch, status)
                return
        with tempfile.TemporaryDirectory(prefix="llmbatch-") as scratch:
            path = Path(scratch) / "chunk.jsonl"
            self._send(batch, path, self._rebuild(batch, path))

    def _is_at_the_most(self) -> bool:
        most = self.policy.max_batches_in_progress
        return most is not None and self.ledger.in_progress(self.provider.name) >= most

    def _planned(self) -> PlannedRequests:
        entry = self.entry
        return PlannedRequests(entry.settings, entry.plan_segment, provider=self.provider, segments=self.segments)

    def _requests(
        self, chosen: Any, states: RowStates, templates: "dict[str, RequestTemplate]"
    ) -> "Iterator[tuple[str, int, str, bytes]]":
        """(group, row, custom_id, line) of the chosen rows; `templates` gets one template of each group."""
        ids = CustomIds(self.entry.settings["namespace"])
        for block in self._planned().blocks(ROW_ID, FINGERPRINT):
            places = np.flatnonzero(chosen[block.first : block.first + block.table.num_rows])
            if not len(places):
                continue
            rows = block.first + places
            attempts = (states.sent[rows] + 1).tolist()
            row_ids, fingerprints = (block.table.column(i).take(pa.array(places)).to_pylist() for i in range(2))
            named = zip(rows.tolist(), attempts, row_ids, fingerprints, strict=True)
            for (row, attempt, row_id, fingerprint), (asking, prompt) in zip(
                named, block.requests(places.tolist()), strict=True
            ):
                custom_id = ids.of(row_id, fingerprint, attempt)
                templates.setdefault(asking.group, asking.template)
                yield asking.group, row, custom_id, asking.encoder.line(custom_id, prompt)

    def _intend(self, wave: int, number: int, chunk: Chunk, states: RowStates) -> BatchRecord:
        with self.segments.writer("requests", REQUEST_SCHEMA, row_group_rows=BLOCK_ROWS) as writer:
            writer.write(requests_table(chunk, states))
        key = self.entry.key
        return self.ledger.record_intent(
            self.entry.id,
            self.owner.run_id,
            self.owner.fence,
            now=self.now(),
            wave=wave,
            chunk=number,
            external_key=external_key(
                namespace=key.namespace,
                asset_key=key.asset_key,
                partition_key=key.partition_key,
                generation=self.entry.generation,
                wave=wave,
                custom_ids=chunk.custom_ids,
            ),
            provider=self.provider.name,
            request_count=len(chunk.rows),
            request_bytes=chunk.bytes,
            requests_segment=writer.name,
        )

    def _rebuild(self, batch: BatchRecord, path: Path) -> RequestTemplate:
        """Write the request lines of a recorded intent again, from the plan as it was stored; returns one's template."""
        sent = self.segments.table(batch.requests_segment, columns=["row", "custom_id"])
        wanted = dict(zip(*(column.to_pylist() for column in sent.columns), strict=True))
        template: RequestTemplate | None = None
        with path.open("wb") as out:
            for block in self._planned().blocks():
                places = [at for at in range(block.table.num_rows) if block.first + at in wanted]
                for at, (asking, prompt) in zip(places, block.requests(places), strict=True):
                    template = template or asking.template
                    out.write(asking.encoder.line(wanted[block.first + at], prompt))
        if template is None:
            raise AssertionError(f"batch record {batch.id} has no requests")
        return template

    def _send(self, batch: BatchRecord, path: Path, template: RequestTemplate) -> bool:
        """Upload and create. Returns False where the provider's queue or rate limit says: later."""
        if batch.phase is BatchPhase.SUBMITTED:
            return True
        uploaded = self.provider.upload(path, external_key=batch.external_key)
        self._keep()
        started = self.now()
        self.ledger.record_upload(batch.id, uploaded.refs, create_at=started)
        self._keep()  # right before the money: the owner proves that nobody took over
        try:
            status = self.provider.create(path, uploaded, template=template, external_key=batch.external_key)
        except RateLimitedError as error:
            wait = max(self.policy.queue_wait, error.retry_after or 0)
            self.ledger.record_refused(batch.id, str(error), next_poll_at=self.now() + wait)
            return False
        except QueueFullError as error:
            # as if it had been accepted and had failed for that: its rows go again later, in smaller batches if need be
            self.ledger.record_queue_full(batch.id, status_json(_refused(self.provider.name, error)), now=self.now())
            return False
        except TransientProviderError as error:  # the connection was never made
            self.ledger.record_refused(batch.id, str(error), next_poll_at=self.now() + self.policy.poll_first)
            return False
        except (RejectedError, QuotaExhaustedError) as error:
            self.ledger.record_refused(batch.id, str(error), next_poll_at=self.now())
            raise
        except AmbiguousCreateError as error:
            logger.warning("the create call gave no clear answer (%s); looking for the batch.", type(error).__name__)
            found = self._search(batch, uploaded, started)
            if found is None or isinstance(found, Later):
                # not there yet is not never there: the next advance looks once more before it buys
                until = found.until if found is not None else self.now() + self.policy.poll_first
                self.ledger.postpone(batch.id, str(error), next_poll_at=until)
                return False
            status = found
        self._record_handle(batch, status)
        return True

    def _search(self, batch: BatchRecord, uploaded: Uploaded, since: float) -> "BatchStatus | Later | None":
        """Look for the batch that a create call at `since` may have made: there, nobody knows yet, or surely not there.

        Raises BatchNotAdoptableError where one may be ours and can never be proven, unless that is accepted.
        """
        accepted = self.policy.on_reclaim == "resubmit"
        try:
            status = self._look(batch, uploaded, since)
        except BatchUnprovenError as error:
            if accepted:
                return None
            if self.now() < since + self.provider.limits.window + self.policy.wave_grace:
                return Later(str(error), self.now() + self.policy.poll_max)
            raise BatchNotAdoptableError(f"{self.entry.key}: {error} Its time is over, so it never will be.") from error
        except BatchNotAdoptableError:
            if not accepted:
                raise
            return None
        shown_by = since + self.provider.limits.appears_within
        if status is None and self.now() < shown_by:
            return Later(f"{self.provider.name} may not list the batch yet", shown_by)
        return status

    def _look(self, batch: BatchRecord, uploaded: Uploaded, since: float) -> "BatchStatus | None":
        requests = self.segments.table(batch.requests_segment, columns=["custom_id"])
        search = Search(
            external_key=batch.external_key,
            uploaded=uploaded,
            since=since,
            custom_ids=requests.column(0).to_pylist(),
            known=self.ledger.known_batch_ids(batch.provider),
        )
        for wait in self.policy.look_again:
            if wait:
                self.sleep(wait)
                self._keep()
            found = self.provider.find(search)
            if found is not None:
                return found
        return None

    def _record_handle(self, batch: BatchRecord, status: BatchStatus) -> None:
        now = self.now()
        interval = self.policy.next_poll(None)
        self.ledger.record_handle(
            batch.id,
            provider_batch_id=status.handle.batch_id,
            handle=status.handle.to_json(),
            status=status_json(status),
            provider_state=status.provider_state,
            next_poll_at=now + interval,
            poll_interval=interval,
            deadline=(status.created_at or now) + self.provider.limits.window + self.policy.wave_grace,
            now=now,
        )

    def _keep(self) -> None:
        if not self.ledger.renew(
            self.entry.id, self.owner.run_id, self.owner.fence, now=self.now(), ttl=self.policy.lease
        ):
            key = self.entry.key
            raise LeaseLostError(
                f"{key.asset_key}, partition {key.partition_key!r}: another run took this partition over while run "
                f"{self.owner.run_id} was silent. It buys nothing more; materialize again to follow the other run."
            )


def _chunk_path(folder: Path, number: int) -> Path:
    return folder / f"chunk-{number}.jsonl"


def _refused(provider: str, error: QueueFullError) -> BatchStatus:
    """The status of a batch that was never created, for want of room in the queue."""
    return BatchStatus(
        BatchHandle(provider, ""),
        BatchState.FAILED,
        "queue_full",
        error_code=error.code or "queue_full",
        queue_full=True,
    )


def requests_table(chunk: Chunk, states: RowStates) -> pa.Table:
    """The requests segment's table of one chunk."""
    attempts = states.sent[chunk.rows] + 1
    return pa.table([pa.array(chunk.rows), pa.array(chunk.custom_ids), pa.array(attempts)], schema=REQUEST_SCHEMA)


def status_json(status: BatchStatus) -> "dict[str, Any]":
    """A status as the ledger keeps it."""
    found = asdict(status)
    found["state"] = status.state.value
    return found
