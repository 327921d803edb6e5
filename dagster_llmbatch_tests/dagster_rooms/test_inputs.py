"""What a user hands in comes out of the results with its type and value, through the public asset."""

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dagster_llmbatch import LLMBatchResource, llm_batch_asset
from dagster_llmbatch.errors import InputError
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.ledger.test_segments import COLUMNS, EXTENSIONS

SNOWFLAKES = [9007199254740993, None, 1582218195625938945]


@pytest.fixture(scope="module")
def simulator() -> "Iterator[SimulatorServer]":
    """One provider for all tests of this module."""
    with SimulatorServer() as server:
        yield server


def every_column() -> pa.Table:
    """Three rows with a column of every type, and the one the prompt is made of."""
    left_out = {*EXTENSIONS, "dictionary of string views"}  # the second comes as a dictionary of strings
    return pa.table({"n": [1, 2, 3], **{name: c for name, c in COLUMNS.items() if name not in left_out}})


def usual_columns() -> pa.Table:
    """Three rows of the types that every library holds."""
    return pa.table(
        {
            "n": [1, 2, 3],
            "id": pa.array(SNOWFLAKES, pa.int64()),
            "price": pa.array([Decimal("0.10"), None, Decimal("12345678901234567890.01")], pa.decimal128(30, 2)),
            "at": pa.array([0, None, 1714564800123456], pa.timestamp("us", "UTC")),
            "day": pa.array([datetime.date(2026, 1, 1), None, None], pa.date32()),
            "tags": pa.array([["a"], None, []], pa.list_(pa.string())),
            "nested": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
            "words": pa.array(["a", None, "\u2028 longer than twelve bytes"], pa.large_string()),
        }
    )


def through(simulator: SimulatorServer, tmp_path: Path, rows: Any, annotation: Any = pa.Table, **asked: Any) -> Any:
    """What a downstream asset receives for an LLM asset whose function returns `rows`."""
    received: list[Any] = []

    asked = {"prompt": "{{ n }}", **asked}

    @llm_batch_asset("answers", model="openai:gpt-5-mini", output=None, policy="batch", **asked)
    def answers() -> Any:
        return rows() if callable(rows) else rows

    def body(answers: Any) -> None:
        received.append(pa.Table.from_batches(answers) if isinstance(answers, pa.RecordBatchReader) else answers)

    body.__annotations__["answers"] = annotation
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = dg.materialize(
            [answers, dg.asset(name="seen", ins={"answers": dg.AssetIn()})(body)],
            resources={
                "llm_batch": LLMBatchResource(
                    openai={"api_key": "sk-test", "base_url": simulator.base_url}, poll_interval=0.1
                )
            },
            instance=instance,
        )
    assert result.success
    return received[0]


def differences(found: pa.Table, expected: pa.Table) -> "list[str]":
    """The columns whose type or values are not the expected ones."""
    assert found.column_names == expected.column_names
    return [
        f"{name}: {found.schema.field(name).type}, not {expected.schema.field(name).type}"
        for name in expected.column_names
        if not found.schema.field(name).type.equals(expected.schema.field(name).type)
        or not found.column(name).equals(expected.column(name))
    ]


@pytest.mark.parametrize("annotation", [pa.Table, pa.RecordBatchReader, ds.Dataset, pd.DataFrame])
def test_every_type_comes_out_as_it_went_in(simulator: SimulatorServer, tmp_path: Path, annotation: Any) -> None:
    """Ledger, results file and loading keep type and value of every column, whatever Parquet makes of it."""
    table = every_column()
    found = through(simulator, tmp_path, table, annotation)
    if annotation is pd.DataFrame:
        found = pa.Table.from_pandas(found, preserve_index=False)
    if annotation is ds.Dataset:  # a scan cannot make dictionaries of numbers
        found = found.to_table()
        for name in ("dictionary of int64", "dictionary of decimal", "dictionary of timestamp"):
            at, column = table.schema.get_field_index(name), table.column(name)
            table = table.set_column(at, name, column.cast(cast("Any", column.type).value_type))
    assert differences(found.select(table.column_names), table) == []


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame])
def test_every_type_that_polars_has_comes_out_as_it_went_in(
    simulator: SimulatorServer, tmp_path: Path, annotation: Any
) -> None:
    """A frame of the results equals a frame of the input."""
    table = every_column().drop(["decimal256"])
    found = through(simulator, tmp_path, table, annotation).lazy().collect().select(table.column_names)
    expected = pl.DataFrame(pl.from_arrow(table))
    assert found.schema == expected.schema
    assert found.equals(expected)


def written(table: pa.Table, folder: Path) -> Path:
    """The table as a Parquet file of another writer's making."""
    (folder / "input").mkdir()
    pq.write_table(table, folder / "input" / "rows.parquet")
    return folder / "input" / "rows.parquet"


