"""The IO manager of LLM batch assets: one Parquet file a partition, streamed both ways."""

import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import pyarrow as pa
from pydantic import PrivateAttr
from upath import UPath

from dagster_llmbatch.core.parquet_files import (
    UNPARTITIONED,
    arrow_filesystem,
    common_schema,
    file_name,
    is_local,
    open_files,
    store_table,
)
from dagster_llmbatch.core.tables import open_rows
from dagster_llmbatch.errors import ConfigurationError, InputError
from dagster_llmbatch.ledger.segments import KEPT_IN_DICTIONARY

if TYPE_CHECKING:
    import pyarrow.dataset as ds

DEFAULT_FOLDER = "llmbatch_results"
"""Folder in the instance's storage directory that is used without a base_path."""
OUTPUTS_OF_OPS = "~ops"
"""Folder of op outputs. No asset key is encoded to this name."""


class ParquetIOManager(dg.ConfigurableIOManager):
    """Stores each partition of an asset as one Parquet file; hands it on as the downstream parameter's type asks.

    Takes whatever the Arrow C stream speaks (pyarrow, pandas, polars, DuckDB, readers, generators of record batches)
    or a path to Parquet, and streams it: a table larger than memory can be stored from a RecordBatchReader. A write
    that fails, or is killed, leaves the partition's old file as it was. Dagster runs a generator that an asset returns
    as the asset's own body: wrap it in `dg.Output(...)` or in a RecordBatchReader.

    The annotation of the downstream parameter chooses what is loaded:

    | annotation | value |
    |---|---|
    | none, `Any`, `pyarrow.Table` | a Table |
    | `pyarrow.RecordBatchReader` | a stream; the file is never in memory whole |
    | `pyarrow.dataset.Dataset` | a Dataset over the files; dictionaries of numbers and dates come as their values |
    | `pandas.DataFrame` | columns of `pandas.ArrowDtype`, so that int64 with nulls and decimals keep every digit |
    | `polars.DataFrame`, `polars.LazyFrame` | a frame; lazy ones scan local files |
    | `pathlib.Path`, `upath.UPath` | the file's path, for one partition |
    | `dict[str, T]` | one `T` of the above for each upstream partition, by partition key |

    Several upstream partitions are put one after the other in the order of the partitions definition; a column that
    some of them lack is null there. With `allow_missing_partitions` in the input's metadata, missing ones are left
    out; None is loaded when nothing is there.
    """

    model_config = {"extra": "forbid"}

    base_path: "str | None" = None
    """Folder or URL (`s3://bucket/prefix`) of the files. None: `llmbatch_results` in the instance's storage folder."""
    storage_options: "dict[str, Any]" = {}
    """fsspec options of the base path, such as credentials; values at any depth may be `dg.EnvVar`."""

    _instance_folder: "str | None" = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Learn where the Dagster instance keeps its files."""
        if context.instance is not None:
            self._instance_folder = context.instance.storage_directory()

    def partition_path(
        self, asset_key: "dg.AssetKey | str | Sequence[str]", partition_key: "str | None" = None
    ) -> UPath:
        """Where a partition is stored; without a partition key, where an unpartitioned asset is.

        No two partitions and no two assets share a file, also where the disk ignores case. Lower case letters, digits,
        `-`, `_` and `.` are kept; any other key is percent-encoded, cut, and told apart by a hash of the whole key.

        Raises ConfigurationError without a base path outside of a run.
        """
        folder = self._base()
        for part in dg.AssetKey.from_coercible(asset_key).path:
            folder = folder / file_name(part, folder=True)
        name = UNPARTITIONED if partition_key is None else file_name(partition_key)
        return folder / f"{name}.parquet"

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store an output.

        Raises InputError for what is no table, ConfigurationError for several partitions at once.
        """
        where, path = self._output_path(context)
        if obj is None:
            raise InputError(
                f"{where}: the output is None, and None is no table. Return a table, for no rows an empty "
                "one. An asset that stores its data itself is annotated `-> None`."
            )
        reader = open_rows(obj, asset=where, allow_reserved=True)
        rows, size = store_table(reader, path, where)
        given = {**context.output_metadata, **context.get_logged_metadata()}
        added: "dict[str, Any]" = {
            "path": dg.MetadataValue.path(str(path)),
            "dagster/uri": path.as_uri(),
            "dagster/size_bytes": size,
            **({} if "dagster/row_count" in given else {"dagster/row_count": rows}),
        }
        logged = context.get_logged_metadata()
        context.add_output_metadata({key: value for key, value in added.items() if key not in logged})

    def load_input(self, context: dg.InputContext) -> Any:
        """Load one or more partitions as the annotation asks.

        Raises ConfigurationError for an annotation that is not supported, InputError when a file is missing.
        """
        load, by_partition = _loader(_annotation(context), _input_name(context))
        found = self._stored(context)
        asset = _input_name(context)
        if by_partition:
            return {partition: load([path], asset) for partition, path in found.items()}
        return load(list(found.values()), asset) if found else None

    def options(self) -> "dict[str, Any]":
        """The storage options with environment variables filled in. Raises ConfigurationError when one is not set."""
        return _filled_in(self.storage_options)

    def _base(self) -> UPath:
        if self.base_path is not None:
            base = UPath(self.base_path, **self.options())
        elif self._instance_folder is not None:
            base = UPath(self._instance_folder) / DEFAULT_FOLDER
        else:
            raise ConfigurationError(
                "ParquetIOManager has no base_path, and outside of a run it knows no Dagster instance. Set base_path."
            )
        return UPath(os.path.abspath(base.expanduser().path)) if is_local(base) else base

    def _op_path(self, identifier: "Sequence[str]") -> UPath:
        folder = self._base() / OUTPUTS_OF_OPS
        for part in identifier:
            folder = folder / file_name(part, folder=True)
        return folder / f"{UNPARTITIONED}.parquet"

    def _output_path(self, context: dg.OutputContext) -> "tuple[str, UPath]":
        if not context.has_asset_key:
            return f"output {context.name!r} of {context.step_key}", self._op_path(context.get_identifier())
        asset = context.asset_key.to_user_string()
        if not context.has_asset_partitions:
            return asset, self.partition_path(context.asset_key)
        keys = context.asset_partition_keys
        if len(keys) != 1:
            raise ConfigurationError(
                f"{asset}: one run wants to store {len(keys)} partitions, and one table cannot be split into them. "
                "Launch one run a partition: backfill_policy=BackfillPolicy.multi_run(1)."
            )
        return f"{asset}, partition {keys[0]}", self.partition_path(context.asset_key, keys[0])

    def _stored(self, context: dg.InputContext) -> "dict[str, UPath]":
        """The files of the input by partition key ('' without partitions), in partition order."""
        allow_missing = bool((context.definition_metadata or {}).get("allow_missing_partitions", False))
        if not context.has_asset_key:
            upstream = context.upstream_output
            paths = {"": self._op_path(upstream.get_identifier() if upstream else context.get_identifier())}
        elif context.has_asset_partitions:
            paths = {key: self.partition_path(context.asset_key, key) for key in _ordered_partitions(context)}
        else:
            paths = {"": self.partition_path(context.asset_key)}
        found = {}
        for partition, path in paths.items():
            if path.exists():
                found[partition] = path
            elif allow_missing and partition:
                context.log.warning(f"{context.asset_key.to_user_string()}, partition {partition}: left out, no file.")
            else:
                of = f", partition {partition}" if partition else ""
                raise InputError(
                    f"{_input_name(context)}{of}: there is no file {path}. Materialize it first; where partitions "
                    'may be missing, say so with AssetIn(metadata={"allow_missing_partitions": True}).'
                )
        return found


