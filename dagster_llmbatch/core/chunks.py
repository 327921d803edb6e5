"""Request lines into chunks: closed by count, by encoded bytes and by group, written straight to files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.ledger.records import BatchRecord
from dagster_llmbatch.providers.contract import Limits

WRITE_BYTES = 1 << 20
"""Bytes of lines gathered for one write to disk."""


@dataclass
class Chunk:
    """The requests of one provider batch, in the order sent."""

    group: str
    path: Path
    """The file of request lines."""
    rows: "list[int]" = field(default_factory=list)
    custom_ids: "list[str]" = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True)
class Oversized:
    """A request that no batch can hold, however few others are in it."""

    row: int
    bytes: int


class ChunkSize:
    """How many requests the next chunk may hold: fewer after a full queue, growing again with every accepted batch."""

    def __init__(self, most: int, start: "int | None" = None) -> None:
        self._most = most
        self.requests = most if start is None else max(1, min(start, most))

    def grow(self) -> None:
        """A batch was accepted: twice as many, up to the most."""
        self.requests = min(2 * self.requests, self._most)

    @classmethod
    def after(cls, batches: "Sequence[BatchRecord]", policy: Policy, limits: Limits) -> "ChunkSize":
        """The size that the history of a partition's batches asks for.

        A queue that was full while nothing else of the partition was out may be too short for the batch alone: half of that.
        While others are out, there will be room once they end.
        """
        usual = policy.max_requests_per_batch or limits.usual_requests or limits.max_requests
        most = min(limits.max_requests, usual)
        newest = max(batches, key=lambda b: b.intent_at, default=None)
        if newest is None or not was_queue_full(newest):
            return cls(most)
        # the first of its wave: those after it may be the small rest, or larger on the strength of the first
        refused = min((b.intent_at, b.request_count) for b in batches if was_queue_full(b) and b.wave == newest.wave)[1]
        taken = [b for b in batches if not was_queue_full(b)]
        alone = all(b.collected_at is not None and b.collected_at <= newest.intent_at for b in taken)
        return cls(most, refused // 2 if alone else refused)


def was_queue_full(batch: BatchRecord) -> bool:
    """Whether a batch failed only because too much was queued at the provider."""
    return bool(batch.status and batch.status.get("queue_full"))


@dataclass
class _Open:
    chunk: Chunk
    file: BinaryIO
    most: int


def split(
    requests: "Iterable[tuple[str, int, str, bytes]]",
    limits: Limits,
    *,
    size: ChunkSize,
    path_for: "Callable[[int], Path]",
) -> "Iterator[Chunk | Oversized]":
    """Chunks of (group, row, custom_id, line). Each group keeps one chunk open, so interleaved groups stay whole.

    Args:
        requests: in row order.
        limits: the provider's.
        size: the count of requests at which a chunk is closed, looked at when it is begun.
        path_for: the file for the chunk of this number.
    """
    open_chunks: dict[str, _Open] = {}
    number = 0
    for group, row, custom_id, line in requests:
        if len(line) > limits.max_bytes:
            yield Oversized(row, len(line))
            continue
        current = open_chunks.get(group)
        if current is not None and (
            len(current.chunk.rows) >= current.most or current.chunk.bytes + len(line) > limits.max_bytes
        ):
            current.file.close()
            yield open_chunks.pop(group).chunk
            current = None
        if current is None:
            path = path_for(number)
            number += 1
            current = open_chunks[group] = _Open(Chunk(group, path), path.open("wb", WRITE_BYTES), size.requests)
        chunk = current.chunk
        chunk.rows.append(row)
        chunk.custom_ids.append(custom_id)
        chunk.bytes += len(line)
        current.file.write(line)
    for current in open_chunks.values():
        current.file.close()
        yield current.chunk
