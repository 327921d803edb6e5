"""The line over each provider's protocol: one row out per row in, paid once, whatever breaks on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_llmbatch.core.advance import Published, Waiting
from dagster_llmbatch.core.poll import handle_of
from dagster_llmbatch.errors import TransientProviderError
from dagster_llmbatch.providers.contract import BatchStatus
from dagster_llmbatch.schemas.output import OutputSchema
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import MODELS, Shop, table


@pytest.fixture(params=list(MODELS))
def shop(request: pytest.FixtureRequest, simulator: SimulatorServer, tmp_path: Path) -> "Iterator[Shop]":
    """A partition at each of the providers."""
    found = Shop(simulator, tmp_path, provider=request.param)
    yield found
    found.ledger.close()
    found.provider.close()


def statuses(shop: Shop, published: Published) -> "list[Any]":
    return shop.results(published).column("llm_status").to_pylist()


def four_fail() -> pa.Table:
    """Five rows: one refused, one cut off, one answered wrongly, one rejected by the provider, and one that succeeds."""
    faults = ["refuse", "truncate", "wrong_schema", "error_400"]
    return table(5, lambda i: f"ticket {i}" + (f" [[sim:{faults[i]}]]" if i < len(faults) else ""))


def test_every_row_is_answered_and_paid_once(shop: Shop) -> None:
    """Typed answers in input order, with tokens, model, batch and cost."""
    entry, _ = shop.open("r1")
    published = shop.finish(entry, "r1")
    found = shop.results(published)
    assert found.column("id").to_pylist() == list(range(6))
    assert statuses(shop, published) == ["succeeded"] * 6
    assert set(found.column("category").to_pylist()) <= {"bug", "billing"}
    assert set(found.column("urgent").to_pylist()) <= {True, False}
    for name in ("llm_input_tokens", "llm_output_tokens", "llm_model", "llm_batch_id", "llm_cost_usd"):
        assert found.column(name).null_count == 0, name
    assert set(found.column("llm_provider").to_pylist()) == {shop.provider.name}
    assert shop.simulator.book.requests == 6
    assert shop.simulator.book.batches == 1


def test_rows_that_fail_are_named(shop: Shop) -> None:
    """Refused, cut off, wrong and rejected rows have their reasons, and are not bought again."""
    entry, _ = shop.open("r1", four_fail())
    found = shop.results(shop.finish(entry, "r1"))
    categories = ["refused", "truncated", "validation_error", "client_error", None]
    assert found.column("llm_error_category").to_pylist() == categories
    assert found.column("llm_status").to_pylist() == ["failed"] * 3 + ["review", "succeeded"]
    assert found.column("llm_attempts").to_pylist() == [1] * 5


def test_a_row_the_provider_lost_is_bought_again(shop: Shop) -> None:
    """A row in no result is missing, at most three times; a batch that counts answers and shows none is not believed."""
    rows = table(3, lambda i: f"ticket {i}" + (" [[sim:missing]]" if i < 2 else ""))
    entry, _ = shop.open("r1", rows)
    if shop.provider.name == "openrouter":
        with pytest.raises(TransientProviderError, match="counts"):
            shop.finish(entry, "r1")
        assert shop.simulator.book.batches == 2
        return
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_error_category").to_pylist() == ["missing", "missing", None]
    assert found.column("llm_attempts").to_pylist() == [3, 3, 1]


@pytest.mark.parametrize(("fault", "value"), [("drop_after", 0), ("status_after", 500)])
def test_a_lost_create_answer_pays_once(shop: Shop, fault: str, value: float) -> None:
    """The provider accepted, the answer never came: the batch is found again, or waited for until it proves itself."""
    shop.simulator.store.batch_seconds = 200
    shop.simulator.faults.add("create", fault, value)
    entry, _ = shop.open("r1")
    published = shop.finish(entry, "r1", rounds=60)
    assert statuses(shop, published) == ["succeeded"] * 6
    assert shop.simulator.book.batches == 1
    assert shop.simulator.book.requests == 6


@pytest.mark.parametrize(("fault", "value"), [("drop_before", 0), ("status_before", 503), ("status_before", 429)])
def test_a_create_that_was_not_accepted_is_made_once(shop: Shop, fault: str, value: float) -> None:
    """Nothing was created: the same intent is bought, once, after the lists had time to show it."""
    shop.simulator.faults.add("create", fault, value)
    entry, _ = shop.open("r1")
    shop.finish(entry, "r1", rounds=60)
    assert shop.simulator.book.batches == 1


class _Killed(BaseException):
    """Stands for kill -9."""


def test_killed_after_the_create_call(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies with the answer in its hands: the next run adopts the batch."""
    real = shop.provider.create

    def dying(*args: Any, **kwargs: Any) -> BatchStatus:
        real(*args, **kwargs)
        raise _Killed

    entry, _ = shop.open("r1")
    with monkeypatch.context() as patch:
        patch.setattr(type(shop.ledger), "release", lambda *_args: None)
        patch.setattr(shop.provider, "create", dying)
        with pytest.raises(_Killed):
            shop.advance(entry, "r1")
    shop.simulator.clock.advance(shop.work.policy.lease + 1)
    again, _ = shop.open("r2")
    published = shop.finish(again, "r2", rounds=60)
    assert statuses(shop, published) == ["succeeded"] * 6
    assert shop.simulator.book.batches == 1


