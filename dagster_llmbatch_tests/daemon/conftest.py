"""Fixtures for the daemon tests: batches end when a test says so."""

from collections.abc import Iterator

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.deployment import home, shop

__all__ = ["home", "shop"]


@pytest.fixture(scope="module")
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose batches end when a test says so."""
    with SimulatorServer(batch_seconds=1e9) as server:
        yield server


@pytest.fixture(autouse=True)
def _slow_batches(request: pytest.FixtureRequest) -> None:
    """Each test begins with batches that do not end by themselves."""
    if "simulator" in request.fixturenames:
        request.getfixturevalue("simulator").store.batch_seconds = 1e9
