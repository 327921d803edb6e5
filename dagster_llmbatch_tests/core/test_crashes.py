"""kill -9 at every step of the line, at every provider, on both ledgers: the next run completes it, each row paid once."""

from pathlib import Path

import pytest

from dagster_llmbatch_tests.core.crashes import ROWS, STEPS, crash
from dagster_llmbatch_tests.core.workplace import MODELS


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("ledger", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_a_killed_run_pays_for_nothing_twice(
    request: pytest.FixtureRequest, tmp_path: Path, ledger: str, provider: str, step: str
) -> None:
    """Every row has its answer, in order, for one paid request."""
    url = request.getfixturevalue("postgres_url") if ledger == "postgres" else None
    cell = crash(provider, step, tmp_path, url)
    assert (cell.killed, cell.ended, cell.paid) == (True, "complete", ROWS)
