"""The sum over materializations is the money spent: a replay shows what it is and costs nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_llmbatch import LLMBatchResource, llm_batch_asset, replays
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.dagster_rooms.test_providers import reach, verdicts

MODEL = "openai:gpt-5-mini"
A_DOLLAR_A_TOKEN = {"input": 1e6, "output": 1e6}


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator that answers at once."""
    with SimulatorServer() as server:
        yield server


@pytest.fixture
def instance(tmp_path: Path) -> "Iterator[dg.DagsterInstance]":
    """An instance on disk."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def run(
    instance: dg.DagsterInstance,
    simulator: SimulatorServer,
    *,
    continues: "str | None" = None,
    io_manager: "dg.IOManager | None" = None,
    asset: "dg.AssetsDefinition | None" = None,
    partition: "str | None" = None,
) -> "tuple[str, dict[str, Any]]":
    """The run's id, and the metadata of its materialization; {} where it failed. `continues` replays another run."""
    llm_batch: LLMBatchResource = reach(simulator, "openai", prices={MODEL: A_DOLLAR_A_TOKEN})
    result = dg.materialize(
        [asset or verdicts(MODEL)],
        resources={"llm_batch": llm_batch, **({"io": io_manager} if io_manager else {})},
        tags={"llmbatch/continues": continues} if continues else {},
        instance=instance,
        partition_key=partition,
        raise_on_error=False,
    )
    made = result.asset_materializations_for_node("verdicts")
    return result.run_id, {key: value.value for key, value in made[0].metadata.items()} if made else {}


def money(made: "dict[str, Any]") -> "tuple[float, int, int]":
    """What a materialization adds to the plots."""
    return made["llmbatch/cost_usd"], made["llmbatch/input_tokens"], made["llmbatch/output_tokens"]


def test_a_replay_costs_nothing(instance: dg.DagsterInstance, simulator: SimulatorServer) -> None:
    """Cost and tokens are 0, its summary still says what the generation cost, and the counts of rows stay."""
    first, paid = run(instance, simulator)
    _, replay = run(instance, simulator, continues=first)
    assert money(paid)[0] == sum(money(paid)[1:]) > 0
    assert money(replay) == (0, 0, 0)
    assert (paid["llmbatch/replayed"], replay["llmbatch/replayed"]) == (False, True)
    assert replay["llmbatch/succeeded"] == replay["dagster/row_count"] == 3
    assert f"cost: {paid['llmbatch/cost_usd']:.4f} USD" in str(replay["llmbatch/summary"])
    assert "cost nothing" in str(replay["llmbatch/summary"])
    assert "cost nothing" not in str(paid["llmbatch/summary"])
    assert simulator.book.batches == 1


def test_another_click_is_another_purchase(instance: dg.DagsterInstance, simulator: SimulatorServer) -> None:
    """A new generation costs again, and says so; a replay after it replays the newer one."""
    first, paid = run(instance, simulator)
    _, again = run(instance, simulator)
    _, replay = run(instance, simulator, continues=first)
    assert simulator.book.batches == 2
    assert money(again)[0] == pytest.approx(money(paid)[0], rel=0.5)
    assert again["llmbatch/generation"] == replay["llmbatch/generation"] == 2
    assert money(replay) == (0, 0, 0)


class Stores(dg.IOManager):
    """Stores nothing, after what the first call of it is told to do."""

    def __init__(self, first: "Callable[[dg.OutputContext], Any] | None" = None) -> None:
        self.first = first

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        first, self.first = self.first, None
        if first is not None:
            first(context)

    def load_input(self, context: dg.InputContext) -> Any:
        raise AssertionError("nobody loads")


def _full(_: dg.OutputContext) -> None:
    raise OSError("the disk is full")


