"""Answers to values: what is valid, what is recovered, what a message may say."""

import datetime
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from dagster_llmbatch.schemas.output import Invalid, OutputSchema
from dagster_llmbatch.schemas.validation import AnswerProblem, Valid, unfenced
from dagster_llmbatch_tests.schemas.models import (
    MARKER,
    RICH,
    Aliased,
    Checked,
    Defaults,
    Forbidding,
    Loose,
    Node,
    Plain,
    Rich,
    Zoo,
)

GOOD = {"name": "n", "score": 1.5, "rank": 3, "good": True}


class One(BaseModel):
    """One text."""

    a: str


class Number(BaseModel):
    """One integer."""

    n: int


class Money(BaseModel):
    """An exact amount, and a double beside it."""

    amount: Decimal
    rate: float = 0.0


def check(output: Any, answer: Any, *, restored: bool = False) -> "Valid | Invalid":
    """The verdict on an answer, by the model or by the schema that the ledger kept."""
    schema = OutputSchema.compile(output)
    if restored:
        schema = OutputSchema.from_json(json.loads(json.dumps(schema.to_json())))
    return schema.validator()(answer if isinstance(answer, str) else json.dumps(answer))


def row(output: Any, answer: Any, *, restored: bool = False) -> "dict[str, Any]":
    """The row an answer makes, through Arrow."""
    schema = OutputSchema.compile(output)
    found = check(output, answer, restored=restored)
    assert isinstance(found, Valid), found
    arrays = schema.to_arrow([[value] for value in found.values])
    return {name: array.to_pylist()[0] for name, array in zip(schema.arrow_schema.names, arrays, strict=True)}


BOTH = pytest.mark.parametrize("restored", [False, True], ids=["model", "restored"])


@BOTH
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", AnswerProblem.EMPTY),
        (" \n", AnswerProblem.EMPTY),
        ("null", AnswerProblem.SCHEMA_MISMATCH),
        ("3", AnswerProblem.SCHEMA_MISMATCH),
        ('"x"', AnswerProblem.SCHEMA_MISMATCH),
        ("[]", AnswerProblem.SCHEMA_MISMATCH),
        ("{}", AnswerProblem.SCHEMA_MISMATCH),
        ('{"name":"po', AnswerProblem.NOT_JSON),
        ("Sure! {}", AnswerProblem.NOT_JSON),
        (json.dumps(GOOD) + " hope it helps", AnswerProblem.NOT_JSON),
        ('{"name":"n","score":NaN,"rank":3,"good":true}', AnswerProblem.NOT_JSON),
        ('{"name":"n","score":-Infinity,"rank":3,"good":true}', AnswerProblem.NOT_JSON),
        ('{"name":"n","score":1,"rank":3,"good":true,"extra":NaN}', AnswerProblem.NOT_JSON),
        ('{"name":"\\ud800","score":1,"rank":3,"good":true}', AnswerProblem.NOT_JSON),
        ('{"name":"\ud800","score":1,"rank":3,"good":true}', AnswerProblem.NOT_JSON),
        ({**GOOD, "rank": "3"}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "rank": 3.0}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "rank": True}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "rank": 2**63}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "rank": -(2**63) - 1}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "rank": 10**40}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "score": "1"}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "score": True}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "good": 1}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "good": None}, AnswerProblem.SCHEMA_MISMATCH),
        ({**GOOD, "name": 3}, AnswerProblem.SCHEMA_MISMATCH),
    ],
)
def test_what_is_not_strictly_the_schema_is_refused(answer: Any, problem: AnswerProblem, restored: bool) -> None:
    """No coercion, no prose, no NaN, no lost surrogate, nothing beyond the column."""
    found = check(Plain, answer, restored=restored)
    assert isinstance(found, Invalid)
    assert found.problem is problem
    assert found.message


@BOTH
def test_a_number_beyond_the_doubles_is_refused(restored: bool) -> None:
    """1e999 is no infinity."""
    assert isinstance(check(Plain, '{"name":"n","score":1e999,"rank":3,"good":true}', restored=restored), Invalid)


@BOTH
def test_valid_answers_keep_names_that_look_like_nan(restored: bool) -> None:
    """NaN inside a text is a text; the ends of int64 fit."""
    answer = {**GOOD, "name": "NaN and Infinity", "rank": -(2**63)}
    assert row(Plain, answer, restored=restored) == answer


@BOTH
@pytest.mark.parametrize("value", ["3", None, {"v": 3}, [3], 3.5])
def test_mixed_answers_for_an_integer_never_reach_the_column(value: Any, restored: bool) -> None:
    """Case 27: only the integer is valid."""
    assert row(Number, {"n": 3}, restored=restored) == {"n": 3}
    assert isinstance(check(Number, {"n": value}, restored=restored), Invalid)


