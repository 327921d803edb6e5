"""Batches that cannot be looked at, end late, are stopped or find no room: nothing is lost and nothing paid twice."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_llmbatch.core.advance import Published, Waiting
from dagster_llmbatch.core.cancel import cancel_open
from dagster_llmbatch.errors import QueueFullError, StatusUnreadableError, TransientProviderError
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, CancelReason, Entry
from dagster_llmbatch.providers.contract import BatchHandle, BatchStatus
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import MODELS, Shop, table

DAY = 86_400.0
FOR_EVER = 1000
"""More calls than any test makes."""


@pytest.fixture(params=list(MODELS))
def any_shop(request: pytest.FixtureRequest, simulator: SimulatorServer, tmp_path: Path) -> "Iterator[Shop]":
    """A partition at each of the providers."""
    found = Shop(simulator, tmp_path, provider=request.param)
    yield found
    found.ledger.close()
    found.provider.close()


def shop_with(simulator: SimulatorServer, folder: Path, **policy: Any) -> Shop:
    folder.mkdir(exist_ok=True)
    return Shop(simulator, folder, **policy)


def batches(shop: Shop, entry: Entry) -> "list[BatchRecord]":
    return shop.ledger.batches(entry.id)


def rows_of(shop: Shop, published: Published, column: str = "llm_status") -> "list[Any]":
    return shop.results(published).column(column).to_pylist()


def wait_until(shop: Shop, entry: Entry, run_id: str, error: "type[Exception]") -> int:
    """Advance until an error; returns how many times there was none."""
    for round_ in range(20):
        try:
            found = shop.advance(entry, run_id)
        except error:
            return round_
        assert isinstance(found, Waiting)
        shop.simulator.clock.advance(max(1.0, found.until - shop.work.now()))
    raise AssertionError("no error")


@pytest.mark.parametrize("status", [404, 401, 503])
def test_a_status_that_cannot_be_read_says_nothing_about_the_batch(any_shop: Shop, status: int) -> None:
    """Three failed checks in a row are waited out, the next one is an error, and once mended the batch is collected."""
    shop = any_shop
    entry, _ = shop.open("r1")
    assert isinstance(shop.advance(entry, "r1"), Waiting)
    shop.simulator.clock.advance(600)
    shop.simulator.faults.add("status", "status_before", status, times=FOR_EVER)
    assert wait_until(shop, entry, "r1", StatusUnreadableError) == 3
    with pytest.raises(StatusUnreadableError, match=r"5 times in a row.*nothing is bought again"):
        shop.advance(entry, "r2")
    shop.simulator.faults.clear()
    published = shop.finish(entry, "r3")
    assert rows_of(shop, published) == ["succeeded"] * 6
    assert (shop.simulator.book.batches, shop.simulator.book.requests) == (1, 6)


def test_checks_that_fail_are_spaced_out_and_forgotten(shop: Shop) -> None:
    """Each failed check waits longer for the next; one that works starts the count anew."""
    shop.simulator.store.batch_seconds = DAY / 2
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    shop.simulator.faults.add("status", "status_before", 503, times=FOR_EVER)
    waits: list[float] = []
    for _ in range(3):
        shop.simulator.clock.advance(batches(shop, entry)[0].next_poll_at - shop.work.now())  # type: ignore[operator]
        shop.advance(entry, "r1")
        waits.append(round((batches(shop, entry)[0].next_poll_at or 0) - shop.work.now()))
    assert waits == [90, 135, 202]
    shop.simulator.faults.clear()
    shop.simulator.clock.advance(600)
    shop.advance(entry, "r1")
    assert batches(shop, entry)[0].failed_checks == 0


def test_one_unreadable_batch_keeps_no_other_waiting(
    simulator: SimulatorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of the others are collected before the error, which names the one."""
    shop = shop_with(simulator, tmp_path / "two", max_requests_per_batch=3)
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    broken, whole = batches(shop, entry)
    look = shop.provider.status

    def status(handle: BatchHandle) -> BatchStatus:
        if handle.batch_id == broken.batch_id:
            raise TransientProviderError("down", provider="openai")
        return look(handle)

    with monkeypatch.context() as patch:
        patch.setattr(shop.provider, "status", status)
        wait_until(shop, entry, "r1", StatusUnreadableError)
    assert shop.ledger.batch(broken.id).failed_checks == 4
    assert shop.ledger.batch(whole.id).phase is BatchPhase.COLLECTED
    assert rows_of(shop, shop.finish(entry, "r2")) == ["succeeded"] * 6
    assert simulator.book.batches == 2
    shop.ledger.close()
    shop.provider.close()


def test_results_that_expired_at_the_provider_are_for_review(any_shop: Shop) -> None:
    """Looked at only after the provider stopped keeping them: rows for review, and nothing bought again unasked."""
    shop = any_shop
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    shop.simulator.clock.advance(shop.provider.limits.retention + 1)
    # OpenRouter's 404 means "not yet" for a while, by the real clock; what it keeps no more is 410
    status = 410 if shop.provider.name == "openrouter" else 404
    for call in ("status", "content"):
        shop.simulator.faults.add(call, "status_before", status, times=FOR_EVER)
    published = shop.finish(entry, "r1")
    assert rows_of(shop, published) == ["review"] * 6
    assert rows_of(shop, published, "llm_error_name") == ["results_expired"] * 6
    assert shop.simulator.book.batches == 1


