"""Assets at each provider: where a model is batched and why, what a prompt may hold, and what no log or store may hold."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from dagster_llmbatch import DocumentPart, ImagePart, LLMBatchResource, TextPart, llm_batch_asset
from dagster_llmbatch.errors import ConfigurationError, UnknownProviderError, UnportableSchemaError
from dagster_llmbatch.simulator.server import SimulatorServer

PIXEL = bytes.fromhex("89504e470d0a1a0a")
MODELS = ["openai:gpt-5-mini", "anthropic:claude-haiku-4-5", "gemini:gemini-2.5-flash", "openrouter:z-ai/glm-5.3"]


class Verdict(BaseModel):
    good: bool
    tags: "dict[str, int]"
    note: "str | None" = None


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator that answers at once."""
    with SimulatorServer() as server:
        yield server


def reach(simulator: SimulatorServer, *names: str, **others: Any) -> LLMBatchResource:
    """A resource with these providers at the simulator."""
    given = {n: {"api_key": f"sk-secret-{n}", "base_url": simulator.addresses[n]} for n in names}
    return LLMBatchResource(**given, poll_interval=0.1, request_timeout=20.0, **others)


def materialize(
    asset: dg.AssetsDefinition, resource: LLMBatchResource, folder: Path, *, raises: bool = True
) -> "tuple[dg.ExecuteInProcessResult, dict[str, Any], list[str]]":
    """The run, the materialization's metadata as plain values, and the lines of the run's log."""
    folder.mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        result = dg.materialize([asset], resources={"llm_batch": resource}, instance=instance, raise_on_error=raises)
        lines = [f"{entry.level} {entry.user_message}" for entry in instance.all_logs(result.run_id)]
        failed = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
        lines += [error.message for error in failed if error is not None]
    made = result.asset_materializations_for_node(asset.node_def.name)
    metadata = {name: value.value for name, value in made[0].metadata.items()} if made else {}
    return result, metadata, lines


def verdicts(model: str, **asked: Any) -> dg.AssetsDefinition:
    """An asset of three rows."""
    asked = {"prompt": "Judge: {{ body }}", "output": Verdict, **asked}

    @llm_batch_asset("verdicts", model=model, id_column="id", **asked)
    def asset() -> pa.Table:
        return pa.table({"id": [1, 2, 3], "body": ["a SECRET-ROW", "b", "c"]})

    return asset


def stored(folder: Path) -> pa.Table:
    """The table that the asset's IO manager wrote."""
    (path,) = folder.rglob("verdicts/*.parquet")
    return pq.read_table(path)


@pytest.mark.parametrize("model", MODELS)
def test_an_asset_at_each_provider(simulator: SimulatorServer, tmp_path: Path, model: str) -> None:
    """Maps and optional fields travel in every dialect; the metadata says which provider and why."""
    provider = model.partition(":")[0]
    _, metadata, _ = materialize(verdicts(model), reach(simulator, provider), tmp_path)
    assert (metadata["llmbatch/succeeded"], metadata["llmbatch/provider"]) == (3, provider)
    assert metadata["llmbatch/provider_reason"]
    assert "llmbatch/warnings" not in metadata
    assert simulator.book.requests == 3


