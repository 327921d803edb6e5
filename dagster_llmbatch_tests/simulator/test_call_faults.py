"""Faults of calls: what breaks, when, and whether the work was done."""

import time

import httpx
import openai
import pytest

from dagster_llmbatch.simulator.faults import CALLS, HEADER
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import RESPONSES, lines_of, request

OPENAI = tuple(name for name in CALLS if name != "upload_start")
DROPPED = (httpx.RemoteProtocolError, httpx.ReadError)


def call(http: httpx.Client, where: str, **more: object) -> httpx.Response:
    """One call of each kind; what it names does not exist, except for uploads, creates, lists and answers."""
    body = {"input_file_id": "file-none", "endpoint": RESPONSES, "completion_window": "24h"}
    method, path, content = {
        "upload": ("POST", "/files", {"files": {"file": ("b.jsonl", b"x" * 300_000)}, "data": {"purpose": "batch"}}),
        "files": ("GET", "/files", {}),
        "file": ("GET", "/files/none", {}),
        "delete": ("DELETE", "/files/none", {}),
        "content": ("GET", "/files/none/content", {}),
        "create": ("POST", "/batches", {"json": body}),
        "list": ("GET", "/batches", {}),
        "status": ("GET", "/batches/none", {}),
        "cancel": ("POST", "/batches/none/cancel", {}),
        "realtime": ("POST", "/responses", {"json": {"model": "m", "input": "hello"}}),
    }[where]
    return http.request(method, path, **content, **more)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("where", OPENAI)
def test_a_drop_closes_the_connection_without_an_answer(
    http: httpx.Client, simulator: SimulatorServer, where: str, kind: str
) -> None:
    """On every call, for as many calls as asked, also on a connection used before."""
    expected = call(http, where).status_code
    simulator.faults.add(where, kind, times=2)
    for _ in range(2):
        with pytest.raises(DROPPED):
            call(http, where)
    assert call(http, where).status_code == expected


@pytest.mark.parametrize(("kind", "made"), [("drop_before", 0), ("drop_after", 1)])
def test_after_a_dropped_create_the_batch_exists_or_not(
    http: httpx.Client, simulator: SimulatorServer, kind: str, made: int
) -> None:
    """`before` did nothing, `after` did all the work."""
    simulator.faults.add("create", kind)
    with pytest.raises(DROPPED):
        call(http, "create")
    assert simulator.book.batches == made
    assert len(call(http, "list").json()["data"]) == made


@pytest.mark.parametrize(("kind", "made"), [("drop_before", 0), ("drop_after", 1)])
def test_after_a_dropped_upload_the_file_exists_or_not(
    http: httpx.Client, simulator: SimulatorServer, kind: str, made: int
) -> None:
    """The same for files, whose bodies are large."""
    simulator.faults.add("upload", kind)
    with pytest.raises(DROPPED):
        call(http, "upload")
    assert len(simulator.store.files) == made


@pytest.mark.parametrize("status", [400, 401, 408, 409, 429, 500, 503])
@pytest.mark.parametrize(("kind", "made"), [("status_before", 0), ("status_after", 1)])
def test_a_status_comes_before_or_after_the_work(
    http: httpx.Client, simulator: SimulatorServer, kind: str, made: int, status: int
) -> None:
    """With an error body of the provider's shape."""
    simulator.faults.add("create", kind, status)
    answer = call(http, "create")
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert simulator.book.batches == made
    assert call(http, "create").status_code == 200


def test_a_status_before_a_large_upload_is_read_by_the_client(http: httpx.Client, simulator: SimulatorServer) -> None:
    """The server takes the body first, so the answer is not lost in a broken pipe."""
    simulator.faults.add("upload", "status_before", 503)
    content = {"file": ("big.jsonl", b"x" * 8_000_000)}
    assert http.post("/files", files=content, data={"purpose": "batch"}).status_code == 503
    assert not simulator.store.files


def test_a_delay_waits_and_then_answers(http: httpx.Client, simulator: SimulatorServer) -> None:
    """A client with a shorter timeout gives up; one with a longer one gets the answer."""
    simulator.faults.add("list", "delay", 0.3)
    with pytest.raises(httpx.ReadTimeout):
        call(http, "list", timeout=0.05)
    simulator.faults.add("list", "delay", 0.2)
    begun = time.monotonic()
    assert call(http, "list").status_code == 200
    assert time.monotonic() - begun >= 0.2


def test_a_header_breaks_its_own_call_only(http: httpx.Client, simulator: SimulatorServer) -> None:
    """The header names the fault and its value; one that names none is refused."""
    assert call(http, "list", headers={HEADER: "status_before:503"}).status_code == 503
    assert call(http, "create", headers={HEADER: "status_after:500"}).status_code == 500
    assert simulator.book.batches == 1
    with pytest.raises(DROPPED):
        call(http, "list", headers={HEADER: "drop_before"})
    assert call(http, "list").status_code == 200
    for wrong in ("nonsense", "status_before:abc", "status_before"):
        assert call(http, "list", headers={HEADER: wrong}).status_code == 400


def test_rules_are_used_up_in_order_by_their_own_call_and_cleared(
    http: httpx.Client, simulator: SimulatorServer
) -> None:
    """A fault of `list` leaves `create` alone; `clear` ends all."""
    simulator.faults.add("list", "status_before", 500)
    simulator.faults.add("list", "status_before", 503, times=5)
    assert call(http, "create").status_code == 200
    assert [call(http, "list").status_code for _ in range(2)] == [500, 503]
    simulator.faults.clear()
    assert call(http, "list").status_code == 200


@pytest.mark.parametrize("wrong", [("nowhere", "drop_before", 0), ("list", "explode", 0), ("list", "status_before", 0)])
def test_a_fault_that_could_never_happen_is_refused(simulator: SimulatorServer, wrong: "tuple") -> None:
    """A misspelt rule would make a test pass for nothing."""
    with pytest.raises(ValueError):
        simulator.faults.add(*wrong)
    with pytest.raises(ValueError):
        simulator.faults.add_rows("explode")


def test_the_package_resends_after_a_drop_and_so_buys_twice(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """The danger this project is about, with the package's own retries on."""
    file = client.files.create(file=("batch.jsonl", lines_of([request("r")])), purpose="batch")
    simulator.faults.add("create", "drop_after")
    client.with_options(max_retries=2).batches.create(
        input_file_id=file.id, endpoint=RESPONSES, completion_window="24h"
    )
    assert simulator.book.batches == 2
    simulator.faults.add("create", "drop_after")
    with pytest.raises(openai.APIConnectionError):
        client.batches.create(input_file_id=file.id, endpoint=RESPONSES, completion_window="24h")
