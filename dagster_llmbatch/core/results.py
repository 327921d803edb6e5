"""Plan and outcomes to the results table: one row out per row in, in input order, with the reason where there is no answer."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_llmbatch.core.outcomes import PAID_FINAL, TOKEN_FIELDS, OutcomeCursor
from dagster_llmbatch.core.plan import BLOCK_ROWS, FINGERPRINT, PROBLEM, ROW_ID, TOO_LARGE
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import ErrorCategory, OutcomeKind
from dagster_llmbatch.schemas.output import Invalid, OutputSchema

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

SUCCEEDED, FAILED, REVIEW = "succeeded", "failed", "review"
STATUSES = (SUCCEEDED, FAILED, REVIEW)
SAMPLES = 5
"""Row ids kept as examples for each error name."""

Price = Callable[[str, Mapping[str, Any]], "float | None"]
"""(the model asked for, an outcome as in the outcomes segment) to the USD it cost; None where price or tokens are unknown."""


@dataclass
class Summary:
    """Counts of one published partition. Stored with the entry; checks and metadata read it from there."""

    rows: int = 0
    statuses: "Counter[str]" = field(default_factory=Counter)
    errors: "Counter[str]" = field(default_factory=Counter)
    samples: "dict[str, list[str]]" = field(default_factory=dict)
    tokens: "Counter[str]" = field(default_factory=Counter)
    unknown_tokens: int = 0
    """Billed outcomes without usage."""
    cost_usd: float = 0.0
    """Of the rows whose price is known."""
    unpriced_rows: int = 0
    recovered_rows: int = 0
    """Valid answers that stood in a Markdown fence."""
    reused_rows: int = 0
    resubmitted_rows: int = 0

    def to_json(self) -> "dict[str, Any]":
        """Plain JSON, as the ledger keeps it."""
        return {
            "rows": self.rows,
            **{status: self.statuses[status] for status in STATUSES},
            "errors": dict(self.errors.most_common()),
            "samples": self.samples,
            "tokens": {name: self.tokens[name] for name in TOKEN_FIELDS},
            "unknown_tokens": self.unknown_tokens,
            "cost_usd": self.cost_usd,
            "unpriced_rows": self.unpriced_rows,
            "recovered_rows": self.recovered_rows,
            "reused_rows": self.reused_rows,
            "resubmitted_rows": self.resubmitted_rows,
        }


def results_schema(kept: pa.Schema, output: OutputSchema) -> pa.Schema:
    """The schema of the results table: the same in every partition, also of an empty or all-failed one."""
    return pa.schema([*kept, *output.arrow_schema, *SYSTEM_FIELDS])


class ResultsWriter:
    """Writes the results segment of one entry, a block of rows at a time."""

    def __init__(
        self,
        entry: Entry,
        batches: "Sequence[BatchRecord]",
        *,
        output: OutputSchema,
        segments: SegmentStore,
        price: Price,
        run_id: str,
    ) -> None:
        self._entry = entry
        self._batches = [b for b in batches if b.phase is BatchPhase.COLLECTED and b.outcomes_segment]
        self._output = output
        self._validate = output.validator()
        self._segments = segments
        self._price = price
        self._run_id = run_id
        self.summary = Summary()

    def write(self) -> str:
        """Write all rows and return the segment's name; `summary` is complete afterwards."""
        kept_names = self._entry.settings["kept"]
        plan_schema = self._segments.schema(self._entry.plan_segment)
        kept = pa.schema([plan_schema.field(name) for name in kept_names])
        schema = results_schema(kept, self._output)
        cursors = [OutcomeCursor(self._segments, b.outcomes_segment) for b in self._batches if b.outcomes_segment]
        columns = [*kept_names, ROW_ID, FINGERPRINT, PROBLEM]
        first = 0
        with self._segments.writer("results", schema, row_group_rows=BLOCK_ROWS) as writer:
            for block in self._segments.batches(self._entry.plan_segment, columns=columns):
                outcomes = self._outcomes(cursors, first, block.num_rows)
                made = [block.column(i) for i in range(len(kept_names))]
                made += self._answers_and_system(block, outcomes)
                writer.write(pa.RecordBatch.from_arrays(made, schema=schema))
                first += block.num_rows
        if self.summary.rows != self._entry.row_count:
            raise AssertionError(f"{self.summary.rows} rows out for {self._entry.row_count} rows in")
        return writer.name

    def _outcomes(self, cursors: "list[OutcomeCursor]", first: int, rows: int) -> "list[list[dict[str, Any]]]":
        found: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
        for cursor in cursors:
            for outcome in cursor.until(first + rows):
                found[outcome["row"] - first].append(outcome)
        return found

    def _answers_and_system(self, block: pa.RecordBatch, outcomes: "list[list[dict[str, Any]]]") -> "list[pa.Array]":
        values: list[list[Any]] = [[] for _ in self._output.arrow_schema]
        system: list[tuple[Any, ...]] = []
        at = len(self._entry.settings["kept"])
        identity = (block.column(at + i).to_pylist() for i in range(3))
        nothing = (None,) * len(values)
        for row_id, fingerprint, problem, attempts in zip(*identity, outcomes, strict=True):
            answer, columns = self._row(row_id, fingerprint, problem, attempts)
            for column, value in zip(values, nothing if answer is None else answer, strict=True):
                column.append(value)
            system.append(columns)
        made = self._output.to_arrow(values)
        by_column = zip(*system, strict=True) if system else [[] for _ in SYSTEM_FIELDS]
        made += [pa.array(column, kind.type) for column, kind in zip(by_column, SYSTEM_FIELDS, strict=True)]
        return made

    def _row(
        self, row_id: str, fingerprint: "str | None", problem: "str | None", attempts: "list[dict[str, Any]]"
    ) -> "tuple[Sequence[Any] | None, tuple[Any, ...]]":
        summary = self.summary
        summary.rows += 1
        final = _final(attempts)
        answer, status, error, name, category = self._verdict(final, problem)
        summary.statuses[status] += 1
        if name is not None and status != SUCCEEDED:
            summary.errors[name] += 1
            samples = summary.samples.setdefault(name, [])
            if len(samples) < SAMPLES:
                samples.append(row_id)
        settings = self._entry.settings
        if final is None:
            return answer, (
                row_id, status, False, 0, None, settings["provider"], settings["template"]["model"], None, None, None,
                None, error, name, category, None, None, None, None, None, 0.0, fingerprint, self._output.digest,
                self._run_id,
            )  # fmt: skip
        cost = self._cost(attempts)
        raw = final["text"] if answer is None else None
        return answer, (
            row_id, status, answer is not None and not self._output.is_text, len(attempts), final["lane"],
            settings["provider"], final["model"] or settings["template"]["model"], final["batch_id"],
            final["custom_id"], final["finish_reason"], final["refusal"], error, name, category, raw,
            final["input_tokens"], final["output_tokens"], final["cached_tokens"], final["reasoning_tokens"], cost,
            fingerprint, self._output.digest, self._run_id,
        )  # fmt: skip

    def _cost(self, attempts: "list[dict[str, Any]]") -> "float | None":
        """The sum over a row's attempts, failed ones too; None as soon as one of them is unknown."""
        summary = self.summary
        summary.resubmitted_rows += len(attempts) > 1
        total = 0.0
        known = True
        for outcome in attempts:
            if outcome["lane"] == "reused":
                summary.reused_rows += 1
                continue  # paid for, and counted, by the older generation
            if OutcomeKind(outcome["kind"]) not in PAID_FINAL:
                continue
            tokens = summary.tokens
            if outcome["input_tokens"] is None and outcome["output_tokens"] is None:
                summary.unknown_tokens += 1
            for name in TOKEN_FIELDS:
                tokens[name] += outcome[name] or 0
            price = self._price(self._entry.settings["template"]["model"], outcome)
            known = known and price is not None
            total += price or 0.0
        summary.cost_usd += total
        if not known:
            summary.unpriced_rows += 1
            return None
        return total

    def _verdict(
        self, final: "dict[str, Any] | None", problem: "str | None"
    ) -> "tuple[Sequence[Any] | None, str, str | None, str | None, str | None]":
        """(answer columns, status, error, error name, error category) of one row."""
        if problem is not None or final is None:
            name, category = _plan_problem(problem)
            return None, REVIEW, problem or "never sent", name, category.value
        kind = OutcomeKind(final["kind"])
        if kind is OutcomeKind.ANSWER:
            found = self._validate(final["text"])
            if isinstance(found, Invalid):
                return None, FAILED, found.message, found.problem.value, ErrorCategory.VALIDATION_ERROR.value
            if found.recovered:
                self.summary.recovered_rows += 1
                return found.values, SUCCEEDED, None, found.recovered, None
            return found.values, SUCCEEDED, None, None, None
        category = final["error_category"] or _CATEGORIES.get(kind, ErrorCategory.UNKNOWN).value
        if kind in PAID_FINAL:
            return None, FAILED, _REASONS[kind], kind.value, category
        return None, REVIEW, final["error_message"] or final["error_code"] or kind.value, kind.value, category


