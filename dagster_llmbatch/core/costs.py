"""What outcomes cost, in USD: whole columns at a time."""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_llmbatch.core.outcomes import PRICED_TOKENS
from dagster_llmbatch.core.pricing import PriceBook


def outcome_costs(
    outcomes: pa.Table, asked_for: pa.Array, *, provider: str, prices: PriceBook, sent_on: "Mapping[str | None, date]"
) -> "NDArray[np.float64]":
    """USD of each billed outcome of batches; NaN where unknown. What a provider itself says comes before any price list.

    Args:
        outcomes: with the columns of OUTCOME_SCHEMA.
        asked_for: the model each was asked of.
        sent_on: the day each batch was sent, in UTC, by its id.
    """
    usd = np.full(len(outcomes), np.nan)
    tokens = [_numbers(outcomes.column(name)) for name in PRICED_TOKENS]
    for rows, asked, answered_by, batch_id in _alike(asked_for, outcomes.column("model"), outcomes.column("batch_id")):
        rates = prices.rates(provider, asked, snapshot=answered_by, on=sent_on.get(batch_id))
        if rates is not None:
            usd[rows] = rates.usd(*(counts[rows] for counts in tokens))
    said = _numbers(outcomes.column("cost_usd"))
    return np.where(np.isnan(said), usd, said)


def _numbers(column: pa.ChunkedArray) -> "NDArray[np.float64]":
    """A column's numbers, NaN for null."""
    return column.cast(pa.float64()).to_numpy()


def _alike(*columns: "pa.Array | pa.ChunkedArray") -> "Iterator[tuple[Any, ...]]":
    """Each combination of values that occurs, after the numbers of the rows that have it."""
    names = [str(i) for i in range(len(columns))]
    rows = pa.array(np.arange(len(columns[0])))
    groups = pa.table([*columns, rows], [*names, "rows"]).group_by(names).aggregate([("rows", "list")])
    for *values, rows_of_it in zip(*(groups.column(name) for name in [*names, "rows_list"]), strict=True):
        yield rows_of_it.values.to_numpy(), *(value.as_py() for value in values)
