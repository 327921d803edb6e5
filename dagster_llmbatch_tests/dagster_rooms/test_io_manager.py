"""Tables go through Dagster and come out as the downstream parameter's type, with types and values unchanged."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from upath import UPath

from dagster_llmbatch.errors import ConfigurationError, InputError
from dagster_llmbatch.io_manager import ParquetIOManager

LETTERS = dg.StaticPartitionsDefinition(["b", "a", "c"])


def hard_table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array([9007199254740993, None, 1582218195625938945], pa.int64()),
            "price": pa.array([Decimal("0.10"), None, Decimal("12345678901234567890.01")], pa.decimal128(30, 2)),
            "at": pa.array([0, None, 1714564800123], pa.timestamp("ms", "Europe/Paris")),
            "tags": pa.array([["a"], None, []], pa.list_(pa.large_string())),
            "llm_status": ["succeeded", "failed", "review"],
        }
    )


def handed_on(tmp_path: Path, value: Any, annotation: Any) -> Any:
    """What a downstream asset with this annotation receives for an upstream asset that returns `value`."""
    received: list[Any] = []

    @dg.asset
    def rows() -> Any:
        return value() if callable(value) else value

    def body(rows: Any) -> None:
        received.append(list(rows) if isinstance(rows, pa.RecordBatchReader) else rows)

    body.__annotations__["rows"] = annotation
    result = dg.materialize(
        [rows, dg.asset(name="seen")(body)],
        resources={"io_manager": ParquetIOManager(base_path=str(tmp_path))},
        instance=dg.DagsterInstance.ephemeral(),
    )
    assert result.success
    return received[0]


def as_table(value: Any) -> pa.Table:
    if isinstance(value, list):
        return pa.Table.from_batches(value)
    if isinstance(value, str | Path) or hasattr(value, "fs"):
        return pq.read_table(str(value))
    if isinstance(value, pd.DataFrame):
        return pa.Table.from_pandas(value, preserve_index=False).replace_schema_metadata(None)
    if isinstance(value, ds.Dataset):
        return value.to_table()
    return value


@pytest.mark.parametrize("annotation", [Any, pa.Table, pa.RecordBatchReader, ds.Dataset, pd.DataFrame, Path, UPath])
def test_every_annotation_gets_its_type_and_the_same_rows(tmp_path: Path, annotation: Any) -> None:
    """Types, nulls and values are those of the table that was stored."""
    received = handed_on(tmp_path, hard_table(), annotation)
    if annotation not in (Any, pa.RecordBatchReader, UPath):
        assert isinstance(received, annotation)
    found = as_table(received)
    assert found.to_pylist() == hard_table().to_pylist()
    assert [f.type for f in found.schema] == [f.type for f in hard_table().schema]


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame])
def test_polars_frames_hold_the_same_values(tmp_path: Path, annotation: Any) -> None:
    """Eager and lazy; int64 with nulls stays exact."""
    received = handed_on(tmp_path, hard_table(), annotation)
    assert isinstance(received, annotation)
    assert received.lazy().collect().equals(pl.from_arrow(hard_table()))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: hard_table().to_reader(), id="reader"),
        pytest.param(lambda: hard_table().to_pandas(types_mapper=pd.ArrowDtype), id="pandas"),
        pytest.param(lambda: pl.from_arrow(hard_table()), id="polars"),
        pytest.param(lambda: pl.DataFrame(pl.from_arrow(hard_table())).lazy(), id="polars lazy"),
        pytest.param(lambda: duckdb.from_arrow(hard_table()), id="duckdb"),
        pytest.param(lambda: iter(hard_table().to_batches(max_chunksize=1)), id="batches"),
    ],
)
def test_every_kind_of_output_is_stored(tmp_path: Path, make: Any) -> None:
    """The values are the same, whichever library returned them."""
    found = handed_on(tmp_path, make, pa.Table)
    exact = pa.timestamp("ms", "UTC")  # DuckDB gives every zone back as the session's, and microseconds
    assert found.column("at").cast(exact).to_pylist() == hard_table().column("at").cast(exact).to_pylist()
    assert found.drop(["at"]).to_pylist() == hard_table().drop(["at"]).to_pylist()


def test_no_rows_are_stored_with_their_schema(tmp_path: Path) -> None:
    """A partition without input has a typed, empty file."""
    assert handed_on(tmp_path, hard_table().slice(0, 0), pa.Table).schema.equals(hard_table().schema)


def test_an_annotation_that_cannot_be_loaded_lists_those_that_can(tmp_path: Path) -> None:
    """Rather than handing on something else."""
    with pytest.raises(ConfigurationError, match=r"(?s)rows: cannot be loaded as .*set.*pyarrow\.Table"):
        handed_on(tmp_path, hard_table(), set)


@pytest.mark.parametrize(("value", "named"), [(None, "the output is None"), ([{"n": 1}], "builtins.dict")])
def test_an_output_that_is_no_table_is_refused(tmp_path: Path, value: Any, named: str) -> None:
    """The error names the asset and what came."""
    with pytest.raises(InputError, match=f"rows: .*{named}"):
        handed_on(tmp_path, value, Any)


@dg.asset(partitions_def=LETTERS)
def letters(context: dg.AssetExecutionContext) -> pa.Table:
    """One row with the partition key; partition c has a column more."""
    extra = {"more": [1]} if context.partition_key == "c" else {}
    return pa.table({"key": [context.partition_key], **extra})


def all_letters(
    tmp_path: Path, annotation: Any, *, store: "tuple[str, ...]" = ("a", "c", "b"), allow_missing: bool = False
) -> Any:
    """What an unpartitioned asset downstream of all partitions of `letters` receives."""
    received: list[Any] = []
    metadata = {"allow_missing_partitions": True} if allow_missing else None

    def body(letters: Any) -> None:
        received.append(letters.read_all() if isinstance(letters, pa.RecordBatchReader) else letters)

    body.__annotations__["letters"] = annotation
    downstream = dg.asset(name="joined", ins={"letters": dg.AssetIn(metadata=metadata)})(body)
    with dg.DagsterInstance.ephemeral() as instance:
        common: Any = {
            "resources": {"io_manager": ParquetIOManager(base_path=str(tmp_path))},
            "instance": instance,
        }
        for key in store:
            dg.materialize([letters], partition_key=key, **common)
        dg.materialize([letters, downstream], selection=["joined"], **common)
    return received[0]


ROWS = [{"key": "b", "more": None}, {"key": "a", "more": None}, {"key": "c", "more": 1}]


@pytest.mark.parametrize("annotation", [pa.Table, pa.RecordBatchReader, ds.Dataset, pd.DataFrame])
def test_partitions_are_put_together_in_partition_order(tmp_path: Path, annotation: Any) -> None:
    """The order is the definition's, not that of writing; a column that one has more is null elsewhere."""
    assert as_table(all_letters(tmp_path, annotation)).to_pylist() == ROWS


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame])
def test_polars_puts_partitions_together_likewise(tmp_path: Path, annotation: Any) -> None:
    """Also when the scan is lazy."""
    assert all_letters(tmp_path, annotation).lazy().collect().to_dicts() == ROWS


