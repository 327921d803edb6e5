"""Gemini's Batch Mode and generateContent: requests, uploads, the paid call, looking for a batch, states and results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    ConfigurationError,
    ProviderError,
    ProviderMismatchError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, TextPart
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.gemini import (
    INLINE_BYTES,
    MOST_INLINE_BYTES,
    PAGE,
    GeminiBatchProvider,
    Ingest,
)
from dagster_llmbatch.providers.gemini_batches import CANCEL_ASKED, inlined_rows, read_batch
from dagster_llmbatch.providers.gemini_requests import GeminiEncoder
from dagster_llmbatch.providers.http import ATTEMPTS

SECRET = "AIza-very-secret"
TEMPLATE = RequestTemplate("gemini-2.5-flash")
SCHEMA = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER", "nullable": True}}, "required": ["a"]}
INLINE = Uploaded({"ingest": "inline"})
FILE = Uploaded({"ingest": "file", "fileName": "files/in"})
HANDLE = BatchHandle("gemini", "batches/b1", {"ingest": "file", "fileName": "files/in"})
ROWS = [
    {"key": "a", "response": {"candidates": [{"content": {"parts": [{"text": "yes"}]}, "finishReason": "STOP"}]}},
    {"key": "b", "error": {"code": 1}},
]
Answer = Callable[[httpx.Request], httpx.Response]


class Api:
    """A provider over a function that answers its requests, which are noted."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer
        self.provider = GeminiBatchProvider(
            api_key=SECRET, transport=httpx.MockTransport(self._handle), sleep=lambda seconds: None, **options
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)

    @property
    def calls(self) -> "list[tuple[str, str]]":
        """Method and path of each request."""
        return [(request.method, request.url.raw_path.decode()) for request in self.requests]


def operation(state: str = "RUNNING", **fields: Any) -> "dict[str, Any]":
    """An operation as Gemini sends it; fields of its metadata go under `metadata`."""
    metadata = {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "model": "models/gemini-2.5-flash",
        "displayName": "llmb-1",
        "createTime": "2026-08-19T14:34:12.267870162Z",
        "batchStats": {"requestCount": "3", "successfulRequestCount": "1", "pendingRequestCount": "2"},
        "state": f"BATCH_STATE_{state}",
        "name": "batches/b1",
        **fields.pop("metadata", {}),
    }
    return {"name": "batches/b1", "metadata": metadata, **fields}


def inlined(*rows: "dict[str, Any]", flat: bool = False) -> "dict[str, Any]":
    """The output of an inline batch."""
    listed = [{"metadata": {"key": row["key"]}, **{k: v for k, v in row.items() if k != "key"}} for row in rows]
    return {"inlinedResponses": listed if flat else {"inlinedResponses": listed}}


def always(content: Any, status: int = 200) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content)


def refused(status: str, code: int) -> httpx.Response:
    """An error answer."""
    return httpx.Response(code, json={"error": {"code": code, "status": status, "message": "m"}})


def in_turn(*answers: "httpx.Response | dict[str, Any] | Exception") -> Answer:
    """One answer after the other."""
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return httpx.Response(200, json=found) if isinstance(found, dict) else found

    return answer


def failing(error: Exception) -> Answer:
    """The same failure of everything."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of two requests."""
    path = tmp_path / "lines"
    encoder = GeminiEncoder(TEMPLATE)
    path.write_bytes(encoder.line("a", "Hello\u2028\n") + encoder.line("b", "Hi"))
    return path


# Requests


def test_golden_line_of_plain_text() -> None:
    """A prompt without anything else: no settings, no temperature, no cap."""
    assert GeminiEncoder(TEMPLATE).line("r-1", "Hello") == (
        b'{"key":"r-1","request":{"contents":[{"role":"user","parts":[{"text":"Hello"}]}]}}\n'
    )


