"""What a user of dagster-community-components' openai_llm_batch gets, and of dagster_llmbatch, from one simulator.

    python bench/compared.py --peer-python PATH

PATH is the Python of a virtual environment with dagster-community-components 0.10.120, openai, dagster-webserver and
pandas; without it only the product is run. Each action is a process, and each scene has a Dagster home and a simulator of
its own. Nothing runs as a daemon: the peer's sensor is evaluated by hand, and the product waits in its run. The last line
is JSON: scene to [peer, product].
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_llmbatch.simulator.server import SimulatorServer

HERE = Path(__file__).parent
ROWS = 20
BATCH_ROWS_LIMIT = 50_000
"""What OpenAI takes in one batch."""


class Side:
    """One of the two programs, with a simulator and a Dagster home of its own."""

    def __init__(self, command: "list[str]", simulator: SimulatorServer, home: Path) -> None:
        self.simulator = simulator
        self._command = command
        self._environment = {
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "DAGSTER_HOME": str(home),
            "OPENAI_API_KEY": "sk-simulated",
            "OPENAI_BASE_URL": simulator.base_url,
        }

    def start(self, action: str, *, rows: int = ROWS, system: str = "Be brief.") -> "subprocess.Popen[str]":
        """Start an action."""
        command = [*self._command, action, "--rows", str(rows), "--system", system]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)

    def ended(self, child: "subprocess.Popen[str]") -> "dict[str, Any]":
        """What came of an action."""
        said, _ = child.communicate()
        if child.returncode != 0:
            raise SystemExit(f"{self._command} ended with {child.returncode}")
        return json.loads(said.splitlines()[-1])

    def do(self, action: str, **asked: Any) -> "dict[str, Any]":
        """An action to its end."""
        return self.ended(self.start(action, **asked))

    @property
    def batches(self) -> int:
        """Batches the provider has made."""
        return self.simulator.book.batches


def results_alone(side: Side) -> str:
    """Click Materialize on the results asset."""
    found = side.do("results")
    return f"{found['rows']} rows" if found["success"] else "the run fails"


def one_run(side: Side) -> str:
    """Materialize all assets of the batch in one run, as a backfill does."""
    found = side.do("all")
    return f"{found['rows']} rows" if found["success"] else "the run fails"


def changed_system(side: Side) -> str:
    """Deliver, change the system prompt, deliver again."""
    side.do("deliver")
    side.do("deliver", system="Be thorough.")
    return "a new batch" if side.batches > 1 else "the old answers"


def missing_line(side: Side) -> str:
    """The provider's files lack one row."""
    side.simulator.faults.add_rows("missing", containing="ticket 7.")
    found = side.do("deliver")
    return f"{found['rows']} rows, {found['answers']} answers"


def expired(side: Side) -> str:
    """The batch expires when half of its rows are answered."""
    side.simulator.store.batch_seconds = 3600
    child = side.start("deliver")
    ends = time.monotonic() + 60
    while not side.simulator.store.batches:
        if time.monotonic() > ends:
            raise SystemExit("no batch was made")
        time.sleep(0.05)
    side.simulator.store.batch_seconds = 0.5
    side.simulator.store.expire(next(iter(side.simulator.store.batches)), 0.5)
    found = side.ended(child)
    return f"{found['answers']} answers" if found["success"] else "no results"


def lost_create(side: Side) -> str:
    """The answer to the creation of the batch is lost."""
    side.simulator.faults.add("create", "drop_after")
    side.do("deliver")
    return f"{side.batches} batches made" if side.batches != 1 else "1 batch made"


def shown(side: Side) -> str:
    """What the materialization says of cost, and what is checked."""
    found = side.do("deliver")
    return f"{'cost' if found['cost'] else 'no cost'}, checks: {found['checks']}"


def too_many(side: Side) -> str:
    """One row more than a batch takes."""
    found = side.do("deliver", rows=BATCH_ROWS_LIMIT + 1)
    return f"{side.batches} batches, {found['answers']:,} answers" if found["success"] else "no results"


SCENES: "dict[str, Callable[[Side], str]]" = {
    f"Materialize the results asset ({ROWS} rows)": results_alone,
    "Materialize everything in one run, as a backfill does": one_run,
    "Change the system prompt, run again": changed_system,
    "The provider's files lack one row": missing_line,
    "The batch expires half done": expired,
    "The answer to the batch's creation is lost": lost_create,
    "On the materialization": shown,
    f"{BATCH_ROWS_LIMIT + 1:,} rows": too_many,
}


def play(scene: "Callable[[Side], str]", command: "list[str]") -> str:
    """One scene with one program."""
    with tempfile.TemporaryDirectory(prefix="llmbatch-compared-") as home:
        (Path(home) / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        with SimulatorServer(batch_seconds=0.5) as simulator:
            return scene(Side(command, simulator, Path(home)))


def main() -> None:
    """Play all scenes and print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", help="the Python that has dagster-community-components")
    parser.add_argument("--scene", help="only the scenes whose name holds this text")
    asked = parser.parse_args()
    seen: "dict[str, list[str]]" = {}
    for name, scene in SCENES.items():
        if asked.scene and asked.scene not in name:
            continue
        peer = play(scene, [asked.peer_python, str(HERE / "compared_peer.py")]) if asked.peer_python else "not run"
        product = play(scene, [sys.executable, str(HERE / "compared_product.py")])
        seen[name] = [peer, product]
        sys.stdout.write(f"{name:55} {peer:30} {product}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