@pytest.mark.parametrize("annotation", [dict[str, pa.Table], Mapping[str, pa.Table], dict[str, Path], dict[str, Any]])
def test_a_dict_gets_each_partition_alone(tmp_path: Path, annotation: Any) -> None:
    """Keyed by partition, in partition order."""
    received = all_letters(tmp_path, annotation)
    assert list(received) == ["b", "a", "c"]
    assert {key: as_table(value).column("key").to_pylist() for key, value in received.items()} == {
        "b": ["b"],
        "a": ["a"],
        "c": ["c"],
    }


def test_a_missing_partition_is_named(tmp_path: Path) -> None:
    """With the asset, the partition, the path and the way out."""
    with pytest.raises(InputError, match=r"letters, partition b: there is no file .*b\.parquet.*allow_missing"):
        all_letters(tmp_path, pa.Table, store=("a", "c"))


def test_missing_partitions_are_left_out_when_allowed(tmp_path: Path) -> None:
    """What is there is loaded; with nothing there, None."""
    assert all_letters(tmp_path, pa.Table, store=("a",), allow_missing=True).to_pydict() == {"key": ["a"]}
    assert all_letters(tmp_path / "2", dict[str, pa.Table], store=(), allow_missing=True) == {}
    assert all_letters(tmp_path / "3", pa.Table | None, store=(), allow_missing=True) is None


