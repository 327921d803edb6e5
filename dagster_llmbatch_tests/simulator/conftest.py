"""A simulator with a frozen clock, empty for each test, and the two clients that drive it."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from dagster_llmbatch.simulator.server import SimulatorServer


@pytest.fixture(scope="session")
def server() -> "Iterator[SimulatorServer]":
    """One server for all tests: starting and stopping one takes longer than most of them."""
    with SimulatorServer(frozen=True) as found:
        yield found


@pytest.fixture
def simulator(server: SimulatorServer) -> SimulatorServer:
    """An empty simulator. Batches end 100 seconds after their create; time moves by `clock.advance` only."""
    server.faults.clear()
    book, store = server.book, server.store
    for kept in (book.calls, book.creates, book.paid, store.files, store.batches):
        kept.clear()
    book.input_tokens = book.output_tokens = 0
    store.batch_seconds = 100
    store.cancel_seconds = store.list_lag = store.read_lag = 0.0
    store.out_of_credit = store.gemini_cancels_all = False
    store.token_limit = store.script = None
    return server


@pytest.fixture(scope="session")
def package() -> "Iterator[openai.OpenAI]":
    """OpenAI's own package, unmodified, without retries. One for all tests: its certificates take long to load."""
    with openai.OpenAI(api_key="sk-simulated", max_retries=0) as found:
        yield found


@pytest.fixture
def client(simulator: SimulatorServer, package: openai.OpenAI) -> openai.OpenAI:
    """The package at this test's simulator."""
    return package.with_options(base_url=simulator.base_url)


@pytest.fixture
def http(simulator: SimulatorServer) -> "Iterator[httpx.Client]":
    """A bare HTTP client at the same address."""
    key = {"authorization": "Bearer sk-simulated"}
    with httpx.Client(base_url=simulator.base_url, headers=key, trust_env=False, verify=False) as found:
        yield found
