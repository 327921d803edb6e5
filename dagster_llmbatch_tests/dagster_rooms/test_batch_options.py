"""What one asset says differently from its resource: it reaches the run, the sensor and the job, and buys nothing again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_llmbatch import LLMBatchResource, build_llm_batch_sensor
from dagster_llmbatch.core.advance import advance, claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.jobs import build_llm_batch_jobs
from dagster_llmbatch.ledger.records import EntryKey
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import recipe, table
from dagster_llmbatch_tests.dagster_rooms.test_providers import materialize, reach, verdicts


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator that answers at once."""
    with SimulatorServer() as server:
        yield server


def test_a_resource_and_an_asset_make_a_policy() -> None:
    """Each field reaches the rules, an asset's before the resource's; what neither says is the rules' own default."""
    assert LLMBatchResource().policy() == Policy()
    resource = LLMBatchResource(
        max_requests_per_batch=7,
        max_attempts=2,
        poll_interval=5,
        poll_backoff=2,
        poll_interval_max=50,
        on_reclaim="adopt",
    )
    assert resource.policy() == Policy(
        max_requests_per_batch=7, max_attempts=2, poll_first=5, poll_factor=2, poll_max=50, on_reclaim="adopt"
    )
    own = {"max_attempts": 1, "poll_interval": 60, "on_reclaim": "resubmit"}
    assert resource.policy(own) == Policy(
        max_requests_per_batch=7, max_attempts=1, poll_first=60, poll_factor=2, poll_max=60, on_reclaim="resubmit"
    )


def test_an_assets_own_batch_size_and_attempts(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Three rows, two in a batch, each sent once though one gets no answer; the resource says otherwise."""
    simulator.faults.add_rows("missing", containing="SECRET-ROW")
    asset = verdicts("openai:gpt-5-mini", batch_options={"max_requests_per_batch": 2, "max_attempts": 1})
    _, metadata, _ = materialize(asset, reach(simulator, "openai", max_attempts=5), tmp_path)
    assert metadata["llmbatch/batches"] == 2
    assert metadata["llmbatch/review"] == 1
    assert simulator.book.batches == 2


@pytest.mark.parametrize("look", ["sensor", "job"])
def test_who_polls_without_the_asset_keeps_its_interval(simulator: SimulatorServer, tmp_path: Path, look: str) -> None:
    """The plan carries the options: the sensor and the collect job poll the next time when the asset says."""
    simulator.store.batch_seconds = 10_000
    resource = reach(simulator, "openai")
    own = {"poll_interval": 0.01, "poll_backoff": 1.0, "poll_interval_max": 5_000.0}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with resource.workplace(instance, options=own) as work:
            batch = out(work, resource, {"batch_options": {**own, "poll_backoff": 100_000.0}})
        if look == "sensor":
            sensor = build_llm_batch_sensor()
            defs = dg.Definitions(sensors=[sensor], resources={"llm_batch": resource})
            given: dict[str, Any] = {"instance": instance, "definitions": defs, "resources": {"llm_batch": resource}}
            with dg.build_sensor_context(**given) as context:
                sensor.evaluate_tick(context)
        else:
            (job,) = build_llm_batch_jobs()
            assert job.execute_in_process(instance=instance, resources={"llm_batch": resource}).success
        with resource.ledger(instance) as (ledger, _):
            assert ledger.batch(batch).poll_interval == 1_000.0


def out(work: Workplace, resource: LLMBatchResource, settings: "dict[str, Any]") -> str:
    """The id of a batch that is out and due, of a plan with more settings."""
    key = EntryKey(resource.namespace, "triage", "")
    plan = plan_rows(
        table(),
        recipe=recipe(),
        provider=work.provider_of("openai"),
        segments=work.segments,
        namespace=key.namespace,
        partition="",
    )
    plan = replace(plan, settings={**plan.settings, **settings})
    entry, _ = claim(key, plan, run_id="r1", lineage=("r1",), ledger=work.ledger, now=work.now())
    advance(entry.id, work, run_id="r1")
    (batch,) = work.ledger.batches(entry.id)
    return batch.id


def test_other_options_are_the_same_question(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A changed interval is no reason to buy: code version and plan stay, so a second run attaches to what is out."""
    resource = reach(simulator, "openai")
    versions, digests = set(), set()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        for interval in (0.1, 0.2):
            asset = verdicts("openai:gpt-5-mini", batch_options={"poll_interval": interval})
            versions.add(next(iter(asset.specs)).code_version)
            assert dg.materialize([asset], resources={"llm_batch": resource}, instance=instance).success
            with resource.ledger(instance) as (ledger, _):
                entry = ledger.latest_entry(EntryKey("default", "verdicts", ""))
            assert entry is not None
            assert entry.settings["batch_options"] == {"poll_interval": interval}
            digests.add(entry.plan_digest)
    assert (len(versions), len(digests)) == (1, 1)
