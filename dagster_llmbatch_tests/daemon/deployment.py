"""A deployment of the shop for a module's tests, on the `simulator` that the tests bring: starting it costs half a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.harness import DagsterHome

SHOP = Path(__file__).with_name("shop.py")


@pytest.fixture(scope="module")
def shop() -> str:
    """The definitions to deploy."""
    return SHOP.read_text()


@pytest.fixture(scope="module")
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, simulator: SimulatorServer, shop: str
) -> "Iterator[DagsterHome]":
    """A deployment of the shop: on SQLite, or for the slow daemon tests on PostgreSQL with run retries."""
    environment = {"OPENAI_API_KEY": "sk-test", "SIMULATOR": simulator.base_url}
    slow = request.module.__name__.endswith("_slow")
    url = request.getfixturevalue("module_postgres_url") if slow else None
    folder = tmp_path_factory.mktemp("home")
    with DagsterHome(folder, shop, environment=environment, postgres_url=url, run_retries=1 if slow else 0) as found:
        yield found
