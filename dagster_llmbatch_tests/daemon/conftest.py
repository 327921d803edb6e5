"""One deployment for all daemon tests of a process: starting it costs half a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.harness import DagsterHome

SHOP = Path(__file__).with_name("shop.py")


@pytest.fixture(scope="module")
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose batches end when a test says so."""
    with SimulatorServer(batch_seconds=1e9) as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, simulator: SimulatorServer) -> "Iterator[DagsterHome]":
    """A deployment of the shop."""
    environment = {"OPENAI_API_KEY": "sk-test", "SIMULATOR": simulator.base_url}
    with DagsterHome(tmp_path_factory.mktemp("home"), SHOP.read_text(), environment=environment) as found:
        yield found


@pytest.fixture(autouse=True)
def _slow_batches(request: pytest.FixtureRequest) -> None:
    """Each test begins with batches that do not end by themselves."""
    if "simulator" in request.fixturenames:
        request.getfixturevalue("simulator").store.batch_seconds = 1e9