def test_two_partitions_of_equal_size_do_not_take_each_others_batch(shop: Shop, tmp_path: Path) -> None:
    """Another table's batch of the same size, made at the same time, is never taken for the lost one."""
    (tmp_path / "other").mkdir()
    other = Shop(shop.simulator, tmp_path / "other", provider=shop.provider.name)
    shop.simulator.store.batch_seconds = 200
    shop.simulator.faults.add("create", "drop_after")
    mine, _ = shop.open("r1")
    assert isinstance(shop.advance(mine, "r1"), Waiting)
    theirs, _ = other.open("o1", table(6, lambda i: f"other {i}"))
    other.advance(theirs, "o1")
    first = shop.finish(mine, "r1", rounds=60)
    second = other.finish(theirs, "o1", rounds=60)
    assert statuses(shop, first) == statuses(other, second) == ["succeeded"] * 6
    ids = {
        shop.results(first).column("llm_batch_id")[0].as_py(),
        other.results(second).column("llm_batch_id")[0].as_py(),
    }
    assert len(ids) == 2
    assert shop.simulator.book.batches == 2
    other.ledger.close()
    other.provider.close()


def test_the_end_of_the_window(shop: Shop) -> None:
    """A batch that was not done in time: what it finished is kept where the provider keeps it, the rest is bought again."""
    shop.simulator.store.batch_seconds = 10_000_000
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    (batch_id,) = [b.batch_id for b in shop.ledger.batches(entry.id)]
    assert batch_id
    shop.simulator.store.expire(batch_id, 0.5)
    shop.simulator.store.batch_seconds = 0.0
    published = shop.finish(entry, "r1", rounds=60)
    found = shop.results(published)
    assert statuses(shop, published) == ["succeeded"] * 6
    partial = shop.provider.name in ("openai", "anthropic")
    assert sorted(found.column("llm_attempts").to_pylist()) == ([1] * 3 + [2] * 3 if partial else [2] * 6)
    assert len(shop.simulator.book.paid) <= 9


def test_only_checked_answers_are_called_validated(shop: Shop) -> None:
    """Typed answers that passed are; refused, cut off, wrong and rejected rows are not, and no plain text ever is."""
    entry, _ = shop.open("r1", four_fail())
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_validated").to_pylist() == [False] * 4 + [True]
    text, _ = shop.open("r2", output=OutputSchema.compile(None))
    found = shop.results(shop.finish(text, "r2"))
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 6
    assert found.column("llm_validated").to_pylist() == [False] * 6


def test_answers_of_no_use_are_paid_for_as_well(shop: Shop) -> None:
    """Refused, cut off and wrong answers have their tokens and their cost; a row the provider rejected cost nothing."""
    entry, _ = shop.open("r1", four_fail())
    published = shop.finish(entry, "r1")
    found = shop.results(published)
    tokens, made, costs = (
        found.column(f"llm_{name}").to_pylist() for name in ("input_tokens", "output_tokens", "cost_usd")
    )
    for row in (0, 1, 2, 4):
        assert tokens[row] > 0, row
        assert costs[row] > 0, row
        if shop.provider.name != "openrouter":  # which says itself what a batch cost
            assert costs[row] == pytest.approx(tokens[row] + made[row]), row
    assert (tokens[3], made[3], costs[3]) == (None, None, 0)
    summary = published.entry.summary
    assert summary is not None
    assert summary["cost_usd"] == pytest.approx(sum(costs))
    assert summary["tokens"]["input_tokens"] == shop.simulator.book.input_tokens


def test_a_batch_that_somebody_else_cancelled_is_not_bought_again(shop: Shop) -> None:
    """Stopped at the provider behind our back: its rows are for review, and nobody decides to pay for them but a person."""
    if not shop.provider.limits.can_cancel:
        pytest.skip("its batches cannot be cancelled")
    shop.simulator.store.batch_seconds = 1e9
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    (batch,) = shop.ledger.batches(entry.id)
    shop.provider.cancel(handle_of(batch))
    shop.simulator.clock.advance(2000)
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_status").to_pylist() == ["review"] * 6
    assert found.column("llm_error_category").to_pylist() == ["cancelled"] * 6
    assert found.column("llm_attempts").to_pylist() == [1] * 6
    assert shop.simulator.book.batches == 1
    assert shop.simulator.book.calls["cancel"] == 1
