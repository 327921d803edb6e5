"""The simulator as a program of its own, as a context manager, and without its extra."""

import importlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

import dagster_llmbatch.simulator
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import RESPONSES, lines_of, request


@pytest.fixture(scope="module")
def program() -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """The program, and the address it printed."""
    arguments = ["--port", "0", "--batch-seconds", "100", "--frozen"]
    command = [sys.executable, "-m", "dagster_llmbatch.simulator", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split("base_url ")[1].strip().removesuffix("/v1")
        process.kill()


def test_the_program_serves_and_obeys_the_admin_endpoints(
    program: "tuple[subprocess.Popen[str], str]",
) -> None:
    """Health, clock, faults, settings, expire and book, without Python in between."""
    _, address = program
    with httpx.Client(base_url=address, headers={"authorization": "Bearer k"}, trust_env=False) as http:
        health = http.get("/admin/health").json()
        assert health["status"] == "ok"
        assert http.post("/admin/clock", json={"advance": 5}).json()["now"] == pytest.approx(health["now"] + 5)
        assert http.post("/admin/faults", json={"where": "list", "kind": "status_before", "value": 503}).is_success
        assert http.get("/v1/batches").status_code == 503
        assert http.post("/admin/faults", json={"rows": "error_400", "containing": "broken"}).is_success
        assert http.post("/admin/settings", json={"list_lag": 60, "token_limit": None}).is_success
        file = http.post(
            "/v1/files",
            files={"file": ("b.jsonl", lines_of([request("r-0"), request("r-1", "broken"), request("r-2")]))},
            data={"purpose": "batch"},
        ).json()
        body = {"input_file_id": file["id"], "endpoint": RESPONSES, "completion_window": "24h"}
        made = http.post("/v1/batches", json=body).json()
        assert http.get("/v1/batches").json()["data"] == []
        assert http.post("/admin/expire", json={"batch_id": made["id"], "share": 0.7}).is_success
        batch = http.get(f"/v1/batches/{made['id']}").json()
        assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 3, "completed": 1, "failed": 2})
        book = http.get("/admin/book").json()
        assert (book["batches"], book["requests"], book["by_custom_id"]) == (1, 1, {"r-0": 1})
        assert book["calls"] == {"list": 2, "upload": 1, "create": 1, "status": 1}


def test_the_program_prints_an_address_for_each_provider(program: "tuple[subprocess.Popen[str], str]") -> None:
    """One a line, after OpenAI's base_url."""
    process, address = program
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(4)]
    assert {words[1]: words[2] for words in lines} == {
        "openai": f"{address}/v1",
        "anthropic": f"{address}/anthropic",
        "gemini": f"{address}/gemini",
        "openrouter": f"{address}/openrouter/api/v1",
    }


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("faults", {"where": "list", "kind": "explode"}, 400),
        ("faults", {"where": "list"}, 400),
        ("faults", {"rows": "explode"}, 400),
        ("settings", {"colour": "red"}, 400),
        ("clock", {}, 400),
        ("expire", {"batch_id": "batch_none"}, 404),
    ],
)
def test_wrong_admin_calls_say_so(
    program: "tuple[subprocess.Popen[str], str]", path: str, body: "dict[str, object]", status: int
) -> None:
    """With an error body, not a broken server."""
    answer = httpx.post(f"{program[1]}/admin/{path}", json=body, trust_env=False)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_the_program_stops_when_told(program: "tuple[subprocess.Popen[str], str]") -> None:
    """SIGTERM ends it in an orderly way."""
    process, _ = program
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (0, -signal.SIGTERM)


def test_the_server_leaves_nothing_behind() -> None:
    """After the block its port is closed and its files are gone."""
    with SimulatorServer() as simulator:
        address, folder = simulator.base_url, simulator.store.folder
        key = {"authorization": "Bearer k"}
        data = {"purpose": "batch"}
        httpx.post(f"{address}/files", files={"file": b"x"}, data=data, headers=key, trust_env=False)
        assert len(list(folder.iterdir())) == 1
    assert not folder.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/batches", trust_env=False)


def test_without_its_extra_the_simulator_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ImportError says what is missing and what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else found(name, *more)
    )
    with pytest.raises(ImportError, match=r"uvicorn.*pip install 'dagster-llmbatch\[simulator\]'"):
        importlib.reload(dagster_llmbatch.simulator)
    monkeypatch.undo()
    importlib.reload(dagster_llmbatch.simulator)
