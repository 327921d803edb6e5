"""Continuations: the suspended run that a waiting run leaves behind, and how it is woken, replaced and given up.

One continuation a run, not one an asset. It holds no worker and counts as unfinished, so a backfill waits for it. It
is its own run group: the retry daemon must not take it for a retry of its parent.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import dagster as dg
from dagster._core.definitions.repository_definition import RepositoryDefinition

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch.ledger.records import WaitingRun
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.metadata import CONTINUES_TAG, ENTRY_TAG, MODEL, SENSOR_TAG

MADE_AGAIN = 3
"""Times a continuation that failed before its first step is made again."""
ENDING_BACKFILL = frozenset({"CANCELING", "CANCELED", "FAILING", "FAILED", "COMPLETED_FAILED"})


def llm_batch_assets(repository: RepositoryDefinition) -> "frozenset[dg.AssetKey]":
    """The LLM batch assets of a code location, as it is defined now."""
    graph = repository.asset_graph
    return frozenset(key for key in graph.get_all_asset_keys() if MODEL in graph.get(key).metadata)


def sensors(repository: RepositoryDefinition) -> "frozenset[str]":
    """The names of the code location's sensors that wake waiting runs."""
    return frozenset(sensor.name for sensor in repository.sensor_defs if SENSOR_TAG in sensor.tags)


def suspend(context: dg.AssetExecutionContext, *, entry_id: str) -> str:
    """Leave the continuation of this run, if no other step or retry of it did; returns its run id.

    It targets every LLM batch asset of the run and everything selected downstream of them, with the run's own check
    selection. What turns out to be published or failed by then is left out when it is woken. A retry shares the
    continuation of the run it retries: of two, each would go on without the other's half of a join.
    """
    run, repository, instance = context.run, context.repository_def, context.instance
    planned = internals.planned_assets(context)
    assets = internals.downstream_of(repository, llm_batch_assets(repository) & planned, planned)
    partitions_def = repository.asset_graph.get(context.assets_def.key).partitions_def
    tags = internals.single_partition_tags(continuation_tags(run), partitions_def) | {ENTRY_TAG: entry_id}
    run_id = _continuation_id(run)
    while True:
        created = internals.create_suspended_run(
            instance,
            repository,
            run,
            run_id=run_id,
            assets=assets,
            checks=_checks(repository, run, assets),
            tags=tags,
            why=_why(run.run_id, repository),
        )
        if created:
            # only the step that created the continuation writes the tag: add_run_tags is read-modify-write
            instance.add_run_tags(run.run_id, {ENTRY_TAG: entry_id})
            return run_id
        existing = instance.get_run_by_id(run_id)
        if existing is None or existing.status is internals.SUSPENDED:
            return run_id
        run_id = internals.derived_run_id(run_id, "next")  # that one was woken already


def _continuation_id(run: dg.DagsterRun) -> str:
    """The run id of the first continuation of a run and its retries: every process derives the same."""
    return internals.derived_run_id(run.root_run_id or run.run_id, "continuation")


def continuation_tags(run: dg.DagsterRun) -> "dict[str, str]":
    """The run's own tags and its backfill's, without those of a retry."""
    return {k: v for k, v in run.tags.items() if k not in internals.RETRY_TAGS} | {CONTINUES_TAG: run.run_id}


def _why(run_id: str, repository: RepositoryDefinition) -> str:
    names = " or ".join(sorted(sensors(repository)))
    return (
        f"Waits for the LLM batches of run {run_id}. {names or 'The LLM batch sensor'} continues it when they have ended; "
        "its ticks say how far they are."
    )


def _checks(
    repository: RepositoryDefinition, run: dg.DagsterRun, assets: "frozenset[dg.AssetKey]"
) -> "frozenset[dg.AssetCheckKey] | None":
    if run.asset_check_selection is None:
        return None
    defined = repository.asset_graph.asset_check_keys
    return frozenset(key for key in run.asset_check_selection if key.asset_key in assets and key in defined)


class Became(str, Enum):
    """What became of a continuation at one look."""

    WAITING = "waiting"
    WOKEN = "woken"
    GONE = "gone"
    """Nobody continues it: deleted, canceled by a person, or ended."""
    CANCELED = "canceled"
    """By us, with its backfill or for want of anything to continue."""
    REQUESTED = "requested"


@dataclass(frozen=True)
class Tended:
    """What became of a continuation, and the run to ask for in its place, if any."""

    became: Became
    request: "dg.RunRequest | None" = None


