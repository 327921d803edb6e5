"""Every Dagster call we make that is not public API, in one place, each behind a plain function.

Checked against Dagster 1.13.26 to 1.13.28; `test_dagster_internals` says which call changed when a newer one breaks it.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Set

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.repository_definition import RepositoryDefinition
from dagster._core.definitions.resource_annotation import get_resource_args
from dagster._core.errors import DagsterRunAlreadyExists
from dagster._core.events import DagsterEvent
from dagster._core.execution.api import create_execution_plan
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType
from dagster._core.snap import snapshot_from_execution_plan
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES, DagsterRunStatus
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    RESUME_RETRY_TAG,
    RETRY_NUMBER_TAG,
    ROOT_RUN_ID_TAG,
    RUN_FAILURE_REASON_TAG,
    RUN_KEY_TAG,
    WILL_RETRY_TAG,
)

RETRY_TAGS = frozenset(
    {
        RETRY_NUMBER_TAG,
        RESUME_RETRY_TAG,
        ".dagster/asset_resume_retry",
        PARENT_RUN_ID_TAG,
        ROOT_RUN_ID_TAG,
        WILL_RETRY_TAG,
        AUTO_RETRY_RUN_ID_TAG,
        RUN_KEY_TAG,
        RUN_FAILURE_REASON_TAG,
    }
)
"""Tags that belong to a retry: with them the retry daemon takes a suspended run for a retry of its parent."""

BACKFILL_TAG = BACKFILL_ID_TAG
PARTITION_TAG = PARTITION_NAME_TAG
SET_BY_DAGSTER = frozenset(
    {
        PARTITION_NAME_TAG,
        ASSET_PARTITION_RANGE_START_TAG,
        ASSET_PARTITION_RANGE_END_TAG,
        "dagster/partition_set",
        ".dagster/repository",
        ".dagster/agent_id",
    }
)
"""Tags that Dagster sets on every run it creates for a request: handed in as well they would be refused or doubled."""
SUSPENDED = DagsterRunStatus.SUSPENDED
CANCELING = DagsterRunStatus.CANCELING


def resource_parameters(function: "Callable[..., object]") -> "frozenset[str]":
    """The parameters of a function that Dagster fills with resources."""
    return frozenset(parameter.name for parameter in get_resource_args(function))


def partition_of(run: dg.DagsterRun) -> "str | None":
    """The one partition of a run; '' for an unpartitioned run; None for a range of several."""
    start, end = run.tags.get(ASSET_PARTITION_RANGE_START_TAG), run.tags.get(ASSET_PARTITION_RANGE_END_TAG)
    if start is None:
        return run.tags.get(PARTITION_NAME_TAG, "")
    return start if start == end else None


def single_partition_tags(
    tags: "Mapping[str, str]", partitions_def: "dg.PartitionsDefinition | None"
) -> "dict[str, str]":
    """Tags with a range of one partition, as a backfill sets them, turned into that partition's own.

    In a ranged run Dagster records partitioned checks without a partition.
    """
    found = dict(tags)
    start = found.pop(ASSET_PARTITION_RANGE_START_TAG, None)
    found.pop(ASSET_PARTITION_RANGE_END_TAG, None)
    if start is not None and partitions_def is not None:
        found |= partitions_def.get_tags_for_partition_key(start)
    return found


def planned_assets(context: dg.AssetExecutionContext) -> "frozenset[dg.AssetKey]":
    """The assets this run will materialize. `run.asset_selection` is None for runs of a job."""
    return frozenset(context.job_def.asset_layer.selected_asset_keys)


def run_assets(repository: RepositoryDefinition, run: dg.DagsterRun) -> "frozenset[dg.AssetKey]":
    """The assets a run selected, by today's definitions where the run is of a whole job."""
    if run.asset_selection is not None:
        return frozenset(run.asset_selection)
    if not repository.has_job(run.job_name):
        return frozenset()
    return frozenset(repository.get_job(run.job_name).asset_layer.selected_asset_keys)


def create_suspended_run(
    instance: dg.DagsterInstance,
    repository: RepositoryDefinition,
    parent: dg.DagsterRun,
    *,
    run_id: str,
    assets: "Set[dg.AssetKey]",
    checks: "Set[dg.AssetCheckKey] | None",
    tags: "Mapping[str, str]",
    why: str,
) -> bool:
    """Create a run directly in status SUSPENDED, of its own run group. False where it exists already.

    `why` goes into its log, which is all that a person who opens the run sees while it waits.
    """
    name = parent.job_name if repository.has_job(parent.job_name) else IMPLICIT_ASSET_JOB_NAME
    job = repository.get_job(name).get_subset(
        asset_selection=frozenset(assets), asset_check_selection=None if checks is None else frozenset(checks)
    )
    plan = create_execution_plan(job, run_config=parent.run_config, instance_ref=instance.get_ref(), tags=dict(tags))
    try:
        created = instance.create_run(
            job_name=job.name,
            run_id=run_id,
            run_config=parent.run_config,
            status=SUSPENDED,
            tags=dict(tags),
            root_run_id=None,
            parent_run_id=None,
            step_keys_to_execute=None,
            execution_plan_snapshot=snapshot_from_execution_plan(plan, job.get_job_snapshot_id()),
            job_snapshot=job.get_job_snapshot(),
            parent_job_snapshot=job.get_parent_job_snapshot(),
            asset_selection=frozenset(assets),
            asset_check_selection=None if checks is None else frozenset(checks),
            resolved_op_selection=None,
            op_selection=None,
            remote_job_origin=parent.remote_job_origin,
            job_code_origin=parent.job_code_origin,
            asset_graph=job.asset_layer.asset_graph,
        )
    except DagsterRunAlreadyExists:
        return False
    instance.report_engine_event(why, created)
    return True


