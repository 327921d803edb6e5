"""The simulator's time: the real one, plus what a test moved it by."""

import time


class Clock:
    """Unix seconds. Moves with real time, unless frozen, and by `advance`."""

    def __init__(self, *, frozen: bool = False) -> None:
        self._offset = 0.0
        self._frozen_at = time.time() if frozen else None

    def now(self) -> float:
        """The simulator's unix time."""
        return (time.time() if self._frozen_at is None else self._frozen_at) + self._offset

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._offset += seconds
