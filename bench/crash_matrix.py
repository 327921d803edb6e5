"""Kill a run with kill -9 at every step of the line, at every provider, and count what the next run pays for.

    python bench/crash_matrix.py [--providers openai anthropic] [--postgres postgresql+psycopg2://...]

The first table has the providers' list calls working; in the second they answer 403, so that a batch whose create call left
no record cannot be looked for: nothing is bought then, and a person has to say what is so ("stopped"). A cell says how many
requests the simulator ran for 6 rows. The last line is JSON, over the first table: cells, paid_twice and lost (requests and
rows), documented (cells that wait for a person); documented_without_lists is of the second.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dagster_llmbatch_tests.core.crashes import ROWS, STEPS, Cell, crash
from dagster_llmbatch_tests.core.workplace import MODELS


def cells(providers: "Sequence[str]", url: "str | None", *, lists: bool) -> "Iterator[Cell]":
    """Every step at every provider, each over a ledger and a simulator of its own."""
    for step in STEPS:
        for provider in providers:
            with tempfile.TemporaryDirectory(prefix="llmbatch-crash-") as folder:
                yield crash(provider, step, Path(folder), url, lists=lists)


def table(found: "Sequence[Cell]", providers: "Sequence[str]") -> str:
    """Steps down, providers across."""
    lines = [f"{'killed':<18}" + "".join(f"{name:>14}" for name in providers)]
    for step in STEPS:
        row = {cell.provider: cell for cell in found if cell.step == step}
        lines.append(f"{step:<18}" + "".join(f"{shown(row[name]):>14}" for name in providers))
    return "\n".join(lines)


def shown(cell: Cell) -> str:
    """One cell in a word or two."""
    word = f"{cell.paid} paid" if cell.ended == "complete" else f"{cell.ended}, {cell.paid}"
    return word if cell.killed else f"({word})"


def main() -> None:
    """Kill, count and print. Exits with 1 where a row was paid twice or lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--providers", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--postgres", help="URL of an empty database for the ledgers; default: SQLite")
    arguments = parser.parse_args()
    known = list(cells(arguments.providers, arguments.postgres, lists=True))
    sys.stdout.write(f"requests paid for {ROWS} rows\n{table(known, arguments.providers)}\n\n")
    blind = list(cells(arguments.providers, arguments.postgres, lists=False))
    sys.stdout.write(f"the same without list calls\n{table(blind, arguments.providers)}\n\n")
    found = {
        "cells": len(known),
        "paid_twice": sum(cell.paid_twice for cell in known),
        "lost": sum(ROWS for cell in known if cell.ended == "wrong"),
        "documented": sum(cell.ended == "stopped" for cell in known),
        "documented_without_lists": sum(cell.ended == "stopped" for cell in blind),
        "paid_twice_without_lists": sum(cell.paid_twice for cell in blind),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    raise SystemExit(int(bool(found["paid_twice"] or found["lost"] or found["paid_twice_without_lists"])))


if __name__ == "__main__":
    main()