@pytest.mark.parametrize(
    ("text", "value", "recovered"),
    [
        ('```json\n{"a":"1"}\n```', "1", "fenced"),
        ('```\n{"a":"1"}\n```', "1", "fenced"),
        ('```json\r\n{"a":"1"}\r\n```\r\n', "1", "fenced"),
        ('  ```JSON  \n\n{"a":"1"}```  ', "1", "fenced"),
        ('````json\n{"a":"1"}\n````', "1", "fenced"),
        ('```{"a":"1"}```', "1", "fenced"),
        ('```json\n{"a":"x ``` y"}\n```', "x ``` y", "fenced"),
        ('```json\n{"a":"```\\ncode\\n```"}\n```', "```\ncode\n```", "fenced"),
        ('{"a":"see ```x``` here"}', "see ```x``` here", None),
        ('{"a":"```json\\n{}\\n```"}', "```json\n{}\n```", None),
    ],
)
def test_a_fence_is_taken_off_only_around_the_whole(text: str, value: str, recovered: "str | None") -> None:
    """Case 3: the enclosing fence goes and is recorded; backticks inside values stay."""
    assert check(One, text) == Valid([value], recovered)


@pytest.mark.parametrize(
    "text",
    [
        'Here:\n```json\n{"a":"1"}\n```',
        '```json\n{"a":"1"}\n```\nDone',
        '```json\n{"a":"1"}\n```\n```json\n{"a":"2"}\n```',
        '```json\n{"a":"1"}',
        "```",
        "``````",
        "```json\n```",
        '```json\n{"a":"po\n```',
    ],
)
def test_other_fences_are_not_guessed_at(text: str) -> None:
    """A fence beside prose, a second one, or an open one leaves the answer invalid."""
    found = check(One, text)
    assert isinstance(found, Invalid)
    assert found.problem in (AnswerProblem.NOT_JSON, AnswerProblem.EMPTY)


def test_a_long_run_of_blanks_in_a_fence_is_quick() -> None:
    """Recovery is linear in the text."""
    assert unfenced("```" + " " * 2_000_000 + "x") is None


def test_a_fenced_answer_of_another_schema_is_a_mismatch() -> None:
    """What stands in the fence is judged as if it stood alone."""
    found = check(One, '```json\n{"b":1}\n```')
    assert isinstance(found, Invalid)
    assert found.problem is AnswerProblem.SCHEMA_MISMATCH


@BOTH
def test_null_for_an_optional_with_a_default_is_the_default(restored: bool) -> None:
    """At the root, nested, and in a list under a union; a null that the type has stays."""
    found = row(Defaults, {"n": None, "part": None, "parts": None, "note": None}, restored=restored)
    assert found == {"n": 7, "part": {"code": "none", "count": 1, "partLabel": None}, "parts": None, "note": None}
    nested = {"n": 1, "part": {"code": "a", "count": None, "partLabel": None}, "note": "x"}
    found = row(Defaults, nested | {"parts": [{"code": "b", "count": None, "partLabel": "z"}]}, restored=restored)
    assert found["part"] == {"code": "a", "count": 1, "partLabel": None}
    assert found["parts"] == [{"code": "b", "count": 1, "partLabel": "z"}]


@BOTH
def test_a_tagged_union_takes_nulls_for_defaults_too(restored: bool) -> None:
    """The option that the tag names says which nulls stand for defaults; the column is JSON text."""
    found = row(Zoo, {"pet": {"tag": "cat", "lives": None}, "where": {"x": 1, "y": 2}}, restored=restored)
    assert json.loads(found["pet"]) == {"tag": "cat", "lives": 9}
    assert found["where"] == {"x": 1, "y": 2}


@BOTH
def test_aliases_are_the_wire_and_fields_are_the_columns(restored: bool) -> None:
    """The answer has the alias, the table the field's name."""
    assert row(Aliased, {"type": "t", "sizeInCm": 4}, restored=restored) == {"kind": "t", "size": 4}
    assert isinstance(check(Aliased, {"kind": "t", "size": 4}, restored=restored), Invalid)


@BOTH
def test_every_kind_of_value_reaches_its_column(restored: bool) -> None:
    """Decimals exact, naive times UTC, nested aliases kept."""
    found = row(Rich, RICH, restored=restored)
    words = found.pop("words")
    assert sorted(set(words)) == ["a", "b"]
    assert json.loads(found.pop("either")) == "x"
    assert found == {
        "color": "red",
        "size": "s",
        "level": 2,
        "price": Decimal("12345678901234567890123456789.123456789"),
        "key": str(uuid.UUID(RICH["key"])),
        "day": datetime.date(2026, 11, 30),
        "at": datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.timezone.utc),
        "clock": datetime.time(12, 30, 0, 500_000),
        "span": datetime.timedelta(hours=1),
        "part": {"code": "a", "count": 2, "partLabel": "L"},
        "parts": [{"code": "b", "count": 1, "partLabel": None}],
        "runs": [1, 2],
        "maybe": None,
        "host": "10.0.0.1",
    }


