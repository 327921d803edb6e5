"""Plan and outcomes to the results table: one row out per row in, in input order, with the reason where there is no answer."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from dagster_llmbatch.core.costs import outcome_costs
from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA, PAID_FINAL, TOKEN_FIELDS, OutcomeCursor
from dagster_llmbatch.core.plan import BLOCK_ROWS
from dagster_llmbatch.core.pricing import PriceBook
from dagster_llmbatch.core.requests import FINGERPRINT, MODEL, PROBLEM, ROW_ID
from dagster_llmbatch.core.summary import InvalidAnswers, Summary
from dagster_llmbatch.core.verdicts import ANSWER, JUDGED, judge
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.schemas.output import OutputSchema

pc: Any = pyarrow.compute  # its functions are made at import: no type checker sees them

logger = logging.getLogger(__name__)

SYSTEM_FIELDS = (
    pa.field("llm_row_id", pa.string()),
    pa.field("llm_status", pa.string()),
    pa.field("llm_validated", pa.bool_()),
    pa.field("llm_attempts", pa.int32()),
    pa.field("llm_lane", pa.string()),
    pa.field("llm_provider", pa.string()),
    pa.field("llm_model", pa.string()),
    pa.field("llm_batch_id", pa.string()),
    pa.field("llm_custom_id", pa.string()),
    pa.field("llm_finish_reason", pa.string()),
    pa.field("llm_refusal", pa.string()),
    pa.field("llm_error", pa.string()),
    pa.field("llm_error_name", pa.string()),
    pa.field("llm_error_category", pa.string()),
    pa.field("llm_raw", pa.large_string()),
    pa.field("llm_input_tokens", pa.int64()),
    pa.field("llm_output_tokens", pa.int64()),
    pa.field("llm_cached_tokens", pa.int64()),
    pa.field("llm_reasoning_tokens", pa.int64()),
    pa.field("llm_cost_usd", pa.float64()),
    pa.field("llm_fingerprint", pa.string()),
    pa.field("llm_schema_hash", pa.string()),
    pa.field("llm_run_id", pa.string()),
)
"""The system columns, after the kept input columns and the output's. DESIGN 9 says what each means."""


def system_fields(extras: "Sequence[str]" = ()) -> "tuple[pa.Field, ...]":
    """The system columns of an asset that asks for these EXTRAS."""
    return (*SYSTEM_FIELDS, *(pa.field(f"llm_{name}", pa.large_string()) for name in extras))


