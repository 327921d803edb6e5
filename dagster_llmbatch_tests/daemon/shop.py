"""Definitions that the daemon tests run: a table, two LLM assets, what is downstream of them, and things that fail.

Written into a Dagster home of its own; the simulator's address comes by environment.
"""

import os
from pathlib import Path
from typing import Literal

import dagster as dg
import pyarrow as pa
from pydantic import BaseModel

from dagster_llmbatch import (
    LLMBatchResource,
    build_llm_batch_asset,
    build_llm_batch_checks,
    build_llm_batch_sensor,
    llm_batch_asset,
)

DAYS = dg.StaticPartitionsDefinition([f"d{i:02}" for i in range(60)])
GRID = dg.MultiPartitionsDefinition(
    {"day": dg.StaticPartitionsDefinition(["1", "2"]), "shop": dg.StaticPartitionsDefinition(["x/y", "z"])}
)
SWITCHES = Path(os.environ["DAGSTER_HOME"])
"""Files here switch failures on."""


class Triage(BaseModel):
    category: Literal["bug", "billing", "other"]
    urgent: bool


class Numbered(dg.Config):
    rows: int = 5


def table(partition: str, rows: int = 5) -> pa.Table:
    return pa.table({"id": pa.array(range(rows), pa.int64()), "body": [f"{partition} says {i}" for i in range(rows)]})


@dg.asset(partitions_def=DAYS)
def tickets(context: dg.AssetExecutionContext) -> pa.Table:
    return table(context.partition_key)


COMMON = {"model": "openai:gpt-5-mini", "output": Triage, "id_column": "id"}
triage = build_llm_batch_asset("triage", input="tickets", prompt="Triage: {{ body }}", partitions_def=DAYS, **COMMON)
mood = build_llm_batch_asset("mood", input="tickets", prompt="Mood: {{ body }}", partitions_def=DAYS, **COMMON)


@dg.asset(partitions_def=DAYS)
def report(triage: pa.Table) -> int:
    return triage.num_rows


@dg.asset(partitions_def=DAYS)
def joined(triage: pa.Table, mood: pa.Table) -> int:
    return triage.num_rows + mood.num_rows


@dg.asset(partitions_def=DAYS, deps=[tickets])
def sibling(context: dg.AssetExecutionContext) -> None:
    """Fails while its switch is on; counts its tries."""
    if (SWITCHES / f"sibling-{context.partition_key}").exists():
        (SWITCHES / f"sibling-{context.partition_key}").unlink()
        raise dg.Failure("the switch is on")


@dg.asset(partitions_def=DAYS, deps=[tickets])
def gated() -> None: ...


@dg.asset_check(asset=gated, blocking=True)
def gate() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=not (SWITCHES / "gate").exists(), severity=dg.AssetCheckSeverity.ERROR)


@dg.asset(partitions_def=DAYS, deps=[sibling])
def after_sibling(triage: pa.Table) -> int:
    return triage.num_rows


@dg.asset(partitions_def=DAYS, deps=[gated])
def after_gate(triage: pa.Table) -> int:
    return triage.num_rows


@llm_batch_asset(prompt="Whole: {{ body }}", **COMMON)
def whole(config: Numbered):
    return table("whole", config.rows)


@dg.asset
def after_whole(whole: pa.Table) -> int:
    return whole.num_rows


@llm_batch_asset(prompt="Cell: {{ body }}", partitions_def=GRID, **COMMON)
def cells(context: dg.AssetExecutionContext):
    return table(context.partition_key)


@llm_batch_asset(prompt="Bad: {{ body }}", partitions_def=DAYS, **COMMON)
def bad():
    return table("[[sim:refuse]]")


@dg.asset(partitions_def=DAYS)
def after_bad(bad: pa.Table) -> int:
    return bad.num_rows


whole_job = dg.define_asset_job("whole_job", selection=["whole", "after_whole"])

ASSETS = [triage, mood, whole, cells, bad]
defs = dg.Definitions(
    assets=[*ASSETS, tickets, report, joined, sibling, gated, after_sibling, after_gate, after_whole, after_bad],
    asset_checks=[gate, *(check for asset in ASSETS for check in build_llm_batch_checks(asset))],
    sensors=[build_llm_batch_sensor(minimum_interval_seconds=1)],
    jobs=[whole_job],
    executor=dg.in_process_executor,
    resources={
        "llm_batch": LLMBatchResource(
            openai={"api_key": dg.EnvVar("OPENAI_API_KEY"), "base_url": os.environ["SIMULATOR"]}, poll_interval=0.5
        )
    },
)
