"""What was asked of the simulator and what it was paid for: the other side of a user's ledger."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Book:
    """Counts since the start. Only rows that ran count as paid."""

    calls: "Counter[str]" = field(default_factory=Counter)
    creates: "list[dict[str, Any]]" = field(default_factory=list)
    """Provider, id and what marks it of every batch created, also of those whose answer was dropped."""
    paid: "Counter[str]" = field(default_factory=Counter)
    """Runs of each custom id."""
    input_tokens: int = 0
    output_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def batches(self) -> int:
        """Batches created."""
        return len(self.creates)

    @property
    def requests(self) -> int:
        """Rows run, each time one ran."""
        return self.paid.total()

    def pay(self, custom_id: str, tokens: "tuple[int, int]") -> None:
        """Book one row that ran."""
        with self._lock:
            self.paid[custom_id] += 1
            self.input_tokens += tokens[0]
            self.output_tokens += tokens[1]

    def to_json(self) -> "dict[str, Any]":
        """Plain JSON."""
        with self._lock:
            return {
                "batches": self.batches,
                "requests": self.requests,
                "distinct_requests": len(self.paid),
                "by_custom_id": dict(self.paid),
                "creates": self.creates,
                "calls": dict(self.calls),
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
            }
