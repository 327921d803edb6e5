"""Rows into prompts: both render paths, refusals before any spend, and one row's failure staying its own."""

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core.prompt import (
    EMPTY,
    NOT_UNICODE,
    RenderFailure,
    check_template,
    compile_prompt,
    prompt_source,
)
from dagster_llmbatch.errors import ConfigurationError, InputError

# a statement in the template makes the compiler take the Jinja path; it renders to nothing
GENERAL = "{% if true %}{% endif %}"

COLUMNS: "list[tuple[pa.DataType, st.SearchStrategy[Any]]]" = [
    (pa.string(), st.text(max_size=8) | st.sampled_from(["{{ 7*7 }}", "{x}", "%", "{% raw %}", "a\u2028b", "\r\n"])),
    (pa.large_string(), st.text(max_size=8)),
    (pa.string_view(), st.text(max_size=8)),
    (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=8)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(20, 3), st.decimals(-(10**9), 10**9, places=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.integers(0, 2**50)),
    (pa.timestamp("ns"), st.integers(0, 2**60)),
    (pa.duration("ms"), st.integers(-(10**12), 10**12)),
    (pa.list_(pa.string()), st.lists(st.text(max_size=4), max_size=3)),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)),
]


def _literal(text: str) -> str:
    """Template text that opens no Jinja tag, also beside another piece."""
    for opener in ("{{", "{%", "{#"):
        text = text.replace(opener, "{ ")
    return text + "."


@st.composite
def rows_and_template(draw: st.DrawFn) -> "tuple[pa.RecordBatch, str]":
    """A batch of a few nullable columns, and a template of text and plain column names."""
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
    length = draw(st.integers(1, 4))
    columns, names = [], []
    for number, (kind, values) in enumerate(chosen):
        drawn = draw(st.lists(st.none() | values, min_size=length, max_size=length))
        drawn = [list(v.items()) if v is not None and pa.types.is_map(kind) else v for v in drawn]
        columns.append(pa.array(drawn, kind))
        names.append(f"c{number}")
    pieces = draw(st.lists(st.sampled_from([f"{{{{ {name} }}}}" for name in names]) | st.text(max_size=6), max_size=6))
    template = "".join(piece if piece.startswith("{{ c") else _literal(piece) for piece in pieces)
    return pa.record_batch(columns, names=names), template + f"{{{{ {names[0]} }}}}"


def render(prompt: Any, **columns: Any) -> "list[str | RenderFailure]":
    """The prompts over columns given by name."""
    batch = pa.record_batch({n: c if isinstance(c, pa.Array) else pa.array(c) for n, c in columns.items()})
    return compile_prompt(prompt, batch.schema, asset="shop/reviews").render(batch)


@settings(max_examples=100, deadline=None)
@given(rows_and_template())
def test_both_render_paths_give_the_same_text(case: "tuple[pa.RecordBatch, str]") -> None:
    """A plain template gives what the same template gives when Jinja renders it, for every column type."""
    batch, template = case
    fast = compile_prompt(template, batch.schema, asset="a")
    general = compile_prompt(template + GENERAL, batch.schema, asset="a")
    assert type(fast) is not type(general)
    assert fast.render(batch) == general.render(batch)


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_row_text_is_never_evaluated(suffix: str) -> None:
    """Template syntax and format braces inside a value come out as they are."""
    values = ["{{ 7 * 7 }}", "{% for x in y %}", "{0.__class__}", "}{", "{# no #}"]
    assert render("<{{ text }}>" + suffix, text=values) == [f"<{value}>" for value in values]


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_braces_in_the_template_are_kept(suffix: str) -> None:
    """A JSON example in the template survives both paths."""
    assert render('{"a": {"b": 1}} {{ x }}' + suffix, x=["z"]) == ['{"a": {"b": 1}} z']


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_integers_keep_their_digits(suffix: str) -> None:
    """A nullable column of large integers shows no float and no rounding."""
    values = pa.array([9007199254740993, None, 1582218195625938945], pa.int64())
    assert render("id {{ i }}" + suffix, i=values) == ["id 9007199254740993", "id ", "id 1582218195625938945"]


def test_a_final_newline_is_kept() -> None:
    """The template's last newline is part of the prompt."""
    assert render("{{ x }}\n", x=["a"]) == ["a\n"]


def test_sliced_batches_render_their_own_rows() -> None:
    """A slice of a batch gives the prompts of the slice."""
    batch = pa.record_batch({"x": ["a", "b", "c"], "n": [1, 2, 3]})
    for template in ("{{ x }}{{ n }}", "{{ x }}{{ n }}" + GENERAL):
        found = compile_prompt(template, batch.schema, asset="a").render(batch.slice(1, 2))
        assert found == ["b2", "c3"]


