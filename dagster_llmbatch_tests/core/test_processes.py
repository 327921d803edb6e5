"""Several processes at one partition, over one ledger: killed, or starting at the same moment. Counted at the simulator."""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_llmbatch.core.advance import Published
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import Shop

SPAWN = multiprocessing.get_context("spawn")
WAIT = 60


class _Remote:
    """The simulator as another process sees it: an address and real time."""

    def __init__(self, base_url: str) -> None:
        from dagster_llmbatch.simulator.clock import Clock

        self.addresses = {"openai": base_url}
        self.clock = Clock()


def _submit(base_url: str, folder: str, url: "str | None", run_id: str, barrier: Any, die_after: "str | None") -> None:
    shop = Shop(_Remote(base_url), Path(folder), url, look_again=(0.0, 0.2), poll_first=0.2)  # type: ignore[arg-type]
    if die_after is not None:
        real = getattr(shop.provider, die_after)

        def dying(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            os._exit(9)

        setattr(shop.provider, die_after, dying)
    if barrier is not None:
        barrier.wait(WAIT)
    entry, _ = shop.open(run_id)
    shop.advance(entry, run_id)
    sys.exit(0)


def _start(
    simulator: SimulatorServer, folder: Path, url: "str | None", run_id: str, barrier: Any, die: "str | None"
) -> Any:
    process = SPAWN.Process(target=_submit, args=(simulator.base_url, str(folder), url, run_id, barrier, die))
    process.start()
    return process


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest) -> "str | None":
    """The ledger's URL; None: SQLite in the folder."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def _finish(simulator: SimulatorServer, folder: Path, url: "str | None") -> Published:
    shop = Shop(simulator, folder, url, lease=900.0)
    try:
        simulator.clock.advance(1000)  # a dead owner's lease runs out
        entry, _ = shop.open("last")
        return shop.finish(entry, "last")
    finally:
        shop.ledger.close()


@pytest.mark.parametrize("step", ["upload", "create"])
def test_kill_after_a_paid_step_buys_one_batch(tmp_path: Path, ledger_url: "str | None", step: str) -> None:
    """A process that dies right after the create call, before it records the handle: the next one adopts the batch."""
    with SimulatorServer() as simulator:
        process = _start(simulator, tmp_path, ledger_url, "r1", None, step)
        process.join(WAIT)
        assert process.exitcode == 9
        assert simulator.book.batches == (1 if step == "create" else 0)
        published = _finish(simulator, tmp_path, ledger_url)
        assert simulator.book.batches == 1
        assert simulator.book.requests == published.entry.row_count


def test_two_processes_at_one_barrier_buy_one_batch(tmp_path: Path, ledger_url: "str | None") -> None:
    """Two runs of one partition start at the same moment: one buys, the other attaches."""
    with SimulatorServer(batch_seconds=1e9) as simulator:
        barrier = SPAWN.Barrier(3)
        processes = [_start(simulator, tmp_path, ledger_url, f"r{i}", barrier, None) for i in range(3)]
        for process in processes:
            process.join(WAIT)
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert simulator.book.batches == 1
        for batch in simulator.store.batches.values():
            batch.seconds = 0
        published = _finish(simulator, tmp_path, ledger_url)
        assert published.entry.generation == 1
        assert simulator.book.requests == published.entry.row_count