def test_one_path_for_several_partitions_is_refused(tmp_path: Path) -> None:
    """Not the path of any one of them."""
    with pytest.raises(ConfigurationError, match="3 partitions"):
        all_letters(tmp_path, Path)


def test_a_range_of_partitions_in_one_run_is_refused(tmp_path: Path) -> None:
    """One table cannot be split; the error names the backfill policy that helps."""

    @dg.asset(partitions_def=LETTERS, backfill_policy=dg.BackfillPolicy.single_run())
    def ranged() -> pa.Table:
        return pa.table({"n": [1]})

    with pytest.raises(ConfigurationError, match=r"ranged: .*2 partitions.*multi_run\(1\)"):
        dg.materialize(
            [ranged],
            resources={"io_manager": ParquetIOManager(base_path=str(tmp_path))},
            instance=dg.DagsterInstance.ephemeral(),
            tags={"dagster/asset_partition_range_start": "b", "dagster/asset_partition_range_end": "a"},
        )


def test_partitions_that_changed_a_type_are_refused(tmp_path: Path) -> None:
    """Instead of turning one into the other; the column and the file are named."""
    manager = ParquetIOManager(base_path=str(tmp_path))
    for key, value in (("a", 1), ("b", "x")):
        path = manager.partition_path("letters", key)
        Path(path.parent.path).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"key": [value]}), path.path)
    with pytest.raises(InputError, match=r"letters: in .*a\.parquet the columns 'key'"):
        all_letters(tmp_path, pa.Table, store=("c",))


def test_multi_partitions_and_odd_keys_keep_their_own_files(tmp_path: Path) -> None:
    """Keys that file systems would fold together, or climb with, are loaded back each with its own rows."""
    odd = ["a/b", "a%2fb", "..", ".", "A", "a", "é", "e\u0301", "x" * 300, "x" * 301, "a:b", "end.", "end. ", "data"]
    both = dg.MultiPartitionsDefinition({"k": dg.StaticPartitionsDefinition(odd), "z": LETTERS})
    seen: dict[str, Any] = {}

    @dg.asset(partitions_def=both, key=["team", "multi"])
    def multi(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"key": [context.partition_key]})

    @dg.asset(partitions_def=both, ins={"multi": dg.AssetIn(key=["team", "multi"])})
    def after(context: dg.AssetExecutionContext, multi: pa.Table) -> None:
        seen[str(context.partition_key)] = multi.column("key").to_pylist()

    keys = [dg.MultiPartitionKey({"k": key, "z": "a"}) for key in odd]
    with dg.DagsterInstance.ephemeral() as instance:
        common: Any = {"resources": {"io_manager": ParquetIOManager(base_path=str(tmp_path))}, "instance": instance}
        for selection in ([multi.key], [after.key]):
            for key in keys:
                dg.materialize([multi, after], partition_key=key, selection=selection, **common)
    assert seen == {str(key): [str(key)] for key in keys}
    assert len(list((tmp_path / "team" / "multi").glob("*.parquet"))) == len(odd)


