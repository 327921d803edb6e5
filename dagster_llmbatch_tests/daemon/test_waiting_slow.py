"""Waiting partitions with a real daemon on PostgreSQL, with run retries on: the rarer ways a run goes."""

import time

import pytest

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.daemon.deployment import SHOP
from dagster_llmbatch_tests.daemon.harness import DagsterHome
from dagster_llmbatch_tests.daemon.scenes import assets_of, end_batches, finished, is_waiting, partitions, waiting

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.xdist_group("daemon")]


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


def test_a_retried_sibling_joins_the_continuation_of_the_run_it_retries(
    home: DagsterHome, simulator: SimulatorServer
) -> None:
    """Run retries on, a sibling that fails once: the retry mends it, and what needs both runs after both."""
    (home.folder / "sibling-d20").touch()
    run = home.launch(["tickets", "triage", "sibling", "after_sibling"], "d20")
    assert home.wait_run(run) == "FAILURE"
    retry = home.wait(lambda: home.runs(tags=[{"key": "dagster/parent_run_id", "value": run}]), 90, "the retry")[0][
        "id"
    ]
    assert home.wait_run(retry) == "SUCCESS"
    end_batches(simulator)
    home.wait(lambda: "d20" in partitions(home, "triage"), 90, "triage")
    home.wait(lambda: "d20" in partitions(home, "after_sibling"), 90, "what needs both")


def test_a_deploy_that_removes_the_downstream_asset(home: DagsterHome, simulator: SimulatorServer) -> None:
    """While the batch is out the downstream asset is deleted from the code: the LLM asset is published all the same."""
    before = simulator.book.batches
    run = home.launch(["tickets", "triage", "report"], "d21")
    waiting(home, run)
    source = (home.folder / "shop.py").read_text()
    try:
        home.deploy(source.replace("tickets, report, joined,", "tickets, joined,"))
        home.reload()
        end_batches(simulator)
        home.wait(lambda: "d21" in partitions(home, "triage"), 120, "triage")
    finally:
        home.deploy(source)
        home.reload()
    assert simulator.book.batches == before + 1


def test_thirty_partitions(home: DagsterHome, simulator: SimulatorServer) -> None:
    """A backfill of thirty partitions with an upstream and a downstream asset: green, one batch a partition."""
    before = simulator.book.batches
    names = [f"d{i}" for i in range(30, 60)]
    backfill = home.backfill(["tickets", "triage", "report"], names)
    home.wait(lambda: all(is_waiting(home, name) for name in names), 900, "thirty continuations")
    assert home.run_processes() == []
    assert home.backfill_status(backfill) == "REQUESTED"
    end_batches(simulator)
    assert home.wait_backfill(backfill, 1200) == "COMPLETED_SUCCESS"
    assert set(names) <= partitions(home, "report")
    assert simulator.book.batches == before + 30


def test_without_a_run_queue_the_sensor_asks_for_a_run(
    tmp_path_factory: pytest.TempPathFactory, simulator: SimulatorServer
) -> None:
    """DefaultRunCoordinator: the continuation is replaced by a requested run, and the backfill ends green."""
    environment = {"OPENAI_API_KEY": "sk-test", "SIMULATOR": simulator.base_url}
    before = simulator.book.batches
    with DagsterHome(tmp_path_factory.mktemp("q"), SHOP.read_text(), environment=environment, queue=False) as home:
        backfill = home.backfill(["tickets", "triage", "report"], ["d00"])
        home.wait(lambda: is_waiting(home, "d00"), 120, "a continuation")
        end_batches(simulator)
        assert home.wait_backfill(backfill, 240) == "COMPLETED_SUCCESS"
        assert partitions(home, "report") == {"d00"}
    assert simulator.book.batches == before + 1
