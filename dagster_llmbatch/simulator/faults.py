"""Faults: of HTTP calls, by rule or header, and of rows, by a marker in the prompt or by rule."""

import hashlib
import re
import threading
from dataclasses import dataclass

MARKER = re.compile(r"\[\[sim:([a-z0-9_]+)\]\]")
HEADER = "x-sim-fault"

CALL_FAULTS = ("drop_before", "drop_after", "status_before", "status_after", "delay")
"""Drop the connection before or after the work is done, answer a status before or after, or wait first."""
CALLS = (
    "upload",
    "files",
    "file",
    "delete",
    "content",
    "create",
    "list",
    "status",
    "cancel",
    "realtime",
    "upload_start",
)
"""The calls that can break, at every provider that has them: of files upload, list and read; of batches create, list,
read (status) and cancel; `delete` of either; `content`, the download of results; realtime. Gemini's upload has two calls,
the first of which is `upload_start`."""
ROW_FAULTS = (
    "refuse", "truncate", "empty", "fence", "prose", "wrong_schema", "error_400", "error_429", "error_500", "expire",
    "missing", "duplicate", "stranger", "crlf", "separator", "unreadable",
)  # fmt: skip


@dataclass
class CallFault:
    """What happens to the next `times` calls of one kind."""

    where: str
    """One of CALLS."""
    kind: str
    value: float = 0.0
    """The status code, or the seconds of a delay."""
    times: int = 1


class Faults:
    """The rules in force. Thread-safe: tests add to them while the server runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[CallFault] = []
        self._rows: list[tuple[str, str, float]] = []

    def add(self, where: str, kind: str, value: float = 0.0, *, times: int = 1) -> None:
        """Break the next `times` calls of one kind."""
        if where not in CALLS:
            raise ValueError(f"no call {where!r}; there are {CALLS}")
        _check(kind, value)
        with self._lock:
            self._calls.append(CallFault(where, kind, value, times))

    def add_rows(self, kind: str, *, containing: str = "", fraction: float = 1.0) -> None:
        """Break the rows whose prompt holds a text, or a fraction of them."""
        if kind not in ROW_FAULTS:
            raise ValueError(f"no row fault {kind!r}; there are {ROW_FAULTS}")
        with self._lock:
            self._rows.append((kind, containing, fraction))

    def clear(self) -> None:
        """Nothing is broken any more."""
        with self._lock:
            self._calls.clear()
            self._rows.clear()

    def take(self, where: str, header: "str | None" = None) -> "CallFault | None":
        """The fault of one call, used up by it. Raises ValueError for a header that names none."""
        if header:
            kind, _, value = header.partition(":")
            fault = CallFault(where, kind, float(value or 0))
            _check(kind, fault.value)
            return fault
        with self._lock:
            for fault in self._calls:
                if fault.where == where and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def of_row(self, custom_id: str, prompt: str) -> "str | None":
        """The fault of one row."""
        marker = MARKER.search(prompt)
        if marker is not None and marker.group(1) in ROW_FAULTS:
            return marker.group(1)
        with self._lock:
            rules = list(self._rows)
        for kind, containing, fraction in rules:
            if containing in prompt and _share(custom_id, kind) < fraction:
                return kind
        return None


def _check(kind: str, value: float) -> None:
    if kind not in CALL_FAULTS:
        raise ValueError(f"no fault {kind!r}; there are {CALL_FAULTS}")
    if kind.startswith("status") and not 400 <= value <= 599:
        raise ValueError(f"a fault {kind!r} needs a status from 400 to 599, not {value}")


def _share(custom_id: str, kind: str) -> float:
    """A number from 0 to 1 that is always the same for one row."""
    return (
        int.from_bytes(
            hashlib.blake2b(f"{kind}{custom_id}".encode(errors="surrogatepass"), digest_size=4).digest(), "big"
        )
        / 2**32
    )
