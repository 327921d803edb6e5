"""One user's action with dagster_llmbatch, for compared.py; takes what compared_peer.py takes.

All actions are one here: there is one asset, and a run of it ends with the results.
"""

import argparse
import json
import logging
import os
import sys

import dagster as dg
import pyarrow as pa

from dagster_llmbatch import LLMBatchResource, build_llm_batch_asset, build_llm_batch_checks


def main() -> None:
    """Materialize the results and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["results", "all", "deliver"])
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--system", required=True)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)

    @dg.asset
    def tickets() -> pa.Table:
        return pa.table({"ticket_id": range(asked.rows), "body": [f"ticket {row}." for row in range(asked.rows)]})

    triage = build_llm_batch_asset(
        "triage",
        input="tickets",
        model="openai:gpt-4o-mini",
        prompt="{{ body }}",
        system=asked.system,
        output=None,
        id_column="ticket_id",
        policy="batch",
        fail_above=1.0,
    )
    loaded: list[pa.Table] = []

    @dg.asset
    def report(triage: pa.Table) -> None:
        loaded.append(triage)

    llm_batch = LLMBatchResource(
        openai={"api_key": os.environ["OPENAI_API_KEY"], "base_url": os.environ["OPENAI_BASE_URL"]}, poll_interval=0.1
    )
    checks = build_llm_batch_checks(triage)
    with dg.DagsterInstance.get() as instance:
        result = dg.materialize(
            [tickets, triage, *checks, report],
            instance=instance,
            resources={"llm_batch": llm_batch},
            raise_on_error=False,
        )
        materialized = result.asset_materializations_for_node("triage")
        metadata = materialized[0].metadata if materialized else {}
        found = {
            "success": bool(result.success and materialized),
            "rows": sum(table.num_rows for table in loaded),
            "answers": sum(table.column("llm_status").to_pylist().count("succeeded") for table in loaded),
            "cost": any("cost" in name for name in metadata),
            "checks": len(result.get_asset_check_evaluations()),
        }
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
