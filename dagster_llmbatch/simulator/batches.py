"""Batches as all providers have them, and what a provider has to say about its own."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from dagster_llmbatch.simulator.execution import Format, Outcome

DAY = 86_400
TERMINAL = ("completed", "failed", "expired", "cancelled")
VALIDATED, RUN = 0.1, 0.95
"""Shares of a batch's seconds after which its input has been read, and all its rows have run."""


@dataclass(frozen=True)
class Asked:
    """One request of a batch.

    Attributes:
        echo: what else of the request comes back on its row.
    """

    custom_id: str
    body: "Mapping[str, Any]"
    echo: "Mapping[str, Any]" = field(default_factory=dict)

    def stranger(self) -> "Asked":
        """The same request under an id nobody asked for."""
        echo = {name: f"stranger-{value}" for name, value in self.echo.items()}
        return replace(self, custom_id=f"stranger-{self.custom_id}", echo=echo)


class Row(NamedTuple):
    """One result line, and whether it is that of a reply."""

    line: bytes
    succeeded: bool


@dataclass
class StoredBatch:
    """One batch. Its state follows from the clock until something else settles it.

    States have OpenAI's names, whatever the provider calls them.
    """

    id: str
    rules: "BatchRules"
    created_at: float
    seconds: float
    """From its create to its end."""
    facts: "dict[str, Any]" = field(default_factory=dict)
    """What the create call said, and what is to be known of it later, in the provider's own words."""
    total: int = 0
    source: "Path | None" = None
    """Its requests, one a line, once read: deleting an input file later does not stop the batch."""
    validated: bool = False
    settled: "str | None" = None
    """A terminal status."""
    forced: "str | None" = None
    """A status set by a test, whatever the clock says."""
    cancel_at: "float | None" = None
    ended_at: "float | None" = None
    error: "dict[str, Any] | None" = None
    """Why it failed."""
    tally: "Counter[str]" = field(default_factory=Counter)
    """Rows by how they ended: succeeded, errored, cancelled, expired."""
    done: int = 0
    """Rows that have run so far, as counted while it is in progress."""
    results: "Path | None" = None
    """Its rows, one a line, for the providers that give all in one."""
    tokens: "tuple[int, int]" = (0, 0)
    queued: int = 0
    """Its place in the queue, in tokens."""

    @property
    def begins_at(self) -> float:
        """When its rows begin to run."""
        return self.created_at + self.seconds * VALIDATED

    def share_at(self, moment: float) -> float:
        """The share of its rows that have run at a moment."""
        if self.seconds <= 0:
            return 1.0
        age = moment - self.created_at
        return max(0.0, min(1.0, (age / self.seconds - VALIDATED) / (RUN - VALIDATED)))


class BatchRules(ABC):
    """What one provider does with its batches, HTTP aside."""

    provider: ClassVar[str]
    window: ClassVar[int] = DAY
    """Seconds after which a batch expires."""
    shuffles: ClassVar[bool] = True
    """Whether rows come in an order of the provider's own, not that of the requests."""

    @abstractmethod
    def format_of(self, batch: StoredBatch) -> Format:
        """The bodies of its requests."""

    @abstractmethod
    def asked(self, line: "dict[str, Any]", number: int) -> Asked:
        """The request of one input line."""

    @abstractmethod
    def row(self, batch: StoredBatch, asked: Asked, outcome: Outcome) -> bytes:
        """The result line of a request that ran."""

    @abstractmethod
    def unrun(self, batch: StoredBatch, asked: Asked, status: str) -> bytes:
        """The result line of a request that did not run, in a batch that ended so."""

    def read(self, _batch: StoredBatch) -> "dict[str, Any] | None":
        """Look at the input, when its time has come; what fails the whole batch, or None."""
        return None

    def requests(self, batch: StoredBatch) -> "Iterator[Asked]":
        """All requests, in the order they were given; none of a batch that was not read."""
        if batch.source is None:
            return
        with batch.source.open("rb") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield self.asked(msgspec.json.decode(line), number)

    def share_run(self, _batch: StoredBatch, _status: str, share: float) -> float:
        """The share of rows that run and are paid in a batch that ends so; `share` is what time allowed."""
        return share

    def unreadable(self, _batch: StoredBatch, _asked: Asked, line: bytes) -> bytes:
        """A row nobody can make sense of."""
        return line[: len(line) // 2]

    @abstractmethod
    def publish(self, batch: StoredBatch, rows: "list[Row]") -> None:
        """Keep the result lines of a batch that has ended."""
