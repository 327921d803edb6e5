"""JSON lines out of a stream of bytes."""

from collections.abc import Iterable, Iterator


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
