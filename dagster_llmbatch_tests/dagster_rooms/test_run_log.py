"""Warnings of the line are lines of the run's log: once, without configuration, and of the run that does the work only."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_llmbatch import LLMBatchResource, build_llm_batch_sensor
from dagster_llmbatch.core.advance import Waiting, advance, claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.jobs import build_llm_batch_jobs
from dagster_llmbatch.ledger.records import EntryKey
from dagster_llmbatch.run_log import PACKAGE, forwarded_to
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import recipe
from dagster_llmbatch_tests.dagster_rooms.test_providers import materialize, reach, verdicts

LINE = logging.getLogger("dagster_llmbatch.core.anywhere")


class Lines(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelno} {record.getMessage()}")


def log() -> "tuple[logging.Logger, list[str]]":
    """A logger outside the hierarchy, as Dagster's is, and its lines."""
    kept = Lines()
    logger = logging.Logger("dagster")
    logger.addHandler(kept)
    return logger, kept.lines


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator that answers at once."""
    with SimulatorServer() as server:
        yield server


def test_records_are_forwarded_while_the_block_lasts() -> None:
    """WARNING and above of this package, with arguments and level; nothing before, after, or of others."""
    target, lines = log()
    LINE.warning("before")
    with forwarded_to(target):
        LINE.warning("%d rows", 3)
        LINE.error("bad %s", "100%")
        LINE.debug("not enabled")
        logging.getLogger("other").warning("not ours")
    LINE.warning("after")
    assert lines == ["30 3 rows", "40 bad 100%"]
    assert not PACKAGE.handlers


def test_info_follows_the_users_level() -> None:
    """Where the package's logger is set to INFO, its INFO records come too."""
    target, lines = log()
    PACKAGE.setLevel(logging.INFO)
    try:
        with forwarded_to(target):
            LINE.info("adopted")
    finally:
        PACKAGE.setLevel(logging.NOTSET)
    assert lines == ["20 adopted"]


def test_an_inner_block_takes_over() -> None:
    """A record goes to the innermost block's log alone, and to the outer one's again afterwards, also after an error."""
    (outer, outer_lines), (inner, inner_lines) = log(), log()
    with forwarded_to(outer):
        with pytest.raises(KeyError), forwarded_to(inner):
            LINE.warning("in")
            raise KeyError
        LINE.warning("out")
    assert (outer_lines, inner_lines) == (["30 out"], ["30 in"])


def test_threads_keep_their_lines_apart() -> None:
    """Two runs in one process at once: each log has its own lines, and the end of one takes nothing from the other."""
    (first, first_lines), (second, second_lines) = log(), log()
    opened, ended = threading.Event(), threading.Event()

    def other() -> None:
        with forwarded_to(second):
            LINE.warning("two")
            opened.set()
        ended.set()

    with forwarded_to(first):
        thread = threading.Thread(target=other)
        thread.start()
        assert opened.wait(10)
        assert ended.wait(10)
        thread.join()
        LINE.warning("one")
    assert (first_lines, second_lines) == (["30 one"], ["30 two"])


@pytest.mark.parametrize("managed", ["", "dagster_llmbatch", "dagster_llmbatch.core"])
def test_what_dagster_captures_is_not_said_twice(managed: str) -> None:
    """A handler of the run's own log on the root, on our logger or below it (python_logs): one line a record."""
    target, lines = log()
    captured = logging.getLogger(managed)
    captured.addHandler(target.handlers[0])
    try:
        with forwarded_to(target):
            LINE.warning("once")
    finally:
        captured.removeHandler(target.handlers[0])
    assert lines == ["30 once"]


def test_a_log_that_fails_stops_no_work(capsys: pytest.CaptureFixture[str]) -> None:
    """The run's log cannot be written: the work goes on, as logging does."""
    target, _ = log()
    target.log = _fail  # type: ignore[method-assign]
    with forwarded_to(target):
        LINE.warning("lost")
    assert "the event log is down" in capsys.readouterr().err


def _fail(*_: Any) -> None:
    raise OSError("the event log is down")


def test_a_row_without_a_result_is_a_warning_of_the_run(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A missing row, which only the line knows of, is said in the run's log, once a batch and without the row's text."""
    simulator.faults.add_rows("missing", containing="SECRET-ROW")
    _, metadata, lines = materialize(verdicts("openai:gpt-5-mini"), reach(simulator, "openai"), tmp_path)
    said = [line for line in lines if line.startswith("30 ") and "have no result" in line]
    assert metadata["llmbatch/review"] == 1
    assert len(said) == metadata["llmbatch/batches"] == 3
    assert "SECRET-ROW" not in " ".join(lines)


def test_python_logs_make_no_second_line(simulator: SimulatorServer, tmp_path: Path) -> None:
    """An instance that manages our logger captures the same record: it is there once."""
    simulator.faults.add_rows("missing", containing="SECRET-ROW")
    overrides = {"python_logs": {"managed_python_loggers": ["dagster_llmbatch"]}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        result = dg.materialize(
            [verdicts("openai:gpt-5-mini")], resources={"llm_batch": reach(simulator, "openai")}, instance=instance
        )
        lines = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert len([line for line in lines if "1 of 3 requests have no result" in line]) == 1


def test_a_tick_says_what_it_found(simulator: SimulatorServer, tmp_path: Path) -> None:
    """What a poll of the sensor warns of stands in the tick's own log."""
    sensor = build_llm_batch_sensor()
    llm_batch = _interrupted(simulator, tmp_path)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        defs = dg.Definitions(sensors=[sensor], resources={"llm_batch": llm_batch})
        with dg.build_sensor_context(
            instance=instance, definitions=defs, resources={"llm_batch": llm_batch}
        ) as context:
            kept = Lines()
            context.log.addHandler(kept)
            sensor.evaluate_tick(context)
    assert any("could not be read (1 in a row)" in line for line in kept.lines)


def test_the_collect_job_says_what_it_found(simulator: SimulatorServer, tmp_path: Path) -> None:
    """A poll of the operator's job that fails is a line of that run."""
    llm_batch = _interrupted(simulator, tmp_path)
    (job,) = build_llm_batch_jobs()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = job.execute_in_process(resources={"llm_batch": llm_batch}, instance=instance)
        lines = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("could not be read (1 in a row)" in line for line in lines)


def _interrupted(simulator: SimulatorServer, home: Path) -> LLMBatchResource:
    """A resource whose ledger has a batch that is out and due, and whose next status call is refused."""
    simulator.store.batch_seconds = 1e9
    llm_batch = reach(simulator, "openai")
    with dg.DagsterInstance.local_temp(str(home)) as instance, llm_batch.workplace(instance) as work:
        plan = plan_rows(
            pa.table({"id": [1], "body": ["a"]}),
            recipe=recipe(),
            provider=work.provider_of("openai"),
            segments=work.segments,
            namespace="default",
            partition="",
        )
        key = EntryKey(llm_batch.namespace, "verdicts")
        entry, _ = claim(key, plan, run_id="r1", lineage=["r1"], ledger=work.ledger, now=work.now())
        assert isinstance(advance(entry.id, work, run_id="r1"), Waiting)
    time.sleep(0.2)  # the resource's poll_interval is 0.1 s
    simulator.faults.add("status", "status_before", 403)
    return llm_batch
