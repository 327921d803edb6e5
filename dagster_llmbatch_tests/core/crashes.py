"""A run that is killed with kill -9 at a step of the line, and the run after it, counted at the simulator.

Shared by the tests and by bench/crash_matrix.py.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dagster_llmbatch.core.advance import Published
from dagster_llmbatch.errors import LLMBatchError
from dagster_llmbatch.ledger.segments import SegmentWriter
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import Shop, table

ROWS = 6
HELD = 1.0
"""Seconds the simulator takes over a call in which the run is killed."""
WITHIN = 0.3
"""Seconds into that call at which it is."""

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["dagster_llmbatch_tests.core.crashes"])

_HELD_CALLS = {"during upload": "upload", "during create": "create", "during poll": "status"}
"""Calls in which the run is killed while the simulator works on them."""

Ended = Literal["complete", "stopped", "wrong"]


@dataclass(frozen=True)
class Cell:
    """What came of one crash."""

    provider: str
    step: str
    killed: bool
    ended: Ended
    """complete: every row has its answer. stopped: nothing more was bought, and a person has to look. wrong: neither."""
    paid: int
    """Requests the simulator ran."""

    @property
    def paid_twice(self) -> int:
        """Requests beyond one a row."""
        return max(0, self.paid - ROWS)


def crash(provider: str, step: str, folder: Path, url: "str | None" = None, *, lists: bool = True) -> Cell:
    """Kill a run at a step and have another run finish the partition. `lists`: whether the provider's list calls work."""
    with SimulatorServer() as simulator:
        if step in _HELD_CALLS:
            call = "upload_start" if (provider, step) == ("gemini", "during upload") else _HELD_CALLS[step]
            simulator.faults.add(call, "delay", HELD)
        process = processes.Process(target=_run, args=(provider, simulator.addresses[provider], str(folder), url, step))
        process.start()
        process.join(60)
        if step in _HELD_CALLS:
            time.sleep(HELD)  # what the server was doing it does to the end, whoever asked for it
        if not lists:
            simulator.faults.add("list", "status_before", 403, times=10_000)
            simulator.faults.add("files", "status_before", 403, times=10_000)
        ended = _finish(provider, simulator, folder, url)
        return Cell(provider, step, process.exitcode == -signal.SIGKILL, ended, simulator.book.requests)


class _Remote:
    """The simulator as another process sees it: an address and real time."""

    def __init__(self, provider: str, address: str) -> None:
        self.addresses = {provider: address}
        self.clock = Clock()


def _run(provider: str, address: str, folder: str, url: "str | None", step: str) -> None:
    """The run that dies. Its lease is not released, as after any kill -9."""
    remote: Any = _Remote(provider, address)
    shop = Shop(remote, Path(folder), url, provider=provider, look_again=(0.0, 0.2), poll_first=0.2)
    arm(shop, step)
    entry, _ = shop.open("r1")
    while not isinstance(shop.advance(entry, "r1"), Published):
        time.sleep(0.1)


def die() -> None:
    """kill -9: no handler runs, nothing is released."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(shop: Shop, step: str) -> None:
    """Have the process die at a step."""
    part, name, how = _ARMED[step]
    owner = {"ledger": shop.ledger, "provider": shop.provider, "segment": SegmentWriter}[part]
    setattr(owner, name, how(getattr(owner, name)))


def _before(_real: "Callable[..., Any]") -> "Callable[..., Any]":
    return lambda *_args, **_kwargs: die()


def _after(real: "Callable[..., Any]") -> "Callable[..., Any]":
    def dying(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        die()

    return dying


def _during(real: "Callable[..., Any]") -> "Callable[..., Any]":
    def dying(*args: Any, **kwargs: Any) -> Any:
        threading.Timer(WITHIN, die).start()
        return real(*args, **kwargs)

    return dying


def _half_read(real: "Callable[..., Any]") -> "Callable[..., Any]":
    def dying(*args: Any, **kwargs: Any) -> "Iterator[Any]":
        for number, outcome in enumerate(real(*args, **kwargs)):
            yield outcome
            if number == ROWS // 2:
                die()

    return dying


def _half_written(real: "Callable[..., Any]") -> "Callable[..., Any]":
    def dying(writer: SegmentWriter, data: Any) -> None:
        real(writer, data)
        if "counted" in data.schema.names:  # outcomes: on disk in part, and under no name yet
            die()

    return dying


_ARMED: "dict[str, tuple[str, str, Callable[[Callable[..., Any]], Callable[..., Any]]]]" = {
    "before intent": ("ledger", "record_intent", _before),
    "after intent": ("ledger", "record_intent", _after),
    "during upload": ("provider", "upload", _during),
    "after upload": ("provider", "upload", _after),
    "before create": ("ledger", "record_upload", _after),
    "during create": ("provider", "create", _during),
    "after create": ("provider", "create", _after),
    "after handle": ("ledger", "record_handle", _after),
    "during poll": ("provider", "status", _during),
    "during download": ("provider", "outcomes", _half_read),
    "in a segment": ("segment", "write", _half_written),
    "before collected": ("ledger", "record_collected", _before),
    "after collected": ("ledger", "record_collected", _after),
    "before publish": ("ledger", "publish", _before),
    "after publish": ("ledger", "publish", _after),
}
STEPS = tuple(_ARMED)
"""The steps of the line. Where requests travel in the create call, "during upload" is a moment soon after."""


def _finish(provider: str, simulator: SimulatorServer, folder: Path, url: "str | None") -> Ended:
    shop = Shop(simulator, folder, url, provider=provider)
    try:
        simulator.clock.advance(1000)  # the dead run's lease runs out
        entry, _ = shop.open("r2", lineage=("r1",))
        published = shop.finish(entry, "r2")
    except LLMBatchError:
        return "stopped"
    finally:
        shop.close()
    found = shop.results(published)
    whole = found.column("id").to_pylist() == table(ROWS).column("id").to_pylist()
    return "complete" if whole and set(found.column("llm_status").to_pylist()) == {"succeeded"} else "wrong"
