"""Answers that fit a request's JSON Schema, always the same for the same prompt."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import msgspec

DEEPEST = 6
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper", "kelp", "lumen")


def answer(prompt: str, schema: "Mapping[str, Any] | None") -> str:
    """The text of a reply: JSON for a schema, a short sentence without one."""
    seed = random.Random(hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).digest())
    if schema is None:
        return f"Noted: {' '.join(seed.choice(WORDS) for _ in range(4))} {seed.randrange(10_000)}."
    return msgspec.json.encode(_value(schema, schema, seed, 0)).decode()


def _value(node: "Mapping[str, Any]", root: "Mapping[str, Any]", seed: random.Random, depth: int) -> Any:
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        return _value((root.get("$defs") or {}).get(name, root), root, seed, depth + 1)
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return seed.choice(list(node["enum"]))
    options = node.get("anyOf") or node.get("oneOf")
    if options:
        nulls = [option for option in options if option.get("type") == "null"]
        if nulls and depth > DEEPEST:
            return None
        return _value(seed.choice(list(options)), root, seed, depth + 1)
    kind = node.get("type")
    if isinstance(kind, list):
        return _value(
            {**node, "type": "null" if "null" in kind and depth > DEEPEST else seed.choice(kind)}, root, seed, depth
        )
    made = {"object": _object, "array": _array, "string": _string, "integer": _integer, "number": _number}.get(
        str(kind)
    )
    if made is not None:
        return made(node, root, seed, depth)
    return seed.random() < 0.5 if kind == "boolean" else None


def _object(node: "Mapping[str, Any]", root: "Mapping[str, Any]", seed: random.Random, depth: int) -> Any:
    return {name: _value(inner, root, seed, depth + 1) for name, inner in (node.get("properties") or {}).items()}


def _array(node: "Mapping[str, Any]", root: "Mapping[str, Any]", seed: random.Random, depth: int) -> Any:
    least = node.get("minItems", 0)
    most = min(node.get("maxItems", least + 2), least + 2)
    count = least if depth > DEEPEST else seed.randint(least, max(least, most))
    return [_value(node.get("items") or {}, root, seed, depth + 1) for _ in range(count)]


_FORMATS = {
    "date": lambda seed: f"20{seed.randint(10, 29)}-{seed.randint(1, 12):02}-{seed.randint(1, 28):02}",
    "time": lambda seed: f"{seed.randint(0, 23):02}:{seed.randint(0, 59):02}:00Z",
    "email": lambda seed: f"{seed.choice(WORDS)}@example.com",
    "hostname": lambda seed: f"{seed.choice(WORDS)}.example.com",
    "ipv4": lambda seed: f"192.0.2.{seed.randint(1, 254)}",
    "ipv6": lambda seed: f"2001:db8::{seed.randint(1, 9999):x}",
    "duration": lambda seed: f"PT{seed.randint(1, 59)}M",
}


def _string(node: "Mapping[str, Any]", _root: "Mapping[str, Any]", seed: random.Random, _depth: int) -> str:
    found = node.get("format")
    if found == "date-time":
        return f"{_FORMATS['date'](seed)}T{seed.randint(0, 23):02}:{seed.randint(0, 59):02}:00Z"
    if found == "uuid":
        digits = f"{seed.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
    if found in _FORMATS:
        return _FORMATS[found](seed)
    if "pattern" in node:
        return f"{seed.randint(0, 999)}.{seed.randint(0, 99):02}"  # the one pattern we send: a decimal number
    text = " ".join(seed.choice(WORDS) for _ in range(3))
    least = node.get("minLength", 0)
    while len(text) < least:
        text += " " + seed.choice(WORDS)
    return text[: node["maxLength"]] if "maxLength" in node else text


def _bounds(node: "Mapping[str, Any]", step: float) -> "tuple[float, float]":
    low = node.get("minimum", node.get("exclusiveMinimum", -step) + step if "exclusiveMinimum" in node else 0)
    high = node.get("maximum", node["exclusiveMaximum"] - step if "exclusiveMaximum" in node else low + 100)
    return low, max(low, high)


def _integer(node: "Mapping[str, Any]", _root: "Mapping[str, Any]", seed: random.Random, _depth: int) -> int:
    low, high = _bounds(node, 1)
    step = int(node.get("multipleOf", 1))
    first = -(-int(low) // step)
    return step * seed.randint(first, max(first, int(high) // step))


def _number(node: "Mapping[str, Any]", _root: "Mapping[str, Any]", seed: random.Random, _depth: int) -> float:
    low, high = _bounds(node, 0.001)
    return round(seed.uniform(low, high), 3)
