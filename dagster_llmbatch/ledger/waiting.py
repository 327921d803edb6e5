"""Runs that ended and left a partition to be continued, and small notes by name."""

import sqlalchemy as sa

from dagster_llmbatch.ledger.database import Database
from dagster_llmbatch.ledger.records import EntryKey, WaitingRun
from dagster_llmbatch.ledger.tables import entries, notes, waiting


class WaitingRuns:
    """The part of the ledger that knows who is to be woken."""

    database: Database

    def wait(
        self, entry_id: str, run_id: str, *, now: float, not_before: "float | None" = None, reason: "str | None" = None
    ) -> None:
        """A run leaves a partition to be continued, not before a time if that is given. Idempotent."""
        with self.database.write() as connection:
            values = {"run_id": run_id, "entry_id": entry_id, "since": now, "not_before": not_before, "reason": reason}
            connection.execute(self.database.insert(waiting).values(values).on_conflict_do_nothing())

    def set_continuation(self, run_id: str, continuation_id: str) -> None:
        """Record the run that will continue all waits of a run."""
        with self.database.write() as connection:
            connection.execute(
                sa.update(waiting)
                .where(waiting.c.run_id == run_id)
                .values(continuation_id=continuation_id, woken_at=None)
            )

    def waiting_runs(self, namespace: str) -> "list[WaitingRun]":
        """Every wait, the oldest first."""
        return self._waits(entries.c.namespace == namespace)

    def waits_of_run(self, run_id: str) -> "list[WaitingRun]":
        """The waits that a run left."""
        return self._waits(waiting.c.run_id == run_id)

    def waits_of_continuation(self, continuation_id: str) -> "list[WaitingRun]":
        """The waits that a run continues."""
        return self._waits(waiting.c.continuation_id == continuation_id)

    def mark_woken(self, run_id: str, *, now: float) -> None:
        """The continuation of a run was put into the queue."""
        with self.database.write() as connection:
            connection.execute(sa.update(waiting).where(waiting.c.run_id == run_id).values(woken_at=now))

    def stop_waiting(self, run_id: str, entry_id: "str | None" = None) -> None:
        """Nobody waits for this run's partition (or for any of its partitions) any more."""
        condition = waiting.c.run_id == run_id
        if entry_id is not None:
            condition = sa.and_(condition, waiting.c.entry_id == entry_id)
        with self.database.write() as connection:
            connection.execute(sa.delete(waiting).where(condition))

    def note(self, name: str) -> "str | None":
        """A note's text."""
        with self.database.read() as connection:
            return connection.execute(sa.select(notes.c.value).where(notes.c.name == name)).scalar()

    def set_note(self, name: str, value: str) -> None:
        """Write or overwrite a note."""
        with self.database.write() as connection:
            written = self.database.insert(notes).values(name=name, value=value)
            connection.execute(written.on_conflict_do_update(index_elements=["name"], set_={"value": value}))

    def _waits(self, condition: "sa.ColumnElement[bool]") -> "list[WaitingRun]":
        asked = (
            sa.select(waiting, entries.c.namespace, entries.c.asset_key, entries.c.partition_key)
            .join(entries, entries.c.id == waiting.c.entry_id)
            .where(condition)
            .order_by(waiting.c.since, waiting.c.run_id, waiting.c.entry_id)
        )
        with self.database.read() as connection:
            rows = connection.execute(asked).mappings().all()
        return [
            WaitingRun(
                run_id=row["run_id"],
                entry_id=row["entry_id"],
                key=EntryKey(row["namespace"], row["asset_key"], row["partition_key"]),
                continuation_id=row["continuation_id"],
                since=row["since"],
                woken_at=row["woken_at"],
                not_before=row["not_before"],
                reason=row["reason"],
            )
            for row in rows
        ]
