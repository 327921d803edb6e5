"""The rules of a JSON Schema, read as a pydantic model in strict mode would read them.

A stored schema judges the answers of a model whose code has changed since, so both must say the same: an integer has
no fraction, formats and patterns are checked by pydantic's own parsers, whatever else is installed.
"""

import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from jsonschema import Draft202012Validator, FormatChecker, SchemaError
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from pydantic import AnyUrl, Field, TypeAdapter
from pydantic_core import SchemaError as CoreSchemaError

from dagster_llmbatch.schemas.arrow_types import from_text

_PARSED: "dict[str, type]" = {
    "date": datetime.date,
    "date-time": datetime.datetime,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uri": AnyUrl,
}


def fault_of(schema: "Mapping[str, Any]") -> "str | None":
    """What makes a schema none, in a line; None where it is one."""
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"
    for pattern in _patterns(schema):
        try:
            _matcher(pattern)
        except re.error as error:
            return f"the pattern {pattern!r} is no regular expression: {error}"
    return None


def _patterns(node: Any) -> "Iterator[str]":
    if isinstance(node, Mapping):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for value in node.values():
            yield from _patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _patterns(value)


def rules_of(schema: "Mapping[str, Any]") -> Draft202012Validator:
    """The rules of a schema."""
    return _Rules(dict(schema), format_checker=_formats())


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> "Iterator[ValidationError]":
    if isinstance(value, str) and not _matcher(pattern)(value):
        yield ValidationError("does not match")


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> "Callable[[str], bool]":
    """By pydantic's engine; where that does not know the pattern, by Python's."""
    try:
        validator: TypeAdapter[str] = TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except CoreSchemaError:
        compiled = re.compile(pattern)
        return lambda text: compiled.search(text) is not None

    def matches(text: str) -> bool:
        try:
            validator.validate_python(text)
        except ValueError:
            return False
        return True

    return matches


def _formats() -> FormatChecker:
    found = FormatChecker(formats=())
    for name, kind in _PARSED.items():
        found.checks(name, raises=ValueError)(_check(kind))
    found.checks("email")(lambda value: not isinstance(value, str) or "@" in value)
    return found


def _check(kind: type) -> "Callable[[Any], bool]":
    def check(value: Any) -> bool:
        if isinstance(value, str):
            from_text(value, kind)
        return True

    return check


_Rules = extend(
    Draft202012Validator,
    {"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)
