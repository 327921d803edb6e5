"""The bench runs and says what it promises to say. How fast, it tells who runs it: never a test."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench" / "cpu_per_row.py"
COMPARED = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$",
    (ROOT / "README.md").read_text().split("## Compared")[1].split("|---|---|---|")[1].split("## ")[0],
    re.MULTILINE,
)
"""The README's scenes, and what it says of the product."""


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


def compared(scene: str) -> "dict[str, list[str]]":
    """What the comparison sees of the product."""
    command = [sys.executable, str(ROOT / "bench" / "compared.py"), "--scene", scene]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_lost_creation_is_one_batch_in_the_comparison() -> None:
    """The comparison runs without the peer."""
    assert compared("creation is lost") == {COMPARED[5][0]: ["not run", "1 batch made"]}


@pytest.mark.slow
def test_the_product_does_what_the_readme_says_in_every_scene() -> None:
    """The README's third column, scene by scene."""
    assert {name: product for name, (_, product) in compared("").items()} == dict(COMPARED)
    assert len(COMPARED) == 8
