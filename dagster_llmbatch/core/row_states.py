"""Where each row of a partition stands, derived from the ledger's segments: it cannot drift from them."""

from collections.abc import Sequence

import numpy as np

from dagster_llmbatch.core.decide import RowTally
from dagster_llmbatch.core.outcomes import PAID_FINAL
from dagster_llmbatch.core.requests import PROBLEM
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry
from dagster_llmbatch.ledger.segments import SegmentStore

_FINAL = np.array([kind.value for kind in PAID_FINAL], dtype=object)


class RowStates:
    """The rows of one entry as arrays, one element a row."""

    def __init__(self, entry: Entry, batches: "Sequence[BatchRecord]", segments: SegmentStore) -> None:
        self._wave = entry.wave
        rows = entry.row_count
        self.sent = np.zeros(rows, np.int32)
        """Times sent, over all waves."""
        self._counted = np.zeros(rows, np.int32)
        self._last_wave = np.zeros(rows, np.int32)
        self._out = np.zeros(rows, bool)
        self._done = np.zeros(rows, bool)
        self._final_error = np.zeros(rows, bool)
        self._unsendable = _unsendable(entry, segments)
        for batch in batches:
            self._add(batch, segments)

    def _add(self, batch: BatchRecord, segments: SegmentStore) -> None:
        if batch.wave > 0:
            rows = segments.table(batch.requests_segment, columns=["row"]).column("row").to_numpy()
            self.sent[rows] += 1
            self._last_wave[rows] = np.maximum(self._last_wave[rows], batch.wave)
            self._out[rows] = batch.phase is not BatchPhase.COLLECTED
        if batch.phase is not BatchPhase.COLLECTED or batch.outcomes_segment is None:
            return
        found = segments.table(batch.outcomes_segment, columns=["row", "kind", "counted", "retryable"])
        rows = found.column("row").to_numpy()
        done = np.isin(found.column("kind").to_numpy(), _FINAL)
        again = found.column("retryable").to_numpy()
        self._counted[rows] += found.column("counted").to_numpy()
        self._done[rows] |= done
        self._final_error[rows] |= ~done & ~again

    def pending(self, max_attempts: int) -> "np.ndarray":
        """Whether each row is to be sent: never sent, or sent in vain with attempts left."""
        settled = self._out | self._done | self._final_error | self._unsendable
        return ~settled & (self._counted < max_attempts)

    def unsent(self, max_attempts: int) -> "np.ndarray":
        """Whether each row belongs to the current wave and was not sent in it yet."""
        return self.pending(max_attempts) & (self._last_wave < max(self._wave, 1))

    def tally(self, max_attempts: int) -> RowTally:
        """The counts, whose sum is checked."""
        pending = self.pending(max_attempts)
        done = self._done & ~self._out
        review = ~pending & ~done & ~self._out
        return RowTally(
            total=len(self.sent),
            pending=int(pending.sum()),
            submitted=int(self._out.sum()),
            done=int(done.sum()),
            review=int(review.sum()),
            unsent=int(self.unsent(max_attempts).sum()),
        )


def _unsendable(entry: Entry, segments: SegmentStore) -> "np.ndarray":
    problems = segments.table(entry.plan_segment, columns=[PROBLEM]).column(PROBLEM)
    return problems.is_valid().to_numpy()
