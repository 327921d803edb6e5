"""`make demo`: a week of tickets through the example, with a simulator in the provider's place and a real daemon.

Starts everything, backfills seven days, shows progress while the provider works, prints the results, and ends what it
started; `--keep` leaves the UI up until Ctrl-C.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".demo"
ASSETS = ("tickets", "ticket_triage", "triage_report")
DAYS = [f"2026-01-{day:02}" for day in range(1, 8)]
BATCH_SECONDS = 20
TIMEOUT = 900.0
ENDED = {"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Demo:
    """The processes of the demo and what it asks them."""

    def __init__(self) -> None:
        self.simulator = f"http://127.0.0.1:{free_port()}"
        self.ui = f"http://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "DAGSTER_HOME": str(HOME),
            "OPENAI_API_KEY": "sk-demo",
            "LLMBATCH_OPENAI_BASE_URL": f"{self.simulator}/v1",
            "LLMBATCH_POLL_INTERVAL": "5",
            "PYTHONWARNINGS": "ignore",
        }

    def start(self) -> None:
        """Start the simulator, the webserver and the daemon."""
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir()
        shutil.copy(ROOT / "example_project" / "dagster.yaml", HOME / "dagster.yaml")
        workspace = str(ROOT / "workspace.yaml")
        port = self.simulator.rsplit(":", 1)[1]
        seconds = str(BATCH_SECONDS)
        self._run("simulator", "dagster_llmbatch.simulator", "--port", port, "--batch-seconds", seconds)
        self._run("webserver", "dagster_webserver", "-w", workspace, "-p", self.ui.rsplit(":", 1)[1])
        self._run("daemon", "dagster._daemon", "run", "-w", workspace)
        say(f"starting; the UI will be at {self.ui}")
        self._until(self._is_up, "the UI")

    def stop(self) -> None:
        """End the processes that were started here."""
        for process in reversed(self._processes):
            for how in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, how)
                    process.wait(15)
                    break
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue

    def _run(self, name: str, module: str, *arguments: str) -> None:
        with (HOME / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    cwd=ROOT,
                    env=self._environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _until(self, found: "Callable[[], Any]", what: str) -> Any:
        ends = time.monotonic() + TIMEOUT
        while time.monotonic() < ends:
            value = found()
            if value:
                return value
            time.sleep(1)
        raise SystemExit(f"demo: waited {TIMEOUT:.0f} s for {what}; the logs are in {HOME.name}/")

    def _is_up(self) -> bool:
        try:
            return bool(self.ask("{ workspaceOrError { ... on Workspace { locationEntries { name } } } }"))
        except httpx.HTTPError:
            return False

    def ask(self, query: str, **variables: Any) -> "dict[str, Any]":
        """One GraphQL call."""
        answer = httpx.post(f"{self.ui}/graphql", json={"query": query, "variables": variables}, timeout=60)
        return answer.raise_for_status().json()["data"]

    def backfill(self) -> str:
        """Backfill the week as the UI would; returns its status."""
        found = self.ask(
            """mutation B($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
            ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            p={"assetSelection": [{"path": [asset]} for asset in ASSETS], "partitionNames": DAYS},
        )["launchPartitionBackfill"]
        if "backfillId" not in found:
            raise SystemExit(f"demo: the backfill was refused: {found}")
        backfill_id = found["backfillId"]
        shown = ""

        def ended() -> "str | None":
            nonlocal shown
            status = self.ask(
                "query B($i: String!) { partitionBackfillOrError(backfillId: $i) { ... on PartitionBackfill { status } } }",
                i=backfill_id,
            )["partitionBackfillOrError"]["status"]
            line = self._progress()
            if line != shown:
                say(line)
                shown = line
            return status if status in ENDED else None

        return self._until(ended, "the backfill")

    def _progress(self) -> str:
        runs = self.ask("{ runsOrError(limit: 500) { ... on Runs { results { status } } } }")["runsOrError"]["results"]
        counts = {
            status: sum(run["status"] == status for run in runs) for status in sorted({r["status"] for r in runs})
        }
        book = httpx.get(f"{self.simulator}/admin/book").json()
        states = ", ".join(f"{count} {status.lower()}" for status, count in counts.items())
        return (
            f"runs: {states or 'none yet'}; provider: {book['batches']} batches, {book['requests']} requests answered"
        )

    def show(self) -> "tuple[int, int]":
        """Print the table, the cost and the checks; returns rows and rows without a valid answer."""
        files = sorted((HOME / "storage" / "llmbatch_results" / "ticket_triage").rglob("*.parquet"))
        columns = ["ticket_id", "category", "urgent", "summary", "llm_status", "llm_cost_usd"]
        tables = [pq.read_table(file) for file in files]
        if tables:
            say("\n" + tables[0].select(columns).slice(0, 8).to_pandas().to_string(index=False) + "\n")
        rows = sum(table.num_rows for table in tables)
        failed = sum(status != "succeeded" for table in tables for status in table["llm_status"].to_pylist())
        costs = [cost for table in tables for cost in table["llm_cost_usd"].to_pylist()]
        unknown = sum(cost is None for cost in costs)
        say(f"cost: {sum(cost or 0 for cost in costs):.4f} USD at batch prices, {unknown} rows of unknown price")
        checks = self.ask(
            """query C($k: AssetKeyInput!) { assetCheckExecutions(assetKey: $k, checkName: "validation_failure_rate",
            limit: 100) { evaluation { success partition } } }""",
            k={"path": ["ticket_triage"]},
        )["assetCheckExecutions"]
        evaluated = [check["evaluation"] for check in checks if check["evaluation"]]
        passed = sum(check["success"] for check in evaluated)
        say(f"check validation_failure_rate: passed in {passed} of {len(evaluated)} partitions")
        return rows, failed


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the UI up until Ctrl-C")
    keep = parser.parse_args().keep
    demo, status = Demo(), "not ended"
    try:
        demo.start()
        status = demo.backfill()
        rows, failed = demo.show()
        batches = json.loads(httpx.get(f"{demo.simulator}/admin/book").text)["batches"]
        if keep:
            say(f"the UI stays at {demo.ui} until Ctrl-C")
        say(f"backfill {status}, {rows} rows, {failed} failed, {batches} provider batches")
        if keep:
            signal.pause()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        demo.stop()
    if status != "COMPLETED_SUCCESS":
        raise SystemExit(1)


if __name__ == "__main__":
    main()
