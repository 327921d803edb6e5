"""Rows that ask for a model, a system prompt or params of their own: what they are asked with, and how they are grouped."""

import json
from typing import Any

import pyarrow as pa
import pytest

from dagster_llmbatch.core.by_row import check_by_row
from dagster_llmbatch.errors import ConfigurationError, InputError
from dagster_llmbatch_tests.core.workplace import Shop, table


def asked(shop: Shop) -> "dict[str, dict[str, Any]]":
    """What the simulator was asked, by the text of the user's message."""
    found = {}
    for batch in shop.simulator.store.batches.values():
        assert batch.source
        for line in batch.source.read_text().splitlines():
            body = json.loads(line)["body"]
            found[body["input"][-1]["content"]] = body
    return found


def rows(**columns: "list[Any]") -> pa.Table:
    given = table(4)
    for name, values in columns.items():
        given = given.append_column(name, pa.array(values))
    return given


def test_a_column_chooses_and_null_leaves_the_assets(shop: Shop) -> None:
    """Model, system and params from columns reach the wire; rows of two models go in two batches."""
    given = rows(
        llm=["openai:gpt-5-nano", None, None, "openai:gpt-5-nano"],
        tone=["Be brief.", None, None, None],
        knobs=[None, json.dumps({"temperature": 0.5}), None, None],
    )
    entry, _ = shop.open(
        "r1", given, by_row={"row_model": "llm", "row_system": "tone", "row_params": "knobs"}, system="Be kind."
    )
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 4
    assert found.column("llm_model").to_pylist() == [
        f"gpt-5-{kind}-2026-01-01" for kind in ("nano", "mini", "mini", "nano")
    ]
    bodies = asked(shop)
    assert [bodies[f"Triage: ticket {i}"]["model"] for i in range(4)] == [
        "gpt-5-nano",
        "gpt-5-mini",
        "gpt-5-mini",
        "gpt-5-nano",
    ]
    assert [bodies[f"Triage: ticket {i}"]["input"][0]["content"] for i in range(4)] == [
        "Be brief.",
        "Be kind.",
        "Be kind.",
        "Be kind.",
    ]
    assert [bodies[f"Triage: ticket {i}"].get("temperature") for i in range(4)] == [None, 0.5, None, None]
    assert shop.simulator.book.batches == 2


def test_a_function_chooses_and_params_come_over_the_assets(shop: Shop) -> None:
    """Functions see the row; a row's params replace the asset's of the same name and keep the others."""
    entry, _ = shop.open(
        "r1",
        rows(),
        by_row={"row_params": lambda row: {"temperature": float(row["id"])} if row["id"] else None},
        params={"temperature": 0.9, "top_p": 0.5},
    )
    shop.finish(entry, "r1")
    bodies = asked(shop)
    assert [bodies[f"Triage: ticket {i}"]["temperature"] for i in range(4)] == [0.9, 1.0, 2.0, 3.0]
    assert {body["top_p"] for body in bodies.values()} == {0.5}
    assert shop.simulator.book.batches == 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("row_model", "gpt-5-nano", 'not of the form "openai:model"'),
        ("row_model", "anthropic:claude", "not a provider"),
        ("row_system", "  ", "row_system is empty"),
        ("row_system", 3, "row_system is int, not text"),
        ("row_params", "[1]", "row_params is list"),
        ("row_params", "{", "row_params"),
        ("row_params", {"model": "x"}, "row_params holds"),
        ("row_params", {"x": float("nan")}, "row_params"),
    ],
)
def test_a_bad_choice_fails_its_row_alone(shop: Shop, name: str, value: Any, reason: str) -> None:
    """The row goes to review with the reason, and without its value; the others are asked."""
    entry, _ = shop.open("r1", rows(), by_row={name: lambda row: value if row["id"] == 2 else None})
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_status").to_pylist() == ["succeeded", "succeeded", "review", "succeeded"]
    assert reason in found.column("llm_error").to_pylist()[2]
    assert found.column("llm_error_category").to_pylist()[2] == "client_error"
    assert shop.simulator.book.requests == 3


def test_a_choice_that_raises_is_its_rows(shop: Shop) -> None:
    """The error's name is the reason; its text, which may quote the row, is not."""
    entry, _ = shop.open("r1", rows(), by_row={"row_system": lambda row: {0: "a", 1: "b", 3: "c"}[row["id"]]})
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_error").to_pylist()[2] == "row_system failed (KeyError)"


def test_a_missing_column_is_refused(shop: Shop) -> None:
    """Before anything is sent, by its name."""
    with pytest.raises(InputError, match="no column \\['tone'\\]"):
        shop.open("r1", rows(), by_row={"row_system": "tone"})
    assert shop.simulator.book.calls.total() == 0


def test_a_choice_is_part_of_the_fingerprint(shop: Shop) -> None:
    """Another system prompt for one row buys that row alone again; the others keep their answers."""
    shop.simulator.store.batch_seconds = 1000
    first, _ = shop.open("r1", rows(tone=["a", None, "b", None]), by_row={"row_system": "tone"})
    shop.advance(first, "r1")
    second, _ = shop.open("r2", rows(tone=["a", None, "c", None]), by_row={"row_system": "tone"})
    found = shop.results(shop.finish(second, "r2"))
    assert found.column("llm_lane").to_pylist() == ["reused", "reused", "batch", "reused"]
    assert shop.simulator.book.requests == 5


def test_choices_are_columns_or_functions() -> None:
    """What is neither is refused where the asset is defined."""
    assert check_by_row({"row_model": None, "row_system": "tone"}, asset="a") == {"row_system": "tone"}
    with pytest.raises(ConfigurationError, match="row_params is the name of a column"):
        check_by_row({"row_params": {"temperature": 1}}, asset="a")
