"""The text a column value has in a prompt.

null                      empty
bool                      true, false
integer                   123
float                     1.5, nan, inf
decimal                   12.50, without an exponent
text, dictionary of text  as it is
date, timestamp           ISO 8601, with the zone and all digits it has; refused outside the years 1 to 9999
time                      ISO 8601, to the microsecond
duration                  seconds, such as 90.5; refused beyond 999,999,999 days
list, struct, map         JSON
binary                    refused: decode or base64-encode it in the input table
"""

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def text_of(value: Any) -> str:
    """The text form of one Python value, as it comes from Arrow."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime.timedelta):
        return _seconds(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | tuple | dict):
        return json.dumps(_plain(value), ensure_ascii=False)
    if isinstance(value, bytes):
        raise TypeError("binary has no text form")
    return str(value)


def _seconds(value: datetime.timedelta) -> str:
    # pandas' Timedelta, which Arrow gives for nanoseconds, has a part that total_seconds() rounds or writes as 1e-09
    nanoseconds = getattr(value, "value", None)
    if not isinstance(nanoseconds, int):
        nanoseconds = ((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds) * 1000
    text = format(Decimal(nanoseconds).scaleb(-9), "f")
    whole, _, rest = text.partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {text_of(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and value - value == 0):
        return value
    return text_of(value)


def is_binary(kind: pa.DataType) -> bool:
    """Whether a column's values have no text form."""
    if pa.types.is_dictionary(kind):
        return is_binary(kind.value_type)
    if pa.types.is_nested(kind):
        return any(is_binary(kind.field(i).type) for i in range(kind.num_fields))
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def values_of(column: pa.Array) -> "list[Any]":
    """A column's values in Python, maps as dicts."""
    return column.to_pylist(maps_as_pydicts="lossy") if _has_map(column.type) else column.to_pylist()


def rows_of(block: pa.RecordBatch) -> "list[dict[str, Any]]":
    """The rows as dicts of Python values. Raises as `texts_of`."""
    columns = [values_of(column) for column in block.columns]
    rows = zip(*columns, strict=True) if columns else ((),) * block.num_rows
    return [dict(zip(block.schema.names, row, strict=True)) for row in rows]


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(i).type) for i in range(kind.num_fields)) if pa.types.is_nested(kind) else False


def texts_of(column: pa.Array) -> "list[str]":
    """A column's text forms. Text and integers are cast by Arrow, the rest value by value.

    Raises OverflowError or ValueError for instants and durations that Python has no value for.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _without_nulls(column.to_pylist()) if column.null_count else column.to_pylist()
    if pa.types.is_integer(kind):
        return _without_nulls(pc.cast(column, pa.string()).to_pylist())
    form: Callable[[Any], str] = text_of
    return [form(value) for value in values_of(column)]


def _without_nulls(values: "list[str | None]") -> "list[str]":
    return ["" if value is None else value for value in values]
