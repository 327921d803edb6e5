"""One run of one partition: claim a generation, advance it, and publish or suspend."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import dagster as dg

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch import metadata, suspension
from dagster_llmbatch.core.advance import Published, Waiting, advance, claim
from dagster_llmbatch.core.cancel import cancel_open
from dagster_llmbatch.core.decide import Claim
from dagster_llmbatch.core.lane import LanePolicy, choose_lane
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.core.recipe import Recipe
from dagster_llmbatch.core.results import read_results
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.errors import ConfigurationError, NobodyWakesError
from dagster_llmbatch.ledger.records import CancelReason, Entry, EntryKey
from dagster_llmbatch.replays import is_counted_elsewhere
from dagster_llmbatch.resource import BATCH_OPTIONS, LLMBatchResource, failures
from dagster_llmbatch.run_log import forwarded_to

Wait = Literal["suspend", "block"]
DAEMON_SILENCE = 600.0
"""Seconds without a heartbeat after which the sensor daemon counts as not running."""
LONGEST_SLEEP = 60.0
"""Seconds a blocking run sleeps at a time, so that it notices what others did."""


@dataclass(frozen=True)
class LLMBatchAsset:
    """What a definition says, ready to run."""

    key: dg.AssetKey
    recipe: Recipe
    policy: LanePolicy
    batch_above: int
    wait: Wait
    streams: bool
    """Whether its IO manager takes a stream of record batches."""
    batch_options: "Mapping[str, Any]" = field(default_factory=dict)
    """What it says differently from the resource (BatchOptions)."""


def run_partition(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    resource: LLMBatchResource,
    load_rows: "Callable[[], Any]",
) -> "Iterator[dg.MaterializeResult]":
    """The body of every LLM batch asset. Yields the materialization, or nothing where a continuation will.

    `load_rows` is called only when the partition is planned: a continuation works on the plan in the ledger.
    """
    with failures():
        key = EntryKey(resource.namespace, asset.key.to_user_string(), _partition(context, asset))
        with resource.workplace(context.instance, options=asset.batch_options) as work:
            # closed before the yield: a generator's context variables are its caller's
            with forwarded_to(context.log):
                progress, notes = _go_on(context, asset, resource, key, work, load_rows)
            if isinstance(progress, Waiting):
                _suspend(context, asset, key, progress, work, notes)
                return
            yield _materialization(context, asset, progress, work, notes)


def _go_on(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    resource: LLMBatchResource,
    key: EntryKey,
    work: Workplace,
    load_rows: "Callable[[], Any]",
) -> "tuple[Waiting | Published, list[str]]":
    """As far as this run goes with the partition, and what to tell the user."""
    how, notes = _how_to_wait(context, asset, resource)
    entry = _entry(context, asset, resource, key, work, load_rows)
    for wait in work.ledger.waits_of_continuation(context.run.run_id):
        if wait.key == key:
            work.ledger.stop_waiting(wait.run_id, wait.entry_id)
    progress = advance(entry.id, work, run_id=context.run.run_id, output=asset.recipe.output)
    if isinstance(progress, Waiting) and how == "block":
        progress = _block(context, asset, progress, work, cancels=resource.cancel_on_terminate)
    return progress, notes


def _partition(context: dg.AssetExecutionContext, asset: LLMBatchAsset) -> str:
    partition = internals.partition_of(context.run)
    if partition is None:
        raise ConfigurationError(
            f"{asset.recipe.asset}: this run covers a range of partitions. LLM batch assets run one partition a run; "
            "launch the backfill with one run per partition (BackfillPolicy.multi_run(1), the default)."
        )
    return partition


def _how_to_wait(
    context: dg.AssetExecutionContext, asset: LLMBatchAsset, resource: LLMBatchResource
) -> "tuple[Wait, list[str]]":
    """Whether to suspend or to block, and what to tell the user. Refuses before any spend where nobody would wake it."""
    notes: list[str] = []
    if resource.is_in_working_folder(context.instance):
        notes.append("the Dagster home is temporary: the ledger is .llmbatch/ in the working directory")
    how = asset.wait
    if how == "suspend" and (context.run.remote_job_origin is None or context.instance.is_ephemeral):
        how = "block"
        notes.append("no daemon can continue this run (it was started in process), so it waits in the run")
    if how == "suspend" and not suspension.sensors(context.repository_def):
        raise NobodyWakesError(
            f"{asset.recipe.asset}: the code location has no LLM batch sensor, so nobody would continue the partition. "
            "Nothing was spent. Add build_llm_batch_sensor() to the Definitions (llm_batch_definitions does it), or set "
            'wait="block".'
        )
    if how == "suspend" and not internals.daemon_heard_within(context.instance, DAEMON_SILENCE, time.time()):
        notes.append("the Dagster daemon has not reported its sensors lately: start it, or nobody collects the batch")
    if how == "suspend" and suspension.sensors(context.repository_def) <= internals.stopped_sensors(context.instance):
        notes.append("the LLM batch sensor is switched off: switch it on, or nobody collects the batch")
    for note in notes:
        context.log.warning("%s: %s.", asset.recipe.asset, note)
    return how, notes


def _entry(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    resource: LLMBatchResource,
    key: EntryKey,
    work: Workplace,
    load_rows: "Callable[[], Any]",
) -> Entry:
    run = context.run
    lineage = [i for i in dict.fromkeys((run.run_id, run.parent_run_id, run.root_run_id)) if i]
    if metadata.CONTINUES_TAG in run.tags:
        known = work.ledger.entry_of_run([*lineage, run.tags[metadata.CONTINUES_TAG]], key)
        if known is not None:
            return known
    where = resource.resolve(asset.recipe.model_string, batch_provider=asset.recipe.batch_provider)
    for warning in where.warnings:
        context.log.warning("%s: %s", key, warning)
    plan = plan_rows(
        load_rows(),
        recipe=replace(asset.recipe, provider=where.provider, model=where.model),
        provider=work.provider_of(where.provider),
        segments=work.segments,
        namespace=key.namespace,
        partition=key.partition_key,
        model_id_of=partial(_model_id, resource, asset, where.provider),
    )
    # why it was chosen is kept with the plan and is no part of its digest: the same question in other words is the same
    because = {"provider": where.reason, "lane": _lane_reason(asset, plan.row_count), "warnings": list(where.warnings)}
    # and so are the asset's options: the sensor polls by them
    options = {BATCH_OPTIONS: dict(asset.batch_options)} if asset.batch_options else {}
    plan = replace(plan, settings={**plan.settings, "chosen_because": because, **options})
    if asset.recipe.id_column is None:
        context.log.warning("%s: no id_column, so rows are known by their number; set one.", key)
    entry, how = claim(key, plan, run_id=run.run_id, lineage=lineage, ledger=work.ledger, now=work.now())
    context.log.info("%s: %d rows, generation %d (%s).", key, plan.row_count, entry.generation, _CLAIMS[how])
    return entry


def _lane_reason(asset: LLMBatchAsset, rows: int) -> str:
    """Why the rows go through a batch."""
    lane = choose_lane(asset.policy, rows, batch_above=asset.batch_above)
    if lane.mode == "batch":
        return lane.reason
    return f"{lane.reason}; the realtime lane is not available in this version, so they are batched"


def _model_id(resource: LLMBatchResource, asset: LLMBatchAsset, provider: str, model: str) -> str:
    """The id of a model that a row chooses, at the provider that batches the asset."""
    try:
        found = resource.resolve(model, batch_provider=asset.recipe.batch_provider)
    except ConfigurationError as error:
        raise ValueError("names a model that no configured provider batches") from error
    if found.provider != provider:
        raise ValueError(f"names a model that {found.provider} batches, and the asset is batched at {provider}")
    return found.model


_CLAIMS = {
    Claim.NEW: "new",
    Claim.CONTINUE: "known to this run: nothing is bought again",
    Claim.ATTACH: "already on its way: attaching to its batches",
    Claim.QUEUE: "the input or the definition changed while batches are out: they are awaited and their answers kept",
}


def _block(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    progress: Waiting,
    work: Workplace,
    *,
    cancels: bool,
) -> Published:
    """Wait within the run until the partition is published. A terminated run stops its batches, if it is to."""
    found: Waiting | Published = progress
    try:
        while isinstance(found, Waiting):
            context.log.info("%s: %s.", found.entry.key, found.reason)
            time.sleep(max(0.0, min(found.until - time.time(), LONGEST_SLEEP)))
            found = advance(found.entry.id, work, run_id=context.run.run_id, output=asset.recipe.output)
    except dg.DagsterExecutionInterruptedError:
        if cancels:
            cancel_open(progress.entry.id, CancelReason.TERMINATED, work)
        raise
    return found


def _suspend(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    key: EntryKey,
    progress: Waiting,
    work: Workplace,
    notes: "list[str]",
) -> None:
    run_id = context.run.run_id
    held = {"not_before": progress.until, "reason": progress.reason} if progress.held else {}
    work.ledger.wait(progress.entry.id, run_id, now=work.now(), **held)
    continuation = suspension.suspend(context, entry_id=progress.entry.id)
    work.ledger.note_run(progress.entry.id, continuation, now=work.now())
    work.ledger.set_continuation(run_id, continuation)
    context.log_event(_observation(asset, key, progress, notes))
    context.log.info("%s: %s. Run %s continues it.", key, progress.reason, continuation)


def _observation(asset: LLMBatchAsset, key: EntryKey, progress: Waiting, notes: "list[str]") -> dg.AssetObservation:
    return dg.AssetObservation(
        asset.key,
        partition=key.partition_key or None,
        metadata=metadata.submitted(progress.entry, progress.batches, reason=progress.reason, notes=notes),
    )


def _materialization(
    context: dg.AssetExecutionContext,
    asset: LLMBatchAsset,
    progress: Published,
    work: Workplace,
    notes: "list[str]",
) -> dg.MaterializeResult:
    entry = progress.entry
    segment = entry.results_segment
    if segment is None:
        raise AssertionError(f"entry {entry.id} is published without results")
    reader = read_results(work.segments, segment)
    described = metadata.published(
        entry,
        progress.batches,
        schema=reader.schema,
        replayed=is_counted_elsewhere(context, asset.key, progress),
        notes=notes,
    )
    return dg.MaterializeResult(
        asset_key=asset.key,
        # a stream for our own IO manager; a table for any other, which may read it more than once
        value=reader if asset.streams else reader.read_all(),
        metadata=described,
        data_version=dg.DataVersion(segment.rsplit("/", 1)[-1].removesuffix(".parquet")),
    )
