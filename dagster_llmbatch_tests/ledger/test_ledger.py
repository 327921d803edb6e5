"""The ledger's rules, on SQLite and on a real PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from dagster_llmbatch.errors import LeaseLostError, LedgerError
from dagster_llmbatch.ledger.records import BatchPhase, EntryKey, EntryState
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch_tests.ledger.steps import KEY, create, entry, intent, look, owned, submit


def test_generations_are_created_once(ledger: Ledger) -> None:
    """The second creator of a generation gets None; the newest one is found."""
    first = entry(ledger)
    assert create(ledger) is None
    second = entry(ledger, 2)
    assert ledger.latest_entry(KEY) == second
    assert ledger.entry(first.id) == first
    assert ledger.latest_entry(EntryKey("n", "asset", "")) is None
    assert ledger.pending_entries("n") == [first, second]


def test_only_the_generation_conflict_is_none(ledger: Ledger) -> None:
    """An entry that the database refuses for another reason is an error, not a generation that is there."""
    missing: Any = None
    with pytest.raises(IntegrityError) as caught:
        ledger.create_entry(
            KEY,
            generation=1,
            plan_digest=missing,
            plan_segment="a-segment",
            row_count=3,
            settings={},
            predecessor_id=None,
            now=1.0,
        )
    assert "parameters hidden" in str(caught.value)


def test_one_owner_at_a_time(ledger: Ledger) -> None:
    """A live lease keeps others out; an expired one is taken over and the old owner's token is worth nothing."""
    found = entry(ledger)
    fence = ledger.acquire(found.id, "r1", now=0, ttl=10)
    assert fence is not None
    assert ledger.acquire(found.id, "r2", now=5, ttl=10) is None
    assert ledger.renew(found.id, "r1", fence, now=9, ttl=10)
    assert ledger.acquire(found.id, "r2", now=15, ttl=10) is None
    taken = ledger.acquire(found.id, "r2", now=19, ttl=10)
    assert taken is not None
    assert taken > fence
    assert not ledger.renew(found.id, "r1", fence, now=20, ttl=10)
    with pytest.raises(LeaseLostError):
        intent(ledger, found, "r1", fence)
    with pytest.raises(LeaseLostError):
        ledger.set_wave(found.id, "r1", fence, 1)
    ledger.release(found.id, "r1", fence)
    assert ledger.entry(found.id).owner == "r2"


def test_a_released_entry_is_free_at_once(ledger: Ledger) -> None:
    """After the owner's release the next run need not wait for the lease, and the token is spent."""
    found = entry(ledger)
    fence = owned(ledger, found, "r1")
    ledger.release(found.id, "r1", fence)
    assert ledger.acquire(found.id, "r2", now=1, ttl=10) == fence + 1
    assert not ledger.renew(found.id, "r1", fence, now=1, ttl=10)


def test_an_intent_is_recorded_once(ledger: Ledger) -> None:
    """The same external key again is the same record; of another entry it is a contradiction."""
    found = entry(ledger)
    fence = owned(ledger, found)
    assert intent(ledger, found, "r", fence) == intent(ledger, found, "r", fence)
    assert len(ledger.batches(found.id)) == 1
    other = entry(ledger, 2)
    fence = owned(ledger, other)
    with pytest.raises(LedgerError, match="belongs to entry"):
        intent(ledger, other, "r", fence)


def test_phases_only_go_forward(ledger: Ledger) -> None:
    """Each phase change is compare-and-set; the second collector changes nothing."""
    found = entry(ledger)
    record = intent(ledger, found, "r", owned(ledger, found))
    assert not look(ledger, record, ended=True)
    assert not ledger.record_collected(record.id, "too early", now=4.0)
    ledger.record_upload(record.id, {"input_file_id": "f"}, create_at=5.0)
    submit(ledger, record)
    with pytest.raises(LedgerError, match="uploaded again"):
        ledger.record_upload(record.id, {"input_file_id": "g"}, create_at=6.0)
    assert look(ledger, record, ended=True)
    assert not look(ledger, record)
    assert ledger.record_collected(record.id, "first", now=6.0)
    assert not ledger.record_collected(record.id, "second", now=7.0)
    known = ledger.batch(record.id)
    assert (known.phase, known.outcomes_segment, known.deadline) == (BatchPhase.COLLECTED, "first", 99.0)
    assert known.refs == {"input_file_id": "f"}


