"""Everything a user may hand in as rows arrives as Arrow, with its types and values."""

import datetime as dt
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from upath import UPath

from dagster_llmbatch.core.parquet_files import BATCH_ROWS, file_name, open_parquet, store_table
from dagster_llmbatch.core.tables import open_rows
from dagster_llmbatch.errors import InputError

NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
PARIS = pa.timestamp("s", "Europe/Paris")


def hard_table() -> pa.Table:
    """One column of every type that a careless reader damages."""
    return pa.table(
        {
            "id": pa.array([9007199254740993, None, 1582218195625938945], pa.int64()),
            "price": pa.array([Decimal("0.10"), None, Decimal("12345678901234567890.01")], pa.decimal128(30, 2)),
            "at": pa.array([NOON, None, NOON], PARIS),
            "day": pa.array([NOON.date(), None, NOON.date()], pa.date64()),
            "clock": pa.array([NOON.time(), None, NOON.time()], pa.time32("s")),
            "took": pa.array([dt.timedelta(seconds=1), None, None], pa.duration("ns")),
            "big": pa.array(["a", None, "č"], pa.large_string()),
            "view": pa.array(["a", None, "a longer text than fits inline"], pa.string_view()),
            "tag": pa.array(["x", None, "x"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
            "code": pa.array([7, 7, None], pa.int64()).dictionary_encode(),
            "nested": pa.array(
                [{"when": [NOON], "m": [("k", 1)]}, None, {"when": None, "m": []}],
                pa.struct([("when", pa.list_(pa.timestamp("s"))), ("m", pa.map_(pa.string(), pa.int64()))]),
            ),
            "raw": pa.array([b"\x00\xff", None, b""], pa.large_binary()),
            "nothing": pa.nulls(3),
        }
    )


def one_column() -> pa.Table:
    return pa.table({"n": pa.array([1, None, 3], pa.int64())})


def test_an_arrow_table_passes_unchanged() -> None:
    """Types, nulls and values of a Table come out as they went in."""
    assert open_rows(hard_table(), asset="a").read_all().equals(hard_table())


def test_a_parquet_file_gives_back_the_types_it_was_written_from(tmp_path: Path) -> None:
    """Also second timestamps, date64 and integer dictionaries, which Parquet itself cannot tell."""
    store_table(hard_table().to_reader(), UPath(tmp_path / "t.parquet"), "a")
    found = open_rows(tmp_path / "t.parquet", asset="a").read_all()
    assert [f.type for f in found.schema] == [f.type for f in hard_table().schema]
    assert found.to_pylist() == hard_table().to_pylist()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda t: t.combine_chunks().to_batches()[0], id="batch"),
        pytest.param(lambda t: t.to_reader(), id="reader"),
        pytest.param(lambda t: ds.dataset(t), id="dataset"),
        pytest.param(lambda t: pl.from_arrow(t), id="polars"),
        pytest.param(lambda t: pl.DataFrame(pl.from_arrow(t)).lazy(), id="polars lazy"),
        pytest.param(lambda t: t.to_pandas(types_mapper=pd.ArrowDtype), id="pandas arrow"),
        pytest.param(lambda t: t.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get), id="pandas Int64"),
        pytest.param(lambda t: duckdb.from_arrow(t), id="duckdb"),
        pytest.param(lambda t: iter(t.to_batches()), id="iterator of batches"),
        pytest.param(lambda t: [t.slice(0, 1), t.slice(1)], id="list of tables"),
    ],
)
def test_every_kind_of_table_is_accepted(make: Any) -> None:
    """int64 with a null stays int64 with a null, whichever library holds it."""
    assert open_rows(make(one_column()), asset="a").read_all().equals(one_column())


@pytest.mark.parametrize("kind", [str, Path, UPath])
def test_paths_are_accepted_in_every_form(tmp_path: Path, kind: Any) -> None:
    """A path may be a str, a Path or a UPath."""
    pq.write_table(one_column(), tmp_path / "t.parquet")
    assert open_rows(kind(str(tmp_path / "t.parquet")), asset="a").read_all().equals(one_column())


def test_a_file_elsewhere_is_read_through_its_own_filesystem() -> None:
    """A UPath that is not local works for a file and for a folder."""
    folder = UPath("memory://tables-test/rows")
    for name in ("b.parquet", "a.parquet"):
        store_table(one_column().to_reader(), folder / name, "a")
    assert open_rows(folder / "a.parquet", asset="a").read_all().equals(one_column())
    assert open_rows(str(folder), asset="a").read_all().num_rows == 6


