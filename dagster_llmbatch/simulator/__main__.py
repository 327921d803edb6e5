"""`python -m dagster_llmbatch.simulator --port 8765`: the simulator as a server of its own."""

import argparse
import sys

import uvicorn

from dagster_llmbatch.simulator.app import build_app
from dagster_llmbatch.simulator.book import Book
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.faults import Faults
from dagster_llmbatch.simulator.store import Store


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m dagster_llmbatch.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--batch-seconds", type=float, default=20.0, help="seconds until a batch has ended")
    given = parser.parse_args()
    store = Store(Clock(), Faults(), Book(), batch_seconds=given.batch_seconds)
    sys.stdout.write(f"simulator: base_url http://{given.host}:{given.port}/v1\n")
    sys.stdout.flush()
    uvicorn.run(build_app(store), host=given.host, port=given.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
