"""What planning a partition takes in and refuses, through the line."""

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import BaseModel

from dagster_llmbatch.errors import UnportableSchemaError
from dagster_llmbatch.schemas.output import OutputSchema
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import KEY, Shop, table


class Node(BaseModel):
    name: str
    next: "Node | None"


def test_the_index_counts_over_the_whole_input(shop: Shop) -> None:
    """Template and function see the row's number in the partition, however the input came in."""
    given = pa.Table.from_batches(table(5).to_batches(max_chunksize=2))
    for number, prompt in enumerate(["Row {{ row_index }}", lambda row, index: f"Row {index}"]):
        entry, _ = shop.open(f"r{number}", given, prompt=prompt)
        planned = shop.work.segments.table(entry.plan_segment, columns=["llm_prompt"])
        assert planned.column(0).to_pylist() == [f"Row {at}" for at in range(5)]


def test_an_output_the_provider_cannot_take_names_asset_and_partition(
    simulator: SimulatorServer, tmp_path: Path
) -> None:
    """The provider is known only at the plan: the error says where, which part of the type, and that nothing was spent."""
    Node.model_rebuild()
    shop = Shop(simulator, tmp_path, provider="anthropic")
    with pytest.raises(UnportableSchemaError, match="Nothing was spent") as caught:
        shop.open("r1", output=OutputSchema.compile(Node))
    assert str(caught.value).startswith("triage, partition d1: ")
    assert (caught.value.provider, "next" in caught.value.path) == ("anthropic", True)
    assert simulator.book.calls.total() == 0
    assert shop.ledger.latest_entry(KEY) is None