def test_fallback_to_openrouter_is_said(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The vendor has no key and OpenRouter has: a WARNING in the run's log and the metadata, and the batch is there."""
    _, metadata, lines = materialize(verdicts("openai:gpt-5-mini"), reach(simulator, "openrouter"), tmp_path)
    assert metadata["llmbatch/provider"] == "openrouter"
    assert "OpenRouter" in " ".join(metadata["llmbatch/warnings"])
    assert any(line.startswith("30 ") and "OpenRouter" in line for line in lines)
    assert [create["provider"] for create in simulator.book.creates] == ["openrouter"]


def test_an_explicit_provider_never_falls_back(simulator: SimulatorServer, tmp_path: Path) -> None:
    """batch_provider names a provider without a key: the run fails with what to set, and nothing is sent."""
    asset = verdicts("openai:gpt-5-mini", batch_provider="openai")
    result, _, lines = materialize(asset, reach(simulator, "openrouter"), tmp_path, raises=False)
    assert not result.success
    assert "OPENAI_API_KEY" in " ".join(lines)
    assert simulator.book.calls.total() == 0


def test_a_models_own_batch_provider(simulator: SimulatorServer, tmp_path: Path) -> None:
    """What the resource says of a model comes before its vendor."""
    resource = reach(simulator, "openai", "openrouter", models={"openai:gpt-5-mini": {"batch_provider": "openrouter"}})
    _, metadata, _ = materialize(verdicts("openai:gpt-5-mini"), resource, tmp_path)
    assert metadata["llmbatch/provider"] == "openrouter"


def test_a_compatible_server(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A server that speaks OpenAI's API is configuration; one without batch endpoints is refused before anything is sent."""
    server = {"base_url": simulator.addresses["openai"], "api_key": "local"}
    resource = reach(simulator, compatible={"vllm": {**server, "batches": True}, "ollama": server})
    _, metadata, _ = materialize(verdicts("compatible/vllm:llama"), resource, tmp_path / "a")
    assert (metadata["llmbatch/succeeded"], metadata["llmbatch/provider"]) == (3, "compatible/vllm")
    before = simulator.book.calls.total()
    result, _, lines = materialize(verdicts("compatible/ollama:llama"), resource, tmp_path / "b", raises=False)
    assert not result.success
    assert "batch" in " ".join(lines)
    assert simulator.book.calls.total() == before


@pytest.mark.parametrize("model", MODELS)
def test_content_parts(simulator: SimulatorServer, tmp_path: Path, model: str) -> None:
    """Images and PDFs by bytes go with the text; a provider that batches text alone says so before anything is sent."""
    provider = model.partition(":")[0]

    def prompt(row: "dict[str, Any]") -> Any:
        return [
            TextPart(f"What is {row['body']}?"),
            ImagePart(data=PIXEL, media_type="image/png"),
            DocumentPart(data=b"%PDF-"),
        ]

    result, metadata, lines = materialize(
        verdicts(model, prompt=prompt), reach(simulator, provider), tmp_path, raises=False
    )
    if provider == "openrouter":
        assert not result.success
        assert "row 1" in " ".join(lines)
        assert "document_data, image_data" in " ".join(lines)
        assert simulator.book.calls.total() == 0
        return
    assert metadata["llmbatch/succeeded"] == 3
    assert simulator.book.requests == 3


def test_rows_choose_system_and_params(simulator: SimulatorServer, tmp_path: Path) -> None:
    """row_model, row_system and row_params are arguments of the asset; a bad one is a definition-time error."""
    asset = verdicts(
        "openai:gpt-5-mini",
        row_model=lambda row: "openai:gpt-5-nano" if row["id"] == 1 else None,
        row_system="body",
        row_params=lambda row: {"temperature": 0.1},
    )
    result, metadata, _ = materialize(asset, reach(simulator, "openai"), tmp_path)
    assert metadata["llmbatch/succeeded"] == 3
    assert metadata["llmbatch/batches"] == 2
    assert result.success
    with pytest.raises(ConfigurationError, match="row_params is the name of a column"):
        verdicts("openai:gpt-5-mini", row_params={"temperature": 1})


@pytest.mark.parametrize("model", MODELS)
def test_extras_are_columns(simulator: SimulatorServer, tmp_path: Path, model: str) -> None:
    """The whole reply, on request; the other extras are null where a reply has none."""
    provider = model.partition(":")[0]

    @llm_batch_asset(
        "verdicts", model=model, prompt="{{ body }}", output=Verdict, extras=["reasoning", "response"], id_column="id"
    )
    def asset() -> pa.Table:
        return pa.table({"id": [1], "body": ["a"]})

    seen: list[pa.Table] = []

    @dg.asset
    def reader(verdicts: pa.Table) -> None:
        seen.append(verdicts)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        dg.materialize([asset, reader], resources={"llm_batch": reach(simulator, provider)}, instance=instance)
    (reply,) = seen[0].column("llm_response").to_pylist()
    assert isinstance(json.loads(reply), dict)
    assert seen[0].column("llm_reasoning").null_count == 1
    assert "llm_tool_calls" not in seen[0].column_names


def test_unknown_extras_and_providers_are_refused_where_defined() -> None:
    """Each error names what there is."""
    with pytest.raises(ConfigurationError, match="reasoning"):
        verdicts("openai:gpt-5-mini", extras=["thoughts"])
    with pytest.raises(UnknownProviderError, match="anthropic"):
        verdicts("claude:haiku")


def test_what_a_provider_cannot_express_is_refused_where_defined() -> None:
    """Recursion travels to OpenAI and not to Anthropic: the error names path and provider."""
    Node.model_rebuild()
    verdicts("openai:gpt-5-mini", output=Node)
    with pytest.raises(UnportableSchemaError) as caught:
        verdicts("anthropic:claude-haiku-4-5", output=Node)
    assert caught.value.provider == "anthropic"
    assert "next" in caught.value.path
    assert str(caught.value).startswith("verdicts: ")


class Node(BaseModel):
    name: str
    next: "Node | None"


@pytest.mark.parametrize("model", MODELS)
def test_no_secret_is_kept_anywhere(simulator: SimulatorServer, tmp_path: Path, model: str) -> None:
    """Keys are in no file of the Dagster home: ledger, segments, event log, tags and metadata; prompts in no log line."""
    provider = model.partition(":")[0]
    simulator.faults.add("create", "status_before", 400)
    asset = verdicts(model)
    _, _, lines = materialize(asset, reach(simulator, provider), tmp_path, raises=False)
    _, metadata, more = materialize(asset, reach(simulator, provider), tmp_path)
    assert metadata["llmbatch/succeeded"] == 3
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"sk-secret-" not in path.read_bytes(), path
    assert "SECRET-ROW" not in " ".join([*lines, *more])


def test_rows_without_an_id_column_are_said(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Row numbers stand in for ids, with a WARNING in the run's log."""

    @llm_batch_asset("verdicts", model="openai:gpt-5-mini", prompt="{{ body }}", output=Verdict)
    def numbered() -> pa.Table:
        return pa.table({"body": ["a", "b"]})

    _, _, lines = materialize(numbered, reach(simulator, "openai"), tmp_path)
    assert stored(tmp_path).column("llm_row_id").to_pylist() == ["0", "1"]
    assert [line for line in lines if line.startswith("30 ") and "no id_column" in line]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "3 rows are fewer than batch_above=20; the realtime lane is not available in this version"),
        ({"batch_above": 3}, "3 rows reach batch_above=3"),
    ],
)
def test_why_the_rows_are_batched_is_said(
    simulator: SimulatorServer, tmp_path: Path, asked: "dict[str, Any]", reason: str
) -> None:
    """The materialization tells the lane's reason."""
    _, metadata, _ = materialize(verdicts("openai:gpt-5-mini", **asked), reach(simulator, "openai"), tmp_path)
    assert str(metadata["llmbatch/lane_reason"]).startswith(reason)