def derived_run_id(run_id: str, what: str) -> str:
    """A run id that every process derives alike: the second creator finds the first one's run."""
    return str(uuid.uuid5(uuid.UUID(run_id), what))


def enqueue(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Move a suspended run into the run queue."""
    instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)


def cancel_suspended(instance: dg.DagsterInstance, run: dg.DagsterRun, message: str) -> None:
    """Mark a run that has no process as canceled."""
    instance.report_run_canceled(run, message=message)


def has_run_queue(instance: dg.DagsterInstance) -> bool:
    """Whether a daemon launches queued runs."""
    return isinstance(instance.run_coordinator, QueuedRunCoordinator)


def is_finished(run: dg.DagsterRun) -> bool:
    """Whether a run has ended, whichever way."""
    return run.status not in NOT_FINISHED_STATUSES


def will_be_retried(run: dg.DagsterRun) -> bool:
    """Whether the retry daemon is about to launch a failed run again."""
    return run.is_complete_and_waiting_to_retry


def has_run_of_key(instance: dg.DagsterInstance, run_key: str) -> bool:
    """Whether a sensor's request with this run key became a run."""
    return bool(instance.get_run_records(filters=dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1))


def stopped_sensors(instance: dg.DagsterInstance) -> "frozenset[str]":
    """The names of sensors that somebody switched off."""
    states = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    return frozenset(state.name for state in states if state.status is InstigatorStatus.STOPPED)


def retries_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> "list[dg.DagsterRun]":
    """The runs that retry a run, directly or not."""
    return list(instance.get_runs(filters=dg.RunsFilter(tags={ROOT_RUN_ID_TAG: run.root_run_id or run.run_id})))


def failed_before_first_step(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run failed without having begun any step: nothing of ours was tried."""
    return run.status is DagsterRunStatus.FAILURE and not instance.get_run_step_stats(run.run_id)


def materialized_and_gated(instance: dg.DagsterInstance, run_id: str) -> "tuple[set[dg.AssetKey], set[dg.AssetKey]]":
    """(assets a run materialized, assets whose blocking check failed in it)."""
    materialized: set[dg.AssetKey] = set()
    gated: set[dg.AssetKey] = set()
    wanted = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
    for record in instance.all_logs(run_id, of_type=wanted):
        event = record.get_dagster_event()
        if event.is_step_materialization and event.asset_key is not None:
            materialized.add(event.asset_key)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if check.blocking and not check.passed and check.severity is dg.AssetCheckSeverity.ERROR:
                gated.add(check.asset_key)
    return materialized, gated


def location_name(run: dg.DagsterRun) -> "str | None":
    """The code location a run belongs to; None for a run outside any workspace."""
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.code_location_origin.location_name


def backfill_status(instance: dg.DagsterInstance, backfill_id: str) -> "str | None":
    """The name of a backfill's status, such as REQUESTED or CANCELING; None where there is no such backfill."""
    found = instance.get_backfill(backfill_id)
    return None if found is None else found.status.value


def daemon_heard_within(instance: dg.DagsterInstance, seconds: float, now: float) -> bool:
    """Whether the sensor daemon reported itself in the last seconds."""
    heartbeat = instance.get_daemon_heartbeats().get("SENSOR")
    return heartbeat is not None and now - heartbeat.timestamp < seconds


def postgres_url(instance: dg.DagsterInstance) -> "str | None":
    """The database URL of an instance that keeps its runs in PostgreSQL, else None."""
    storage = instance.run_storage
    return getattr(storage, "postgres_url", None)


def is_temporary(instance: dg.DagsterInstance) -> bool:
    """Whether what the instance stores is gone when the process or `dagster dev` ends."""
    return instance.is_ephemeral or ".tmp_dagster_home_" in instance.root_directory


def launches_elsewhere(instance: dg.DagsterInstance) -> "str | None":
    """The run launcher's name where runs may start on another machine or in another container, else None."""
    name = type(instance.run_launcher).__name__
    return None if name in LOCAL_LAUNCHERS else name


LOCAL_LAUNCHERS = frozenset({"DefaultRunLauncher", "SyncInMemoryRunLauncher", "ExplodingRunLauncher"})


def downstream_of(
    repository: RepositoryDefinition, roots: "Iterable[dg.AssetKey]", within: "Set[dg.AssetKey]"
) -> "frozenset[dg.AssetKey]":
    """The roots and everything downstream of them, staying inside `within`."""
    graph = repository.asset_graph
    found = {key for key in roots if key in within and graph.has(key)}
    frontier = list(found)
    while frontier:
        for child in graph.get(frontier.pop()).child_keys:
            if child in within and child not in found:
                found.add(child)
                frontier.append(child)
    return frozenset(found)
