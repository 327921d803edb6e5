"""Every Python and YAML snippet of the README works."""

import re
from pathlib import Path

import dagster as dg
import pytest
import yaml

from dagster_llmbatch import LLMBatchResource, LLMRequest
from dagster_llmbatch.core.results import SYSTEM_FIELDS
from dagster_llmbatch.core.verdicts import ERROR_NAMES
from dagster_llmbatch.simulator.server import SimulatorServer

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"^```(python|yaml)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_quick_start_materializes_against_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted into a file and run, the quick start gives a typed answer a row and a passing check."""
    (_, source), *_ = [s for s in SNIPPETS if "llm_batch_definitions" in s[1]]
    with SimulatorServer() as simulator:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", simulator.base_url)
        monkeypatch.chdir(tmp_path)
        space: dict[str, object] = {"__name__": "definitions"}
        exec(compile(source, "definitions.py", "exec"), space)
        defs = space["defs"]
        assert isinstance(defs, dg.Definitions)
        dg.Definitions.validate_loadable(defs)
        llm_batch = space["LLMBatchResource"](  # type: ignore[operator]
            openai={"api_key": "sk-test", "base_url": simulator.base_url}, poll_interval=0.1
        )
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            result = dg.materialize(
                [space["tickets"], space["ticket_triage"]],  # type: ignore[list-item]
                partition_key="2026-01-01",
                resources={"llm_batch": llm_batch},
                instance=instance,
            )
            # "Paying once": the published rows, without a run
            loaded = defs.load_asset_value("ticket_triage", partition_key="2026-01-01", instance=instance)
        assert result.success
        assert loaded.num_rows == 3  # type: ignore[attr-defined]
        (made,) = result.asset_materializations_for_node("ticket_triage")
        assert made.metadata["llmbatch/succeeded"].value == 3


def python_snippet(name: str) -> "dict[str, object]":
    """What the one snippet that says `name` leaves behind."""
    (source,) = [text for language, text in SNIPPETS if language == "python" and name in text]
    space: dict[str, object] = {"__name__": "snippet"}
    exec(compile(source, "snippet.py", "exec"), space)
    return space


@pytest.mark.parametrize("name", ["translations", "descriptions"])
def test_the_asset_snippets_load(name: str) -> None:
    """Each defines the asset it says."""
    assert isinstance(python_snippet(name)[name], dg.AssetsDefinition)


def test_the_resource_snippet_reaches_every_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the keys in the environment, each provider and the compatible server has a client."""
    for provider in ("OPENAI", "ANTHROPIC", "GEMINI", "OPENROUTER"):
        monkeypatch.setenv(f"{provider}_API_KEY", f"sk-{provider}")
    seen: set[str] = set()

    @dg.asset
    def reached(llm_batch: LLMBatchResource) -> None:
        seen.update(llm_batch.configured())

    found = python_snippet("compatible")["llm_batch"]
    assert isinstance(found, LLMBatchResource)
    assert found.model_spec("fast") == found.model_spec("openai:gpt-5-mini")
    assert dg.materialize([reached], resources={"llm_batch": found}).success
    assert seen == {"openai", "anthropic", "gemini", "openrouter", "compatible/vllm"}


def test_the_low_level_snippet_runs() -> None:
    """It submits, looks and collects."""
    by_hand = python_snippet("batch_by_hand")["batch_by_hand"]
    assert callable(by_hand)
    with SimulatorServer() as simulator:
        resource = LLMBatchResource(openai={"api_key": "sk-test", "base_url": simulator.base_url})
        assert len(by_hand(resource)) == 2
        requests = [LLMRequest("q-0", "A word that rhymes with day?", "openai:gpt-5-mini")]
        assert [r.status for r in resource.run_batch(requests, external_key="rhymes-2")] == ["succeeded"]


def test_yaml_snippets_parse() -> None:
    """YAML is YAML."""
    found = [yaml.safe_load(text) for language, text in SNIPPETS if language == "yaml"]
    assert found
    assert all(found)


def table_under(head: str) -> "list[list[str]]":
    """The cells of the table whose first line is `head`."""
    lines = README.read_text().split("\n")
    rows = lines[lines.index(head) + 2 :]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[: rows.index("")]]


def test_every_error_name_is_explained() -> None:
    """The table has each name that a row can have, once, with what it means and what to do."""
    rows = table_under("| `llm_error_name` | `llm_status` | meaning | what to do |")
    assert sorted(row[0].strip("`") for row in rows) == sorted(ERROR_NAMES)
    assert all(len(row) == 4 and all(row) for row in rows)


def test_every_system_column_is_explained() -> None:
    """The table of columns has each, once."""
    named = [name for row in table_under("| column | meaning |") for name in re.findall(r"`(llm_\w+)`", row[0])]
    assert sorted(named) == sorted(field.name for field in SYSTEM_FIELDS)
