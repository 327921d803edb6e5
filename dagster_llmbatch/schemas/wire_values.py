"""Answers as JSON, from the form that was asked for back to the form that was meant."""

import json
import math
from collections.abc import Mapping
from typing import Any

from dagster_llmbatch.schemas.portable import accepts_null, options_of, resolve


class WireFloat(float):
    """A JSON number with the text it had: a Decimal is made of that, not of the nearest double."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "WireFloat":
        """The number of a JSON literal. Raises ValueError where no double holds it."""
        found = cls(text)
        if not math.isfinite(found):
            raise ValueError("beyond the doubles")
        found.text = text
        return found


def _refuse_constant(name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_DECODER = json.JSONDecoder(parse_float=WireFloat.parse, parse_constant=_refuse_constant)


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for what is not JSON: NaN, Infinity, 1e999 and lone surrogates too."""
    try:
        found = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not text.isascii() or "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return found


def is_json(text: str) -> bool:
    """Whether a text is JSON by the strict reading."""
    try:
        strict_json(text)
    except ValueError:
        return False
    return True


def as_meant(value: Any, node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> Any:
    """An answer without what stands only because of how we asked.

    Nulls of properties that had to be there go, so that defaults apply; numbers where text was asked for a Decimal
    become that text.
    """
    found = option_for(value, node, root)
    if isinstance(value, list):
        items = found.get("items")
        return [as_meant(v, items, root) for v in value] if isinstance(items, Mapping) else value
    if isinstance(value, dict):
        properties = found.get("properties") or {}
        required = set(found.get("required") or ())
        return {
            name: as_meant(v, properties[name], root) if name in properties else v
            for name, v in value.items()
            if v is not None or name not in properties or name in required or accepts_null(properties[name], root)
        }
    if isinstance(value, (int, float)) and not isinstance(value, bool) and _means_decimal(node, root):
        return value.text if isinstance(value, WireFloat) else str(value)
    return value


def with_defaults(value: Any, node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> Any:
    """A valid answer with the schema's defaults where a property is not there."""
    found = option_for(value, node, root)
    if isinstance(value, list):
        items = found.get("items")
        return [with_defaults(v, items, root) for v in value] if isinstance(items, Mapping) else value
    if not isinstance(value, dict):
        return value
    properties = found.get("properties") or {}
    made = {n: with_defaults(v, properties[n], root) if n in properties else v for n, v in value.items()}
    absent = {n: p["default"] for n, p in properties.items() if n not in value and "default" in p}
    return made | {n: with_defaults(v, properties[n], root) for n, v in absent.items()}


def option_for(value: Any, node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> "dict[str, Any]":
    """The schema that stands for a value: of a union, the one option that its kind and its keys leave."""
    found = resolve(node, root)
    options = options_of(found)
    if not options:
        return found
    kind = {dict: "object", list: "array"}.get(type(value))
    fits = [option_for(value, option, root) for option in options]
    fits = [o for o in fits if o.get("type") == kind]
    if kind == "object" and len(fits) > 1:
        fits = [o for o in fits if _keys_fit(value, o, root)]
    return fits[0] if len(fits) == 1 else {}


def _keys_fit(value: "Mapping[str, Any]", option: "Mapping[str, Any]", root: "Mapping[str, Any]") -> bool:
    properties = option.get("properties") or {}
    if not set(option.get("required") or ()) <= set(value) or not set(value) <= set(properties):
        return False
    for name, v in value.items():
        rule = resolve(properties[name], root)
        allowed = rule.get("enum", [rule["const"]] if "const" in rule else None)
        if allowed is not None and v not in allowed:
            return False
    return True


def _means_decimal(node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> bool:
    found = resolve(node, root)
    options = [resolve(option, root) for option in options_of(found)] or [found]
    if any(o.get("type") in ("number", "integer") for o in options):
        return False
    return any(o.get("format") == "decimal" and o.get("type") == "string" for o in options)
