"""Golden requests: what we send is what Google's own SDK sends for the same intent, field by field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types

from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, TextPart
from dagster_llmbatch.providers.contract import BatchHandle, RequestTemplate
from dagster_llmbatch.providers.gemini import GeminiBatchProvider
from dagster_llmbatch.providers.gemini_requests import GeminiEncoder

UPLOAD = "https://generativelanguage.googleapis.com/upload/v1beta/files?upload_id=u"
OPENAPI = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}, "required": ["a"]}
JSON_SCHEMA = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
SAFETY = [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]
PARTS: Content = (
    ImagePart(data=b"\x89PNG", media_type="image/png"),
    DocumentPart(data=b"%PDF"),
    DocumentPart(url="https://x.test/a.pdf"),
    TextPart("Hi"),
)
SDK_PARTS: "list[Any]" = [
    types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png"),
    types.Part.from_bytes(data=b"%PDF", mime_type="application/pdf"),
    types.Part.from_uri(file_uri="https://x.test/a.pdf", mime_type="application/pdf"),
    types.Part.from_text(text="Hi"),
]
Sent = list[httpx.Request]


@pytest.fixture
def sent() -> Sent:
    """Requests that were sent, by whichever client."""
    return []


@pytest.fixture
def transport(sent: Sent) -> httpx.MockTransport:
    """A server that both clients are content with."""

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        sent.append(request)
        if request.headers.get("x-goog-upload-command") == "start":
            return httpx.Response(200, headers={"x-goog-upload-url": UPLOAD}, json={})
        if "upload_id" in request.url.params:
            return httpx.Response(200, headers={"x-goog-upload-status": "final"}, json={"file": {"name": "files/in"}})
        reply = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}]}
        return httpx.Response(200, json={"name": "batches/b1", **reply})

    return httpx.MockTransport(answer)


@pytest.fixture
def sdk(transport: httpx.MockTransport) -> genai.Client:
    """Google's client."""
    options = types.HttpOptions(httpx_client=httpx.Client(transport=transport), api_version="v1beta")
    return genai.Client(api_key="k", http_options=options)


@pytest.fixture
def ours(transport: httpx.MockTransport) -> "Callable[..., GeminiBatchProvider]":
    """Our client, with options."""
    return lambda **options: GeminiBatchProvider(api_key="k", transport=transport, **options)


def wire(value: Any) -> Any:
    """JSON as the API reads it: the SDK leaves some names in snake_case, and sends settings that are empty."""
    if isinstance(value, dict):
        found = {camel(name): wire(held) for name, held in value.items()}
        return {name: held for name, held in found.items() if (name, held) != ("generationConfig", {})}
    return [wire(held) for held in value] if isinstance(value, list) else value


def camel(name: str) -> str:
    """A name as in the API's reference."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def body(request: httpx.Request) -> Any:
    """A request's JSON."""
    return wire(json.loads(request.content))


def same(theirs: httpx.Request, mine: httpx.Request, *headers: str) -> None:
    """Method, address, key, body and the named headers."""
    assert (mine.method, mine.url) == (theirs.method, theirs.url)
    for name in ("content-type", "x-goog-api-key", *headers):
        assert mine.headers[name] == theirs.headers[name]
    assert body(mine) == body(theirs)


INTENTS: "list[tuple[str, RequestTemplate, Content, Any, dict[str, Any]]]" = [
    ("plain", RequestTemplate("gemini-x"), "Hi", "Hi", {}),
    ("system", RequestTemplate("gemini-x", system="S"), "Hi", "Hi", {"system_instruction": "S"}),
    (
        "params",
        RequestTemplate(
            "gemini-x",
            params={
                "temperature": 0.5,
                "maxOutputTokens": 9,
                "thinking_config": {"thinkingBudget": 0},
                "generationConfig": {"topK": 3, "seed": 7},
                "safetySettings": SAFETY,
                "tools": [{"googleSearch": {}}],
                "cachedContent": "cachedContents/c",
            },
        ),
        "Hi",
        "Hi",
        {
            "temperature": 0.5,
            "max_output_tokens": 9,
            "thinking_config": {"thinking_budget": 0},
            "top_k": 3,
            "seed": 7,
            "safety_settings": SAFETY,
            "tools": [{"google_search": {}}],
            "cached_content": "cachedContents/c",
        },
    ),
    ("parts", RequestTemplate("gemini-x"), PARTS, SDK_PARTS, {}),
]
intents = pytest.mark.parametrize(
    ("template", "prompt", "contents", "config"), [i[1:] for i in INTENTS], ids=[i[0] for i in INTENTS]
)