@pytest.mark.parametrize(
    "params",
    [
        {"maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 0}, "safetySettings": [], "cachedContent": "c"},
        {"max_output_tokens": 9, "thinking_config": {"thinkingBudget": 0}, "safety_settings": [], "cached_content": "c"},
        {
            "generationConfig": {"maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 0}},
            "safetySettings": [],
            "cachedContent": "c",
        },
        {"generation_config": {"max_output_tokens": 9}, "thinkingConfig": {"thinkingBudget": 0}, "safety_settings": [],
         "cachedContent": "c"},
    ],
    ids=["wire names", "snake case", "generationConfig", "mixed"],
)  # fmt: skip
def test_golden_line_with_everything(params: "dict[str, Any]") -> None:
    """System prompt, settings and schema in their places, however the params are spelled; the user's prompt last."""
    template = RequestTemplate("m", system="Be brief.", params=params, schema=SCHEMA)
    line = GeminiEncoder(template).line("r-1", "Hi")
    assert json.loads(line) == {
        "key": "r-1",
        "request": {
            "safetySettings": [],
            "cachedContent": "c",
            "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
            "generationConfig": {
                "maxOutputTokens": 9,
                "thinkingConfig": {"thinkingBudget": 0},
                "responseMimeType": "application/json",
                "responseSchema": SCHEMA,
            },
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        },
    }
    assert line.endswith(b'"parts":[{"text":"Hi"}]}]}}\n')


def test_the_schema_field_by_mode() -> None:
    """Batches take responseSchema, realtime responseJsonSchema, under the same MIME type."""
    template = RequestTemplate("m", schema={"type": "object"})
    config = {
        mode: json.loads(GeminiEncoder(template, mode).body("x"))["generationConfig"] for mode in ("batch", "realtime")
    }
    assert config["batch"] == {"responseMimeType": "application/json", "responseSchema": {"type": "object"}}
    assert config["realtime"] == {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}}


def test_parts() -> None:
    """Bytes go inline as base64, addresses as file data, with the media type where it is known."""
    prompt: Content = (
        TextPart("look"),
        ImagePart(data=b"\x89PNG", media_type="image/png"),
        DocumentPart(data=b"%PDF"),
        ImagePart(url="https://x.test/a.JPG?size=1.png"),
        ImagePart(url="https://x.test/a"),
        ImagePart(url="https://x.test/a", media_type="image/gif"),
        DocumentPart(url="gs://b/a.pdf"),
    )
    sent = json.loads(GeminiEncoder(TEMPLATE).line("r-1", prompt))["request"]["contents"]
    assert sent == [
        {
            "role": "user",
            "parts": [
                {"text": "look"},
                {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
                {"fileData": {"fileUri": "https://x.test/a.JPG?size=1.png", "mimeType": "image/jpeg"}},
                {"fileData": {"fileUri": "https://x.test/a"}},
                {"fileData": {"fileUri": "https://x.test/a", "mimeType": "image/gif"}},
                {"fileData": {"fileUri": "gs://b/a.pdf", "mimeType": "application/pdf"}},
            ],
        }
    ]


@settings(max_examples=60)
@given(st.text(), st.text(), st.none() | st.text())
def test_any_prompt_survives_the_line(key: str, prompt: str, system: "str | None") -> None:
    """One line whatever the texts hold, and they come back from it."""
    template = RequestTemplate("m", system=system, schema=SCHEMA)
    line = GeminiEncoder(template).line(key, prompt)
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert found["key"] == key
    assert found["request"]["contents"] == [{"role": "user", "parts": [{"text": prompt}]}]
    assert json.loads(GeminiEncoder(template).body(prompt)) == found["request"]


def test_the_identity() -> None:
    """Model, system, params and schema are part of it; the output cap, however given, and the spelling are not."""
    same = [{}, {"maxOutputTokens": 5}, {"max_output_tokens": 6}, {"generationConfig": {"maxOutputTokens": 7}}]
    assert len({GeminiEncoder(RequestTemplate("m", params=params)).identity for params in same}) == 1
    ordered = [{"seed": 1, "topK": 2}, {"top_k": 2, "generationConfig": {"seed": 1}}]
    assert len({GeminiEncoder(RequestTemplate("m", params=params)).identity for params in ordered}) == 1
    different = [
        RequestTemplate("m"),
        RequestTemplate("n"),
        RequestTemplate("m", system="s"),
        RequestTemplate("m", params={"seed": 1}),
        RequestTemplate("m", params={"tools": []}),
        RequestTemplate("m", schema=SCHEMA),
    ]
    assert len({GeminiEncoder(template).identity for template in different}) == len(different)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"model": "x"}, "model"),
        ({"contents": []}, "contents"),
        ({"system_instruction": "x"}, "systemInstruction"),
        ({"responseSchema": {}}, "responseSchema"),
        ({"generationConfig": {"response_json_schema": {}}}, "responseJsonSchema"),
        ({"response_mime_type": "text/plain"}, "responseMimeType"),
        ({"candidateCount": 2}, "candidateCount"),
        ({"seed": 1, "generationConfig": {"seed": 1}}, "seed"),
        ({"topP": 1, "top_p": 1}, "topP"),
        ({"generationConfig": {}, "generation_config": {}}, "generationConfig"),
        ({"generationConfig": [1]}, "generationConfig"),
        ({"temperature": float("nan")}, "temperature"),
        ({"thinkingConfig": {"thinkingBudget": float("inf")}}, "thinkingConfig"),
    ],
)
def test_params_that_cannot_be_sent(params: "dict[str, Any]", named: str) -> None:
    """What the package sets, what is given twice, several answers a row, and what is no JSON."""
    with pytest.raises(ConfigurationError, match=named):
        GeminiEncoder(RequestTemplate("m", params=params, schema=SCHEMA))


