"""JSON Schema to Arrow types, and validated values to what those types take.

string                                string
string, format date                   date32
string, format date-time              timestamp[us, UTC]; a time without a zone is taken as UTC
string, format time                   time64[us]
string, format duration               duration[us]
integer                               int64
number                                float64
string, format decimal (Decimal)      decimal128(38, 9)
boolean                               bool
enum, const                           string, int64, double or bool, where all values are of that type
array                                 list
object                                struct
union with null                       the other type; every column is nullable
other unions, recursion, null alone   string holding JSON
"""

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, TypeAdapter

from dagster_llmbatch.schemas.portable import resolve

JSON_TEXT = pa.field("json", pa.string(), metadata={b"llmbatch": b"json"})
"""Marks a column that holds JSON text."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
DECIMAL = pa.decimal128(38, 9)
_FORMATS = {
    "date": pa.date32(),
    "date-time": TIMESTAMP,
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
    "decimal": DECIMAL,
}
_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
INT64 = range(-(2**63), 2**63)

Convert = Callable[[Any], Any]
"""A validated value to what the Arrow type takes. Raises ValueError where it does not fit."""


def arrow_field(
    name: str, node: "Mapping[str, Any]", root: "Mapping[str, Any]", seen: "tuple[str, ...]" = ()
) -> pa.Field:
    """The nullable Arrow field of a schema node."""
    ref = str(node["$ref"]) if "$ref" in node else None
    if ref is not None and ref in seen:
        return JSON_TEXT.with_name(name)
    seen = (*seen, ref) if ref is not None else seen
    found = resolve(node, root)
    options = found.get("anyOf") or found.get("oneOf")
    kinds = found.get("type")
    if isinstance(kinds, list):
        options = [{**found, "type": kind} for kind in kinds]
    if options:
        return _union(name, options, root, seen)
    if "enum" in found or "const" in found:
        return _enum(name, found.get("enum", [found.get("const")]))
    if kinds == "array":
        items = found.get("items")
        if not isinstance(items, Mapping):
            return JSON_TEXT.with_name(name)
        return pa.field(name, pa.list_(arrow_field("item", items, root, seen)))
    if kinds == "object":
        fields = [arrow_field(key, value, root, seen) for key, value in (found.get("properties") or {}).items()]
        return pa.field(name, pa.struct(fields)) if fields else JSON_TEXT.with_name(name)
    if kinds == "string" and found.get("format") in _FORMATS:
        return pa.field(name, _FORMATS[found["format"]])
    return pa.field(name, _SCALARS[kinds]) if kinds in _SCALARS else JSON_TEXT.with_name(name)


def _union(name: str, options: Any, root: "Mapping[str, Any]", seen: "tuple[str, ...]") -> pa.Field:
    others = [o for o in options if resolve(o, root).get("type") != "null"]
    fields = [arrow_field(name, option, root, seen) for option in others]
    if fields and all(f.equals(fields[0], check_metadata=True) for f in fields):
        return fields[0]
    return JSON_TEXT.with_name(name)


def _enum(name: str, values: "list[Any]") -> pa.Field:
    kinds = {type(value) for value in values if value is not None}
    scalar = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}
    return (
        pa.field(name, scalar[kinds.pop()]) if len(kinds) == 1 and kinds <= set(scalar) else JSON_TEXT.with_name(name)
    )


def converter(field: pa.Field) -> Convert:
    """How a validated value, from pydantic or from JSON, becomes a value of the field."""
    inner = _json_text if _is_json(field) else _plain_converter(field.type)
    return lambda value: None if value is None else inner(value)


def is_plain(field: pa.Field) -> bool:
    """Whether a str, int, float or bool attribute goes in as it is but for its range."""
    return not _is_json(field) and field.type in _SCALARS.values()


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"llmbatch") == b"json"


def _plain_converter(kind: pa.DataType) -> Convert:
    if pa.types.is_list(kind):
        inner = converter(kind.value_field)
        return lambda value: [inner(v) for v in value]
    if pa.types.is_struct(kind):
        fields = [(f.name, converter(f)) for f in kind]
        return lambda value: {name: convert(_plain(value).get(name)) for name, convert in fields}
    simple: dict[pa.DataType, Convert] = {
        pa.string(): _text,
        pa.int64(): _int64,
        pa.float64(): lambda value: float(_plain(value)),
        pa.bool_(): lambda value: bool(_plain(value)),
        DECIMAL: _decimal,
        TIMESTAMP: _timestamp,
        pa.date32(): lambda value: _parsed(value, datetime.date),
        pa.time64("us"): _time,
        pa.duration("us"): lambda value: _parsed(value, datetime.timedelta),
    }
    return simple[kind]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value


def _text(value: Any) -> str:
    found = _plain(value)
    text = found if isinstance(found, str) else str(found)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("holds a lone surrogate") from None
    return text


def _int64(value: Any) -> int:
    found = _plain(value)
    if found not in INT64:
        raise ValueError("does not fit 64 bits")
    return found


def _decimal(value: Any) -> Decimal:
    try:
        found = Decimal(str(_plain(value)))
        exact = found.quantize(Decimal(1).scaleb(-DECIMAL.scale))
    except InvalidOperation:
        raise ValueError("does not fit decimal128(38, 9)") from None
    if exact != found:
        raise ValueError("has more than 9 decimal places")
    return exact


def _timestamp(value: Any) -> datetime.datetime:
    found = _parsed(value, datetime.datetime)
    return found.replace(tzinfo=datetime.timezone.utc) if found.tzinfo is None else found


def _time(value: Any) -> datetime.time:
    found: datetime.time = _parsed(value, datetime.time)
    if found.tzinfo is not None and found.utcoffset():
        raise ValueError("is a time of another zone than UTC")
    return found.replace(tzinfo=None)


@lru_cache
def _adapter(kind: type) -> "TypeAdapter[Any]":
    return TypeAdapter(kind)


def _parsed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else _adapter(kind).validate_python(value)


def _json_text(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False, sort_keys=True)


def _jsonable(value: Any) -> Any:
    return _adapter(object).dump_python(value, mode="json")
