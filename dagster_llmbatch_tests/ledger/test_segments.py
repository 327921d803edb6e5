"""Segments keep types and values, and their names depend on nothing but the rows."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from dagster_llmbatch.errors import InputError, LedgerError
from dagster_llmbatch.ledger import segments
from dagster_llmbatch.ledger.segments import SegmentStore


class Mood(pa.ExtensionType):
    """An extension type of a user's own."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "dagster_llmbatch_tests.mood")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Mood":
        return cls()


@pytest.fixture(autouse=True, scope="module")
def _mood() -> "Iterator[None]":
    """The extension type is known while this module runs."""
    pa.register_extension_type(Mood())
    yield
    pa.unregister_extension_type("dagster_llmbatch_tests.mood")


def dictionary(values: "list[Any]", kind: pa.DataType, index: pa.DataType, ordered: bool = False) -> pa.Array:
    """Three rows, one of them null, of a dictionary of two values."""
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 1], index), pa.array(values, kind), ordered=ordered)


INSTANTS = {
    f"timestamp {unit} {zone}": pa.array([1, None, 2**33], pa.timestamp(unit, tz=zone))
    for unit in ("s", "ms", "us", "ns")
    for zone in (None, "UTC", "Europe/Berlin")
}
DURATIONS = {f"duration {unit}": pa.array([1, None, -3], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")}
DICTIONARIES = {
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "dictionary of string views": dictionary(["a", "b"], pa.string_view(), pa.int32()),
    "dictionary of binary": dictionary([b"a", b"b"], pa.binary(), pa.int64()),
    "dictionary of int64": dictionary([9007199254740993, 2], pa.int64(), pa.int8()),
    "dictionary of decimal": dictionary([Decimal("1.5"), Decimal("2.5")], pa.decimal128(5, 1), pa.int16()),
    "dictionary of timestamp": dictionary([1, 2], pa.timestamp("s", tz="UTC"), pa.uint32()),
    "list of dictionary": pa.array([["a"], None, ["b", "a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
}
EXTENSIONS = {
    "own extension": pa.ExtensionArray.from_storage(Mood(), pa.array(["a", None, "b"])),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    ),
}
DEEP = pa.struct([("l", pa.list_(pa.struct([("m", pa.map_(pa.string_view(), pa.list_(pa.string_view())))])))])
COLUMNS = {
    "int64 with nulls": pa.array([9007199254740993, None, 1582218195625938945], pa.int64()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "decimal128": pa.array([Decimal("1.123456789"), None, Decimal("-2")], pa.decimal128(38, 9)),
    "decimal256": pa.array([Decimal(10) ** 60, None, Decimal(1)], pa.decimal256(70, 2)),
    **INSTANTS,
    **DURATIONS,
    **DICTIONARIES,
    **EXTENSIONS,
    "late timestamp": pa.array([1, None, 2**62], pa.timestamp("ns", tz="UTC")),
    "date64": pa.array([datetime.date(2026, 1, 1), None, None], pa.date64()),
    "time32": pa.array([datetime.time(1, 2, 3), None, None], pa.time32("s")),
    "large string": pa.array(["a", None, "\u2028"], pa.large_string()),
    "string view": pa.array(["a", None, "long enough to leave the inline view"], pa.string_view()),
    "binary view": pa.array([b"\x00", None, b"x" * 40], pa.binary_view()),
    "list of string view": pa.array([["a"], None, []], pa.list_(pa.string_view())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "struct of list of struct of map": pa.array([{"l": [{"m": [("k", ["v"])]}]}, None, {"l": None}], DEEP),
    "struct of null": pa.array([{"n": None, "i": 1}, None, {"n": None, "i": None}]),
    "list of timestamp s": pa.array([[1], None, []], pa.list_(pa.timestamp("s", tz="UTC"))),
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


@pytest.mark.parametrize(("rows", "sizes"), [(100, {100, 50}), (20000, {8192, 3616})])
def test_batches_are_of_one_row_group(tmp_path: Path, rows: int, sizes: "set[int]") -> None:
    """No batch spans row groups or is larger than what is read at once; together they are all rows in order."""
    store = SegmentStore(tmp_path)
    table = pa.table({"a": pa.array(range(rows * 2 + rows // 2), pa.int64()), "b": pa.nulls(rows * 2 + rows // 2)})
    with store.writer("plan", table.schema, row_group_rows=rows) as writer:
        writer.write(table)
    found = list(store.batches(writer.name, columns=["b", "a"]))
    assert found[0].schema.names == ["b", "a"]
    assert {batch.num_rows for batch in found} <= sizes | {10000 - 8192}
    assert pa.Table.from_batches(found).column("a").to_pylist() == list(range(table.num_rows))


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.decimal128(3, 1), pa.int64()], ids=str)
def test_batches_may_bring_their_own_dictionaries(tmp_path: Path, kind: pa.DataType) -> None:
    """Batches whose dictionaries differ are joined by value."""
    values = [Decimal(1), Decimal(2)] if pa.types.is_decimal(kind) else [1, 2] if kind == pa.int64() else ["a", "b"]
    parts = [dictionary(values, kind, pa.int8()), dictionary(values[::-1], kind, pa.int8())]
    store = SegmentStore(tmp_path)
    with store.writer("plan", pa.schema([("c", parts[0].type)]), row_group_rows=4) as writer:
        for part in parts:
            writer.write(pa.record_batch({"c": part}))
    back = store.table(writer.name).column("c")
    assert back.type == parts[0].type
    assert [value for chunk in back.chunks for value in chunk.to_pylist()] == [
        values[0], None, values[1], values[1], None, values[0],
    ]  # fmt: skip


def test_nothing_stays_of_a_failed_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails before the rename leaves neither the segment nor a file beside it."""

    def failing(_: Path) -> None:
        raise OSError("disk")

    monkeypatch.setattr(segments, "_sync", failing)
    store = SegmentStore(tmp_path)
    with pytest.raises(OSError, match="disk"), store.writer("plan", pa.schema([("a", pa.int64())])):
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_file_and_its_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is on the disk before it has its name, and the folder after that: a power cut loses no answer."""
    seen = []
    monkeypatch.setattr(segments, "_sync", lambda path: seen.append((path, sorted(path.parent.rglob("*.parquet")))))
    store = SegmentStore(tmp_path)
    with store.writer("plan", pa.schema([("a", pa.int64())])) as writer:
        pass
    final = tmp_path / writer.name
    assert [(path.suffix, named) for path, named in seen] == [(".tmp", []), ("", [final])]
    assert seen[1][0] == final.parent


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
    [
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.list_view(pa.int64()),
        pa.struct([("a", pa.large_list_view(pa.int64()))]),
        pa.list_(pa.dictionary(pa.int32(), pa.int64())),
        pa.dictionary(pa.int32(), pa.int64(), ordered=True),
    ],
    ids=str,
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
