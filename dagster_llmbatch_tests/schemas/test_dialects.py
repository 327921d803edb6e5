"""Each provider's dialect: its rules hold, and any valid value survives type, dialect, wire and the way back."""

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, create_model

from dagster_llmbatch.errors import UnportableSchemaError
from dagster_llmbatch.schemas.output import Invalid, OutputSchema

WAYS = [(p, m) for p in ("openai", "anthropic", "gemini", "openrouter", "compatible/x") for m in ("batch", "realtime")]
every_way = pytest.mark.parametrize(("provider", "mode"), WAYS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)


class Grade(Enum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 3


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: "list[str]"


class Everything(BaseModel):
    """One of each kind that travels."""

    name: str = Field(max_length=20)
    size: Literal["S", "M"]
    grade: Grade
    pet: Cat | Dog = Field(discriminator="kind")
    counts: "dict[str, int]"
    groups: "dict[str, list[Cat]]"
    note: "str | None" = None
    maybe: "int | None"
    limit: int = 7


EVERYTHING = st.builds(
    Everything,
    name=TEXT,
    size=st.sampled_from(["S", "M"]),
    grade=st.sampled_from(Grade),
    pet=st.builds(Cat, kind=st.just("cat"), lives=st.integers(0, 9))
    | st.builds(Dog, kind=st.just("dog"), tricks=st.lists(TEXT, max_size=2)),
    counts=st.dictionaries(TEXT, st.integers(-5, 5), max_size=3),
    groups=st.dictionaries(
        TEXT, st.lists(st.builds(Cat, kind=st.just("cat"), lives=st.integers(0, 9)), max_size=2), max_size=2
    ),
    note=st.none() | TEXT,
    maybe=st.none() | st.integers(-(2**63), 2**63 - 1),
    limit=st.integers(-5, 5),
)
SCHEMA = OutputSchema.compile(Everything)


def nodes(node: Any) -> "Iterator[Mapping[str, Any]]":
    """Every mapping within a schema."""
    if isinstance(node, Mapping):
        yield node
        for inner in node.values():
            yield from nodes(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from nodes(inner)


def wire(value: Any, meant: "Mapping[str, Any]", dialect: "Mapping[str, Any]", shout: bool) -> Any:
    """The answer a model of the dialect writes for a value; `shout`: in another casing of its enums."""
    if "$ref" in meant:
        meant = (SCHEMA.json_schema or {})["$defs"][meant["$ref"].rsplit("/", 1)[-1]]
    options = meant.get("oneOf") or meant.get("anyOf")
    if options:
        defs = (SCHEMA.json_schema or {})["$defs"]
        found = [defs[o["$ref"].rsplit("/", 1)[-1]] if "$ref" in o else o for o in options]
        if isinstance(value, dict):
            meant = next(o for o in found if o["properties"]["kind"]["const"] == value["kind"])
        else:
            meant = next(o for o in found if (o["type"] == "null") == (value is None))
    if isinstance(value, dict) and isinstance(meant.get("additionalProperties"), Mapping):
        return [{"key": k, "value": wire(v, meant["additionalProperties"], dialect, shout)} for k, v in value.items()]
    if isinstance(value, dict):
        return {k: wire(v, meant["properties"][k], dialect, shout) for k, v in value.items()}
    if isinstance(value, list):
        return [wire(v, meant["items"], dialect, shout) for v in value]
    if "enum" in meant or "const" in meant:
        if not isinstance(value, str):
            return str(value) if dialect.get("type") == "OBJECT" else value  # Gemini's batch dialect has text enums
        return value.swapcase() if shout else value
    return value


@every_way
@QUICK
@given(value=EVERYTHING, shout=st.booleans())
def test_any_value_survives_the_way_there_and_back(provider: str, mode: Any, value: Everything, shout: bool) -> None:
    """By the model and by the schema as the ledger keeps it; enums and tags come back in their own casing."""
    dialect = SCHEMA.for_provider(provider, mode)
    assert dialect is not None
    plain = value.model_dump(mode="json")
    answer = json.dumps(wire(plain, SCHEMA.json_schema or {}, dialect, shout))
    if dialect.get("type") != "OBJECT" and not shout:
        Draft202012Validator(dialect).validate(json.loads(answer))
    for schema in (SCHEMA, OutputSchema.from_json(SCHEMA.to_json())):
        found = schema.validator()(answer)
        assert not isinstance(found, Invalid), found.message
        got = dict(zip(schema.arrow_schema.names, found.values, strict=True))
        assert (got["name"], got["size"], got["grade"]) == (plain["name"], plain["size"], plain["grade"])
        assert (got["note"], got["maybe"], got["limit"]) == (plain["note"], plain["maybe"], plain["limit"])
        assert json.loads(got["counts"]) == plain["counts"]
        assert json.loads(got["groups"]) == plain["groups"]
        assert json.loads(got["pet"]) == plain["pet"]


@every_way
def test_each_dialect_keeps_its_rules(provider: str, mode: Any) -> None:
    """No union is dropped, no map is an empty closed object, and no keyword stands that the provider refuses."""
    dialect = SCHEMA.for_provider(provider, mode)
    assert dialect is not None
    keywords = {key for node in nodes(dialect) for key in node}
    assert not keywords & {"oneOf", "allOf", "discriminator", "default"}
    assert "anyOf" in json.dumps(dialect["properties"]["pet"])
    pairs = dialect["properties"]["counts"]["items"]["properties"]
    assert set(pairs) == {"key", "value"}
    if provider == "anthropic":
        assert not keywords & {"maximum", "minimum", "maxLength", "pattern"}
        assert "limit" not in dialect["required"]
    elif (provider, mode) == ("gemini", "batch"):
        assert not keywords & {"$ref", "$defs", "const", "additionalProperties"}
        assert dialect["properties"]["note"] == {"type": "STRING", "nullable": True}
        assert all(isinstance(v, str) for node in nodes(dialect) for v in node.get("enum", ()))
    elif provider != "gemini":
        for node in nodes(dialect):
            if node.get("type") == "object":
                assert node["additionalProperties"] is False
                assert set(node["required"]) == set(node["properties"])


class Tree(BaseModel):
    label: str
    left: "Tree | None"


def test_recursion_is_refused_where_it_cannot_be_said() -> None:
    """OpenAI takes it; Anthropic and Gemini do not: the error names the path and the provider."""
    schema = OutputSchema.compile(Tree)
    assert schema.for_provider("openai")
    for provider in ("anthropic", "gemini"):
        with pytest.raises(UnportableSchemaError) as caught:
            schema.for_provider(provider)
        assert caught.value.provider == provider
        assert "left" in caught.value.path


def test_anthropics_limits_over_the_whole_schema() -> None:
    """24 optional fields go by absence; more go as unions, of which 16 fit; what fits neither way is refused."""
    fields: dict[str, Any] = {f"f{i}": (int, 0) for i in range(24)}
    found = OutputSchema.compile(create_model("Wide", **fields)).for_provider("anthropic")
    assert found is not None
    assert found["required"] == []
    assert "anyOf" not in json.dumps(found)
    with pytest.raises(UnportableSchemaError, match="anthropic"):
        OutputSchema.compile(create_model("Wider", **fields, f24=(int, 0))).for_provider("anthropic")
    nullable: dict[str, Any] = {f"f{i}": (int | None, ...) for i in range(17)}
    with pytest.raises(UnportableSchemaError, match="17 unions"):
        OutputSchema.compile(create_model("Nullable", **nullable)).for_provider("anthropic")


def test_a_key_that_stands_twice_is_no_map() -> None:
    """Neither of two values is dropped silently: the answer is not valid."""

    class Counts(BaseModel):
        counts: "dict[str, int]"

    validate = OutputSchema.compile(Counts).validator()
    twice = {"counts": [{"key": "a", "value": 1}, {"key": "a", "value": 2}]}
    assert isinstance(validate(json.dumps(twice)), Invalid)
    assert not isinstance(validate('{"counts": [{"key": "a", "value": 1}]}'), Invalid)
    assert not isinstance(validate('{"counts": {"a": 1}}'), Invalid)


def test_what_the_official_rewriters_lose_stays() -> None:
    """On one schema: OpenAI's leaves a map and oneOf that strict mode refuses, Anthropic's makes the map an empty object."""
    from anthropic import transform_schema
    from openai.lib._pydantic import to_strict_json_schema

    theirs = to_strict_json_schema(Everything)
    assert "oneOf" in json.dumps(theirs)
    assert theirs["properties"]["counts"].get("additionalProperties") == {"type": "integer"}
    counts = transform_schema(Everything)["properties"]["counts"]
    assert counts.get("additionalProperties") is False
    assert not counts.get("properties")
    for provider in ("openai", "anthropic"):
        ours = SCHEMA.for_provider(provider)
        assert ours is not None
        assert ours["properties"]["counts"]["items"]["properties"]["value"] == {"type": "integer"}


def test_a_key_of_a_map_is_in_no_message() -> None:
    """Keys of maps are the answer's text: a path shows the field and that it goes into a map, by model and by schema."""
    for schema in (SCHEMA, OutputSchema.from_json(SCHEMA.to_json())):
        good = {"name": "n", "size": "S", "grade": 1, "pet": {"kind": "cat", "lives": 1}, "groups": {}, "maybe": None}
        found = schema.validator()(json.dumps({**good, "counts": {"SECRET-ANSWER": "x"}}))
        assert isinstance(found, Invalid)
        assert "SECRET-ANSWER" not in found.message
        assert "counts{}" in found.message
