"""The ledger: what was intended, bought, collected and published, and who may spend. The truth; Dagster's log is a mirror."""

from dagster_llmbatch.ledger.batches import Batches
from dagster_llmbatch.ledger.database import Database
from dagster_llmbatch.ledger.entries import Entries
from dagster_llmbatch.ledger.waiting import WaitingRuns


class Ledger(Entries, Batches, WaitingRuns):
    """The SQL side of the ledger, on SQLite or PostgreSQL. It has no clock: times are handed in, in unix seconds.

    Raises LedgerNotDurableError for a database in memory, LedgerVersionError where a newer version wrote it, LedgerError
    where it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    def close(self) -> None:
        """Give the connections back."""
        self.database.close()
