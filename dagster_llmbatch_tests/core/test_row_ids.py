"""What names a row: a column, a function of the row, or its number; and what cannot name one, refused before any call."""

from typing import Any

import pyarrow as pa
import pytest

from dagster_llmbatch.core.row_ids import check_id_column
from dagster_llmbatch.errors import ConfigurationError, InputError
from dagster_llmbatch_tests.core.workplace import Shop, table


def test_a_function_names_rows(shop: Shop) -> None:
    """Text and integers that a function makes of a row are its id, as text."""
    entry, _ = shop.open("r1", table(3), id_column=lambda row: row["id"] if row["id"] else f"{row['body']}/{row['id']}")
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_row_id").to_pylist() == ["ticket 0/0", "1", "2"]
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 3


def only(value: Any) -> Any:
    """A function that names all rows well but row 2."""

    def named(row: "dict[str, Any]") -> Any:
        return value if row["id"] == 2 else row["id"]

    return named


def fails(row: "dict[str, Any]") -> str:
    raise KeyError("SECRET-ROW")


@pytest.mark.parametrize(
    ("id_column", "message"),
    [
        (only(None), r"1 or more rows have no id by id_column 'named' \(row numbers from 0: \[2\]\)"),
        (only(0), r"1 ids by id_column 'named' stand on more than one row, such as \['0'\]"),
        (only("0"), r"such as \['0'\]"),
        (only(2.0), r"id_column 'named' gave float for row 2 .*integers or text"),
        (only(True), "gave bool for row 2"),
        (only("\ud800"), "lone surrogate"),
        (fails, r"id_column 'fails' failed for row 0 .*KeyError"),
    ],
)
def test_a_function_that_names_badly_is_refused(shop: Shop, id_column: Any, message: str) -> None:
    """Nulls, repeated ids, other types and errors end the plan as a bad column does: by asset and row, nothing sent."""
    with pytest.raises(InputError, match=message) as caught:
        shop.open("r1", table(5), id_column=id_column)
    assert str(caught.value).startswith("triage, partition d1: ")
    assert "SECRET-ROW" not in str(caught.value)
    assert shop.simulator.book.calls.total() == 0


def test_row_numbers_go_on_over_batches_of_the_input(shop: Shop) -> None:
    """A function that fails in the second batch is told by the row's number in the whole input."""
    given = pa.Table.from_batches(table(6).to_batches(max_chunksize=2))
    with pytest.raises(InputError, match="for row 4 "):
        shop.open("r1", given, id_column=lambda row: str(row["id"]) if row["id"] < 4 else 1.5)


@pytest.mark.parametrize("given", [3, "", ["id"]])
def test_what_is_neither_a_name_nor_a_function_is_refused(given: Any) -> None:
    """At the definition."""
    with pytest.raises(ConfigurationError, match=r"shop/reviews: id_column is the name of a column or a function"):
        check_id_column(given, asset="shop/reviews")