def test_failed_rows_are_found_by_their_ids(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The summary counts the failures of each kind and names rows that have them; those that succeeded are in no list."""
    simulator.faults.add_rows("refuse", containing="Judge: b")
    simulator.faults.add_rows("error_400", containing="Judge: c")
    _, metadata, lines = materialize(verdicts("openai:gpt-5-mini"), reach(simulator, "openai"), tmp_path)
    assert not [line for line in lines if "id_column" in line]
    table = [line for line in str(metadata["llmbatch/summary"]).splitlines() if line.startswith("|")]
    assert sorted(table[2:]) == ["| provider_error | 1 | `3` |", "| refusal | 1 | `2` |"]
    assert [metadata[f"llmbatch/{word}"] for word in ("succeeded", "failed", "review")] == [1, 1, 1]


def test_the_columns_are_described(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Names and types of kept, answer and system columns, as they are in the stored table."""
    _, metadata, _ = materialize(verdicts("openai:gpt-5-mini"), reach(simulator, "openai"), tmp_path)
    columns = metadata["dagster/column_schema"].columns
    assert [column.name for column in columns] == stored(tmp_path).column_names
    assert [column.name for column in columns][:5] == ["id", "body", "good", "tags", "note"]
    types = {column.name: column.type for column in columns}
    assert (types["id"], types["good"], types["note"]) == ("int64", "bool", "string")
    assert (types["llm_status"], types["llm_cost_usd"], types["llm_input_tokens"]) == ("string", "double", "int64")


def test_an_assets_own_batch_provider(simulator: SimulatorServer, tmp_path: Path) -> None:
    """batch_provider comes before the model's vendor, with keys for both, and its dialect decides what is refused."""
    asset = verdicts("openai:gpt-5-mini", batch_provider="openrouter")
    _, metadata, _ = materialize(asset, reach(simulator, "openai", "openrouter"), tmp_path)
    assert (metadata["llmbatch/succeeded"], metadata["llmbatch/provider"]) == (3, "openrouter")
    assert [create["provider"] for create in simulator.book.creates] == ["openrouter"]
    Node.model_rebuild()
    with pytest.raises(UnportableSchemaError) as caught:
        verdicts("openai:gpt-5-mini", output=Node, batch_provider="anthropic")
    assert caught.value.provider == "anthropic"


def test_a_model_that_cannot_be_batched(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The resource says its vendor cannot, and nobody stands in: policy="batch" fails with the reason, before any call."""
    resource = reach(simulator, "openai", models={"openai:gpt-5-mini": {"supports_async_batch": False}})
    asset = verdicts("openai:gpt-5-mini", policy="batch")
    result, metadata, lines = materialize(asset, resource, tmp_path, raises=False)
    assert not result.success
    assert metadata == {}
    assert "its registry entry says supports_async_batch=False" in " ".join(lines)
    assert simulator.book.calls.total() == 0


def test_own_prices_are_the_cost(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Each row costs its tokens at the user's batch price, never at the realtime price, and the metadata adds them up."""
    prices = {"openai:gpt-5-mini": {"input": 1000.0, "output": 3000.0}}
    realtime = {"openai:gpt-5-mini": {"input": 7e6, "output": 7e6}}
    resource = reach(simulator, "openai", prices=prices, realtime_prices=realtime)
    _, metadata, _ = materialize(verdicts("openai:gpt-5-mini"), resource, tmp_path)
    found = stored(tmp_path)
    tokens = [found.column(f"llm_{name}_tokens").to_pylist() for name in ("input", "output")]
    assert found.column("llm_cost_usd").to_pylist() == pytest.approx(
        [(given * 1000 + made * 3000) / 1e6 for given, made in zip(*tokens, strict=True)]
    )
    assert metadata["llmbatch/cost_usd"] == pytest.approx(sum(found.column("llm_cost_usd").to_pylist()))
    assert metadata["llmbatch/cost_usd"] == pytest.approx((sum(tokens[0]) * 1000 + sum(tokens[1]) * 3000) / 1e6)
    assert metadata["llmbatch/unpriced_rows"] == 0
