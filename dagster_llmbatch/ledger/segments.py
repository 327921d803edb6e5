"""Segments: big, written once, named by their content. Parquet on any filesystem that universal-pathlib knows."""

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from dagster_llmbatch.errors import InputError, LedgerError

SCHEMA_KEY = b"llmbatch:schema"
"""File metadata: the Arrow schema as it was handed in, for the types that Parquet changes."""
READ_BYTES = 1 << 20
READ_ROWS = 8192
REFUSED = (
    pa.types.is_union,
    pa.types.is_interval,
    pa.types.is_run_end_encoded,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    lambda kind: pa.types.is_decimal(kind) and cast("Any", kind).scale < 0,
)
"""Types that Parquet cannot hold, or that do not come back from it."""
KEPT_IN_DICTIONARY = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
"""Value types whose dictionaries Parquet gives back as they were."""


class SegmentStore:
    """Writes and reads segments below one root folder."""

    def __init__(self, root: "str | UPath | Path") -> None:
        self.root = UPath(root)
        self.is_local = self.root.protocol in ("", "file", "local")

    def writer(
        self, kind: str, schema: pa.Schema, *, row_group_rows: int = 8192, where: str = "the table"
    ) -> "SegmentWriter":
        """A segment of one kind (a folder) and Arrow schema; `where` is how errors name what is written.

        Raises InputError for types Parquet cannot hold and, while it is written, for values.
        """
        return SegmentWriter(self, kind, schema, row_group_rows, where)

    def schema(self, name: str) -> pa.Schema:
        """The Arrow schema, as it was written."""
        with _opened(self, name) as file:
            return _stored_schema(file)

    def batches(self, name: str, columns: "Sequence[str] | None" = None) -> "Iterator[pa.RecordBatch]":
        """The rows as record batches, each of one row group and of READ_ROWS rows at most.

        `columns` come in the order asked for; a segment without rows has no batch.
        """
        with _opened(self, name) as file:
            schema = _selected(_stored_schema(file), columns)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    columns=schema.names, batch_size=READ_ROWS, row_groups=[group], use_threads=False
                ):
                    table = pa.Table.from_batches([batch]).select(schema.names)
                    yield from _restored(table, schema).to_batches()

    def table(self, name: str, columns: "Sequence[str] | None" = None) -> pa.Table:
        """All rows of the columns."""
        with _opened(self, name) as file:
            schema = _selected(_stored_schema(file), columns)
            return _restored(file.read(columns=schema.names).select(schema.names), schema)

    def exists(self, name: str) -> bool:
        """Whether the segment is there."""
        return (self.root / name).exists()

    def delete(self, name: str) -> None:
        """Remove a segment."""
        (self.root / name).unlink(missing_ok=True)

    def put(self, path: Path, name: str) -> None:
        """Move a finished local file in: a rename on local disks, a single put elsewhere."""
        target = self.root / name
        if target.exists():
            path.unlink()
            return
        if not self.is_local:
            target.fs.put_file(str(path), target.path)
            path.unlink()
            return
        folder = Path(target.path).parent
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            shutil.move(path, beside)
            _sync(beside)
            beside.replace(target.path)
        finally:
            beside.unlink(missing_ok=True)
        _sync(folder)


class SegmentWriter:
    """Writes one segment: `with store.writer(...) as writer: writer.write(...)`, then `name`, `digest`, `rows`.

    Rows are regrouped to row groups of one size, so that equal rows give equal bytes however they came in.
    """

    def __init__(self, store: SegmentStore, kind: str, schema: pa.Schema, row_group_rows: int, where: str) -> None:
        self._store = store
        self._kind = kind
        self._schema = schema
        self._group = row_group_rows
        self._where = where
        self._stored = _parquet_schema(schema, where)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self.rows = 0
        self.name = ""
        self.digest = ""

    def __enter__(self) -> "SegmentWriter":
        self._folder = Path(tempfile.mkdtemp(prefix="llmbatch-segment-"))
        self._path = self._folder / "segment.parquet"
        try:
            self._file = pq.ParquetWriter(
                self._path, self._stored, compression="zstd", use_dictionary=False, write_statistics=False
            )
        except (pa.ArrowException, NotImplementedError) as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise InputError(f"{self._where}: Parquet cannot hold the columns: {error}") from None
        return self

    def write(self, data: "pa.RecordBatch | pa.Table") -> None:
        """Append rows of the writer's schema."""
        for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
            # stored form first: dictionaries that differ between batches join in it, whatever their values
            rows = pa.Table.from_batches([batch], schema=self._schema)
            self._pending += _stored_table(rows, self._stored).to_batches()
            self._pending_rows += batch.num_rows
        while self._pending_rows >= self._group:
            table = self._joined()
            self._flush(table.slice(0, self._group))
            self._pending = table.slice(self._group).to_batches()
            self._pending_rows = table.num_rows - self._group

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        try:
            if kind is None and self._pending_rows:
                self._flush(self._joined())
            self._file.close()
            if kind is None:
                self.digest = _file_digest(self._path)
                self.name = f"{self._kind}/{self.digest[:2]}/{self.digest}.parquet"
                self._store.put(self._path, self.name)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            pa.default_memory_pool().release_unused()  # what one step buffered must not add to what the next one does

    def _joined(self) -> pa.Table:
        return pa.Table.from_batches(self._pending, schema=self._stored).combine_chunks()

    def _flush(self, table: pa.Table) -> None:
        try:
            self._file.write_table(table, row_group_size=self._group)
        except pa.ArrowException:  # Arrow's message quotes the value, so it goes no further
            problem = unwritable_value(table, self.rows)
        else:
            self.rows += table.num_rows
            return
        raise InputError(f"{self._where}: {problem}")


