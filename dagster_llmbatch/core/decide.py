"""What to do next with a partition, as a value. Every rule about money is here, and nothing else is.

Pure: no clock, no storage, no provider. Who calls it reads the ledger, does the one thing, records it, and asks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.takeover import Takeover
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, CancelReason, Entry, EntryState


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


@dataclass(frozen=True)
class Cancel:
    """Ask the provider to stop the batch; what it finished is collected when it ended."""

    batch: BatchRecord
    reason: CancelReason


@dataclass(frozen=True)
class Wait:
    """Nothing to do until then (unix seconds)."""

    until: float
    reason: str
    held: bool = False
    """Whether there is nothing to do before then however the batches stand."""


@dataclass(frozen=True)
class Stop:
    """The user wants the run to fail rather than wait. The partition stays as it is, for a later run."""

    reason: str


@dataclass(frozen=True)
class Reuse:
    """An older generation came to rest: the one after it takes over its answers to unchanged rows."""

    heir: Entry
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


Decision = Submit | Resubmit | Adopt | Collect | Cancel | Wait | Stop | Reuse | Publish | Replay | GiveUp


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
    takeover: "Takeover | None" = None
    """What older generations still have to hand down, first."""
    queue_full_at: "float | None" = None
    """When the provider's queue was last found full (unix seconds)."""
    in_progress: int = 0
    """Batches of the provider's under way, of all partitions; counted only where the policy limits them."""


def decide(situation: Situation, policy: Policy, now: float) -> Decision:
    """The next step of one partition at `now` (unix seconds)."""
    entry = situation.entry
    if entry.state is EntryState.PUBLISHED:
        return Replay()
    if entry.state is not EntryState.PENDING:
        return GiveUp(entry.failure or entry.state.value)
    takeover = situation.takeover
    if takeover is not None:
        # a batch past its deadline is waited for like any other: stopping it could only lose answers
        older = _unfinished(takeover.batches, now, cancels=False)
        if isinstance(older, Adopt | Wait):
            return older
        return Collect(older.batch) if isinstance(older, Collect) else Reuse(takeover.heir, takeover.predecessor)
    unfinished = _unfinished(situation.batches, now)
    if isinstance(unfinished, Adopt | Collect | Cancel):
        return unfinished
    rows = situation.count_rows()
    if rows.unsent:
        return _held_back(situation, policy, now) or Submit(max(entry.wave, 1))
    if unfinished is not None:
        return unfinished
    if rows.submitted:
        raise AssertionError(f"{rows.submitted} rows are out without a batch")
    if rows.pending:
        return _held_back(situation, policy, now) or Resubmit(entry.wave + 1)
    return Publish()


def _unfinished(
    batches: "Sequence[BatchRecord]", now: float, *, cancels: bool = True
) -> "Adopt | Collect | Cancel | Wait | None":
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
        late = batch.deadline is not None and batch.deadline <= now
        if cancels and batch.cancel_at is None and (late or batch.cancel_reason is not None):
            return Cancel(batch, CancelReason(batch.cancel_reason or CancelReason.DEADLINE))
    waiting = out + unclear
    if not waiting:
        return None
    until = min(b.next_poll_at or now for b in waiting)
    return Wait(until, f"{len(waiting)} of {len(batches)} batches are out")


def _held_back(situation: Situation, policy: Policy, now: float) -> "Wait | Stop | None":
    """Why nothing can be sent now, or None."""
    if situation.queue_full_at is not None and now < situation.queue_full_at + policy.queue_wait:
        reason = "the provider's batch queue was full"
        if policy.on_queue_full == "fail":
            return Stop(reason)
        return Wait(situation.queue_full_at + policy.queue_wait, reason, held=True)
    most = policy.max_batches_in_progress
    if most is not None and situation.in_progress >= most:
        reason = f"{situation.in_progress} batches of the provider are in progress, and {most} may be"
        return Wait(now + policy.poll_first, reason, held=True)
    return None


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


def can_go_on(line: "Sequence[Entry]", batches: "Sequence[BatchRecord]", *, failed_checks: int, now: float) -> bool:
    """Whether a run could do something for this entry now. Cheap: reads no segments, so the sensor may ask often.

    Args:
        line: the entry and the generations that still have to hand their answers down to it.
        batches: those that come first: of the last of the line.
        failed_checks: a status that failed more often in a row is something to go on for: to say so.
        now: unix seconds.
    """
    entry = line[0]
    if entry.state is not EntryState.PENDING:
        return True
    if any(held.owner is not None and (held.lease_until or 0) > now for held in line):
        return False
    unfinished = _unfinished(batches, now, cancels=len(line) == 1)
    return any(is_unreadable(b, failed_checks) for b in batches) or not isinstance(unfinished, Wait)


def is_unreadable(batch: BatchRecord, failed_checks: int) -> bool:
    """Whether a batch's status failed more often in a row than is patient."""
    return batch.phase is BatchPhase.SUBMITTED and batch.failed_checks > failed_checks
