"""OpenRouter's batches over plain HTTP, and its chat endpoint driven by OpenAI's package."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.drivers import OpenRouterDriver

MODEL = "z-ai/glm-5.3:batch"


@pytest.fixture
def driver(simulator: SimulatorServer) -> "Iterator[OpenRouterDriver]":
    """A driver at this test's simulator."""
    found = OpenRouterDriver(simulator)
    with found.http:
        yield found


@pytest.fixture
def routed(simulator: SimulatorServer, package: openai.OpenAI) -> openai.OpenAI:
    """OpenAI's package at OpenRouter's address."""
    return package.with_options(base_url=simulator.addresses["openrouter"])


def rows(*changes: "dict[str, Any]", model: "str | None" = None) -> "list[dict[str, Any]]":
    """Requests r-0 and on; `changes` go into their bodies."""
    message = {"messages": [{"role": "user", "content": "hello"}]}
    own = {} if model is None else {"model": model}
    return [{"custom_id": f"r-{n}", "body": {**message, **own, **change}} for n, change in enumerate(changes)]


def body(requests: Any, **changes: Any) -> "dict[str, Any]":
    """A create call's body."""
    return {"endpoint": "/v1/chat/completions", "model": MODEL, **changes, "requests": requests}


def test_a_create_is_accepted_with_202(driver: OpenRouterDriver) -> None:
    """validating, without counts, provider, usage or results."""
    answer = driver.create(["x", "y"])
    assert answer.status_code == 202
    made = answer.json()
    assert (made["status"], made["request_counts"]["total"], made["provider"]) == ("validating", 0, None)
    assert (made["usage"], made["results"], made["error"]) == (None, None, None)
    assert made["id"].startswith(f"batch-{made['created_at']}-")


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": rows({}), "endpoint": "/v1/chat/completions", "model": MODEL},
        {"endpoint": "/v1/chat/completions", "requests": rows({}), "model": MODEL},
        {"endpoint": "/v1/chat/completions", "model": MODEL},
        body(rows({}), endpoint="/v1/embeddings"),
        body(rows({}), completion_window="48h"),
        body([]),
        body([{"custom_id": "r-0"}]),
        body([{"body": {}}]),
        body(rows(*[{}] * 5001)),
    ],
)
def test_a_wrong_create_is_refused(driver: OpenRouterDriver, wrong: "dict[str, Any]") -> None:
    """Above all one whose requests are not last."""
    answer = driver.http.post("/batches", json=wrong)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)
    assert driver.simulator.book.batches == 0


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "x/no-such-model:batch"])
def test_a_model_without_a_batch_endpoint_is_refused(driver: OpenRouterDriver, model: str) -> None:
    """With the provider's words, and no code."""
    answer = driver.create(["x"], model=model)
    assert answer.status_code == 400
    assert answer.json() == {"error": {"message": f"Model '{model}' does not have a :batch endpoint."}}


def test_ids_anthropic_would_refuse(driver: OpenRouterDriver) -> None:
    """422, for models it serves."""
    wrong = [{"custom_id": "a b", "body": {}}]
    assert driver.http.post("/batches", json=body(wrong, model="anthropic/claude-opus-5:batch")).status_code == 422
    assert driver.http.post("/batches", json=body(wrong)).status_code == 202