def unwritable_value(table: pa.Table, first_row: int) -> str:
    """Which value it is that Parquet does not take, for an error: its column, type and row, counted from 0."""
    for name in table.column_names:
        column = table.select([name])
        for row in () if _is_writable(column) else range(column.num_rows):
            if not _is_writable(column.slice(row, 1)):
                return (
                    f"Parquet cannot hold the value of the column {name!r}, {column.schema.field(0).type}, in row "
                    f"{first_row + row}. Correct it, cast the column to another type, or leave it out."
                )
    return f"Parquet cannot hold the rows from {first_row} on together."


def _is_writable(table: pa.Table) -> bool:
    try:
        pq.write_table(table, pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return True


def _sync(path: Path) -> None:
    """Onto the disk, so that a power cut after the ledger's row leaves no row without its segment."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            found.update(chunk)
    return found.hexdigest()


class _opened:
    """A segment's Parquet file, open."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self._path = store.root / name
        self._store = store

    def __enter__(self) -> pq.ParquetFile:
        try:
            self._source: Any = self._path.path if self._store.is_local else self._path.open("rb")
            self._file = pq.ParquetFile(self._source, pre_buffer=not self._store.is_local)
        except FileNotFoundError:
            raise LedgerError(
                f"Segment {self._path} of the ledger is gone. It was deleted by hand, or storage_path points elsewhere."
            ) from None
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._store.is_local:
            self._source.close()


def _parquet_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """The schema to store: what Parquet changes is stored as something it keeps, and the true one beside it."""
    fields = []
    for field in schema:
        kind = _storable_dictionary(field.type) if pa.types.is_dictionary(field.type) else _storable(field.type)
        if kind is None:
            raise InputError(
                f"{where}: column {field.name!r} is {field.type}, which Parquet cannot hold. Cast it, or leave it out "
                "with keep_columns."
            )
        fields.append(field.with_type(kind))
    true = schema.remove_metadata().serialize().to_pybytes()
    return pa.schema(fields, metadata={**(schema.metadata or {}), SCHEMA_KEY: true})


def _storable(kind: pa.DataType) -> "pa.DataType | None":
    """The type to store a column as; None where there is none."""
    if any(refused(kind) for refused in REFUSED):
        return None
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):  # below the top only what Parquet itself gives back
        return kind if any(kept(kind.value_type) for kept in KEPT_IN_DICTIONARY) else None
    if isinstance(kind, pa.BaseExtensionType):
        return _storable(kind.storage_type) and kind
    if pa.types.is_struct(kind):
        inner = [(f, _storable(f.type)) for f in kind]
        if not inner or any(found is None for _, found in inner):
            return None
        return pa.struct([f.with_type(found) for f, found in inner])
    if pa.types.is_map(kind):
        key, value = _storable(kind.key_type), _storable(kind.item_type)
        return None if key is None or value is None else pa.map_(key, kind.item_field.with_type(value))
    if pa.types.is_nested(kind):
        return _storable_list(kind)
    return kind


def _storable_list(kind: Any) -> "pa.DataType | None":
    inner = _storable(kind.value_type)
    if inner is None:
        return None
    field = kind.value_field.with_type(inner)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)


def _storable_dictionary(kind: Any) -> "pa.DataType | None":
    """The type to store a column of dictionary type as. The order of other values than strings would be lost."""
    value = kind.value_type
    stored = _storable(value)
    if stored is None or pa.types.is_nested(value) or isinstance(value, pa.BaseExtensionType):
        return None
    if any(kept(stored) for kept in KEPT_IN_DICTIONARY):
        return pa.dictionary(kind.index_type, stored, kind.ordered)
    return None if kind.ordered else stored


def _stored_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [_stored_column(c, f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _stored_column(column: pa.ChunkedArray, kind: Any) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    if not pa.types.is_dictionary(column.type):
        return column.cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([_dictionary(chunk, kind) for chunk in column.chunks], type=kind)
    return pa.chunked_array([chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks], type=kind)


def _dictionary(array: Any, kind: Any) -> pa.DictionaryArray:
    """A dictionary array with the index and value types of `kind`."""
    indices, values = array.indices.cast(kind.index_type), array.dictionary.cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)


def _stored_schema(file: pq.ParquetFile) -> pa.Schema:
    read = file.schema_arrow
    true = (read.metadata or {}).get(SCHEMA_KEY)
    return read.remove_metadata() if true is None else pa.ipc.read_schema(pa.py_buffer(true))


def _selected(schema: pa.Schema, columns: "Sequence[str] | None") -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def _restored(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [_restored_column(c, f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _restored_column(column: pa.ChunkedArray, kind: Any) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return pa.chunked_array([_dictionary(chunk, kind) for chunk in encoded.chunks], type=kind)
