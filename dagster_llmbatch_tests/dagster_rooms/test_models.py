"""Models under names of the user's: what a name stands for is said by the resource, and looked up before anything is spent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_llmbatch import LLMBatchResource, LLMRequest
from dagster_llmbatch.errors import ConfigurationError, UnknownProviderError
from dagster_llmbatch.provider_config import ModelConfig
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.dagster_rooms.test_providers import Node, materialize, reach, verdicts

FAST = {"fast": ModelConfig(provider="openai", model="gpt-5-nano")}


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator that answers at once."""
    with SimulatorServer() as server:
        yield server


def asked_models(simulator: SimulatorServer) -> "list[str]":
    """The models of the requests, as sent."""
    files = [batch.source for batch in simulator.store.batches.values() if batch.source is not None]
    return sorted(json.loads(line)["body"]["model"] for file in files for line in file.read_text().splitlines())


def test_an_asset_asks_for_a_model_by_its_name(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The name's provider batches the name's model, and the materialization says which that is."""
    resource = reach(simulator, "openai", models=FAST)
    _, metadata, _ = materialize(verdicts("fast"), resource, tmp_path)
    assert (metadata["llmbatch/provider"], metadata["llmbatch/succeeded"]) == ("openai", 3)
    assert asked_models(simulator) == ["gpt-5-nano"] * 3
    assert "gpt-5-nano" in metadata["llmbatch/summary"]


def test_a_names_own_batch_provider(simulator: SimulatorServer, tmp_path: Path) -> None:
    """What the entry says of batches holds for the name as it does for provider:model."""
    models = {"fast": {"provider": "openai", "model": "gpt-5-mini", "batch_provider": "openrouter"}}
    _, metadata, _ = materialize(verdicts("fast"), reach(simulator, "openai", "openrouter", models=models), tmp_path)
    assert metadata["llmbatch/provider"] == "openrouter"


def test_rows_choose_models_by_name(simulator: SimulatorServer, tmp_path: Path) -> None:
    """row_model takes names too."""
    asset = verdicts("openai:gpt-5-mini", row_model=lambda row: "fast" if row["id"] == 1 else None)
    _, metadata, _ = materialize(asset, reach(simulator, "openai", models=FAST), tmp_path)
    assert metadata["llmbatch/succeeded"] == 3
    assert asked_models(simulator) == ["gpt-5-mini", "gpt-5-mini", "gpt-5-nano"]


def test_the_low_level_api_takes_names(simulator: SimulatorServer) -> None:
    """A batch and a realtime call go to the name's model."""
    resource = reach(simulator, "openai", models=FAST)
    handle = resource.submit([LLMRequest("a", "x", "fast")])
    assert handle.provider == "openai"
    simulator.clock.advance(1000)
    for found in (*resource.results(handle), resource.complete(LLMRequest("a", "x", "fast"))):
        assert (found.outcome.model or "").startswith("gpt-5-nano")
        assert found.cost_usd


def test_a_name_that_is_none_fails_the_run_before_any_call(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A typo in the asset, or a model without its provider, names what there is."""
    resource = reach(simulator, "openai", models=FAST)
    for number, wrong in enumerate(["fasst", "gpt-5-mini"]):
        result, _, lines = materialize(verdicts(wrong), resource, tmp_path / str(number), raises=False)
        assert not result.success
        assert f"model '{wrong}' is neither" in " ".join(lines)
        assert "['fast']" in " ".join(lines)
    assert simulator.book.calls.total() == 0


def test_a_name_whose_provider_cannot_take_the_output(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The definition could not know the provider: the plan does, and names the asset and what cannot travel."""
    Node.model_rebuild()
    models = {"fast": {"provider": "anthropic", "model": "claude-haiku-4-5"}}
    asset = verdicts("fast", output=Node)
    result, _, lines = materialize(asset, reach(simulator, "anthropic", models=models), tmp_path, raises=False)
    assert not result.success
    assert any("verdicts: " in line and "next" in line and "Nothing was spent" in line for line in lines)
    assert simulator.book.calls.total() == 0


def test_an_output_is_held_against_the_provider_a_model_resolves_to(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A slug of OpenRouter's goes to its vendor where that is configured, which takes less."""
    Node.model_rebuild()
    asset = verdicts("openrouter:anthropic/claude-haiku-4.5", output=Node)
    result, _, lines = materialize(asset, reach(simulator, "anthropic"), tmp_path, raises=False)
    assert not result.success
    assert any("verdicts: " in line and "Nothing was spent" in line for line in lines)
    assert simulator.book.calls.total() == 0


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ({"fast": {}}, ConfigurationError, "'fast': a name of your own needs provider and model"),
        ({"fast": {"provider": "openai"}}, ConfigurationError, "'fast': a name of your own needs provider and model"),
        ({"gpt-5-mini": {"batch_provider": "openrouter"}}, ConfigurationError, '"provider:model"'),
        ({"opnai:gpt-5-mini": {}}, UnknownProviderError, "'opnai:gpt-5-mini': nothing would use it"),
        ({"openai:": {}}, UnknownProviderError, "nothing would use it"),
        ({"open ai": {"provider": "openai", "model": "m"}}, UnknownProviderError, "nothing would use it"),
        ({"openai:m": {"provider": "openai", "model": "n"}}, ConfigurationError, "stand in the name"),
        ({"fast": {"provider": "opnai", "model": "m"}}, UnknownProviderError, "no provider 'opnai'"),
        ({"openai:m": {"batch_provider": "opnrouter"}}, UnknownProviderError, "no provider 'opnrouter'"),
    ],
)
def test_an_entry_that_nothing_can_use_is_refused(
    models: "dict[str, Any]", error: "type[Exception]", message: str
) -> None:
    """Where the resource is made: a typo is never silently unused."""
    with pytest.raises(error, match=message):
        LLMBatchResource(models=models)


def test_a_name_from_the_environment_is_checked_at_the_run(
    simulator: SimulatorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value is not there when the code is loaded."""
    monkeypatch.setenv("FAST_MODEL", "gpt-5-nano")
    models = {"fast": {"provider": "openai", "model": dg.EnvVar("FAST_MODEL")}}
    _, metadata, _ = materialize(verdicts("fast"), reach(simulator, "openai", models=models), tmp_path)
    assert metadata["llmbatch/succeeded"] == 3
    assert asked_models(simulator) == ["gpt-5-nano"] * 3


def test_a_name_changes_the_code_version() -> None:
    """Another name is another question; what it stands for is the resource's, which the plan compares."""
    versions = {next(iter(verdicts(model).specs)).code_version for model in ("fast", "slow", "openai:gpt-5-mini")}
    assert len(versions) == 3


def test_another_model_under_the_name_is_bought(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The plan holds the model itself: a run after the name was changed does not take the old batch for its own."""
    other = {"fast": ModelConfig(provider="openai", model="gpt-5-mini")}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        for models in (FAST, other):
            resource = reach(simulator, "openai", models=models)
            assert dg.materialize([verdicts("fast")], resources={"llm_batch": resource}, instance=instance).success
    assert asked_models(simulator) == ["gpt-5-mini"] * 3 + ["gpt-5-nano"] * 3
