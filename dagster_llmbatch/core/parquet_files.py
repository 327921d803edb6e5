"""Parquet files that tables are kept in: their names, writing them in one step, reading them with their Arrow types."""

import base64
import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from upath import UPath

from dagster_llmbatch.errors import InputError
from dagster_llmbatch.ledger.segments import unwritable_value

BATCH_ROWS = 8192
"""Rows a record batch holds at most, where we are the ones who cut. Bounds memory with rows of long text."""
GROUP_ROWS, GROUP_BYTES = 131_072, 16 * 1024 * 1024
"""A row group is written when it has this many rows, or this many bytes in memory: what a write may hold."""


def open_parquet(path: UPath, *, asset: str) -> pa.RecordBatchReader:
    """Stream one Parquet file, with the Arrow types it was written from, also those Parquet has no equal for.

    Raises InputError when the file is not there or is not Parquet.
    """
    filesystem, inside = arrow_filesystem(path)
    try:
        # No pre-buffering and a read buffer: the file is read a page at a time, not a row group at a time.
        source = pq.ParquetFile(filesystem.open_input_file(inside), pre_buffer=False, buffer_size=1 << 20)
    except FileNotFoundError:
        problem = "does not exist"
    except (pa.ArrowException, OSError):
        problem = "cannot be read as Parquet"
    else:
        return _restored(source)
    raise InputError(f"{asset}: the file {path} {problem}.")


def _restored(source: pq.ParquetFile) -> pa.RecordBatchReader:
    batches = source.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
    return with_types(source.schema_arrow, _declared_types(source.metadata.metadata), batches)


def arrow_filesystem(path: UPath) -> "tuple[pafs.FileSystem, str]":
    """The Arrow file system of a path, and the path inside it. Credentials are the path's own."""
    if is_local(path):
        return pafs.LocalFileSystem(), os.path.abspath(path.path)
    return pafs.PyFileSystem(pafs.FSSpecHandler(path.fs)), path.path


def is_local(path: UPath) -> bool:
    """Whether the path is on a disk of this machine, where a file can be renamed."""
    return path.protocol in ("", "file", "local")


_SAFE_FILE = re.compile(r"[a-z0-9](?:[a-z0-9_.-]*[a-z0-9_-])?")
# Readers of a folder skip files that start with `_`; in a folder's own name it does no harm.
_SAFE_FOLDER = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_-])?")
_ESCAPED_BYTES = re.compile(rb"[^A-Za-z0-9_.-]")
UNPARTITIONED = "data"
"""File name of an asset without partitions; no key is encoded to it."""
LONGEST_NAME = 120
"""Characters of a key that are readable in its file name; file systems take 255 for a name."""
_RESERVED = re.compile(
    # The names of devices on Windows (with any extension); our own; a folder named like a file of the asset above it.
    rf"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?|{UNPARTITIONED}|.*\.parquet"
)


def file_name(key: str, *, folder: bool = False) -> str:
    """A name for a file or folder that no other key gets, also where the disk ignores case or forbids characters.

    Keys of lower case letters, digits, `-`, `_` and `.` stay as they are. Others are percent-encoded, cut, and told
    apart by a hash of the whole key. Never more than 150 characters.
    """
    safe = _SAFE_FOLDER if folder else _SAFE_FILE
    if len(key) <= LONGEST_NAME and safe.fullmatch(key) and not _RESERVED.fullmatch(key):
        return key
    octets = key.encode("utf-8", "surrogatepass")
    readable = _ESCAPED_BYTES.sub(lambda found: b"%%%02X" % found[0][0], octets).decode()[:LONGEST_NAME]
    if readable[:1] in (".", "_"):
        readable = f"%{ord(readable[0]):02X}{readable[1:]}"
    # 100 bits: a `~` never stands in a key that was kept, and no two keys meet by chance.
    mark = base64.b32encode(hashlib.sha256(octets).digest())[:20].decode().lower()
    return f"{readable}~{mark}"


def store_table(reader: pa.RecordBatchReader, path: UPath, where: str) -> "tuple[int, int]":
    """Write the stream to a Parquet file that appears in one step, or not at all.

    `where` names the table in errors. Returns rows and bytes. Raises InputError for a type Parquet cannot hold.
    """
    _refuse_unstorable(reader.schema, where)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_local(path):
        with tempfile.TemporaryDirectory(prefix="llmbatch-") as folder:
            written = Path(folder) / "data.parquet"
            rows = _write(reader, written, where)
            path.fs.put_file(str(written), path.path)
            return rows, written.stat().st_size
    # Hidden, so that who reads the folder meanwhile passes it over.
    beside = Path(path.parent.path) / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        rows = _write(reader, beside, where)
        size = beside.stat().st_size
        os.replace(beside, path.path)
    finally:
        beside.unlink(missing_ok=True)
    return rows, size


