"""What all four wires have in common: the clock, faults of rows and calls, expiry, keys and credit."""

import json
from collections.abc import Iterator

import httpx
import pytest

from dagster_llmbatch.simulator.faults import CALLS, ROW_FAULTS
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch.simulator.store import SETTINGS
from dagster_llmbatch_tests.simulator.drivers import DRIVERS, Driver

DROPPED = (httpx.RemoteProtocolError, httpx.ReadError)
SHARED = ("create", "list", "status", "cancel", "realtime", "content", "delete")
STATES = {
    "openai": ["validating", "in_progress", "finalizing", "completed"],
    "anthropic": ["in_progress", "in_progress", "in_progress", "ended"],
    "gemini": ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"],
    "openrouter": ["validating", "in_progress", "finalizing", "completed"],
}
REALTIME = {
    "openai": "/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
    "openrouter": "/chat/completions",
}
ERRORS = {
    "openai": ["400", "429", "500"],
    "anthropic": ["invalid_request_error", "rate_limit_error", "api_error"],
    "gemini": ["3", "8", "13"],
    "openrouter": ["400", "rate_limit_exceeded", "bare"],
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, simulator: SimulatorServer) -> "Iterator[Driver]":
    """One provider's driver at this test's simulator."""
    found = DRIVERS[request.param](simulator)
    with found.http:
        yield found


def ended(driver: Driver, prompts: "list[str]", *, plain: bool = False) -> str:
    """The id of a batch that has ended."""
    batch_id = driver.submit(prompts, plain=plain)
    driver.simulator.clock.advance(100)
    driver.read(batch_id).raise_for_status()
    return batch_id


def test_there_is_an_address_for_each_provider(simulator: SimulatorServer) -> None:
    """On one port; OpenAI's is the base_url."""
    root = f"http://127.0.0.1:{simulator.port}"
    assert simulator.addresses == {
        "openai": f"{root}/v1",
        "anthropic": f"{root}/anthropic",
        "gemini": f"{root}/gemini",
        "openrouter": f"{root}/openrouter/api/v1",
    }
    assert simulator.base_url == simulator.addresses["openai"]


def test_states_follow_the_clock(driver: Driver) -> None:
    """In the provider's own words."""
    batch_id = driver.submit(["x"] * 10)
    seen = []
    for seconds in (0, 50, 45, 5):
        driver.simulator.clock.advance(seconds)
        seen.append(driver.state(driver.read(batch_id).json()))
    assert seen == STATES[driver.provider]


def test_answers_fit_the_schema_and_are_paid_once(driver: Driver) -> None:
    """Every id once, however often the batch is read."""
    batch_id = ended(driver, [f"text {n}" for n in range(20)])
    rows = driver.rows(batch_id)
    assert sorted(driver.custom_id(row) for row in rows) == sorted(f"r-{n}" for n in range(20))
    for row in rows:
        found = json.loads(driver.text(row))
        assert found["label"] in ("good", "bad")
        assert isinstance(found["score"], int)
    assert dict(driver.simulator.book.paid) == {f"r-{n}": 1 for n in range(20)}
    (made,) = driver.simulator.book.creates
    assert (made["provider"], made["id"]) == (driver.provider, batch_id)


def test_the_order_of_rows(driver: Driver) -> None:
    """That of the requests at Gemini, none elsewhere."""
    batch_id = ended(driver, [f"text {n}" for n in range(50)])
    numbers = [int(driver.custom_id(row)[2:]) for row in driver.rows(batch_id)]
    assert (numbers == sorted(numbers)) == (driver.provider == "gemini")


def test_error_rows_are_not_paid(driver: Driver) -> None:
    """In the provider's shapes."""
    batch_id = ended(driver, ["[[sim:error_400]]", "[[sim:error_429]]", "[[sim:error_500]]", "[[sim:expire]]", "fine"])
    kinds = driver.kinds(batch_id)
    assert [kinds[f"r-{n}"] for n in range(3)] == ERRORS[driver.provider]
    assert {kinds["r-3"]} == driver.unrun
    assert kinds["r-4"] == "ok"
    assert dict(driver.simulator.book.paid) == {"r-4": 1}


