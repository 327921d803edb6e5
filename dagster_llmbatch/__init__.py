"""LLM batch APIs as Dagster assets: one prompt a row, at half price, never paid twice."""

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_llmbatch.asset_decorator import build_llm_batch_asset as build_llm_batch_asset
from dagster_llmbatch.asset_decorator import llm_batch_asset as llm_batch_asset
from dagster_llmbatch.check_builder import build_llm_batch_checks as build_llm_batch_checks
from dagster_llmbatch.core.single_batch import LLMRequest as LLMRequest
from dagster_llmbatch.core.single_batch import LLMResult as LLMResult
from dagster_llmbatch.definitions import llm_batch_definitions as llm_batch_definitions
from dagster_llmbatch.io_manager import ParquetIOManager as ParquetIOManager
from dagster_llmbatch.providers.content import DocumentPart as DocumentPart
from dagster_llmbatch.providers.content import ImagePart as ImagePart
from dagster_llmbatch.providers.content import TextPart as TextPart
from dagster_llmbatch.providers.contract import BatchHandle as BatchHandle
from dagster_llmbatch.providers.contract import BatchStatus as BatchStatus
from dagster_llmbatch.resource import LLMBatchResource as LLMBatchResource
from dagster_llmbatch.sensor_builder import build_llm_batch_sensor as build_llm_batch_sensor

__version__ = "0.1.0"

__all__ = [
    "BatchHandle",
    "BatchStatus",
    "DocumentPart",
    "ImagePart",
    "LLMBatchResource",
    "LLMRequest",
    "LLMResult",
    "ParquetIOManager",
    "TextPart",
    "build_llm_batch_asset",
    "build_llm_batch_checks",
    "build_llm_batch_sensor",
    "llm_batch_asset",
    "llm_batch_definitions",
]

DagsterLibraryRegistry.register("dagster-llmbatch", __version__, is_dagster_package=False)
