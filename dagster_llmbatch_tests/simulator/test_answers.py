"""Answers fit their schema, and are the same each time."""

import datetime
import ipaddress
import json
import uuid
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import AnyUrl, BaseModel, Field

from dagster_llmbatch.simulator.answers import SchemaRefused, answer


def obj(required: "list[str] | None" = None, **properties: Any) -> "dict[str, Any]":
    """A closed object, all of whose properties are required unless said."""
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def ref(name: str) -> "dict[str, str]":
    """A reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
NODE = obj(
    name={"type": "string"},
    left={"anyOf": [ref("Node"), {"type": "null"}]},
    more={"type": "array", "items": ref("Node")},
)
SUM = obj(left=ref("Term"), right=ref("Term"))
TERM = {"anyOf": [ref("Sum"), ref("Sum"), ref("Leaf")]}
PAIR = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}
SCHEMAS: "dict[str, dict[str, Any]]" = {
    "enum": obj(a={"enum": ["x", "y"]}, b={"type": ["string", "null"], "enum": ["x", None]}, c={"enum": [1, 2]}),
    "const": obj(a={"const": "x"}, b={"const": 3}, c={"const": None}),
    "anyOf null": obj(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}, b={"type": ["string", "null"]}),
    "anyOf": obj(a={"anyOf": [obj(kind={"const": "a"}), obj(kind={"const": "b"}, n={"type": "number"})]}),
    "nested": obj(a=obj(b=obj(c=obj(d={"type": "boolean"}))), e={"type": "array", "items": obj(f={"type": "integer"})}),
    "deep": {
        "$defs": {f"L{n}": obj(x=ref(f"L{n + 1}")) for n in range(9)} | {"L9": obj(y={"type": "integer"})},
        **ref("L0"),
    },
    "recursion": {**obj(root=ref("Node")), "$defs": {"Node": NODE}},
    "recursion of the root": obj(value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "recursion without null": {
        **obj(t=ref("Term")),
        "$defs": {"Sum": SUM, "Term": TERM, "Leaf": obj(n={"type": "integer"})},
    },
    "recursion of an optional": {
        **obj(n=ref("N")),
        "$defs": {"N": obj(["v"], v={"type": "integer"}, n=ref("N"), m=ref("N"))},
    },
    "escaped reference": {**obj(a={"$ref": "#/$defs/a~1b~0c"}), "$defs": {"a/b~c": {"type": "integer"}}},
    "allOf": {**obj(a={"allOf": [ref("A")], "description": "d"}), "$defs": {"A": obj(x={"type": "integer"})}},
    "integer bounds": obj(
        a={"type": "integer", "minimum": 3, "maximum": 5},
        b={"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        c={"type": "integer", "maximum": -5},
        d={"type": "integer", "exclusiveMaximum": -200},
        e={"type": "integer", "minimum": -7, "maximum": -6},
        f={"type": "integer", "minimum": 0.5, "maximum": 1.5},
        g={"type": "integer", "minimum": 7, "multipleOf": 7, "maximum": 21},
        h={"type": "integer", "minimum": 1, "exclusiveMinimum": 1, "maximum": 2},
        i={"type": "integer", "multipleOf": 0.5},
        j={"type": "integer", "minimum": 10**12},
    ),
    "number bounds": obj(
        a={"type": "number", "minimum": 0, "maximum": 1},
        b={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
        c={"type": "number", "minimum": 0.0001, "maximum": 0.0002},
        d={"type": "number", "maximum": -5.5},
        e={"type": "number", "multipleOf": 0.25, "minimum": 1.1},
        f={"type": "number", "minimum": 2.5, "maximum": 2.5},
        g={"type": "number", "exclusiveMinimum": -1e-6, "maximum": 0},
    ),
    "string lengths": obj(
        a={"type": "string", "minLength": 200},
        b={"type": "string", "maxLength": 3},
        c={"type": "string", "minLength": 20, "maxLength": 20},
        d={"type": "string", "maxLength": 0},
    ),
    "formats": obj(**{name: {"type": "string", "format": name} for name in FORMATS}),
    "patterns": obj(
        a={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"},
        b={"type": "string", "pattern": r"^(\d{3}|[^a-z\s]x?)\.(yes|no)+$"},
        c={"type": "string", "pattern": r"^-?\d+(\.\d+)?$"},
        d={"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
        e={"type": "string", "pattern": r"^\w+@\w+$", "minLength": 3},
    ),
    "arrays": obj(
        a={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        b={"type": "array", "items": {"type": "string"}, "maxItems": 0},
        c={"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True, "minItems": 3},
        d={**PAIR, "minItems": 2, "maxItems": 2},
        g=PAIR,
        e={"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, "minItems": 1},
        f={"type": "array", "items": {"enum": ["x"]}, "uniqueItems": True},
    ),
    "open": {"type": "object", "additionalProperties": {"type": "integer"}},
    "untyped": obj(a={}, b={"properties": {"c": {"type": "integer"}}, "required": ["c"]}),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_fit_their_schema(name: str) -> None:
    """Whatever the prompt."""
    schema = SCHEMAS[name]
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    judge.check_schema(schema)
    for n in range(60):
        judge.validate(json.loads(answer(f"prompt {n}", schema)))


class Line(BaseModel):
    """A part of an order."""

    sku: str = Field(pattern=r"^[A-Z]{2}\d{3}$")
    parts: "list[Line]"


class Order(BaseModel):
    """Types whose formats pydantic checks more strictly than JSON Schema does."""

    id: uuid.UUID
    made: datetime.datetime
    day: datetime.date
    hour: datetime.time
    took: datetime.timedelta
    host: ipaddress.IPv4Address
    other: ipaddress.IPv6Address
    link: AnyUrl
    pair: tuple[int, str]
    tags: set[Literal["a", "b", "c"]]
    share: float = Field(gt=0, lt=1)
    lines: list[Line]
    note: str | None = None


def test_answers_fit_pydantic_models() -> None:
    """Read in strict JSON mode."""
    for n in range(100):
        Order.model_validate_json(answer(f"prompt {n}", Order.model_json_schema()), strict=True)


def test_an_answer_is_the_same_for_the_same_prompt_and_varies_with_it() -> None:
    """So a run can be compared with its replay."""
    schema = SCHEMAS["nested"]
    assert answer("a", schema) == answer("a", schema)
    assert answer("a", None) == answer("a", None)
    for one in (schema, None):
        assert len({answer(str(n), one) for n in range(50)}) > 25
    # A known value: also the same in another process and on another machine.
    assert answer("a", obj(n={"type": "integer"}, s={"enum": list("abcdef")})) == '{"n":32,"s":"c"}'


def test_prompts_that_are_no_text_are_answered() -> None:
    """Lone surrogates and nothing at all."""
    assert answer("\ud800", None)
    assert answer("", SCHEMAS["enum"])


@pytest.mark.parametrize(
    "node",
    [ref("None"), ref("Loop"), {"type": "string", "pattern": "("}, {"type": "string", "pattern": "a^b"}],
)
def test_a_schema_without_an_answer_is_refused(node: "dict[str, Any]") -> None:
    """Dangling and endless references, patterns nothing matches."""
    with pytest.raises(SchemaRefused):
        answer("prompt", {**obj(a=node), "$defs": {"Loop": ref("Loop")}})


def test_optional_properties_may_be_left_out() -> None:
    """Some of them, some of the time; required ones are there, and come first."""
    schema = obj(["b", "d"], a={"type": "string"}, b={"type": "string"}, c={"type": "string"}, d={"type": "string"})
    seen = {tuple(json.loads(answer(str(n), schema, leave_out=True))) for n in range(100)}
    assert seen == {("b", "d"), ("b", "d", "a"), ("b", "d", "c"), ("b", "d", "a", "c")}
    assert {tuple(json.loads(answer(str(n), schema))) for n in range(20)} == {("a", "b", "c", "d")}