@BOTH
@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"color": "green"}, False),
        ({"size": "l"}, False),
        ({"level": 3}, False),
        ({"price": "1.0000000001"}, False),
        ({"price": "1" * 30}, False),
        ({"price": "much"}, False),
        ({"price": "NaN"}, False),
        ({"price": "1e3"}, True),
        ({"price": 1.25}, True),
        ({"key": "nope"}, False),
        ({"key": "12345678123456781234567812345678"}, True),
        ({"day": "20261130"}, False),
        ({"day": "2026-02-30"}, False),
        ({"at": "2026-11-30T12:00:00+05:30"}, True),
        ({"at": "0001-01-01T00:00:00+10:00"}, False),
        ({"at": "yesterday"}, False),
        ({"clock": "12:30"}, True),
        ({"clock": "12:30:00Z"}, True),
        ({"clock": "12:30:00+02:00"}, False),
        ({"clock": "noon"}, False),
        ({"span": "P999999999D"}, False),
        ({"span": "long"}, False),
        ({"span": 3}, False),
        ({"part": None}, False),
        ({"part": {"code": 1}}, False),
        ({"parts": {}}, False),
        ({"words": "a"}, False),
        ({"runs": ["1"]}, False),
        ({"either": 10**30}, True),
        ({"either": 1.5}, False),
        ({"host": "10.0.0"}, False),
        ({"unknown": 1}, True),
    ],
)
def test_the_stored_schema_and_the_model_say_the_same(change: "dict[str, Any]", valid: bool, restored: bool) -> None:
    """A plan whose model has changed since is judged by the same rules."""
    found = check(Rich, {**RICH, **change}, restored=restored)
    assert isinstance(found, Valid) is valid, found
    if valid:
        row(Rich, {**RICH, **change}, restored=restored)


@BOTH
def test_a_number_for_a_decimal_keeps_all_its_digits(restored: bool) -> None:
    """Not the nearest double, though it is one that pydantic would take; a double beside it stays a double."""
    found = row(Money, '{"amount": 12345678901234567.891234567, "rate": 0.1000000000000000055}', restored=restored)
    assert found == {"amount": Decimal("12345678901234567.891234567"), "rate": 0.1}


@BOTH
def test_recursion_is_json_text(restored: bool) -> None:
    """With the answer's keys, at any depth."""
    deep = {"value": 2, "next": None, "children": []}
    found = row(Node, {"value": 1, "next": deep, "children": [deep]}, restored=restored)
    assert json.loads(found["next"]) == deep
    assert [json.loads(child) for child in found["children"]] == [deep]


@BOTH
def test_endless_nesting_is_invalid_and_not_a_crash(restored: bool) -> None:
    """A row of thousands of levels is that row's problem."""
    text = '{"value":1,"next":' * 5_000 + "null" + "}" * 5_000
    assert isinstance(check(Node, text, restored=restored), Invalid)


def test_validators_of_the_model_run() -> None:
    """They refuse, and they change values."""
    assert row(Checked, {"name": " ok "})["name"] == "ok"
    assert isinstance(check(Checked, {"name": "Bad"}), Invalid)
    assert isinstance(check(Checked, {"name": "a", "low": 5, "high": 1}), Invalid)


def test_a_validator_that_breaks_is_an_invalid_row() -> None:
    """An exception that is no ValueError would stop every other row."""
    found = check(Checked, {"name": "x!"})
    assert isinstance(found, Invalid)
    assert "KeyError" in found.message


@BOTH
@pytest.mark.parametrize(
    ("output", "answer"),
    [
        (Checked, {"name": MARKER, "low": MARKER}),
        (Forbidding, {"name": "x", MARKER: 1}),
        (Forbidding, {"name": {MARKER: 1}}),
        (Loose, {"n": MARKER}),
        (Rich, {**RICH, "color": MARKER, "price": MARKER, "day": MARKER, "span": MARKER, "either": [MARKER]}),
        (Zoo, {"pet": {"tag": MARKER}, "where": {"x": MARKER}}),
        (Plain, f"not json {MARKER}"),
    ],
)
def test_messages_hold_nothing_of_the_answer(output: Any, answer: Any, restored: bool) -> None:
    """Neither in the line nor in its parts."""
    found = check(output, answer, restored=restored)
    assert isinstance(found, Invalid)
    assert MARKER not in found.message
    assert MARKER not in repr(found)


def test_values_that_a_validator_breaks_hold_nothing_of_the_answer() -> None:
    """A breaking validator, a value of another type than promised: invalid at once, and silent about the value."""
    for output, answer in (
        (Checked, {"name": MARKER}),
        (Checked, {"name": MARKER.lower(), "low": 99, "high": 1}),
        (Checked, {"name": MARKER + "!"}),
        (Loose, {"n": 1, "f": 2.0}),
    ):
        found = check(output, answer)
        assert isinstance(found, Invalid)
        assert MARKER.lower() not in (repr(found) + found.message).lower()


def test_a_long_list_of_issues_is_cut() -> None:
    """Five are named, the rest are counted."""
    found = check(Rich, {})
    assert isinstance(found, Invalid)
    assert "more" in found.message
    assert len(found.message) < 300


def test_text_outputs_take_anything_but_nothing() -> None:
    """Blank is empty, a lone surrogate is refused, JSON stays text."""
    assert check(None, "x") == Valid(("x",))
    assert row(None, '```json\n{"a":1}\n```') == {"text": '```json\n{"a":1}\n```'}
    for text in ("", " \n", "a\ud800"):
        assert isinstance(check(None, text), Invalid)
