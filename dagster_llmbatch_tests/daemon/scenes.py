"""What the daemon tests share: ending batches, and looking at what waits."""

from typing import Any

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.harness import DagsterHome


def end_batches(simulator: SimulatorServer) -> None:
    """Every batch that is out ends at its next poll."""
    for batch in simulator.store.batches.values():
        batch.seconds = 0


def waiting(home: DagsterHome, run_id: str) -> "dict[str, Any]":
    """The continuation of a run that ended, suspended."""
    assert home.wait_run(run_id) in ("SUCCESS", "FAILURE")
    (found,) = home.continuations(run_id)
    assert found["status"] == "SUSPENDED"
    return found


def finished(home: DagsterHome, continuation: "dict[str, Any]") -> str:
    return home.wait_run(str(continuation["id"]))


def partitions(home: DagsterHome, asset: str) -> "set[str]":
    return {m["partition"] for m in home.materialized(asset)}


def assets_of(run: "dict[str, Any]") -> "set[str]":
    return {"/".join(a["path"]) for a in run["assetSelection"]}


def is_waiting(home: DagsterHome, partition: str) -> bool:
    """Whether a suspended run stands for a partition."""
    return any(
        c["status"] == "SUSPENDED" and c["tags"].get("dagster/partition") == partition for c in home.continuations()
    )
