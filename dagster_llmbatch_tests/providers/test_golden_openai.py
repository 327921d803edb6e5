"""Our requests beside those of the official `openai` client for the same intent, field by field."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, TextPart, base64_text
from dagster_llmbatch.providers.contract import RequestTemplate, Uploaded
from dagster_llmbatch.providers.openai import KEY, OpenAIBatchProvider
from dagster_llmbatch.providers.openai_requests import CHAT, RESPONSES
from dagster_llmbatch.providers.openrouter import OpenRouterBatchProvider

openai = pytest.importorskip("openai")

KEY_SENT = "sk-golden"
BASES = {"openai": "https://api.openai.com/v1", "openrouter": "https://openrouter.ai/api/v1"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PNG, PDF = b"\x89PNG\r\n", b"%PDF-1.7\n"
PNG_URI = f"data:image/png;base64,{base64_text(PNG)}"
PDF_URI = f"data:application/pdf;base64,{base64_text(PDF)}"
TEMPLATE = RequestTemplate("gpt-5-mini")
PARTS: Content = (
    TextPart("What is it?"),
    ImagePart(url="https://x.test/a.png"),
    ImagePart(data=PNG, media_type="image/png"),
    DocumentPart(data=PDF, filename="a.pdf"),
)
REPLIES = {
    "files": {"id": "file-1", "object": "file", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "batch"},
    "batches": {"id": "batch_1", "object": "batch", "status": "validating"},
    "responses": {"id": "resp_1", "object": "response", "status": "completed", "output": []},
    "completions": {"id": "c", "object": "chat.completion", "choices": []},
}


class Wire:
    """Answers every request and notes it."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return httpx.Response(200, json=REPLIES[request.url.path.rsplit("/", 1)[-1]])

    def last(self) -> "tuple[str, str, str, Any]":
        """(method, address, authorization, JSON body) of the last request."""
        request = self.requests[-1]
        return request.method, str(request.url), request.headers["authorization"], json.loads(request.content)


def official(wire: Wire, provider: str = "openai") -> Any:
    """The official client over that wire."""
    client = httpx.Client(transport=wire.transport)
    return openai.OpenAI(api_key=KEY_SENT, base_url=BASES[provider], http_client=client, max_retries=0)


def ours(wire: Wire, endpoint: str = RESPONSES) -> OpenAIBatchProvider:
    """Our client over that wire."""
    return OpenAIBatchProvider(api_key=KEY_SENT, endpoint=endpoint, transport=wire.transport)


def fields(request: httpx.Request) -> "dict[str, tuple[str | None, bytes]]":
    """(filename, content) by field name of a multipart body."""
    boundary = request.headers["content-type"].split("boundary=")[1].encode()
    found = {}
    for part in request.content.split(b"--" + boundary)[1:-1]:
        head, content = part.strip(b"\r\n").split(b"\r\n\r\n", 1)
        names = dict(pair.split("=") for pair in head.decode().split("\r\n")[0].split("; ")[1:])
        found[names["name"].strip('"')] = (names.get("filename", "").strip('"') or None, content)
    return found


def test_the_upload(tmp_path: Path) -> None:
    """The same address and the same two fields."""
    lines = tmp_path / "llmb-1.jsonl"
    lines.write_bytes(b'{"a":1}\n{"b":2}')
    wire = Wire()
    official(wire).files.create(file=lines, purpose="batch")
    ours(wire).upload(lines, external_key="llmb-1")
    theirs, mine = wire.requests
    assert (theirs.method, theirs.url) == (mine.method, mine.url)
    assert fields(theirs) == fields(mine)
    assert set(fields(mine)) == {"purpose", "file"}


@pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
def test_the_create(endpoint: Any) -> None:
    """The same call, to the byte's meaning."""
    wire = Wire()
    official(wire).batches.create(
        input_file_id="file-1", endpoint=endpoint, completion_window="24h", metadata={KEY: "llmb-1"}
    )
    expected = wire.last()
    uploaded = Uploaded({"input_file_id": "file-1"})
    ours(wire, endpoint).create(Path("unused"), uploaded, template=TEMPLATE, external_key="llmb-1")
    assert wire.last() == expected


