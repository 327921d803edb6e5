"""Files and batches: what the simulator keeps, and how a batch grows older."""

import random
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.simulator.book import Book
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.faults import Faults
from dagster_llmbatch.simulator.rows import prompt_of, row, unrun_line

WINDOW = 86_400
DAY = 86_400
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
    settled: "str | None" = None
    """A terminal status, or a forced one."""
    forced: "str | None" = None
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

    def look(self, batch: StoredBatch) -> str:
        """The batch's status now; work that time has brought about is done here."""
        with self._lock:
            if batch.settled:
                return batch.settled
            if batch.forced:
                return batch.forced
            age = self.clock.now() - batch.created_at
            if batch.cancel_at is not None:
                if self.clock.now() < batch.cancel_at + self.cancel_seconds:
                    return "cancelling"
                return self._finish(batch, "cancelled", self._share(batch, batch.cancel_at - batch.created_at))
            if not batch.total:
                self._validate(batch)
                if batch.settled:
                    return batch.settled
            if age < batch.seconds * 0.1:
                return "validating"
            if age < batch.seconds * 0.95:
                batch.completed = int(batch.total * self._share(batch, age))
                return "in_progress"
            if age < batch.seconds:
                batch.completed = batch.total
                return "finalizing"
            return self._finish(batch, "completed", 1.0)

    def expire(self, batch_id: str, share: float) -> None:
        """End a batch at its window with a share of its rows done."""
        with self._lock:
            batch = self.batches[batch_id]
            self._validate(batch)
            if not batch.settled:
                self._finish(batch, "expired", share)

    def requests(self, batch: StoredBatch) -> "Iterator[tuple[str, dict[str, Any]]]":
        """(custom_id, body) of every line of the input."""
        with self.files[batch.input_file_id].path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    found = msgspec.json.decode(line)
                    yield found["custom_id"], found["body"]

    @staticmethod
    def _share(batch: StoredBatch, age: float) -> float:
        if batch.seconds <= 0:
            return 1.0
        return max(0.0, min(1.0, (age - batch.seconds * 0.1) / (batch.seconds * 0.85)))

    def _validate(self, batch: StoredBatch) -> None:
        error = self._first_error(batch)
        if error is None and self.token_limit is not None:
            queued = sum(b.tokens[0] for b in self.batches.values() if not b.settled)
            if queued > self.token_limit:
                error = {
                    "code": "token_limit_exceeded",
                    "message": f"Enqueued token limit reached for {batch.model}. Limit: {self.token_limit:,} enqueued tokens.",
                    "param": None,
                    "line": None,
                }
        if error is not None:
            batch.settled, batch.ended_at, batch.errors = "failed", self.clock.now(), [error]
            batch.total = batch.completed = batch.failed = 0
            batch.tokens = (0, 0)

    def _first_error(self, batch: StoredBatch) -> "dict[str, Any] | None":
        seen: set[str] = set()
        size = 0
        with self.files[batch.input_file_id].path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    found = msgspec.json.decode(line)
                except msgspec.DecodeError:
                    return _error("invalid_json_line", None, number)
                custom_id, body = found.get("custom_id"), found.get("body") or {}
                if not custom_id:
                    return _error("missing_required_parameter", "custom_id", number)
                if custom_id in seen:
                    return _error("duplicate_custom_id", "custom_id", number)
                if found.get("url") != batch.endpoint:
                    return _error("invalid_url", "url", number)
                if body.get("stream"):
                    return _error("streaming_unsupported", "body.stream", number)
                batch.model = batch.model or body.get("model")
                if body.get("model") != batch.model or not batch.model:
                    return _error("mismatched_model", "body.model", number)
                if batch.model.startswith("no-such-model"):
                    return _error("model_not_found", "body.model", number)
                seen.add(custom_id)
                size += len(line)
        batch.total = len(seen)
        batch.tokens = (size // 4, 0)
        return None if seen else _error("empty_file", "file_id", None)

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

    def to_json(self, batch: StoredBatch) -> "dict[str, Any]":
        """The batch object, as of now."""
        status = self.look(batch)
        created = int(batch.created_at)
        ended = None if batch.ended_at is None else int(batch.ended_at)
        running = status not in ("validating", "failed")
        used = batch.tokens if batch.settled else (0, 0)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": f"{batch.model}-2026-01-01" if running and batch.model else None,
            "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
            "input_file_id": batch.input_file_id,
            "completion_window": "24h",
            "status": status,
            "output_file_id": batch.output_file_id,
            "error_file_id": batch.error_file_id,
            "created_at": created,
            "in_progress_at": created if running else None,
            "expires_at": created + WINDOW,
            "finalizing_at": ended,
            **{
                f"{name}_at": ended if status == name else None
                for name in ("completed", "failed", "expired", "cancelled")
            },
            "cancelling_at": None if batch.cancel_at is None else int(batch.cancel_at),
            "request_counts": {
                "total": batch.total if running else 0,
                "completed": batch.completed if running else 0,
                "failed": batch.failed if running else 0,
            },
            "usage": {
                "input_tokens": used[0],
                "output_tokens": used[1],
                "total_tokens": sum(used),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
            "metadata": batch.metadata,
        }


def _error(code: str, param: "str | None", line: "int | None") -> "dict[str, Any]":
    return {"code": code, "message": f"simulated {code}", "param": param, "line": line}
