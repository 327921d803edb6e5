"""Checks of an LLM batch asset: separate, partitioned, blocking. They read the ledger's counts, never the provider."""

import warnings
from collections.abc import Sequence

import dagster as dg

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch import metadata
from dagster_llmbatch.asset_decorator import FAIL_ABOVE, RESOURCE_KEY, WARN_ABOVE
from dagster_llmbatch.core.verdicts import FAILED, REVIEW, SUCCEEDED
from dagster_llmbatch.errors import ConfigurationError
from dagster_llmbatch.ledger.records import EntryKey
from dagster_llmbatch.resource import LLMBatchResource, failures

CHECK_NAME = "validation_failure_rate"


def build_llm_batch_checks(
    asset: dg.AssetsDefinition,
    *,
    warn_above: "float | None" = None,
    fail_above: "float | None" = None,
    blocking: bool = True,
    resource_key: str = RESOURCE_KEY,
) -> "Sequence[dg.AssetChecksDefinition]":
    """The checks of one LLM batch asset; the first is `validation_failure_rate`.

    Args:
        asset: what `build_llm_batch_asset` or `llm_batch_asset` returned.
        warn_above: share of rows without a valid answer (0 to 1) above which it warns; None: the asset's.
        fail_above: share above which it fails and, where `blocking`, holds back what is downstream; None: the asset's.
        blocking: whether a failure gates downstream assets in the same run.
        resource_key: where the LLMBatchResource is.
    """
    spec = next(iter(asset.specs))
    if metadata.MODEL not in spec.metadata:
        raise ConfigurationError(f"{spec.key.to_user_string()} is not an LLM batch asset.")
    warn = spec.metadata[WARN_ABOVE] if warn_above is None else warn_above
    fail = spec.metadata[FAIL_ABOVE] if fail_above is None else fail_above

    def evaluate(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        resource: LLMBatchResource = getattr(context.resources, resource_key)
        partition = internals.partition_of(context.run) or ""
        key = EntryKey(resource.namespace, spec.key.to_user_string(), partition)
        with failures(), resource.ledger(context.instance) as (ledger, _):
            entry = ledger.published_entry(key)
        if entry is None or entry.summary is None:
            return dg.AssetCheckResult(
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                description="Nothing is published for this partition yet; materialize it first.",
            )
        rate = metadata.failure_rate(entry.summary)
        return dg.AssetCheckResult(
            passed=rate <= warn,
            severity=dg.AssetCheckSeverity.ERROR if rate > fail else dg.AssetCheckSeverity.WARN,
            description=f"{rate:.1%} of {entry.summary['rows']} rows have no valid answer "
            f"(warns above {warn:.1%}, fails above {fail:.1%}).",
            metadata={
                metadata.FAILURE_RATE: rate,
                WARN_ABOVE: float(warn),
                FAIL_ABOVE: float(fail),
                "llmbatch/rows": entry.summary["rows"],
                **{f"llmbatch/{status}": entry.summary[status] for status in (SUCCEEDED, FAILED, REVIEW)},
                "llmbatch/errors": entry.summary["errors"],
                metadata.ENTRY_TAG: entry.id,
            },
        )

    with warnings.catch_warnings():
        # partitioned checks are a preview in Dagster 1.13: said once in our docs, not at every definition
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        check = dg.asset_check(
            asset=spec.key,
            name=CHECK_NAME,
            description=f"At most {warn:.1%} of the rows have no valid answer; above {fail:.1%} downstream is held back.",
            blocking=blocking,
            partitions_def=spec.partitions_def,
            required_resource_keys={resource_key},
        )(evaluate)
    return [check]
