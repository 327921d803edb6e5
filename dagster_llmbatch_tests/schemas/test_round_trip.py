"""Any valid value survives the way from the model's JSON to the table."""

import datetime
import json
from decimal import Decimal
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dagster_llmbatch.schemas.output import Invalid, OutputSchema
from dagster_llmbatch.schemas.validation import Validate
from dagster_llmbatch_tests.schemas.models import Plain

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)


class Inner(BaseModel):
    """Nested."""

    text: str
    numbers: list[int]
    ratio: "float | None" = None


class Outer(BaseModel):
    """Typed columns, nested and optional."""

    amount: Decimal
    day: "datetime.date | None"
    at: datetime.datetime
    span: datetime.timedelta
    size: Literal["s", "m"]
    inner: "Inner | None"
    more: list[Inner]


PLAIN = st.builds(
    Plain, name=TEXT, score=st.floats(allow_nan=False, allow_infinity=False), rank=INT64, good=st.booleans()
)
INNER = st.builds(
    Inner,
    text=TEXT,
    numbers=st.lists(INT64, max_size=3),
    ratio=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
OUTER = st.builds(
    Outer,
    amount=st.decimals(-(10**28), 10**28, places=9),
    day=st.none() | st.dates(),
    at=st.datetimes(timezones=st.just(datetime.timezone.utc)),
    span=st.timedeltas(datetime.timedelta(days=-9999), datetime.timedelta(days=9999)),
    size=st.sampled_from(["s", "m"]),
    inner=st.none() | INNER,
    more=st.lists(INNER, max_size=2),
)
SCHEMAS: "dict[type[BaseModel], OutputSchema]" = {kind: OutputSchema.compile(kind) for kind in (Plain, Outer)}
VALIDATORS: "dict[type[BaseModel], tuple[Validate, Validate]]" = {
    kind: (schema.validator(), OutputSchema.from_json(schema.to_json()).validator()) for kind, schema in SCHEMAS.items()
}


def survives(value: BaseModel) -> None:
    """JSON, validator and Arrow give the value back, by the model and by the stored schema."""
    schema, validators = SCHEMAS[type(value)], VALIDATORS[type(value)]
    for validate in validators:
        for text in (value.model_dump_json(), f"```json\n{value.model_dump_json(indent=1)}\n```"):
            found = validate(text)
            assert not isinstance(found, Invalid), found
            arrays = schema.to_arrow([[v] for v in found.values])
            got = {n: a.to_pylist()[0] for n, a in zip(schema.arrow_schema.names, arrays, strict=True)}
            assert got == value.model_dump()


@QUICK
@given(PLAIN)
def test_scalars_survive(value: Plain) -> None:
    """Texts of any characters, doubles, the whole of int64."""
    survives(value)


@QUICK
@given(OUTER)
def test_typed_and_nested_values_survive(value: Outer) -> None:
    """Decimals, dates, durations, structs and lists of them."""
    survives(value)


@QUICK
@given(
    st.recursive(st.none() | st.booleans() | INT64 | st.floats() | st.text(max_size=5), st.lists, max_leaves=5), TEXT
)
def test_no_answer_raises_and_both_readings_agree(value: object, text: str) -> None:
    """Whatever JSON or text comes: a verdict, and the same by the stored schema."""
    for answer in (text, json.dumps(value), json.dumps({"name": value, "score": value, "rank": value, "good": value})):
        by_model, by_schema = (validate(answer) for validate in VALIDATORS[Plain])
        assert isinstance(by_model, Invalid) == isinstance(by_schema, Invalid)
