"""What a user declares: names, defaults, and errors at definition time or before anything is spent."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel

import dagster_llmbatch
from dagster_llmbatch import (
    LLMBatchResource,
    ParquetIOManager,
    build_llm_batch_asset,
    build_llm_batch_checks,
    build_llm_batch_sensor,
    llm_batch_asset,
    llm_batch_definitions,
)
from dagster_llmbatch.errors import ConfigurationError, UnknownProviderError, UnportableSchemaError
from dagster_llmbatch.simulator.server import SimulatorServer


class Triage(BaseModel):
    category: Literal["bug", "billing"]
    urgent: bool


DAYS = dg.StaticPartitionsDefinition(["a", "b"])
MODEL: dict[str, Any] = {"model": "openai:gpt-5-mini", "output": Triage, "id_column": "id"}


def rows() -> pa.Table:
    return pa.table({"id": [1, 2], "body": ["x", "y"]})


def build(**changes: Any) -> dg.AssetsDefinition:
    return build_llm_batch_asset("triage", input="tickets", **{"prompt": "Do {{ body }}", **MODEL, **changes})


@dg.asset
def tickets() -> pa.Table:
    return rows()


def resource(simulator: SimulatorServer, **changes: Any) -> LLMBatchResource:
    known = {"openai": {"api_key": "sk-secret", "base_url": simulator.base_url}, "poll_interval": 0.05}
    return LLMBatchResource(**{**known, **changes})


def test_the_public_names_are_what_all_says() -> None:
    """Everything in __all__ is there, and no other public object of ours is."""
    found = {name for name in dagster_llmbatch.__all__ if hasattr(dagster_llmbatch, name)}
    assert found == set(dagster_llmbatch.__all__)
    assert len(found) == 14


def test_dagsters_own_fields_are_passed_through() -> None:
    """Group, owners, tags, kinds, deps, description, partitions, pool, code version and backfill policy reach the asset."""
    asset = build(
        group_name="support",
        owners=["team:data"],
        tags={"tier": "gold"},
        description="d",
        deps=["other"],
        partitions_def=DAYS,
        metadata={"mine": 1},
        automation_condition=dg.AutomationCondition.eager(),
        pool="openai",
    )
    spec = next(iter(asset.specs))
    assert (spec.group_name, spec.owners, spec.description) == ("support", ["team:data"], "d")
    assert spec.tags["tier"] == "gold"
    assert {"openai", "parquet"} <= spec.kinds
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"tickets", "other"}
    assert spec.metadata["mine"] == 1
    assert spec.partitions_def == DAYS
    assert spec.automation_condition is not None
    assert asset.op.pool == "openai"
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(1)


def test_an_asset_spec_is_respected() -> None:
    """Key, group and metadata of a given AssetSpec stay."""
    asset = build_llm_batch_asset(
        dg.AssetSpec(["ns", "triage"], group_name="g", metadata={"m": 1}), input="tickets", prompt="{{ body }}", **MODEL
    )
    spec = next(iter(asset.specs))
    assert (spec.key, spec.group_name, spec.metadata["m"]) == (dg.AssetKey(["ns", "triage"]), "g", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "openai:gpt-5"},
        {"prompt": "Other {{ body }}"},
        {"system": "s"},
        {"params": {"temperature": 0}},
        {"output": None},
    ],
)
def test_the_code_version_changes_with_what_is_asked(change: "dict[str, Any]") -> None:
    """Model, prompt, system, params and output each give another code version; the rest does not."""

    def version(**changes: Any) -> "str | None":
        return next(iter(build(**changes).specs)).code_version

    assert version() == version(group_name="other", wait="block")
    assert version() != version(**change)
    assert version(code_version="mine", **change) == "mine"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "openai/gpt-5-mini"}, UnknownProviderError, "provider:model"),
        ({"model": "acme:gpt"}, UnknownProviderError, "openai"),
        ({"output": dict[str, str]}, ConfigurationError, "pydantic model"),
        ({"output": {"type": "object", "additionalProperties": {"type": "string"}}}, UnportableSchemaError, "triage"),
        ({"prompt": "{% if %}"}, ConfigurationError, "line 1"),
        ({"prompt": " "}, ConfigurationError, "empty"),
        ({"wait": "never"}, ConfigurationError, "wait"),
        ({"policy": "realtime"}, ConfigurationError, "policy"),
        ({"warn_above": 0.9}, ConfigurationError, "warn_above"),
        ({"params": {"when": object()}}, ConfigurationError, "JSON"),
        ({"id_column": ["id"]}, ConfigurationError, "triage: id_column"),
        ({"prompt": lambda row, index, more: "x"}, ConfigurationError, "triage: the prompt function"),
        ({"batch_options": {"max_attemps": 1}}, ConfigurationError, r"triage: batch_options has no \['max_attemps'\]"),
        ({"batch_options": {"max_attempts": 0}}, ConfigurationError, "triage: batch_options, max_attempts: .*greater"),
        ({"batch_options": {"on_reclaim": "hope"}}, ConfigurationError, "triage: batch_options, on_reclaim: .*'adopt'"),
    ],
)
def test_what_cannot_work_is_refused_at_definition(
    change: "dict[str, Any]", error: "type[Exception]", message: str
) -> None:
    """Unknown providers, unportable outputs, broken templates and bad options are errors that name the asset."""
    with pytest.raises(error, match=message):
        build(**change)


def test_columns_show_before_the_first_materialization() -> None:
    """The definition lists the output's and the system columns with their types; a schema of the user's own stays."""
    schema = next(iter(build(extras=["reasoning"]).specs)).metadata["dagster/column_schema"]
    kinds = {column.name: column.type for column in schema.columns}
    assert list(kinds)[:4] == ["category", "urgent", "llm_row_id", "llm_status"]
    assert (kinds["urgent"], kinds["llm_cost_usd"], kinds["llm_reasoning"]) == ("bool", "double", "large_string")
    mine = dg.TableSchema(columns=[dg.TableColumn("mine")])
    for asset in (
        build(metadata={"dagster/column_schema": mine}),
        build_llm_batch_asset(
            dg.AssetSpec("triage", metadata={"dagster/column_schema": mine}), input="tickets", prompt="x", **MODEL
        ),
    ):
        assert next(iter(asset.specs)).metadata["dagster/column_schema"] == mine


def test_unknown_resource_fields_are_refused() -> None:
    """A typo in the resource is an error, not silence."""
    with pytest.raises(Exception, match="poll_intervall"):
        LLMBatchResource(openai={"api_key": "k"}, poll_intervall=3)  # type: ignore[call-arg]


def test_keys_never_show() -> None:
    """The API key is in no repr, and a key alone is enough configuration."""
    found = LLMBatchResource(openai="sk-secret")  # type: ignore[arg-type]
    assert "sk-secret" not in repr(found)
    assert found.openai is not None
    assert found.openai.base_url.startswith("https://")


def materialize(
    assets: "list[Any]", llm_batch: LLMBatchResource, folder: Path, **options: Any
) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        return dg.materialize(
            assets, resources={"llm_batch": llm_batch}, instance=instance, raise_on_error=False, **options
        )


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [e for e in result.all_events if e.is_step_failure]
    assert event.step_failure_data.error is not None
    return event.step_failure_data.error.message


def test_no_api_key_names_the_field_and_the_variable(tmp_path: Path) -> None:
    """A missing key is said before any call, with what to set where."""
    result = materialize([tickets, build()], LLMBatchResource(), tmp_path)
    assert "OPENAI_API_KEY" in failure(result)


def test_a_ledger_in_memory_is_refused(tmp_path: Path) -> None:
    """A ledger that would not last is an error before any call."""
    with SimulatorServer() as simulator:
        result = materialize([tickets, build()], resource(simulator, ledger_url="sqlite://"), tmp_path)
        assert "in memory" in failure(result)
        assert simulator.book.calls.total() == 0


def test_the_decorator_takes_inputs_config_and_resources_the_dagster_way(tmp_path: Path) -> None:
    """Upstream assets, config, context and resources arrive as in any asset; pandas rows are welcome."""

    class Limit(dg.Config):
        rows: int = 1

    class Suffix(dg.ConfigurableResource):
        text: str

    @llm_batch_asset(prompt=lambda row: f"Do {row['body']}", **MODEL)
    def answers(context: dg.AssetExecutionContext, config: Limit, suffix: Suffix, tickets: pa.Table) -> pd.DataFrame:
        """Answers."""
        assert context.asset_key == dg.AssetKey("answers")
        frame = tickets.to_pandas().head(config.rows)
        return frame.assign(body=frame["body"] + suffix.text)

    assert next(iter(answers.specs)).description == "Answers."
    with SimulatorServer() as simulator, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = dg.materialize(
            [tickets, answers],
            resources={"llm_batch": resource(simulator), "suffix": Suffix(text="!")},
            run_config=dg.RunConfig(ops={"answers": Limit(rows=2)}),
            instance=instance,
        )
        assert result.success
        assert simulator.book.requests == 2


def test_results_go_to_another_io_manager_as_a_table(tmp_path: Path) -> None:
    """`io_manager_key` hands a pyarrow Table over."""
    taken: list[Any] = []

    class Taking(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            taken.append(obj)

        def load_input(self, context: dg.InputContext) -> Any:
            return rows()

    @dg.io_manager
    def taking() -> Taking:
        return Taking()

    with SimulatorServer() as simulator, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = dg.materialize(
            [dg.SourceAsset("tickets", io_manager_key="mine"), build(io_manager_key="mine")],
            resources={"llm_batch": resource(simulator), "mine": taking},
            instance=instance,
        )
    assert result.success
    assert isinstance(taken[0], pa.Table)


def test_a_range_of_partitions_is_refused(tmp_path: Path) -> None:
    """A run over several partitions says that one a run is wanted, and spends nothing."""

    @llm_batch_asset(prompt="{{ body }}", partitions_def=DAYS, **MODEL)
    def parted() -> pa.Table:
        return rows()

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    with SimulatorServer() as simulator:
        result = materialize([parted], resource(simulator), tmp_path, tags=tags)
        assert "range of partitions" in failure(result)
        assert simulator.book.calls.total() == 0


def test_checks_read_the_counts_and_gate(tmp_path: Path) -> None:
    """Over `fail_above` the check fails with ERROR and downstream is held back; the asset stays materialized."""
    asset = build(fail_above=0.4, warn_above=0.1)

    @dg.asset
    def below(triage: pa.Table) -> None: ...

    with SimulatorServer() as simulator:
        simulator.faults.add_rows("refuse", containing="x")
        result = materialize([tickets, asset, below, *build_llm_batch_checks(asset)], resource(simulator), tmp_path)
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.severity) == (
        "validation_failure_rate",
        False,
        dg.AssetCheckSeverity.ERROR,
    )
    assert check.metadata["llmbatch/failure_rate"].value == 0.5
    assert result.asset_materializations_for_node("triage")
    assert not result.asset_materializations_for_node("below")


def test_the_summary_comes_first_and_says_what_little_was_paid(tmp_path: Path) -> None:
    """The UI keeps the order of metadata; a cost below a hundredth of a cent does not read as zero."""
    with SimulatorServer() as simulator:
        result = materialize([tickets, build()], resource(simulator), tmp_path)
    (made,) = result.asset_materializations_for_node("triage")
    cost = made.metadata["llmbatch/cost_usd"].value
    assert next(iter(made.metadata)) == "llmbatch/summary"
    summary = str(made.metadata["llmbatch/summary"].value)
    assert 0 < cost < 0.0001
    assert float(summary.split("cost: ")[1].split(" USD")[0]) == pytest.approx(cost, rel=0.01)
    assert "1 batch in 1 wave," in summary


def test_definitions_merge(tmp_path: Path) -> None:
    """Two llm_batch_definitions in one code location share sensor and jobs."""
    other = build_llm_batch_asset("mood", input="tickets", prompt="{{ body }}", **MODEL)
    base = dg.Definitions(assets=[tickets], resources={"llm_batch": LLMBatchResource(openai={"api_key": "k"})})
    merged = dg.Definitions.merge(base, llm_batch_definitions(build()), llm_batch_definitions(other))
    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    assert len(repository.sensor_defs) == 1
    assert {"triage", "mood"} <= {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}


def test_the_sensor_runs_by_default_and_ticks_without_work(tmp_path: Path) -> None:
    """A tick over an empty ledger says so and asks the provider nothing."""
    sensor = build_llm_batch_sensor()
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    with SimulatorServer() as simulator, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        llm_batch = resource(simulator)
        defs = dg.Definitions(assets=[tickets, build()], sensors=[sensor], resources={"llm_batch": llm_batch})
        with dg.build_sensor_context(
            instance=instance, definitions=defs, resources={"llm_batch": llm_batch}
        ) as context:
            tick = sensor.evaluate_tick(context)
        assert tick.skip_message == "no batches pending"
        assert simulator.book.calls.total() == 0


def test_the_default_io_manager_needs_no_configuration(tmp_path: Path) -> None:
    """Results are one Parquet file a partition, loadable downstream by annotation."""
    loaded: list[Any] = []

    @dg.asset
    def below(triage: pd.DataFrame) -> None:
        loaded.append(triage)

    with SimulatorServer() as simulator:
        result = materialize([tickets, build(), below], resource(simulator), tmp_path)
    assert result.success
    assert list(loaded[0]["id"]) == [1, 2]
    assert list(tmp_path.rglob("triage/*.parquet"))
    assert ParquetIOManager().base_path is None


def test_no_secret_and_no_prompt_in_the_event_log(tmp_path: Path) -> None:
    """Neither key, prompt text nor answers are in any event of a run."""
    with SimulatorServer() as simulator:
        result = materialize([tickets, build(prompt="PROMPTMARK {{ body }}")], resource(simulator), tmp_path)
    text = "".join(str(event) for event in result.all_events)
    assert "sk-secret" not in text
    assert "PROMPTMARK" not in text


def test_importing_needs_no_extra() -> None:
    """The package imports without the providers' packages, the simulator's and the test dependencies."""
    hidden = ["starlette", "uvicorn", "openai", "anthropic", "google.genai", "polars", "duckdb", "psycopg2"]
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden})); import dagster_llmbatch"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_loads_no_frame_library() -> None:
    """Each run and each tick pays for what the import loads: pandas and polars come only when a table needs them."""
    code = "import sys, dagster_llmbatch; sys.exit(bool({'pandas', 'polars', 'alembic', 'genai_prices'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