def test_texts_that_only_look_finished(driver: Driver) -> None:
    """Paid rows that hold no answer, or one in a wrapping."""
    faults = ["refuse", "empty", "fence", "prose", "wrong_schema", "truncate"]
    batch_id = ended(driver, [f"[[sim:{fault}]]" for fault in faults])
    texts = {driver.custom_id(row): driver.text(row) for row in driver.rows(batch_id)}
    assert texts["r-0"] == texts["r-1"] == ""
    assert texts["r-2"].startswith("```json\n")
    assert texts["r-3"].startswith("Here")
    assert "label" not in json.loads(texts["r-4"])
    with pytest.raises(json.JSONDecodeError):
        json.loads(texts["r-5"])
    assert driver.simulator.book.requests == 6


def test_rows_that_are_missing_doubled_strange_or_unreadable(driver: Driver) -> None:
    """Whatever the results come in."""
    faults = ["missing", "duplicate", "stranger", "unreadable", "crlf"]
    batch_id = ended(driver, [f"[[sim:{fault}]]" for fault in faults])
    rows = driver.rows(batch_id)
    ids = sorted(driver.custom_id(row) for row in rows if driver.kind(row) == "ok")
    assert ids == ["r-1", "r-1", "r-2", "r-4", "stranger-r-2"]
    assert driver.simulator.book.requests == 5


@pytest.mark.parametrize("fault", [fault for fault in ROW_FAULTS if fault != "crlf"])
def test_every_row_fault_makes_a_difference(driver: Driver, fault: str) -> None:
    """At every provider. A line's end shows in files only, and has tests there."""
    found = []
    for one in (None, fault):
        if one:
            driver.simulator.faults.add_rows(one)
        body = driver.read(ended(driver, ["the same prompt"], plain=True)).json()
        found.append([_timeless(line) for line in driver.lines(body)] if driver.rows(_name(body)) else [])
    assert found[0] != found[1]


def _name(body: "dict[str, str]") -> str:
    return body.get("id") or body["name"]


def _timeless(line: bytes) -> object:
    """A row without the fields that differ from run to run."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return line
    inner = (row.get("response") or {}).get("body") or {}
    for name in ("created", "id"):
        inner.pop(name, None)
    return row


def test_an_expired_batch(driver: Driver) -> None:
    """Partial rows at OpenAI and Anthropic; none at Gemini, unpaid, and none at OpenRouter, where some were paid."""
    batch_id = driver.submit([f"text {n}" for n in range(10)])
    driver.simulator.store.expire(batch_id, 0.6)
    body = driver.read(batch_id).json()
    states = {"openai": "expired", "anthropic": "ended", "gemini": "EXPIRED", "openrouter": "expired"}
    assert driver.state(body) == states[driver.provider]
    if driver.provider in ("openai", "anthropic"):
        kinds = list(driver.kinds(batch_id).values())
        assert (kinds.count("ok"), set(kinds) - {"ok"}) == (6, driver.unrun)
    elif driver.provider == "gemini":
        assert body["done"]
        assert "response" not in body
        assert "output" not in body["metadata"]
    else:
        assert body["results"] is None
    assert driver.simulator.book.requests == (0 if driver.provider == "gemini" else 6)


def test_a_batch_that_never_begins_expires_by_the_clock(driver: Driver) -> None:
    """After two days at Gemini, one elsewhere."""
    driver.simulator.store.batch_seconds = 1e9
    batch_id = driver.submit(["x"])
    window = 2 * 86_400 if driver.provider == "gemini" else 86_400
    driver.simulator.clock.advance(window - 1)
    first = driver.state(driver.read(batch_id).json())
    assert first == STATES[driver.provider][0]
    driver.simulator.clock.advance(1)
    assert driver.state(driver.read(batch_id).json()) in ("expired", "ended", "EXPIRED")
    assert driver.simulator.book.requests == 0


def test_every_wire_has_the_shared_calls(driver: Driver) -> None:
    """Each is counted under its name."""
    batch_id = driver.submit(["x"])
    driver.simulator.book.calls.clear()
    for where in SHARED:
        driver.call(where, batch_id)
    assert set(driver.simulator.book.calls) - {"upload"} == set(SHARED) <= set(CALLS)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("where", SHARED)
def test_a_drop_closes_the_connection_without_an_answer(driver: Driver, where: str, kind: str) -> None:
    """On every call; the next one is answered."""
    batch_id = driver.submit(["x"])
    driver.simulator.faults.add(where, kind)
    with pytest.raises(DROPPED):
        driver.call(where, batch_id)
    assert driver.call(where, batch_id).status_code != 503


@pytest.mark.parametrize(("kind", "made"), [("drop_before", 0), ("drop_after", 1)])
def test_after_a_dropped_create_the_batch_exists_or_not(driver: Driver, kind: str, made: int) -> None:
    """In the book and in the list."""
    driver.simulator.faults.add("create", kind)
    with pytest.raises(DROPPED):
        driver.create(["x"])
    assert driver.simulator.book.batches == made
    listed = driver.call("list", "").json()
    assert len(listed.get("data", listed.get("operations", []))) == made


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 409, 413, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize(("kind", "made"), [("status_before", 0), ("status_after", 1)])
def test_a_status_comes_before_or_after_the_work(driver: Driver, kind: str, made: int, status: int) -> None:
    """With an error body of the provider's shape."""
    driver.simulator.faults.add("create", kind, status)
    answer = driver.create(["x"])
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert driver.simulator.book.batches == made


