"""A waiting partition under a real daemon and webserver, launched over GraphQL as the UI launches it."""

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.harness import DagsterHome
from dagster_llmbatch_tests.daemon.scenes import assets_of, end_batches, finished, is_waiting, partitions, waiting

pytestmark = [pytest.mark.daemon, pytest.mark.xdist_group("daemon")]


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
    assert home.run(run)["tags"]["llmbatch/entry"]
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


def test_a_small_backfill_with_upstream_and_downstream(home: DagsterHome, simulator: SimulatorServer) -> None:
    """Three partitions: COMPLETED_SUCCESS, one batch each, and a deleted continuation is healed."""
    before = simulator.book.batches
    names = ["d10", "d11", "d12"]
    backfill = home.backfill(["tickets", "triage", "report"], names)
    home.wait(lambda: all(is_waiting(home, name) for name in names), 120, "three continuations")
    assert home.run_processes() == []
    deleted = next(c for c in home.continuations() if c["tags"].get("dagster/partition") == "d11")
    home.delete_run(deleted["id"])
    end_batches(simulator)
    assert home.wait_backfill(backfill) == "COMPLETED_SUCCESS"
    assert set(names) <= partitions(home, "report")
    assert simulator.book.batches == before + 3


def test_canceling_a_backfill_ends_its_continuations(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A canceled backfill does not hang: its suspended runs are canceled, the batch stays in the ledger and runs on."""
    backfill = home.backfill(["tickets", "triage"], ["d06"])
    home.wait(lambda: is_waiting(home, "d06"), 120, "a continuation")
    home.cancel_backfill(backfill)
    assert home.wait_backfill(backfill, 60) == "CANCELED"
    assert simulator.book.calls["cancel"] == 0