def test_a_mime_type_without_an_output_is_the_users() -> None:
    """Without an output type nothing of ours contradicts it."""
    template = RequestTemplate("m", params={"responseMimeType": "text/x.enum", "responseSchema": {"enum": ["a"]}})
    sent = json.loads(GeminiEncoder(template).body("x"))
    assert sent["generationConfig"] == {"responseMimeType": "text/x.enum", "responseSchema": {"enum": ["a"]}}


# Upload


def uploads(*sent: "httpx.Response | dict[str, Any] | Exception") -> Answer:
    """A new upload session for each start, and these answers to the bytes."""
    answer, started = in_turn(*sent), iter(range(9))

    def handle(request: httpx.Request) -> httpx.Response:
        if request.headers["x-goog-upload-command"] == "start":
            address = f"https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id=u{next(started)}"
            return httpx.Response(200, headers={"x-goog-upload-url": address}, json={})
        return answer(request)

    return handle


def test_the_upload_is_resumable_and_its_file_is_ours(lines: Path) -> None:
    """A session with our key as display name, then the bytes as they are to the address it names."""
    api = Api(uploads({"file": {"name": "files/in"}}), ingest="file")
    assert api.provider.upload(lines, external_key="llmb-1") == FILE
    start, send = api.requests
    size = lines.stat().st_size
    assert (start.method, str(start.url)) == ("POST", "https://generativelanguage.googleapis.com/upload/v1beta/files")
    assert start.headers["x-goog-upload-protocol"] == "resumable"
    assert start.headers["x-goog-upload-header-content-length"] == str(size)
    assert start.headers["x-goog-upload-header-content-type"] == "application/jsonl"
    file = {"displayName": "llmb-1", "mimeType": "application/jsonl", "sizeBytes": size}
    assert json.loads(start.content) == {"file": file}
    assert send.url.params["upload_id"] == "u0"
    assert (send.headers["content-length"], send.headers["x-goog-upload-offset"]) == (str(size), "0")
    assert send.headers["x-goog-upload-command"] == "upload, finalize"
    assert "transfer-encoding" not in send.headers
    assert send.content == lines.read_bytes()
    assert start.headers["x-goog-api-key"] == send.headers["x-goog-api-key"] == SECRET


def test_a_broken_upload_starts_over(lines: Path) -> None:
    """In a new session, with all the bytes: the broken one may hold some of them."""
    api = Api(uploads(httpx.ReadError("x"), httpx.Response(503), {"file": {"name": "files/in"}}), ingest="file")
    assert api.provider.upload(lines, external_key="llmb-1") == FILE
    sent = [request for request in api.requests if "upload_id" in request.url.params]
    assert [request.url.params["upload_id"] for request in sent] == ["u0", "u1", "u2"]
    assert {request.content for request in sent} == {lines.read_bytes()}


@pytest.mark.parametrize(
    "answer",
    [always({}), uploads(*[{"file": {}}] * ATTEMPTS), uploads(*[{}] * ATTEMPTS)],
    ids=["address", "name", "file"],
)
def test_an_upload_without_a_result_is_a_passing_error(answer: Answer, lines: Path) -> None:
    """No address, or no file name."""
    with pytest.raises(TransientProviderError):
        Api(answer, ingest="file").provider.upload(lines, external_key="k")


def test_the_bytes_go_to_our_host_only(lines: Path) -> None:
    """The key is not sent to an address elsewhere."""
    api = Api(
        lambda r: httpx.Response(200, headers={"x-goog-upload-url": "https://evil.test/u"}, json={}), ingest="file"
    )
    with pytest.raises(RejectedError, match=r"evil\.test"):
        api.provider.upload(lines, external_key="k")
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("ingest", "size", "inline"),
    [
        ("auto", INLINE_BYTES, True),
        ("auto", INLINE_BYTES + 1, False),
        ("inline", INLINE_BYTES + 1, True),
        ("file", 1, False),
    ],
)
def test_how_requests_are_handed_over(ingest: Ingest, size: int, inline: bool, tmp_path: Path) -> None:
    """By size unless said otherwise; inline sends nothing and is noted."""
    path = tmp_path / "lines"
    with path.open("wb") as file:
        file.truncate(size)
    api = Api(uploads({"file": {"name": "files/in"}}), ingest=ingest)
    assert api.provider.upload(path, external_key="k") == (INLINE if inline else FILE)
    assert bool(api.requests) is not inline


