"""LLM batch APIs as Dagster assets: one prompt a row, at half price, never paid twice."""

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_llmbatch.asset_decorator import build_llm_batch_asset as build_llm_batch_asset
from dagster_llmbatch.asset_decorator import llm_batch_asset as llm_batch_asset
from dagster_llmbatch.check_builder import build_llm_batch_checks as build_llm_batch_checks
from dagster_llmbatch.definitions import llm_batch_definitions as llm_batch_definitions
from dagster_llmbatch.io_manager import ParquetIOManager as ParquetIOManager
from dagster_llmbatch.resource import LLMBatchResource as LLMBatchResource
from dagster_llmbatch.sensor_builder import build_llm_batch_sensor as build_llm_batch_sensor

__version__ = "0.1.0"

__all__ = [
    "LLMBatchResource",
    "ParquetIOManager",
    "build_llm_batch_asset",
    "build_llm_batch_checks",
    "build_llm_batch_sensor",
    "llm_batch_asset",
    "llm_batch_definitions",
]

DagsterLibraryRegistry.register("dagster-llmbatch", __version__, is_dagster_package=False)
