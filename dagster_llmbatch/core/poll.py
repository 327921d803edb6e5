"""One look at one batch, recorded. Cheap: never downloads. Called by runs and by the sensor alike."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dagster_llmbatch.core.collect import GONE, GONE_FOR_GOOD, kept_until
from dagster_llmbatch.core.decide import is_unreadable
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.submit import status_json
from dagster_llmbatch.errors import BatchNotFoundError, ProviderError, StatusUnreadableError
from dagster_llmbatch.ledger.records import BatchRecord
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import BatchHandle, BatchProvider, BatchState, BatchStatus, Limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What a poll found."""

    batch: BatchRecord
    status: "BatchStatus | None"
    """None where the call failed: that says nothing about the batch."""
    failures: int = 0
    """Status calls that failed in a row."""
    error: "str | None" = None


def poll(
    batch: BatchRecord, *, provider: BatchProvider, ledger: Ledger, policy: Policy, now: "Callable[[], float]"
) -> Look:
    """Ask the provider for a submitted batch's status and record it with the time of the next poll.

    A batch that is not found is gone only where the provider may have stopped keeping it: before that, the key of another
    project gives the same answer, and says nothing about the batch.
    """
    interval = policy.next_poll(batch.poll_interval)
    try:
        status = provider.status(handle_of(batch))
    except ProviderError as error:
        if not (isinstance(error, BatchNotFoundError) and _is_gone(error, batch, provider.limits, now())):
            failures = ledger.record_check_failure(
                batch.id, str(error), next_poll_at=now() + interval, poll_interval=interval
            )
            logger.warning("status of batch %s could not be read (%d in a row): %s", batch.batch_id, failures, error)
            return Look(batch, None, failures, str(error))
        status = BatchStatus(handle_of(batch), BatchState.COMPLETED, GONE)
        logger.warning("batch %s: %s does not keep it any more.", batch.batch_id, batch.provider)
    if status.state is BatchState.UNKNOWN:
        logger.warning("batch %s is in the unknown state %r; polling on.", batch.batch_id, status.provider_state)
    ledger.record_status(
        batch.id,
        provider_state=status.provider_state,
        counts=(status.total, status.completed, status.failed),
        status=status_json(status),
        next_poll_at=now() + interval,
        poll_interval=interval,
        ended=status.state.ended,
        now=now(),
    )
    return Look(batch, status)


def _is_gone(error: BatchNotFoundError, batch: BatchRecord, limits: Limits, now: float) -> bool:
    return error.status_code == GONE_FOR_GOOD or now >= kept_until(batch, limits)


def refuse_unreadable(batches: "Iterable[BatchRecord]", policy: Policy, *, where: str) -> None:
    """Raise StatusUnreadableError for a batch whose status failed for long, once nothing else is to be done."""
    for batch in batches:
        if is_unreadable(batch, policy.failed_checks):
            raise StatusUnreadableError(
                f"{where}: the status of batch {batch.batch_id} at {batch.provider} could not be read "
                f"{batch.failed_checks} times in a row ({batch.last_error}). That says nothing about the batch: nothing is "
                "bought again, and every run of the partition looks again. Check that the API key belongs to the project "
                "that bought it, and the provider's status page; then materialize the partition again.",
                provider=batch.provider,
            )


def handle_of(batch: BatchRecord) -> BatchHandle:
    """The recorded handle of a submitted batch."""
    if batch.handle is None:
        raise AssertionError(f"batch record {batch.id} has no handle")
    return BatchHandle.from_json(batch.handle)


def status_of(batch: BatchRecord) -> BatchStatus:
    """The status recorded last."""
    if batch.status is None:
        raise AssertionError(f"batch record {batch.id} has no status")
    return BatchStatus(**{**batch.status, "handle": handle_of(batch), "state": BatchState(batch.status["state"])})