def test_limits_by_ingest() -> None:
    """All that goes inline must fit into one call."""
    assert Api(always({})).provider.limits.max_bytes == 1_900_000_000
    limits = Api(always({}), ingest="inline").provider.limits
    assert limits.max_bytes == MOST_INLINE_BYTES
    smallest = len(GeminiEncoder(TEMPLATE).line("x" * 20, "x"))
    envelope = limits.max_requests * len(',"metadata":{}') + 1_000
    assert smallest * limits.max_requests < MOST_INLINE_BYTES
    assert MOST_INLINE_BYTES + envelope < 20 * 2**20
    with pytest.raises(ConfigurationError, match="ingest"):
        Api(always({}), ingest="ftp")


# Create


def test_golden_create_from_a_file() -> None:
    """The model in the address; our key and the file in the body."""
    api = Api(always(operation("PENDING", metadata={"inputConfig": {"fileName": "files/in"}})))
    found = api.provider.create(Path("unused"), FILE, template=TEMPLATE, external_key="llmb-1")
    (request,) = api.requests
    assert (request.method, str(request.url)) == (
        "POST",
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:batchGenerateContent",
    )
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {"batch": {"displayName": "llmb-1", "inputConfig": {"fileName": "files/in"}}}
    assert found.handle == HANDLE
    assert found.state is BatchState.RUNNING


def test_golden_create_inline(lines: Path) -> None:
    """The requests as they stand in the file, each with its key as metadata."""
    api = Api(always(operation("PENDING")), version="v1", base_url="https://gate.test/google")
    found = api.provider.create(lines, INLINE, template=TEMPLATE, external_key="llmb-1")
    (request,) = api.requests
    assert str(request.url) == "https://gate.test/google/v1/models/gemini-2.5-flash:batchGenerateContent"
    rows = [json.loads(line) for line in lines.read_bytes().splitlines()]
    sent = [{"request": row["request"], "metadata": {"key": row["key"]}} for row in rows]
    assert json.loads(request.content) == {
        "batch": {"displayName": "llmb-1", "inputConfig": {"requests": {"requests": sent}}}
    }
    assert sent[0]["request"]["contents"][0]["parts"] == [{"text": "Hello\u2028\n"}]
    assert found.handle == BatchHandle("gemini", "batches/b1", {"ingest": "inline"})


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-x", "/v1beta/models/gemini-x:batchGenerateContent"),
        ("models/gemini-x", "/v1beta/models/gemini-x:batchGenerateContent"),
        ("tunedModels/mine", "/v1beta/tunedModels/mine:batchGenerateContent"),
        ("a?b#c", "/v1beta/models/a%3Fb%23c:batchGenerateContent"),
    ],
)
def test_the_address_of_a_model(model: str, path: str) -> None:
    """With or without its collection, and quoted."""
    api = Api(always(operation()))
    api.provider.create(Path("unused"), FILE, template=RequestTemplate(model), external_key="k")
    assert api.calls == [("POST", path)]


@pytest.mark.parametrize("uploaded", [INLINE, FILE], ids=["inline", "file"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (failing(httpx.ConnectError("x")), TransientProviderError),
        (failing(httpx.ReadTimeout("x")), AmbiguousCreateError),
        (failing(httpx.WriteError("x")), AmbiguousCreateError),
        (always({}, 409), AmbiguousCreateError),
        (always({}, 503), AmbiguousCreateError),
        (always([]), AmbiguousCreateError),
        (always({}), AmbiguousCreateError),
        (always({"error": {"status": "NOT_FOUND"}}, 404), RejectedError),
        (always({"error": {"status": "INVALID_ARGUMENT"}}, 400), RejectedError),
        (always({"error": {"status": "RESOURCE_EXHAUSTED"}}, 429), RateLimitedError),
        (always({"error": {"status": "RESOURCE_EXHAUSTED", "message": "limit: 0"}}, 429), QuotaExhaustedError),
    ],
    ids=["connect", "read", "write", "409", "503", "no object", "no name", "404", "400", "429", "quota"],
)
def test_the_paid_call_is_sent_once(
    answer: Answer, kind: "type[ProviderError]", uploaded: Uploaded, lines: Path
) -> None:
    """Whatever happens, one POST; what is not provably refused is ambiguous; the key is nowhere in the error."""
    api = Api(answer)
    with pytest.raises(ProviderError) as caught:
        api.provider.create(lines, uploaded, template=TEMPLATE, external_key="k")
    assert type(caught.value) is kind
    assert len(api.requests) == 1
    assert SECRET not in f"{caught.value!s}{caught.value!r}{vars(caught.value)}"


