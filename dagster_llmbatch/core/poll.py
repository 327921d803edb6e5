"""One look at one batch, recorded. Cheap: never downloads. Called by runs and by the sensor alike."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dagster_llmbatch.core.collect import GONE
from dagster_llmbatch.core.decide import CANCEL_ASKED
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.submit import status_json
from dagster_llmbatch.errors import BatchNotFoundError, ProviderError
from dagster_llmbatch.ledger.records import BatchRecord
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import BatchHandle, BatchProvider, BatchState, BatchStatus

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
    """Ask the provider for a submitted batch's status and record it with the time of the next poll."""
    interval = policy.next_poll(batch.poll_interval)
    try:
        status = provider.status(handle_of(batch))
    except BatchNotFoundError:
        status = BatchStatus(handle_of(batch), BatchState.COMPLETED, GONE)
        logger.warning("batch %s is not known at %s any more.", batch.batch_id, batch.provider)
    except ProviderError as error:
        failures = ledger.record_check_failure(batch.id, str(error), next_poll_at=now() + interval)
        log = logger.warning if failures < policy.failed_checks else logger.error
        log("status of batch %s could not be read (%d times in a row): %s", batch.batch_id, failures, error)
        return Look(batch, None, failures, str(error))
    if status.state is BatchState.UNKNOWN:
        logger.warning("batch %s is in the unknown state %r; polling on.", batch.batch_id, status.provider_state)
    asked = batch.provider_state == CANCEL_ASKED and not status.state.ended
    ledger.record_status(
        batch.id,
        provider_state=CANCEL_ASKED if asked else status.provider_state,
        counts=(status.total, status.completed, status.failed),
        status=status_json(status),
        next_poll_at=now() + interval,
        poll_interval=interval,
        ended=status.state.ended,
        now=now(),
    )
    return Look(batch, status)


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
