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
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import AliasChoices, RootModel, TypeAdapter

from dagster_llmbatch.schemas.portable import is_recursive, options_of, resolve

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
"""A validated value to what the Arrow type takes. Raises Misfit where it does not fit, and whatever else a value of a
type that the schema does not promise (a user's validator made it) may raise."""


class Misfit(ValueError):
    """A value does not fit its column. The text names the rule, never the value."""


def arrow_field(name: str, node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> pa.Field:
    """The nullable Arrow field of a schema node."""
    if "$ref" in node and is_recursive(str(node["$ref"]), root):
        return JSON_TEXT.with_name(name)
    found = resolve(node, root)
    options = options_of(found)
    kinds = found.get("type")
    if isinstance(kinds, list):
        options = [{**found, "type": kind} for kind in kinds]
    if options:
        return _union(name, options, root)
    if "enum" in found or "const" in found:
        return _enum(name, found.get("enum", [found.get("const")]))
    if kinds == "array":
        items = found.get("items")
        if not isinstance(items, Mapping):
            return JSON_TEXT.with_name(name)
        return pa.field(name, pa.list_(arrow_field("item", items, root)))
    if kinds == "object":
        fields = [arrow_field(key, value, root) for key, value in (found.get("properties") or {}).items()]
        return pa.field(name, pa.struct(fields)) if fields else JSON_TEXT.with_name(name)
    if kinds == "string" and found.get("format") in _FORMATS:
        return pa.field(name, _FORMATS[found["format"]])
    return pa.field(name, _SCALARS[kinds]) if kinds in _SCALARS else JSON_TEXT.with_name(name)


def _union(name: str, options: Any, root: "Mapping[str, Any]") -> pa.Field:
    others = [o for o in options if resolve(o, root).get("type") != "null"]
    fields = [arrow_field(name, option, root) for option in others]
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


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"llmbatch") == b"json"


def _plain_converter(kind: pa.DataType) -> Convert:
    if pa.types.is_list(kind):
        inner = converter(kind.value_field)
        return lambda value: [inner(v) for v in _ordered(_plain(value))]
    if pa.types.is_struct(kind):
        fields = [(f.name, converter(f)) for f in kind]

        def struct(value: Any) -> "dict[str, Any]":
            members = _members(value)
            return {name: convert(members.get(name)) for name, convert in fields}

        return struct
    simple: dict[pa.DataType, Convert] = {
        pa.string(): _text,
        pa.int64(): _int64,
        pa.float64(): _float64,
        pa.bool_(): _bool,
        DECIMAL: _decimal,
        TIMESTAMP: _timestamp,
        pa.date32(): lambda value: _parsed(value, datetime.date),
        pa.time64("us"): _time,
        pa.duration("us"): _duration,
    }
    return simple[kind]


def _plain(value: Any) -> Any:
    while isinstance(value, RootModel):
        value = value.root
    return value.value if isinstance(value, Enum) else value


def _members(value: Any) -> "Mapping[str, Any]":
    """An object's values by their names in the answer."""
    found = _plain(value)
    if isinstance(found, Mapping):
        return found
    return {key: getattr(found, name) for key, name in wire_names(type(found)).items()}


@lru_cache(maxsize=1024)
def wire_names(kind: type) -> "dict[str, str]":
    """The field or attribute of each key in the answer, of a model or a dataclass."""
    fields = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "__dataclass_fields__", {})
    by_alias = getattr(kind, "model_config", {}).get("validate_by_alias") is not False
    return {(by_alias and _alias(field)) or name: name for name, field in fields.items()}


def _alias(field: Any) -> "str | None":
    """The alias that pydantic's JSON Schema shows."""
    alias = getattr(field, "validation_alias", None)
    if isinstance(alias, AliasChoices):
        alias = next((c for c in alias.choices if isinstance(c, str)), None)
    return alias if isinstance(alias, str) else getattr(field, "alias", None)


def _ordered(values: Any) -> Any:
    """Sets in an order that is the same in every process."""
    return sorted(values, key=_json_text) if isinstance(values, (set, frozenset)) else values


def _text(value: Any) -> str:
    if type(value) is str and value.isascii():
        return value
    found = _plain(value)
    if not isinstance(found, str):
        found = _jsonable(found)
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, sort_keys=True, allow_nan=False)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Misfit("holds a lone surrogate") from None
    return text


def _int64(value: Any) -> int:
    found = value if type(value) is int else _plain(value)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int):
        raise Misfit("is not an integer")
    if not INT64.start <= found < INT64.stop:
        raise Misfit("does not fit 64 bits")
    return int(found)


def _float64(value: Any) -> float:
    found = value if type(value) is float else float(_plain(value))
    if not math.isfinite(found):
        raise Misfit("is not a finite number")
    return found


def _bool(value: Any) -> bool:
    found = value if type(value) is bool else _plain(value)
    if not isinstance(found, bool):
        raise Misfit("is not a boolean")
    return found


# Python's default context has 28 digits, the column has 38.
_EXACT = Context(prec=38, traps=[InvalidOperation])


def _decimal(value: Any) -> Decimal:
    try:
        found = Decimal(str(_plain(value)))
        exact = found.quantize(Decimal(1).scaleb(-DECIMAL.scale), context=_EXACT)
    except InvalidOperation:
        raise Misfit("does not fit decimal128(38, 9)") from None
    if exact != found:
        raise Misfit("has more than 9 decimal places")
    return exact


def _timestamp(value: Any) -> datetime.datetime:
    found = _parsed(value, datetime.datetime)
    utc = datetime.timezone.utc
    try:
        return found.replace(tzinfo=utc) if found.tzinfo is None else found.astimezone(utc)
    except OverflowError:
        raise Misfit("is outside the years 1 to 9999 in UTC") from None


def _duration(value: Any) -> datetime.timedelta:
    found: datetime.timedelta = _parsed(value, datetime.timedelta)
    if found // datetime.timedelta(microseconds=1) not in INT64:
        raise Misfit("does not fit 64 bits of microseconds")
    return found


def _time(value: Any) -> datetime.time:
    found: datetime.time = _parsed(value, datetime.time)
    if found.tzinfo is not None and found.utcoffset():
        raise Misfit("is a time of another zone than UTC")
    return found.replace(tzinfo=None)


@lru_cache(maxsize=1024)
def _adapter(kind: type) -> "TypeAdapter[Any]":
    return TypeAdapter(kind)


def from_text(text: str, kind: type) -> Any:
    """A value of a type from JSON text, by the rules of a model's field. Raises ValueError."""
    return _adapter(kind).validate_json(json.dumps(text), strict=True)


def _parsed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else from_text(_plain(value), kind)


def _json_text(value: Any) -> str:
    return _text(json.dumps(_jsonable(value), ensure_ascii=False, sort_keys=True, allow_nan=False))


def _jsonable(value: Any) -> Any:
    """A value as JSON has it, with the keys of the answer at every depth."""
    found = _plain(value)
    if isinstance(found, Mapping) or wire_names(type(found)):
        return {str(key): _jsonable(v) for key, v in _members(found).items()}
    if isinstance(found, (list, tuple, set, frozenset)):
        return [_jsonable(v) for v in _ordered(found)]
    if found is None or isinstance(found, (str, int, float)):
        return found
    return _adapter(object).dump_python(found, mode="json")
