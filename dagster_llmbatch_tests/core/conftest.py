"""Fixtures of the core tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import Shop


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose clock stands until a test moves it."""
    with SimulatorServer(frozen=True) as server:
        yield server


@pytest.fixture
def shop(simulator: SimulatorServer, tmp_path: Path) -> "Iterator[Shop]":
    """A partition over a fresh ledger."""
    found = Shop(simulator, tmp_path)
    yield found
    found.ledger.close()
    found.provider.close()