def test_a_batch_has_one_handle(ledger: Ledger) -> None:
    """The same handle twice is recorded once, also after the batch ended; another one is an error that names both."""
    found = entry(ledger)
    record = intent(ledger, found, "r", owned(ledger, found))
    submit(ledger, record)
    known = ledger.batch(record.id)
    submit(ledger, record, next_poll_at=77.0)
    assert ledger.batch(record.id) == known
    look(ledger, record, ended=True)
    submit(ledger, record)
    with pytest.raises(LedgerError, match="b1 at openai, and b2 was created"):
        submit(ledger, record, "b2")
    assert ledger.batch(record.id).batch_id == "b1"


def test_due_batches_come_longest_waiting_first(ledger: Ledger) -> None:
    """What waited longest is polled first, what is not due is left alone, and failures in a row are counted."""
    found = entry(ledger)
    fence = owned(ledger, found)
    records = [intent(ledger, found, "r", fence, f"k{i}") for i in range(3)]
    for record, due in zip(records, (30.0, 10.0, 50.0), strict=True):
        submit(ledger, record, record.external_key, due)
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=9)] == ["k1", "k0"]
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=1)] == ["k1"]
    assert ledger.due_batches("other", now=40.0, limit=9) == []
    assert ledger.record_check_failure(records[1].id, "e", next_poll_at=60.0, poll_interval=90.0) == 1
    assert ledger.record_check_failure(records[1].id, "e", next_poll_at=60.0, poll_interval=135.0) == 2
    assert ledger.batch(records[1].id).poll_interval == 135.0
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=9)] == ["k0"]


def test_no_batch_starves(ledger: Ledger) -> None:
    """With more batches due than a tick has time for, every one has its turn before any has a second."""
    found = entry(ledger)
    fence = owned(ledger, found)
    for i in range(4):
        submit(ledger, intent(ledger, found, "r", fence, f"k{i}"), f"b{i}", next_poll_at=1.0)
    polled = []
    for now in (10.0, 11.0, 12.0, 13.0):
        (due,) = ledger.due_batches("n", now=now, limit=1)
        polled.append(due.external_key)
        look(ledger, due, next_poll_at=now)
    assert sorted(polled) == ["k0", "k1", "k2", "k3"]


def test_a_verdict_stays(ledger: Ledger) -> None:
    """Published once; a second verdict, a failure or a successor change nothing."""
    found = entry(ledger)
    assert ledger.publish(found.id, results_segment="r", summary={"rows": 3}, now=5.0)
    assert not ledger.publish(found.id, results_segment="other", summary={}, now=6.0)
    assert not ledger.fail(found.id, "no")
    assert not ledger.supersede(found.id)
    known = ledger.entry(found.id)
    assert (known.state, known.results_segment, known.summary) == (EntryState.PUBLISHED, "r", {"rows": 3})
    assert ledger.published_entry(KEY) == known
    assert ledger.pending_entries("n") == []


def test_runs_and_waits(ledger: Ledger) -> None:
    """Runs are known to their entries; waits follow their continuation until they end."""
    found = entry(ledger)
    for _ in range(2):
        ledger.note_run(found.id, "r1", now=1.0)
        ledger.wait(found.id, "r1", now=2.0)
    assert ledger.knows_run(found.id, ["x", "r1"])
    assert not ledger.knows_run(found.id, ["x"])
    assert ledger.entry_of_run(["r1"], KEY) == found
    ledger.set_continuation("r1", "c1")
    ledger.mark_woken("r1", now=3.0)
    (wait,) = ledger.waits_of_continuation("c1")
    assert (wait.run_id, wait.key, wait.woken_at) == ("r1", KEY, 3.0)
    ledger.set_continuation("r1", "c2")
    assert ledger.waits_of_run("r1")[0].woken_at is None
    ledger.stop_waiting("r1", found.id)
    assert ledger.waiting_runs("n") == []


def test_a_run_stops_waiting_for_one_or_for_all(ledger: Ledger) -> None:
    """A wait ends for one partition, or for all of a run's; other runs' waits stay, the oldest first."""
    first, second = entry(ledger), entry(ledger, key=EntryKey("n", "asset", "q"))
    for run_id, since in (("late", 5.0), ("early", 1.0)):
        ledger.wait(first.id, run_id, now=since)
        ledger.wait(second.id, run_id, now=since + 1)
    assert [wait.since for wait in ledger.waiting_runs("n")] == [1.0, 2.0, 5.0, 6.0]
    ledger.stop_waiting("early", first.id)
    assert [wait.entry_id for wait in ledger.waits_of_run("early")] == [second.id]
    ledger.stop_waiting("late")
    assert [wait.run_id for wait in ledger.waiting_runs("n")] == ["early"]


def test_notes_are_overwritten(ledger: Ledger) -> None:
    """A note is its last text."""
    assert ledger.note("a") is None
    ledger.set_note("a", "1")
    ledger.set_note("a", "2")
    assert ledger.note("a") == "2"