# Find


def pages(*found: "list[dict[str, Any]]") -> Answer:
    """List pages, chosen by `pageToken`; the last has no token, and an empty one no operations."""

    def answer(request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("pageToken", "0"))
        page: dict[str, Any] = {"operations": found[number]} if found[number] else {}
        return httpx.Response(200, json=page | ({"nextPageToken": str(number + 1)} if number + 1 < len(found) else {}))

    return answer


def other(number: int) -> "dict[str, Any]":
    """A batch of somebody else."""
    return {**operation(metadata={"displayName": f"other-{number}"}), "name": f"batches/o{number}"}


def search(uploaded: Uploaded = INLINE, known: "tuple[str, ...]" = ()) -> Search:
    """What is known of our batch."""
    return Search("llmb-1", uploaded, 0.0, ("a", "b"), known)


def test_find_by_key_on_a_later_page() -> None:
    """All pages are read until the batch with our key comes; what was uploaded stays with its handle."""
    api = Api(pages([other(0)], [], [other(1), operation()]))
    found = api.provider.find(search())
    assert found is not None
    assert found.handle == BatchHandle("gemini", "batches/b1", {"ingest": "inline"})
    assert [dict(request.url.params) for request in api.requests] == [
        {"pageSize": str(PAGE)},
        {"pageSize": str(PAGE), "pageToken": "1"},
        {"pageSize": str(PAGE), "pageToken": "2"},
    ]


def test_find_by_file() -> None:
    """The uploaded file is ours alone, also under another name."""
    mine = operation(metadata={"displayName": "", "inputConfig": {"fileName": "files/in"}})
    found = Api(pages([other(0), mine])).provider.find(search(FILE))
    assert found is not None
    assert found.handle == HANDLE
    assert Api(pages([other(0), mine])).provider.find(search()) is None


def test_find_nothing() -> None:
    """An account without batches, or without ours, gives None; what is recorded already is not the one looked for."""
    for answer in (pages([]), pages([other(0)], [{"name": "batches/bare"}])):
        assert Api(answer).provider.find(search(FILE)) is None
    assert Api(pages([operation()])).provider.find(search(known=("batches/b1",))) is None


# States


def status_of(body: "dict[str, Any]", handle: BatchHandle = HANDLE) -> BatchStatus:
    """The status read from an operation."""
    return Api(always(body)).provider.status(handle)


@pytest.mark.parametrize("prefix", ["BATCH_STATE_", "JOB_STATE_"])
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("PENDING", BatchState.RUNNING),
        ("QUEUED", BatchState.RUNNING),
        ("RUNNING", BatchState.RUNNING),
        ("PAUSED", BatchState.RUNNING),
        ("UPDATING", BatchState.RUNNING),
        ("CANCELLING", BatchState.CANCELLING),
        ("SUCCEEDED", BatchState.COMPLETED),
        ("PARTIALLY_SUCCEEDED", BatchState.COMPLETED),
        ("FAILED", BatchState.FAILED),
        ("CANCELLED", BatchState.CANCELLED),
        ("EXPIRED", BatchState.EXPIRED),
        ("DREAMING", BatchState.UNKNOWN),
        ("UNSPECIFIED", BatchState.UNKNOWN),
    ],
)
def test_states(prefix: str, name: str, state: BatchState) -> None:
    """Both prefixes; names we have not met are unknown, not ended."""
    found = status_of(operation(metadata={"state": prefix + name}, done=state.ended))
    assert (found.state, found.provider_state) == (state, prefix + name)


def test_what_a_status_says() -> None:
    """int64 texts as counts with zeros left out, nanoseconds as seconds, the file in the handle."""
    found = status_of(operation(metadata={"endTime": "2026-08-19T14:40:30.652367187Z"}))
    assert (found.total, found.completed, found.failed) == (3, 1, 0)
    assert found.created_at == pytest.approx(1_787_150_052.26787, abs=1e-3)
    assert found.ended_at == pytest.approx(1_787_150_430.652367, abs=1e-3)
    assert found.handle == HANDLE
    bare = status_of({"name": "batches/b1"})
    assert (bare.total, bare.created_at, bare.state) == (None, None, BatchState.UNKNOWN)


