"""The sensor that serves every LLM batch asset of a code location: it polls what is due and wakes who waits.

A tick is cheap and time-boxed: status calls only, never a download, and what one batch does wrong stops no other.
"""

import logging
import random
import time

import dagster as dg

from dagster_llmbatch import metadata
from dagster_llmbatch.asset_decorator import RESOURCE_KEY
from dagster_llmbatch.core.decide import can_go_on
from dagster_llmbatch.core.poll import poll
from dagster_llmbatch.core.takeover import line_of
from dagster_llmbatch.errors import LLMBatchError
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry, WaitingRun
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.provider_resource import Clients
from dagster_llmbatch.resource import LLMBatchResource
from dagster_llmbatch.run_log import forwarded_to
from dagster_llmbatch.suspension import Became, Waker, groups

logger = logging.getLogger(__name__)

SENSOR_NAME = "llm_batch_sensor"
TIME_BOX = 40.0
"""Seconds of a tick; Dagster ends it at 60."""
POLLS_PER_TICK = 500
REPORT_EVERY = 5.0
"""Percentage points of progress that are worth an observation."""
SHOWN = 10
"""Batches that a tick's message names."""


def build_llm_batch_sensor(
    *,
    name: str = SENSOR_NAME,
    minimum_interval_seconds: int = 30,
    default_sensor_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
    resource_key: str = RESOURCE_KEY,
) -> dg.SensorDefinition:
    """The sensor that polls pending batches and continues the runs that wait for them.

    One serves every LLM batch asset of a code location that uses the same resource.

    Args:
        name: sensor name.
        minimum_interval_seconds: seconds between ticks. Each batch has its own poll schedule (LLMBatchResource), so a
            tick asks the provider only what is due.
        default_sensor_status: running by default: without it, nobody continues a waiting partition.
        resource_key: where the LLMBatchResource is.
    """

    @dg.sensor(
        name=name,
        asset_selection=dg.AssetSelection.all(),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_sensor_status,
        required_resource_keys={resource_key},
        tags={metadata.SENSOR_TAG: "true"},
        description="Polls pending LLM batches and continues the runs that wait for them.",
    )
    def _sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        resource: LLMBatchResource = getattr(context.resources, resource_key)
        with (
            forwarded_to(context.log),
            resource.clients() as clients,
            resource.ledger(context.instance) as (ledger, _),
        ):
            return Tick(context, resource, ledger, clients).run()

    return _sensor