def test_no_key_and_a_wrong_key_are_refused(driver: Driver) -> None:
    """Before any work."""
    refused = []
    for key in ("", "wrong-key-1"):
        value = f"Bearer {key}" if driver.key == "authorization" else key
        driver.http.headers[driver.key] = value.strip()
        refused.append(driver.call("list", "").status_code)
    assert refused == ([403, 400] if driver.provider == "gemini" else [401, 401])


def test_without_credit_nothing_is_bought(driver: Driver) -> None:
    """Creates and realtime calls are refused in the provider's own way; reading goes on."""
    driver.simulator.store.out_of_credit = True
    status = {"openai": 429, "anthropic": 400, "gemini": 429, "openrouter": 402}[driver.provider]
    for where in ("create", "realtime"):
        assert driver.call(where, "").status_code == status
    assert driver.call("list", "").status_code == 200
    assert (driver.simulator.book.batches, driver.simulator.book.requests) == (0, 0)


def test_lags_of_the_list_and_of_reading(driver: Driver) -> None:
    """Each only as long as set."""
    store = driver.simulator.store
    store.list_lag, store.read_lag = 30, 60
    batch_id = driver.submit(["x"])
    listed = []
    for seconds in (0, 30, 30):
        driver.simulator.clock.advance(seconds)
        page = driver.call("list", "").json()
        listed.append(len(page.get("data", page.get("operations", []))))
        assert driver.read(batch_id).status_code == (200 if len(listed) == 3 else 404)
    assert listed == [0, 1, 1]


def test_providers_do_not_see_each_others_batches(simulator: SimulatorServer) -> None:
    """One store, four customers' views."""
    made = {name: DRIVERS[name](simulator).submit(["x"]) for name in DRIVERS}
    for name in DRIVERS:
        driver = DRIVERS[name](simulator)
        page = driver.call("list", "").json()
        found = page.get("data", page.get("operations"))
        assert [_name(batch) for batch in found] == [made[name]]
        assert driver.read(made["openai"]).is_success == (name == "openai")


def test_a_realtime_call_is_paid_and_broken_by_markers(driver: Driver) -> None:
    """Booked once, under the id of its reply."""
    assert driver.call("realtime", "").status_code == 200
    assert driver.simulator.book.requests == 1
    driver.simulator.faults.add_rows("error_429")
    assert driver.call("realtime", "").status_code == 429
    assert driver.simulator.book.requests == 1


def test_requests_of_a_strange_shape_do_not_break_the_server(driver: Driver) -> None:
    """They are refused, or answered as far as they can be read; the server never fails."""
    for name in ("messages", "text", "input", "response_format", "output_config", "system", "contents"):
        for value in ("x", 7, [7], ["x"], {"format": 7}, {"format": {"schema": 7}}, {"json_schema": "x"}):
            asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], name: value}
            if driver.provider == "gemini":
                asked = {"contents": [{"parts": [{"text": "hello"}]}], name: value}
            assert driver.http.post(REALTIME[driver.provider], json=asked).status_code in (200, 400)


def test_all_settings_exist(simulator: SimulatorServer) -> None:
    """What HTTP may set is there to be set."""
    assert all(hasattr(simulator.store, name) for name in SETTINGS)


def test_a_full_queue(driver: Driver) -> None:
    """Fails the batch at OpenAI and OpenRouter, refuses the create call at Gemini; Anthropic counts requests only."""
    driver.simulator.store.token_limit = 1
    answer = driver.create(["a long text " * 20])
    if driver.provider == "gemini":
        assert (answer.status_code, answer.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        return
    driver.simulator.clock.advance(100)
    state = driver.state(driver.read(answer.json()["id"]).json())
    assert state == ("ended" if driver.provider == "anthropic" else "failed")
