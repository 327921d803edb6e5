"""Segments keep types and values, and their names depend on nothing but the rows."""

import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from dagster_llmbatch.errors import InputError, LedgerError
from dagster_llmbatch.ledger.segments import SegmentStore

UTC = datetime.timezone.utc
COLUMNS = {
    "int64 with nulls": pa.array([9007199254740993, None, 1582218195625938945], pa.int64()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "decimal128": pa.array([Decimal("1.123456789"), None, Decimal("-2")], pa.decimal128(38, 9)),
    "decimal256": pa.array([Decimal(10) ** 60, None, Decimal(1)], pa.decimal256(70, 2)),
    "timestamp s": pa.array(
        [datetime.datetime(2026, 1, 1, tzinfo=UTC), None, None], pa.timestamp("s", tz="Europe/Berlin")
    ),
    "timestamp ns": pa.array([1, None, 2**62], pa.timestamp("ns", tz="UTC")),
    "date64": pa.array([datetime.date(2026, 1, 1), None, None], pa.date64()),
    "time32": pa.array([datetime.time(1, 2, 3), None, None], pa.time32("s")),
    "duration": pa.array([1, None, 3], pa.duration("ms")),
    "large string": pa.array(["a", None, "\u2028"], pa.large_string()),
    "string view": pa.array(["a", None, "long enough to leave the inline view"], pa.string_view()),
    "binary view": pa.array([b"\x00", None, b"x" * 40], pa.binary_view()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "list of string view": pa.array([["a"], None, []], pa.list_(pa.string_view())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "fixed size list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
    "null": pa.nulls(3),
    "half": pa.array([1.5, None, 2.0], pa.float16()),
}


@pytest.mark.parametrize("name", list(COLUMNS))
@pytest.mark.parametrize("rows", [3, 0])
def test_types_and_values_come_back(tmp_path: Path, name: str, rows: int) -> None:
    """What goes in comes out: value and type, also of an empty table."""
    store = SegmentStore(tmp_path)
    table = pa.table({"c": COLUMNS[name].slice(0, rows)})
    with store.writer("plan", table.schema) as writer:
        writer.write(table)
    assert writer.rows == rows
    assert store.schema(writer.name).equals(table.schema)
    back = store.table(writer.name)
    assert back.schema.equals(table.schema)
    assert back.equals(table)
    streamed = pa.Table.from_batches(store.batches(writer.name), schema=table.schema)
    assert streamed.equals(table)


def test_polars_strings_come_back_as_views(tmp_path: Path) -> None:
    """The string views that polars hands over keep their type."""
    table = pa.table(pl.DataFrame({"a": ["x", None]}))
    store = SegmentStore(tmp_path)
    with store.writer("plan", table.schema) as writer:
        writer.write(table)
    assert store.table(writer.name).schema.equals(table.schema)


def test_equal_rows_have_equal_names_however_they_come(tmp_path: Path) -> None:
    """The content's digest does not depend on how the rows were batched; writing twice keeps one file."""
    store = SegmentStore(tmp_path)
    table = pa.table({"a": pa.array(range(1000), pa.int64())})
    names = []
    for size in (1000, 7, 64):
        with store.writer("plan", table.schema, row_group_rows=64) as writer:
            for batch in table.to_batches(max_chunksize=size):
                writer.write(batch)
        names.append(writer.name)
    assert len(set(names)) == 1
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_nothing_stays_of_a_failed_write(tmp_path: Path) -> None:
    """An exception in the middle leaves no segment and no temporary file."""
    store = SegmentStore(tmp_path)
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(ZeroDivisionError), store.writer("plan", schema) as writer:
        writer.write(pa.table({"a": [1]}, schema=schema))
        raise ZeroDivisionError
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "kind",
    [pa.dense_union([pa.field("a", pa.int64())]), pa.month_day_nano_interval(), pa.struct([]), pa.list_(pa.struct([]))],
)
def test_what_parquet_cannot_hold_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """The column and its type are named before anything is written."""
    with pytest.raises(InputError, match="'odd'"):
        SegmentStore(tmp_path).writer("plan", pa.schema([("odd", kind)]))


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_local_roots(tmp_path: Path, prefix: str) -> None:
    """A path and a file:// URL are the same place; a lost segment is named."""
    store = SegmentStore(f"{prefix}{tmp_path}/deep")
    with store.writer("plan", pa.schema([("a", pa.int64())])) as writer:
        pass
    assert (tmp_path / "deep" / writer.name).exists()
    assert store.table(writer.name).num_rows == 0
    store.delete(writer.name)
    with pytest.raises(LedgerError, match="is gone"):
        store.table(writer.name)


def test_other_filesystems() -> None:
    """An object store takes a segment with one put."""
    store = SegmentStore("memory://bucket/llmbatch")
    with store.writer("plan", pa.schema([("a", pa.int64())])) as writer:
        writer.write(pa.table({"a": [1]}))
    assert store.exists(writer.name)
    assert store.table(writer.name).column("a").to_pylist() == [1]
