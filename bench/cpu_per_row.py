"""Marginal CPU per row of the product against a floor that does only the unavoidable, on the same rows and server.

    python bench/cpu_per_row.py --rows 100000

Each program runs as a process of its own, at 1,000 rows and at `--rows`; CPU (user and system seconds) and peak memory
are the kernel's account of it. The number is (CPU at N - CPU at 1,000) / (N - 1,000): what imports cost falls out. All is done
`--repeat` times, the two programs in turn, and the least CPU of each counts: what else the machine does only adds to it. Every
result table is checked: all rows, in order, each with the answer that the server gave to its prompt. The last line is
JSON: floor_us, product_us (microseconds a row), ratio, peak_mb (million bytes, the product's highest at N).
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
BASE_ROWS = 1_000
WORDS = ["invoice", "refund", "login", "café", "crash", "timeout", "“quoted”", "export", "mobile", "upgrade"]
ANSWER_COLUMNS = ["row", "category", "urgent", "summary"]


@dataclass(frozen=True)
class Used:
    """What one program used: CPU seconds and peak bytes."""

    cpu: float
    peak: int

    @classmethod
    def over(cls, runs: "Sequence[Used]") -> "Used":
        """The least CPU and the highest peak of several runs."""
        return cls(min(run.cpu for run in runs), max(run.peak for run in runs))


def write_rows(path: Path, rows: int) -> None:
    """The input table; a rendered prompt has about 600 bytes."""
    source = random.Random(42)
    texts = [f"row:{row:07} {' '.join(source.choices(WORDS, k=68))}"[:500] for row in range(rows)]
    pq.write_table(pa.table({"row": pa.array(range(rows), pa.int64()), "text": texts}), path)


def run(program: str, rows: Path, output: Path, work: Path, base_url: str) -> Used:
    """Run one program to its end. Raises SystemExit where it fails."""
    command = [sys.executable, str(HERE / program), "--input", str(rows), "--output", str(output), "--work", str(work)]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with (work.parent / f"{work.name}.log").open("wb") as log:
        child = subprocess.Popen([*command, "--base-url", base_url], stdout=log, stderr=log, env=quiet)
        _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.stdout.write((work.parent / f"{work.name}.log").read_text())
        raise SystemExit(f"{program} failed")
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def answers(path: Path) -> pa.Table:
    """The answer columns of a program's results: one file, or a folder with one."""
    file = path if path.is_file() else next((path / "storage" / "llmbatch_results").rglob("*.parquet"))
    return pq.read_table(file, columns=ANSWER_COLUMNS)


def measure(rows: int, scratch: Path, base_url: str) -> "tuple[Used, Used]":
    """(floor, product) at so many rows; their answers must be the same, row by row."""
    scratch.mkdir()
    table = scratch / f"rows-{rows}.parquet"
    # in a process of its own: the kernel's peak of a program counts the memory of the process that started it
    writer = multiprocessing.get_context("spawn").Process(target=write_rows, args=(table, rows))
    writer.start()
    writer.join()
    used = []
    for program in ("floor_batch.py", "product_batch.py"):
        work = scratch / f"{program}-{rows}"
        work.mkdir()
        used.append(run(program, table, work / "floor.parquet", work, base_url))
    floor, product = (
        answers(scratch / f"floor_batch.py-{rows}" / "floor.parquet"),
        answers(scratch / f"product_batch.py-{rows}" / "results"),
    )
    if floor["row"].to_pylist() != list(range(rows)) or not floor.equals(product.cast(floor.schema)):
        raise SystemExit(f"at {rows} rows the two programs' answers differ")
    return used[0], used[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    rows = arguments.rows
    if rows <= BASE_ROWS:
        raise SystemExit(f"--rows must be above {BASE_ROWS}")
    command = [sys.executable, "-m", "dagster_llmbatch.simulator", "--port", "0", "--batch-seconds", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    try:
        if server.stdout is None:
            raise AssertionError("the simulator's output is piped")
        base_url = server.stdout.readline().split()[-1]
        with tempfile.TemporaryDirectory(prefix="llmbatch-bench-") as scratch:
            runs = [
                [measure(n, Path(scratch) / f"{n}-{turn}", base_url) for n in (BASE_ROWS, rows)]
                for turn in range(arguments.repeat)
            ]
    finally:
        server.terminate()
        server.wait()
    # of (few or many rows, program) over the repeats
    small, large = ([Used.over(program) for program in zip(*size, strict=True)] for size in zip(*runs, strict=True))
    floor, product = ((n.cpu - few.cpu) / (rows - BASE_ROWS) * 1e6 for few, n in zip(small, large, strict=True))
    found = {"floor_us": round(floor, 1), "product_us": round(product, 1), "ratio": round(product / floor, 2)}
    sys.stdout.write(json.dumps({**found, "peak_mb": round(large[1].peak / 1e6)}) + "\n")


if __name__ == "__main__":
    main()