def test_done_ends_a_batch_in_any_state() -> None:
    """By its error where it has one, else as completed."""
    for state in ("RUNNING", "DREAMING"):
        assert status_of(operation(state, done=True)).state is BatchState.COMPLETED
        assert status_of(operation(state, done=True, error={"code": 13})).state is BatchState.FAILED
        assert status_of(operation(state, done=True, error={"code": 1})).state is BatchState.CANCELLED
        assert status_of(operation(state, done=True, error={"code": 4})).state is BatchState.EXPIRED


def test_success_without_results_is_not_over_until_done() -> None:
    """Collected too early, every row would be missing, and bought again."""
    assert status_of(operation("SUCCEEDED")).state is BatchState.RUNNING
    assert status_of(operation("SUCCEEDED", response={"responsesFile": "files/out"})).state is BatchState.COMPLETED
    assert status_of(operation("SUCCEEDED", done=True)).state is BatchState.COMPLETED


@pytest.mark.parametrize(
    ("error", "queue_full", "retryable"),
    [
        ({"code": 8, "message": "enqueued tokens"}, True, False),
        ({"code": 8, "message": "busy"}, False, True),
        ({"code": 8, "message": "limit: 0"}, False, False),
        ({"code": 13}, False, True),
        ({"code": 3, "message": "bad"}, False, False),
        ({"code": 1}, False, True),
    ],
)
def test_a_batch_that_failed_as_a_whole(error: "dict[str, Any]", queue_full: bool, retryable: bool) -> None:
    """A full queue, a passing reason, or the requests' own fault."""
    found = status_of(operation("FAILED", done=True, error=error))
    assert (found.state, found.queue_full, found.retryable) == (BatchState.FAILED, queue_full, retryable)
    assert (found.error_message, found.result_refs) == (error.get("message"), {})
    assert found.error_code


def test_a_batch_that_failed_because_we_cancelled_it() -> None:
    """Whatever passing reason it names, its requests are not sent again by themselves."""
    asked = BatchHandle("gemini", "batches/b1", {CANCEL_ASKED: "true"})
    found = status_of(operation("FAILED", done=True, error={"code": 1}), asked)
    assert (found.state, found.retryable) == (BatchState.FAILED, False)


def test_cancelled_before_it_started() -> None:
    """An error of its own and no rows."""
    found = status_of(operation("CANCELLED", done=True, error={"code": 13, "message": "Batch was cancelled."}))
    assert (found.state, found.retryable, found.result_refs) == (BatchState.CANCELLED, False, {})
    assert list(Api(always({})).provider.outcomes(found)) == []


@pytest.mark.parametrize("place", ["response", "metadata", "both"])
def test_where_results_are(place: str) -> None:
    """Shown twice, or in either place: a file by its name, inline ones by the batch's."""
    for output, refs in (
        ({"responsesFile": "files/out"}, {"responsesFile": "files/out"}),
        (inlined(*ROWS), {"inlinedResponses": "batches/b1"}),
    ):
        body = operation("SUCCEEDED", done=True, metadata={} if place == "response" else {"output": output})
        body |= {} if place == "metadata" else {"response": output}
        assert status_of(body).result_refs == refs


def test_a_batch_nobody_knows() -> None:
    """404 is said as such."""
    with pytest.raises(BatchNotFoundError):
        Api(lambda request: refused("NOT_FOUND", 404)).provider.status(HANDLE)


# Results


def ended(**fields: Any) -> BatchStatus:
    """A batch that succeeded, with its results in a file."""
    output = {"responsesFile": "files/out"}
    return read_batch(operation("SUCCEEDED", done=True, response=output, **fields), HANDLE.refs)


def test_results_file() -> None:
    """Streamed from the download address, line by line."""
    content = b"\n\n".join(json.dumps(row).encode() for row in ROWS)
    api = Api(lambda request: httpx.Response(200, content=content))
    found = list(api.provider.outcomes(ended()))
    assert api.calls == [("GET", "/download/v1beta/files/out:download?alt=media")]
    assert [(o.custom_id, o.kind, o.text) for o in found] == [
        ("a", OutcomeKind.ANSWER, "yes"),
        ("b", OutcomeKind.PROVIDER_ERROR, None),
    ]


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_inlined_results_are_read_once(twice: bool, flat: bool) -> None:
    """Although they are shown twice; nested as on the wire, or flat as in some samples."""
    output = inlined(*ROWS, flat=flat)
    body = operation("SUCCEEDED", done=True, metadata={"output": output})
    body |= {"response": output} if twice else {}
    api = Api(always(body))
    found = list(api.provider.outcomes(api.provider.status(HANDLE), extras=["response"]))
    assert [(o.custom_id, o.text, o.response is None) for o in found] == [("a", "yes", False), ("b", None, True)]
    assert api.calls == [("GET", "/v1beta/batches/b1")] * 2


def test_an_odd_operation_costs_no_answer() -> None:
    """Inlined rows are found beside an output of another shape, and with half a surrogate pair."""
    rows = inlined({"key": "a", "response": {"candidates": [{"content": {"parts": [{"text": "yes"}]}}]}})
    odd = operation("SUCCEEDED", done=True, response=[], metadata={"output": rows})
    status = read_batch(odd, {})
    (found,) = Api(always(odd)).provider.outcomes(status)
    assert (found.custom_id, found.text) == ("a", "yes")
    half = json.dumps(operation("SUCCEEDED", done=True, response=rows)).replace("yes", "yes\\ud800").encode()
    (found,) = Api(lambda request: httpx.Response(200, content=half)).provider.outcomes(status)
    assert found.text == "yes\ufffd"
    assert inlined_rows(b'{"response":{"inlinedResponses":{}}}') == []


def test_inlined_results_that_are_no_json_are_asked_for_again() -> None:
    """Nothing is taken for missing."""
    status = read_batch(operation("SUCCEEDED", done=True, response=inlined(*ROWS)), {})
    with pytest.raises(TransientProviderError):
        list(Api(lambda request: httpx.Response(200, content=b"<html>")).provider.outcomes(status))


@pytest.mark.parametrize(
    ("state", "refs", "kind"),
    [
        ("SUCCEEDED", {}, OutcomeKind.PROVIDER_ERROR),
        ("SUCCEEDED", {CANCEL_ASKED: "true"}, OutcomeKind.CANCELLED),
        ("CANCELLED", {}, OutcomeKind.CANCELLED),
        ("EXPIRED", {}, OutcomeKind.PROVIDER_ERROR),
    ],
)
def test_rows_that_were_cancelled(state: str, refs: "dict[str, str]", kind: OutcomeKind) -> None:
    """Final where the batch is cancelled or we asked for it; else the provider gave up, and they may be sent again."""
    status = read_batch(operation(state, done=True, response={"responsesFile": "files/out"}), refs)
    content = b'{"key":"b","error":{"code":1}}'
    (found,) = Api(lambda request: httpx.Response(200, content=content)).provider.outcomes(status)
    assert (found.kind, found.retryable) == (kind, kind is OutcomeKind.PROVIDER_ERROR)


def test_a_results_file_that_is_gone() -> None:
    """403 stands for it where the batch itself can be read; where it cannot, the key is at fault."""
    gone = refused("PERMISSION_DENIED", 403)
    with pytest.raises(BatchNotFoundError):
        list(Api(in_turn(gone, operation("SUCCEEDED", done=True))).provider.outcomes(ended()))
    with pytest.raises(RejectedError) as caught:
        list(Api(lambda request: refused("PERMISSION_DENIED", 403)).provider.outcomes(ended()))
    assert caught.value.category == "auth"


# Cancel and delete


def test_cancel_notes_that_it_was_asked_for() -> None:
    """The call, then a look; the handle that comes back tells it from a cancel nobody asked for."""
    api = Api(in_turn({}, operation("RUNNING")))
    found = api.provider.cancel(HANDLE)
    assert api.calls == [("POST", "/v1beta/batches/b1:cancel"), ("GET", "/v1beta/batches/b1")]
    assert json.loads(api.requests[0].content) == {}
    assert found.state is BatchState.CANCELLING
    assert found.handle.refs == {**HANDLE.refs, CANCEL_ASKED: "true"}
    assert status_of(operation("RUNNING"), found.handle).handle == found.handle
    settled = Api(in_turn({}, operation("SUCCEEDED", done=True))).provider.cancel(HANDLE)
    assert (settled.state, CANCEL_ASKED in settled.handle.refs) == (BatchState.COMPLETED, True)


