"""Processes that start the same thing at the same moment, and what each of them found."""

import multiprocessing
from collections.abc import Callable
from typing import Any

# forked from a server that imported everything once: an import of Dagster a process would take longer than the tests
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["dagster_llmbatch.ledger.sql_ledger", "alembic.command", "psycopg2"])
WAIT = 60


def at_one_barrier(count: int, target: "Callable[..., Any]", *args: Any) -> "list[Any]":
    """Call `target(number, *args)` in `count` processes at once; what they return, by number. Fails where one does."""
    barrier, queue = FORKSERVER.Barrier(count), FORKSERVER.Queue()
    processes = [
        FORKSERVER.Process(target=_call, args=(barrier, queue, target, number, args)) for number in range(count)
    ]
    for process in processes:
        process.start()
    found = [queue.get(timeout=WAIT) for _ in processes]
    for process in processes:
        process.join(WAIT)
    assert [error for _, _, error in found if error is not None] == []
    assert [process.exitcode for process in processes] == [0] * count
    return [result for _, result, _ in sorted(found, key=lambda answer: answer[0])]


def _call(barrier: Any, queue: Any, target: "Callable[..., Any]", number: int, args: "tuple[Any, ...]") -> None:
    try:
        barrier.wait(WAIT)
        queue.put((number, target(number, *args), None))
    except Exception as error:
        queue.put((number, None, f"{type(error).__name__}: {error}"))
