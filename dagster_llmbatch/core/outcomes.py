"""Outcomes as columns: the segment that a collected batch leaves in the ledger, sorted by row.

row int64            row number in the plan, from 0
custom_id string     the request's
attempt int32        1 for the first time the row was sent
counted bool         whether the attempt counts against max_attempts
kind ... response    as in providers.contract.Outcome
batch_id string      the provider's batch
lane string          batch, or reused where an older generation paid for it
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import EXTRAS, Outcome, OutcomeKind

PRICED_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "cache_write_1h_tokens")
"""What a price is made of, in the order price functions take them."""
TOKEN_FIELDS = (*PRICED_TOKENS, "reasoning_tokens")

OUTCOME_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("custom_id", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("counted", pa.bool_(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("text", pa.large_string()),
        pa.field("finish_reason", pa.string()),
        pa.field("refusal", pa.string()),
        pa.field("model", pa.string()),
        *(pa.field(name, pa.int64()) for name in TOKEN_FIELDS),
        pa.field("error_code", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("error_category", pa.string()),
        pa.field("retryable", pa.bool_(), nullable=False),
        pa.field("batch_id", pa.string()),
        pa.field("lane", pa.string(), nullable=False),
        pa.field("cost_usd", pa.float64()),
        *(pa.field(name, pa.large_string()) for name in EXTRAS),
    ]
)

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("custom_id", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
    ]
)
"""The requests segment of a batch: which rows it holds, in the order sent."""

OUTCOME_FIELDS = Outcome.__struct_fields__
"""Each is a column of the same name."""

ABSENT_MOSTLY = ("cost_usd", *EXTRAS)

PAID_FINAL = frozenset({OutcomeKind.ANSWER, OutcomeKind.REFUSAL, OutcomeKind.TRUNCATED, OutcomeKind.EMPTY})
"""The model replied: sending the same request again would pay again for the same kind of reply."""


def outcomes_table(
    requests: pa.Table, outcomes: "Sequence[Outcome]", *, counted: "Sequence[bool]", batch_id: "str | None"
) -> pa.Table:
    """The segment's table of a batch's requests, in ascending order of rows, and their outcomes."""
    fields = zip(*map(msgspec.structs.astuple, outcomes), strict=True)
    columns: dict[str, Any] = dict(zip(OUTCOME_FIELDS, fields, strict=True)) if outcomes else {}
    columns["kind"] = [outcome.kind.value for outcome in outcomes]
    columns["error_category"] = [o.error_category and o.error_category.value for o in outcomes]
    columns |= {name: requests.column(name) for name in REQUEST_SCHEMA.names}
    columns["counted"] = counted
    for name in ABSENT_MOSTLY:  # as a typed null column they take no time a row
        if name in columns and not any(value is not None for value in columns[name]):
            columns[name] = pa.nulls(len(outcomes), OUTCOME_SCHEMA.field(name).type)
    columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.string()), len(outcomes))
    columns["lane"] = pa.repeat("batch", len(outcomes))
    return pa.table(columns, schema=OUTCOME_SCHEMA)


def as_outcomes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of an outcomes segment with today's columns: what an earlier version did not keep is null."""
    if batch.schema.names == OUTCOME_SCHEMA.names:
        return batch
    kept = {
        f.name: batch.column(f.name) if f.name in batch.schema.names else pa.nulls(batch.num_rows, f.type)
        for f in OUTCOME_SCHEMA
    }
    return pa.RecordBatch.from_arrays([kept[f.name].cast(f.type) for f in OUTCOME_SCHEMA], schema=OUTCOME_SCHEMA)


class OutcomeCursor:
    """Reads one outcomes segment forward, a range of rows at a time, holding no more than a block of it."""

    def __init__(self, segments: SegmentStore, name: str) -> None:
        self._batches: Iterator[pa.RecordBatch] = map(as_outcomes, segments.batches(name))
        self._rest: pa.RecordBatch | None = None

    def until(self, row: int) -> "list[pa.RecordBatch]":
        """The outcomes of rows before `row` that were not read yet."""
        found: list[pa.RecordBatch] = []
        while True:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                return found
            before = int(np.searchsorted(batch.column("row").to_numpy(), row))
            found.append(batch.slice(0, before))
            self._rest = batch.slice(before) if before < batch.num_rows else None
            if self._rest is not None:
                return found