def _write(reader: pa.RecordBatchReader, path: Path, where: str) -> int:
    rows = 0
    with path.open("wb") as file:
        with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for group in _row_groups(reader):
                try:
                    writer.write_table(group, row_group_size=GROUP_ROWS)
                except pa.ArrowException:  # Arrow's message quotes the value, so it goes no further
                    raise InputError(f"{where}: {unwritable_value(group, rows)}") from None
                rows += group.num_rows
        file.flush()
        os.fsync(file.fileno())  # a rename may reach the disk before the data does
    return rows


def _row_groups(reader: pa.RecordBatchReader) -> "Iterator[pa.Table]":
    held: "list[pa.RecordBatch]" = []
    rows = size = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(held, reader.schema)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held, reader.schema)


def _refuse_unstorable(schema: pa.Schema, where: str) -> None:
    for field in schema:
        if not _storable(field):
            raise InputError(
                f"{where}: Parquet cannot hold the column {field.name!r} of type {field.type}, or would give it back as "
                "another. Cast it to another type."
            )


def _storable(field: pa.Field) -> bool:
    """Whether Parquet takes the type, and gives it back."""
    file = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table({field.name: pa.nulls(1, field.type)}), file)
        back = _restored(pq.ParquetFile(pa.BufferReader(file.getvalue()))).read_all()
        return back.schema.field(0).type.equals(field.type)
    except (pa.ArrowException, OSError):  # the second is how pyarrow says that a decimal has a negative scale
        return False


def open_files(paths: "list[UPath]", asset: str) -> pa.RecordBatchReader:
    """One stream over the files, in their order; a column that some of them lack is null there."""
    if len(paths) == 1:
        return open_parquet(paths[0], asset=asset)
    schema = common_schema(paths, asset)
    return pa.RecordBatchReader.from_batches(
        schema, (_conform(batch, schema) for path in paths for batch in open_parquet(path, asset=asset))
    )


def common_schema(paths: "list[UPath]", asset: str) -> pa.Schema:
    """The columns of all the files; raises InputError, naming the file, when a column changes its type."""
    schema = open_parquet(paths[0], asset=asset).schema
    for path in paths[1:]:
        found = open_parquet(path, asset=asset).schema
        changed = [f"{f.name!r}" for f in found if f.name in schema.names and not _go_together(schema.field(f.name), f)]
        if changed:
            raise InputError(
                f"{asset}: in {path} the columns {', '.join(changed)} have another type than in the partitions before. "
                "Annotate the parameter dict[str, ...] to get each partition alone, or materialize the old ones again."
            )
        schema = pa.unify_schemas([schema, found], promote_options="default")
    return schema


def _go_together(one: pa.Field, other: pa.Field) -> bool:
    return one.type.equals(other.type) or pa.types.is_null(one.type) or pa.types.is_null(other.type)


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _declared_types(metadata: "Mapping[bytes, bytes] | None") -> "Mapping[str, pa.DataType]":
    """The Arrow types a file was written from, as pyarrow notes them in its footer; empty for other writers' files."""
    stored = (metadata or {}).get(b"ARROW:schema")
    if stored is None:
        return {}
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
    return {field.name: field.type for field in schema}


def with_types(
    schema: pa.Schema, wanted: "Mapping[str, pa.DataType]", batches: "Iterable[pa.RecordBatch]"
) -> pa.RecordBatchReader:
    """Cast the columns whose type is not the wanted one, where Arrow knows how; the others stay as they are."""
    casts: "dict[int, Callable[[Any], Any]]" = {}
    for at, field in enumerate(schema):
        kind = wanted.get(field.name, field.type)
        convert = None if kind.equals(field.type) else _conversion(field.type, kind)
        if convert is not None:
            casts[at] = convert
            schema = schema.set(at, field.with_type(kind))
    if not casts:
        return pa.RecordBatchReader.from_batches(schema, batches)

    def converted() -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            columns = [casts[at](column) if at in casts else column for at, column in enumerate(batch.columns)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, converted())


def _conversion(found: pa.DataType, wanted: pa.DataType) -> "Callable[[Any], Any] | None":
    dictionary = cast("Any", wanted)

    def of_dictionary(column: Any) -> Any:
        values = pc.cast(column.dictionary, dictionary.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, values, ordered=dictionary.ordered)

    def into_dictionary(column: Any) -> Any:
        encoded = pc.cast(column, dictionary.value_type).dictionary_encode()
        indices = pc.cast(encoded.indices, dictionary.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=dictionary.ordered)

    def directly(column: Any) -> Any:
        return pc.cast(column, wanted)

    convert = directly
    if pa.types.is_dictionary(wanted):
        convert = of_dictionary if pa.types.is_dictionary(found) else into_dictionary
    with suppress(pa.ArrowException):  # this is how Arrow says that it has no such cast
        if convert(pa.nulls(0, found)).type.equals(wanted):
            return convert
    return None
