"""Batches: from the intent before the paid call to the collected outcomes. Every phase change is compare-and-set."""

import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from dagster_llmbatch.errors import LedgerError
from dagster_llmbatch.ledger.database import Database
from dagster_llmbatch.ledger.entries import held, lease_lost
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, CancelReason
from dagster_llmbatch.ledger.tables import batches, entries

UNCLEAR = (BatchPhase.INTENT.value, BatchPhase.UPLOADED.value)


class Batches:
    """The part of the ledger that knows what was bought."""

    database: Database

    def record_intent(
        self,
        entry_id: str,
        owner: str,
        fence: int,
        *,
        wave: int,
        chunk: int,
        external_key: str,
        provider: str,
        request_count: int,
        request_bytes: int,
        requests_segment: str,
        now: float,
    ) -> BatchRecord:
        """Say what is about to be bought, before it is. The same external key again: the record there is.

        Raises LeaseLostError for who does not own the entry.
        """
        with self.database.write() as connection:
            # the row stays locked until the intent is written: nobody takes over in between
            owned = sa.select(entries.c.id).where(*held(entry_id, owner, fence)).with_for_update()
            if connection.execute(owned).first() is None:
                raise lease_lost(entry_id, owner)
            intent = self.database.insert(batches).values(
                id=uuid.uuid4().hex,
                entry_id=entry_id,
                wave=wave,
                chunk=chunk,
                external_key=external_key,
                provider=provider,
                phase=BatchPhase.INTENT.value,
                request_count=request_count,
                request_bytes=request_bytes,
                requests_segment=requests_segment,
                intent_at=now,
                refs={},
                failed_checks=0,
            )
            # an insert under way elsewhere is waited for, and then it is the record there is
            connection.execute(intent.on_conflict_do_nothing(index_elements=["external_key"]))
            same = sa.select(batches).where(batches.c.external_key == external_key)
            row = connection.execute(same).mappings().one()
        found = _batch(row)
        if found.entry_id != entry_id:
            raise LedgerError(f"External key {external_key} belongs to entry {found.entry_id}, not to {entry_id}.")
        return found

    def record_reused(
        self,
        entry_id: str,
        owner: str,
        fence: int,
        *,
        provider: str,
        requests_segment: str,
        outcomes_segment: str,
        request_count: int,
        now: float,
    ) -> None:
        """Record answers taken over from an older generation: wave 0, collected, nothing bought. Idempotent."""
        found = self.record_intent(
            entry_id,
            owner,
            fence,
            wave=0,
            chunk=0,
            external_key=f"reused-{entry_id}",
            provider=provider,
            request_count=request_count,
            request_bytes=0,
            requests_segment=requests_segment,
            now=now,
        )
        self._change(
            found.id,
            (BatchPhase.INTENT.value,),
            phase=BatchPhase.COLLECTED.value,
            outcomes_segment=outcomes_segment,
            collected_at=now,
        )

    def record_upload(self, batch_id: str, refs: "Mapping[str, str]", *, create_at: float) -> None:
        """Record what was uploaded, before the create call at `create_at`: from now on a batch may exist."""
        changes = {"phase": BatchPhase.UPLOADED.value, "refs": dict(refs), "create_at": create_at}
        if not self._change(batch_id, UNCLEAR, **changes):
            raise LedgerError(f"Batch record {batch_id} got a handle while its requests were uploaded again.")

    def known_batch_ids(self, provider: str) -> "list[str]":
        """The provider's ids of all batches whose handle is recorded, whoever bought them."""
        found = sa.select(batches.c.batch_id).where(batches.c.provider == provider, batches.c.batch_id.is_not(None))
        with self.database.read() as connection:
            return list(connection.execute(found).scalars())

    def record_refused(self, batch_id: str, reason: str, *, next_poll_at: float) -> None:
        """The provider provably made nothing of the create call: send it again at `next_poll_at`."""
        self._change(batch_id, UNCLEAR, create_at=None, last_error=reason, next_poll_at=next_poll_at)

    def postpone(self, batch_id: str, reason: str, *, next_poll_at: float) -> None:
        """The create call gave no clear answer: look again at `next_poll_at`."""
        self._change(batch_id, UNCLEAR, last_error=reason, next_poll_at=next_poll_at)

    def record_handle(
        self,
        batch_id: str,
        *,
        provider_batch_id: str,
        handle: "Mapping[str, Any]",
        status: "Mapping[str, Any]",
        provider_state: str,
        next_poll_at: float,
        poll_interval: float,
        deadline: float,
        now: float,
    ) -> None:
        """Record the provider's handle. Idempotent for the same batch; LedgerError for a second one."""
        changed = self._change(
            batch_id,
            UNCLEAR,
            phase=BatchPhase.SUBMITTED.value,
            batch_id=provider_batch_id,
            handle=dict(handle),
            status=dict(status),
            provider_state=provider_state,
            next_poll_at=next_poll_at,
            poll_interval=poll_interval,
            deadline=deadline,
            submitted_at=now,
            last_error=None,
        )
        if not changed and (known := self.batch(batch_id)).batch_id != provider_batch_id:
            raise LedgerError(
                f"Batch record {batch_id} is {known.batch_id} at {known.provider}, and {provider_batch_id} was created for "
                "it too. Cancel one of them at the provider."
            )

    def record_status(
        self,
        batch_id: str,
        *,
        provider_state: str,
        counts: "tuple[int | None, int | None, int | None]",
        status: "Mapping[str, Any]",
        next_poll_at: float,
        poll_interval: float,
        ended: bool,
        now: float,
    ) -> bool:
        """Record a look at a submitted batch; `counts` are total, completed, failed. False where it moved on since."""
        total, completed, failed = counts
        values: dict[str, Any] = {
            "provider_state": provider_state,
            "total": total,
            "completed": completed,
            "failed": failed,
            "status": dict(status),
            "next_poll_at": next_poll_at,
            "poll_interval": poll_interval,
            "failed_checks": 0,
            "last_error": None,
        }
        if ended:
            values |= {"phase": BatchPhase.ENDED.value, "ended_at": now}
        return self._change(batch_id, (BatchPhase.SUBMITTED.value,), **values)

    def record_queue_full(self, batch_id: str, status: "Mapping[str, Any]", *, now: float) -> None:
        """The create call was refused because too much is queued: the batch ended before it began, without a handle."""
        self._change(
            batch_id,
            UNCLEAR,
            phase=BatchPhase.ENDED.value,
            create_at=None,
            handle=dict(status["handle"]),
            status=dict(status),
            provider_state=status["provider_state"],
            ended_at=now,
        )

    def record_cancel_reason(self, batch_id: str, reason: CancelReason) -> None:
        """Say why a batch is to stop, before the provider is asked. The first reason stays."""
        with self.database.write() as connection:
            connection.execute(
                sa.update(batches)
                .where(
                    batches.c.id == batch_id,
                    batches.c.phase == BatchPhase.SUBMITTED.value,
                    batches.c.cancel_reason.is_(None),
                )
                .values(cancel_reason=reason.value)
            )

    def record_cancel(self, batch_id: str, handle: "Mapping[str, Any]", *, next_poll_at: float, now: float) -> None:
        """The provider was asked to stop the batch. `handle`: some providers keep the mark of a cancel in it."""
        self._change(
            batch_id,
            (BatchPhase.SUBMITTED.value,),
            handle=dict(handle),
            cancel_at=now,
            next_poll_at=next_poll_at,
        )

    def in_progress(self, provider: str) -> int:
        """How many batches of the provider's may be under way, whoever bought them."""
        phases = (BatchPhase.UPLOADED.value, BatchPhase.SUBMITTED.value)
        counted = sa.select(sa.func.count()).where(batches.c.provider == provider, batches.c.phase.in_(phases))
        with self.database.read() as connection:
            return int(connection.execute(counted).scalar_one())

    def record_check_failure(self, batch_id: str, error: str, *, next_poll_at: float, poll_interval: float) -> int:
        """Count a status call that failed; returns how many in a row."""
        self._change(
            batch_id,
            (BatchPhase.SUBMITTED.value,),
            failed_checks=batches.c.failed_checks + 1,
            last_error=error,
            next_poll_at=next_poll_at,
            poll_interval=poll_interval,
        )
        return self.batch(batch_id).failed_checks

    def record_collected(self, batch_id: str, outcomes_segment: str, *, now: float) -> bool:
        """Record the outcomes. False for the second of two collectors: the first one's stay."""
        return self._change(
            batch_id,
            (BatchPhase.ENDED.value,),
            phase=BatchPhase.COLLECTED.value,
            outcomes_segment=outcomes_segment,
            collected_at=now,
        )

    def batch(self, batch_id: str) -> BatchRecord:
        """One batch record. Raises LedgerError where there is none."""
        with self.database.read() as connection:
            row = connection.execute(sa.select(batches).where(batches.c.id == batch_id)).mappings().first()
        if row is None:
            raise LedgerError(f"The ledger has no batch record {batch_id}.")
        return _batch(row)

    def batches(self, entry_id: str) -> "list[BatchRecord]":
        """The batches of an entry, by wave and chunk."""
        asked = sa.select(batches).where(batches.c.entry_id == entry_id).order_by(batches.c.wave, batches.c.chunk)
        with self.database.read() as connection:
            return [_batch(row) for row in connection.execute(asked).mappings()]

    def due_batches(self, namespace: str, *, now: float, limit: int) -> "list[BatchRecord]":
        """Submitted batches whose poll is due, the longest waiting first, so that none starves."""
        asked = (
            sa.select(batches)
            .join(entries, entries.c.id == batches.c.entry_id)
            .where(
                entries.c.namespace == namespace,
                batches.c.phase == BatchPhase.SUBMITTED.value,
                batches.c.next_poll_at <= now,
            )
            .order_by(batches.c.next_poll_at)
            .limit(limit)
        )
        with self.database.read() as connection:
            return [_batch(row) for row in connection.execute(asked).mappings()]

    def _change(self, record_id: str, phases: "tuple[str, ...]", **values: Any) -> bool:
        changed = sa.update(batches).where(batches.c.id == record_id, batches.c.phase.in_(phases)).values(**values)
        with self.database.write() as connection:
            return connection.execute(changed).rowcount == 1


def _batch(row: Any) -> BatchRecord:
    values: dict[str, Any] = {**row, "phase": BatchPhase(row["phase"])}
    return BatchRecord(**values)
