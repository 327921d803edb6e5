"""Everything a code location needs around its LLM batch assets, in one call."""

from collections.abc import Sequence

import dagster as dg

from dagster_llmbatch.check_builder import build_llm_batch_checks
from dagster_llmbatch.jobs import build_llm_batch_jobs
from dagster_llmbatch.sensor_builder import build_llm_batch_sensor

SENSOR = build_llm_batch_sensor()
JOBS = build_llm_batch_jobs()


def llm_batch_definitions(*assets: dg.AssetsDefinition, checks: bool = True) -> dg.Definitions:
    """Definitions of LLM batch assets with their checks, the sensor and the operator jobs.

    No resources: give `llm_batch` an LLMBatchResource in your own Definitions. The sensor and the jobs are the same
    objects in every call and find the assets when they run, so several of these merge.

    Args:
        assets: what `build_llm_batch_asset` or `llm_batch_asset` returned.
        checks: whether to add the built-in checks.
    """
    found: Sequence[dg.AssetChecksDefinition] = [
        check for asset in assets if checks for check in build_llm_batch_checks(asset)
    ]
    return dg.Definitions(assets=assets, asset_checks=found, sensors=[SENSOR], jobs=JOBS)
