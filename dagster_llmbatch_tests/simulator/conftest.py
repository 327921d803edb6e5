"""A simulator with a frozen clock for each test, and the two clients that drive it."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from dagster_llmbatch.simulator.server import SimulatorServer


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """Batches end 100 seconds after their create; time moves by `clock.advance` only."""
    with SimulatorServer(batch_seconds=100, frozen=True) as server:
        yield server


@pytest.fixture
def client(simulator: SimulatorServer) -> "Iterator[openai.OpenAI]":
    """OpenAI's own package, unmodified, without retries."""
    with openai.OpenAI(base_url=simulator.base_url, api_key="sk-simulated", max_retries=0) as found:
        yield found


@pytest.fixture
def http(simulator: SimulatorServer) -> "Iterator[httpx.Client]":
    """A bare HTTP client at the same address."""
    with httpx.Client(
        base_url=simulator.base_url, headers={"authorization": "Bearer sk-simulated"}, trust_env=False
    ) as found:
        yield found