_REASONS = {
    OutcomeKind.REFUSAL: "the model declined to answer",
    OutcomeKind.TRUNCATED: "the answer was cut off at the output token limit: raise it in params",
    OutcomeKind.EMPTY: "the reply holds no text",
}
_CATEGORIES = {
    OutcomeKind.REFUSAL: ErrorCategory.REFUSED,
    OutcomeKind.TRUNCATED: ErrorCategory.TRUNCATED,
    OutcomeKind.EMPTY: ErrorCategory.EMPTY,
}


def _final(attempts: "list[dict[str, Any]]") -> "dict[str, Any] | None":
    """The outcome that counts: an answer wherever there is one, else the newest attempt's."""
    if len(attempts) <= 1:
        return attempts[0] if attempts else None
    return max(attempts, key=lambda o: (o["kind"] == OutcomeKind.ANSWER.value, o["attempt"]))


def _plan_problem(problem: "str | None") -> "tuple[str, ErrorCategory]":
    if problem is not None and problem.startswith(TOO_LARGE):
        return "row_too_large", ErrorCategory.TOO_LARGE
    return ("prompt_failed", ErrorCategory.CLIENT_ERROR) if problem else ("never_sent", ErrorCategory.UNKNOWN)


def read_results(segments: SegmentStore, name: str) -> pa.RecordBatchReader:
    """The published rows as a stream."""
    batches: Iterator[pa.RecordBatch] = segments.batches(name)
    return pa.RecordBatchReader.from_batches(segments.schema(name), batches)
