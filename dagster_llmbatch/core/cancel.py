"""Stop a batch at its provider: the reason is recorded before the call, so that a crash in between loses neither."""

import logging
from collections.abc import Callable

from dagster_llmbatch.core.poll import handle_of
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.errors import CannotCancelError
from dagster_llmbatch.ledger.records import BatchRecord, CancelReason
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import BatchProvider

logger = logging.getLogger(__name__)


def cancel(
    batch: BatchRecord,
    reason: CancelReason,
    *,
    provider: BatchProvider,
    ledger: Ledger,
    policy: Policy,
    now: "Callable[[], float]",
) -> None:
    """Ask the provider to stop a submitted batch. What it finished is paid for, and collected when it has ended.

    It is not looked at before a cancel has settled (`Limits.cancel_settle`): until then rows still finish, and sending them
    again would pay for them twice. A batch that cannot be stopped runs to its end. Raises ProviderErrors; another call
    repeats the request.
    """
    logger.warning("asking %s to stop batch %s (%s).", batch.provider, batch.batch_id, reason.value)
    ledger.record_cancel_reason(batch.id, reason)
    try:
        handle, wait = provider.cancel(handle_of(batch)).handle, provider.limits.cancel_settle
    except CannotCancelError as error:
        logger.warning("%s", error)
        handle, wait = handle_of(batch), policy.poll_first
    ledger.record_cancel(batch.id, handle.to_json(), next_poll_at=now() + max(wait, policy.poll_first), now=now())
