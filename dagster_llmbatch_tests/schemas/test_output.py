"""Output types compiled: the portable schema, the columns, the digest, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal

import jsonschema
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pydantic import AliasPath, BaseModel, ConfigDict, Field, RootModel, create_model

from dagster_llmbatch.errors import ConfigurationError, UnportableSchemaError
from dagster_llmbatch.schemas.output import Invalid, OutputSchema
from dagster_llmbatch_tests.schemas.models import (
    RICH,
    Aliased,
    Changing,
    Checked,
    Defaults,
    Forbidding,
    Node,
    Part,
    Plain,
    Rich,
    Zoo,
)

ALLOWED = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$defs", "$ref",
    "description", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems",
    "maxItems", "minLength", "maxLength", "format",
}  # fmt: skip
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def one(kind: Any, **field: Any) -> "type[BaseModel]":
    """A model with a field `x` of a type."""
    return create_model("Made", x=(kind, Field(**field)))


def nodes(node: Any) -> "Iterator[dict[str, Any]]":
    """Every schema in a portable schema."""
    yield node
    inner = [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
    for found in [*inner, *([node["items"]] if "items" in node else [])]:
        yield from nodes(found)


SCHEMA = {
    "title": "Ticket kind",
    "type": "object",
    "properties": {
        "kind": {"oneOf": [{"$ref": "#/definitions/kind"}, {"type": "null"}]},
        "stars": {"type": ["integer", "null"], "minimum": 1, "maximum": 5},
        "title": {"type": "string", "default": "none", "pattern": "^(?=n)"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    },
    "required": ["kind", "tags"],
    "definitions": {"kind": {"enum": ["bug", "idea"]}, "unused": {"type": "object"}},
}


@pytest.mark.parametrize("output", [Plain, Rich, Node, Defaults, Aliased, Zoo, Checked, Forbidding, SCHEMA])
def test_the_portable_schema_keeps_the_strict_rules(output: Any) -> None:
    """WIRE 1.8: closed, all required, only known keywords, no siblings of a $ref, only definitions that are used."""
    portable = OutputSchema.compile(output).for_provider("openai")
    assert portable is not None
    assert portable["type"] == "object"
    for node in nodes(portable):
        assert set(node) <= ALLOWED
        assert node.get("format", "date") in FORMATS
        assert "(?" not in node.get("pattern", "")
        if "$ref" in node:
            assert set(node) == {"$ref"}
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        if node.get("type") == "array":
            assert "items" in node
    text = json.dumps({k: v for k, v in portable.items() if k != "$defs"} | {"d": portable.get("$defs", {})})
    for name in portable.get("$defs", {}):
        assert f'"#/$defs/{name}"' in text
    jsonschema.Draft202012Validator.check_schema(portable)


def test_optional_is_a_union_with_null_and_definitions_only_when_used() -> None:
    """Required becomes everything, null says absent."""
    portable = OutputSchema.compile(Defaults).portable
    assert portable is not None
    assert portable["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert set(portable["$defs"]) == {"Part"}
    assert "$defs" not in (OutputSchema.compile(Plain).portable or {})


def test_a_caller_may_change_what_it_gets() -> None:
    """Case 10: a provider's dialect is a copy."""
    schema = OutputSchema.compile(Plain)
    before = schema.digest
    found = schema.for_provider("openai")
    assert found is not None
    found["properties"].clear()
    assert schema.digest == before
    assert schema.portable
    assert schema.portable["properties"]


def test_a_dict_changed_after_compiling_changes_nothing() -> None:
    """The schema is compiled from a copy."""
    mine = json.loads(json.dumps(SCHEMA))
    schema = OutputSchema.compile(mine)
    before = schema.digest
    mine["properties"]["stars"]["maximum"] = 9
    assert schema.digest == before


class Open(BaseModel):
    """Extra keys are kept."""

    model_config = ConfigDict(extra="allow")
    a: int


