"""Terminating a run that waits in itself."""

import os
import signal
import threading
import time
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_llmbatch import LLMBatchResource, llm_batch_asset
from dagster_llmbatch.simulator.server import SimulatorServer


@llm_batch_asset("verdicts", model="openai:gpt-5-mini", prompt="Judge: {{ body }}", id_column="id", wait="block")
def verdicts() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "body": ["a", "b", "c"]})


def interrupt_once_out(simulator: SimulatorServer) -> None:
    """As Dagster's run worker does on termination: a signal, once the batch is out and the run waits."""
    while not simulator.book.calls["create"]:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("cancels", [True, False])
def test_its_batch_is_stopped_if_it_is_to_be(tmp_path: Path, cancels: bool) -> None:
    """The batch is cancelled, or left running for the partition's next run, which buys nothing."""
    with SimulatorServer(batch_seconds=3600) as simulator, dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        resource = LLMBatchResource(
            openai={"api_key": "sk-test", "base_url": simulator.addresses["openai"]},
            ledger_url=f"sqlite:///{tmp_path / 'ledger.db'}",
            storage_path=str(tmp_path / "segments"),
            poll_interval=0.1,
            cancel_on_terminate=cancels,
        )
        interrupter = threading.Thread(target=interrupt_once_out, args=(simulator,))
        interrupter.start()
        with pytest.raises((dg.DagsterExecutionInterruptedError, KeyboardInterrupt)):
            dg.materialize([verdicts], resources={"llm_batch": resource}, instance=instance)
        interrupter.join()
        assert simulator.book.calls["cancel"] == int(cancels)
        if not cancels:
            simulator.clock.advance(3600)
            assert dg.materialize([verdicts], resources={"llm_batch": resource}, instance=instance).success
            assert (simulator.book.batches, simulator.book.requests) == (1, 3)
