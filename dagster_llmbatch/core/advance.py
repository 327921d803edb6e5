"""The line: plan, submit, poll, collect, reconcile, publish. Moves a partition as far as it goes without waiting.

`advance` may be called by any run, at any time, twice at once, after any crash: each step reads the ledger, does one
thing and records it. Which thing is decided in `decide`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import assert_never

from dagster_llmbatch.core.cancel import cancel
from dagster_llmbatch.core.chunks import was_queue_full
from dagster_llmbatch.core.collect import collect
from dagster_llmbatch.core.cyclic_gc import cyclic_gc_paused
from dagster_llmbatch.core.decide import (
    Adopt,
    Cancel,
    Claim,
    Collect,
    Decision,
    GiveUp,
    Publish,
    Replay,
    Resubmit,
    Reuse,
    Situation,
    Stop,
    Submit,
    Wait,
    decide,
    decide_claim,
    is_unreadable,
)
from dagster_llmbatch.core.plan import Plan
from dagster_llmbatch.core.poll import poll, refuse_unreadable, status_of
from dagster_llmbatch.core.requests import refuse_newer
from dagster_llmbatch.core.results import ResultsWriter
from dagster_llmbatch.core.reuse import reuse
from dagster_llmbatch.core.row_states import RowStates
from dagster_llmbatch.core.submit import Owner, Submitter
from dagster_llmbatch.core.takeover import line_of, next_takeover, supersede_handed_down
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.errors import (
    LeaseLostError,
    LedgerError,
    QueueFullError,
    RowsUnansweredError,
)
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry, EntryKey, EntryState
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.schemas.output import OutputSchema

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """The partition waits for a provider, or for another run."""

    entry: Entry
    until: float
    """Unix seconds before which asking again is useless."""
    reason: str
    batches: "Sequence[BatchRecord]" = ()
    held: bool = False
    """Whether there is nothing to do before `until` however the batches stand."""


@dataclass(frozen=True)
class Published:
    """Every row has its result; `entry.results_segment` holds them and `entry.summary` counts them."""

    entry: Entry
    batches: "Sequence[BatchRecord]" = ()
    replayed: bool = False


def claim(
    key: EntryKey, plan: Plan, *, run_id: str, lineage: "Sequence[str]", ledger: Ledger, now: float
) -> "tuple[Entry, Claim]":
    """The generation a run works on (DESIGN 5), created if need be. `lineage`: the run and those it retries."""
    while True:
        latest = ledger.latest_entry(key)
        known = latest is not None and ledger.knows_run(latest.id, lineage)
        how = decide_claim(latest, known_run=known, plan_digest=plan.digest)
        entry = latest
        if how in (Claim.NEW, Claim.QUEUE):
            keeps = how is Claim.QUEUE or (latest is not None and latest.state is EntryState.FAILED)
            entry = ledger.create_entry(
                key,
                generation=latest.generation + 1 if latest is not None else 1,
                plan_digest=plan.digest,
                plan_segment=plan.segment,
                row_count=plan.row_count,
                settings=dict(plan.settings),
                predecessor_id=latest.id if latest is not None and keeps else None,
                now=now,
            )
        if entry is not None:
            ledger.note_run(entry.id, run_id, now=now)
            return entry, how
        # another process created the generation between our look and our insert: look again


@cyclic_gc_paused()
def advance(
    entry_id: str, work: Workplace, *, run_id: str, output: "OutputSchema | None" = None
) -> "Waiting | Published":
    """Move one partition as far as it goes without waiting.

    `output` is today's output type; it validates only where it equals the one the plan was made with. Raises
    ProviderError where a provider refused for good, StatusUnreadableError where a batch could not be looked at for long,
    QueueFullError where the policy says so, RowsUnansweredError for an entry that failed.
    """
    entry = _newest(work.ledger.entry(entry_id), work.ledger)
    refuse_newer(entry.settings, where=str(entry.key))
    if entry.state is not EntryState.PENDING:
        return _settled(entry, work)
    work.ledger.note_run(entry.id, run_id, now=work.now())
    line = line_of(entry, work.ledger)
    for older in line[1:]:
        refuse_newer(older.settings, where=str(older.key))
    fences: dict[str, int] = {}
    try:
        for held in [one for one in line if one.state is EntryState.PENDING]:
            fence = work.ledger.acquire(held.id, run_id, now=work.now(), ttl=work.policy.lease)
            if fence is None:
                return _someone_else(entry, held.id, work)
            fences[held.id] = fence
        return _Line(work, run_id, fences, output).run(entry.id)
    except LeaseLostError as lost:
        logger.warning("%s", lost)
        return _someone_else(entry, entry.id, work)
    finally:
        for held_id, fence in fences.items():
            work.ledger.release(held_id, run_id, fence)


def _newest(entry: Entry, ledger: Ledger) -> Entry:
    """The generation that took an entry's place, if one did: who waited for the old one waits for the new one."""
    if entry.state is not EntryState.SUPERSEDED:
        return entry
    latest = ledger.latest_entry(entry.key)
    if latest is None:
        raise LedgerError(f"{entry.key.asset_key}: entry {entry.id} is superseded and has no successor.")
    return latest