class Tick:
    """One look at everything that is pending."""

    def __init__(
        self, context: dg.SensorEvaluationContext, resource: LLMBatchResource, ledger: Ledger, clients: Clients
    ) -> None:
        self._context = context
        self._resource = resource
        self._ledger = ledger
        self._clients = clients
        self._ends = time.monotonic() + TIME_BOX
        self._problems: list[str] = []

    def run(self) -> dg.SensorResult:
        """Poll, report, wake."""
        polled = self._poll()
        events = self._progress(polled)
        became, requests = self._wake()
        message = self._message(became)
        if requests:
            return dg.SensorResult(run_requests=requests, asset_events=events)
        return dg.SensorResult(skip_reason=message, asset_events=events)

    def _poll(self) -> "set[str]":
        """Ask for the status of what is due; returns the entries that were looked at."""
        entries: set[str] = set()
        due = self._ledger.due_batches(self._resource.namespace, now=time.time(), limit=POLLS_PER_TICK)
        for batch in due:
            if time.monotonic() > self._ends:
                break
            entries.add(batch.entry_id)
            policy = self._resource.policy_of(self._ledger.entry(batch.entry_id))
            try:
                look = poll(
                    batch, provider=self._clients.of(batch.provider), ledger=self._ledger, policy=policy, now=time.time
                )
            except LLMBatchError as error:
                self._problems.append(f"{batch.batch_id}: {error}")
                continue
            if look.failures >= policy.failed_checks:
                self._problems.append(f"{batch.batch_id}: status failed {look.failures} times in a row")
        return entries

    def _progress(self, entry_ids: "set[str]") -> "list[dg.AssetObservation]":
        """Observations for entries whose state changed or which came at least REPORT_EVERY points further."""
        found: list[dg.AssetObservation] = []
        for entry_id in sorted(entry_ids):
            entry, batches = self._ledger.entry(entry_id), self._ledger.batches(entry_id)
            described = metadata.progress(batches)
            done = metadata.percent_done(batches)
            name = f"progress-{entry_id}"
            state, _, reported = (self._ledger.note(name) or "::-1000").rpartition("::")
            now_state = str(described["llmbatch/state"])
            if state == now_state and abs(done - float(reported)) < REPORT_EVERY:
                continue
            self._ledger.set_note(name, f"{now_state}::{done}")
            found.append(
                dg.AssetObservation(
                    dg.AssetKey.from_user_string(entry.key.asset_key),
                    partition=entry.key.partition_key or None,
                    metadata=described,
                )
            )
        return found

    def _wake(self) -> "tuple[list[Became], list[dg.RunRequest]]":
        context = self._context
        if context.repository_def is None:
            raise AssertionError("a sensor tick without a repository")
        origin = context.code_location_origin
        waker = Waker(
            context.instance, context.repository_def, origin and origin.location_name, self._ledger, time.time
        )
        became: list[Became] = []
        requests: list[dg.RunRequest] = []
        waiting = groups(self._ledger.waiting_runs(self._resource.namespace))
        # in any order, so that a tick that runs out of time starves nobody
        for group in random.sample(waiting, len(waiting)):
            if time.monotonic() > self._ends:
                break
            try:
                ready = all((w.not_before or 0) <= time.time() and self._can_go_on(w.entry_id) for w in group.waits)
                tended = waker.tend(group, ready=ready)
            except Exception as error:  # one broken partition must not keep the others waiting
                logger.exception("continuation %s could not be tended.", group.continuation_id)
                self._problems.append(f"continuation {group.continuation_id}: {type(error).__name__}")
                continue
            if tended is not None:
                became.append(tended.became)
                requests += [tended.request] if tended.request else []
        return became, requests

    def _can_go_on(self, entry_id: str) -> bool:
        line = line_of(self._ledger.entry(entry_id), self._ledger)
        batches = self._ledger.batches(line[-1].id)
        return can_go_on(line, batches, failed_checks=self._resource.policy().failed_checks, now=time.time())

    def _message(self, became: "list[Became]") -> str:
        """How far everything is: the best place a user looks at while waiting."""
        pending = [
            (entry, batch)
            for entry in self._ledger.pending_entries(self._resource.namespace)
            for batch in self._ledger.batches(entry.id)
            if batch.phase is not BatchPhase.COLLECTED
        ]
        parts = [f"{metadata.counted(len(pending), 'batch', 'batches')} pending" if pending else "no batches pending"]
        counts = {kind: became.count(kind) for kind in Became if kind in became and kind is not Became.WAITING}
        parts += [
            f"{metadata.counted(count, 'continuation', 'continuations')} {kind.value}" for kind, count in counts.items()
        ]
        parts += [_held(wait) for wait in self._ledger.waiting_runs(self._resource.namespace) if wait.reason][:SHOWN]
        parts += [_line(entry, batch) for entry, batch in pending[:SHOWN]]
        parts += [f"and {len(pending) - SHOWN} more"] if len(pending) > SHOWN else []
        parts += [f"problem: {problem}" for problem in self._problems[:SHOWN]]
        return "; ".join(parts)


def _held(wait: WaitingRun) -> str:
    minutes = max(0.0, ((wait.not_before or 0) - time.time()) / 60)
    return f"{wait.key.asset_key} {wait.key.partition_key}".strip() + f": {wait.reason}, goes on in {minutes:.0f} min"


def _line(entry: Entry, batch: BatchRecord) -> str:
    minutes = (time.time() - batch.intent_at) / 60
    done = (batch.completed or 0) + (batch.failed or 0)
    where = f"{entry.key.asset_key} {entry.key.partition_key}".strip()
    state = batch.provider_state or batch.phase.value
    return f"{where}: {batch.batch_id or 'not submitted'} {state} {done}/{batch.request_count}, {minutes:.0f} min"
