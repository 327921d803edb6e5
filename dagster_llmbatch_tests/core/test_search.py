"""A create call without a clear answer, at providers whose batches carry no name: wait for proof, or buy, as accepted."""

from pathlib import Path
from typing import Any

import pytest

from dagster_llmbatch.core.advance import Waiting
from dagster_llmbatch.errors import BatchNotAdoptableError, BatchUnprovenError
from dagster_llmbatch.providers.contract import Search
from dagster_llmbatch_tests.core.workplace import Shop


def unproven(*_args: Any) -> None:
    raise BatchUnprovenError("a batch may be ours", provider="openai")


def never_proven(*_args: Any) -> None:
    raise BatchNotAdoptableError("a batch may have been ours")


def test_an_unproven_batch_is_waited_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a batch may be ours nothing is bought; once it is proven it is adopted."""
    shop.simulator.faults.add("create", "drop_after")
    entry, _ = shop.open("r1")
    with monkeypatch.context() as patch:
        patch.setattr(shop.provider, "find", unproven)
        for _ in range(5):
            waiting = shop.advance(entry, "r1")
            assert isinstance(waiting, Waiting)
            shop.simulator.clock.advance(waiting.until - shop.work.now() + 1)
    shop.finish(entry, "r1")
    assert shop.simulator.book.batches == 1
    assert shop.simulator.book.requests == 6


def test_what_can_never_be_proven_stops(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is bought again unasked: the run fails, and so does the next one."""
    shop.simulator.faults.add("create", "drop_after")
    monkeypatch.setattr(shop.provider, "find", never_proven)
    entry, _ = shop.open("r1")
    for run in ("r1", "r2"):
        with pytest.raises(BatchNotAdoptableError):
            shop.advance(entry, run)
    assert shop.simulator.book.batches == 1


@pytest.mark.parametrize("find", [unproven, never_proven])
def test_resubmit_accepts_paying_twice(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Any) -> None:
    """With on_reclaim="resubmit" the partition goes on at once, at the price of a second batch."""
    (tmp_path / "careless").mkdir()
    careless = Shop(shop.simulator, tmp_path / "careless", on_reclaim="resubmit")
    shop.simulator.faults.add("create", "drop_after")
    monkeypatch.setattr(careless.provider, "find", find)
    entry, _ = careless.open("r1")
    careless.finish(entry, "r1")
    assert shop.simulator.book.batches == 2
    careless.ledger.close()
    careless.provider.close()


def test_a_batch_may_be_missing_from_lists_for_a_while(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not listed yet is not never made: nothing is bought before `appears_within` has passed since the create call."""
    shop.simulator.faults.add("create", "drop_after")
    entry, _ = shop.open("r1")
    looks: list[float] = []

    def absent(search: Search) -> None:
        looks.append(shop.work.now())

    monkeypatch.setattr(shop.provider, "find", absent)
    begun = shop.work.now()
    waiting = shop.advance(entry, "r1")
    assert isinstance(waiting, Waiting)
    assert waiting.until >= begun + shop.provider.limits.appears_within
    shop.simulator.clock.advance(waiting.until - begun + 1)
    shop.advance(entry, "r1")
    assert shop.simulator.book.batches == 2  # the list was right for all we can see: it was bought


def test_a_refused_create_is_not_searched_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 429 made nothing: the next try buys without a look at the lists."""
    shop.simulator.faults.add("create", "status_before", 429)
    monkeypatch.setattr(shop.provider, "find", never_proven)
    entry, _ = shop.open("r1")
    shop.finish(entry, "r1")
    assert shop.simulator.book.batches == 1


def test_the_search_knows_what_was_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the key, the upload, the time of the create call, all custom ids, and the batches that are others."""
    seen: list[Search] = []
    shop.finish(shop.open("r0")[0], "r0")
    other = next(iter(shop.simulator.store.batches))
    shop.simulator.clock.advance(1000)
    shop.simulator.faults.add("create", "drop_after")
    real = shop.provider.find
    monkeypatch.setattr(shop.provider, "find", lambda search: seen.append(search) or real(search))
    entry, _ = shop.open("r1")
    begun = shop.work.now()
    shop.finish(entry, "r1")
    search = seen[0]
    assert search.external_key.startswith("llmb-")
    assert set(search.uploaded.refs) == {"input_file_id"}
    assert search.since == begun
    assert len(set(search.custom_ids)) == 6
    assert search.known == [other]


def test_what_is_not_proven_in_time_never_will_be(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the window of a batch that may be ours is over, waiting proves nothing more: a person has to look."""
    shop.simulator.faults.add("create", "drop_after")
    monkeypatch.setattr(shop.provider, "find", unproven)
    entry, _ = shop.open("r1")
    assert isinstance(shop.advance(entry, "r1"), Waiting)
    shop.simulator.clock.advance(shop.provider.limits.window + shop.work.policy.wave_grace + 1)
    with pytest.raises(BatchNotAdoptableError, match="triage, partition d1"):
        shop.advance(entry, "r1")
    assert shop.simulator.book.batches == 1
