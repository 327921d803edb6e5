"""Every metadata key and tag we write, and how a ledger entry reads in the Dagster UI. Nothing else spells a key.

Model text and prompts never go in: the event log is read by more people than the table is.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import dagster as dg
import pyarrow as pa

from dagster_llmbatch.core.verdicts import FAILED, REVIEW, SUCCEEDED
from dagster_llmbatch.ledger.records import BatchRecord, Entry

ENTRY_TAG = "llmbatch/entry"
"""Run tag: the ledger entry a run works on. Searchable, inherited by retries. Also a metadata key of what it reports."""
CONTINUES_TAG = "llmbatch/continues"
"""Run tag of a continuation: the run it goes on with."""
SENSOR_TAG = "llmbatch/sensor"
"""Tag of the sensor that polls and wakes."""
MODEL = "llmbatch/model"
"""On the asset definition: marks an LLM batch asset."""
FAILURE_RATE = "llmbatch/failure_rate"
REPLAYED = "llmbatch/replayed"
"""Whether another materialization shows the cost of the same generation. Then this one shows none."""

STATE_WAITING, STATE_SUBMITTED = "waiting", "submitted"


def definition_metadata(model: str, policy: str) -> "dict[str, Any]":
    """Metadata of the asset definition."""
    return {MODEL: model, "llmbatch/policy": policy}


def failure_rate(summary: "Mapping[str, Any]") -> float:
    """Rows without a valid answer over all rows; 0 for an empty table."""
    return (summary[FAILED] + summary[REVIEW]) / summary["rows"] if summary["rows"] else 0.0


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """The Columns tab of the asset."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(f.name, str(f.type), constraints=dg.TableColumnConstraints(nullable=f.nullable))
            for f in schema
        ]
    )


def submitted(
    entry: Entry, batches: "Sequence[BatchRecord]", *, reason: str, notes: "Sequence[str]"
) -> "dict[str, Any]":
    """Metadata of the observation that mirrors a submit: handles, counts and deadline."""
    real = [b for b in batches if b.wave > 0]
    deadlines = [b.deadline for b in real if b.deadline is not None]
    return {
        "llmbatch/state": STATE_SUBMITTED if real else STATE_WAITING,
        "llmbatch/reason": reason,
        ENTRY_TAG: entry.id,
        "llmbatch/generation": entry.generation,
        "llmbatch/wave": entry.wave,
        "llmbatch/provider": entry.settings["provider"],
        **_chosen_because(entry),
        "llmbatch/rows": entry.row_count,
        "llmbatch/requests": sum(b.request_count for b in real),
        "llmbatch/batches": len(real),
        "llmbatch/batch_ids": [b.batch_id for b in real],
        "llmbatch/external_keys": [b.external_key for b in real],
        **({"llmbatch/deadline": dg.MetadataValue.timestamp(min(deadlines))} if deadlines else {}),
        **({"llmbatch/notes": list(notes)} if notes else {}),
    }


def _chosen_because(entry: Entry) -> "dict[str, Any]":
    """Why this provider and this lane, and what the user should know about them."""
    because = entry.settings.get("chosen_because") or {}
    named = {"provider": "llmbatch/provider_reason", "lane": "llmbatch/lane_reason", "warnings": "llmbatch/warnings"}
    return {key: because[name] for name, key in named.items() if because.get(name)}


def progress(batches: "Sequence[BatchRecord]") -> "dict[str, Any]":
    """Metadata of a progress observation: numbers, so that the UI plots them."""
    real = [b for b in batches if b.wave > 0]
    total = sum(b.request_count for b in real)
    completed = sum(b.completed or 0 for b in real)
    failed = sum(b.failed or 0 for b in real)
    return {
        "llmbatch/state": ", ".join(sorted({b.provider_state or b.phase.value for b in real})),
        "llmbatch/requests_completed": completed,
        "llmbatch/requests_failed": failed,
        "llmbatch/requests": total,
        "llmbatch/percent_done": percent_done(batches),
    }


def percent_done(batches: "Sequence[BatchRecord]") -> float:
    """Requests the provider is through with, in percent of those sent."""
    total = sum(b.request_count for b in batches if b.wave > 0)
    done = sum((b.completed or 0) + (b.failed or 0) for b in batches if b.wave > 0)
    return round(100 * done / total, 1) if total else 100.0


