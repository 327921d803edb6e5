"""Support tickets, triaged by a language model: what people copy.

An input table, an LLM batch asset over it, a report downstream, the built-in check, the sensor.
"""

import os
from typing import Literal

import dagster as dg
import pyarrow as pa
from pydantic import BaseModel

from dagster_llmbatch import LLMBatchResource, build_llm_batch_asset, llm_batch_definitions

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-02-01")
SUBJECTS = ("invoice is wrong", "app crashes on start", "please add dark mode", "how do I export?", "charged twice")
TICKETS_A_DAY = 40


class Triage(BaseModel):
    """What is asked of the model for each ticket."""

    category: Literal["billing", "bug", "feature", "question"]
    urgent: bool
    summary: str


@dg.asset(partitions_def=DAYS, description="The day's support tickets.")
def tickets(context: dg.AssetExecutionContext) -> pa.Table:
    day = context.partition_key
    numbers = range(TICKETS_A_DAY)
    return pa.table(
        {
            "ticket_id": [f"{day}-{number:03}" for number in numbers],
            "body": [f"Ticket {number} of {day}: {SUBJECTS[number % len(SUBJECTS)]}" for number in numbers],
        }
    )


ticket_triage = build_llm_batch_asset(
    "ticket_triage",
    input="tickets",
    model="openai:gpt-5-mini",
    prompt="Triage this support ticket:\n\n{{ body }}",
    output=Triage,
    id_column="ticket_id",
    partitions_def=DAYS,
    description="Each ticket with its category, urgency and a summary.",
)


@dg.asset(partitions_def=DAYS, description="Tickets of the day by category.")
def triage_report(context: dg.AssetExecutionContext, ticket_triage: pa.Table) -> pa.Table:
    counts = ticket_triage.group_by("category").aggregate([("urgent", "sum"), ("ticket_id", "count")])
    context.add_output_metadata({"dagster/row_count": counts.num_rows})
    return counts


defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[tickets, triage_report],
        executor=dg.in_process_executor,  # small steps: one process a run is enough
        resources={
            "llm_batch": LLMBatchResource(
                openai={
                    "api_key": dg.EnvVar("OPENAI_API_KEY"),
                    "base_url": os.environ.get("LLMBATCH_OPENAI_BASE_URL", "https://api.openai.com/v1"),
                },
                poll_interval=float(os.environ.get("LLMBATCH_POLL_INTERVAL", "60")),
            )
        },
    ),
    llm_batch_definitions(ticket_triage),
)
