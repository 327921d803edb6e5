"""What to do next with a partition, as a value. Every rule about money is here, and nothing else is.

Pure: no clock, no storage, no provider. Who calls it reads the ledger, does the one thing, records it, and asks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry, EntryState

CANCEL_ASKED = "cancelling"
"""A batch's provider state from our cancel call on, until it ended."""


@dataclass(frozen=True)
class Submit:
    """Send the rows of this wave that were never sent: all of the first one, or what a crash left of any."""

    wave: int


@dataclass(frozen=True)
class Resubmit:
    """Send the rows that may be sent again, as a new wave."""

    wave: int


@dataclass(frozen=True)
class Adopt:
    """Intent was recorded and no handle: look for the batch at the provider before anything else."""

    batch: BatchRecord


@dataclass(frozen=True)
class Collect:
    """The batch ended: stream its results into the ledger."""

    batch: BatchRecord
    older: bool = False
    """Whether it belongs to the generation before."""


@dataclass(frozen=True)
class Cancel:
    """The batch's deadline passed: ask the provider to stop; what it finished is collected when it ended."""

    batch: BatchRecord


@dataclass(frozen=True)
class Wait:
    """Nothing to do until then (unix seconds)."""

    until: float
    reason: str


@dataclass(frozen=True)
class Reuse:
    """The older generation came to rest: take over its answers to unchanged rows."""

    predecessor: Entry


@dataclass(frozen=True)
class Publish:
    """Every row has its outcome: write the results."""


@dataclass(frozen=True)
class Replay:
    """Published before: hand out the stored results. Nothing is bought."""


@dataclass(frozen=True)
class GiveUp:
    """Failed for good: say why."""

    reason: str


Decision = Submit | Resubmit | Adopt | Collect | Cancel | Wait | Reuse | Publish | Replay | GiveUp


@dataclass(frozen=True)
class RowTally:
    """How the rows of a partition stand. `pending + submitted + done + review == total`, always."""

    total: int
    pending: int
    """To be sent: never sent, or sent in vain with attempts left."""
    submitted: int
    done: int
    review: int
    unsent: int = 0
    """Of `pending`: those the current wave has not sent yet."""

    def __post_init__(self) -> None:
        if self.pending + self.submitted + self.done + self.review != self.total:
            raise AssertionError(f"row states do not add up: {self}")


@dataclass(frozen=True)
class Situation:
    """What the ledger says of one partition at one moment."""

    entry: Entry
    batches: "Sequence[BatchRecord]"
    count_rows: "Callable[[], RowTally]"
    """Reads the segments, so it is called only where the batches alone do not decide."""
    predecessor: "Entry | None" = None
    """The older generation whose answers are to be kept, while they are not taken over yet."""
    predecessor_batches: "Sequence[BatchRecord]" = ()
    queue_full_at: "float | None" = None
    """When the provider's queue was last found full (unix seconds)."""


def decide(situation: Situation, policy: Policy, now: float) -> Decision:
    """The next step of one partition at `now` (unix seconds)."""
    entry = situation.entry
    if entry.state is EntryState.PUBLISHED:
        return Replay()
    if entry.state is not EntryState.PENDING:
        return GiveUp(entry.failure or entry.state.value)
    if situation.predecessor is not None:
        older = _unfinished(situation.predecessor_batches, now)
        if isinstance(older, Adopt | Wait):
            return older
        return Collect(older.batch, older=True) if isinstance(older, Collect) else Reuse(situation.predecessor)
    unfinished = _unfinished(situation.batches, now)
    if isinstance(unfinished, Adopt | Collect | Cancel):
        return unfinished
    rows = situation.count_rows()
    if rows.unsent:
        return _unless_queue_full(situation, policy, now) or Submit(max(entry.wave, 1))
    if unfinished is not None:
        return unfinished
    if rows.submitted:
        raise AssertionError(f"{rows.submitted} rows are out without a batch")
    if rows.pending:
        return _unless_queue_full(situation, policy, now) or Resubmit(entry.wave + 1)
    return Publish()


def _unfinished(batches: "Sequence[BatchRecord]", now: float) -> "Adopt | Collect | Cancel | Wait | None":
    """What batches that are not collected yet ask for; one without a handle comes before everything else."""
    unclear = [b for b in batches if b.phase in (BatchPhase.INTENT, BatchPhase.UPLOADED)]
    if unclear:
        ready = [b for b in unclear if (b.next_poll_at or 0) <= now]
        if ready:
            return Adopt(ready[0])
    for batch in batches:
        if batch.phase is BatchPhase.ENDED:
            return Collect(batch)
    out = [b for b in batches if b.phase is BatchPhase.SUBMITTED]
    for batch in out:
        if batch.deadline is not None and batch.deadline <= now and batch.provider_state != CANCEL_ASKED:
            return Cancel(batch)
    waiting = out + unclear
    if not waiting:
        return None
    until = min(b.next_poll_at or now for b in waiting)
    return Wait(until, f"{len(waiting)} of {len(batches)} batches are out")


def _unless_queue_full(situation: Situation, policy: Policy, now: float) -> "Wait | None":
    if situation.queue_full_at is None or now >= situation.queue_full_at + policy.queue_wait:
        return None
    return Wait(situation.queue_full_at + policy.queue_wait, "the provider's batch queue was full")


class Claim(str, Enum):
    """How a run stands to the newest generation of its partition (DESIGN 5, generations)."""

    CONTINUE = "continue"
    ATTACH = "attach"
    QUEUE = "queue"
    """Wait for the open batches, keep their answers, then buy what changed."""
    NEW = "new"


def decide_claim(latest: "Entry | None", *, known_run: bool, plan_digest: str) -> Claim:
    """Which generation a run that planned `plan_digest` works on, given the newest one."""
    if latest is None:
        return Claim.NEW
    if known_run and latest.plan_digest == plan_digest:
        return Claim.CONTINUE
    if latest.state is EntryState.PENDING:
        return Claim.ATTACH if latest.plan_digest == plan_digest else Claim.QUEUE
    return Claim.NEW


def can_go_on(
    entry: Entry,
    batches: "Sequence[BatchRecord]",
    *,
    older: "Entry | None",
    older_batches: "Sequence[BatchRecord]",
    now: float,
) -> bool:
    """Whether a run could do something for this entry now. Cheap: reads no segments, so the sensor may ask often."""
    if entry.state is not EntryState.PENDING:
        return True
    for held in (entry, older):
        if held is not None and held.owner is not None and (held.lease_until or 0) > now:
            return False
    takes_over = older is not None and not any(b.wave == 0 for b in batches)
    return not isinstance(_unfinished(older_batches if takes_over else batches, now), Wait)