def _someone_else(entry: Entry, held_id: str, work: Workplace) -> "Waiting | Published":
    entry = work.ledger.entry(entry.id)
    if entry.state is not EntryState.PENDING:
        return _settled(_newest(entry, work.ledger), work)
    holder = work.ledger.entry(held_id)
    until = holder.lease_until or work.now() + work.policy.poll_first
    return Waiting(entry, until, f"run {holder.owner} works on it", work.ledger.batches(entry.id))


def _settled(entry: Entry, work: Workplace) -> Published:
    """A newer published generation speaks for an older one: a late run never puts old answers over new ones."""
    latest = work.ledger.latest_entry(entry.key)
    if latest is not None and latest.state is EntryState.PUBLISHED:
        entry = latest
    if entry.state is EntryState.PUBLISHED:
        return Published(entry, work.ledger.batches(entry.id), replayed=True)
    raise RowsUnansweredError(
        f"{entry.key.asset_key}, partition {entry.key.partition_key!r}: {entry.failure or entry.state.value}. Materialize "
        "the partition again to buy what is missing; the answers there are will be kept."
    )


class _Line:
    """One owner's walk down the line."""

    def __init__(
        self, work: Workplace, run_id: str, fences: "Mapping[str, int]", output: "OutputSchema | None"
    ) -> None:
        self._work = work
        self._run_id = run_id
        self._fences = fences
        self._output = output

    def run(self, entry_id: str) -> "Waiting | Published":
        work = self._work
        self._poll_due(entry_id)
        while True:
            situation = self._look(entry_id)
            decision = decide(situation, work.policy, work.now())
            match decision:
                case Wait():
                    handed = situation.takeover.batches if situation.takeover else ()
                    refuse_unreadable((*situation.batches, *handed), work.policy, where=str(situation.entry.key))
                    return Waiting(situation.entry, decision.until, decision.reason, situation.batches, decision.held)
                case Stop():
                    raise QueueFullError(
                        f'{situation.entry.key}: {decision.reason}, and on_queue_full is "fail". Nothing is lost: '
                        "materialize the partition again later.",
                        provider=situation.entry.settings["provider"],
                    )
                case Replay():
                    return Published(situation.entry, situation.batches)
                case GiveUp():
                    return _settled(situation.entry, work)
                case _:
                    self._step(decision, situation)
            if not work.ledger.renew(
                entry_id, self._run_id, self._fences[entry_id], now=work.now(), ttl=work.policy.lease
            ):
                return _someone_else(situation.entry, entry_id, work)

    def _step(self, decision: Decision, situation: Situation) -> None:
        entry = situation.entry
        match decision:
            case Submit(wave) | Resubmit(wave):
                self._submitter(entry).submit(wave, self._states(situation))
            case Adopt(batch):
                self._submitter(self._work.ledger.entry(batch.entry_id)).adopt(batch)
            case Collect(batch):
                self._collect(batch)
            case Cancel(batch, reason):
                cancel(batch, reason, self._work)
            case Reuse(heir, predecessor):
                self._reuse(heir, predecessor)
            case Publish():
                self._publish(situation)
            case Wait() | Stop() | Replay() | GiveUp():
                raise AssertionError(f"not a step: {decision}")
            case _:
                assert_never(decision)

    def _look(self, entry_id: str) -> Situation:
        ledger = self._work.ledger
        entry = ledger.entry(entry_id)
        batches = ledger.batches(entry_id)
        line = line_of(entry, ledger)
        supersede_handed_down(line, ledger)
        full = [b.ended_at or 0.0 for b in batches if was_queue_full(b)]
        limited = self._work.policy.max_batches_in_progress is not None
        situation = Situation(
            entry,
            batches,
            lambda: self._count(situation),
            next_takeover(line, ledger),
            queue_full_at=max(full, default=None),
            in_progress=ledger.in_progress(entry.settings["provider"]) if limited else 0,
        )
        return situation

    def _count(self, situation: Situation) -> Any:
        return self._states(situation).tally(self._work.policy.max_attempts)

    def _states(self, situation: Situation) -> RowStates:
        return RowStates(situation.entry, situation.batches, self._work.segments)

    def _poll_due(self, entry_id: str) -> None:
        work = self._work
        line = line_of(work.ledger.entry(entry_id), work.ledger)
        for batch in (b for found in line for b in work.ledger.batches(found.id)):
            # what could not be read for long is looked at by every run: the cause may be mended
            due = (batch.next_poll_at or 0) <= work.now() or is_unreadable(batch, work.policy.failed_checks)
            if batch.phase is BatchPhase.SUBMITTED and due:
                poll(
                    batch,
                    provider=work.provider_of(batch.provider),
                    ledger=work.ledger,
                    policy=work.policy,
                    now=work.now,
                )

    def _submitter(self, entry: Entry) -> Submitter:
        work = self._work
        owner = Owner(self._run_id, self._fences[entry.id])
        provider = work.provider_of(entry.settings["provider"])
        return Submitter(entry, owner, provider, work.ledger, work.segments, work.policy, work.now, work.sleep)

    def _collect(self, batch: BatchRecord) -> None:
        work = self._work
        name = collect(
            batch,
            status_of(batch),
            provider=work.provider_of(batch.provider),
            segments=work.segments,
            extras=work.ledger.entry(batch.entry_id).settings.get("extras", ()),
            now=work.now(),
        )
        work.ledger.record_collected(batch.id, name, now=work.now())

    def _reuse(self, entry: Entry, predecessor: Entry) -> None:
        work = self._work
        batches = work.ledger.batches(predecessor.id)
        requests, outcomes, rows = reuse(entry, predecessor, batches, work.segments)
        work.ledger.record_reused(
            entry.id,
            self._run_id,
            self._fences[entry.id],
            provider=entry.settings["provider"],
            requests_segment=requests,
            outcomes_segment=outcomes,
            request_count=rows,
            now=work.now(),
        )
        work.ledger.supersede(predecessor.id)
        logger.info("%d rows keep the answers of generation %d.", rows, predecessor.generation)

    def _publish(self, situation: Situation) -> None:
        work = self._work
        entry = situation.entry
        writer = ResultsWriter(
            entry,
            situation.batches,
            today=self._output,
            segments=work.segments,
            prices=work.prices,
            run_id=self._run_id,
        )
        name = writer.write()
        if (
            not work.ledger.publish(entry.id, results_segment=name, summary=writer.summary.to_json(), now=work.now())
            and work.ledger.entry(entry.id).state is not EntryState.PUBLISHED
        ):
            raise LedgerError(f"{entry.key.asset_key}: entry {entry.id} could not be published.")