def by_pandas_extensions(table: pa.Table) -> pd.DataFrame:
    """pandas' own nullable integers beside Arrow's types."""
    return table.to_pandas(types_mapper=lambda kind: pd.Int64Dtype() if kind == pa.int64() else pd.ArrowDtype(kind))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda table, _: table.to_reader(max_chunksize=1), id="reader"),
        pytest.param(lambda table, _: ds.dataset(table), id="dataset"),
        pytest.param(lambda table, _: table.to_pandas(types_mapper=pd.ArrowDtype), id="pandas arrow"),
        pytest.param(lambda table, _: by_pandas_extensions(table), id="pandas Int64"),
        pytest.param(lambda table, _: iter(table.to_batches(max_chunksize=2)), id="iterator of batches"),
        pytest.param(written, id="path"),
        pytest.param(lambda table, folder: str(written(table, folder).parent), id="folder"),
    ],
)
def test_whatever_holds_the_table_its_types_and_values_stay(
    simulator: SimulatorServer, tmp_path: Path, make: "Callable[[pa.Table, Path], Any]"
) -> None:
    """Holders that keep Arrow's types hand them through."""
    table = usual_columns()
    found = through(simulator, tmp_path, lambda: make(table, tmp_path))
    assert differences(found.select(table.column_names), table) == []


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(pl.from_arrow, id="polars"),
        pytest.param(lambda table: pl.DataFrame(pl.from_arrow(table)).lazy(), id="polars lazy"),
    ],
)
def test_a_polars_frame_comes_back_equal(simulator: SimulatorServer, tmp_path: Path, make: Any) -> None:
    """polars keeps text as views, and categories as dictionaries of them."""
    table = usual_columns().append_column("category", pa.array(["x", None, "y"]).dictionary_encode())
    found = through(simulator, tmp_path, lambda: make(table), pl.DataFrame).select(table.column_names)
    expected = pl.DataFrame(pl.from_arrow(table))
    assert found.schema == expected.schema
    assert found.equals(expected)


def test_a_duckdb_relation_keeps_what_duckdb_holds(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The types are DuckDB's own, which has no large text; the values are the input's."""
    table = usual_columns()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = through(
            simulator, tmp_path, lambda: connection.from_arrow(table).filter("n > 0").order("n"), id_column="n"
        )
    expected = table.set_column(7, "words", table.column("words").cast(pa.string()))
    assert differences(found.select(table.column_names), expected) == []


def test_pandas_categories_of_numbers_stay_categories(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Parquet has no such type."""
    frame = pd.DataFrame({"n": [1, 2, 3], "c": pd.Categorical([2**53 + 1, None, 7])})
    found = through(simulator, tmp_path, frame)
    assert found.schema.field("c").type.equals(pa.dictionary(pa.int8(), pa.int64()))
    assert found.column("c").to_pylist() == [2**53 + 1, None, 7]


def test_a_null_inside_a_dictionary_is_a_null(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Arrow lets it stand there, Parquet does not."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    found = through(simulator, tmp_path, pa.table({"n": [1, 2, 3], "c": column}))
    assert found.schema.field("c").type.equals(column.type)
    assert found.column("c").to_pylist() == ["a", None, None]


@pytest.mark.parametrize(
    ("column", "named"),
    [
        pytest.param(
            pa.array([1, 2**60, 1], pa.timestamp("s")), r"column 'c', timestamp\[s\], in row 1", id="a far instant"
        ),
        pytest.param(pa.array([100, 200, 300], pa.decimal128(5, -2)), "'c' is decimal128", id="a negative scale"),
        pytest.param(pa.array([[1], None, []], pa.list_view(pa.int64())), "'c' is list_view", id="a list view"),
        pytest.param(
            pa.StructArray.from_arrays([pa.array([1, None, 2]).dictionary_encode()], ["d"]),
            "'c' is struct<d: dictionary",
            id="a nested dictionary of numbers",
        ),
    ],
)
def test_what_would_not_come_back_is_refused_before_a_request_is_sent(
    simulator: SimulatorServer, tmp_path: Path, column: pa.Array, named: str
) -> None:
    """The error names the asset, the column and where it can the row, and quotes no value."""
    before = simulator.book.batches
    with pytest.raises(dg.Failure, match=f"answers.*{named}") as caught:
        through(simulator, tmp_path, pa.table({"n": [1, 2, 3], "c": column}))
    assert str(2**60) not in str(caught.value)
    assert simulator.book.batches == before


def test_an_instant_beyond_pythons_years_fails_its_own_row(simulator: SimulatorServer, tmp_path: Path) -> None:
    """The other rows' prompts are what they are without it, and the value itself is carried over."""
    column = pa.array([1, 2**44, None], pa.timestamp("s", "UTC"))
    found = through(
        simulator, tmp_path, pa.table({"n": [1, 2, 3], "c": column}), prompt="{{ n }} at {{ c }}", fail_above=1.0
    )
    assert found.column("llm_status").to_pylist() == ["succeeded", "review", "succeeded"]
    assert found.column("c").combine_chunks().equals(column)


def test_a_column_kept_twice_is_refused(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A results table cannot have two columns of one name."""
    with pytest.raises(dg.Failure, match=r"answers: keep_columns names \['n'\] more than once"):
        through(simulator, tmp_path, pa.table({"n": [1]}), keep_columns=["n", "n"])


def test_what_polars_has_no_type_for_is_named(simulator: SimulatorServer, tmp_path: Path) -> None:
    """polars itself panics, past `except Exception`."""
    wide = pa.array([Decimal(10) ** 60], pa.decimal256(70, 2))
    with pytest.raises(InputError, match=r"polars has no type for the columns \['wide'\]"):
        through(simulator, tmp_path, pa.table({"n": [1], "wide": wide}), pl.DataFrame)
