"""The portable schema in each provider's own words: one rewrite a provider and mode, and what it cannot express refused.

openai, openrouter, compatible servers   strict JSON Schema: the portable form itself
anthropic                                bounds and patterns left out; optional by absence, at most 24, and 16 unions
gemini, batch                            `responseSchema`: OpenAPI types, nullable, references inlined, enums of text
gemini, realtime                         `responseJsonSchema`: const as enum, few keywords

Read on 2026-11-30 from https://docs.claude.com/en/docs/build-with-claude/structured-outputs and
https://ai.google.dev/gemini-api/docs/structured-output. What is left out is checked when the answer comes back.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from dagster_llmbatch.errors import UnportableSchemaError
from dagster_llmbatch.schemas.portable import Portable, Schema, definition_of, is_recursive

Mode = Literal["batch", "realtime"]
MOST_OPTIONAL, MOST_UNIONS = 24, 16
"""Anthropic's limits over a whole schema."""
ANTHROPIC_LEFT_OUT = frozenset(
    {
        "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
        "minLength", "maxLength",
    }
)  # fmt: skip
GEMINI_REALTIME_LEFT_OUT = frozenset(
    {"pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
)
GEMINI_BATCH_KEPT = ("description", "minItems", "maxItems", "minimum", "maximum", "minLength", "maxLength", "pattern")
GEMINI_TEXT_FORMATS = frozenset({"date-time"})


def in_dialect(meant: "Mapping[str, Any]", portable: "Mapping[str, Any]", *, provider: str, mode: Mode) -> Schema:
    """A schema in a provider's dialect. Raises UnportableSchemaError, with the provider, for what it cannot express.

    Args:
        meant: the schema as the user meant it.
        portable: its portable form.
    """
    if provider == "anthropic":
        return _anthropic(meant, portable)
    if provider == "gemini":
        _refuse_recursion(portable, "gemini")
        return _GeminiBatch(portable).rewrite() if mode == "batch" else _gemini_realtime(portable)
    return json.loads(json.dumps(portable))


def _anthropic(meant: "Mapping[str, Any]", portable: "Mapping[str, Any]") -> Schema:
    _refuse_recursion(portable, "anthropic")
    absent = Portable(meant, asset="", optional_by_absence=True).rewrite()
    found = absent if _optional(absent) <= MOST_OPTIONAL else dict(portable)
    unions = sum(1 for node in _nodes(found) if "anyOf" in node or isinstance(node.get("type"), list))
    if unions > MOST_UNIONS:
        raise _refused(
            "anthropic", "$", f"{unions} unions with null or another type; it takes {MOST_UNIONS} in a schema"
        )
    return _without(found, ANTHROPIC_LEFT_OUT)


def _gemini_realtime(portable: "Mapping[str, Any]") -> Schema:
    found = _without(portable, GEMINI_REALTIME_LEFT_OUT)
    for node in list(_nodes(found)):
        if "const" in node:
            node["enum"] = [node.pop("const")]
    return found


class _GeminiBatch:
    """The OpenAPI subset of `responseSchema`."""

    def __init__(self, root: "Mapping[str, Any]") -> None:
        self._root = root

    def rewrite(self) -> Schema:
        """The whole schema, its references inlined."""
        return self._node(self._root)

    def _node(self, node: "Mapping[str, Any]") -> Schema:
        if "$ref" in node:
            return self._node(definition_of(node["$ref"], self._root) or {})
        if "anyOf" in node:
            return self._union(list(node["anyOf"]), node)
        kinds = node.get("type")
        if isinstance(kinds, list):
            return self._union([{**node, "type": kind} for kind in kinds], {})
        if "enum" in node or "const" in node:
            return self._enum(node)
        found: Schema = {"type": str(kinds).upper()}
        found |= {name: node[name] for name in GEMINI_BATCH_KEPT if name in node}
        if node.get("format") in GEMINI_TEXT_FORMATS:
            found["format"] = node["format"]
        if kinds == "array":
            found["items"] = self._node(node["items"])
        if kinds == "object":
            found["properties"] = {name: self._node(inner) for name, inner in node["properties"].items()}
            found["required"] = list(node["required"])
            found["propertyOrdering"] = list(node["properties"])
        return found

    def _union(self, options: "list[Mapping[str, Any]]", node: "Mapping[str, Any]") -> Schema:
        others = [option for option in options if option.get("type") != "null"]
        made = [self._node(option) for option in others]
        found = made[0] if len(made) == 1 else {"anyOf": made}
        found |= {"nullable": True} if len(others) < len(options) else {}
        return found | ({"description": node["description"]} if "description" in node else {})

    @staticmethod
    def _enum(node: "Mapping[str, Any]") -> Schema:
        """Enums hold text only: other values go as their JSON, and come back as what they are."""
        values = list(node.get("enum", [node.get("const")]))
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values if value is not None]
        found: Schema = {"type": "STRING", "format": "enum", "enum": texts}
        found |= {"nullable": True} if len(texts) < len(values) else {}
        return found | ({"description": node["description"]} if "description" in node else {})


def _without(schema: "Mapping[str, Any]", keywords: "frozenset[str]") -> Schema:
    """A copy without some keywords, at every node; properties of these names stay."""
    found: Schema = json.loads(json.dumps(schema))
    for node in list(_nodes(found)):
        for keyword in keywords & set(node):
            del node[keyword]
    return found


def _nodes(node: "dict[str, Any]") -> "Iterator[dict[str, Any]]":
    """Every schema within a schema, itself first."""
    yield node
    for holder in ("properties", "$defs"):
        for inner in (node.get(holder) or {}).values():
            yield from _nodes(inner)
    for inner in [*node.get("anyOf", ()), *([node["items"]] if isinstance(node.get("items"), dict) else [])]:
        yield from _nodes(inner)


def _optional(schema: "dict[str, Any]") -> int:
    return sum(len(node.get("properties") or {}) - len(node.get("required") or ()) for node in _nodes(schema))


def _refuse_recursion(portable: "Mapping[str, Any]", provider: str) -> None:
    for path, ref in _refs(portable, "$"):
        if is_recursive(ref, portable):
            raise _refused(provider, path, "a type that holds itself; give it a fixed number of levels")


def _refs(node: Any, path: str) -> "Iterator[tuple[str, str]]":
    """Path and target of every reference, the root's before the definitions'."""
    if isinstance(node, list):
        for inner in node:
            yield from _refs(inner, path)
    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("$ref"), str):
        yield path, node["$ref"]
    for name, inner in (node.get("properties") or {}).items():
        yield from _refs(inner, f"{path}.{name}")
    yield from _refs(node.get("items"), f"{path}[]")
    yield from _refs(node.get("anyOf"), path)
    for name, inner in (node.get("$defs") or {}).items():
        yield from _refs(inner, f"$defs.{name}")


def _refused(provider: str, path: str, what: str) -> UnportableSchemaError:
    return UnportableSchemaError(
        f"output {path}: {provider}'s structured output cannot express {what}. Nothing was spent. Change the type, or take "
        "another provider.",
        path=path,
        provider=provider,
    )
