"""One user's action with dagster-community-components, for compared.py; run by the Python that has it.

    python bench/compared_peer.py ACTION --rows N --system TEXT

ACTION is `results` (materialize the results asset), `all` (both assets in one run, as a backfill does) or `deliver`
(the submit asset, then the component's sensor and what it asks for). Dagster's state is in DAGSTER_HOME. The last line is
JSON.
"""

import argparse
import json
import logging
import sys
import time
from typing import Any

import dagster as dg
import pandas as pd
from dagster_community_components.assets.ai.openai_llm_batch.component import OpenaiLlmBatchComponent

RESULTS, SUBMIT = dg.AssetKey("triage"), dg.AssetKey("triage__submit")
PATIENCE = 30.0
"""Seconds the sensor is asked again for."""


def definitions(rows: int, system: str) -> dg.Definitions:
    """The component over a table of tickets, which is there already."""

    @dg.asset
    def tickets() -> pd.DataFrame:
        return pd.DataFrame({"ticket_id": range(rows), "body": [f"ticket {row}." for row in range(rows)]})

    component = OpenaiLlmBatchComponent(
        asset_name="triage",
        upstream_asset_key="tickets",
        prompt_column="body",
        id_column="ticket_id",
        model="gpt-4o-mini",
        system_prompt=system,
    )
    made: Any = component.build_defs(None)  # pyright: ignore[reportArgumentType]
    return dg.Definitions.merge(dg.Definitions(assets=[tickets]), made)


class Project:
    """The definitions and the Dagster instance."""

    def __init__(self, instance: dg.DagsterInstance, rows: int, system: str) -> None:
        self.instance = instance
        self.defs = definitions(rows, system)
        self.job = self.defs.resolve_implicit_global_asset_job_def()

    def run(self, *keys: dg.AssetKey, config: "dict[str, Any] | None" = None) -> Any:
        """Materialize assets in one run."""
        return self.job.execute_in_process(
            instance=self.instance, asset_selection=list(keys), run_config=config, raise_on_error=False
        )

    def deliver(self) -> Any:
        """Submit, then ask the sensor until it asks for a run; that run, or the submit run where none came."""
        submitted = self.run(SUBMIT)
        if not submitted.success:
            return submitted
        (sensor,) = self.defs.sensors or ()
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            asked: Any = sensor.evaluate_tick(dg.build_sensor_context(self.instance, definitions=self.defs))  # type: ignore[union-attr]
            for request in asked.run_requests:
                return self.run(RESULTS, config=request.run_config)
            time.sleep(0.2)
        return submitted


def main() -> None:
    """Do the action and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["results", "all", "deliver"])
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--system", required=True)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with dg.DagsterInstance.get() as instance:
        project = Project(instance, asked.rows, asked.system)
        assert project.run(dg.AssetKey("tickets")).success
        if asked.action == "deliver":
            result = project.deliver()
        else:
            result = project.run(*((RESULTS,) if asked.action == "results" else (SUBMIT, RESULTS)))
        made = instance.get_latest_materialization_event(RESULTS) if result.success else None
        materialized = made.asset_materialization if made else None
        table = result.output_for_node("triage") if materialized else None
        found = {
            "success": bool(result.success and materialized),
            "rows": 0 if table is None else len(table),
            "answers": 0 if table is None else int(table["raw_output"].notna().sum()),
            "cost": any("cost" in name for name in (materialized.metadata if materialized else {})),
            "checks": len(list(project.defs.resolve_asset_graph().asset_check_keys)),
        }
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
