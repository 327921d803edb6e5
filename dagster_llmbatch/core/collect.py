"""Results of an ended batch, from every file there is, into one outcomes segment: joined by custom_id only."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA, PAID_FINAL, outcomes_table
from dagster_llmbatch.core.plan import BLOCK_ROWS
from dagster_llmbatch.errors import BatchNotFoundError
from dagster_llmbatch.ledger.records import BatchRecord, CancelReason
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import (
    BatchProvider,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Limits,
    Outcome,
    OutcomeKind,
)

logger = logging.getLogger(__name__)


@dataclass
class Reconciled:
    """What joining a batch's results to its requests found."""

    outcomes: "list[Outcome]"
    """One for each request, in their order."""
    counted: "list[bool]"
    """Whether each uses up an attempt of its row."""
    duplicates: int
    strangers: int
    """Custom ids in the results that this batch never sent."""
    missing: int


def reconcile(
    custom_ids: "Sequence[str]", outcomes: "Iterable[Outcome]", *, status: BatchStatus, may_be_gone: bool = True
) -> Reconciled:
    """Give every request exactly one outcome.

    Of several results for one custom_id the first counts, but what was paid for beats an error, and an answer beats all.
    Raises BatchNotFoundError for results that are not found although the provider still keeps them (not `may_be_gone`).
    """
    place = {custom_id: at for at, custom_id in enumerate(custom_ids)}
    found: list[Outcome | None] = [None] * len(custom_ids)
    duplicates = strangers = 0
    gone = status.provider_state == GONE
    try:
        for outcome in outcomes:
            at = place.get(outcome.custom_id)
            if at is None:
                strangers += 1
                continue
            earlier = found[at]
            duplicates += earlier is not None
            if earlier is None or _worth(outcome) > _worth(earlier):
                found[at] = outcome
    except BatchNotFoundError as error:
        if not (may_be_gone or error.status_code == GONE_FOR_GOOD):
            raise
        # kept too short at the provider: what was not read is gone, and nobody buys it again unasked
        logger.warning("batch %s: its results are gone at the provider.", status.handle.batch_id)
        gone = True
    return Reconciled(
        [o or _without_result(custom_id, status, gone) for custom_id, o in zip(custom_ids, found, strict=True)],
        [o is not None or not status.queue_full for o in found],
        duplicates,
        strangers,
        found.count(None),
    )


def collect(
    batch: BatchRecord,
    status: BatchStatus,
    *,
    provider: BatchProvider,
    segments: SegmentStore,
    extras: "Collection[str]" = (),
    now: float,
) -> str:
    """Stream a batch's outcomes into a segment and return its name. Safe to repeat: the same files, the same name.

    Raises BatchNotFoundError where results are not found at `now` (unix seconds) although the provider still keeps them.
    """
    requests = segments.table(batch.requests_segment).sort_by("row")
    found = reconcile(
        requests.column("custom_id").to_pylist(),
        _stream(provider, status, extras),
        status=status,
        may_be_gone=status.provider_state == GONE or now >= kept_until(batch, provider.limits),
    )
    _say_what_failed(batch, status, found)
    _give_back_cancelled(found, batch)
    with segments.writer("outcomes", OUTCOME_SCHEMA, row_group_rows=BLOCK_ROWS) as writer:
        for first in range(0, requests.num_rows, BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            writer.write(
                outcomes_table(
                    requests.slice(first, BLOCK_ROWS),
                    found.outcomes[block],
                    counted=found.counted[block],
                    batch_id=batch.batch_id,
                )
            )
    return writer.name


def _give_back_cancelled(found: Reconciled, batch: BatchRecord) -> None:
    """Rows that we stopped go again, unless a person wanted none of them. A terminated run used up no attempt."""
    if batch.cancel_reason in (CancelReason.DEADLINE.value, CancelReason.TERMINATED.value):
        for at, outcome in enumerate(found.outcomes):
            if outcome.kind is OutcomeKind.CANCELLED:
                found.outcomes[at] = msgspec.structs.replace(outcome, retryable=True)
                found.counted[at] = batch.cancel_reason == CancelReason.DEADLINE.value


def _say_what_failed(batch: BatchRecord, status: BatchStatus, found: Reconciled) -> None:
    """One warning of what the files lack or have too much of, one of what the provider failed at; none where all is well."""
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
    failed = Counter(o.error_category or ErrorCategory.UNKNOWN for o in found.outcomes if o.kind in _FAILED)
    if failed:
        logger.warning(
            "batch %s (%s): %d of %d requests failed at %s: %s.",
            batch.batch_id,
            status.provider_state,
            failed.total(),
            batch.request_count,
            batch.provider,
            ", ".join(f"{count} {category.value}" for category, count in failed.most_common()),
        )


def _stream(provider: BatchProvider, status: BatchStatus, extras: "Collection[str]") -> "Iterator[Outcome]":
    if status.state is BatchState.FAILED and not status.result_refs:
        return
    yield from provider.outcomes(status, extras=extras)


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
            error_category=_failed_for(status),
            retryable=status.queue_full or status.retryable,
        )
    if status.state is BatchState.EXPIRED:
        return Outcome(
            custom_id, OutcomeKind.EXPIRED, error_category=ErrorCategory.EXPIRED, error_code="expired", retryable=True
        )
    if status.state is BatchState.CANCELLED:
        return Outcome(custom_id, OutcomeKind.CANCELLED, error_category=ErrorCategory.CANCELLED, error_code="cancelled")
    return Outcome(
        custom_id,
        OutcomeKind.RESULTS_EXPIRED if gone else OutcomeKind.MISSING,
        error_code="results_expired" if gone else "missing_from_results",
        error_category=ErrorCategory.MISSING,
        retryable=not gone,
    )


def _failed_for(status: BatchStatus) -> ErrorCategory:
    if status.queue_full:
        return ErrorCategory.QUEUE_FULL
    return ErrorCategory.SERVER_ERROR if status.retryable else ErrorCategory.CLIENT_ERROR


def kept_until(batch: BatchRecord, limits: Limits) -> float:
    """Until when the provider surely keeps a batch's results (unix seconds)."""
    return (batch.ended_at or batch.submitted_at or batch.intent_at) + limits.retention


_FAILED = frozenset({OutcomeKind.PROVIDER_ERROR, OutcomeKind.EXPIRED, OutcomeKind.CANCELLED})
"""Kinds of outcomes that are the provider's failures; what the model answered, however badly, is none."""

GONE = "not_found"
"""Provider state we record for a batch that the provider does not keep any more."""
GONE_FOR_GOOD = 410
"""HTTP's "Gone": the provider says itself that it was there."""