def test_assets_whose_keys_contain_one_another_do_not_meet() -> None:
    """A folder never has the name of a file, and the unpartitioned file is nobody's partition."""
    manager = ParquetIOManager(base_path="base")
    paths = [
        manager.partition_path(dg.AssetKey(["a"])),
        manager.partition_path(dg.AssetKey(["a"]), "data"),
        manager.partition_path(dg.AssetKey(["a"]), "b"),
        manager.partition_path(dg.AssetKey(["a", "b"])),
        manager.partition_path(dg.AssetKey(["a", "b.parquet"])),
        manager.partition_path(dg.AssetKey(["a", "b.parquet"]), "b"),
        manager.partition_path(dg.AssetKey(["a", "data.parquet"])),
        manager.partition_path(dg.AssetKey(["a/b"])),
        manager.partition_path(dg.AssetKey(["A"])),
    ]
    names = [str(path).casefold() for path in paths]
    assert len(set(names)) == len(names)
    assert not any(other.startswith(f"{name}/") for name in names for other in names)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """An error in the middle of the stream neither touches what is there nor leaves a half file."""

    def broken() -> "Iterator[pa.RecordBatch]":
        yield pa.record_batch({"n": [2]})
        raise ZeroDivisionError("half way")

    @dg.asset
    def rows(config: dg.PermissiveConfig) -> "dg.Output[Any]":
        return dg.Output(broken() if config.model_dump().get("fail") else pa.table({"n": [1]}))

    common: Any = {
        "resources": {"io_manager": ParquetIOManager(base_path=str(tmp_path))},
        "instance": dg.DagsterInstance.ephemeral(),
    }
    dg.materialize([rows], **common)
    with pytest.raises(ZeroDivisionError):
        dg.materialize([rows], run_config={"ops": {"rows": {"config": {"fail": True}}}}, **common)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["data.parquet"]
    assert pq.read_table(tmp_path / "rows" / "data.parquet").to_pydict() == {"n": [1]}


def test_a_file_elsewhere_is_put_whole_and_read_back() -> None:
    """On an object store, path and uri are the store's, and the rows come back."""
    received: dict[str, pa.Table] = {}

    @dg.asset(partitions_def=LETTERS)
    def rows() -> pa.Table:
        return hard_table()

    @dg.asset(partitions_def=LETTERS)
    def eager(rows: pa.Table) -> None:
        received["eager"] = rows

    @dg.asset(partitions_def=LETTERS)
    def lazy(rows: pl.LazyFrame) -> None:
        received["lazy"] = rows.collect().to_arrow()

    result = dg.materialize(
        [rows, eager, lazy],
        partition_key="a",
        resources={"io_manager": ParquetIOManager(base_path="memory://io-test/results")},
        instance=dg.DagsterInstance.ephemeral(),
    )
    assert received["eager"].equals(hard_table())
    assert received["lazy"].column("id").to_pylist() == hard_table().column("id").to_pylist()
    metadata = result.asset_materializations_for_node("rows")[0].metadata
    assert metadata["dagster/uri"].value == "memory://io-test/results/rows/a.parquet"


def test_the_materialization_says_where_and_how_much(tmp_path: Path) -> None:
    """Path, uri, bytes and rows; a row count that the asset gave itself stays."""

    @dg.asset
    def counted() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @dg.asset
    def counts() -> "dg.Output[pa.Table]":
        return dg.Output(pa.table({"n": [1, 2]}), metadata={"dagster/row_count": 7})

    result = dg.materialize(
        [counted, counts],
        resources={"io_manager": ParquetIOManager(base_path=str(tmp_path))},
        instance=dg.DagsterInstance.ephemeral(),
    )
    metadata = result.asset_materializations_for_node("counted")[0].metadata
    file = tmp_path / "counted" / "data.parquet"
    assert metadata["path"] == dg.MetadataValue.path(str(file))
    assert metadata["dagster/uri"].value == file.as_uri()
    assert metadata["dagster/size_bytes"].value == file.stat().st_size
    assert metadata["dagster/row_count"].value == 2
    assert result.asset_materializations_for_node("counts")[0].metadata["dagster/row_count"].value == 7


