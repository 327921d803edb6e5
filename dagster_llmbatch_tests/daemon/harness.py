"""A Dagster deployment of its own for a test: webserver, daemon and a code location, spoken to over GraphQL as the UI does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

LOCATION = "shop"
START_TIMEOUT = 120.0
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
BACKFILL_ENDED = {"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class DagsterHome:
    """`with DagsterHome(folder, source) as home:` runs the definitions in `source` with a real daemon and webserver.

    Args:
        folder: a fresh folder: the Dagster home, the definitions and the logs go there.
        definitions: Python source with a variable `defs`.
        postgres_url: the instance's storage; None: SQLite in the folder.
        run_retries: run-level retries of failed runs; 0: off.
        queue: whether there is a run queue.
        environment: variables for all processes.
    """

    def __init__(
        self,
        folder: Path,
        definitions: str,
        *,
        postgres_url: "str | None" = None,
        run_retries: int = 0,
        queue: bool = True,
        environment: "Mapping[str, str] | None" = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self._code_port = free_port()
        self._environment = {
            **os.environ,
            "DAGSTER_HOME": str(folder),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deploy(definitions)
        (folder / "dagster.yaml").write_text(json.dumps(_instance(postgres_url, run_retries, queue)))
        (folder / "workspace.yaml").write_text(
            json.dumps({"load_from": [{"python_file": {"relative_path": "shop.py", "location_name": LOCATION}}]})
        )

    def __enter__(self) -> "DagsterHome":
        quick = str(Path(__file__).with_name("quick_daemon.py"))
        self._start("webserver", "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(self.port))
        try:
            self.wait(self._answers, START_TIMEOUT, "the webserver to answer")
            self._start("daemon", quick, "run", "-w", "workspace.yaml")
            self.wait(self._sensor_ticks, 60, "the daemon to report itself")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", _error: "BaseException | None", _trace: "TracebackType | None"
    ) -> None:
        self._stop()
        if kind is not None:
            sys.stderr.write(self.logs())

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name)

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End one process group that this home started."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        for sent in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
                process.wait(20)
            except ProcessLookupError:
                process.wait(20)
            except subprocess.TimeoutExpired:
                continue

    def logs(self) -> str:
        """The tails of the processes' logs."""
        tails = (path.read_text(errors="replace")[-6000:] for path in sorted(self.folder.glob("*.log")))
        return "\n".join(tails)

    def deploy(self, definitions: str) -> None:
        """Write the definitions; `reload` makes running processes read them."""
        (self.folder / "shop.py").write_text(definitions)

    def reload(self) -> None:
        """Reload the code location in the webserver and in the daemon."""
        self.query(
            "mutation R($n: String!) { reloadRepositoryLocation(repositoryLocationName: $n) { __typename } }",
            n=LOCATION,
        )
        self.stop("daemon")
        self._start("daemon", str(Path(__file__).with_name("quick_daemon.py")), "run", "-w", "workspace.yaml")

    def wait(self, found: "Callable[[], Any]", timeout: float, what: str) -> Any:
        """Ask until there is something, or fail saying what was awaited."""
        ends = time.monotonic() + timeout
        while time.monotonic() < ends:
            value = found()
            if value:
                return value
            time.sleep(0.25)
        raise TimeoutError(f"waited {timeout:.0f} s for {what}\n{self.logs()}")

    def query(self, text: str, **variables: Any) -> "dict[str, Any]":
        """One GraphQL call. A question is asked again when a busy webserver answers 500; a mutation never is."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"content-type": "application/json"},
        )
        body = self._answer(request, tries=1 if text.lstrip().startswith("mutation") else 5)
        if body.get("errors"):
            raise AssertionError(body["errors"])
        return body["data"]

    @staticmethod
    def _answer(request: urllib.request.Request, *, tries: int) -> "dict[str, Any]":
        for left in reversed(range(tries)):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                sys.stderr.write(f"HTTP {error.code}: {error.read()[:500]!r}\n")
                if not left:
                    raise
                time.sleep(1)
        raise AssertionError("unreachable")

    def _answers(self) -> bool:
        try:
            return bool(self.query("{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"))
        except (urllib.error.URLError, OSError):
            return False

    def _sensor_ticks(self) -> bool:
        found = self.query("{ instance { daemonHealth { allDaemonStatuses { daemonType healthy } } } }")
        statuses = found["instance"]["daemonHealth"]["allDaemonStatuses"]
        return any(status["daemonType"] == "SENSOR" and status["healthy"] for status in statuses)

    def launch(
        self,
        assets: "Sequence[str]" = (),
        partition: "str | None" = None,
        *,
        job: str = "__ASSET_JOB",
        run_config: "Mapping[str, Any] | None" = None,
        tags: "Mapping[str, str] | None" = None,
    ) -> str:
        """Materialize, as the UI sends it; returns the run id."""
        found_tags = {**(tags or {}), **({"dagster/partition": partition} if partition is not None else {})}
        selector: dict[str, Any] = {
            "repositoryLocationName": LOCATION,
            "repositoryName": "__repository__",
            "pipelineName": job,
            "assetSelection": [{"path": asset.split("/")} for asset in assets] or None,
            "assetCheckSelection": None,
        }
        answer = self.query(
            """mutation L($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) { __typename
            ... on LaunchRunSuccess { run { id } } ... on PythonError { message }
            ... on RunConfigValidationInvalid { errors { message } } ... on InvalidSubsetError { message } } }""",
            p={
                "mode": "default",
                "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in found_tags.items()]},
                "runConfigData": json.dumps(run_config or {}),
                "selector": {k: v for k, v in selector.items() if v is not None},
            },
        )["launchPipelineExecution"]
        if "run" not in answer:
            raise AssertionError(answer)
        return answer["run"]["id"]

    def reexecute(self, run_id: str, strategy: str) -> str:
        """Re-execute a run: FROM_FAILURE, ALL_STEPS or FROM_ASSET_FAILURE; returns the run id."""
        answer = self.query(
            """mutation R($p: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $p) { __typename
            ... on LaunchRunSuccess { run { id } } ... on PythonError { message } } }""",
            p={"parentRunId": run_id, "strategy": strategy},
        )["launchRunReexecution"]
        if "run" not in answer:
            raise AssertionError(answer)
        return answer["run"]["id"]

    def backfill(self, assets: "Sequence[str]", partitions: "Sequence[str]") -> str:
        """Launch a backfill, as the UI sends it; returns its id."""
        answer = self.query(
            """mutation B($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename
            ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            p={"assetSelection": [{"path": a.split("/")} for a in assets], "partitionNames": list(partitions)},
        )["launchPartitionBackfill"]
        if "backfillId" not in answer:
            raise AssertionError(answer)
        return answer["backfillId"]

    def backfill_status(self, backfill_id: str) -> str:
        """A backfill's status."""
        found = self.query(
            "query B($i: String!) { partitionBackfillOrError(backfillId: $i) { ... on PartitionBackfill { status } } }",
            i=backfill_id,
        )
        return found["partitionBackfillOrError"]["status"]

    def cancel_backfill(self, backfill_id: str) -> None:
        """Cancel a backfill."""
        self.query("mutation C($i: String!) { cancelPartitionBackfill(backfillId: $i) { __typename } }", i=backfill_id)

    def terminate(self, run_id: str, *, force: bool) -> None:
        """Terminate a run; force marks it canceled at once."""
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if force else "SAFE_TERMINATE"
        self.query(
            "mutation T($i: String!, $p: TerminateRunPolicy) { terminateRun(runId: $i, terminatePolicy: $p) { __typename } }",
            i=run_id,
            p=policy,
        )

    def delete_run(self, run_id: str) -> None:
        """Delete a run."""
        self.query("mutation D($i: String!) { deletePipelineRun(runId: $i) { __typename } }", i=run_id)

    def runs(self, **filters: Any) -> "list[dict[str, Any]]":
        """Runs, newest first: id, status, tags, assets."""
        found = self.query(
            """query R($f: RunsFilter) { runsOrError(filter: $f, limit: 500) { ... on Runs { results {
            id status tags { key value } assetSelection { path } rootRunId parentRunId } } } }""",
            f=filters,
        )
        return [run | {"tags": {t["key"]: t["value"] for t in run["tags"]}} for run in found["runsOrError"]["results"]]

    def run(self, run_id: str) -> "dict[str, Any] | None":
        """One run."""
        return next(iter(self.runs(runIds=[run_id])), None)

    def status(self, run_id: str) -> "str | None":
        """A run's status; None for one that is gone."""
        found = self.run(run_id)
        return None if found is None else found["status"]

    def wait_run(self, run_id: str, timeout: float = 90) -> str:
        """Wait until a run ended; returns its status."""
        self.wait(lambda: self.status(run_id) in ENDED, timeout, f"run {run_id} to end, it is {self.status(run_id)}")
        return str(self.status(run_id))

    def wait_backfill(self, backfill_id: str, timeout: float = 300) -> str:
        """Wait until a backfill ended; returns its status."""
        self.wait(
            lambda: self.backfill_status(backfill_id) in BACKFILL_ENDED, timeout, f"backfill {backfill_id} to end"
        )
        return self.backfill_status(backfill_id)

    def continuations(self, run_id: "str | None" = None) -> "list[dict[str, Any]]":
        """The runs that continue others, or one."""
        return [
            run
            for run in self.runs()
            if "llmbatch/continues" in run["tags"] and run_id in (None, run["tags"]["llmbatch/continues"])
        ]

    def materialized(self, asset: str) -> "list[dict[str, Any]]":
        """Materializations of an asset, newest first: partition, run id, metadata by label."""
        found = self.query(
            """query M($k: AssetKeyInput!) { assetOrError(assetKey: $k) { ... on Asset { assetMaterializations(limit: 500) {
            partition runId metadataEntries { __typename label ... on IntMetadataEntry { intValue }
            ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text }
            ... on MarkdownMetadataEntry { mdStr } } } } } }""",
            k={"path": asset.split("/")},
        )
        return found["assetOrError"].get("assetMaterializations", [])

    def observations(self, asset: str) -> "list[dict[str, Any]]":
        """Observations of an asset, newest first."""
        found = self.query(
            """query O($k: AssetKeyInput!) { assetOrError(assetKey: $k) { ... on Asset { assetObservations(limit: 500) {
            partition runId metadataEntries { label ... on IntMetadataEntry { intValue }
            ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text } } } } } }""",
            k={"path": asset.split("/")},
        )
        return found["assetOrError"].get("assetObservations", [])

    def checks(self, asset: str, name: str) -> "list[dict[str, Any]]":
        """Executions of a check, newest first."""
        found = self.query(
            """query C($k: AssetKeyInput!, $n: String!) { assetCheckExecutions(assetKey: $k, checkName: $n, limit: 100) {
            runId status evaluation { success severity partition } } }""",
            k={"path": asset.split("/")},
            n=name,
        )
        return found["assetCheckExecutions"]

    def run_processes(self) -> "list[int]":
        """Process ids of run workers alive under this home."""
        mark = str(self.folder)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                if b"execute_run" in command and mark.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found


def _instance(postgres_url: "str | None", run_retries: int, queue: bool) -> "dict[str, Any]":
    found: dict[str, Any] = {
        "run_coordinator": {
            "module": "dagster.core.run_coordinator",
            "class": "QueuedRunCoordinator",
            "config": {"dequeue_interval_seconds": 1, "max_concurrent_runs": 3},
        },
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},  # a dialog over the first page
        "run_monitoring": {"enabled": True, "start_timeout_seconds": 40, "poll_interval_seconds": 5},
    }
    if not queue:
        found["run_coordinator"] = {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"}
    if postgres_url is not None:
        found["storage"] = {"postgres": {"postgres_url": postgres_url}}
    if run_retries:
        found["run_retries"] = {"enabled": True, "max_retries": run_retries}
    return found
