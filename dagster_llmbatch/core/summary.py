"""Counts of one published partition: what checks and metadata say, and which batches answered mostly in vain."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute

from dagster_llmbatch.core.outcomes import TOKEN_FIELDS
from dagster_llmbatch.core.verdicts import ANSWER, STATUSES, SUCCEEDED, Verdict
from dagster_llmbatch.providers.contract import ErrorCategory

pc: Any = pyarrow.compute  # its functions are made at import: no type checker sees them

logger = logging.getLogger(__name__)

SAMPLES = 5
"""Row ids kept as examples for each error name."""
Named = Sequence[tuple[int, str, Verdict]]
"""(row's place in its block, error name, verdict) of the verdicts that have a name; all other rows succeeded."""


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
    published_by: "str | None" = None
    """The run that published: its materialization shows what was paid."""
    stored_schema: bool = False
    """Whether the answers were validated by the schema stored with the plan, because today's output type differs."""

    def count(self, row_ids: pa.Array, named: "Named") -> None:
        """Add a block of rows, with a few row ids for each reason why there is no answer."""
        self.rows += len(row_ids)
        self.statuses[SUCCEEDED] += len(row_ids) - len(named)
        for at, name, verdict in named:
            self.statuses[verdict.status] += 1
            if verdict.answer is not None:
                self.recovered_rows += 1
                continue
            self.errors[name] += 1
            samples = self.samples.setdefault(name, [])
            if len(samples) < SAMPLES:
                samples.append(row_ids[at].as_py())

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
            "published_by": self.published_by,
            "stored_schema": self.stored_schema,
        }


class InvalidAnswers:
    """How many answers of each batch are not valid, and what is wrong with the first: all of them are paid for."""

    def __init__(self) -> None:
        self._answers: Counter[str] = Counter()
        self._invalid: Counter[str] = Counter()
        self._first: dict[str, Verdict] = {}

    def count(self, outcomes: pa.Table, named: "Named") -> None:
        """Add the outcomes of a block of rows."""
        batch_ids = outcomes.column("batch_id")
        for counted in pc.value_counts(batch_ids.filter(pc.equal(outcomes.column("kind"), ANSWER))).to_pylist():
            self._answers[counted["values"]] += counted["counts"]
        for at, _, verdict in named:
            if verdict.category == ErrorCategory.VALIDATION_ERROR:
                batch_id = batch_ids[at].as_py()
                self._invalid[batch_id] += 1
                self._first.setdefault(batch_id, verdict)

    def warn(self) -> None:
        """Say which batches have more invalid answers than valid ones, and why. Verdicts quote no answer."""
        for batch_id, invalid in self._invalid.items():
            if 2 * invalid > self._answers[batch_id]:
                first = self._first[batch_id]
                logger.warning(
                    "batch %s: %d of %d answers are not valid, and all are paid for. The first: %s (%s).",
                    batch_id,
                    invalid,
                    self._answers[batch_id],
                    first.error,
                    first.name,
                )
