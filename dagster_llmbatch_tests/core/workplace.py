"""A workplace over a simulator and a ledger in a folder, and partitions to work on: what the core tests share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dagster_llmbatch.core.advance import Published, Waiting, advance, claim
from dagster_llmbatch.core.decide import Claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.core.pricing import Price, PriceBook
from dagster_llmbatch.core.recipe import Policy, Recipe
from dagster_llmbatch.core.results import read_results
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.ledger.records import Entry, EntryKey
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.registry import make_provider
from dagster_llmbatch.schemas.output import OutputSchema
from dagster_llmbatch.simulator.server import SimulatorServer

KEY = EntryKey("test", "triage", "d1")


MODELS = {
    "openai": "gpt-5-mini",
    "anthropic": "claude-haiku-4-5",
    "gemini": "gemini-2.5-flash",
    "openrouter": "z-ai/glm-5.3",
}
"""A model of each provider."""


class Triage(BaseModel):
    model_config = ConfigDict(extra="forbid")
    category: Literal["bug", "billing"]
    urgent: bool


def table(rows: int = 6, text: "Callable[[int], str]" = lambda i: f"ticket {i}") -> pa.Table:
    return pa.table(
        {"id": pa.array(range(rows), pa.int64()), "body": pa.array([text(i) for i in range(rows)], pa.string())}
    )


def recipe(**changes: Any) -> Recipe:
    known = Recipe("triage", "openai", "gpt-5-mini", "Triage: {{ body }}", OutputSchema.compile(Triage), id_column="id")
    return replace(known, **changes)


A_DOLLAR_A_TOKEN = Price(input=1e6, output=1e6)


class Shop:
    """One partition of one asset, worked on by runs that a test names."""

    def __init__(
        self,
        simulator: SimulatorServer,
        folder: Path,
        url: "str | None" = None,
        *,
        provider: str = "openai",
        **policy: Any,
    ) -> None:
        self.simulator = simulator
        self.sleeps: list[float] = []
        self.ledger = Ledger(url or f"sqlite:///{folder / 'ledger.db'}")
        self.provider = make_provider(
            provider, api_key="sk-test", base_url=simulator.addresses[provider], sleep=lambda _: None
        )
        self.work = Workplace(
            provider_of=lambda _: self.provider,
            ledger=self.ledger,
            segments=SegmentStore(folder / "segments"),
            policy=Policy(**{"poll_first": 60.0, **policy}),
            prices=PriceBook({f"{provider}:{MODELS[provider]}": A_DOLLAR_A_TOKEN}),
            now=simulator.clock.now,
            sleep=self.sleeps.append,
        )

    def open(
        self, run_id: str, rows: Any = None, *, lineage: "tuple[str, ...]" = (), **changes: Any
    ) -> "tuple[Entry, Claim]":
        plan = plan_rows(
            table() if rows is None else rows,
            recipe=recipe(**{"provider": self.provider.name, "model": MODELS[self.provider.name], **changes}),
            provider=self.provider,
            segments=self.work.segments,
            namespace=KEY.namespace,
            partition=KEY.partition_key,
        )
        return claim(KEY, plan, run_id=run_id, lineage=(run_id, *lineage), ledger=self.ledger, now=self.work.now())

    def advance(self, entry: Entry, run_id: str) -> "Waiting | Published":
        return advance(entry.id, self.work, run_id=run_id, output=OutputSchema.compile(Triage))

    def finish(self, entry: Entry, run_id: str, *, rounds: int = 20) -> Published:
        """Advance, moving the clock to when there is something to do, until it is published."""
        for _ in range(rounds):
            found = self.advance(entry, run_id)
            if isinstance(found, Published):
                return found
            self.simulator.clock.advance(max(1.0, found.until - self.work.now()))
        raise AssertionError(f"not published after {rounds} rounds: {found}")

    def results(self, published: Published) -> pa.Table:
        assert published.entry.results_segment
        return read_results(self.work.segments, published.entry.results_segment).read_all()

    def close(self) -> None:
        self.ledger.close()
        self.provider.close()