class ResultsWriter:
    """Writes the results segment of one entry, a block of rows at a time."""

    def __init__(
        self,
        entry: Entry,
        batches: "Sequence[BatchRecord]",
        *,
        today: "OutputSchema | None",
        segments: SegmentStore,
        prices: PriceBook,
        run_id: str,
    ) -> None:
        self._entry = entry
        self._batches = [b for b in batches if b.phase is BatchPhase.COLLECTED and b.outcomes_segment]
        self._output = output_of(entry.settings, today)
        self._validate = self._output.validator()
        self._segments = segments
        self._prices = prices
        self._sent_on = {b.batch_id: _day(b.submitted_at or b.intent_at) for b in self._batches}
        self._run_id = run_id
        self._system = system_fields(entry.settings.get("extras", ()))
        self._invalid = InvalidAnswers()
        self.summary = Summary(published_by=run_id, stored_schema=self._output is not today)
        """Complete after `write`."""

    def write(self) -> str:
        """Write all rows and return the segment's name."""
        if self.summary.stored_schema:
            logger.warning(
                "%s: the output type changed since the batches were sent. Their answers are validated by the JSON Schema they "
                "were asked with, and no validators of the type run: llm_validated is false.",
                self._entry.key,
            )
        kept_names = self._entry.settings["kept"]
        plan_schema = self._segments.schema(self._entry.plan_segment)
        kept = pa.schema([plan_schema.field(name) for name in kept_names])
        schema = pa.schema([*kept, *self._output.arrow_schema, *self._system])
        cursors = [OutcomeCursor(self._segments, b.outcomes_segment) for b in self._batches if b.outcomes_segment]
        columns = [*kept_names, ROW_ID, FINGERPRINT, PROBLEM, *([MODEL] if MODEL in plan_schema.names else [])]
        first = 0
        with self._segments.writer("results", schema, row_group_rows=BLOCK_ROWS) as writer:
            for block in self._segments.batches(self._entry.plan_segment, columns=columns):
                found = [part for cursor in cursors for part in cursor.until(first + block.num_rows)]
                made = [block.column(i) for i in range(len(kept_names))]
                made += self._block(block, pa.Table.from_batches(found, OUTCOME_SCHEMA), first)
                writer.write(pa.RecordBatch.from_arrays(made, schema=schema))
                first += block.num_rows
        if self.summary.rows != self._entry.row_count:
            raise AssertionError(f"{self.summary.rows} rows out for {self._entry.row_count} rows in")
        self._invalid.warn()
        return writer.name

    def _block(self, block: pa.RecordBatch, outcomes: pa.Table, first: int) -> "list[pa.Array]":
        """The answer and system columns of one block of the plan: whole columns, but for what is decided a row."""
        rows = block.num_rows
        at = outcomes.column("row").to_numpy() - first
        attempts = np.bincount(at, minlength=rows)
        final = _final(at, outcomes, rows)
        taken = outcomes.take(pa.array(final, mask=final < 0)).combine_chunks()
        kept = len(self._entry.settings["kept"])
        row_ids, fingerprints, problems = (block.column(kept + i) for i in range(3))
        models = self._models(block)
        answers, verdicts = self._verdicts(row_ids, problems, taken)
        status, validated, error, name, category, raw = verdicts
        self.summary.resubmitted_rows += int((attempts > 1).sum())
        settings = self._entry.settings
        system: dict[str, Any] = {
            "llm_row_id": row_ids,
            "llm_status": status,
            "llm_validated": validated,
            "llm_attempts": attempts,
            "llm_provider": pa.repeat(settings["provider"], rows),
            "llm_model": pc.coalesce(taken.column("model"), models),
            "llm_error": error,
            "llm_error_name": name,
            "llm_error_category": category,
            "llm_raw": raw,
            "llm_cost_usd": self._costs(at, outcomes, models),
            "llm_fingerprint": fingerprints,
            "llm_schema_hash": pa.repeat(self._output.digest, rows),
            "llm_run_id": pa.repeat(self._run_id, rows),
        }
        made = self._output.to_arrow(answers)
        for wanted in self._system:
            column = system[wanted.name] if wanted.name in system else taken.column(wanted.name.removeprefix("llm_"))
            made.append(_array(column, wanted.type))
        return made

    def _verdicts(self, row_ids: pa.Array, problems: pa.Array, final: pa.Table) -> "tuple[list[Any], list[Any]]":
        """The answer columns; and status, validated, error, error name, error category and raw text of each row."""
        judged = [_values(final.column(name)) for name in JUDGED]
        verdicts = [
            judge(self._validate, problem, *outcome)
            for problem, outcome in zip(_values(problems), zip(*judged, strict=True), strict=True)
        ]
        named = [(at, v.name, v) for at, v in enumerate(verdicts) if v.name is not None]
        self.summary.count(row_ids, named)
        self._invalid.count(final, named)
        nothing = (None,) * len(self._output.arrow_schema)
        if not verdicts:
            return [[] for _ in nothing], [[] for _ in range(6)]
        answers = zip(*(nothing if v.answer is None else v.answer for v in verdicts), strict=True)
        valid, status, error, name, category = zip(*verdicts, strict=True)
        # what a stored schema accepts was not validated by the output type, whose validators are code
        by_type = not (self._output.is_text or self.summary.stored_schema)
        validated = [by_type and answer is not None for answer in valid]
        raw = [text if answer is None else None for answer, text in zip(valid, judged[TEXT], strict=True)]
        return list(answers), [status, validated, error, name, category, raw]

    def _models(self, block: pa.RecordBatch) -> pa.Array:
        """The model each row was asked of."""
        asset = pa.repeat(self._entry.settings["template"]["model"], block.num_rows)
        return pc.coalesce(block.column(MODEL), asset) if MODEL in block.schema.names else asset

    def _costs(self, at: "np.ndarray", outcomes: pa.Table, models: pa.Array) -> pa.Array:
        """The sum over each row's attempts, failed ones too; null as soon as one of them is unknown."""
        reused = pc.equal(outcomes.column("lane"), "reused")
        self.summary.reused_rows += pc.sum(reused).as_py() or 0
        # a reused answer was paid for, and counted, by the older generation
        paid = pc.and_not(pc.is_in(outcomes.column("kind"), pa.array(_PAID)), reused)
        billed = outcomes.filter(paid)
        for name in TOKEN_FIELDS:
            self.summary.tokens[name] += pc.sum(billed.column(name)).as_py() or 0
        unknown = pc.and_(pc.is_null(billed.column("input_tokens")), pc.is_null(billed.column("output_tokens")))
        self.summary.unknown_tokens += pc.sum(unknown).as_py() or 0
        rows = at[paid.to_numpy()]
        provider = self._entry.settings["provider"]
        asked_for = models.take(pa.array(rows))
        usd = outcome_costs(billed, asked_for, provider=provider, prices=self._prices, sent_on=self._sent_on)
        self.summary.cost_usd += float(np.nansum(usd))
        costs = np.zeros(len(models))
        np.add.at(costs, rows, usd)
        self.summary.unpriced_rows += int(np.isnan(costs).sum())
        return pa.array(costs, from_pandas=True)


TEXT = JUDGED.index("text")
_PAID = [kind.value for kind in PAID_FINAL]


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, timezone.utc).date()


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    found = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return found.cast(kind) if isinstance(found, pa.Array) else pa.array(found, kind)


def _values(column: "pa.Array | pa.ChunkedArray") -> "list[Any]":
    """The values in Python; most columns about failures are all null, which takes no time a row."""
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def _final(at: "np.ndarray", outcomes: pa.Table, rows: int) -> "np.ndarray":
    """For each row the place of the outcome that counts, -1 for none: an answer, else the newest attempt."""
    final = np.full(rows, -1, np.int64)
    answered = pc.equal(outcomes.column("kind"), ANSWER).to_numpy()
    order = np.lexsort((outcomes.column("attempt").to_numpy(), answered, at))
    final[at[order]] = order  # of a row's outcomes the last in this order stays
    return final


def output_of(settings: "Mapping[str, Any]", today: "OutputSchema | None") -> OutputSchema:
    """The output type a plan was made with: today's code where it still says the same, else the stored schema."""
    stored = OutputSchema.from_json(settings["output"])
    return today if today is not None and today.matches(stored) else stored


def read_results(segments: SegmentStore, name: str) -> pa.RecordBatchReader:
    """The published rows as a stream."""
    batches: Iterator[pa.RecordBatch] = segments.batches(name)
    return pa.RecordBatchReader.from_batches(segments.schema(name), batches)
