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
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, simulator: SimulatorServer
) -> "Iterator[DagsterHome]":
    """A deployment of the shop: on SQLite, or for the slow tests on PostgreSQL with run retries."""
    environment = {"OPENAI_API_KEY": "sk-test", "SIMULATOR": simulator.base_url}
    slow = request.module.__name__.endswith("_slow")
    url = request.getfixturevalue("module_postgres_url") if slow else None
    folder = tmp_path_factory.mktemp("home")
    with DagsterHome(
        folder, SHOP.read_text(), environment=environment, postgres_url=url, run_retries=1 if slow else 0
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _slow_batches(request: pytest.FixtureRequest) -> None:
    """Each test begins with batches that do not end by themselves."""
    if "simulator" in request.fixturenames:
        request.getfixturevalue("simulator").store.batch_seconds = 1e9