@pytest.mark.parametrize(
    ("output", "path"),
    [
        (one(dict), "$.x"),
        (one(tuple[int, str]), "$.x"),
        (one(Any), "$.x"),
        (one(list), "$.x[]"),
        (Open, "$"),
        (one(Open), "$defs.Open"),
        (one(list[dict[str, Any]]), "$.x[]"),
        (create_model("Empty"), "$"),
        (RootModel[list[int]], "$"),
        (RootModel[Part], "$"),
        (one(int, validation_alias=AliasPath("a", 0)), "$.x"),
        ({"type": "array", "items": {"type": "string"}}, "$"),
        ({"type": "object", "properties": {"x": {"$ref": "#/properties/y"}, "y": {"type": "string"}}}, "$.x"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/missing"}}}, "$.x"),
        ({"type": "object", "properties": {"x": {"not": {"type": "string"}}}}, "$.x"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "$"),
        ({"$ref": "#"}, "$"),
    ],
)
def test_what_no_rewrite_can_express_is_refused_with_its_place(output: Any, path: str) -> None:
    """At definition time, naming the asset and the path."""
    with pytest.raises(UnportableSchemaError) as caught:
        OutputSchema.compile(output, asset="tickets")
    assert caught.value.path == path
    if output != {"$ref": "#"}:
        assert "tickets" in str(caught.value)


@pytest.mark.parametrize(
    "output",
    [
        create_model("Reserved", llm_status=(str, ...)),
        {"type": "object", "properties": {"llm_x": {"type": "string"}}},
        {"type": "object", "properties": {"x": {"type": "strin"}}},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}},
        {"type": "object", "properties": {"x": {"enum": [Decimal(1)]}}},
        int,
        list[int],
        Part(code="a"),
        "text",
    ],
)
def test_what_is_no_output_type_is_refused(output: Any) -> None:
    """Reserved names, broken schemas, other types: a ConfigurationError that names the asset."""
    with pytest.raises(ConfigurationError, match="tickets"):
        OutputSchema.compile(output, asset="tickets")


def test_a_type_without_json_schema_is_refused() -> None:
    """pydantic's own error becomes ours."""
    with pytest.raises(UnportableSchemaError, match=r"tickets.*Made"):
        OutputSchema.compile(one(Callable[[], int]), asset="tickets")


def test_columns_come_from_the_type() -> None:
    """One declared Arrow type a field."""
    part = pa.struct([("code", pa.string()), ("count", pa.int64()), ("partLabel", pa.string())])
    expected = {
        "color": pa.string(),
        "size": pa.string(),
        "level": pa.int64(),
        "price": pa.decimal128(38, 9),
        "key": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "clock": pa.time64("us"),
        "span": pa.duration("us"),
        "part": part,
        "parts": pa.list_(pa.field("item", part)),
        "words": pa.list_(pa.string()),
        "runs": pa.list_(pa.int64()),
        "either": pa.string(),
        "maybe": pa.date32(),
        "host": pa.string(),
    }
    found = OutputSchema.compile(Rich).arrow_schema
    assert {f.name: f.type for f in found} == expected
    assert all(f.nullable for f in found)
    assert (found.field("either").metadata or {})[b"llmbatch"] == b"json"


@pytest.mark.parametrize("output", [None, Plain, Rich, Node, Defaults, Aliased, Zoo, SCHEMA])
def test_the_kept_form_is_the_same_schema(output: Any) -> None:
    """to_json through JSON text and back: columns, metadata, digest."""
    schema = OutputSchema.compile(output)
    back = OutputSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert back.arrow_schema.equals(schema.arrow_schema, check_metadata=True)
    assert back.digest == schema.digest
    assert back.matches(schema)
    assert back.for_provider("openai") == schema.for_provider("openai")


def test_every_partition_has_one_schema(tmp_path: Any) -> None:
    """Case 28: all null, texts and no rows open as one dataset."""
    schema = OutputSchema.compile(Defaults)
    valid = schema.validator()('{"n": 1, "note": "x"}')
    assert not isinstance(valid, Invalid)
    width = len(schema.arrow_schema)
    for name, columns in (
        ("a", [[None, None]] * width),
        ("b", [[value] for value in valid.values]),
        ("c", [[] for _ in range(width)]),
    ):
        table = pa.Table.from_arrays(schema.to_arrow(columns), schema=schema.arrow_schema)
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = pyarrow.dataset.dataset(tmp_path).to_table()
    assert found.num_rows == 3
    assert found.schema.types == schema.arrow_schema.types


