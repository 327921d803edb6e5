"""The steps of a purchase, with the values that a test does not care about."""

from dagster_llmbatch.ledger.records import BatchRecord, Entry, EntryKey
from dagster_llmbatch.ledger.sql_ledger import Ledger

KEY = EntryKey("n", "asset", "p")


def create(ledger: Ledger, generation: int = 1, key: EntryKey = KEY) -> "Entry | None":
    """A new generation; None where it is there."""
    return ledger.create_entry(
        key,
        generation=generation,
        plan_digest="d",
        plan_segment="s",
        row_count=3,
        settings={"provider": "openai"},
        predecessor_id=None,
        now=1.0,
    )


def entry(ledger: Ledger, generation: int = 1, key: EntryKey = KEY) -> Entry:
    """A new generation, which must not be there."""
    found = create(ledger, generation, key)
    assert found is not None
    return found


def intent(ledger: Ledger, of: Entry, owner: str, fence: int, key: str = "k") -> BatchRecord:
    """An intent of `owner`."""
    return ledger.record_intent(
        of.id,
        owner,
        fence,
        wave=1,
        chunk=0,
        external_key=key,
        provider="openai",
        request_count=3,
        request_bytes=9,
        requests_segment="r",
        now=2.0,
    )


def owned(ledger: Ledger, of: Entry, owner: str = "r") -> int:
    """The fencing token of `owner`, which becomes the entry's owner."""
    fence = ledger.acquire(of.id, owner, now=0.0, ttl=10.0)
    assert fence is not None
    return fence


def submit(ledger: Ledger, record: BatchRecord, batch_id: str = "b1", next_poll_at: float = 10.0) -> None:
    """The provider's handle for an intent."""
    ledger.record_handle(
        record.id,
        provider_batch_id=batch_id,
        handle={"batch_id": batch_id},
        status={},
        provider_state="validating",
        next_poll_at=next_poll_at,
        poll_interval=1.0,
        deadline=99.0,
        now=3.0,
    )


def look(ledger: Ledger, record: BatchRecord, *, next_poll_at: float = 5.0, ended: bool = False) -> bool:
    """A look at a submitted batch."""
    return ledger.record_status(
        record.id,
        provider_state="completed" if ended else "in_progress",
        counts=(3, 3, 0),
        status={},
        next_poll_at=next_poll_at,
        poll_interval=1.0,
        ended=ended,
        now=5.0,
    )
