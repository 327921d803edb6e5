"""Request lines into chunks: closed by count, by encoded bytes and by group, written straight to files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

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


@dataclass
class _Open:
    chunk: Chunk
    file: BinaryIO


def split(
    requests: "Iterable[tuple[str, int, str, bytes]]",
    limits: Limits,
    *,
    max_requests: "int | None",
    path_for: "Callable[[int], Path]",
) -> "Iterator[Chunk | Oversized]":
    """Chunks of (group, row, custom_id, line). Each group keeps one chunk open, so interleaved groups stay whole.

    Args:
        requests: in row order.
        limits: the provider's.
        max_requests: the user's count, up to the provider's limit; None: what is usual at the provider.
        path_for: the file for the chunk of this number.
    """
    most = min(limits.max_requests, max_requests or limits.usual_requests or limits.max_requests)
    open_chunks: dict[str, _Open] = {}
    number = 0
    for group, row, custom_id, line in requests:
        if len(line) > limits.max_bytes:
            yield Oversized(row, len(line))
            continue
        current = open_chunks.get(group)
        if current is not None and (
            len(current.chunk.rows) >= most or current.chunk.bytes + len(line) > limits.max_bytes
        ):
            current.file.close()
            yield open_chunks.pop(group).chunk
            current = None
        if current is None:
            path = path_for(number)
            number += 1
            current = open_chunks[group] = _Open(Chunk(group, path), path.open("wb", WRITE_BYTES))
        chunk = current.chunk
        chunk.rows.append(row)
        chunk.custom_ids.append(custom_id)
        chunk.bytes += len(line)
        current.file.write(line)
    for current in open_chunks.values():
        current.file.close()
        yield current.chunk