def _filled_in(value: Any) -> Any:
    # Dagster fills in an EnvVar that is a field's own value, not one inside a dictionary.
    if isinstance(value, dg.EnvVar):
        value = {"env": value.env_var_name}
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"env"}:
        return {key: _filled_in(inner) for key, inner in value.items()}
    found = os.environ.get(str(value["env"]))
    if found is None:
        raise ConfigurationError(f"storage_options of ParquetIOManager: the variable {value['env']} is not set.")
    return found


def _input_name(context: dg.InputContext) -> str:
    return context.asset_key.to_user_string() if context.has_asset_key else f"input {context.name!r}"


def _ordered_partitions(context: dg.InputContext) -> "list[str]":
    keys = list(context.asset_partition_keys)
    if len(keys) < 2:
        return keys
    # The context's keys may come out of a set.
    defined = context.asset_partitions_def.get_partition_keys(dynamic_partitions_store=context.instance)
    order = {key: at for at, key in enumerate(defined)}
    return sorted(keys, key=lambda key: (order.get(key, len(order)), key))


def _table(paths: "list[UPath]", asset: str) -> pa.Table:
    return open_files(paths, asset).read_all()


def _dataset(paths: "list[UPath]", asset: str) -> "ds.Dataset":
    import pyarrow.dataset as ds  # loads pandas: a second of start-up that most runs do not need

    filesystem, _ = arrow_filesystem(paths[0])
    files = [arrow_filesystem(path)[1] for path in paths]
    schema = _scannable(common_schema(paths, asset))
    return ds.dataset(files, schema=schema, filesystem=filesystem, format="parquet")