def test_cancel_of_a_batch_that_ended() -> None:
    """A refusal is no error there, and nothing was cancelled; it is one where the batch still runs."""
    late = refused("FAILED_PRECONDITION", 400)
    found = Api(in_turn(late, operation("SUCCEEDED", done=True))).provider.cancel(HANDLE)
    assert (found.state, found.handle) == (BatchState.COMPLETED, HANDLE)
    with pytest.raises(RejectedError):
        Api(in_turn(refused("FAILED_PRECONDITION", 400), operation("RUNNING"))).provider.cancel(HANDLE)


def test_delete_files() -> None:
    """The uploaded file and the batch, whose results go with it; what is gone already is fine."""
    api = Api(in_turn({}, {}))
    api.provider.delete_files(ended())
    assert api.calls == [("DELETE", "/v1beta/files/in"), ("DELETE", "/v1beta/batches/b1")]
    Api(in_turn(refused("PERMISSION_DENIED", 403), refused("NOT_FOUND", 404))).provider.delete_files(ended())
    inline = read_batch(operation("SUCCEEDED", done=True), INLINE.refs)
    api = Api(always({}))
    api.provider.delete_files(inline)
    assert api.calls == [("DELETE", "/v1beta/batches/b1")]
    with pytest.raises(RejectedError):
        Api(lambda request: refused("PERMISSION_DENIED", 403)).provider.delete_files(inline)


# Realtime


def test_complete() -> None:
    """The same request, with the realtime schema field, once; the reply as an outcome without a custom_id."""
    api = Api(always({**ROWS[0]["response"], "usageMetadata": {"promptTokenCount": 3}}))
    found = api.provider.complete(
        RequestTemplate("m", system="S", schema={"type": "object"}), "Hi", extras=["response"]
    )
    assert api.calls == [("POST", "/v1beta/models/m:generateContent")]
    (request,) = api.requests
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {
        "systemInstruction": {"role": "user", "parts": [{"text": "S"}]},
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }
    assert (found.custom_id, found.kind, found.text, found.input_tokens) == ("", OutcomeKind.ANSWER, "yes", 3)
    assert found.response is not None


def test_a_realtime_answer_with_half_a_surrogate_pair_is_kept() -> None:
    """It was paid for."""
    content = b'{"candidates":[{"content":{"parts":[{"text":"yes\\ud800"}]},"finishReason":"STOP"}]}'
    found = Api(lambda request: httpx.Response(200, content=content)).provider.complete(TEMPLATE, "Hi")
    assert (found.kind, found.text) == (OutcomeKind.ANSWER, "yes\ufffd")


@pytest.mark.parametrize("failure", [httpx.ReadTimeout("x"), refused("UNAVAILABLE", 503), refused("NOT_FOUND", 404)])
def test_a_realtime_call_is_sent_once(failure: Any) -> None:
    """A reply that is lost may have been billed."""
    api = Api(in_turn(failure))
    with pytest.raises(ProviderError):
        api.provider.complete(TEMPLATE, "Hi")
    assert len(api.requests) == 1


# Ours only


def test_handles_of_others_are_refused() -> None:
    """No call is made for a batch of another provider."""
    api = Api(always({}))
    foreign = BatchHandle("openai", "batch_1")
    status = BatchStatus(foreign, BatchState.COMPLETED, "completed", result_refs={"responsesFile": "files/out"})
    calls: list[Callable[[], Any]] = [
        lambda: api.provider.status(foreign),
        lambda: api.provider.cancel(foreign),
        lambda: list(api.provider.outcomes(status)),
        lambda: api.provider.delete_files(status),
    ]
    for call in calls:
        with pytest.raises(ProviderMismatchError):
            call()
    assert api.requests == []


def test_the_key_is_in_no_representation() -> None:
    """Printing the provider, its parts or its statuses shows no key."""
    provider = Api(always({})).provider
    assert SECRET not in f"{provider!r}{vars(provider)!r}{vars(provider._http)!r}{ended()!r}"
    provider.close()


# Groups


def test_groups() -> None:
    """One model a batch, which stands in its address; each request brings its own schema, system prompt and parameters."""
    group = Api(always({})).provider.group
    alike = [
        TEMPLATE,
        RequestTemplate("gemini-2.5-flash", schema=SCHEMA),
        RequestTemplate("gemini-2.5-flash", schema={**SCHEMA, "required": []}, schema_name="x"),
        RequestTemplate("gemini-2.5-flash", system="S", params={"temperature": 0}),
    ]
    assert len({group(template) for template in alike}) == 1
    assert group(RequestTemplate("gemini-2.5-pro")) != group(TEMPLATE)
