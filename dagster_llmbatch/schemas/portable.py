"""JSON Schema to the form that strict structured output accepts.

The rules are OpenAI's for strict schemas (https://platform.openai.com/docs/guides/structured-outputs, read 2026-11-30):
the root is an object, every object is closed, every property is required, optional is a union with null. What is only
a bound is sent where it is known to be accepted and checked locally in any case. What no rewrite can express is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from dagster_llmbatch.errors import UnportableSchemaError

Schema = dict[str, Any]

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
KEPT = frozenset(
    {
        "type", "enum", "const", "description", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "minItems", "maxItems", "minLength", "maxLength",
    }
)  # fmt: skip
REFUSED = {
    "patternProperties": "maps with pattern keys",
    "prefixItems": "tuples",
    "not": "negation",
    "if": "conditions",
    "dependentSchemas": "conditions",
    "dependentRequired": "conditions",
    "propertyNames": "maps",
    "unevaluatedProperties": "open objects",
    "contains": "contains",
}
MOST_PROPERTIES, MOST_LEVELS, MOST_ENUM_VALUES = 5_000, 10, 1_000
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
"""Asked of a Decimal, which goes as text: a JSON number may have lost digits before we see it."""


class Portable:
    """One rewrite of one schema."""

    def __init__(self, schema: "Mapping[str, Any]", *, asset: str, optional_by_absence: bool = False) -> None:
        self._root = dict(schema)
        self._by_absence = optional_by_absence
        self._asset = asset
        self._properties = 0
        self._enum_values = 0

    def rewrite(self) -> Schema:
        """The portable schema. Raises UnportableSchemaError naming the path that cannot be expressed."""
        root = resolve(self._root, self._root)
        if root.get("type") != "object" or any(k in root for k in ("anyOf", "oneOf")):
            raise self._refuse("$", "the root must be an object; wrap the value in a model with one field")
        found = self._node(root, "$", 1)
        if found["type"] != "object":
            raise self._refuse("$", "a map as the whole answer; wrap it in a model with one field")
        defs = self._root.get("$defs") or self._root.get("definitions") or {}
        used = {name: self._node(node, f"$defs.{name}", 1) for name, node in defs.items() if _refers(found, defs, name)}
        return found | ({"$defs": used} if used else {})

    def _node(self, node: Any, path: str, level: int) -> Schema:
        if not isinstance(node, Mapping) or not node:
            raise self._refuse(path, "a value of any type; give it a type")
        if level > MOST_LEVELS:
            raise self._refuse(path, f"nesting beyond {MOST_LEVELS} levels")
        for keyword, what in REFUSED.items():
            if keyword in node:
                raise self._refuse(path, what)
        if "$ref" in node:
            if definition_of(node["$ref"], self._root) is None:
                raise self._refuse(path, "a $ref to anything but a definition of the same schema")
            return {"$ref": str(node["$ref"]).replace("#/definitions/", "#/$defs/")}
        if "allOf" in node:
            if len(node["allOf"]) != 1:
                raise self._refuse(path, "allOf of several schemas")
            return self._node(node["allOf"][0], path, level)
        options = options_of(node)
        if options:
            made = [self._node(option, f"{path}|{i}", level) for i, option in enumerate(options)]
            return {"anyOf": made} | ({"description": node["description"]} if "description" in node else {})
        return self._typed(node, path, level)

    def _typed(self, node: "Mapping[str, Any]", path: str, level: int) -> Schema:
        kept = {k: v for k, v in node.items() if k in KEPT}
        if "(?" in str(kept.get("pattern", "")):
            del kept["pattern"]  # lookaround is refused; checked locally
        if node.get("format") in FORMATS:
            kept["format"] = node["format"]
        elif node.get("format") == "decimal" and node.get("type") == "string":
            kept.setdefault("pattern", DECIMAL_PATTERN)
        self._enum_values += len(node.get("enum", ()))
        if self._enum_values > MOST_ENUM_VALUES:
            raise self._refuse(path, f"more than {MOST_ENUM_VALUES} enum values")
        kinds = node.get("type")
        if kinds is None and "enum" not in node and "const" not in node:
            raise self._refuse(path, "a value of any type; give it a type")
        if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
            made = self._object(node, path, level)
            if made.get("type") == "array" and isinstance(kinds, list):
                raise self._refuse(path, "a map that may be something else by its type list; use anyOf")
            return kept | made
        if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
            if "items" not in node:
                raise self._refuse(path, "a list of values of any type; give its items a type")
            return kept | {"items": self._node(node["items"], f"{path}[]", level + 1)}
        return kept

    def _object(self, node: "Mapping[str, Any]", path: str, level: int) -> Schema:
        properties = node.get("properties") or {}
        extra = node.get("additionalProperties")
        if isinstance(extra, Mapping) and extra and not properties:
            return self._map(extra, path, level)
        if extra is True or isinstance(extra, Mapping):
            raise self._refuse(
                path, "an open object (dict[str, Any], extra='allow'); name its fields, or give it a type"
            )
        if not properties:
            raise self._refuse(path, "an object without fields")
        self._properties += len(properties)
        if self._properties > MOST_PROPERTIES:
            raise self._refuse(path, f"more than {MOST_PROPERTIES} properties")
        required = set(node.get("required") or ())
        made = {}
        for name, value in properties.items():
            inner = self._node(value, f"{path}.{name}", level + 1)
            stays = self._by_absence or name in required or accepts_null(value, self._root)
            made[name] = inner if stays else _or_null(inner)
        wanted = [name for name in made if name in required] if self._by_absence else list(made)
        return {"properties": made, "required": wanted, "additionalProperties": False}

    def _map(self, values: "Mapping[str, Any]", path: str, level: int) -> Schema:
        """A map as a list of pairs, which every provider can be asked for; the answer is turned back."""
        pair = {"key": {"type": "string"}, "value": self._node(values, f"{path}{{}}", level + 2)}
        closed = {"type": "object", "properties": pair, "required": ["key", "value"], "additionalProperties": False}
        return {"type": "array", "items": closed}

    def _refuse(self, path: str, what: str) -> UnportableSchemaError:
        where = f"{self._asset}: " if self._asset else ""
        return UnportableSchemaError(
            f"{where}output {path}: structured output cannot express {what}. Nothing was spent.", path=path
        )


def _or_null(node: Schema) -> Schema:
    if "anyOf" in node:
        return node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
    return {"anyOf": [node, {"type": "null"}]}


def _refers(node: Any, defs: "Mapping[str, Any]", name: str) -> bool:
    """Whether a node refers to a definition, through others too."""
    seen: set[str] = set()
    frontier = _references(node)
    while frontier:
        found = frontier.pop()
        if found not in seen:
            seen.add(found)
            frontier |= _references(defs.get(found))
    return name in seen


def _references(node: Any) -> "set[str]":
    if isinstance(node, Mapping):
        own = {re.sub(r"^#/(\$defs|definitions)/", "", str(node["$ref"]))} if "$ref" in node else set()
        return own.union(*(_references(v) for k, v in node.items() if k != "$defs"), set())
    return set().union(*(_references(v) for v in node)) if isinstance(node, list) else set()


def definition_of(ref: Any, root: "Mapping[str, Any]") -> "Mapping[str, Any] | None":
    """The definition that a $ref names, `#` being the root; None where it names nothing of this schema."""
    if ref == "#":
        return root
    head, _, name = str(ref).rpartition("/")
    return (root.get(head[2:]) or {}).get(name) if head in ("#/$defs", "#/definitions") else None


def is_recursive(ref: str, root: "Mapping[str, Any]") -> bool:
    """Whether what a $ref names holds itself."""
    defs = root.get("$defs") or root.get("definitions") or {}
    name = ref.rsplit("/", 1)[-1]
    return ref == "#" or _refers(defs.get(name), defs, name)


def resolve(node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> "dict[str, Any]":
    """Follow a node's $ref, and a single allOf, to the schema it stands for.

    Raises UnportableSchemaError where a $ref leads nowhere, or only to itself.
    """
    found: Mapping[str, Any] | None = node
    for _ in range(100):
        if found is None:
            raise UnportableSchemaError("the output schema has a $ref that leads to no definition.", path="$")
        if "$ref" in found:
            found = definition_of(found["$ref"], root)
        elif len(found.get("allOf", ())) == 1:
            found = found["allOf"][0]
        else:
            return dict(found)
    raise UnportableSchemaError("the output schema refers to itself and nothing else.", path="$")


def options_of(node: "Mapping[str, Any]") -> "list[Any]":
    """The options of a union; none where the node is no union."""
    return node.get("anyOf") or node.get("oneOf") or []


def accepts_null(node: "Mapping[str, Any]", root: "Mapping[str, Any]") -> bool:
    """Whether null is a value of the schema."""
    found = resolve(node, root)
    options = options_of(found)
    if options:
        return any(accepts_null(option, root) for option in options)
    kinds = found.get("type")
    return kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or None in found.get("enum", ())
