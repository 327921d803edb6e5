"""Whatever a Dagster user calls a table, as one stream of Arrow record batches; types and values stay as they are.

Sources that stream are streamed: a Parquet file, a folder of them or a query result is never held in memory whole.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from upath import UPath

from dagster_llmbatch.core.parquet_files import BATCH_ROWS, arrow_filesystem, open_parquet, with_types
from dagster_llmbatch.errors import InputError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

RESERVED_PREFIX = "llm_"
"""Columns of the results table that are not the user's start like this."""
WITHOUT_VIEW = {"string_view": pa.string(), "binary_view": pa.binary()}
"""What the values of a dictionary are stored as."""
LONGEST_QUOTED_PATH = 500
"""Characters. A longer string is taken for text, and text is never quoted."""
ACCEPTED = (
    "a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas DataFrame, a polars DataFrame or LazyFrame, "
    "a DuckDB relation, anything else with __arrow_c_stream__, an iterator of RecordBatches or Tables, or the path of "
    "a Parquet file or of a folder of Parquet files"
)


def open_rows(value: Any, *, asset: str, allow_reserved: bool = False) -> pa.RecordBatchReader:
    """Open `value` as a stream of record batches.

    A pandas index becomes a column when it has a name and is dropped when it has none. A folder is read in the order
    of its file names, hive directories (`dt=2024-01-01/`) become columns, and all its files must have one schema.

    Args:
        value: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas DataFrame, a polars DataFrame or
            LazyFrame, a DuckDB relation, anything else with `__arrow_c_stream__`, an iterable of RecordBatches or
            Tables, or a path (str, Path, UPath) to a Parquet file or a folder of them.
        asset: how error messages name the table.
        allow_reserved: let columns through that start with `llm_`, as a results table has them.

    Raises InputError for anything else, for repeated or reserved column names, for pandas columns that mix types, for
    missing or unreadable files; while streaming, for batches that change their schema.
    """
    reader = _with_plain_dictionaries(_open(value, asset))
    _refuse_repeated(reader.schema.names, asset)
    if not allow_reserved:
        _refuse_reserved(reader.schema.names, asset)
    return reader


def _open(value: Any, asset: str) -> pa.RecordBatchReader:
    if isinstance(value, pa.RecordBatchReader):
        return value
    if isinstance(value, pa.Table):
        return value.to_reader(max_chunksize=BATCH_ROWS)
    if isinstance(value, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(value.schema, [value])
    if _is_a(value, "pyarrow.dataset", "Dataset"):
        return _scan(value)
    if isinstance(value, str | os.PathLike | UPath):
        return _open_path(value, asset)
    if _is_a(value, "pandas", "DataFrame"):
        return _from_pandas(value, asset).to_reader(max_chunksize=BATCH_ROWS)
    if _is_a(value, "polars", "LazyFrame"):
        value = value.collect()
    if _is_a(value, "duckdb", "DuckDBPyRelation"):
        # DuckDB 2 renamed it; both stream, while its __arrow_c_stream__ may run the whole query first.
        stream = getattr(value, "to_arrow_reader", None) or value.fetch_record_batch
        return stream(BATCH_ROWS)
    if _is_a(value, "polars", "DataFrame"):
        _refuse_objects(value, asset)
    if hasattr(value, "__arrow_c_stream__"):
        return _from_c_stream(value, asset)
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes | bytearray | memoryview):
        return _from_iterable(value, asset)
    raise InputError(_not_a_table(value, asset))


def _not_a_table(value: Any, asset: str) -> str:
    kind = type(value)
    return f"{asset}: got a {kind.__module__}.{kind.__qualname__} where rows are needed. Give {ACCEPTED}."


def _is_a(value: Any, module: str, name: str) -> bool:
    # A value of a library's class exists only where the library is imported, so nothing is imported to ask.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _refuse_repeated(names: "list[str]", asset: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"{asset}: more than one column is named {repeated}. Rename all but one.")


