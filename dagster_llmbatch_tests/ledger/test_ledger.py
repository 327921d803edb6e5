"""The ledger's rules, on SQLite and on a real PostgreSQL."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dagster_llmbatch.errors import LeaseLostError, LedgerError, LedgerNotDurableError, LedgerVersionError
from dagster_llmbatch.ledger.database import HEAD, VERSION_TABLE, database_url
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry, EntryKey, EntryState
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.ledger.tables import metadata

KEY = EntryKey("n", "asset", "p")
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh ledger's URL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def ledger(url: str) -> "Iterator[Ledger]":
    """A fresh ledger."""
    found = Ledger(url)
    yield found
    found.close()


def entry(ledger: Ledger, generation: int = 1, key: EntryKey = KEY) -> Entry:
    found = ledger.create_entry(
        key,
        generation=generation,
        plan_digest="d",
        plan_segment="s",
        row_count=3,
        settings={"provider": "openai"},
        predecessor_id=None,
        now=1.0,
    )
    assert found is not None
    return found


def intent(ledger: Ledger, of: Entry, owner: str, fence: int, key: str = "k") -> BatchRecord:
    return ledger.record_intent(
        of.id,
        owner,
        fence,
        wave=1,
        chunk=0,
        external_key=key,
        provider="openai",
        request_count=3,
        request_bytes=9,
        requests_segment="r",
        now=2.0,
    )


def submit(ledger: Ledger, record: BatchRecord, batch_id: str = "b1", next_poll_at: float = 10.0) -> None:
    ledger.record_handle(
        record.id,
        provider_batch_id=batch_id,
        handle={"batch_id": batch_id},
        status={},
        provider_state="validating",
        next_poll_at=next_poll_at,
        poll_interval=1.0,
        deadline=99.0,
        now=3.0,
    )


def test_generations_are_created_once(ledger: Ledger) -> None:
    """The second creator of a generation gets None; the newest one is found."""
    first = entry(ledger)
    again = ledger.create_entry(
        KEY, generation=1, plan_digest="x", plan_segment="s", row_count=0, settings={}, predecessor_id=None, now=1.0
    )
    assert again is None
    second = entry(ledger, 2)
    assert ledger.latest_entry(KEY) == second
    assert ledger.entry(first.id) == first
    assert ledger.latest_entry(EntryKey("n", "asset", "")) is None


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


def test_an_intent_is_recorded_once(ledger: Ledger) -> None:
    """The same external key again is the same record; of another entry it is a contradiction."""
    found = entry(ledger)
    fence = ledger.acquire(found.id, "r", now=0, ttl=10) or 0
    assert intent(ledger, found, "r", fence) == intent(ledger, found, "r", fence)
    other = entry(ledger, 2)
    fence = ledger.acquire(other.id, "r", now=0, ttl=10) or 0
    with pytest.raises(LedgerError, match="belongs to entry"):
        intent(ledger, other, "r", fence)


def test_phases_only_go_forward(ledger: Ledger) -> None:
    """Each phase change is compare-and-set; the second collector changes nothing; a second handle is an error."""
    found = entry(ledger)
    record = intent(ledger, found, "r", ledger.acquire(found.id, "r", now=0, ttl=10) or 0)
    assert not ledger.record_collected(record.id, "too early", now=4.0)
    ledger.record_upload(record.id, {"input_file_id": "f"})
    submit(ledger, record)
    submit(ledger, record)
    with pytest.raises(LedgerError, match="b2 was created"):
        submit(ledger, record, "b2")
    looked = {"counts": (3, 3, 0), "status": {}, "next_poll_at": 5.0, "poll_interval": 1.0, "now": 5.0}
    assert ledger.record_status(record.id, provider_state="completed", ended=True, **looked)  # type: ignore[arg-type]
    assert not ledger.record_status(record.id, provider_state="in_progress", ended=False, **looked)  # type: ignore[arg-type]
    assert ledger.record_collected(record.id, "first", now=6.0)
    assert not ledger.record_collected(record.id, "second", now=7.0)
    known = ledger.batch(record.id)
    assert (known.phase, known.outcomes_segment, known.deadline) == (BatchPhase.COLLECTED, "first", 99.0)


def test_due_batches_come_longest_waiting_first(ledger: Ledger) -> None:
    """What waited longest is polled first, what is not due is left alone, and failures in a row are counted."""
    found = entry(ledger)
    fence = ledger.acquire(found.id, "r", now=0, ttl=10) or 0
    records = [intent(ledger, found, "r", fence, f"k{i}") for i in range(3)]
    for record, due in zip(records, (30.0, 10.0, 50.0), strict=True):
        submit(ledger, record, record.external_key, due)
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=9)] == ["k1", "k0"]
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=1)] == ["k1"]
    assert ledger.due_batches("other", now=40.0, limit=9) == []
    assert ledger.record_check_failure(records[1].id, "e", next_poll_at=60.0) == 1
    assert ledger.record_check_failure(records[1].id, "e", next_poll_at=60.0) == 2
    assert [b.external_key for b in ledger.due_batches("n", now=40.0, limit=9)] == ["k0"]


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
    assert ledger.entry_of_run(["r1"], KEY) == found
    ledger.set_continuation("r1", "c1")
    ledger.mark_woken("r1", now=3.0)
    (wait,) = ledger.waits_of_continuation("c1")
    assert (wait.run_id, wait.key, wait.woken_at) == ("r1", KEY, 3.0)
    ledger.set_continuation("r1", "c2")
    assert ledger.waits_of_run("r1")[0].woken_at is None
    ledger.stop_waiting("r1", found.id)
    assert ledger.waiting_runs("n") == []


def test_notes_are_overwritten(ledger: Ledger) -> None:
    """A note is its last text."""
    assert ledger.note("a") is None
    ledger.set_note("a", "1")
    ledger.set_note("a", "2")
    assert ledger.note("a") == "2"


def test_the_migrations_make_the_tables(ledger: Ledger, url: str) -> None:
    """The scripts end where tables.py and HEAD are; only Alembic's own table is beside them."""
    entry(ledger)
    engine = sa.create_engine(database_url(url))
    with engine.connect() as connection:
        ours = {
            "version_table": VERSION_TABLE,
            "include_name": lambda name, kind, _: kind != "table" or "llmbatch" in name,
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=ours), metadata) == []
        assert connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == HEAD
    engine.dispose()


