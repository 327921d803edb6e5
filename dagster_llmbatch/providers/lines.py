"""JSON lines out of a stream of bytes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

CHUNK_BYTES = 1 << 20


def split_lines(pieces: "Iterable[bytes]") -> "Iterator[bytes]":
    """Lines ended by \\n or \\r\\n, without the ending; blank ones left out; the last may have no ending.

    Splits bytes at the newline byte only: U+2028, U+0085 and their like stand inside JSON strings and end no line.
    """
    rest = b""
    for piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if stripped := line.strip(b"\r\n \t"):
                yield stripped
    if stripped := rest.strip(b"\r\n \t"):
        yield stripped


class JoinedLines:
    """A JSON body that holds a file's lines as one list, read from the file while it is sent.

    Lines hold no newline but their last byte, so that each newline but the file's last becomes the comma between two.
    """

    def __init__(self, path: Path, head: bytes, tail: bytes) -> None:
        self._path, self._head, self._tail = path, head, tail
        self._bytes = path.stat().st_size - len(b"\n")
        self.length = len(head) + self._bytes + len(tail)
        """Bytes, for the content-length."""

    def __iter__(self) -> "Iterator[bytes]":
        yield self._head
        left = self._bytes
        with self._path.open("rb") as lines:
            while piece := lines.read(min(CHUNK_BYTES, left)):
                left -= len(piece)
                yield piece.replace(b"\n", b",")
        yield self._tail
