"""Stop a batch at its provider: the reason is recorded before the call, so that a crash in between loses neither."""

import logging

from dagster_llmbatch.core.poll import handle_of
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.errors import CannotCancelError, ProviderError
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, CancelReason

logger = logging.getLogger(__name__)


def cancel(batch: BatchRecord, reason: CancelReason, work: Workplace) -> None:
    """Ask the provider to stop a submitted batch. What it finished is paid for, and collected when it has ended.

    It is not looked at before a cancel has settled (`Limits.cancel_settle`): until then rows still finish, and sending them
    again would pay for them twice. A batch that cannot be stopped runs to its end. Raises ProviderErrors; another call
    repeats the request.
    """
    logger.warning("asking %s to stop batch %s (%s).", batch.provider, batch.batch_id, reason.value)
    work.ledger.record_cancel_reason(batch.id, reason)
    provider = work.provider_of(batch.provider)
    try:
        handle, wait = provider.cancel(handle_of(batch)).handle, provider.limits.cancel_settle
    except CannotCancelError as error:
        logger.warning("%s", error)
        handle, wait = handle_of(batch), work.policy.poll_first
    now = work.now()
    work.ledger.record_cancel(batch.id, handle.to_json(), next_poll_at=now + max(wait, work.policy.poll_first), now=now)


def cancel_open(entry_id: str, reason: CancelReason, work: Workplace) -> int:
    """Ask the providers to stop every batch of an entry that is out; returns how many. Nothing is lost: what they
    finished is collected by the next run of the partition. One that cannot be asked does not keep the others running.
    """
    asked = 0
    for batch in work.ledger.batches(entry_id):
        if batch.phase is not BatchPhase.SUBMITTED or batch.cancel_at is not None:
            continue
        try:
            cancel(batch, reason, work)
            asked += 1
        except ProviderError as error:  # the reason is recorded: the next run asks again
            logger.warning("batch %s could not be stopped: %s", batch.batch_id, error)
    return asked
