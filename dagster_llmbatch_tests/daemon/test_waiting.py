"""A waiting partition under a real daemon and webserver, launched over GraphQL as the UI launches it."""

import time

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.harness import DagsterHome

pytestmark = [pytest.mark.daemon, pytest.mark.xdist_group("daemon")]


def end_batches(simulator: SimulatorServer) -> None:
    """Every batch that is out ends at its next poll."""
    for batch in simulator.store.batches.values():
        batch.seconds = 0


def waiting(home: DagsterHome, run_id: str) -> "dict[str, object]":
    """The continuation of a run that ended, suspended."""
    assert home.wait_run(run_id) in ("SUCCESS", "FAILURE")
    (found,) = home.continuations(run_id)
    assert found["status"] == "SUSPENDED"
    return found


def finished(home: DagsterHome, continuation: "dict[str, object]") -> str:
    return home.wait_run(str(continuation["id"]))


def partitions(home: DagsterHome, asset: str) -> "set[str]":
    return {m["partition"] for m in home.materialized(asset)}


def assets_of(run: "dict[str, object]") -> "set[str]":
    return {"/".join(a["path"]) for a in run["assetSelection"]}  # type: ignore[index,union-attr,attr-defined]


def test_a_run_submits_and_ends_and_its_continuation_materializes(
    home: DagsterHome, simulator: SimulatorServer
) -> None:
    """Two LLM assets joined downstream: one continuation, no process while it waits, all of it in the continuation."""
    before = simulator.book.batches
    run = home.launch(["tickets", "triage", "mood", "joined", "report"], "d00")
    continuation = waiting(home, run)
    assert home.status(run) == "SUCCESS"
    assert assets_of(continuation) == {"triage", "mood", "joined", "report"}
    assert home.run_processes() == []
    assert "d00" not in partitions(home, "triage")
    assert home.run(run)["tags"]["llmbatch/entry"]  # type: ignore[index]
    end_batches(simulator)
    assert finished(home, continuation) == "SUCCESS"
    for asset in ("triage", "mood", "joined", "report"):
        assert "d00" in partitions(home, asset)
    check = next(c for c in home.checks("triage", "validation_failure_rate") if c["evaluation"])
    assert check["evaluation"]["partition"] == "d00"
    assert simulator.book.batches == before + 2


def test_a_second_click_and_a_reexecution_attach(home: DagsterHome, simulator: SimulatorServer) -> None:
    """While a batch is pending, Materialize again and Re-execute all wait for the same batch."""
    before = simulator.book.batches
    first = home.launch(["tickets", "triage"], "d01")
    one = waiting(home, first)
    second = home.launch(["triage"], "d01")
    two = waiting(home, second)
    third = home.reexecute(first, "ALL_STEPS")
    assert home.wait_run(third) == "SUCCESS"
    assert simulator.book.batches == before + 1
    end_batches(simulator)
    assert {finished(home, one), finished(home, two)} == {"SUCCESS"}
    assert simulator.book.batches == before + 1


