"""Costs of whole tables of outcomes: each at the price of its model and of the day its batch was sent."""

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_llmbatch.core.costs import outcome_costs
from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA
from dagster_llmbatch.core.pricing import Price, PriceBook

OWN = PriceBook({"gemini:a": Price(1, 10, cached=0.5), "gemini:b": Price(2, 20)})
M = 1_000_000


def costs(*outcomes: "dict[str, Any]", asked_for: "list[str]", sent_on: "dict[str | None, date] | None" = None) -> Any:
    """USD of outcomes given by their columns, null where there is none."""
    columns = {f.name: pa.array([o.get(f.name) for o in outcomes], f.type) for f in OUTCOME_SCHEMA}
    found = outcome_costs(
        pa.table(columns), pa.array(asked_for, pa.string()), provider="gemini", prices=OWN, sent_on=sent_on or {}
    )
    return pa.array(found, from_pandas=True).to_pylist()


def answer(model: "str | None" = None, **columns: Any) -> "dict[str, Any]":
    return {"model": model, "input_tokens": M, "output_tokens": 0, **columns}


def test_each_outcome_has_the_price_of_its_model() -> None:
    """Interleaved models, an answer under a snapshot's name that nobody lists, and one of a model that has no price."""
    found = costs(
        answer("a"), answer("b"), answer("a-2026-01-01"), answer(None), answer("z"), asked_for=["a", "a", "b", "b", "y"]
    )
    assert found == [1, 2, 2, 2, None]


def test_tokens_nobody_counted_leave_the_cost_unknown() -> None:
    """No counts at all, no output; but a count of cached tokens may be missing."""
    outcomes = (
        answer(input_tokens=None),
        answer(output_tokens=None),
        answer(cached_tokens=M),
        answer(cached_tokens=None),
    )
    assert costs(*outcomes, asked_for=["a"] * 4) == [None, None, 0.5, 1]


def test_what_the_provider_says_comes_first() -> None:
    """Its own figure, 0 too, stands before the list's; and where the list has none."""
    assert costs(answer(cost_usd=7.0), answer(cost_usd=0.0), answer(cost_usd=3.0), asked_for=["a", "a", "y"]) == [
        7,
        0,
        3,
    ]


def test_the_price_is_that_of_the_day_the_batch_was_sent() -> None:
    """Gemini 3.8 Flash doubles in 2027: a batch sent in December costs December's price, whenever it is collected."""
    sent_on: dict[str | None, date] = {"old": date(2026, 12, 1), "new": date(2027, 1, 1)}
    found = costs(answer(batch_id="old"), answer(batch_id="new"), asked_for=["gemini-3.8-flash"] * 2, sent_on=sent_on)
    assert np.allclose(found, [0.375, 0.75])


def test_no_outcomes_cost_nothing() -> None:
    """A block of rows none of which was sent."""
    assert costs(asked_for=[]) == []
