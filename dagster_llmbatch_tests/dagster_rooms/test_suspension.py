"""Waiting without a daemon at hand: what is refused, what is left to others, and the Dagster calls that are not public."""

from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_llmbatch import build_llm_batch_asset, build_llm_batch_sensor
from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch.errors import NobodyWakesError
from dagster_llmbatch.ledger.records import EntryKey, WaitingRun
from dagster_llmbatch.partition_run import LLMBatchAsset, _how_to_wait
from dagster_llmbatch.resource import LLMBatchResource
from dagster_llmbatch.suspension import groups, llm_batch_assets, sensors
from dagster_llmbatch_tests.core.workplace import recipe

triage = build_llm_batch_asset("triage", input="tickets", model="openai:m", prompt="{{ body }}", id_column="id")


@dg.asset
def tickets() -> pa.Table:
    return pa.table({"id": [1], "body": ["x"]})


@dg.asset
def report(triage: pa.Table) -> None: ...


def repository(*sensor: dg.SensorDefinition) -> Any:
    resources = {"llm_batch": LLMBatchResource(openai={"api_key": "k"})}  # type: ignore[arg-type]
    return dg.Definitions(assets=[tickets, triage, report], sensors=sensor, resources=resources).get_repository_def()


def test_no_sensor_is_refused_before_any_spend() -> None:
    """A location without our sensor cannot suspend; with it, or with wait="block", it can."""
    with dg.DagsterInstance.local_temp() as instance:
        context: Any = SimpleNamespace(
            run=SimpleNamespace(remote_job_origin=object()),
            instance=instance,
            repository_def=repository(),
            log=SimpleNamespace(warning=lambda *_: None),
        )
        asset = LLMBatchAsset(dg.AssetKey("triage"), recipe(), "auto", 20, "suspend", streams=True)
        resource = LLMBatchResource(openai={"api_key": "k"})  # type: ignore[arg-type]
        with pytest.raises(NobodyWakesError, match="build_llm_batch_sensor"):
            _how_to_wait(context, asset, resource)
        context.repository_def = repository(build_llm_batch_sensor())
        how, notes = _how_to_wait(context, asset, resource)
        assert how == "suspend"
        assert any("daemon" in note for note in notes)


def test_a_run_that_no_daemon_can_continue_blocks_and_says_so() -> None:
    """Started in process: it waits in the run."""
    with dg.DagsterInstance.local_temp() as instance:
        context: Any = SimpleNamespace(
            run=SimpleNamespace(remote_job_origin=None),
            instance=instance,
            repository_def=repository(),
            log=SimpleNamespace(warning=lambda *_: None),
        )
        asset = LLMBatchAsset(dg.AssetKey("triage"), recipe(), "auto", 20, "suspend", streams=True)
        how, notes = _how_to_wait(context, asset, LLMBatchResource(openai={"api_key": "k"}))  # type: ignore[arg-type]
    assert how == "block"
    assert any("waits in the run" in note for note in notes)


def test_assets_and_sensors_are_found_in_the_repository() -> None:
    """The location's LLM assets and sensors are known by their marks, whatever their names."""
    found = repository(build_llm_batch_sensor(name="mine"))
    assert llm_batch_assets(found) == {dg.AssetKey("triage")}
    assert sensors(found) == {"mine"}
    within = {dg.AssetKey(name) for name in ("tickets", "triage", "report")}
    below = internals.downstream_of(found, [dg.AssetKey("triage")], within)
    assert below == {dg.AssetKey("triage"), dg.AssetKey("report")}
    assert internals.downstream_of(found, [dg.AssetKey("gone")], within) == frozenset()


def test_waits_are_grouped_by_their_continuation() -> None:
    """A run and its retry share a continuation; a run without one stands alone."""
    waits = [
        WaitingRun(run_id, "e", EntryKey("n", "triage"), continuation, 0.0)
        for run_id, continuation in (("r1", "c"), ("r2", "c"), ("r3", None))
    ]
    found = groups(waits)
    assert [group.run_ids for group in found] == [("r1", "r2"), ("r3",)]
    assert found[0].assets == {dg.AssetKey("triage")}


def test_partitions_of_runs() -> None:
    """One partition by its tag or by a range of one; none; several."""

    def partition(**tags: str) -> "str | None":
        named = {f"dagster/{name}": value for name, value in tags.items()}
        return internals.partition_of(dg.DagsterRun(job_name="j", tags=named))

    ranged = "asset_partition_range_start", "asset_partition_range_end"
    assert partition() == ""
    assert partition(partition="a") == "a"
    assert partition(**dict(zip(ranged, "aa", strict=True))) == "a"
    assert partition(**dict(zip(ranged, "ab", strict=True))) is None
    grid = dg.MultiPartitionsDefinition({n: dg.StaticPartitionsDefinition(["1"]) for n in ("x", "y")})
    tags = internals.single_partition_tags({f"dagster/{name}": "1|1" for name in ranged} | {"mine": "2"}, grid)
    assert tags == {"dagster/partition": "1|1", "dagster/partition/x": "1", "dagster/partition/y": "1", "mine": "2"}


def test_dagsters_inner_calls_are_there() -> None:
    """The Dagster calls that are not public still exist; the message says with which version that changed."""
    changed = f"changed in Dagster {dg.__version__}: see dagster_internals.py"
    with dg.DagsterInstance.local_temp() as instance:
        assert internals.has_run_queue(instance) in (True, False), changed
        assert internals.stopped_sensors(instance) == frozenset(), changed
        assert internals.backfill_status(instance, "none") is None, changed
        assert not internals.daemon_heard_within(instance, 60, 0.0), changed
        assert internals.postgres_url(instance) is None, changed
        assert internals.launches_elsewhere(instance) is None, changed
        assert internals.materialized_and_gated(instance, "none") == (set(), set()), changed
    assert internals.derived_run_id("8e9b3d52-3e65-4a3a-9d7e-7a1f5a0f2a10", "continuation") == internals.derived_run_id(
        "8e9b3d52-3e65-4a3a-9d7e-7a1f5a0f2a10", "continuation"
    ), changed
