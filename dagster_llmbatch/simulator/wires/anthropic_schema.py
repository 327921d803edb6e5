"""The limits of Anthropic's structured output."""

from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]
MOST_OPTIONAL, MOST_UNIONS = 24, 16
KEYWORDS = {
    "$schema", "$defs", "definitions", "$ref", "type", "anyOf", "allOf", "enum", "const", "title", "description",
    "default", "properties", "required", "additionalProperties", "items", "minItems", "format",
}  # fmt: skip
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}


def schema_error(schema: Node) -> "str | None":
    """What a schema is refused for, or None."""
    nodes = list(_nodes(schema))
    for node in nodes:
        wrong = _node_error(node)
        if wrong is not None:
            return wrong
    if _recursive(schema, schema, frozenset()):
        return "Recursive schemas are not supported."
    optional = sum(len(set(node.get("properties") or {}) - set(node.get("required") or ())) for node in nodes)
    if optional > MOST_OPTIONAL:
        return f"Schemas contain too many optional parameters ({optional}), which exceeds the limit: {MOST_OPTIONAL}."
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    if unions > MOST_UNIONS:
        words = "Schemas contain too many parameters with union types"
        return f"{words} ({unions} parameters), which exceeds the limit: {MOST_UNIONS}."
    return None


def _node_error(node: Node) -> "str | None":
    unsupported = sorted(set(node) - KEYWORDS)
    if unsupported:
        return f"For '{node.get('type')}' type, property '{unsupported[0]}' is not supported."
    if node.get("type") == "object" and node.get("additionalProperties") is not False:
        return "For 'object' type, 'additionalProperties' must be explicitly set to false."
    if node.get("minItems", 0) not in (0, 1):
        return "For 'array' type, 'minItems' values other than 0 or 1 are not supported."
    if node.get("format") not in {None, *FORMATS}:
        return f"For 'string' type, format '{node['format']}' is not supported."
    if not str(node.get("$ref", "#")).startswith("#"):
        return "External $ref is not supported."
    return None


def _nodes(node: Any) -> "Iterator[Node]":
    """A node and all below it; what a reference points at is visited where it is defined."""
    if not isinstance(node, Mapping):
        return
    yield node
    for inner in _inner(node):
        yield from _nodes(inner)
    for name in ("$defs", "definitions"):
        for inner in (node.get(name) or {}).values():
            yield from _nodes(inner)


def _inner(node: Node) -> "list[Any]":
    """The schemas a value of this one may be made of."""
    return [*(node.get("properties") or {}).values(), node.get("items"), *node.get("anyOf", ()), *node.get("allOf", ())]


def _recursive(node: Any, root: Node, within: "frozenset[str]") -> bool:
    """Whether a reference leads back to itself."""
    if not isinstance(node, Mapping):
        return False
    ref = node.get("$ref")
    if isinstance(ref, str):
        target: Any = root
        for step in ref.removeprefix("#").split("/")[1:]:
            target = target.get(step) if isinstance(target, Mapping) else None
        return ref in within or _recursive(target, root, within | {ref})
    return any(_recursive(inner, root, within) for inner in _inner(node))
