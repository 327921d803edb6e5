"""When a batch is looked at, and how often."""

from dagster_llmbatch.core.advance import Waiting
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch_tests.core.workplace import Shop

INTERVALS = [60.0, 90.0, 135.0, 202.5, 303.75, 455.625, 600.0, 600.0, 600.0]
"""Seconds from a create to the first look, and from each look to the next, as configured by default."""


def test_a_waiting_batch_is_looked_at_less_and_less_often(shop: Shop) -> None:
    """Half as long again after each look, up to ten minutes; before its time no call is made, however often a run asks."""
    shop.simulator.store.batch_seconds = 1e9
    entry, _ = shop.open("r1")
    calls = shop.simulator.book.calls
    found = []
    for looks, _ in enumerate(INTERVALS):
        waiting = shop.advance(entry, "r1")
        assert isinstance(waiting, Waiting)
        found.append(waiting.until - shop.work.now())
        shop.simulator.clock.advance(found[-1] - 1)
        shop.advance(entry, "r1")
        assert calls["status"] == looks
        shop.simulator.clock.advance(1)
    assert [round(interval, 3) for interval in found] == INTERVALS


def test_poll_intervals_by_default_and_as_configured() -> None:
    """A minute, then half as much again each time, ten minutes at most; each of the three is configuration."""
    known = Policy()
    assert (known.poll_first, known.poll_factor, known.poll_max) == (60.0, 1.5, 600.0)
    policy = Policy(poll_first=10, poll_factor=2, poll_max=35)
    intervals = [policy.next_poll(None)]
    while len(intervals) < 5:
        intervals.append(policy.next_poll(intervals[-1]))
    assert intervals == [10, 20, 35, 35, 35]
