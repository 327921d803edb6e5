"""What other versions of the package left in the ledger: an earlier one's is read, a later one's refused before any spend."""

import pyarrow as pa
import pytest
import sqlalchemy as sa

from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA
from dagster_llmbatch.core.recipe import FORMAT_VERSION
from dagster_llmbatch.errors import InputError, LedgerVersionError
from dagster_llmbatch.ledger import tables
from dagster_llmbatch.providers.contract import BatchHandle
from dagster_llmbatch.providers.handles import HANDLE_VERSION
from dagster_llmbatch_tests.core.workplace import Shop, table


def test_a_handle_says_its_version() -> None:
    """Handles of the first form, which did not, are read; a later version's are refused with what to do."""
    handle = BatchHandle("openai", "batch_1", {"input_file_id": "file-1"})
    stored = handle.to_json()
    assert stored["version"] == HANDLE_VERSION == 1
    assert BatchHandle.from_json(stored) == handle
    assert BatchHandle.from_json({name: value for name, value in stored.items() if name != "version"}) == handle
    with pytest.raises(InputError, match=r"batch_1 has version 2.*Upgrade"):
        BatchHandle.from_json({**stored, "version": 2})


def test_a_batch_of_an_earlier_version_is_collected(shop: Shop) -> None:
    """Its recorded handle has no version: the batch is polled and collected, and nothing is bought again."""
    shop.simulator.store.batch_seconds = 1000
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    (batch,) = shop.ledger.batches(entry.id)
    assert batch.handle is not None
    assert batch.handle["version"] == 1
    earlier = {name: value for name, value in batch.handle.items() if name != "version"}
    change(shop, tables.batches.update().values(handle=earlier))
    published = shop.finish(entry, "r1")
    assert shop.results(published).column("llm_status").to_pylist() == ["succeeded"] * 6
    assert shop.simulator.book.batches == 1


def change(shop: Shop, statement: sa.Update) -> None:
    """Put another version's data into the ledger."""
    engine = sa.create_engine(shop.ledger.database.url)
    with engine.begin() as connection:
        connection.execute(statement)
    engine.dispose()


def test_a_plan_says_its_format_and_a_later_one_is_refused(shop: Shop) -> None:
    """A plan in a layout we do not know is never sent, by its own run or by a run that wants to go on from it."""
    entry, _ = shop.open("r1")
    assert entry.settings["format"] == FORMAT_VERSION
    change(shop, tables.entries.update().values(settings={**entry.settings, "format": FORMAT_VERSION + 1}))
    with pytest.raises(LedgerVersionError, match=r"format 2.*Nothing was spent"):
        shop.advance(entry, "r1")
    newer, _ = shop.open("r2", table(3))
    with pytest.raises(LedgerVersionError, match="format 2"):
        shop.advance(newer, "r2")
    assert shop.simulator.book.calls.total() == 0


def test_outcomes_of_an_earlier_version_are_published(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment without the columns that came later is read: they are null, and no answer is lost."""
    shop.simulator.store.batch_seconds = 1000
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    shop.simulator.clock.advance(2000)
    monkeypatch.setattr("dagster_llmbatch.core.advance.ResultsWriter.write", stopped)
    with pytest.raises(InterruptedError):
        shop.advance(entry, "r1")
    monkeypatch.undo()
    (batch,) = shop.ledger.batches(entry.id)
    assert batch.outcomes_segment
    earlier = rewritten(shop, batch.outcomes_segment, without=("cost_usd", "cache_write_1h_tokens", "response"))
    change(shop, tables.batches.update().values(outcomes_segment=earlier))
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 6
    assert found.column("llm_cost_usd").null_count == 0
    assert shop.simulator.book.requests == 6


def stopped(_: object) -> str:
    raise InterruptedError


def rewritten(shop: Shop, name: str, *, without: "tuple[str, ...]") -> str:
    """A segment with fewer columns, one of them narrower, as an earlier version may have written it."""
    kept = [n for n in OUTCOME_SCHEMA.names if n not in without]
    found = shop.work.segments.table(name, columns=kept)
    at = kept.index("text")
    found = found.set_column(at, "text", found.column("text").cast(pa.string()))
    with shop.work.segments.writer("outcomes", found.schema, row_group_rows=100) as writer:
        for block in found.to_batches():
            writer.write(block)
    return writer.name
