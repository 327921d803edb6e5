"""What the contract itself decides, whoever the provider is."""

import pytest

from dagster_llmbatch.providers.contract import BatchHandle, BatchState, BatchStatus


@pytest.mark.parametrize(
    ("state", "completed", "failed", "word"),
    [
        (BatchState.RUNNING, 0, 0, "pending"),
        (BatchState.RUNNING, None, None, "pending"),
        (BatchState.RUNNING, 1, 0, "processing"),
        (BatchState.RUNNING, 0, 1, "processing"),
        (BatchState.CANCELLING, 1, 0, "processing"),
        (BatchState.UNKNOWN, 0, 0, "pending"),
        (BatchState.UNKNOWN, 2, 0, "processing"),
        (BatchState.COMPLETED, 3, 0, "completed"),
        (BatchState.COMPLETED, 0, 3, "completed"),
        (BatchState.EXPIRED, 1, 0, "completed"),
        (BatchState.CANCELLED, 0, 0, "completed"),
        (BatchState.FAILED, None, None, "failed"),
        (BatchState.FAILED, 0, 3, "failed"),
    ],
)
def test_progress_in_four_words(state: BatchState, completed: "int | None", failed: "int | None", word: str) -> None:
    """State and counts give one of four words; the provider's own word is kept beside it."""
    status = BatchStatus(BatchHandle("openai", "b"), state, "its own word", completed=completed, failed=failed)
    assert (status.progress, status.provider_state) == (word, "its own word")
