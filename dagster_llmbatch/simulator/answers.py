"""Answers that fit a request's JSON Schema, always the same for the same prompt."""

import hashlib
import math
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from dagster_llmbatch.simulator.scalars import WORDS, NoSuchText, integer, number, string

DEEPEST = 6
"""Below this many levels only what ends soonest is chosen, so that recursive schemas end."""
DISTINCT_TRIES = 20
LEFT_OUT = 0.3
"""The share of optional properties that are missing where some may be."""
Node = Mapping[str, Any]


class SchemaRefused(Exception):
    """A schema no answer can be made for."""


def answer(prompt: str, schema: "Node | None", *, leave_out: bool = False) -> str:
    """The text of a reply: JSON for a schema, a short sentence without one. Raises SchemaRefused.

    Args:
        leave_out: required properties come first, and some of the others are missing.
    """
    seed = random.Random(hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).digest())
    if schema is None:
        return f"Noted: {' '.join(seed.choice(WORDS) for _ in range(4))} {seed.randrange(10_000)}."
    try:
        return msgspec.json.encode(_Answer(schema, seed, leave_out=leave_out).value(schema, 0)).decode()
    except (NoSuchText, RecursionError) as error:
        raise SchemaRefused(str(error)) from error


class _Answer:
    """One answer in the making."""

    def __init__(self, root: Node, seed: random.Random, *, leave_out: bool) -> None:
        self._root = root
        self._seed = seed
        self._leave_out = leave_out

    def value(self, node: Node, depth: int) -> Any:
        """A value that fits a node."""
        if "$ref" in node:
            return self.value(_target(node["$ref"], self._root), depth + 1)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self._seed.choice(list(node["enum"]))
        options = _options(node)
        if options:
            chosen = self._seed.choice(options)
            if depth > DEEPEST:
                chosen = min(options, key=lambda option: _height(option, self._root, frozenset()))
            return self.value(chosen, depth + 1)
        kind = _kind(node)
        if kind == "object":
            return self._object(node, depth)
        if kind == "array":
            return self._array(node, depth)
        if kind == "boolean":
            return self._seed.random() < 0.5
        made = {"string": string, "integer": integer, "number": number}.get(kind)
        return None if made is None else made(node, self._seed)

    def _object(self, node: Node, depth: int) -> "dict[str, Any]":
        required = node.get("required", ())
        properties = _properties(node)
        if self._leave_out:
            properties.sort(key=lambda found: found[0] not in required)
        return {
            name: self.value(inner, depth + 1)
            for name, inner in properties
            if name in required or (depth <= DEEPEST and not self._left_out())
        }

    def _left_out(self) -> bool:
        return self._leave_out and self._seed.random() < LEFT_OUT

    def _array(self, node: Node, depth: int) -> "list[Any]":
        first, rest = list(node.get("prefixItems", ())), _rest(node)
        least = node.get("minItems", 0)
        most = min(node.get("maxItems", least + 2), least + 2)
        if first and not rest:
            most = min(most, max(least, len(first)))
        count = least if depth > DEEPEST else self._seed.randint(least, max(least, most))
        found: list[Any] = []
        for position in range(count):
            inner = first[position] if position < len(first) else rest
            made = self.value(inner, depth + 1)
            if node.get("uniqueItems"):
                tries = 0
                while made in found and tries < DISTINCT_TRIES:
                    made, tries = self.value(inner, depth + 1), tries + 1
                if made in found and len(found) >= least:
                    break
            found.append(made)
        return found


def _target(ref: str, root: "Node") -> "Node":
    """The node a local reference points at."""
    found: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise SchemaRefused(f"nothing at the reference {ref!r}")
        found = found[name]
    return found


def _options(node: "Node") -> "list[Node]":
    """The nodes one of which has to be met; empty: the node itself has to be."""
    if "allOf" in node:
        merged = {name: value for name, value in node.items() if name != "allOf"}
        for part in node["allOf"]:
            merged = {**merged, **part, "properties": {**merged.get("properties", {}), **part.get("properties", {})}}
        if not merged["properties"]:
            del merged["properties"]
        return [merged]
    options = node.get("anyOf") or node.get("oneOf")
    if options:
        return list(options)
    kinds = node.get("type")
    return [{**node, "type": kind} for kind in kinds] if isinstance(kinds, list) else []


def _kind(node: "Node") -> str:
    if "type" in node:
        return str(node["type"])
    if "properties" in node:
        return "object"
    return "array" if "items" in node or "prefixItems" in node else "null"


def _height(node: "Node", root: "Node", within: "frozenset[str]") -> float:
    """The fewest levels a value of the node can have; endless for a reference that leads back to itself only."""
    if "$ref" in node:
        ref = node["$ref"]
        return math.inf if ref in within else 1 + _height(_target(ref, root), root, within | {ref})
    if "const" in node or "enum" in node:
        return 0
    options = _options(node)
    if options:
        return 1 + min(_height(option, root, within) for option in options)
    kind = _kind(node)
    inner: list[Node] = []
    if kind == "object":
        inner = [part for name, part in _properties(node) if name in node.get("required", ())]
    elif kind == "array" and node.get("minItems", 0):
        inner = [*node.get("prefixItems", ()), _rest(node)]
    return max((1 + _height(part, root, within) for part in inner), default=0)


def _properties(node: "Node") -> "list[tuple[str, Node]]":
    return list((node.get("properties") or {}).items())


def _rest(node: "Node") -> "Node":
    """The node of an array's elements."""
    found = node.get("items")
    return found if isinstance(found, Mapping) else {}
