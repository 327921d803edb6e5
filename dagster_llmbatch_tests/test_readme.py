"""Every Python and YAML snippet of the README works."""

import re
from pathlib import Path

import dagster as dg
import pytest
import yaml

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
        assert result.success
        (made,) = result.asset_materializations_for_node("ticket_triage")
        assert made.metadata["llmbatch/succeeded"].value == 3


def test_the_other_snippets_load() -> None:
    """Python snippets define what they say; YAML parses."""
    for language, source in SNIPPETS:
        if language == "yaml":
            assert yaml.safe_load(source)
        elif "llm_batch_definitions" not in source:
            space: dict[str, object] = {"__name__": "snippet"}
            exec(compile(source, "snippet.py", "exec"), space)
            assert isinstance(space["translations"], dg.AssetsDefinition)
