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
    become that text; lists of pairs become the map they stand for; text becomes the enum's value that differs in case
    only, or whose JSON it is. What was valid as it stood stays.
    """
    found = option_for(value, node, root)
    if isinstance(value, list) and is_map(found):
        return _mapped(value, found, root)
    if isinstance(value, list):
        items = found.get("items")
        return [as_meant(v, items, root) for v in value] if isinstance(items, Mapping) else value
    if isinstance(value, dict) and is_map(found):
        return {name: as_meant(v, found["additionalProperties"], root) for name, v in value.items()}
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
    return _enum_value(value, node, root) if isinstance(value, str) else value


def is_map(node: "Mapping[str, Any]") -> bool:
    """Whether a resolved schema is a map: an object whose keys are the answer's to choose."""
    return (
        node.get("type") == "object"
        and isinstance(node.get("additionalProperties"), Mapping)
        and not node.get("properties")
    )


def _mapped(pairs: "list[Any]", node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> Any:
    """The map of a list of pairs; the list itself, which is no valid map, where it is none or a key stands twice."""
    if not all(isinstance(pair, dict) and set(pair) == {"key", "value"} for pair in pairs):
        return pairs
    if len({pair["key"] for pair in pairs if isinstance(pair["key"], str)}) != len(pairs):
        return pairs
    return {pair["key"]: as_meant(pair["value"], node["additionalProperties"], root) for pair in pairs}


def _enum_value(text: str, node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> Any:
    """The one allowed value that a text stands for; the text where none or several could be meant."""
    found = resolve(node, root)
    options = [resolve(option, root) for option in options_of(found)] or [found]
    if any(option.get("type") == "string" and "enum" not in option and "const" not in option for option in options):
        return text  # any text is allowed
    allowed = [value for option in options for value in _allowed(option) or ()]
    if text in allowed:
        return text
    alike = [v for v in allowed if (v.casefold() == text.casefold() if isinstance(v, str) else json.dumps(v) == text)]
    return alike[0] if len(alike) == 1 else text


def _allowed(node: "Mapping[str, Any]") -> "list[Any] | None":
    """The values of an enum or a const; None where there is neither."""
    return node.get("enum", [node["const"]] if "const" in node else None)


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
    fits = [o for o in fits if o.get("type") == kind or (kind == "array" and is_map(o))]
    if kind == "object" and len(fits) > 1:
        fits = [o for o in fits if _keys_fit(value, o, root)]
    return fits[0] if len(fits) == 1 else {}


def _keys_fit(value: "Mapping[str, Any]", option: "Mapping[str, Any]", root: "Mapping[str, Any]") -> bool:
    properties = option.get("properties") or {}
    if not set(option.get("required") or ()) <= set(value) or not set(value) <= set(properties):
        return False
    for name, v in value.items():
        allowed = _allowed(resolve(properties[name], root))
        meant = _enum_value(v, properties[name], root) if isinstance(v, str) else v
        if allowed is not None and meant not in allowed:
            return False
    return True


def _means_decimal(node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> bool:
    found = resolve(node, root)
    options = [resolve(option, root) for option in options_of(found)] or [found]
    if any(o.get("type") in ("number", "integer") for o in options):
        return False
    return any(o.get("format") == "decimal" and o.get("type") == "string" for o in options)
