"""Results of an ended batch, from every file there is, into one outcomes segment: joined by custom_id only."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA, PAID_FINAL, outcomes_table
from dagster_llmbatch.core.plan import BLOCK_ROWS
from dagster_llmbatch.errors import BatchNotFoundError
from dagster_llmbatch.ledger.records import BatchRecord
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import (
    BatchProvider,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    OutcomeKind,
)

logger = logging.getLogger(__name__)


@dataclass
class Reconciled:
    """What joining a batch's results to its requests found."""

    outcomes: "dict[int, tuple[int, bool, Outcome]]" = field(default_factory=dict)
    """By row: attempt, whether it counts, outcome."""
    duplicates: int = 0
    strangers: int = 0
    """Custom ids in the results that this batch never sent."""
    missing: int = 0


def reconcile(
    requests: "Iterable[tuple[int, str, int]]", outcomes: "Iterable[Outcome]", *, status: BatchStatus
) -> Reconciled:
    """Give every request (row, custom_id, attempt) exactly one outcome.

    Of several results for one custom_id the first counts, but what was paid for beats an error, and an answer beats all.
    """
    sent = {custom_id: (row, attempt) for row, custom_id, attempt in requests}
    found = Reconciled()
    gone = status.provider_state == GONE
    try:
        for outcome in outcomes:
            known = sent.get(outcome.custom_id)
            if known is None:
                found.strangers += 1
                continue
            row, attempt = known
            earlier = found.outcomes.get(row)
            found.duplicates += earlier is not None
            if earlier is None or _worth(outcome) > _worth(earlier[2]):
                found.outcomes[row] = (attempt, True, outcome)
    except BatchNotFoundError:
        # kept too short at the provider: what was not read is gone, and nobody buys it again unasked
        logger.warning("batch %s: result files are gone at the provider.", status.handle.batch_id)
        gone = True
    for custom_id, (row, attempt) in sent.items():
        if row not in found.outcomes:
            found.missing += 1
            found.outcomes[row] = (attempt, not status.queue_full, _without_result(custom_id, status, gone))
    return found


def collect(batch: BatchRecord, status: BatchStatus, *, provider: BatchProvider, segments: SegmentStore) -> str:
    """Stream a batch's outcomes into a segment and return its name. Safe to repeat: the same files, the same name."""
    requests = request_rows(segments, batch.requests_segment)
    found = reconcile(requests, _stream(provider, status), status=status)
    if found.strangers or found.duplicates or found.missing:
        logger.warning(
            "batch %s (%s): %d of %d requests have no result, %d results are repeated, %d have a custom_id that was "
            "never sent.",
            batch.batch_id,
            status.provider_state,
            found.missing,
            batch.request_count,
            found.duplicates,
            found.strangers,
        )
    rows = sorted(found.outcomes)
    with segments.writer("outcomes", OUTCOME_SCHEMA, row_group_rows=BLOCK_ROWS) as writer:
        for first in range(0, len(rows), BLOCK_ROWS):
            # given up block by block: a batch's outcomes are never in memory twice
            block = ((row, *found.outcomes.pop(row)) for row in rows[first : first + BLOCK_ROWS])
            writer.write(outcomes_table(block, batch_id=batch.batch_id, lane="batch"))
    return writer.name


def request_rows(segments: SegmentStore, name: str) -> "Iterator[tuple[int, str, int]]":
    """(row, custom_id, attempt) of a requests segment, in the order sent."""
    for block in segments.batches(name):
        yield from zip(*(block.column(i).to_pylist() for i in range(3)), strict=True)


def _stream(provider: BatchProvider, status: BatchStatus) -> "Iterator[Outcome]":
    if status.state is BatchState.FAILED and not status.result_refs:
        return
    yield from provider.outcomes(status)


def _worth(outcome: Outcome) -> int:
    return 2 if outcome.kind is OutcomeKind.ANSWER else int(outcome.kind in PAID_FINAL)


def _without_result(custom_id: str, status: BatchStatus, gone: bool) -> Outcome:
    """The outcome of a request that stands in no result file, by how its batch ended."""
    if status.state is BatchState.FAILED:
        return Outcome(
            custom_id,
            OutcomeKind.PROVIDER_ERROR,
            error_code=status.error_code,
            error_message=status.error_message,
            error_category=ErrorCategory.RATE_LIMIT if status.queue_full else ErrorCategory.CLIENT_ERROR,
            retryable=status.queue_full,
        )
    if status.state is BatchState.EXPIRED:
        return Outcome(
            custom_id, OutcomeKind.EXPIRED, error_category=ErrorCategory.EXPIRED, error_code="expired", retryable=True
        )
    if status.state is BatchState.CANCELLED:
        return Outcome(custom_id, OutcomeKind.CANCELLED, error_category=ErrorCategory.CANCELLED, error_code="cancelled")
    return Outcome(
        custom_id,
        OutcomeKind.MISSING,
        error_code="batch_not_found" if gone else "missing_from_results",
        error_category=ErrorCategory.MISSING,
        retryable=not gone,
    )


GONE = "not_found"
"""Provider state we record for a batch that the provider does not know any more."""