def _scannable(schema: pa.Schema) -> pa.Schema:
    """The schema with the dictionaries decoded that a scan cannot make: those of other values than text and binary."""
    for at, field in enumerate(schema):
        if pa.types.is_dictionary(field.type) and not any(kept(field.type.value_type) for kept in KEPT_IN_DICTIONARY):
            schema = schema.set(at, field.with_type(field.type.value_type))
    return schema


def _pandas(paths: "list[UPath]", asset: str) -> Any:
    import pandas as pd  # a second of start-up that most runs do not need

    return _table(paths, asset).to_pandas(types_mapper=pd.ArrowDtype)


def _polars(paths: "list[UPath]", asset: str) -> Any:
    import polars as pl  # optional: whoever annotates with it has it

    _refuse_beyond_polars(common_schema(paths, asset), asset)
    return pl.from_arrow(_table(paths, asset))


def _polars_lazy(paths: "list[UPath]", asset: str) -> Any:
    import polars as pl  # optional: whoever annotates with it has it

    if not all(is_local(path) for path in paths):
        # polars opens object stores by itself and would need the credentials in a form of its own.
        return cast("pl.DataFrame", _polars(paths, asset)).lazy()
    _refuse_beyond_polars(common_schema(paths, asset), asset)
    scans = [pl.scan_parquet(path.path, glob=False, hive_partitioning=False) for path in paths]
    return scans[0] if len(scans) == 1 else pl.concat(scans, how="diagonal")


def _refuse_beyond_polars(schema: pa.Schema, asset: str) -> None:
    # polars panics, with a stack trace of its own and an exception that `except Exception` lets through
    names = [field.name for field in schema if _has(field.type, pa.types.is_decimal256)]
    names += [field.name for field in schema if _has(field.type, lambda kind: "list_view" in str(kind))]
    if names:
        raise InputError(
            f"{asset}: polars has no type for the columns {names}. Annotate the parameter pyarrow.Table, or leave the "
            "columns out with keep_columns."
        )


def _has(kind: pa.DataType, wanted: "Callable[[pa.DataType], bool]") -> bool:
    return wanted(kind) or any(_has(kind.field(at).type, wanted) for at in range(kind.num_fields))


def _upath(paths: "list[UPath]", asset: str) -> UPath:
    if len(paths) == 1:
        return paths[0]
    raise ConfigurationError(
        f"{asset}: the parameter asks for one path, and {len(paths)} partitions are loaded. Annotate it dict[str, "
        "UPath] or dict[str, Path]."
    )


def _path(paths: "list[UPath]", asset: str) -> Path:
    path = _upath(paths, asset)
    if is_local(path):
        return Path(path.path)
    raise ConfigurationError(f"{asset}: {path} is not on a local disk. Annotate the parameter upath.UPath.")


_LOADERS: "Mapping[str, Callable[[list[UPath], str], Any]]" = {
    "typing.Any": _table,
    "pyarrow.Table": _table,
    "pyarrow.RecordBatchReader": open_files,
    "pyarrow.Dataset": _dataset,
    "pandas.DataFrame": _pandas,
    "polars.DataFrame": _polars,
    "polars.LazyFrame": _polars_lazy,
    "pathlib.Path": _path,
    "upath.UPath": _upath,
}


def _annotation(context: dg.InputContext) -> Any:
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:  # a context built by hand, without a type
        return Any


def _loader(annotation: Any, asset: str) -> "tuple[Callable[[list[UPath], str], Any], bool]":
    """What loads an annotation, and whether it does so partition by partition."""
    wanted, by_partition = _without_none(annotation), False
    if typing.get_origin(wanted) in (dict, Mapping):
        wanted, by_partition = typing.get_args(wanted)[1], True
    elif wanted is dict:
        wanted, by_partition = Any, True
    # By name, so that nothing is imported to compare with.
    module, name = getattr(wanted, "__module__", ""), getattr(wanted, "__name__", None) or str(wanted)
    load = _LOADERS.get(f"{module.split('.')[0]}.{name.split('.')[-1]}")
    if load is None:
        raise ConfigurationError(
            f"{asset}: cannot be loaded as {annotation}. Annotate the parameter with one of "
            f"{', '.join(_LOADERS)}, or dict[str, one of them] for each partition alone."
        )
    return load, by_partition


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation
