"""Google's own package drives the simulator, unmodified; plain HTTP where the package hides the wire."""

import io
import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.drivers import GEMINI_SENTIMENT

MODEL = "gemini-2.5-flash"


@pytest.fixture(params=["v1beta", "v1"])
def client(simulator: SimulatorServer, request: pytest.FixtureRequest) -> genai.Client:
    """The package at this test's simulator, in both versions of the API."""
    options = types.HttpOptions(base_url=simulator.addresses["gemini"], api_version=request.param)
    return genai.Client(api_key="k", http_options=options)


@pytest.fixture
def http(simulator: SimulatorServer) -> "Iterator[httpx.Client]":
    """A bare HTTP client of the beta version."""
    address = f"{simulator.addresses['gemini']}/v1beta"
    with httpx.Client(base_url=address, headers={"x-goog-api-key": "k"}, trust_env=False, verify=False) as found:
        yield found


def body(prompt: str = "hello", **config: Any) -> "dict[str, Any]":
    """One request."""
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}], "generationConfig": config}


def structured(schema: Any, name: str = "responseSchema") -> "dict[str, Any]":
    """A request for JSON."""
    return body(**{"responseMimeType": "application/json", name: schema})


def inline(*requests: Any, **more: Any) -> "dict[str, Any]":
    """A create call's body: requests r-0 and on."""
    rows = [{"request": request, "metadata": {"key": f"r-{n}"}} for n, request in enumerate(requests)]
    return {"batch": {"displayName": "mine", "inputConfig": {"requests": {"requests": rows}}, **more}}


def create(http: httpx.Client, *requests: Any) -> "dict[str, Any]":
    """The operation of a new batch."""
    return http.post(f"/models/{MODEL}:batchGenerateContent", json=inline(*requests)).raise_for_status().json()


def rows_of(operation: "dict[str, Any]") -> "list[dict[str, Any]]":
    """The inline rows."""
    return operation["response"]["inlinedResponses"]["inlinedResponses"]


def upload(client: genai.Client, content: bytes, **config: Any) -> types.File:
    """An uploaded file."""
    given = types.UploadFileConfig(mime_type="application/jsonl", **config)
    return client.files.upload(file=io.BytesIO(content), config=given)


def lines_of(requests: "dict[str, Any]") -> bytes:
    """An input file."""
    return b"".join(json.dumps({"key": key, "request": one}).encode() + b"\n" for key, one in requests.items())


def test_an_inline_batch_through_the_package(client: genai.Client, simulator: SimulatorServer) -> None:
    """PENDING, RUNNING, SUCCEEDED; the rows in the order of the requests, with their metadata."""
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=GEMINI_SENTIMENT)
    source = [types.InlinedRequest(contents=f"text {n}", metadata={"key": f"r-{n}"}, config=config) for n in range(5)]
    batch = client.batches.create(model=MODEL, src=source, config={"display_name": "mine"})
    name = str(batch.name)
    assert (batch.display_name, batch.model) == ("mine", f"models/{MODEL}")
    states = [batch.state]
    for seconds in (50, 50):
        simulator.clock.advance(seconds)
        batch = client.batches.get(name=name)
        states.append(batch.state)
    assert states == [types.JobState.JOB_STATE_PENDING, types.JobState.JOB_STATE_RUNNING, "JOB_STATE_SUCCEEDED"]
    assert batch.dest is not None
    found = batch.dest.inlined_responses or []
    assert [row.metadata for row in found] == [{"key": f"r-{n}"} for n in range(5)]
    for row in found:
        assert row.response is not None
        assert json.loads(str(row.response.text))["label"] in ("good", "bad")


def test_a_file_batch_through_the_package(client: genai.Client, simulator: SimulatorServer) -> None:
    """Resumable upload, results as a file of their own, which goes with the batch."""
    file = upload(client, lines_of({f"r-{n}": body(f"text {n}") for n in range(3)}), display_name="shown")
    assert (file.display_name, file.state, file.source) == ("shown", types.FileState.ACTIVE, "UPLOADED")
    batch = client.batches.create(model=MODEL, src=str(file.name))
    simulator.clock.advance(100)
    batch = client.batches.get(name=str(batch.name))
    assert batch.dest is not None
    results = str(batch.dest.file_name)
    rows = [json.loads(line) for line in client.files.download(file=results).splitlines()]
    assert [row["key"] for row in rows] == ["r-0", "r-1", "r-2"]
    assert all(set(row) == {"key", "response"} for row in rows)
    with pytest.raises(errors.ClientError) as refused:
        client.files.delete(name=results)
    assert refused.value.code == 400
    client.batches.delete(name=str(batch.name))
    for gone in (lambda: client.files.get(name=results), lambda: client.batches.get(name=str(batch.name))):
        with pytest.raises(errors.ClientError):
            gone()
    client.files.delete(name=str(file.name))
    with pytest.raises(errors.ClientError) as refused:
        client.files.get(name=str(file.name))
    assert refused.value.code == 403


def test_the_list_pages_itself(client: genai.Client) -> None:
    """Newest first."""
    source = [types.InlinedRequest(contents="x")]
    made = [client.batches.create(model=MODEL, src=source).name for _ in range(5)]
    assert [batch.name for batch in client.batches.list(config={"page_size": 2})] == made[::-1]


def test_generate_content_gives_the_model(client: genai.Client) -> None:
    """From a pydantic class, through responseSchema; and through responseJsonSchema, outside batches."""

    class Ticket(BaseModel):
        product: Literal["phone", "laptop"]
        urgency: int
        note: "str | None"

    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=Ticket)
    found = client.models.generate_content(model=MODEL, contents="hello", config=config)
    assert isinstance(found.parsed, Ticket)
    config = types.GenerateContentConfig(
        response_mime_type="application/json", response_json_schema=Ticket.model_json_schema()
    )
    found = client.models.generate_content(model=MODEL, contents="hello", config=config)
    Ticket.model_validate_json(str(found.text))
    assert client.models.generate_content(model=MODEL, contents="hello").text.startswith("Noted:")  # pyright: ignore


def test_usage_counts_thoughts_apart(http: httpx.Client, simulator: SimulatorServer) -> None:
    """Billed output is candidates and thoughts; zero counts are left out."""
    usage = http.post(f"/models/{MODEL}:generateContent", json=body()).json()["usageMetadata"]
    out = usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + out
    assert (simulator.book.input_tokens, simulator.book.output_tokens) == (usage["promptTokenCount"], out)
    empty = http.post(f"/models/{MODEL}:generateContent", json=body("[[sim:empty]]")).json()
    assert empty["candidates"][0]["content"] == {"role": "model"}
    assert "thoughtsTokenCount" not in empty["usageMetadata"]


def test_a_thought_comes_before_the_answer_where_asked_for(http: httpx.Client) -> None:
    """As a part of its own."""
    asked = body(thinkingConfig={"includeThoughts": True})
    parts = http.post(f"/models/{MODEL}:generateContent", json=asked).json()["candidates"][0]["content"]["parts"]
    assert [part.get("thought", False) for part in parts] == [True, False]


def test_blocked_and_cut_answers(http: httpx.Client) -> None:
    """SAFETY without content, MAX_TOKENS with half of it."""
    blocked, cut = (
        http.post(f"/models/{MODEL}:generateContent", json=body(f"[[sim:{fault}]]")).json()["candidates"][0]
        for fault in ("refuse", "truncate")
    )
    assert (blocked["finishReason"], blocked["content"]) == ("SAFETY", {})
    assert (cut["finishReason"], bool(cut["content"]["parts"][0]["text"])) == ("MAX_TOKENS", True)


def test_the_operation_on_the_wire(http: httpx.Client, simulator: SimulatorServer) -> None:
    """`done` and endTime at the end only, counts as texts, results twice, nothing that is zero."""
    made = create(http, body(), body("[[sim:error_400]]"))
    assert set(made) == {"name", "metadata"}
    assert made["metadata"]["batchStats"] == {"requestCount": "2", "pendingRequestCount": "2"}
    assert "inputConfig" not in made["metadata"]
    simulator.clock.advance(100)
    found = http.get(f"/{made['name']}").json()
    assert found["done"]
    stats = {"requestCount": "2", "successfulRequestCount": "1", "failedRequestCount": "1"}
    assert found["metadata"]["batchStats"] == stats
    assert found["metadata"]["output"]["inlinedResponses"] == found["response"]["inlinedResponses"]
    good, bad = rows_of(found)
    assert set(good) == {"response", "metadata"}
    assert bad == {"error": {"code": 3, "message": "simulated"}, "metadata": {"key": "r-1"}}


def test_a_cancel_before_the_start(http: httpx.Client, simulator: SimulatorServer) -> None:
    """CANCELLED, with code 13 and no rows."""
    made = create(http, body(), body())
    assert http.post(f"/{made['name']}:cancel", json={}).json() == {}
    found = http.get(f"/{made['name']}").json()
    assert (found["metadata"]["state"], found["done"], found["error"]["code"]) == ("BATCH_STATE_CANCELLED", True, 13)
    assert found["metadata"]["batchStats"] == {"requestCount": "2", "pendingRequestCount": "2"}
    assert "response" not in found
    assert simulator.book.requests == 0


def test_a_cancel_after_the_start(http: httpx.Client, simulator: SimulatorServer) -> None:
    """SUCCEEDED: what was not served has code 1."""
    simulator.store.cancel_seconds = 5
    made = create(http, *[body()] * 10)
    simulator.clock.advance(60)
    http.post(f"/{made['name']}:cancel", json={})
    assert http.get(f"/{made['name']}").json()["metadata"]["state"] == "BATCH_STATE_RUNNING"
    simulator.clock.advance(5)
    found = http.get(f"/{made['name']}").json()
    assert found["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"
    codes = [row.get("error") for row in rows_of(found)]
    assert {"code": 1} in codes
    assert simulator.book.requests == codes.count(None) > 0


def test_a_batch_all_of_whose_rows_were_cancelled_by_nobody(http: httpx.Client, simulator: SimulatorServer) -> None:
    """SUCCEEDED with code 1 throughout, unpaid."""
    simulator.store.gemini_cancels_all = True
    made = create(http, body(), body())
    simulator.clock.advance(100)
    found = http.get(f"/{made['name']}").json()
    assert found["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"
    assert [row["error"] for row in rows_of(found)] == [{"code": 1}] * 2
    assert found["metadata"]["batchStats"] == {"requestCount": "2", "failedRequestCount": "2"}
    assert simulator.book.requests == 0


def test_deleting_a_running_batch_does_not_stop_its_work(http: httpx.Client, simulator: SimulatorServer) -> None:
    """It is gone, and paid."""
    made = create(http, body(), body())
    assert http.delete(f"/{made['name']}").json() == {}
    assert http.delete(f"/{made['name']}").status_code == 404
    assert simulator.book.requests == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonsense": 1},
        {"contents": "hello"},
        "hello",
        structured({"type": "OBJECT", "properties": {"a": {"$ref": "#/$defs/A"}}}),
        structured({"oneOf": [{"type": "STRING"}]}),
        structured({"type": "OBJECT", "properties": {"a": {"const": "x"}}}),
        structured({"type": "OBJECT", "properties": {}, "additionalProperties": False}),
        structured({"type": ["STRING", "NULL"]}),
        structured({"type": "INTEGER", "enum": ["1"]}),
        structured({"type": "STRING", "enum": [1]}),
        structured({"type": "ARRAY", "items": {"anyOf": [{"type": "TEXT"}]}}),
    ],
)
def test_one_malformed_row_refuses_the_whole_create(
    http: httpx.Client, simulator: SimulatorServer, wrong: Any, client: genai.Client
) -> None:
    """Inline and in a file: a 400, and nothing is made."""
    answer = http.post(f"/models/{MODEL}:batchGenerateContent", json=inline(body(), wrong))
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    file = upload(client, lines_of({"r-0": body(), "r-1": wrong}))
    with pytest.raises(errors.ClientError):
        client.batches.create(model=MODEL, src=str(file.name))
    assert simulator.book.batches == 0


@pytest.mark.parametrize("content", [b"", b"{\n", b'{"request": {}}\n', b'{"key": "r"}\n', b"[]\n"])
def test_a_file_of_wrong_lines_is_refused(client: genai.Client, simulator: SimulatorServer, content: bytes) -> None:
    """As are an empty one, and one that does not exist."""
    file = upload(client, content) if content else types.File(name="files/none")
    with pytest.raises(errors.ClientError):
        client.batches.create(model=MODEL, src=str(file.name))
    assert simulator.book.batches == 0


def test_creates_that_are_too_large_or_of_an_unknown_model(http: httpx.Client, simulator: SimulatorServer) -> None:
    """400 beyond 20 MiB, 404 for the model, 400 without a batch or rows."""
    large = http.post(f"/models/{MODEL}:batchGenerateContent", json=inline(body("x" * (20 << 20))))
    assert (large.status_code, "20971520" in large.json()["error"]["message"]) == (400, True)
    assert http.post("/models/no-such-model-9:batchGenerateContent", json=inline(body())).status_code == 404
    assert http.post("/models/no-such-model-9:generateContent", json=body()).status_code == 404
    for wrong in ({}, inline()):
        assert http.post(f"/models/{MODEL}:batchGenerateContent", json=wrong).status_code == 400
    assert simulator.book.batches == 0


def test_a_row_that_can_be_parsed_but_not_answered_is_a_row_error(
    http: httpx.Client, simulator: SimulatorServer
) -> None:
    """Code 3: no text, two schemas, or a schema without its mime type."""
    both = structured(GEMINI_SENTIMENT)
    both["generationConfig"]["responseJsonSchema"] = {}
    made = create(http, {"contents": []}, both, body(responseSchema=GEMINI_SENTIMENT), body())
    simulator.clock.advance(100)
    codes = [row.get("error", {}).get("code") for row in rows_of(http.get(f"/{made['name']}").json())]
    assert codes == [3, 3, 3, None]


def test_a_json_schema_is_ignored_in_batches(http: httpx.Client, simulator: SimulatorServer) -> None:
    """The answer is plain text, finished and paid."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    made = create(http, structured(schema, "responseJsonSchema"))
    simulator.clock.advance(100)
    (row,) = rows_of(http.get(f"/{made['name']}").json())
    candidate = row["response"]["candidates"][0]
    assert (candidate["finishReason"], candidate["content"]["parts"][0]["text"][:6]) == ("STOP", "Noted:")
    assert simulator.book.requests == 1


def test_the_dialect_of_response_schema(http: httpx.Client) -> None:
    """Upper-case types, nullable, enums, anyOf, counts as texts, order; in snake case too."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "last": {"type": "STRING", "nullable": True},
            "first": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2", "maxItems": "2"},
            "either": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        },
        "required": ["last", "first", "either"],
        "propertyOrdering": ["first", "either", "last"],
    }
    nulls = set()
    for n in range(20):
        config = {"response_mime_type": "application/json", "response_schema": schema}
        asked = {"contents": body(f"text {n}")["contents"], "generation_config": config}
        answer = http.post(f"/models/{MODEL}:generateContent", json=asked).json()
        found = json.loads(answer["candidates"][0]["content"]["parts"][0]["text"])
        assert list(found) == ["first", "either", "last"]
        assert len(found["first"]) == 2
        assert isinstance(found["either"], float | bool)
        nulls.add(found["last"] is None)
    assert nulls == {True, False}


def test_uploads_in_pieces_under_a_name_of_ones_own(http: httpx.Client, simulator: SimulatorServer) -> None:
    """A wrong offset, a name taken, a name too long: refused."""
    root = simulator.addresses["gemini"]
    start = {"x-goog-upload-protocol": "resumable", "x-goog-upload-command": "start"}
    named = {"file": {"name": "files/my-id", "displayName": "shown"}}
    begun = http.post(f"{root}/upload/v1beta/files", headers=start, json=named)
    address = begun.headers["x-goog-upload-url"]
    assert address.startswith(f"{root}/upload/v1beta/files")
    for offset, command, status in ((0, "upload", "active"), (5, "upload, finalize", "final")):
        headers = {"x-goog-upload-command": command, "x-goog-upload-offset": str(offset)}
        piece = http.post(address, headers=headers, content=b"12345")
        assert piece.headers["x-goog-upload-status"] == status
    assert piece.json()["file"]["sizeBytes"] == "10"
    assert simulator.store.files["files/my-id"].path.read_bytes() == b"1234512345"
    assert http.post(f"{root}/upload/v1beta/files", headers=start, json=named).status_code == 409
    for name in ("files/" + "x" * 41, "files/Upper", "other"):
        refused = http.post(f"{root}/upload/v1beta/files", headers=start, json={"file": {"name": name}})
        assert refused.status_code == 400
    begun = http.post(f"{root}/upload/v1beta/files", headers=start, json={})
    headers = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "3"}
    assert http.post(begun.headers["x-goog-upload-url"], headers=headers, content=b"x").status_code == 400


def test_an_uploaded_file_is_gone_after_two_days(
    http: httpx.Client, client: genai.Client, simulator: SimulatorServer
) -> None:
    """As if it had never been; before that it can be read but not downloaded."""
    file = upload(client, b"x")
    assert http.get(f"/{file.name}").status_code == 200
    assert http.get(f"/{file.name}:download", params={"alt": "media"}).status_code == 400
    assert [one["name"] for one in http.get("/files").json()["files"]] == [file.name]
    simulator.clock.advance(2 * 86_400)
    assert http.get(f"/{file.name}").status_code == 403
    assert http.get("/files").json() == {}


def test_result_lines_that_are_hard_to_read(client: genai.Client, simulator: SimulatorServer) -> None:
    """In a file: CRLF ends a line, and half a line spoils no other."""
    requests = {"a": body("[[sim:crlf]]"), "b": body("[[sim:unreadable]]"), "c": body()}
    batch = client.batches.create(model=MODEL, src=str(upload(client, lines_of(requests)).name))
    simulator.clock.advance(100)
    done = client.batches.get(name=str(batch.name))
    assert done.dest is not None
    lines = client.files.download(file=str(done.dest.file_name)).split(b"\n")
    assert lines[0].endswith(b"\r")
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[1])
    assert json.loads(lines[2])["key"] == "c"


def test_errors_on_the_wire(http: httpx.Client, simulator: SimulatorServer) -> None:
    """A wrong key is a 400 with its reason; a 429 says when to come back; an unknown batch is a 404."""
    wrong = http.get("/batches", headers={"x-goog-api-key": "wrong-key"})
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert wrong.json()["error"]["details"][0]["reason"] == "API_KEY_INVALID"
    simulator.faults.add("list", "status_before", 429)
    full = http.get("/batches").json()["error"]
    assert (full["status"], full["details"][0]["retryDelay"]) == ("RESOURCE_EXHAUSTED", "1s")
    assert http.get("/batches", params={"key": "k"}, headers={"x-goog-api-key": ""}).status_code == 200
    assert http.get("/batches/none").json()["error"]["status"] == "NOT_FOUND"
    for wrong_page in ({"pageSize": 101}, {"pageToken": "none"}):
        assert http.get("/batches", params=wrong_page).status_code == 400


@pytest.mark.parametrize("where", ["upload_start", "upload"])
def test_both_calls_of_an_upload_can_break(client: genai.Client, simulator: SimulatorServer, where: str) -> None:
    """A drop after the second leaves a file."""
    simulator.faults.add(where, "drop_after")
    with pytest.raises(Exception, match="Server disconnected"):  # the package's transport differs by its version
        upload(client, b"x")
    assert len(simulator.store.files) == (where == "upload")