@dataclass(frozen=True)
class Group:
    """The waits that one continuation goes on with: of a run and of its retries."""

    waits: "tuple[WaitingRun, ...]"
    continuation_id: "str | None"

    @property
    def run_ids(self) -> "tuple[str, ...]":
        """The runs that left these waits."""
        return tuple(dict.fromkeys(wait.run_id for wait in self.waits))

    @property
    def woken(self) -> bool:
        """Whether the continuation was put into the run queue: from then on it may have a process."""
        return any(wait.woken_at is not None for wait in self.waits)

    @property
    def assets(self) -> "frozenset[dg.AssetKey]":
        """The waiting assets."""
        return frozenset(dg.AssetKey.from_user_string(wait.key.asset_key) for wait in self.waits)


def groups(waits: "Iterable[WaitingRun]") -> "list[Group]":
    """Waits by the continuation that goes on with them."""
    found: dict[str, list[WaitingRun]] = {}
    for wait in waits:
        found.setdefault(wait.continuation_id or wait.run_id, []).append(wait)
    return [Group(tuple(members), members[0].continuation_id) for members in found.values()]


@dataclass(frozen=True)
class Waker:
    """Wakes, replaces and gives up the continuations of one code location."""

    instance: dg.DagsterInstance
    repository: RepositoryDefinition
    location: "str | None"
    """The code location's name; continuations of others are left alone."""
    ledger: Ledger
    now: "Callable[[], float]"

    def tend(self, group: Group, *, ready: bool) -> "Tended | None":
        """Do what is to be done about one group. `ready`: every waiting asset of it can go on. None: not ours."""
        parents = [run for run in map(self.instance.get_run_by_id, group.run_ids) if run is not None]
        continuation = self._continuation(group, parents)
        known = continuation or (parents[0] if parents else None)
        if known is None:
            self._forget(group)
            return Tended(Became.GONE)
        if internals.location_name(known) != self.location:
            return None
        if continuation is None and not self._parents_ended(parents):
            return Tended(Became.WAITING)  # the run may be about to leave its continuation
        if self._backfill_ends(known):
            return self._give_up(group, continuation, "Its backfill was canceled or failed.")
        if continuation is None:
            return self._heal(group, parents)
        if continuation.status is internals.CANCELING and not group.woken:
            return self._give_up(group, continuation, "It was terminated.")
        if continuation.status is not internals.SUSPENDED:
            return self._after_waking(group, continuation)
        if not ready or not self._parents_ended(parents):
            return Tended(Became.WAITING)
        return self._wake(group, parents, continuation)

    def _parents_ended(self, parents: "list[dg.DagsterRun]") -> bool:
        for parent in parents:
            family = [parent, *internals.retries_of(self.instance, parent)]
            if not all(internals.is_finished(run) and not internals.will_be_retried(run) for run in family):
                return False
        return True

    def _wake(self, group: Group, parents: "list[dg.DagsterRun]", continuation: dg.DagsterRun) -> Tended:
        wanted = self._wanted(group, parents, frozenset(continuation.asset_selection or ()))
        if not wanted:
            return self._give_up(group, continuation, "Its assets are not defined any more, or what it needs failed.")
        checks = _checks(self.repository, continuation, wanted)
        if wanted != continuation.asset_selection or checks != continuation.asset_check_selection:
            continuation = self._replace(group, continuation, wanted, "replacement")
        if not internals.has_run_queue(self.instance):
            return self._request_instead(group, continuation, wanted)
        internals.enqueue(self.instance, continuation)
        for run_id in group.run_ids:
            self.ledger.mark_woken(run_id, now=self.now())
        return Tended(Became.WOKEN)

    def _request_instead(self, group: Group, continuation: dg.DagsterRun, wanted: "frozenset[dg.AssetKey]") -> Tended:
        """Without a run queue nothing launches a queued run: a run is asked for, and only then the continuation goes."""
        if internals.has_run_of_key(self.instance, continuation.run_id):
            self._forget(group)
            self.instance.delete_run(continuation.run_id)
            return Tended(Became.GONE)
        return Tended(Became.REQUESTED, self._request(continuation, wanted, key=continuation.run_id))

    def _wanted(
        self, group: Group, parents: "list[dg.DagsterRun]", within: "frozenset[dg.AssetKey]"
    ) -> "frozenset[dg.AssetKey]":
        """What is to be materialized, by today's definitions and by how the parents ended."""
        wanted = internals.downstream_of(self.repository, group.assets, within)
        if not parents:
            return wanted
        planned: set[dg.AssetKey] = set()
        materialized: set[dg.AssetKey] = set()
        gated: set[dg.AssetKey] = set()
        for run in {r.run_id: r for p in parents for r in (p, *internals.retries_of(self.instance, p))}.values():
            planned |= internals.run_assets(self.repository, run)
            found, failed_checks = internals.materialized_and_gated(self.instance, run.run_id)
            materialized |= found
            gated |= failed_checks
        waiting = internals.downstream_of(self.repository, group.assets, planned)
        failed = planned - materialized - waiting
        below_failed = internals.downstream_of(self.repository, failed, planned) - failed
        below_gated = internals.downstream_of(self.repository, gated, planned) - gated
        return wanted - ((below_failed | below_gated) - group.assets)

    def _replace(self, group: Group, old: dg.DagsterRun, wanted: "frozenset[dg.AssetKey]", why: str) -> dg.DagsterRun:
        """Another continuation in an old one's place: the new one first, so that a backfill never sees none."""
        new_id = internals.derived_run_id(old.run_id, why)
        internals.create_suspended_run(
            self.instance,
            self.repository,
            old,
            run_id=new_id,
            assets=wanted,
            checks=_checks(self.repository, old, wanted),
            tags=old.tags,
            why=_why(old.tags.get(CONTINUES_TAG, old.run_id), self.repository),
        )
        for wait in group.waits:
            self.ledger.note_run(wait.entry_id, new_id, now=self.now())
        for run_id in group.run_ids:
            self.ledger.set_continuation(run_id, new_id)
        self.instance.delete_run(old.run_id)
        found = self.instance.get_run_by_id(new_id)
        if found is None:
            raise AssertionError(f"continuation {new_id} vanished while it was made")
        return found

    def _after_waking(self, group: Group, continuation: dg.DagsterRun) -> Tended:
        """Its wait is over. One that failed before its first step, such as at a broken deploy, is made again."""
        if not internals.is_finished(continuation):
            return Tended(Became.WOKEN)
        if internals.failed_before_first_step(self.instance, continuation) and not internals.will_be_retried(
            continuation
        ):
            name = f"made-again-{continuation.run_id}"
            made = int(self.ledger.note(name) or 0)
            if made < MADE_AGAIN:
                wanted = internals.downstream_of(
                    self.repository, group.assets, frozenset(continuation.asset_selection or ())
                )
                if wanted:
                    again = self._replace(group, continuation, wanted, "again")
                    self.ledger.set_note(f"made-again-{again.run_id}", str(made + 1))
                    return Tended(Became.WAITING)
        self._forget(group)
        return Tended(Became.GONE)

    def _continuation(self, group: Group, parents: "list[dg.DagsterRun]") -> "dg.DagsterRun | None":
        """The group's continuation, also one that its run left and died before it could record it."""
        if group.continuation_id is not None:
            return self.instance.get_run_by_id(group.continuation_id)
        for parent in parents:
            found = self.instance.get_run_by_id(_continuation_id(parent))
            if found is not None and found.status is internals.SUSPENDED:
                for wait in group.waits:
                    self.ledger.note_run(wait.entry_id, found.run_id, now=self.now())
                    self.ledger.set_continuation(wait.run_id, found.run_id)
                return found
        return None

    def _heal(self, group: Group, parents: "list[dg.DagsterRun]") -> Tended:
        """The continuation was never made (a crash) or was deleted: a running backfill gets a new run, others forget."""
        parent = parents[-1]
        self._forget(group)
        if internals.BACKFILL_TAG not in parent.tags:
            return Tended(Became.GONE)
        planned = internals.run_assets(self.repository, parent)
        wanted = self._wanted(group, parents, planned)
        if not wanted:
            return Tended(Became.GONE)
        key = f"{group.continuation_id or parent.run_id}-healed"
        return Tended(Became.REQUESTED, self._request(parent, wanted, key=key))

    def _request(self, run: dg.DagsterRun, wanted: "Iterable[dg.AssetKey]", *, key: str) -> dg.RunRequest:
        tags = continuation_tags(run)
        return dg.RunRequest(
            run_key=key,
            asset_selection=sorted(wanted),
            partition_key=internals.partition_of(run) or None,
            tags={k: v for k, v in tags.items() if k not in internals.SET_BY_DAGSTER},
        )

    def _give_up(self, group: Group, continuation: "dg.DagsterRun | None", why: str) -> Tended:
        # a run that waits has no process that could answer a termination: CANCELING would last for ever
        if continuation is not None and not group.woken and not internals.is_finished(continuation):
            message = f"{why} The batches stay in the ledger: materializing the partition again collects them."
            internals.cancel_suspended(self.instance, continuation, message)
        self._forget(group)
        return Tended(Became.CANCELED)

    def _forget(self, group: Group) -> None:
        for wait in group.waits:
            self.ledger.stop_waiting(wait.run_id, wait.entry_id)

    def _backfill_ends(self, run: dg.DagsterRun) -> bool:
        backfill_id = run.tags.get(internals.BACKFILL_TAG)
        return backfill_id is not None and internals.backfill_status(self.instance, backfill_id) in ENDING_BACKFILL
