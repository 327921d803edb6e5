"""What the work on partitions needs, in one place."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dagster_llmbatch.core.pricing import PriceBook
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import BatchProvider


@dataclass(frozen=True)
class Workplace:
    """Everything a partition's work needs, handed in: nothing here reads a clock or an environment of its own."""

    provider_of: "Callable[[str], BatchProvider]"
    """The client of a provider by name: a batch is polled and collected where it was submitted."""
    ledger: Ledger
    segments: SegmentStore
    policy: Policy
    prices: PriceBook
    now: "Callable[[], float]" = time.time
    sleep: "Callable[[float], None]" = time.sleep