def test_a_batch_past_its_deadline_is_stopped_and_the_rest_goes_again(any_shop: Shop) -> None:
    """What it finished is kept, the rest is bought once more; a provider without a cancel is waited for."""
    shop = any_shop
    # before the provider's own end of window, which a deadline is beyond by default
    early = replace(shop.work.policy, wave_grace=DAY / 4 - shop.provider.limits.window)
    shop.work = replace(shop.work, policy=early)
    shop.simulator.store.batch_seconds = DAY / 2
    entry, _ = shop.open("r1", table(10))
    shop.advance(entry, "r1")
    deadline = batches(shop, entry)[0].deadline
    assert deadline is not None
    shop.simulator.clock.advance(deadline - shop.work.now() + 1)
    shop.advance(entry, "r1")
    asked = batches(shop, entry)[0]
    assert (asked.cancel_reason, asked.deadline) == ("deadline", deadline)
    assert (asked.next_poll_at or 0) - shop.work.now() >= shop.provider.limits.cancel_settle
    shop.simulator.store.batch_seconds = 0
    published = shop.finish(entry, "r1", rounds=200)
    assert rows_of(shop, published) == ["succeeded"] * 10
    assert shop.simulator.book.requests == 10
    assert shop.simulator.book.calls["cancel"] <= 1
    assert shop.simulator.book.batches == (2 if shop.provider.limits.can_cancel else 1)


@pytest.mark.parametrize("reason", [CancelReason.TERMINATED, CancelReason.OPERATOR])
def test_what_a_person_stops(shop: Shop, reason: CancelReason) -> None:
    """With the run: a later one goes on, and no attempt is used up. For good: the rows are for review."""
    shop.simulator.store.batch_seconds = DAY / 2
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    assert cancel_open(entry.id, reason, shop.work) == 1
    assert cancel_open(entry.id, reason, shop.work) == 0
    shop.simulator.store.batch_seconds = 0
    published = shop.finish(entry, "r2")
    expected = "succeeded" if reason is CancelReason.TERMINATED else "review"
    assert rows_of(shop, published) == [expected] * 6
    assert shop.simulator.book.batches == (2 if reason is CancelReason.TERMINATED else 1)


def test_a_cancel_that_failed_is_asked_for_again(shop: Shop) -> None:
    """The reason was recorded before the call: the next look repeats it."""
    shop.simulator.store.batch_seconds = DAY / 2
    shop.simulator.faults.add("cancel", "status_before", 503, times=50)
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    assert cancel_open(entry.id, CancelReason.OPERATOR, shop.work) == 0
    assert batches(shop, entry)[0].cancel_at is None
    shop.simulator.faults.clear()
    shop.advance(entry, "r1")
    assert batches(shop, entry)[0].cancel_at == shop.work.now()


@pytest.mark.parametrize("any_shop", ["openai", "gemini", "openrouter"], indirect=True)
def test_a_full_queue_is_met_with_smaller_batches(any_shop: Shop) -> None:
    """Halved while it does not fit, no attempt used up, each row paid once; those with a queue for tokens."""
    shop = any_shop
    shop.simulator.store.token_limit = 0
    entry, _ = shop.open("r1", table(40))
    for _ in range(12):
        found = shop.advance(entry, "r1")
        assert isinstance(found, Waiting)
        shop.simulator.clock.advance(max(1.0, found.until - shop.work.now()))
    first_of_wave = {b.wave: b.request_count for b in reversed(batches(shop, entry))}
    sizes = list(dict.fromkeys(first_of_wave[wave] for wave in sorted(first_of_wave)))
    assert sizes[:3] == [40, 20, 10]
    assert sizes == sorted(sizes, reverse=True)
    shop.simulator.store.token_limit = None
    published = shop.finish(entry, "r1", rounds=100)
    assert rows_of(shop, published) == ["succeeded"] * 40
    assert shop.simulator.book.requests == 40


def test_a_run_may_fail_at_a_full_queue(simulator: SimulatorServer, tmp_path: Path) -> None:
    """With on_queue_full="fail" the run ends, the rows stay, and a later run buys them."""
    shop = shop_with(simulator, tmp_path / "impatient", on_queue_full="fail")
    simulator.store.token_limit = 0
    entry, _ = shop.open("r1")
    assert wait_until(shop, entry, "r1", QueueFullError) <= 2
    with pytest.raises(QueueFullError):
        shop.advance(entry, "r2")
    simulator.store.token_limit = None
    simulator.clock.advance(301)
    assert rows_of(shop, shop.finish(entry, "r3")) == ["succeeded"] * 6
    assert simulator.book.requests == 6
    shop.ledger.close()
    shop.provider.close()


def test_no_more_batches_are_out_than_may_be(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Chunks beyond the most wait until others have ended, over all partitions of the ledger."""
    shop = shop_with(simulator, tmp_path / "few", max_requests_per_batch=2, max_batches_in_progress=2)
    simulator.store.batch_seconds = 1000
    entry, _ = shop.open("r1", table(9))
    waiting = shop.advance(entry, "r1")
    assert isinstance(waiting, Waiting)
    assert (waiting.held, waiting.reason) == (True, "2 batches of the provider are in progress, and 2 may be")
    assert [b.phase for b in batches(shop, entry)] == [BatchPhase.SUBMITTED] * 2
    published = shop.finish(entry, "r1", rounds=100)
    assert rows_of(shop, published) == ["succeeded"] * 9
    assert (simulator.book.batches, simulator.book.requests) == (5, 9)
    shop.ledger.close()
    shop.provider.close()