@pytest.mark.parametrize(
    "wrong",
    [rows({}) + rows({}), rows({}, model="other"), rows({"stream": True}), rows({"max_tokens": 0})],
)
def test_a_bad_request_fails_the_whole_batch_later(driver: OpenRouterDriver, wrong: "list[Any]") -> None:
    """After the 202, with a message, no results and nothing paid."""
    made = driver.http.post("/batches", json=body(wrong)).json()
    driver.simulator.clock.advance(100)
    found = driver.read(made["id"]).json()
    assert (found["status"], found["results"], found["usage"]) == ("failed", None, None)
    assert found["error"]["message"].startswith("requests[")
    assert found["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert driver.simulator.book.requests == 0


def test_a_completed_batch_has_its_cost_and_its_rows_do_not(driver: OpenRouterDriver) -> None:
    """Tokens of the rows sum up to those of the batch."""
    made = driver.create([f"text {n}" for n in range(5)]).json()
    driver.simulator.clock.advance(100)
    found = driver.read(made["id"]).json()
    assert (found["status"], found["request_counts"]) == ("completed", {"total": 5, "completed": 5, "failed": 0})
    bodies = [row["response"]["body"] for row in found["results"]]
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(one["usage"][name] for one in bodies) == found["usage"][name]
    assert found["usage"]["cost"] > 0
    assert all("cost" not in one["usage"] for one in bodies)
    assert {one["model"] for one in bodies} == {MODEL}
    assert {one["choices"][0]["native_finish_reason"] for one in bodies} == {"stop"}


def test_a_batch_all_of_whose_rows_failed_is_completed_with_an_error(driver: OpenRouterDriver) -> None:
    """The rows come all the same."""
    made = driver.create(["[[sim:error_400]]"]).json()
    driver.simulator.clock.advance(100)
    found = driver.read(made["id"]).json()
    assert (found["status"], len(found["results"])) == ("completed", 1)
    assert found["error"]["message"]


def test_results_come_in_pages_too(driver: OpenRouterDriver) -> None:
    """By cursor, once completed."""
    made = driver.create(["x"] * 5).json()
    address = f"/batches/{made['id']}/results"
    assert driver.http.get(address).status_code == 404
    driver.simulator.clock.advance(100)
    ids, cursor = [], "0"
    while cursor is not None:
        page = driver.http.get(address, params={"limit": 2, "cursor": cursor}).json()
        assert page["object"] == "list"
        ids += [row["custom_id"] for row in page["data"]]
        cursor = page["next_cursor"]
        assert page["has_more"] == (cursor is not None)
    assert sorted(ids) == [f"r-{n}" for n in range(5)]
    for wrong in ({"limit": 1001}, {"cursor": "x"}):
        assert driver.http.get(address, params=wrong).status_code == 400


def test_a_new_batch_is_not_found_for_a_while(driver: OpenRouterDriver) -> None:
    """As a 404 that looks like that of a lost one."""
    driver.simulator.store.read_lag = 180
    made = driver.create(["x"]).json()
    answer = driver.read(made["id"])
    words = f"Batch job {made['id']} not found."
    assert (answer.status_code, answer.json()) == (404, {"error": {"message": words, "code": 404}})
    driver.simulator.clock.advance(180)
    assert driver.read(made["id"]).status_code == 200


def test_the_list_filters_and_pages(driver: OpenRouterDriver) -> None:
    """Newest first, by time and status, never with results."""
    ids = []
    for _ in range(4):
        ids.append(driver.create(["x"]).json()["id"])
        driver.simulator.clock.advance(40)
    ids.reverse()
    page = driver.http.get("/batches").json()
    assert [one["id"] for one in page["data"]] == ids
    assert [one["status"] for one in page["data"]] == ["in_progress"] * 2 + ["completed"] * 2
    assert all(one["results"] is None for one in page["data"])
    done = driver.http.get("/batches", params={"status": ["completed", "failed"]}).json()
    assert [one["id"] for one in done["data"]] == ids[2:]
    times = {one["id"]: one["created_at"] for one in page["data"]}
    later = driver.http.get("/batches", params={"created_after": times[ids[2]]}).json()
    assert [one["id"] for one in later["data"]] == ids[:2]
    iso = driver.http.get("/batches", params={"created_before": "2020-01-01T00:00:00Z"}).json()
    assert iso["data"] == []
    first = driver.http.get("/batches", params={"limit": 3}).json()
    assert (first["has_more"], first["last_id"]) == (True, ids[2])
    rest = driver.http.get("/batches", params={"after": first["last_id"]}).json()
    assert [one["id"] for one in rest["data"]] == ids[3:]
    for wrong in ({"limit": 0}, {"status": "finalizing"}, {"created_after": "soon"}):
        assert driver.http.get("/batches", params=wrong).status_code == 400


def test_there_is_no_cancel(driver: OpenRouterDriver) -> None:
    """A plain-text 404; the batch runs on."""
    made = driver.create(["x"]).json()
    answer = driver.http.post(f"/batches/{made['id']}/cancel")
    assert (answer.status_code, answer.text) == (404, "404 Not Found")
    driver.simulator.clock.advance(100)
    assert driver.read(made["id"]).json()["status"] == "completed"


def test_only_what_has_ended_can_be_deleted(driver: OpenRouterDriver) -> None:
    """409 before."""
    made = driver.create(["x"]).json()
    assert driver.http.delete(f"/batches/{made['id']}").status_code == 409
    driver.simulator.clock.advance(100)
    assert driver.http.delete(f"/batches/{made['id']}").json()["deletion"]["openrouter"] == "deleted"
    assert driver.read(made["id"]).status_code == 404


def test_without_credit_results_are_withheld(driver: OpenRouterDriver) -> None:
    """402, until there is credit again."""
    made = driver.create(["x"]).json()
    driver.simulator.clock.advance(100)
    driver.simulator.store.out_of_credit = True
    held = driver.read(made["id"])
    assert (held.status_code, held.json()["status"], held.json()["results"]) == (402, "completed", None)
    assert driver.http.get(f"/batches/{made['id']}/results").status_code == 402
    driver.simulator.store.out_of_credit = False
    assert len(driver.read(made["id"]).json()["results"]) == 1


def test_a_batch_is_gone_after_thirty_days(driver: OpenRouterDriver) -> None:
    """410, and out of the list."""
    made = driver.create(["x"]).json()
    driver.simulator.clock.advance(100)
    driver.read(made["id"])
    driver.simulator.clock.advance(30 * 86_400)
    assert driver.read(made["id"]).status_code == 410
    assert driver.http.get("/batches").json()["data"] == []


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/messages"])
def test_other_endpoints_in_batches_and_alone(driver: OpenRouterDriver, endpoint: str) -> None:
    """Each in its own shape, with who served it."""
    message = [{"role": "user", "content": "hello"}]
    asked: dict[str, Any] = {"input": message} if endpoint == "/v1/responses" else {"messages": message}
    asked["max_tokens"] = 9
    made = driver.http.post("/batches", json=body([{"custom_id": "r", "body": asked}], endpoint=endpoint)).json()
    driver.simulator.clock.advance(100)
    (row,) = driver.read(made["id"]).json()["results"]
    alone = driver.http.post(endpoint.removeprefix("/v1"), json={**asked, "model": "z-ai/glm-5.3"}).json()
    for found in (row["response"]["body"], alone):
        assert found["provider"]
        assert "input_tokens" in found["usage"]
    assert ("cost" in row["response"]["body"]["usage"], "cost" in alone["usage"]) == (False, True)


def test_chat_through_openais_package(routed: openai.OpenAI) -> None:
    """Text, a parsed model, and what the call cost."""

    class Ticket(BaseModel):
        product: str
        urgency: int

    found = routed.chat.completions.create(model="z-ai/glm-5.3", messages=[{"role": "user", "content": "hello"}])
    assert (found.choices[0].message.content or "").startswith("Noted:")
    assert found.usage is not None
    assert found.usage.cost > 0  # pyright: ignore
    parsed = routed.chat.completions.parse(
        model="z-ai/glm-5.3", messages=[{"role": "user", "content": "hello"}], response_format=Ticket
    )
    assert isinstance(parsed.choices[0].message.parsed, Ticket)


def test_realtime_failures(driver: OpenRouterDriver, routed: openai.OpenAI) -> None:
    """A 404 for a model nobody serves or only in batches, a 402, and a failure upstream within a 200."""
    for model in ("x/no-such-model", MODEL):
        with pytest.raises(openai.NotFoundError):
            routed.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
    driver.simulator.faults.add_rows("error_500")
    answer = driver.call("realtime", "")
    assert (answer.status_code, answer.json()) == (200, {"error": {"message": "simulated", "code": 500}})
    driver.simulator.store.out_of_credit = True
    assert driver.call("realtime", "").json()["error"]["code"] == 402
