"""Requests compared with what the official `anthropic` SDK sends for the same intent, field by field.

Two headers differ on purpose: anthropic-version is the one whose answers are read here, and the key goes in x-api-key,
which belongs to it (the SDK sends a bearer token since it speaks a later version).
"""

import base64
import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.providers.anthropic import VERSION, AnthropicBatchProvider
from dagster_llmbatch.providers.anthropic_requests import MAX_TOKENS
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, TextPart
from dagster_llmbatch.providers.contract import RequestTemplate

anthropic = pytest.importorskip("anthropic")
# the SDK's HTTP client is httpx in some versions and another package of the same form in others
sdk_http = importlib.import_module(anthropic.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

KEY = "sk-ant-golden"
MODEL = "claude-haiku-4-5"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PNG, PDF = b"\x89PNG\r\n\x1a\n\x00", b"%PDF-1.7\n"


@dataclass
class Intent:
    """One thing wanted, said to us and to the SDK."""

    template: RequestTemplate = field(default_factory=lambda: RequestTemplate(MODEL))
    prompt: Content = "Hello"
    sdk: "dict[str, Any]" = field(default_factory=dict)
    """Arguments of `messages.create`, beside model, max_tokens and messages."""
    content: Any = "Hello"
    """What the SDK is given as the message's content."""
    max_tokens: int = MAX_TOKENS
    betas: "tuple[str, ...]" = ()


def _block(kind: str, **source: str) -> "dict[str, Any]":
    return {"type": kind, "source": source}


def _base64(media_type: str, data: bytes) -> "dict[str, str]":
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}