def test_a_run_that_stored_nothing_leaves_the_cost_to_its_retry(
    instance: dg.DagsterInstance, simulator: SimulatorServer
) -> None:
    """Published in the ledger and no materialization: the retry's shows what was paid, and the next one nothing."""
    asset = verdicts(MODEL, io_manager_key="io")
    disk = Stores(_full)
    first, nothing = run(instance, simulator, asset=asset, io_manager=disk)
    _, made = run(instance, simulator, asset=asset, io_manager=disk, continues=first)
    _, replay = run(instance, simulator, asset=asset, io_manager=disk, continues=first)
    assert nothing == {}
    assert (made["llmbatch/replayed"], replay["llmbatch/replayed"]) == (False, True)
    assert money(made)[0] > 0
    assert money(replay) == (0, 0, 0)
    assert simulator.book.batches == 1


def test_a_run_that_is_about_to_show_the_cost_is_left_to_it(
    instance: dg.DagsterInstance, simulator: SimulatorServer
) -> None:
    """Two runs at once: the one that replays while the other still stores shows 0."""
    asset = verdicts(MODEL, io_manager_key="io")
    replayed: list[dict[str, Any]] = []

    def meanwhile(context: dg.OutputContext) -> None:
        replayed.append(run(instance, simulator, asset=asset, io_manager=Stores(), continues=context.run_id)[1])

    _, paid = run(instance, simulator, asset=asset, io_manager=Stores(meanwhile))
    assert money(replayed[0]) == (0, 0, 0)
    assert money(paid)[0] > 0
    assert not paid["llmbatch/replayed"]


def test_many_replays_are_looked_through(
    instance: dg.DagsterInstance, simulator: SimulatorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The materialization that shows the cost is found behind any number of replays, and in its own partition only."""
    monkeypatch.setattr(replays, "PAGE", 2)
    asset = verdicts(MODEL, partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    runs = [run(instance, simulator, asset=asset, partition=key) for key in ("a", "b")]
    later = [run(instance, simulator, asset=asset, partition="a", continues=runs[0][0])[1] for _ in range(6)]
    assert {money(made) for made in later} == {(0, 0, 0)}
    assert all(money(made)[0] > 0 for _, made in runs)
    assert simulator.book.batches == 2


def job_of_verdicts() -> dg.JobDefinition:
    """A job that another process could load: what Re-execute in the UI runs."""

    @llm_batch_asset("verdicts", model=MODEL, prompt="{{ body }}", id_column="id", wait="block")
    def asset() -> pa.Table:
        return pa.table({"id": [1, 2], "body": os.environ["BODIES"].split()})

    llm_batch = LLMBatchResource(
        openai={"api_key": "sk-test", "base_url": os.environ["OPENAI_BASE_URL"]}, poll_interval=0.1
    )
    defs = dg.Definitions([asset], resources={"llm_batch": llm_batch}, jobs=[dg.define_asset_job("all")])
    return defs.resolve_job_def("all")


def test_reexecuting_a_run_replays_it(
    instance: dg.DagsterInstance, simulator: SimulatorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Re-executing replays while the input is the same, at no cost; with another input it buys, as the README says."""
    monkeypatch.setenv("OPENAI_BASE_URL", simulator.base_url)
    monkeypatch.setenv("BODIES", "a b")
    job = dg.reconstructable(job_of_verdicts)

    def execute(parent: "str | None") -> "tuple[str, dict[str, Any]]":
        options = dg.ReexecutionOptions(parent_run_id=parent) if parent else None
        with dg.execute_job(job, instance, reexecution_options=options) as result:
            assert result.success
            (made,) = result.asset_materializations_for_node("verdicts")
            return result.run_id, {key: value.value for key, value in made.metadata.items()}

    first, paid = execute(None)
    second, replay = execute(first)
    assert simulator.book.batches == 1
    assert (paid["llmbatch/replayed"], replay["llmbatch/replayed"]) == (False, True)
    assert paid["llmbatch/input_tokens"] > 0 == replay["llmbatch/input_tokens"]
    monkeypatch.setenv("BODIES", "a c")
    _, again = execute(second)
    assert simulator.book.requests == 4
    assert again["llmbatch/input_tokens"] > 0