@intents
def test_generate_content(
    template: RequestTemplate,
    prompt: Content,
    contents: Any,
    config: "dict[str, Any]",
    sdk: genai.Client,
    ours: "Callable[..., GeminiBatchProvider]",
    sent: Sent,
) -> None:
    """Realtime calls of the same intent."""
    sdk.models.generate_content(model=template.model, contents=contents, config=types.GenerateContentConfig(**config))
    ours().complete(template, prompt)
    theirs, mine = sent
    same(theirs, mine)


def test_generate_content_with_a_schema(
    sdk: genai.Client, ours: "Callable[..., GeminiBatchProvider]", sent: Sent
) -> None:
    """Realtime calls take a JSON Schema."""
    config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=JSON_SCHEMA)
    sdk.models.generate_content(model="m", contents="Hi", config=config)
    ours().complete(RequestTemplate("m", schema=JSON_SCHEMA), "Hi")
    theirs, mine = sent
    same(theirs, mine)


@intents
@pytest.mark.parametrize("schema", [None, OPENAPI], ids=["text", "schema"])
def test_inline_batch(
    template: RequestTemplate,
    prompt: Content,
    contents: Any,
    config: "dict[str, Any]",
    schema: "dict[str, Any] | None",
    sdk: genai.Client,
    ours: "Callable[..., GeminiBatchProvider]",
    sent: Sent,
    tmp_path: Path,
) -> None:
    """Two requests with their keys in one create call."""
    shaped = RequestTemplate(template.model, template.system, template.params, schema)
    if schema:
        config = {**config, "response_mime_type": "application/json", "response_schema": schema}
    parts = [types.Part.from_text(text=contents)] if isinstance(contents, str) else contents
    requests = [
        types.InlinedRequest(
            contents=[types.Content(role="user", parts=parts)],
            metadata={"key": key},
            config=types.GenerateContentConfig(**config) if config else None,
        )
        for key in ("a", "b")
    ]
    sdk.batches.create(model=template.model, src=requests, config={"display_name": "llmb-1"})
    provider = ours(ingest="inline")
    path = tmp_path / "lines"
    encoder = provider.encoder(shaped)
    path.write_bytes(encoder.line("a", prompt) + encoder.line("b", prompt))
    provider.create(path, provider.upload(path, external_key="llmb-1"), template=shaped, external_key="llmb-1")
    theirs, mine = sent
    same(theirs, mine)


def test_file_batch(sdk: genai.Client, ours: "Callable[..., GeminiBatchProvider]", sent: Sent, tmp_path: Path) -> None:
    """The upload's two calls, and a create that names the file."""
    path = tmp_path / "lines"
    path.write_bytes(GeminiEncoder(RequestTemplate("m")).line("a", "Hi"))
    file = sdk.files.upload(file=path, config={"display_name": "llmb-1", "mime_type": "application/jsonl"})
    assert file.name is not None
    sdk.batches.create(model="m", src=file.name, config={"display_name": "llmb-1"})
    provider = ours(ingest="file")
    uploaded = provider.upload(path, external_key="llmb-1")
    provider.create(path, uploaded, template=RequestTemplate("m"), external_key="llmb-1")
    start, send, create, my_start, my_send, my_create = sent
    steps = ("x-goog-upload-protocol", "x-goog-upload-command")
    sizes = ("x-goog-upload-header-content-length", "x-goog-upload-header-content-type")
    same(start, my_start, *steps, *sizes)
    assert (my_send.method, my_send.url, my_send.content) == (send.method, send.url, send.content)
    for name in ("x-goog-upload-command", "x-goog-upload-offset", "content-length"):
        assert my_send.headers[name] == send.headers[name]
    same(create, my_create)


def test_look_cancel_and_delete(sdk: genai.Client, ours: "Callable[..., GeminiBatchProvider]", sent: Sent) -> None:
    """The addresses of a batch."""
    sdk.batches.cancel(name="batches/b1")
    sdk.batches.get(name="batches/b1")
    sdk.batches.delete(name="batches/b1")
    provider = ours()
    provider.delete_files(provider.cancel(BatchHandle("gemini", "batches/b1")))
    calls = [(request.method, request.url) for request in sent]
    assert calls[3:] == calls[:3]
