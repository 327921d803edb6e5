"""Leases, walked at random."""

import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dagster_llmbatch.errors import LeaseLostError
from dagster_llmbatch.ledger.records import Entry
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch_tests.ledger.steps import entry, intent


def may_spend(ledger: Ledger, of: Entry, owner: str, fence: int) -> bool:
    """Whether the ledger takes an intent from `owner`."""
    try:
        intent(ledger, of, owner, fence)
    except LeaseLostError:
        return False
    return True


class Leases(RuleBasedStateMachine):
    """However runs acquire, renew and release, at most one of them may spend at any time."""

    def __init__(self) -> None:
        super().__init__()
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
        spenders = {o for o, fence in self.fences.items() if may_spend(self.ledger, self.entry, o, fence)}
        assert spenders == set(self.until)
        assert len(spenders) <= 1

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
