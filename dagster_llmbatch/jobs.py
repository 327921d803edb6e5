"""Jobs an operator launches from the UI."""

import time

import dagster as dg

from dagster_llmbatch.asset_decorator import RESOURCE_KEY
from dagster_llmbatch.core.collect import collect
from dagster_llmbatch.core.poll import poll, status_of
from dagster_llmbatch.ledger.records import BatchPhase
from dagster_llmbatch.resource import LLMBatchResource, failures
from dagster_llmbatch.run_log import forwarded_to

COLLECT_JOB = "llm_batch_collect"


def build_llm_batch_jobs(*, resource_key: str = RESOURCE_KEY) -> "list[dg.JobDefinition]":
    """The operator jobs.

    `llm_batch_collect` polls every pending batch and stores the answers of those that ended in the ledger, without a
    daemon and without materializing anything: the next materialization of the partition finds them there.
    """

    @dg.op(
        name="collect_llm_batches",
        required_resource_keys={resource_key},
        out=dg.Out(dagster_type=dg.Nothing),
        description="Polls every pending LLM batch and stores the answers of those that ended in the ledger.",
    )
    def collect_llm_batches(context: dg.OpExecutionContext) -> None:
        resource: LLMBatchResource = getattr(context.resources, resource_key)
        with (
            failures(),
            forwarded_to(context.log),
            resource.ledger(context.instance) as (ledger, segments),
            resource.clients() as clients,
        ):
            collected = pending = 0
            for entry in ledger.pending_entries(resource.namespace):
                for batch in ledger.batches(entry.id):
                    provider = clients.of(batch.provider)
                    if batch.phase is BatchPhase.SUBMITTED:
                        poll(batch, provider=provider, ledger=ledger, policy=resource.policy_of(entry), now=time.time)
                    found = ledger.batch(batch.id)
                    if found.phase is BatchPhase.ENDED:
                        extras = entry.settings.get("extras", ())
                        name = collect(
                            found,
                            status_of(found),
                            provider=provider,
                            segments=segments,
                            extras=extras,
                            now=time.time(),
                        )
                        collected += ledger.record_collected(found.id, name, now=time.time())
                    pending += found.phase is BatchPhase.SUBMITTED
        context.log.info("collected %d batches; %d are still out.", collected, pending)

    @dg.job(name=COLLECT_JOB, description="Store the answers of ended LLM batches in the ledger, without a daemon.")
    def llm_batch_collect() -> None:
        collect_llm_batches()

    return [llm_batch_collect]