def test_a_folder_is_read_in_the_order_of_its_file_names(tmp_path: Path) -> None:
    """Hidden and unfinished files are passed over, hive directories become columns, order is that of the names."""
    for day, first in (("2024-01-02", 20), ("2024-01-01", 10)):
        (tmp_path / f"dt={day}").mkdir()
        pq.write_table(pa.table({"n": list(range(first, first + 3))}), tmp_path / f"dt={day}" / "part.parquet")
    (tmp_path / ".half.parquet").write_bytes(b"not parquet")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    found = open_rows(tmp_path, asset="a").read_all()
    assert found.column("n").to_pylist() == [10, 11, 12, 20, 21, 22]
    assert found.column("dt").to_pylist() == ["2024-01-01"] * 3 + ["2024-01-02"] * 3


def test_a_folder_of_unlike_files_is_refused(tmp_path: Path) -> None:
    """A column that only the second file has is not dropped silently."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1], "extra": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet has another schema.*new \['extra'\]"):
        open_rows(tmp_path, asset="a")


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    """Batches stay small, and reading the first does not read the file: Arrow holds a fraction of the data."""
    rows = 400_000
    store_table(pa.table({"text": [f"{i:0200d}" for i in range(rows)]}).to_reader(), UPath(tmp_path / "t.parquet"), "a")
    before = pa.total_allocated_bytes()
    reader = open_rows(tmp_path / "t.parquet", asset="a")
    largest = seen = 0
    for batch in reader:
        assert batch.num_rows <= BATCH_ROWS
        largest = max(largest, pa.total_allocated_bytes() - before)
        seen += batch.num_rows
    assert seen == rows
    assert largest < rows * 200 / 2


def test_a_named_pandas_index_becomes_a_column_and_an_unnamed_one_is_dropped() -> None:
    """A name says that the index is data."""
    frame = pd.DataFrame({"v": ["a", "b"]}, index=pd.Index([5, 6], name="k"))
    assert open_rows(frame, asset="a").read_all().to_pydict() == {"k": [5, 6], "v": ["a", "b"]}
    frame.index.name = None
    assert open_rows(frame, asset="a").read_all().to_pydict() == {"v": ["a", "b"]}


def test_polars_categories_can_be_stored_and_read_again(tmp_path: Path) -> None:
    """They come as dictionaries of string_view, which Parquet files cannot be read back with."""
    frame = pl.DataFrame({"c": pl.Series(["x", None, "y"], dtype=pl.Categorical)})
    store_table(open_rows(frame, asset="a"), UPath(tmp_path / "t.parquet"), "a")
    assert open_rows(tmp_path / "t.parquet", asset="a").read_all().to_pydict() == {"c": ["x", None, "y"]}


def test_chunks_with_dictionaries_of_their_own_are_stored_together(tmp_path: Path) -> None:
    """Each batch may bring another dictionary."""
    blocks = [pa.table({"c": pa.array(words).dictionary_encode()}) for words in (["x", "y"], ["z", "x"])]
    store_table(open_rows(iter(blocks), asset="a"), UPath(tmp_path / "t.parquet"), "a")
    assert open_rows(tmp_path / "t.parquet", asset="a").read_all().to_pydict() == {"c": ["x", "y", "z", "x"]}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        pytest.param(5, "builtins.int", id="int"),
        pytest.param(None, "NoneType", id="none"),
        pytest.param({"n": [1]}, "builtins.dict", id="dict"),
        pytest.param([{"n": 1}], "builtins.dict.*list", id="list of dicts"),
        pytest.param(b"abc", "builtins.bytes", id="bytes"),
        pytest.param(pd.Series([1]), "Series", id="pandas series"),
        pytest.param(pl.Series([1]), "Series", id="polars series"),
        pytest.param(iter([]), "empty Table", id="no batches"),
        pytest.param("nowhere.parquet", r"nowhere\.parquet does not exist", id="missing file"),
    ],
)
def test_what_is_no_table_is_named_and_refused(value: Any, named: str) -> None:
    """The error says the type that came and the asset it came to."""
    with pytest.raises(InputError, match=rf"(?s)my_asset: .*{named}"):
        open_rows(value, asset="my_asset")


@pytest.mark.parametrize("text", ["a secret answer\nof two lines", "secret " * 100])
def test_a_text_given_for_a_path_is_not_quoted(text: str) -> None:
    """A function that returns the text itself does not put it into the event log."""
    with pytest.raises(InputError, match="no path") as caught:
        open_rows(text, asset="a")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"ok": [1, 2], "mixed": [1, "secret"]}),
        pd.DataFrame({"ok": [1, 2], "mixed": pd.Series(["secret", b"x"], dtype=object)}),
        pd.DataFrame({"ok": [1, 2], "mixed": [{"a": 1}, "secret"]}),
        pl.DataFrame({"ok": [1, 2], "mixed": pl.Series([object(), object()], dtype=pl.Object)}),
    ],
)
def test_columns_without_one_type_are_named(frame: Any) -> None:
    """The column is named; its values are not."""
    with pytest.raises(InputError, match="mixed") as caught:
        open_rows(frame, asset="a")
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "value",
    [
        pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]),
        pd.DataFrame([[1, 2]], columns=["n", "n"]),
        pd.DataFrame([[1, 2]], columns=["n", "m"], index=pd.Index([0], name="n")),
    ],
)
def test_repeated_column_names_are_refused(value: Any) -> None:
    """Which of the two a template means cannot be known."""
    with pytest.raises(InputError, match=r"named \['n'\]"):
        open_rows(value, asset="a")


def test_reserved_columns_are_refused_unless_allowed() -> None:
    """`llm_` columns of an input would clash with the result's own; a result may have them."""
    table = pa.table({"n": [1], "llm_status": ["succeeded"]})
    with pytest.raises(InputError, match="llm_status"):
        open_rows(table, asset="a")
    assert open_rows(table, asset="a", allow_reserved=True).read_all().equals(table)