def published(
    entry: Entry,
    batches: "Sequence[BatchRecord]",
    *,
    schema: pa.Schema,
    replayed: bool,
    notes: "Sequence[str]",
) -> "dict[str, Any]":
    """Metadata of the materialization. `replayed`: cost and tokens stand on another one already, and are 0 here."""
    summary = entry.summary or {}
    real = [b for b in batches if b.wave > 0]
    return {
        "llmbatch/summary": dg.MetadataValue.md(summary_markdown(entry, real, replayed=replayed)),
        "dagster/row_count": summary["rows"],
        "dagster/partition_row_count": summary["rows"],
        "dagster/column_schema": column_schema(schema),
        "llmbatch/succeeded": summary[SUCCEEDED],
        "llmbatch/failed": summary[FAILED],
        "llmbatch/review": summary[REVIEW],
        FAILURE_RATE: failure_rate(summary),
        **{f"llmbatch/{name}": 0 if replayed else count for name, count in summary["tokens"].items()},
        "llmbatch/cost_usd": 0.0 if replayed else _cost(summary),
        "llmbatch/unpriced_rows": summary["unpriced_rows"],
        "llmbatch/reused_rows": summary["reused_rows"],
        "llmbatch/resubmitted_rows": summary["resubmitted_rows"],
        "llmbatch/recovered_rows": summary["recovered_rows"],
        "llmbatch/batches": len(real),
        "llmbatch/batch_ids": [b.batch_id for b in real],
        ENTRY_TAG: entry.id,
        "llmbatch/generation": entry.generation,
        "llmbatch/waves": entry.wave,
        "llmbatch/lane": "batch",
        "llmbatch/provider": entry.settings["provider"],
        **_chosen_because(entry),
        REPLAYED: replayed,
        **({"llmbatch/stored_schema": True} if summary.get("stored_schema") else {}),
        **_durations(entry, real),
        **({"llmbatch/notes": list(notes)} if notes else {}),
    }


def _cost(summary: "Mapping[str, Any]") -> "float | str":
    """In USD; of the rows whose price is known, where there is one at all."""
    return summary["cost_usd"] if summary["rows"] > summary["unpriced_rows"] or not summary["rows"] else "unknown"


def _durations(entry: Entry, batches: "Sequence[BatchRecord]") -> "dict[str, float]":
    found = {}
    if entry.published_at is not None:
        found["llmbatch/seconds_total"] = round(entry.published_at - entry.created_at, 1)
    waits = [b.ended_at - b.submitted_at for b in batches if b.ended_at is not None and b.submitted_at is not None]
    if waits:
        found["llmbatch/seconds_at_provider"] = round(max(waits), 1)
    return found


def summary_markdown(entry: Entry, batches: "Sequence[BatchRecord]", *, replayed: bool) -> str:
    """Counts, cost and failures by category with sample row ids. Row ids are the user's; answers never go in."""
    summary = entry.summary or {}
    tokens = summary["tokens"]
    cost = f"{_dollars(summary['cost_usd'])} USD"
    if summary["unpriced_rows"]:
        cost = f"{cost} for the rows with a known price; {summary['unpriced_rows']} rows unknown"
    lines = [
        f"**{summary['rows']} rows**: {summary[SUCCEEDED]} succeeded, {summary[FAILED]} failed, {summary[REVIEW]} for review.",
        "",
        f"- model `{_inert(entry.settings['template']['model'])}` at {entry.settings['provider']}, "
        f"{counted(len(batches), 'batch', 'batches')} in {counted(entry.wave, 'wave', 'waves')}, "
        f"generation {entry.generation}",
        f"- tokens: {tokens['input_tokens']:,} in ({tokens['cached_tokens']:,} cached), {tokens['output_tokens']:,} out",
        f"- cost: {cost}",
    ]
    if replayed:
        lines.append("- paid for and counted by an earlier materialization: this one replays it and cost nothing")
    if summary.get("stored_schema"):
        lines.append(
            "- the output type changed while the batches were out: validated by the schema they were asked with"
        )
    if summary["reused_rows"]:
        lines.append(f"- {summary['reused_rows']} rows keep an answer paid for earlier")
    if summary["errors"]:
        lines += ["", "| why | rows | such as |", "|---|---|---|"]
        for name, count in summary["errors"].items():
            samples = ", ".join(f"`{_inert(sample)}`" for sample in summary["samples"].get(name, []))
            lines.append(f"| {name} | {count} | {samples} |")
    return "\n".join(lines)


def counted(number: int, one: str, many: str) -> str:
    """A number of things, in words that agree."""
    return f"{number} {one if number == 1 else many}"


def _dollars(amount: float) -> str:
    """An amount that was paid never reads as zero: below a cent, three significant digits."""
    return f"{Decimal(f'{amount:.3g}'):f}" if 0 < amount < 0.01 else f"{amount:.4f}"


def _inert(text: str) -> str:
    """Text of the user's that Markdown must not interpret, shortened."""
    safe = "".join(c if c.isprintable() and c not in "`|<>[]\\" else "_" for c in text)
    return safe if len(safe) <= 60 else safe[:57] + "..."
