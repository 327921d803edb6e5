"""The bench runs and says what it promises to say. How fast, it tells who runs it: never a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "cpu_per_row.py"


@pytest.mark.slow
def test_cpu_per_row_ends_with_its_numbers() -> None:
    """Both programs give the same answers to the same rows (the bench compares them), and the last line is JSON."""
    ran = subprocess.run(
        [sys.executable, str(BENCH), "--rows", "3000", "--repeat", "1"], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert set(found) == {"floor_us", "product_us", "ratio", "peak_mb"}
    assert found["peak_mb"] > 0


def test_too_few_rows_are_refused() -> None:
    """A marginal cost needs more rows than the base has."""
    ran = subprocess.run([sys.executable, str(BENCH), "--rows", "1000"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "must be above 1000" in ran.stderr