def _refuse_reserved(names: "list[str]", asset: str) -> None:
    reserved = [name for name in names if name.startswith(RESERVED_PREFIX)]
    if reserved:
        raise InputError(
            f"{asset}: the columns {reserved} start with {RESERVED_PREFIX!r}, which is reserved for the columns the "
            "results get. Rename or leave them out before they come in."
        )


def _from_c_stream(value: Any, asset: str) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(value)
    except Exception:  # whatever that library raises; it may quote values, so only the type is named
        problem = _not_a_table(value, asset)
    raise InputError(problem)


def _refuse_objects(frame: Any, asset: str) -> None:
    # polars hands such a column over as bytes that hold memory addresses.
    objects = [name for name, kind in frame.schema.items() if str(kind).startswith("Object")]
    if objects:
        raise InputError(f"{asset}: the polars columns {objects} hold Python objects. Cast them to a polars type.")


def _from_pandas(frame: Any, asset: str) -> pa.Table:
    named = [name for name in frame.index.names if name is not None]
    _refuse_repeated([str(name) for name in [*named, *frame.columns]], asset)
    if named:
        frame = frame.reset_index(level=named)
    names = [str(name) for name in frame.columns]
    columns = [_pandas_column(frame.iloc[:, at], name, asset) for at, name in enumerate(names)]
    if not columns:
        return pa.table({})
    return pa.Table.from_arrays(columns, names)


def _pandas_column(series: Any, name: str, asset: str) -> Any:
    try:
        column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = None  # Arrow's message quotes the value, so it goes no further
    as_objects = str(series.dtype) == "object"
    # Arrow takes text and bytes together for bytes; then the text would come back as something else.
    bytes_swallowed_text = as_objects and column is not None and pa.types.is_binary(column.type)
    if column is not None and not (bytes_swallowed_text and any(isinstance(value, str) for value in series)):
        return column
    kinds = {type(value).__name__ for value in series if value is not None} if as_objects else {str(series.dtype)}
    raise InputError(
        f"{asset}: the pandas column {name!r} has no one Arrow type; it holds {', '.join(sorted(kinds))}. "
        "Make all its values one type, such as text."
    )


def _from_iterable(value: "Iterable[Any]", asset: str) -> pa.RecordBatchReader:
    iterator = iter(value)
    first = next(iterator, None)
    if first is None:
        raise InputError(
            f"{asset}: the {type(value).__name__} gave no record batch, so there is no schema. For no rows, give an "
            "empty Table."
        )
    if not isinstance(first, pa.RecordBatch | pa.Table):
        holder = type(value).__name__
        raise InputError(f"{_not_a_table(first, asset)} It came out of a {holder}; RecordBatches or Tables must.")
    schema = first.schema

    def batches() -> "Iterator[pa.RecordBatch]":
        yield from _batches_of(first)
        for number, block in enumerate(iterator, start=1):
            if not isinstance(block, pa.RecordBatch | pa.Table):
                raise InputError(_not_a_table(block, asset))
            if block.schema != schema:
                raise InputError(
                    f"{asset}: record batch {number} (counted from 0) has another schema than the first: "
                    f"{_difference(schema, block.schema)}. Cast all batches to one schema."
                )
            yield from _batches_of(block)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _batches_of(block: "pa.RecordBatch | pa.Table") -> "list[pa.RecordBatch]":
    return block.to_batches(max_chunksize=BATCH_ROWS) if isinstance(block, pa.Table) else [block]


def _difference(expected: pa.Schema, found: pa.Schema) -> str:
    if sorted(expected.names) != sorted(found.names):
        missing = [name for name in expected.names if name not in found.names]
        return f"missing {missing}, new {[name for name in found.names if name not in expected.names]}"
    changed = [f for f in expected if not found.field(f.name).equals(f)]
    if not changed:
        return "the columns are in another order"
    return ", ".join(f"{f.name!r} was {f.type}, is {found.field(f.name).type}" for f in changed)