def test_a_newer_ledger_is_refused(ledger: Ledger, url: str) -> None:
    """A ledger that a newer version wrote is left alone, with what to do."""
    entry(ledger)
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(LedgerVersionError, match="9999"):
        Ledger(url).latest_entry(KEY)


def test_errors_hide_passwords_and_values() -> None:
    """An unreachable database is named without its password."""
    with pytest.raises(LedgerError) as caught:
        Ledger("postgresql+psycopg2://u:hush@127.0.0.1:1/x").latest_entry(KEY)
    assert "hush" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_urls() -> None:
    """Bare PostgreSQL URLs get the driver that is installed; memory is refused."""
    assert database_url("postgresql://h/x").drivername == "postgresql+psycopg2"
    assert database_url("postgres://h/x").drivername == "postgresql+psycopg2"
    with pytest.raises(LedgerNotDurableError):
        database_url("sqlite://")


def _first_use(url: str, barrier: Any, queue: Any, number: int) -> None:
    barrier.wait(60)
    ledger = Ledger(url)
    ledger.create_entry(
        KEY, generation=1, plan_digest="d", plan_segment="s", row_count=0, settings={}, predecessor_id=None, now=1.0
    )
    found = ledger.latest_entry(KEY)
    assert found is not None
    for i in range(20):
        ledger.set_note(f"n{i}", str(number))
        ledger.note_run(found.id, f"r{i}", now=1.0)
    queue.put(ledger.acquire(found.id, f"owner-{number}", now=1.0, ttl=100.0))


def test_first_use_by_several_processes_at_once(url: str) -> None:
    """Four processes migrate, create, write and ask for the lease at one barrier: nobody fails and one owns."""
    barrier, queue = SPAWN.Barrier(4), SPAWN.Queue()
    processes = [SPAWN.Process(target=_first_use, args=(url, barrier, queue, i)) for i in range(4)]
    for process in processes:
        process.start()
    fences = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(fences, key=str) == [1, None, None, None]


class Leases(RuleBasedStateMachine):
    """However runs acquire, renew and release, at most one of them may spend at any time."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(f"sqlite:///{self.folder.name}/l.db")
        self.entry = entry(self.ledger)
        self.now = 0.0
        self.fences: dict[str, int] = {}
        self.until: dict[str, float] = {}

    @rule(owner=st.sampled_from("abc"), ttl=st.floats(1, 20))
    def acquire(self, owner: str, ttl: float) -> None:
        alive = [o for o, until in self.until.items() if until > self.now and o != owner]
        fence = self.ledger.acquire(self.entry.id, owner, now=self.now, ttl=ttl)
        assert (fence is None) == bool(alive)
        if fence is not None:
            assert fence > max(self.fences.values(), default=0)
            self.fences[owner] = fence
            self.until = {owner: self.now + ttl}

    @rule(owner=st.sampled_from("abc"), ttl=st.floats(1, 20))
    def renew(self, owner: str, ttl: float) -> None:
        renewed = self.ledger.renew(self.entry.id, owner, self.fences.get(owner, 0), now=self.now, ttl=ttl)
        assert renewed == (owner in self.until)
        if renewed:
            self.until[owner] = self.now + ttl

    @rule(owner=st.sampled_from("abc"))
    def release(self, owner: str) -> None:
        self.ledger.release(self.entry.id, owner, self.fences.get(owner, 0))
        self.until.pop(owner, None)

    @rule(seconds=st.floats(0, 15))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_spender(self) -> None:
        spenders = 0
        for owner, fence in self.fences.items():
            try:
                intent(self.ledger, self.entry, owner, fence)
                spenders += 1
            except LeaseLostError:
                pass
        assert spenders <= 1

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
