"""`python -m dagster_llmbatch.simulator --port 8765`: the simulator as a server of its own."""

import argparse
import sys

from dagster_llmbatch.simulator.server import SimulatorServer


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m dagster_llmbatch.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one; it is in the line printed")
    parser.add_argument("--batch-seconds", type=float, default=20.0, help="seconds until a batch has ended")
    parser.add_argument("--frozen", action="store_true", help="time moves by POST /admin/clock only")
    given = parser.parse_args()
    simulator = SimulatorServer(
        host=given.host, port=given.port, batch_seconds=given.batch_seconds, frozen=given.frozen
    )
    sys.stdout.write(f"simulator: base_url {simulator.base_url}\n")
    for provider, address in simulator.addresses.items():
        sys.stdout.write(f"simulator: {provider} {address}\n")
    sys.stdout.flush()
    simulator.serve()


if __name__ == "__main__":
    main()