def test_batches_that_change_their_schema_are_refused() -> None:
    """The batch is numbered and the change named."""
    reader = open_rows(iter([pa.table({"n": [1]}), pa.table({"n": ["x"]})]), asset="a")
    with pytest.raises(InputError, match=r"record batch 1.*'n' was int64, is string"):
        reader.read_all()


def test_an_error_of_the_users_generator_keeps_its_type() -> None:
    """It is not turned into an Arrow error on its way through."""

    def rows() -> "Iterator[pa.RecordBatch]":
        yield pa.record_batch({"n": [1]})
        raise ZeroDivisionError("mine")

    reader = open_rows(rows(), asset="a")
    with pytest.raises(ZeroDivisionError, match="mine"):
        for _ in reader:
            pass


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    """So is the asset."""
    (tmp_path / "t.parquet").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"my_asset: the file .*t\.parquet cannot be read as Parquet"):
        open_rows(tmp_path / "t.parquet", asset="my_asset")


def test_a_type_that_parquet_has_not_is_refused_by_column(tmp_path: Path) -> None:
    """Before anything is written."""
    table = pa.table({"ok": [1], "odd": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(InputError, match="'odd'"):
        store_table(table.to_reader(), UPath(tmp_path / "t.parquet"), "a")
    assert list(tmp_path.iterdir()) == []


def test_no_rows_keep_the_schema(tmp_path: Path) -> None:
    """A table without rows is a table."""
    store_table(hard_table().slice(0, 0).to_reader(), UPath(tmp_path / "t.parquet"), "a")
    found = open_parquet(UPath(tmp_path / "t.parquet"), asset="a").read_all()
    assert found.num_rows == 0
    assert [f.type for f in found.schema] == [f.type for f in hard_table().schema]


TRICKY = st.text(st.sampled_from("aAbB/\\.:%~2Ff_|\u00e9e\u0301 \n-0"), max_size=8) | st.text(max_size=300)


@given(st.lists(TRICKY, unique=True, min_size=2, max_size=20), st.booleans())
def test_no_two_keys_share_a_name_on_any_disk(keys: "list[str]", folder: bool) -> None:
    """Names differ even in one case, fit a file system, and hold nothing a path would interpret."""
    names = [file_name(key, folder=folder) for key in keys]
    assert len({name.casefold() for name in names}) == len(keys)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_.%~-]+", name)
        assert len(name) <= 150
        assert name[0] not in "." + ("" if folder else "_")
        assert name[-1] != "."