TOOL = {"name": "t", "input_schema": {"type": "object", "properties": {}}}
CACHED = [{"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}
INTENTS = {
    "plain": Intent(),
    "not ascii": Intent(prompt='Zoë said "\u2028" \U0001f600\n', content='Zoë said "\u2028" \U0001f600\n'),
    "system": Intent(RequestTemplate(MODEL, system="Be brief."), sdk={"system": "Be brief."}),
    "cached system": Intent(RequestTemplate(MODEL, params={"system": CACHED}), sdk={"system": CACHED}),
    "params": Intent(
        RequestTemplate(
            MODEL, params={"max_tokens": 50, "metadata": {"user_id": "u"}, "tools": [TOOL], "stop_sequences": ["x"]}
        ),
        sdk={"metadata": {"user_id": "u"}, "tools": [TOOL], "stop_sequences": ["x"]},
        max_tokens=50,
    ),
    "schema": Intent(RequestTemplate(MODEL, schema=SCHEMA), sdk={"output_config": FORMAT}),
    "schema and effort": Intent(
        RequestTemplate(MODEL, schema=SCHEMA, params={"output_config": {"effort": "low"}}),
        sdk={"output_config": {"effort": "low", **FORMAT}},
    ),
    "image by url": Intent(
        prompt=(TextPart("What is it?"), ImagePart(url="https://example.com/a.png")),
        content=[
            {"type": "text", "text": "What is it?"},
            _block("image", type="url", url="https://example.com/a.png"),
        ],
    ),
    "image by bytes": Intent(
        prompt=(ImagePart(data=PNG, media_type="image/png"), TextPart("What is it?")),
        content=[_block("image", **_base64("image/png", PNG)), {"type": "text", "text": "What is it?"}],
    ),
    "pdf by url": Intent(
        prompt=(DocumentPart(url="https://example.com/a.pdf", filename="a.pdf"), TextPart("Sum up.")),
        content=[
            {**_block("document", type="url", url="https://example.com/a.pdf"), "title": "a.pdf"},
            {"type": "text", "text": "Sum up."},
        ],
    ),
    "pdf by bytes": Intent(
        prompt=(DocumentPart(data=PDF, filename="a.pdf"), TextPart("Sum up.")),
        content=[
            {**_block("document", **_base64("application/pdf", PDF)), "title": "a.pdf"},
            {"type": "text", "text": "Sum up."},
        ],
    ),
    "betas": Intent(
        RequestTemplate(MODEL, params={"betas": ["b-two-2026-02-02", "a-one-2026-01-01"]}),
        betas=("a-one-2026-01-01", "b-two-2026-02-02"),
    ),
}
every_intent = pytest.mark.parametrize("intent", INTENTS.values(), ids=INTENTS.keys())
REPLY = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": MODEL, "usage": {}}
BATCH = {"id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress", "request_counts": {}}


def sdk_request(intent: Intent, *, batch: bool) -> Any:
    """The one request that the SDK sends."""
    sent: list[Any] = []

    def answer(request: Any) -> Any:
        request.read()
        sent.append(request)
        return sdk_http.Response(200, json=BATCH if batch else REPLY)

    http = sdk_http.Client(transport=sdk_http.MockTransport(answer))
    client = anthropic.Anthropic(api_key=KEY, base_url="https://api.anthropic.com", http_client=http, max_retries=0)
    messages = client.beta.messages if intent.betas else client.messages
    betas = {"betas": list(intent.betas)} if intent.betas else {}
    said = [{"role": "user", "content": intent.content}]
    body = {"model": MODEL, "max_tokens": intent.max_tokens, "messages": said, **intent.sdk}
    if batch:
        messages.batches.create(requests=[{"custom_id": c, "params": body} for c in ("r-1", "r-2")], **betas)
    else:
        messages.create(**body, **betas)
    (request,) = sent
    return request


def our_request(intent: Intent, folder: Path, *, batch: bool) -> httpx.Request:
    """The one request that we send."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        sent.append(request)
        return httpx.Response(200, json=BATCH if batch else REPLY)

    provider = AnthropicBatchProvider(api_key=KEY, transport=httpx.MockTransport(answer))
    if batch:
        encoder, path = provider.encoder(intent.template), folder / "lines"
        path.write_bytes(b"".join(encoder.line(c, intent.prompt) for c in ("r-1", "r-2")))
        uploaded = provider.upload(path, external_key="k")
        provider.create(path, uploaded, template=intent.template, external_key="k")
    else:
        provider.complete(intent.template, intent.prompt)
    (request,) = sent
    return request


def _told(request: Any) -> "dict[str, Any]":
    """What counts of a request. Beta names are a set; the SDK may add the query that says beta."""
    betas = request.headers.get("anthropic-beta", "")
    return {
        "method": request.method,
        "host": request.url.host,
        "path": request.url.path,
        "content-type": request.headers["content-type"],
        "content-length": request.headers["content-length"] == str(len(request.content)),
        "transfer-encoding": request.headers.get("transfer-encoding"),
        "betas": {name for name in betas.split(",") if name and not name.startswith("message-batches")},
        "body": json.loads(request.content),
    }


@every_intent
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "realtime"])
def test_the_same_request_as_the_sdk(intent: Intent, batch: bool, tmp_path: Path) -> None:
    """Method, address, length, betas and the whole body are what the SDK sends."""
    ours, theirs = our_request(intent, tmp_path, batch=batch), sdk_request(intent, batch=batch)
    assert _told(ours) == _told(theirs)
    assert _told(ours)["betas"] == set(intent.betas)


@pytest.mark.parametrize("batch", [True, False], ids=["batch", "realtime"])
def test_the_headers_that_differ(batch: bool, tmp_path: Path) -> None:
    """The key travels in one header only, and the version is the one whose shapes were recorded."""
    ours, theirs = our_request(Intent(), tmp_path, batch=batch), sdk_request(Intent(), batch=batch)
    assert ours.headers["x-api-key"] == KEY
    assert "authorization" not in ours.headers
    assert KEY in (theirs.headers.get("x-api-key"), theirs.headers.get("authorization", "").removeprefix("Bearer "))
    assert ours.headers["anthropic-version"] == VERSION == "2023-06-01"
