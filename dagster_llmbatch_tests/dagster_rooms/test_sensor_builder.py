"""The sensor's tick: what it asks the provider for, and how often."""

import time
from pathlib import Path

import dagster as dg
import pyarrow as pa

from dagster_llmbatch import LLMBatchResource, build_llm_batch_asset, build_llm_batch_sensor
from dagster_llmbatch.core.advance import Waiting, advance, claim
from dagster_llmbatch.core.decide import Claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.ledger.records import EntryKey
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import recipe, table

RUNS = ("8e9b3d52-3e65-4a3a-9d7e-7a1f5a0f2a10", "8e9b3d52-3e65-4a3a-9d7e-7a1f5a0f2a11")
SENSOR = build_llm_batch_sensor()
triage = build_llm_batch_asset(
    "triage", input="tickets", model="openai:gpt-5-mini", prompt="{{ body }}", id_column="id"
)


@dg.asset
def tickets() -> pa.Table:
    return table()


def leave_waiting(instance: dg.DagsterInstance, resource: LLMBatchResource) -> None:
    """Two runs of one partition, 100 seconds ago: the first bought its batch, the second attached, and both wait."""
    with resource.workplace(instance, now=lambda: time.time() - 100) as work:
        for run_id, expected in zip(RUNS, (Claim.NEW, Claim.ATTACH), strict=True):
            instance.add_run(dg.DagsterRun(job_name="j", run_id=run_id, status=dg.DagsterRunStatus.STARTED))
            plan = plan_rows(
                table(),
                recipe=recipe(),
                provider=work.provider_of("openai"),
                segments=work.segments,
                namespace="default",
                partition="",
            )
            key = EntryKey("default", "triage", "")
            entry, how = claim(key, plan, run_id=run_id, lineage=(run_id,), ledger=work.ledger, now=work.now())
            assert how is expected
            assert isinstance(advance(entry.id, work, run_id=run_id), Waiting)
            work.ledger.wait(entry.id, run_id, now=work.now())


def tick(instance: dg.DagsterInstance, resource: LLMBatchResource) -> str:
    """One tick; what it says."""
    resources = {"llm_batch": resource}
    definitions = dg.Definitions(assets=[tickets, triage], sensors=[SENSOR], resources=resources)
    with dg.build_sensor_context(instance=instance, definitions=definitions, resources=resources) as context:
        return SENSOR.evaluate_tick(context).skip_message or ""


def test_a_batch_is_asked_for_once_a_tick_however_many_runs_wait(tmp_path: Path) -> None:
    """Two runs that wait for one batch are one status call when it is due, and none when it is not."""
    with SimulatorServer(batch_seconds=1e9) as simulator, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        resource = LLMBatchResource(openai={"api_key": "k", "base_url": simulator.base_url})  # type: ignore[arg-type]
        leave_waiting(instance, resource)
        calls = simulator.book.calls
        assert calls["status"] == 0
        assert tick(instance, resource).startswith("1 batch pending; triage: ")
        assert calls["status"] == 1
        assert tick(instance, resource).startswith("1 batch pending")
        assert calls["status"] == 1
        with resource.ledger(instance) as (ledger, _):
            assert {wait.run_id for wait in ledger.waiting_runs("default")} == set(RUNS)


def test_a_tick_comes_at_least_as_often_as_a_batch_is_due() -> None:
    """The sensor's interval is not longer than the first poll interval, both as they are by default."""
    assert 0 < (SENSOR.minimum_interval_seconds or 0) <= Policy().poll_first