def test_downstream_of_a_failed_sibling_is_left_out(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A co-parent that failed: the LLM asset is published, what needs both is not run."""
    (home.folder / "sibling-d02").touch()
    run = home.launch(["tickets", "triage", "sibling", "after_sibling", "report"], "d02")
    continuation = waiting(home, run)
    assert home.status(run) == "FAILURE"
    end_batches(simulator)
    home.wait(lambda: "d02" in partitions(home, "report"), 60, "the report")
    assert "d02" in partitions(home, "triage")
    assert "d02" not in partitions(home, "after_sibling")
    assert assets_of(continuation) == {"triage", "after_sibling", "report"}
    (woken,) = home.continuations(run)
    assert assets_of(woken) == {"triage", "report"}


def test_downstream_of_a_failed_blocking_check_is_left_out(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A co-parent whose blocking check failed gates what is downstream in the continuation too."""
    (home.folder / "gate").touch()
    run = home.launch(["tickets", "triage", "gated", "after_gate"], "d03")
    waiting(home, run)
    end_batches(simulator)
    home.wait(lambda: "d03" in partitions(home, "triage"), 60, "triage")
    (home.folder / "gate").unlink()
    assert "d03" not in partitions(home, "after_gate")


def test_a_job_with_run_config_and_an_unpartitioned_asset(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A run of a define_asset_job keeps its run config in the continuation; the asset has no partitions."""
    run = home.launch(job="whole_job", run_config={"ops": {"whole": {"config": {"rows": 7}}}})
    continuation = waiting(home, run)
    end_batches(simulator)
    assert finished(home, continuation) == "SUCCESS"
    (found,) = home.materialized("whole")
    rows = next(e for e in found["metadataEntries"] if e["label"] == "dagster/row_count")
    assert rows["intValue"] == 7
    assert home.materialized("after_whole")


def test_multi_partition_keys(home: DagsterHome, simulator: SimulatorServer) -> None:
    """Partition keys of two dimensions, with a slash in one, are continued and never share a file."""
    backfill = home.backfill(["cells"], ["1|x/y", "2|z"])
    home.wait(lambda: len([c for c in home.continuations() if "cells" in assets_of(c)]) == 2, 60, "two continuations")
    end_batches(simulator)
    assert home.wait_backfill(backfill) == "COMPLETED_SUCCESS"
    assert partitions(home, "cells") == {"1|x/y", "2|z"}


def test_a_failing_check_blocks_downstream_in_the_continuation(home: DagsterHome, simulator: SimulatorServer) -> None:
    """Every row refused: the asset is materialized, the check fails with ERROR, downstream does not run."""
    run = home.launch(["bad", "after_bad"], "d04")
    continuation = waiting(home, run)
    end_batches(simulator)
    assert finished(home, continuation) == "FAILURE"
    assert "d04" in partitions(home, "bad")
    assert "d04" not in partitions(home, "after_bad")
    check = next(c for c in home.checks("bad", "validation_failure_rate") if c["evaluation"])
    assert (check["evaluation"]["success"], check["evaluation"]["severity"]) == (False, "ERROR")


def test_a_canceled_continuation_is_respected_and_its_batch_adopted(
    home: DagsterHome, simulator: SimulatorServer
) -> None:
    """Force-canceled by a person: nothing is relaunched; the next materialization takes the batch up."""
    before = simulator.book.batches
    run = home.launch(["tickets", "triage"], "d05")
    continuation = waiting(home, run)
    home.terminate(str(continuation["id"]), force=True)
    assert home.wait_run(str(continuation["id"])) == "CANCELED"
    end_batches(simulator)
    time.sleep(5)
    assert "d05" not in partitions(home, "triage")
    again = home.launch(["triage"], "d05")
    assert home.wait_run(again) == "SUCCESS"
    home.wait(lambda: "d05" in partitions(home, "triage"), 60, "the adopted batch")
    assert simulator.book.batches == before + 1


def test_canceling_a_backfill_ends_its_continuations(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A canceled backfill does not hang: its suspended runs are canceled, the batch stays in the ledger."""
    backfill = home.backfill(["triage"], ["d06"])
    home.wait(lambda: simulator.book.batches and self_waiting(home, "d06"), 60, "a continuation")
    home.cancel_backfill(backfill)
    assert home.wait_backfill(backfill, 60) == "CANCELED"


def self_waiting(home: DagsterHome, partition: str) -> bool:
    return any(
        c["status"] == "SUSPENDED" and c["tags"].get("dagster/partition") == partition for c in home.continuations()
    )


def test_a_small_backfill_with_upstream_and_downstream(home: DagsterHome, simulator: SimulatorServer) -> None:
    """Three partitions: COMPLETED_SUCCESS, one batch each, and a deleted continuation is healed."""
    before = simulator.book.batches
    names = ["d10", "d11", "d12"]
    backfill = home.backfill(["tickets", "triage", "report"], names)
    home.wait(lambda: all(self_waiting(home, name) for name in names), 120, "three continuations")
    assert home.run_processes() == []
    deleted = next(c for c in home.continuations() if c["tags"].get("dagster/partition") == "d11")
    home.delete_run(deleted["id"])
    end_batches(simulator)
    assert home.wait_backfill(backfill) == "COMPLETED_SUCCESS"
    assert set(names) <= partitions(home, "report")
    assert simulator.book.batches == before + 3
