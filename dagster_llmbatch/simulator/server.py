"""A simulator in this process, for tests and demos."""

import socket
import threading
import time
from types import TracebackType

import uvicorn

from dagster_llmbatch.simulator.app import build_app
from dagster_llmbatch.simulator.book import Book
from dagster_llmbatch.simulator.clock import Clock
from dagster_llmbatch.simulator.faults import Faults
from dagster_llmbatch.simulator.store import Store
from dagster_llmbatch.simulator.wires import all_wires

START_TIMEOUT = 20.0


class SimulatorServer:
    """`with SimulatorServer() as simulator:` serves all providers' wires from a thread.

    Attributes:
        addresses: the base_url of each provider, by its name.
        base_url: OpenAI's.

    Args:
        batch_seconds: seconds from a batch's create to its end; 0: it has ended at the next poll.
        port: 0 takes a free one.
        frozen: the clock moves by `clock.advance` only.
    """

    def __init__(
        self, *, batch_seconds: float = 0.0, host: str = "127.0.0.1", port: int = 0, frozen: bool = False
    ) -> None:
        self.clock = Clock(frozen=frozen)
        self.faults = Faults()
        self.book = Book()
        self.store = Store(self.clock, self.faults, self.book, batch_seconds=batch_seconds)
        self._socket = socket.create_server((host, port))
        self.port = self._socket.getsockname()[1]
        wires = all_wires(self.store)
        self.addresses = {wire.provider: f"http://{host}:{self.port}{wire.base_path}" for wire in wires}
        self.base_url = self.addresses["openai"]
        config = uvicorn.Config(build_app(self.store, wires), log_level="warning", lifespan="off")
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> "SimulatorServer":
        self._thread.start()
        ends = time.monotonic() + START_TIMEOUT
        while not self.server.started:
            if time.monotonic() > ends:
                raise TimeoutError("the simulator did not start")
            time.sleep(0.01)
        return self

    def __exit__(
        self, _kind: "type[BaseException] | None", _error: "BaseException | None", _trace: "TracebackType | None"
    ) -> None:
        self.server.should_exit = True
        self._thread.join(START_TIMEOUT)
        self._socket.close()
        self.store.close()

    def serve(self) -> None:
        """Serve from this thread until interrupted."""
        try:
            self.server.run(sockets=[self._socket])
        finally:
            self.store.close()
