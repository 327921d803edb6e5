"""Entries: generations of partitions, their leases, and the runs that work on them."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from dagster_llmbatch.errors import LeaseLostError, LedgerError
from dagster_llmbatch.ledger.database import Database
from dagster_llmbatch.ledger.records import Entry, EntryKey, EntryState
from dagster_llmbatch.ledger.tables import entries, runs

GENERATION = ["namespace", "asset_key", "partition_key", "generation"]


class Entries:
    """The part of the ledger that says whose turn it is."""

    database: Database

    def latest_entry(self, key: EntryKey) -> "Entry | None":
        """The newest generation of a partition."""
        with self.database.read() as connection:
            return self._latest(connection, key)

    def entry(self, entry_id: str) -> Entry:
        """One entry. Raises LedgerError where there is none."""
        with self.database.read() as connection:
            row = connection.execute(sa.select(entries).where(entries.c.id == entry_id)).mappings().first()
        if row is None:
            raise LedgerError(f"The ledger has no entry {entry_id}.")
        return _entry(row)

    def published_entry(self, key: EntryKey) -> "Entry | None":
        """The newest published generation of a partition."""
        with self.database.read() as connection:
            return self._latest(connection, key, entries.c.state == EntryState.PUBLISHED.value)

    def pending_entries(self, namespace: str) -> "list[Entry]":
        """Every generation that is not published yet, oldest first."""
        asked = (
            sa.select(entries)
            .where(entries.c.namespace == namespace, entries.c.state == EntryState.PENDING.value)
            .order_by(entries.c.created_at)
        )
        with self.database.read() as connection:
            return [_entry(row) for row in connection.execute(asked).mappings()]

    def create_entry(
        self,
        key: EntryKey,
        *,
        generation: int,
        plan_digest: str,
        plan_segment: str,
        row_count: int,
        settings: "Mapping[str, Any]",
        predecessor_id: "str | None",
        now: float,
    ) -> "Entry | None":
        """A new generation; None where another process created it first."""
        values = {
            "id": uuid.uuid4().hex,
            "namespace": key.namespace,
            "asset_key": key.asset_key,
            "partition_key": key.partition_key,
            "generation": generation,
            "state": EntryState.PENDING.value,
            "plan_digest": plan_digest,
            "plan_segment": plan_segment,
            "row_count": row_count,
            "settings": dict(settings),
            "predecessor_id": predecessor_id,
            "wave": 0,
            "fence": 0,
            "created_at": now,
        }
        once = self.database.insert(entries).values(values).on_conflict_do_nothing(index_elements=GENERATION)
        with self.database.write() as connection:
            if connection.execute(once).rowcount != 1:
                return None
        return self.entry(values["id"])

    def note_run(self, entry_id: str, run_id: str, *, now: float) -> None:
        """Remember that a run works on an entry. Idempotent."""
        with self.database.write() as connection:
            values = {"entry_id": entry_id, "run_id": run_id, "noted_at": now}
            connection.execute(self.database.insert(runs).values(values).on_conflict_do_nothing())

    def knows_run(self, entry_id: str, run_ids: "Iterable[str]") -> bool:
        """Whether one of the runs works or worked on the entry."""
        asked = sa.select(runs.c.run_id).where(runs.c.entry_id == entry_id, runs.c.run_id.in_(list(run_ids)))
        with self.database.read() as connection:
            return connection.execute(asked).first() is not None

    def entry_of_run(self, run_ids: "Iterable[str]", key: EntryKey) -> "Entry | None":
        """The newest generation of a partition that one of the runs works or worked on."""
        asked = sa.select(runs.c.entry_id).where(runs.c.run_id.in_(list(run_ids)))
        with self.database.read() as connection:
            return self._latest(connection, key, entries.c.id.in_(asked))

    def acquire(self, entry_id: str, owner: str, *, now: float, ttl: float) -> "int | None":
        """Become the entry's owner for `ttl` seconds: a fencing token, or None while another owner's lease lives."""
        free = sa.or_(entries.c.owner.is_(None), entries.c.owner == owner, entries.c.lease_until <= now)
        changed = (
            sa.update(entries)
            .where(entries.c.id == entry_id, free)
            .values(owner=owner, lease_until=now + ttl, fence=entries.c.fence + 1)
        )
        with self.database.write() as connection:
            if connection.execute(changed).rowcount != 1:
                return None
            return connection.execute(sa.select(entries.c.fence).where(entries.c.id == entry_id)).scalar_one()

    def renew(self, entry_id: str, owner: str, fence: int, *, now: float, ttl: float) -> bool:
        """Extend the lease; False where another run took over. A lease that ran out unnoticed is taken up again."""
        changed = sa.update(entries).where(*held(entry_id, owner, fence)).values(lease_until=now + ttl)
        with self.database.write() as connection:
            return connection.execute(changed).rowcount == 1

    def release(self, entry_id: str, owner: str, fence: int) -> None:
        """Let the next run work on the entry at once."""
        changed = sa.update(entries).where(*held(entry_id, owner, fence)).values(owner=None, lease_until=None)
        with self.database.write() as connection:
            connection.execute(changed)

    def set_wave(self, entry_id: str, owner: str, fence: int, wave: int) -> None:
        """Begin a wave. Raises LeaseLostError for who is not the owner."""
        changed = sa.update(entries).where(*held(entry_id, owner, fence)).values(wave=wave)
        with self.database.write() as connection:
            if connection.execute(changed).rowcount != 1:
                raise lease_lost(entry_id, owner)

    def publish(self, entry_id: str, *, results_segment: str, summary: "Mapping[str, Any]", now: float) -> bool:
        """Store the verdict. False where somebody else settled the entry: theirs stays."""
        return self._settle(
            entry_id,
            state=EntryState.PUBLISHED.value,
            results_segment=results_segment,
            summary=dict(summary),
            published_at=now,
        )

    def fail(self, entry_id: str, reason: str) -> bool:
        """Give the entry up, with the reason."""
        return self._settle(entry_id, state=EntryState.FAILED.value, failure=reason)

    def supersede(self, entry_id: str) -> bool:
        """A newer generation takes over what the entry paid for."""
        return self._settle(entry_id, state=EntryState.SUPERSEDED.value)

    def _settle(self, entry_id: str, **values: Any) -> bool:
        changed = (
            sa.update(entries)
            .where(entries.c.id == entry_id, entries.c.state == EntryState.PENDING.value)
            .values(**values)
        )
        with self.database.write() as connection:
            return connection.execute(changed).rowcount == 1

    @staticmethod
    def _latest(connection: sa.Connection, key: EntryKey, *conditions: Any) -> "Entry | None":
        asked = (
            sa.select(entries)
            .where(
                entries.c.namespace == key.namespace,
                entries.c.asset_key == key.asset_key,
                entries.c.partition_key == key.partition_key,
                *conditions,
            )
            .order_by(entries.c.generation.desc())
            .limit(1)
        )
        row = connection.execute(asked).mappings().first()
        return None if row is None else _entry(row)


def lease_lost(entry_id: str, owner: str) -> LeaseLostError:
    """The error of a run that is not the owner any more."""
    return LeaseLostError(
        f"Run {owner} was silent too long and another run took ledger entry {entry_id} over. This run buys nothing more; "
        "the other one goes on."
    )


def held(entry_id: str, owner: str, fence: int) -> "list[Any]":
    """The condition that a run owns an entry with this fencing token."""
    return [entries.c.id == entry_id, entries.c.owner == owner, entries.c.fence == fence]


def _entry(row: Any) -> Entry:
    values: dict[str, Any] = {**row, "state": EntryState(row["state"])}
    key = EntryKey(values.pop("namespace"), values.pop("asset_key"), values.pop("partition_key"))
    return Entry(key=key, **values)