def _open_path(value: Any, asset: str) -> pa.RecordBatchReader:
    if isinstance(value, str) and (len(value) > LONGEST_QUOTED_PATH or "\n" in value or not value.strip()):
        raise InputError(f"{asset}: got a text of {len(value)} characters that is no path. Give {ACCEPTED}.")
    path = value if isinstance(value, UPath) else UPath(value)
    filesystem, inside = arrow_filesystem(path)
    kind = filesystem.get_file_info(inside).type
    if kind == pafs.FileType.Directory:
        return _open_folder(path, filesystem, inside, asset)
    return open_parquet(path, asset=asset)


def _open_folder(path: UPath, filesystem: pafs.FileSystem, inside: str, asset: str) -> pa.RecordBatchReader:
    inside = inside.rstrip("/")
    found = filesystem.get_file_info(pafs.FileSelector(inside, recursive=True))
    files = sorted(
        info.path
        for info in found
        if info.type == pafs.FileType.File
        and info.path.lower().endswith((".parquet", ".pq"))
        # Spark's _temporary/ and half-written .x.tmp files are not data.
        and not any(name.startswith((".", "_")) for name in info.path[len(inside) :].strip("/").split("/"))
    )
    if not files:
        raise InputError(f"{asset}: the folder {path} has no .parquet file.")
    import pyarrow.dataset as ds  # loads pandas: a second of start-up that most runs do not need

    options = ds.FileSystemFactoryOptions(
        partition_base_dir=inside, partitioning=cast("Any", ds.HivePartitioning.discover())
    )
    try:
        dataset = ds.FileSystemDatasetFactory(filesystem, files, ds.ParquetFileFormat(), options).finish()
        schemas = [(fragment.path, fragment.physical_schema) for fragment in dataset.get_fragments()]
    except (pa.ArrowException, OSError):
        dataset, schemas = None, []
    if dataset is None:
        raise InputError(f"{asset}: a file in the folder {path} cannot be read as Parquet.")
    # A dataset takes the first file's schema and drops what others have more: silently lost columns.
    expected = schemas[0][1]
    for name, schema in schemas:
        if not schema.equals(expected):
            raise InputError(
                f"{asset}: {name} has another schema than {schemas[0][0]}: {_difference(expected, schema)}. Give the "
                "folder files of one schema."
            )
    return _scan(dataset)


def _scan(dataset: "ds.Dataset") -> pa.RecordBatchReader:
    # Little readahead: by default a scanner reads 16 batches of 131,072 rows ahead in each of four files.
    return dataset.scanner(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1).to_reader()


def _with_plain_dictionaries(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    # polars categories come as dictionaries of string_view. Parquet takes those and then cannot give them back.
    wanted = {}
    for field in reader.schema:
        if pa.types.is_dictionary(field.type) and str(field.type.value_type) in WITHOUT_VIEW:
            value = WITHOUT_VIEW[str(field.type.value_type)]
            wanted[field.name] = pa.dictionary(field.type.index_type, value, field.type.ordered)
    if wanted:
        reader = with_types(reader.schema, wanted, reader)
    if not any(pa.types.is_dictionary(field.type) for field in reader.schema):
        return reader
    batches = (_without_null_entries(batch) for batch in reader)
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _without_null_entries(batch: pa.RecordBatch) -> pa.RecordBatch:
    # A null may stand in the dictionary instead of in the indices, and Parquet takes the second only.
    columns = [
        _encoded_again(column) if isinstance(column, pa.DictionaryArray) and column.dictionary.null_count else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _encoded_again(column: Any) -> pa.DictionaryArray:
    encoded = column.dictionary.take(column.indices).dictionary_encode()
    indices = encoded.indices.cast(column.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=column.type.ordered)
