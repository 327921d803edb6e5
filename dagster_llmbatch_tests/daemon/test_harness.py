"""The deployment that the daemon tests use, on plain Dagster assets: what fails here is not the product's fault."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_llmbatch_tests.daemon.harness import DagsterHome
from dagster_llmbatch_tests.daemon.scenes import partitions

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.xdist_group("daemon")]

PLAIN = """
import dagster as dg

DAYS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])


@dg.asset(partitions_def=DAYS)
def first() -> int:
    return 1


@dg.asset(partitions_def=DAYS)
def second(first: int) -> int:
    return first + 1


@dg.sensor(minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def ticking():
    return dg.SkipReason("ticked")


defs = dg.Definitions(assets=[first, second], sensors=[ticking], executor=dg.in_process_executor)
"""
ADDED = PLAIN.replace("\ndefs =", "\n@dg.asset\ndef third() -> int:\n    return 3\n\n\ndefs =").replace(
    "[first, second]", "[first, second, third]"
)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[DagsterHome]":
    """A deployment without anything of ours, on either storage."""
    url = request.getfixturevalue("module_postgres_url") if request.param == "postgres" else None
    with DagsterHome(tmp_path_factory.mktemp("plain"), PLAIN, postgres_url=url) as home:
        yield home


def test_a_run_and_its_reexecution_materialize(plain: DagsterHome) -> None:
    """One partition of both assets, launched as the UI launches it, then all of it again."""
    run = plain.launch(["first", "second"], "a")
    assert plain.wait_run(run) == "SUCCESS"
    assert partitions(plain, "first") == partitions(plain, "second") == {"a"}
    again = plain.reexecute(run, "ALL_STEPS")
    assert plain.wait_run(again) == "SUCCESS"
    assert {m["runId"] for m in plain.materialized("second")} == {run, again}
    plain.delete_run(again)
    assert plain.status(again) is None


def test_a_backfill_of_three_partitions_ends_green(plain: DagsterHome) -> None:
    """Three partitions through the backfill daemon and the run queue."""
    backfill = plain.backfill(["first", "second"], ["b", "c", "d"])
    assert plain.wait_backfill(backfill) == "COMPLETED_SUCCESS"
    assert {"b", "c", "d"} <= partitions(plain, "second")
    assert plain.run_processes() == []


def test_a_deploy_is_seen_after_a_reload(plain: DagsterHome) -> None:
    """An asset that is added to the definitions can be materialized once the location is reloaded."""
    plain.deploy(ADDED)
    plain.reload()
    assert plain.wait_run(plain.launch(["third"])) == "SUCCESS"


def test_leaving_ends_every_process(tmp_path: Path) -> None:
    """No process of a home outlives it, and waiting for what never comes says what was awaited."""
    with DagsterHome(tmp_path, PLAIN) as home, pytest.raises(TimeoutError, match="a miracle"):
        home.wait(lambda: False, 0.5, "a miracle")
    mark = f"DAGSTER_HOME={tmp_path}".encode()

    def left() -> "list[str]":
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(path.name)
            except OSError:
                continue
        return found

    assert left() == []