def test_a_dict_output_is_judged_by_its_own_rules() -> None:
    """Bounds, uniqueness and patterns that are not sent are checked here; defaults apply."""
    schema = OutputSchema.compile(SCHEMA)
    assert schema.name == "Ticket_kind"
    validate = schema.validator()
    found = validate('{"kind": "bug", "stars": null, "title": null, "tags": ["a"]}')
    assert not isinstance(found, Invalid)
    assert list(found.values) == ["bug", None, "none", ["a"]]
    for change in ({"stars": 6}, {"tags": ["a", "a"]}, {"kind": "x"}, {"title": "zone"}, {"tags": None}):
        assert isinstance(validate(json.dumps({"kind": "bug", "tags": [], **change})), Invalid)


def test_recursion_through_the_root_is_json_text() -> None:
    """`#` is a definition too."""
    tree = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    }
    schema = OutputSchema.compile(tree)
    found = schema.validator()('{"v": 1, "kids": [{"v": 2, "kids": []}]}')
    assert not isinstance(found, Invalid)
    assert schema.to_arrow([[v] for v in found.values])[1].to_pylist() == [['{"kids": [], "v": 2}']]


def fingerprint() -> str:
    """What must be the same in every process."""
    schema = OutputSchema.compile(Changing)
    found = schema.validator()('{"words": ["x", "y", "z", "w"], "fixed": ["c", "a", "b"]}')
    assert not isinstance(found, Invalid)
    rows = [array.to_pylist() for array in schema.to_arrow([[value] for value in found.values])]
    return f"{schema.digest} {OutputSchema.compile(Rich).digest} {rows}"


PROGRAM = """
import importlib.util, sys
package = importlib.util.find_spec("dagster_llmbatch")
sys.modules["dagster_llmbatch"] = importlib.util.module_from_spec(package)  # unexecuted: the room needs no Dagster
from dagster_llmbatch_tests.schemas.test_output import fingerprint
assert "dagster" not in sys.modules
print(fingerprint(), end="")
"""


def test_digest_and_rows_are_the_same_in_every_process() -> None:
    """Whatever PYTHONHASHSEED says, also where sets have defaults and values."""
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": other}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == fingerprint()


def test_the_digest_differs_when_anything_asked_differs() -> None:
    """Name, field name, order, type, bound, description, default, optional, alias."""
    kinds = [
        create_model("A", x=(int, ...), y=(str, ...)),
        create_model("B", x=(int, ...), y=(str, ...)),
        create_model("A", y=(str, ...), x=(int, ...)),
        create_model("A", x=(int, ...), z=(str, ...)),
        create_model("A", x=(float, ...), y=(str, ...)),
        create_model("A", x=(int, Field(ge=1)), y=(str, ...)),
        create_model("A", x=(int, Field(description="d")), y=(str, ...)),
        create_model("A", x=(int, 1), y=(str, ...)),
        create_model("A", x=(int, 2), y=(str, ...)),
        create_model("A", x=("int | None", ...), y=(str, ...)),
        create_model("A", x=(int, Field(alias="w")), y=(str, ...)),
        create_model("A", w=(int, ...), y=(str, ...)),
        create_model("A", x=(Literal[1, 2], ...), y=(str, ...)),
        create_model("A", x=(Literal[2, 1], ...), y=(str, ...)),
        create_model("A", x=(int, ...), y=(str, ...), __doc__="Other instructions."),
        None,
    ]
    assert len({OutputSchema.compile(kind).digest for kind in kinds}) == len(kinds)
    assert OutputSchema.compile(kinds[0]).digest == OutputSchema.compile(kinds[0]).digest


def test_names_on_the_wire_are_legal() -> None:
    """Letters, digits, _ and -, at most 64."""
    for title in ("größe 1", "a" * 100, "Page[int]", "/"):
        name = OutputSchema.compile({**SCHEMA, "title": title}).name
        assert 0 < len(name) <= 64
        assert all(c.isascii() and (c.isalnum() or c in "_-") for c in name)


def test_the_example_answer_is_valid() -> None:
    """The table of answers elsewhere changes one thing of a valid answer."""
    assert not isinstance(OutputSchema.compile(Rich).validator()(json.dumps(RICH)), Invalid)