def test_without_a_base_path_results_are_kept_with_the_instance(tmp_path: Path) -> None:
    """In its storage folder; outside of a run there is no instance to ask, and that is said."""

    @dg.asset
    def rows() -> pa.Table:
        return hard_table()

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        dg.materialize([rows], resources={"io_manager": ParquetIOManager()}, instance=instance)
        folder = Path(instance.storage_directory()) / "llmbatch_results"
    assert (folder / "rows" / "data.parquet").is_file()
    with pytest.raises(ConfigurationError, match="Set base_path"):
        ParquetIOManager().partition_path("rows")


def test_values_between_ops_are_stored_apart_from_assets(tmp_path: Path) -> None:
    """A graph's inner outputs are tables too."""

    @dg.op
    def first() -> pa.Table:
        return hard_table()

    @dg.op
    def second(rows: pa.Table) -> pa.Table:
        return rows.slice(0, 1)

    @dg.graph_asset
    def graphed() -> Any:
        return second(first())

    dg.materialize(
        [graphed],
        resources={"io_manager": ParquetIOManager(base_path=str(tmp_path))},
        instance=dg.DagsterInstance.ephemeral(),
    )
    assert pq.read_table(tmp_path / "graphed" / "data.parquet").num_rows == 1
    assert len(list((tmp_path / "~ops").rglob("data.parquet"))) == 1


def test_credentials_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside storage_options too, at any depth; a variable that is not set is named."""
    monkeypatch.setenv("BUCKET_KEY", "k")
    seen: list[dict[str, Any]] = []

    @dg.asset
    def rows() -> pa.Table:
        return hard_table()

    class Spy(ParquetIOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            seen.append(self.options())

    options: dict[str, Any] = {"anon": False, "client_kwargs": {"key": dg.EnvVar("BUCKET_KEY")}}
    manager = Spy(base_path="memory://env-test", storage_options=options)
    dg.materialize([rows], resources={"io_manager": manager}, instance=dg.DagsterInstance.ephemeral())
    assert [*seen, manager.options()] == [{"anon": False, "client_kwargs": {"key": "k"}}] * 2
    monkeypatch.delenv("BUCKET_KEY")
    with pytest.raises(ConfigurationError, match="BUCKET_KEY"):
        manager.options()


def test_a_field_that_does_not_exist_is_refused() -> None:
    """A misspelt option is not ignored."""
    with pytest.raises(ValueError, match="base_pth"):
        ParquetIOManager(base_pth="x")  # pyright: ignore[reportCallIssue]


def test_a_value_can_be_loaded_outside_of_a_run(tmp_path: Path) -> None:
    """Definitions.load_asset_value hands out what the type asks for."""
    resources = {"io_manager": ParquetIOManager(base_path=str(tmp_path))}
    definitions = dg.Definitions([letters], resources=resources)
    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([letters], partition_key="a", resources=resources, instance=instance)
        for python_type in (None, pa.Table, pl.DataFrame):
            value = definitions.load_asset_value(
                "letters", partition_key="a", python_type=python_type, instance=instance
            )
            assert isinstance(value, python_type or pa.Table)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        pytest.param(pa.array([1, 2**60], pa.timestamp("s")), r"'n', timestamp\[s\], in row 1", id="a far instant"),
        pytest.param(
            pa.StructArray.from_arrays([pa.array([1, 2]).dictionary_encode()], ["d"]),
            "the column 'n' of type struct",
            id="nested dictionary",
        ),
        pytest.param(pa.array([100, 200], pa.decimal128(5, -2)), "the column 'n' of type decimal128", id="scale"),
    ],
)
def test_what_could_not_be_loaded_again_is_not_stored(tmp_path: Path, column: pa.Array, named: str) -> None:
    """The error names the asset, the column and where it can the row, and quotes no value."""
    with pytest.raises(InputError, match=f"rows: Parquet cannot hold .*{named}") as caught:
        handed_on(tmp_path, pa.table({"n": column}), pa.Table)
    assert str(2**60) not in str(caught.value)
