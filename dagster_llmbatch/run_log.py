"""Our own log records in the log of the run, or the tick, that does the work: Dagster shows only what goes through its own.

The line and the providers know nothing of Dagster and write to module loggers of this package.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PACKAGE = logging.getLogger("dagster_llmbatch")


@contextmanager
def forwarded_to(log: logging.Logger) -> "Iterator[None]":
    """Write what this package logs in this block, by this thread, to `log` too: to the innermost block's only.

    Levels stay the user's: WARNING and above by default, INFO where `dagster_llmbatch` is set to it. Tracebacks stay in
    the process's own log, since they quote whatever they pass through.
    """
    with _forwarder.in_use():
        before = _log.set(log)
        try:
            yield
        finally:
            _log.reset(before)


class _Forwarder(logging.Handler):
    """The one handler of a process, attached while any block is open; who receives a record is said by `_log`."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = 0
        self._counting = threading.Lock()

    @contextmanager
    def in_use(self) -> "Iterator[None]":
        """Attached from the first block that opens to the last one that closes."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self._blocks += change
            if self._blocks:
                PACKAGE.addHandler(self)
            else:
                PACKAGE.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        log = _log.get()
        try:
            if log is not None and not _reaches(record, log):
                log.log(record.levelno, "%s", record.getMessage())
        except Exception:
            self.handleError(record)


def _reaches(record: logging.LogRecord, log: logging.Logger) -> bool:
    """Whether a handler of `log` gets the record anyway: Dagster puts them on loggers named in `python_logs`."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(handler in log.handlers for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


_log: "ContextVar[logging.Logger | None]" = ContextVar("dagster_llmbatch_log", default=None)
_forwarder = _Forwarder()
