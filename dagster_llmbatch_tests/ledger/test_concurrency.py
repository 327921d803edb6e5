"""Two at the same thing at the same moment: transactions that meet on PostgreSQL, processes that meet at a barrier."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dagster_llmbatch.errors import LeaseLostError, LedgerError
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.ledger.tables import batches, entries, notes, runs, waiting
from dagster_llmbatch_tests.ledger.processes import WAIT, at_one_barrier
from dagster_llmbatch_tests.ledger.steps import KEY, create, entry, intent, owned


@pytest.fixture
def ledger(postgres_url: str) -> "Iterator[Ledger]":
    """A fresh ledger on PostgreSQL."""
    found = Ledger(postgres_url)
    yield found
    found.close()


def behind(url: str, statement: Any, call: "Callable[[], Any]") -> Any:
    """What `call` gives when another transaction ran `statement` before it and commits once `call` waits for it."""
    engine = sa.create_engine(url)
    held_up = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with ThreadPoolExecutor(1) as pool, engine.connect() as other:
        other.execute(statement)
        future = pool.submit(call)
        until = time.monotonic() + WAIT
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watch:
            while not (future.done() or watch.execute(held_up).scalar()) and time.monotonic() < until:
                time.sleep(0.01)
        other.commit()
        found = future.result(WAIT)
    engine.dispose()
    return found


def test_an_intent_sees_the_takeover_it_meets(ledger: Ledger, postgres_url: str) -> None:
    """A takeover that is not committed yet is waited for: the old owner's intent is refused, not recorded."""
    found = entry(ledger)
    fence = owned(ledger, found)
    takeover = sa.update(entries).where(entries.c.id == found.id).values(owner="other", fence=fence + 1)
    with pytest.raises(LeaseLostError):
        behind(postgres_url, takeover, lambda: intent(ledger, found, "r", fence))
    assert ledger.batches(found.id) == []


def test_a_takeover_waits_for_the_intent_it_meets(ledger: Ledger, postgres_url: str) -> None:
    """While an intent checks and writes nobody becomes owner: its row is locked until the end."""
    found = entry(ledger)
    owned(ledger, found)
    checked = sa.select(entries.c.id).where(entries.c.id == found.id).with_for_update()
    second = Ledger(postgres_url)
    assert behind(postgres_url, checked, lambda: second.acquire(found.id, "other", now=50.0, ttl=10.0)) == 2
    second.close()


def test_an_external_key_that_another_writes_is_found(ledger: Ledger, postgres_url: str) -> None:
    """An insert of the same key under way is waited for and is the record there is; here it is another entry's."""
    found, other = entry(ledger), entry(ledger, 2)
    fence = owned(ledger, found)
    theirs = sa.insert(batches).values(
        id="theirs",
        entry_id=other.id,
        wave=1,
        chunk=0,
        external_key="k",
        provider="openai",
        phase="intent",
        request_count=1,
        request_bytes=1,
        requests_segment="r",
        intent_at=1.0,
        refs={},
        failed_checks=0,
    )
    with pytest.raises(LedgerError, match=f"belongs to entry {other.id}"):
        behind(postgres_url, theirs, lambda: intent(ledger, found, "r", fence))


def test_first_writers_of_small_records_meet(ledger: Ledger, postgres_url: str) -> None:
    """The second of two first writers of a run, a wait or a note neither fails nor writes twice; a note is the last's."""
    found = entry(ledger)
    run = sa.insert(runs).values(entry_id=found.id, run_id="r", noted_at=1.0)
    behind(postgres_url, run, lambda: ledger.note_run(found.id, "r", now=2.0))
    wait = sa.insert(waiting).values(entry_id=found.id, run_id="r", since=1.0)
    behind(postgres_url, wait, lambda: ledger.wait(found.id, "r", now=2.0))
    assert [known.since for known in ledger.waiting_runs("n")] == [1.0]
    note = sa.insert(notes).values(name="a", value="first")
    behind(postgres_url, note, lambda: ledger.set_note("a", "second"))
    assert ledger.note("a") == "second"


def test_a_generation_that_another_writes_is_none(ledger: Ledger, postgres_url: str) -> None:
    """The second of two creators of a generation gets None."""
    known = entry(ledger)
    copied = [sa.literal(2) if c is entries.c.generation else c for c in entries.c if c is not entries.c.id]
    names = ["id", *(c.name for c in entries.c if c is not entries.c.id)]
    second = sa.insert(entries).from_select(names, sa.select(sa.literal("second"), *copied))
    assert behind(postgres_url, second, lambda: create(ledger, 2)) is None
    assert [found.id for found in ledger.pending_entries("n")] == [known.id, "second"]


def _first_use(_: int, url: str) -> bool:
    ledger = Ledger(url)
    created = create(ledger) is not None
    found = ledger.latest_entry(KEY)
    assert found is not None
    ledger.note_run(found.id, "r", now=1.0)
    ledger.wait(found.id, "r", now=1.0)
    ledger.set_note("a", "1")
    ledger.close()
    return created


def test_first_use_by_six_processes_at_once(ledger_url: str) -> None:
    """Six processes migrate, create and write at one barrier: nobody fails and one creates the entry."""
    assert sorted(at_one_barrier(6, _first_use, ledger_url)) == [False] * 5 + [True]


def _acquire(number: int, url: str, entry_id: str) -> "int | None":
    ledger = Ledger(url)
    fence = ledger.acquire(entry_id, f"r{number}", now=20.0, ttl=10.0)
    ledger.close()
    return fence


def test_one_of_two_processes_becomes_owner(ledger_url: str) -> None:
    """Two processes that find an expired lease at one barrier: one owns the entry, the other one is told no."""
    ledger = Ledger(ledger_url)
    found = entry(ledger)
    owned(ledger, found)
    fences = at_one_barrier(2, _acquire, ledger_url, found.id)
    assert sorted(fences, key=str) == [2, None]
    assert ledger.entry(found.id).owner == f"r{fences.index(2)}"
    ledger.close()


def _write(number: int, url: str, entry_id: str) -> None:
    ledger = Ledger(url)
    for i in range(10):
        ledger.note_run(entry_id, f"{number}-{i}", now=1.0)
        ledger.set_note(f"n{i}", str(number))
    ledger.close()


def test_eight_processes_write_to_sqlite_at_once(tmp_path: Path) -> None:
    """They wait for each other: no `database is locked`, and every write is there."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    found = entry(ledger)
    at_one_barrier(8, _write, url, found.id)
    assert all(ledger.knows_run(found.id, [f"{number}-{i}"]) for number in range(8) for i in range(10))
    ledger.close()
