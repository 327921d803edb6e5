"""Files and batches: what the simulator keeps, and how a batch grows older."""

import random
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.simulator.book import Book
from dagster_llmbatch.simulator.checks import InputFile, entry
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.faults import Faults
from dagster_llmbatch.simulator.rows import prompt_of, row, unrun_line

WINDOW = 86_400
DAY = 86_400
TERMINAL = ("completed", "failed", "expired", "cancelled")
VALIDATED, RUN = 0.1, 0.95
"""Shares of a batch's seconds after which its input has been read, and all its rows have run."""
Script = Callable[[str, Mapping[str, Any]], "str | None"]
"""(custom_id, body) to the name of a row fault, or None."""


@dataclass
class StoredFile:
    """One file."""

    id: str
    path: Path
    filename: str
    purpose: str
    created_at: float

    def to_json(self) -> "dict[str, Any]":
        """The file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.path.stat().st_size,
            "created_at": int(self.created_at),
            "expires_at": int(self.created_at) + 30 * DAY,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass
class StoredBatch:
    """One batch. Its state follows from the clock until something else settles it."""

    id: str
    endpoint: str
    input_file_id: str
    metadata: "dict[str, str] | None"
    created_at: float
    seconds: float
    total: int = 0
    model: "str | None" = None
    source: "Path | None" = None
    """Its input, once read: deleting the file later does not stop the batch."""
    settled: "str | None" = None
    """A terminal status."""
    forced: "str | None" = None
    """A status set by a test, whatever the clock says."""
    cancel_at: "float | None" = None
    ended_at: "float | None" = None
    errors: "list[dict[str, Any]]" = field(default_factory=list)
    output_file_id: "str | None" = None
    error_file_id: "str | None" = None
    completed: int = 0
    failed: int = 0
    tokens: "tuple[int, int]" = (0, 0)


class Store:
    """All files and batches of one simulator."""

    def __init__(
        self, clock: Clock, faults: Faults, book: Book, *, batch_seconds: float, list_lag: float = 0.0
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.book = book
        self.batch_seconds = batch_seconds
        self.cancel_seconds = 0.0
        self.list_lag = list_lag
        self.token_limit: int | None = None
        self.script: Script | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="llmbatch-simulator-"))
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, StoredBatch] = {}
        self._lock = threading.RLock()

    def new_file(self, filename: str, purpose: str) -> StoredFile:
        """A file to be written to its path."""
        file_id = f"file-{uuid.uuid4().hex[:24]}"
        found = StoredFile(file_id, self.folder / file_id, filename, purpose, self.clock.now())
        self.files[file_id] = found
        return found

    def create(self, input_file_id: str, endpoint: str, metadata: "dict[str, str] | None") -> StoredBatch:
        """Accept a batch. What is wrong with its lines shows later, as at the provider."""
        batch = StoredBatch(
            f"batch_{uuid.uuid4().hex[:32]}", endpoint, input_file_id, metadata, self.clock.now(), self.batch_seconds
        )
        with self._lock:
            self.batches[batch.id] = batch
            self.book.creates.append({"id": batch.id, "metadata": metadata, "input_file_id": input_file_id})
        return batch

    def close(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def look(self, batch: StoredBatch) -> str:
        """The batch's status now; work that time has brought about is done here."""
        with self._lock:
            if batch.settled or batch.forced:
                return batch.settled or str(batch.forced)
            now = self.clock.now()
            if batch.cancel_at is not None:
                if now < batch.cancel_at + self.cancel_seconds:
                    return "cancelling"
                return self._finish(batch, "cancelled", self._share(batch, batch.cancel_at - batch.created_at))
            age = now - batch.created_at
            if age < batch.seconds * VALIDATED:
                return "validating"
            self._validate(batch)
            if batch.settled:
                return batch.settled
            if age >= WINDOW and batch.seconds > WINDOW:
                return self._finish(batch, "expired", self._share(batch, WINDOW))
            if age >= batch.seconds:
                return self._finish(batch, "completed", 1.0)
            batch.completed = int(batch.total * self._share(batch, age))
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

    def requests(self, batch: StoredBatch) -> "Iterator[tuple[str, dict[str, Any]]]":
        """(custom_id, body) of every line of the input."""
        if batch.source is None:
            return  # cancelled before it was read
        with batch.source.open("rb") as lines:
            for line in lines:
                if line.strip():
                    found = msgspec.json.decode(line)
                    yield found["custom_id"], found["body"]

    @staticmethod
    def _share(batch: StoredBatch, age: float) -> float:
        if batch.seconds <= 0:
            return 1.0
        return max(0.0, min(1.0, (age / batch.seconds - VALIDATED) / (RUN - VALIDATED)))

    def _validate(self, batch: StoredBatch) -> None:
        """Read the input, once, and fail the batch at its first bad line or over a full queue."""
        if batch.source is not None:
            return
        file = self.files.get(batch.input_file_id)
        if file is None or file.purpose != "batch":
            self._fail(batch, entry("invalid_request", "file_id", None))
            return
        found = InputFile(file.path, batch.endpoint)
        if found.error is not None:
            self._fail(batch, found.error)
            return
        if self.token_limit is not None and self._queued_before(batch) + found.tokens > self.token_limit:
            words = f"Enqueued token limit reached for {found.model}. Limit: {self.token_limit:,} enqueued tokens."
            self._fail(batch, entry("token_limit_exceeded", None, None, words))
            return
        batch.source, batch.model, batch.total = file.path, found.model, found.total
        batch.tokens = (found.tokens, 0)

    def _queued_before(self, batch: StoredBatch) -> int:
        """Tokens of the batches created earlier that have not ended."""
        queued = 0
        for other in self.batches.values():
            if other is batch:
                break
            queued += 0 if self.look(other) in TERMINAL else other.tokens[0]
        return queued

    def _fail(self, batch: StoredBatch, error: "dict[str, Any]") -> None:
        batch.settled, batch.ended_at, batch.errors = "failed", self.clock.now(), [error]

    def _finish(self, batch: StoredBatch, status: str, share: float) -> str:
        """Run a share of the rows, in an order of the provider's own, and write the result files."""
        answers: list[bytes] = []
        problems: list[bytes] = []
        done = completed = used_in = used_out = 0
        now = self.clock.now()
        for custom_id, body in self.requests(batch):
            if done >= int(batch.total * share):
                code = {"expired": "batch_expired", "cancelled": "batch_cancelled"}[status]
                problems.append(unrun_line(custom_id, code))
                continue
            done += 1
            fault = self.script(custom_id, body) if self.script else None
            made = row(custom_id, body, batch.endpoint, fault or self.faults.of_row(custom_id, prompt_of(body)), now)
            (problems if made.error else answers).extend(made.lines)
            completed += not made.error
            if made.paid:
                used_in, used_out = used_in + made.usage[0], used_out + made.usage[1]
                self.book.pay(custom_id, made.usage)
        random.Random(batch.id).shuffle(answers)
        random.Random(batch.id).shuffle(problems)
        batch.output_file_id = self._result(batch, "output", answers)
        batch.error_file_id = self._result(batch, "error", problems)
        batch.completed, batch.failed = completed, batch.total - completed
        batch.tokens = (used_in, used_out)
        batch.settled, batch.ended_at = status, now
        return status

    def _result(self, batch: StoredBatch, kind: str, lines: "list[bytes]") -> "str | None":
        if not lines:
            return None
        file = self.new_file(f"{batch.id}_{kind}.jsonl", "batch_output")
        file.path.write_bytes(b"\n".join(lines) + b"\n")
        return file.id

    def to_json(self, batch: StoredBatch, status: "str | None" = None) -> "dict[str, Any]":
        """The batch object, as of now; with a status, as of the call that brought it about."""
        status = status or self.look(batch)
        read = batch.source is not None
        used = batch.tokens if batch.settled else (0, 0)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": f"{batch.model}-2026-01-01" if read else None,
            "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
            "input_file_id": batch.input_file_id,
            "completion_window": "24h",
            "status": status,
            "output_file_id": batch.output_file_id,
            "error_file_id": batch.error_file_id,
            **self._times(batch, status),
            "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
            "usage": {
                "input_tokens": used[0],
                "output_tokens": used[1],
                "total_tokens": sum(used),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
            "metadata": batch.metadata,
        }

    def _times(self, batch: StoredBatch, status: str) -> "dict[str, int | None]":
        """All the `..._at` fields."""
        created = int(batch.created_at)
        ended = None if batch.ended_at is None else int(batch.ended_at)
        # Between its states a batch is not looked at; an end that was forced may come before they are due.
        latest = int(self.clock.now()) if ended is None else ended
        begun = min(int(batch.created_at + batch.seconds * VALIDATED), latest) if batch.source is not None else None
        run = min(int(batch.created_at + batch.seconds * RUN), latest)
        return {
            "created_at": created,
            "in_progress_at": begun,
            "expires_at": created + WINDOW,
            "finalizing_at": run if status == "finalizing" or (ended and begun is not None) else None,
            **{f"{name}_at": ended if status == name else None for name in TERMINAL},
            "cancelling_at": None if batch.cancel_at is None else int(batch.cancel_at),
        }
