"""Which older generation's answers a generation still has to take over.

Generations queue behind each other: an edit while a batch is out waits for it, and another edit waits behind that one.
Answers are handed down one generation at a time, the oldest first, so that none is bought again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_llmbatch.ledger.records import BatchRecord, Entry, EntryState
from dagster_llmbatch.ledger.sql_ledger import Ledger


@dataclass(frozen=True)
class Takeover:
    """One handing down that is still to be done."""

    heir: Entry
    predecessor: Entry
    batches: "Sequence[BatchRecord]"
    """The predecessor's."""


def line_of(entry: Entry, ledger: Ledger) -> "list[Entry]":
    """A generation and those before it whose answers are not handed down yet, the newest first."""
    line = [entry]
    while line[-1].predecessor_id is not None and not _has_taken_over(ledger.batches(line[-1].id)):
        line.append(ledger.entry(line[-1].predecessor_id))
    return line


def next_takeover(line: "Sequence[Entry]", ledger: Ledger) -> "Takeover | None":
    """The handing down that comes first; None where all is handed down."""
    if len(line) == 1:
        return None
    heir, predecessor = line[-2:]
    return Takeover(heir, predecessor, ledger.batches(predecessor.id))


def supersede_handed_down(line: "Sequence[Entry]", ledger: Ledger) -> None:
    """Settle a predecessor whose answers are handed down: a crash may have come in between."""
    oldest = line[-1]
    if oldest.predecessor_id is not None and ledger.entry(oldest.predecessor_id).state is EntryState.PENDING:
        ledger.supersede(oldest.predecessor_id)


def _has_taken_over(batches: "Sequence[BatchRecord]") -> bool:
    return any(batch.wave == 0 for batch in batches)
