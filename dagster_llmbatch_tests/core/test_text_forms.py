"""The text a column value has in a prompt."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_llmbatch.core.text_forms import is_binary, text_of, texts_of

BERLIN = "Europe/Berlin"
FORMS: "list[tuple[pa.DataType, Any, str]]" = [
    (pa.string(), "a\u2028ü😀", "a\u2028ü😀"),
    (pa.large_string(), "x", "x"),
    (pa.string_view(), "x", "x"),
    (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
    (pa.bool_(), True, "true"),
    (pa.bool_(), False, "false"),
    (pa.int8(), -5, "-5"),
    (pa.int64(), 9007199254740993, "9007199254740993"),
    (pa.uint64(), 2**64 - 1, "18446744073709551615"),
    (pa.float64(), 1.5, "1.5"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), float("nan"), "nan"),
    (pa.float64(), float("inf"), "inf"),
    (pa.float64(), float("-inf"), "-inf"),
    (pa.float64(), -0.0, "-0.0"),
    (pa.float16(), 1.5, "1.5"),
    (pa.decimal128(10, 2), Decimal("12.50"), "12.50"),
    (pa.decimal128(20, 12), Decimal("0.000000000001"), "0.000000000001"),
    (pa.decimal128(4, -3), Decimal("12E+3"), "12000"),
    (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
    (pa.date64(), dt.date(2024, 2, 29), "2024-02-29"),
    (pa.time64("us"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
    (pa.timestamp("s"), dt.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),  # noqa: DTZ001 - no zone meant
    (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
    (pa.timestamp("us", "UTC"), 0, "1970-01-01T00:00:00+00:00"),
    (pa.timestamp("s", BERLIN), 0, "1970-01-01T01:00:00+01:00"),
    (pa.duration("ms"), 90_500, "90.5"),
    (pa.duration("s"), 864_000, "864000.0"),
    (pa.list_(pa.int64()), [1, None, 3], "[1, null, 3]"),
    (pa.list_(pa.float64()), [1.0, float("nan")], '[1.0, "nan"]'),
    (pa.list_(pa.date32()), [dt.date(2024, 1, 1)], '["2024-01-01"]'),
    (pa.struct([("a", pa.string()), ("b", pa.bool_())]), {"a": "ü", "b": True}, '{"a": "ü", "b": true}'),
    (pa.map_(pa.string(), pa.int64()), [("k", 1)], '{"k": 1}'),
    (pa.map_(pa.int64(), pa.string()), [(1, "v")], '{"1": "v"}'),
    (pa.list_(pa.map_(pa.string(), pa.int64())), [[("k", 1)]], '[{"k": 1}]'),
]


@pytest.mark.parametrize(("kind", "value", "text"), FORMS, ids=[f"{kind}-{text}" for kind, _, text in FORMS])
def test_text_form(kind: pa.DataType, value: Any, text: str) -> None:
    """Each type has the form the module's table gives it, and a null beside it is empty."""
    assert texts_of(pa.array([value, None], kind)) == [text, ""]


def test_a_null_column_is_empty_text() -> None:
    """A column of type null has no text."""
    assert texts_of(pa.nulls(2)) == ["", ""]


def test_a_sliced_column_keeps_its_place() -> None:
    """A slice gives the slice's values, cast or not."""
    assert texts_of(pa.array([1, 2, None])[1:]) == ["2", ""]
    assert texts_of(pa.array(["a", None, "c"])[1:]) == ["", "c"]


def test_integers_of_other_classes_print_as_numbers() -> None:
    """A subclass of int or float shows its number, not its own name."""

    class Level(int):
        def __repr__(self) -> str:
            return "<Level>"

    assert text_of(Level(3)) == "3"


def test_nested_values_are_json() -> None:
    """A list of structs can be read back as JSON, whatever stands in its text."""
    value = [{"q": 'a "b"\n', "n": None}]
    kind = pa.list_(pa.struct([("q", pa.string()), ("n", pa.int64())]))
    assert json.loads(texts_of(pa.array([value], kind))[0]) == value


def test_bytes_have_no_text_form() -> None:
    """Bytes are refused without being quoted."""
    with pytest.raises(TypeError) as caught:
        text_of(b"secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(3), pa.large_binary(), pa.binary_view()], ids=str)
def test_binary_types_are_binary(kind: pa.DataType) -> None:
    """All four binary types are recognised."""
    assert is_binary(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.int8(), pa.uuid(), pa.list_(pa.string())], ids=str)
def test_other_types_are_not_binary(kind: pa.DataType) -> None:
    """Text, numbers and UUIDs have a text form."""
    assert not is_binary(kind)


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.date32(), pa.duration("s")], ids=str)
def test_a_value_python_cannot_hold_has_no_text(kind: pa.DataType) -> None:
    """Arrow has one for some only, and another than Python's for the values beside it."""
    with pytest.raises(OverflowError):
        texts_of(pa.array([2**30 if kind == pa.date32() else 2**44 * 1000, 0], kind))


def test_short_durations_are_plain_decimals() -> None:
    """A nanosecond is written out in digits."""
    assert texts_of(pa.array([1], pa.duration("ns"))) == ["0.000000001"]
