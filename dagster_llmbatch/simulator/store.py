"""What the simulator keeps, and how a batch grows older. Knows no provider."""

import random
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_llmbatch.simulator.batches import RUN, TERMINAL, VALIDATED, Asked, BatchRules, Row, StoredBatch
from dagster_llmbatch.simulator.book import Book
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.execution import outcome_of
from dagster_llmbatch.simulator.faults import Faults

Script = Callable[[str, Mapping[str, Any]], "str | None"]
"""(custom_id, body) to the name of a row fault, or None."""
SETTINGS = (
    "batch_seconds",
    "cancel_seconds",
    "list_lag",
    "read_lag",
    "token_limit",
    "out_of_credit",
    "gemini_cancels_all",
)
"""What a test may set, by attribute or over HTTP."""


@dataclass
class StoredFile:
    """One file."""

    id: str
    provider: str
    path: Path
    filename: str
    purpose: str
    created_at: float


class Store:
    """All files and batches of one simulator, and its settings.

    Attributes:
        batch_seconds: from a batch's create to its end, for batches created from now on.
        cancel_seconds: from a cancel to its effect.
        list_lag: seconds until a new batch is in lists.
        read_lag: seconds until a new batch can be read by its id.
        token_limit: the most tokens that may be queued at one provider; None: any number.
        out_of_credit: creates and realtime calls are refused for want of money.
        gemini_cancels_all: Gemini ends its batches as succeeded, with all rows cancelled that nobody cancelled.
        script: names a fault for each row; goes before the rules of `faults`.
    """

    def __init__(
        self, clock: Clock, faults: Faults, book: Book, *, batch_seconds: float, list_lag: float = 0.0
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.book = book
        self.batch_seconds = batch_seconds
        self.cancel_seconds = 0.0
        self.list_lag = list_lag
        self.read_lag = 0.0
        self.token_limit: int | None = None
        self.out_of_credit = False
        self.gemini_cancels_all = False
        self.script: Script | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="llmbatch-simulator-"))
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, StoredBatch] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_file(self, provider: str, file_id: str, filename: str, purpose: str) -> StoredFile:
        """A file to be written to its path."""
        path = self.folder / file_id.replace("/", "_")
        found = StoredFile(file_id, provider, path, filename, purpose, self.clock.now())
        self.files[file_id] = found
        return found

    def file(self, provider: str, file_id: str) -> "StoredFile | None":
        """A file of one provider."""
        found = self.files.get(file_id)
        return found if found is not None and found.provider == provider else None

    def files_of(self, provider: str) -> "list[StoredFile]":
        """All files of one provider, newest first."""
        return [file for file in reversed(list(self.files.values())) if file.provider == provider]

    def create(
        self,
        rules: BatchRules,
        batch_id: str,
        facts: "dict[str, Any]",
        noted: "dict[str, Any]",
        lines: "Sequence[bytes] | None" = None,
    ) -> StoredBatch:
        """Accept a batch.

        Args:
            noted: what the book says of this create call.
            lines: its requests, one a line; None: they are in a file that is read later.
        """
        batch = StoredBatch(batch_id, rules, self.clock.now(), self.batch_seconds, facts)
        if lines is not None:
            batch.total, batch.queued = len(lines), sum(map(len, lines)) // 4
            batch.source = self.write(f"{batch_id}-requests", lines)
        with self._lock:
            self.batches[batch.id] = batch
            self.book.creates.append({"provider": rules.provider, "id": batch.id, **noted})
        return batch

    def write(self, name: str, lines: "Iterable[bytes]") -> Path:
        """A new file of some lines, in the store's own folder."""
        path = self.folder / name.replace("/", "_")
        with path.open("wb") as target:
            target.writelines(line + b"\n" for line in lines)
        return path

    def batch(self, provider: str, batch_id: str) -> "StoredBatch | None":
        """A batch of one provider that can be read by its id by now."""
        found = self.batches.get(batch_id)
        if found is None or found.rules.provider != provider:
            return None
        return found if found.created_at <= self.clock.now() - self.read_lag else None

    def listed(self, provider: str) -> "list[StoredBatch]":
        """The batches of one provider that are in lists by now, newest first."""
        visible = self.clock.now() - self.list_lag
        found = reversed(list(self.batches.values()))
        return [batch for batch in found if batch.rules.provider == provider and batch.created_at <= visible]

    def look(self, batch: StoredBatch) -> str:
        """The batch's status now; work that time has brought about is done here."""
        with self._lock:
            if batch.settled or batch.forced:
                return batch.settled or str(batch.forced)
            now, window = self.clock.now(), batch.rules.window
            if batch.cancel_at is not None:
                if now < batch.cancel_at + self.cancel_seconds:
                    return "cancelling"
                return self._finish(batch, "cancelled", batch.share_at(batch.cancel_at))
            age = now - batch.created_at
            if age < min(batch.seconds * VALIDATED, window):
                return "validating"
            self._validate(batch)
            if batch.settled:
                return batch.settled
            if age >= window and batch.seconds > window:
                return self._finish(batch, "expired", batch.share_at(batch.created_at + window))
            if age >= batch.seconds:
                return self._finish(batch, "completed", 1.0)
            batch.done = int(batch.total * batch.share_at(now))
            return "in_progress" if age < batch.seconds * RUN else "finalizing"

    def cancel(self, batch: StoredBatch) -> str:
        """Ask a batch to stop; its status right after: one that has ended stays as it is."""
        with self._lock:
            status = self.look(batch)
            if status in TERMINAL:
                return status
            if batch.cancel_at is None:
                batch.cancel_at = self.clock.now()
            return "cancelling"

    def expire(self, batch_id: str, share: float) -> None:
        """End a batch at its window with a share of its rows done; one that has ended stays as it is."""
        with self._lock:
            batch = self.batches[batch_id]
            if not batch.settled:
                self._validate(batch)
            if not batch.settled:
                self._finish(batch, "expired", share)

    def run_out(self, batch: StoredBatch) -> None:
        """Run a batch to its end and forget it: deleting it did not stop the work."""
        with self._lock:
            if self.look(batch) not in TERMINAL:
                self._validate(batch)
                self._finish(batch, "completed", 1.0)
            del self.batches[batch.id]

    def queue_has_room(self, provider: str, tokens: int, before: "StoredBatch | None" = None) -> bool:
        """Whether so many tokens fit beside those of the batches created earlier that have not ended."""
        if self.token_limit is None:
            return True
        queued = 0
        for other in list(self.batches.values()):
            if other is before:
                break
            if other.rules.provider == provider and self.look(other) not in TERMINAL:
                queued += other.queued
        return queued + tokens <= self.token_limit

    def _validate(self, batch: StoredBatch) -> None:
        """Have the input read, once, and fail the batch for what is wrong with it."""
        if batch.validated:
            return
        batch.validated = True
        batch.error = batch.rules.read(batch)
        if batch.error is not None:
            batch.settled, batch.ended_at = "failed", self.clock.now()

    def _finish(self, batch: StoredBatch, status: str, share: float) -> str:
        """Run a share of the rows and have the result lines kept."""
        rows: list[Row] = []
        most = int(batch.total * batch.rules.share_run(batch, status, share))
        for position, asked in enumerate(batch.rules.requests(batch)):
            if position < most:
                rows += self._run(batch, asked)
            else:
                batch.tally[status] += 1
                rows.append(Row(batch.rules.unrun(batch, asked, status), succeeded=False))
        if batch.rules.shuffles:
            random.Random(batch.id).shuffle(rows)
        batch.settled, batch.ended_at = status, self.clock.now()
        batch.rules.publish(batch, rows)
        return status

    def _run(self, batch: StoredBatch, asked: Asked) -> "list[Row]":
        """Run one row and book it; its result lines."""
        rules, form = batch.rules, batch.rules.format_of(batch)
        fault = self.script(asked.custom_id, asked.body) if self.script else None
        fault = fault or self.faults.of_row(asked.custom_id, form.prompt_of(asked.body))
        if fault == "expire":
            batch.tally["expired"] += 1
            return [Row(rules.unrun(batch, asked, "expired"), succeeded=False)]
        outcome = outcome_of(form, asked.body, fault, self.clock.now(), in_batch=True)
        row = Row(rules.row(batch, asked, outcome), succeeded=outcome.refusal is None)
        batch.tally["succeeded" if row.succeeded else "errored"] += 1
        if not row.succeeded:
            return [row]
        batch.tokens = (batch.tokens[0] + outcome.tokens[0], batch.tokens[1] + outcome.tokens[1])
        self.book.pay(asked.custom_id, outcome.tokens)
        if fault == "missing":
            return []
        if fault == "stranger":
            return [row, Row(rules.row(batch, asked.stranger(), outcome), succeeded=True)]
        if fault == "unreadable":
            return [Row(rules.unreadable(batch, asked, row.line), succeeded=True)]
        if fault == "crlf":
            return [Row(row.line + b"\r", succeeded=True)]
        return [row, row] if fault == "duplicate" else [row]


def new_id(prefix: str, digits: int = 32) -> str:
    """An id nobody has had."""
    return prefix + uuid.uuid4().hex[:digits]