def test_a_template_without_columns_renders_every_row() -> None:
    """Each row gets the constant prompt."""
    assert render("hello", x=["a", "b"]) == ["hello", "hello"]
    assert render("hello" + GENERAL, x=["a", "b"]) == ["hello", "hello"]


def test_a_missing_column_is_refused_with_a_hint() -> None:
    """A misspelled column is refused before anything is sent, naming asset, column and the likely one."""
    with pytest.raises(InputError, match=r"shop/reviews.*'titel'.*Did you mean 'title'"):
        render("{{ titel }}", title=["a"])


def test_a_column_missing_in_a_branch_is_refused() -> None:
    """A column named only where no row may go is refused too."""
    with pytest.raises(InputError, match="missing"):
        render("{% if flag %}{{ missing }}{% endif %}", flag=[False])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view()], ids=str)
@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_a_binary_column_is_refused(kind: pa.DataType, suffix: str) -> None:
    """Bytes have no text form: refused with the column and its type, without their content."""
    with pytest.raises(InputError, match="'blob'") as caught:
        render("{{ blob }}" + suffix, blob=pa.array([b"S"], kind))
    assert str(kind) in str(caught.value)
    assert "b'S'" not in str(caught.value)


def test_an_unused_binary_column_is_no_obstacle() -> None:
    """Only what the template names must have a text form."""
    assert render("{{ x }}", x=["a"], blob=pa.array([b"\xff"])) == ["a"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[b"x"]], pa.list_(pa.binary())),
        pa.array([{"b": b"x"}], pa.struct([("b", pa.binary())])),
        pa.array([b"x"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_nested_binary_is_refused(column: pa.Array) -> None:
    """Bytes inside another value are refused like bytes."""
    try:
        render("{{ blob }}", blob=column)
    except InputError:
        return
    except TypeError as error:
        pytest.fail(f"TypeError: {error}")


@pytest.mark.parametrize("suffix", ["", GENERAL])
@pytest.mark.parametrize("name", ["range", "dict", "namespace"])
def test_a_column_named_like_a_jinja_global_is_the_column(name: str, suffix: str) -> None:
    """The row's value stands in the prompt, not Jinja's function of that name."""
    try:
        found = render("{{ " + name + " }}" + suffix, **{name: ["10-20"]})
    except KeyError:
        pytest.fail("KeyError")
    assert found == ["10-20"]


@pytest.mark.parametrize("prompt", ["", "   \n", None, 3])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    """A prompt of nothing can never work."""
    with pytest.raises(ConfigurationError, match="a/b"):
        check_template(prompt, asset="a/b")


def test_a_syntax_error_names_its_line() -> None:
    """The line of a broken template stands in the message."""
    with pytest.raises(ConfigurationError, match="line 2"):
        check_template("ok\n{{ x", asset="a")


def test_the_sandbox_holds() -> None:
    """A template that reaches for Python's insides fails its row, and gives nothing away."""
    (found,) = render("{{ x.__class__.__mro__ }}", x=["a"])
    assert isinstance(found, RenderFailure)


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_an_empty_row_fails_alone(suffix: str) -> None:
    """A row whose prompt is blank has a reason; its neighbours have prompts."""
    assert render("{{ x }}" + suffix, x=["a", None, " \n"]) == ["a", RenderFailure(EMPTY), RenderFailure(EMPTY)]


def test_a_row_that_breaks_the_template_fails_alone_without_its_values() -> None:
    """The reason names the kind of error, never the row's text."""
    found = render("{{ 10 // n }}", n=[2, 0])
    assert found[0] == "5"
    assert found[1] == RenderFailure("the prompt template failed (ZeroDivisionError)")


def test_a_function_gets_the_row() -> None:
    """A function sees each column's Python value, nulls and maps too."""
    rows: list[dict[str, Any]] = []

    def ask(row: "dict[str, Any]") -> str:
        rows.append(row)
        return "p"

    mapped = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert render(ask, a=[1, None], d=[Decimal("1.50"), None], m=mapped) == ["p", "p"]
    assert rows == [{"a": 1, "d": Decimal("1.50"), "m": {"k": 1}}, {"a": None, "d": None, "m": None}]


def test_a_functions_failures_are_the_rows() -> None:
    """An exception, another type and a lone surrogate each fail their row, with no value quoted."""

    def ask(row: "dict[str, Any]") -> Any:
        if row["n"] == 0:
            raise ValueError("secret text")
        return {1: None, 2: "\ud83d", 3: "ok"}[row["n"]]

    found = render(ask, n=[0, 1, 2, 3])
    assert found[0] == RenderFailure("the prompt function failed (ValueError)")
    assert found[1] == RenderFailure("the prompt function returned NoneType, not text or content parts")
    assert found[2:] == [RenderFailure(NOT_UNICODE), "ok"]


def test_filters_and_conditions_work() -> None:
    """Anything Jinja can do to a column is available."""
    template = "{% for t in tags %}[{{ t | upper }}]{% endfor %}{{ price | round(1) }}"
    assert render(template, tags=[["a", "b"]], price=[math.pi]) == ["[A][B]3.1"]


def test_prompt_source_follows_the_function() -> None:
    """The text for digests is the template, or the function's source."""
    assert prompt_source("{{ x }}") == "{{ x }}"

    def ask(row: "dict[str, Any]") -> str:
        return row["x"] + "!"

    assert 'row["x"] + "!"' in prompt_source(ask)


def test_prompt_source_without_source_follows_the_code() -> None:
    """A function made at run time has a digest that changes with what it does."""
    made = [eval(text) for text in ("lambda row: 'a'", "lambda row: 'a'", "lambda row: 'b'")]
    first, same, other = (prompt_source(function) for function in made)
    assert first == same != other


def test_a_template_with_a_lone_surrogate_is_refused() -> None:
    """No row of it could be sent: said once, before anything is planned."""
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        check_template("Say \ud83d {{ body }}", asset="a")


@pytest.mark.parametrize("prompt", ["{{ n }}: {{ at }}", "{{ n }}: {% if true %}{{ at }}{% endif %}"])
@pytest.mark.parametrize("kind", [pa.timestamp("s", "Europe/Paris"), pa.duration("s")], ids=str)
def test_a_value_python_cannot_hold_fails_its_row_and_changes_no_other(prompt: str, kind: pa.DataType) -> None:
    """Another prompt for the rows beside it would be another request, and paid again."""
    batch = pa.record_batch({"n": [1, 2], "at": pa.array([5, 2**55], kind)})
    render = compile_prompt(prompt, batch.schema, asset="a").render
    alone, (first, second) = render(batch.slice(0, 1)), render(batch)
    assert [first] == alone
    assert isinstance(second, RenderFailure)
    assert "OverflowError" in second.reason


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_a_template_knows_the_rows_index(suffix: str) -> None:
    """`row_index` counts from 0 over the whole input, whichever block a row stands in."""
    batch = pa.record_batch({"x": ["a", "b"]})
    renderer = compile_prompt("{{ row_index }}: {{ x }}" + suffix, batch.schema, asset="a")
    assert renderer.render(batch) == ["0: a", "1: b"]
    assert renderer.render(batch, 8192) == ["8192: a", "8193: b"]


@pytest.mark.parametrize("suffix", ["", GENERAL])
def test_a_column_named_row_index_is_the_column(suffix: str) -> None:
    """Data of the user's is never shadowed by the index."""
    assert render("{{ row_index }}" + suffix, row_index=["mine"]) == ["mine"]


def test_a_function_of_two_arguments_gets_the_index() -> None:
    """A second argument without a default is the index; one with a default is the function's own, as ever."""
    batch = pa.record_batch({"x": ["a", "b"]})

    def own(row: "dict[str, Any]", style: str = "kind") -> str:
        return f"{row['x']} {style}"

    assert compile_prompt(lambda row, index: f"{index}{row['x']}", batch.schema, asset="a").render(batch, 5) == [
        "5a",
        "6b",
    ]
    assert compile_prompt(own, batch.schema, asset="a").render(batch, 5) == ["a kind", "b kind"]
    assert compile_prompt(lambda *given: str(len(given)), batch.schema, asset="a").render(batch, 5) == ["1", "1"]


def test_rows_that_fail_alone_keep_their_index() -> None:
    """An instant that Python has no value for fails its row; the next row's index is still its own."""
    batch = pa.record_batch({"at": pa.array([2**62, 0], pa.timestamp("s"))})
    first, second = compile_prompt(lambda row, index: str(index), batch.schema, asset="a").render(batch, 3)
    assert isinstance(first, RenderFailure)
    assert second == "4"


def test_a_function_of_three_arguments_is_refused() -> None:
    """At the definition, not row by row."""
    with pytest.raises(ConfigurationError, match="shop/reviews: the prompt function must take the row"):
        check_template(lambda row, index, more: "x", asset="shop/reviews")
