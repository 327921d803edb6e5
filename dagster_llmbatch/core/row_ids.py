"""What names a row: a column's value, what a function makes of the row, or the row's number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_llmbatch.core.text_forms import rows_of
from dagster_llmbatch.errors import ConfigurationError, InputError

IdColumn = str | Callable[[dict[str, Any]], Any]
"""A column's name, or a function of the row that returns text or an integer."""
EXAMPLES = 5
"""How many row ids an error quotes."""


def check_id_column(given: Any, *, asset: str) -> "IdColumn | None":
    """What was given. Raises ConfigurationError for what is neither a column's name nor a function."""
    if given is None or callable(given) or (isinstance(given, str) and given):
        return given
    raise ConfigurationError(f"{asset}: id_column is the name of a column or a function of the row, not {given!r}.")


def id_name(id_column: IdColumn) -> str:
    """What an id column is called in errors and in the ledger."""
    return id_column if isinstance(id_column, str) else getattr(id_column, "__name__", type(id_column).__name__)


def row_ids(block: pa.RecordBatch, id_column: "IdColumn | None", first: int, where: str) -> pa.Array:
    """The id of each row as text. `first` is the number of the block's first row.

    Raises InputError for a row without an id, and for ids that are neither integers nor text.
    """
    if id_column is None:
        return pa.array([str(first + i) for i in range(block.num_rows)], pa.string())
    ids = block.column(id_column) if isinstance(id_column, str) else _made_ids(block, id_column, first, where)
    if ids.null_count:
        rows = [first + i for i in np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[:EXAMPLES].tolist()]
        raise InputError(
            f"{where}: {ids.null_count} or more rows have no id by id_column {id_name(id_column)!r} (row numbers from 0: "
            f"{rows}). Every row needs an id of its own; filter them out or fill them in."
        )
    if pa.types.is_dictionary(ids.type):
        ids = pc.cast(ids, ids.type.value_type)
    if not (pa.types.is_integer(ids.type) or _is_text(ids.type)):
        raise InputError(
            f"{where}: the id column {id_name(id_column)!r} is {ids.type}; ids must be integers or text. Cast it in the "
            "input."
        )
    return pc.cast(ids, pa.string())


def _made_ids(block: pa.RecordBatch, make: "Callable[[dict[str, Any]], Any]", first: int, where: str) -> pa.Array:
    try:
        rows = rows_of(block)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: id_column {id_name(make)!r} takes rows as Python values, and a value after row {first} (from 0) has "
            f"none ({type(error).__name__}). Cast its column, or leave it out of the input."
        ) from None
    found: list[str | None] = []
    for number, row in enumerate(rows, first):
        try:
            made = make(row)
        except Exception as error:  # without an id the row cannot even be told apart: the plan ends here
            raise InputError(
                f"{where}: id_column {id_name(make)!r} failed for row {number} (from 0): {type(error).__name__}. Nothing "
                "was spent."
            ) from None  # its text may quote the row
        if made is not None and (isinstance(made, bool) or not isinstance(made, (str, int))):
            raise InputError(
                f"{where}: id_column {id_name(make)!r} gave {type(made).__name__} for row {number} (from 0); ids must be "
                "integers or text."
            )
        found.append(None if made is None else str(made))
    try:
        return pa.array(found, pa.string())
    except UnicodeEncodeError:
        raise InputError(f"{where}: id_column {id_name(make)!r} gave an id that holds a lone surrogate.") from None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def refuse_repeated(ids: pa.ChunkedArray, id_column: IdColumn, where: str) -> None:
    """Raise InputError, with some of them, where ids stand on more than one row."""
    if len(ids.unique()) == len(ids):
        return
    counts = ids.value_counts()
    repeated = counts.filter(pa.array(counts.field("counts").to_numpy() > 1))
    examples = repeated.field("values").slice(0, EXAMPLES).to_pylist()
    raise InputError(
        f"{where}: {len(repeated)} ids by id_column {id_name(id_column)!r} stand on more than one row, such as {examples}. "
        "Every row needs an id of its own; remove the duplicates, or name another id_column."
    )