PARAMS = {"max_output_tokens": 50, "temperature": 0.5, "reasoning": {"effort": "low"}}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
RESPONSES_INTENTS: "list[tuple[str, RequestTemplate, Content, dict[str, Any]]]" = [
    ("plain", TEMPLATE, "Hi", {"input": [{"role": "user", "content": "Hi"}]}),
    (
        "system",
        RequestTemplate("gpt-5-mini", system="Be brief."),
        "Hi",
        {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    ),
    (
        "params",
        RequestTemplate("gpt-5-mini", params=PARAMS),
        "Hi",
        {**PARAMS, "input": [{"role": "user", "content": "Hi"}]},
    ),
    (
        "schema",
        RequestTemplate("gpt-5-mini", schema=SCHEMA),
        "Hi",
        {"text": {"format": FORMAT}, "input": [{"role": "user", "content": "Hi"}]},
    ),
    (
        "parts",
        TEMPLATE,
        (*PARTS, DocumentPart(url="https://x.test/b.pdf")),
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is it?"},
                        {"type": "input_image", "image_url": "https://x.test/a.png", "detail": "auto"},
                        {"type": "input_image", "image_url": PNG_URI, "detail": "auto"},
                        {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URI},
                        {"type": "input_file", "file_url": "https://x.test/b.pdf"},
                    ],
                }
            ]
        },
    ),
]


@pytest.mark.parametrize(
    ("template", "prompt", "intent"), [i[1:] for i in RESPONSES_INTENTS], ids=[i[0] for i in RESPONSES_INTENTS]
)
def test_responses(template: RequestTemplate, prompt: Content, intent: "dict[str, Any]") -> None:
    """A realtime call is the official one, and a batch line holds the same body; nothing is stored unasked."""
    wire = Wire()
    official(wire).responses.create(model="gpt-5-mini", store=False, **intent)
    expected = wire.last()
    provider = ours(wire)
    provider.complete(template, prompt)
    assert wire.last() == expected
    line = json.loads(provider.encoder(template).line("r-1", prompt))
    assert line == {"custom_id": "r-1", "method": "POST", "url": RESPONSES, "body": expected[3]}


CHAT_PARTS = [
    {"type": "text", "text": "What is it?"},
    {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
    {"type": "image_url", "image_url": {"url": PNG_URI}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URI}},
]
CHAT_PARAMS = {"max_tokens": 50, "temperature": 0.5, "seed": 7}
CHAT_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CHAT_INTENTS: "list[tuple[str, dict[str, Any], Content, dict[str, Any]]]" = [
    ("plain", {}, "Hi", {"messages": [{"role": "user", "content": "Hi"}]}),
    (
        "system",
        {"system": "Be brief."},
        "Hi",
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    ),
    ("params", {"params": CHAT_PARAMS}, "Hi", {**CHAT_PARAMS, "messages": [{"role": "user", "content": "Hi"}]}),
    (
        "schema",
        {"schema": SCHEMA},
        "Hi",
        {"response_format": CHAT_FORMAT, "messages": [{"role": "user", "content": "Hi"}]},
    ),
    ("parts", {}, PARTS, {"messages": [{"role": "user", "content": CHAT_PARTS}]}),
]
chat_intents = pytest.mark.parametrize(
    ("given", "prompt", "intent"), [i[1:] for i in CHAT_INTENTS], ids=[i[0] for i in CHAT_INTENTS]
)


@chat_intents
def test_chat_completions(given: "dict[str, Any]", prompt: Content, intent: "dict[str, Any]") -> None:
    """The same, to the endpoint that compatible servers have."""
    wire = Wire()
    official(wire).chat.completions.create(model="gpt-5-mini", **intent)
    expected = wire.last()
    provider, template = ours(wire, CHAT), RequestTemplate("gpt-5-mini", **given)
    provider.complete(template, prompt)
    assert wire.last() == expected
    line = json.loads(provider.encoder(template).line("r-1", prompt))
    assert line == {"custom_id": "r-1", "method": "POST", "url": CHAT, "body": expected[3]}


@chat_intents
def test_openrouter(given: "dict[str, Any]", prompt: Content, intent: "dict[str, Any]") -> None:
    """OpenRouter's realtime call is the official client's at its address, and with a schema asks for providers that keep it."""
    wire = Wire()
    extra = {"extra_body": {"provider": {"require_parameters": True}}} if "schema" in given else {}
    official(wire, "openrouter").chat.completions.create(model="vendor/m", **intent, **extra)
    expected = wire.last()
    provider = OpenRouterBatchProvider(api_key=KEY_SENT, transport=wire.transport)
    provider.complete(RequestTemplate("vendor/m", **given), prompt)
    assert wire.last() == expected
