"""Recorded traffic of OpenRouter's: every exchange is read, and means what its recording shows.

Files are looked for beside the repository, in `../shared/recorded`, or where LLMBATCH_RECORDED points.
"""

import json
import os
from math import fsum
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    BatchNotFoundError,
    ProviderError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.contract import BatchHandle, BatchState, OutcomeKind, RequestTemplate, Search, Uploaded
from dagster_llmbatch.providers.openrouter import OpenRouterBatchProvider
from dagster_llmbatch.providers.openrouter_requests import OpenRouterEncoder

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LLMBATCH_RECORDED") or ROOT.parent / "shared" / "recorded") / "openrouter"
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason="no recorded traffic (set LLMBATCH_RECORDED)")
TEMPLATE = RequestTemplate("z-ai/glm-5.3")
NOW = 2e9


def exchanges() -> "list[dict[str, Any]]":
    """All recorded exchanges."""
    return [exchange for path in FILES for exchange in json.loads(path.read_text("utf-8"))]


def path_of(exchange: "dict[str, Any]") -> str:
    """An exchange's path, of the beta or not."""
    request = exchange["request"]
    return httpx.URL(request.get("path") or request["url"]).path.replace("/beta/", "/v1/")


def served(exchange: "dict[str, Any]") -> OpenRouterBatchProvider:
    """A provider that gets one recorded answer to everything."""
    answer = exchange["response"]
    body = answer["body"]
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(answer["status"], content=content))
    return OpenRouterBatchProvider(api_key="k", transport=transport, sleep=lambda seconds: None, now=lambda: NOW)


def chosen(method: str, end: str) -> "list[dict[str, Any]]":
    """Exchanges by method and a part of their path; there must be some."""
    found = [e for e in exchanges() if e["request"]["method"] == method and end in path_of(e)]
    assert found
    return found


def error_of(call: Any) -> ProviderError:
    """The error of a call."""
    with pytest.raises(ProviderError) as caught:
        call()
    return caught.value


def test_every_exchange_is_one_we_read() -> None:
    """No recording is passed over."""
    known = {("GET", "batches"), ("DELETE", "batches"), ("POST", "batches"), ("POST", "chat")}
    assert {(e["request"]["method"], path_of(e).split("/")[3]) for e in exchanges()} == known


def test_batch_objects() -> None:
    """States, counts and costs of every batch object; the recorded quota failure may pass."""
    states: dict[str, BatchState] = {}
    for exchange in chosen("GET", "/batches/"):
        body = exchange["response"]["body"]
        handle = BatchHandle("openrouter", body.get("id", "batch-gone"))
        if exchange["response"]["status"] == 404:
            provider = served(exchange)
            assert isinstance(error_of(lambda p=provider, h=handle: p.status(h)), BatchNotFoundError)
            young = BatchHandle("openrouter", "batch-gone", {"created_at": str(NOW - 200)})
            assert isinstance(error_of(lambda p=provider, h=young: p.status(h)), TransientProviderError)
            continue
        status = served(exchange).status(handle)
        states[status.provider_state] = status.state
        assert (status.total, status.completed) == tuple(body["request_counts"][n] for n in ("total", "completed"))
        assert status.cost_usd == (body.get("usage") or {}).get("cost")
        assert status.retryable is status.queue_full is (status.state is BatchState.FAILED)
    assert states == {
        "failed": BatchState.FAILED,
        "in_progress": BatchState.RUNNING,
        "completed": BatchState.COMPLETED,
    }


def completed() -> "dict[str, Any]":
    """The recorded exchange of a completed batch."""
    (found,) = [e for e in chosen("GET", "/batches/") if e["response"]["body"].get("status") == "completed"]
    return found


def test_results() -> None:
    """Text, model, tokens and finish of each result; their costs add up to the batch's, by their tokens."""
    exchange = completed()
    body = exchange["response"]["body"]
    provider = served(exchange)
    found = list(provider.outcomes(provider.status(BatchHandle("openrouter", body["id"])), extras=["response"]))
    assert [o.custom_id for o in found] == [r["custom_id"] for r in body["results"]]
    for outcome, result in zip(found, body["results"], strict=True):
        reply = result["response"]["body"]
        assert (outcome.kind, outcome.finish_reason) == (OutcomeKind.ANSWER, "stop")
        assert outcome.text == reply["choices"][0]["message"]["content"]
        assert outcome.model == reply["model"]
        assert (outcome.input_tokens, outcome.output_tokens) == (
            reply["usage"]["prompt_tokens"],
            reply["usage"]["completion_tokens"],
        )
        assert (outcome.cached_tokens, outcome.cache_write_tokens, outcome.reasoning_tokens) == (0, 0, 0)
        assert json.loads(outcome.response or "") == reply
    assert sum(o.input_tokens or 0 for o in found) == body["usage"]["prompt_tokens"]
    costs = [o.cost_usd or 0.0 for o in found]
    assert fsum(costs) == body["usage"]["cost"]
    assert costs[0] / costs[1] == pytest.approx(447 / 488)


def test_a_recorded_batch_is_proven() -> None:
    """In a list, it is ours where a custom id is ours, and another's where none is."""
    body = completed()["response"]["body"]

    def answer(request: httpx.Request) -> httpx.Response:
        page = {"data": [{**body, "results": None}], "has_more": False}
        return httpx.Response(200, json=page if request.url.path.endswith("/batches") else body)

    provider = OpenRouterBatchProvider(api_key="k", transport=httpx.MockTransport(answer))
    since = body["created_at"] - 5
    found = provider.find(Search("k", Uploaded({"request_bytes": "9"}), since, ["sign-of.v1", "clamp-value.v1"]))
    assert found is not None
    assert found.handle.batch_id == body["id"]
    assert provider.find(Search("k", Uploaded({"request_bytes": "9"}), since, ["a", "b"])) is None


def test_refused_creates(tmp_path: Path) -> None:
    """Both wordings of the refusal mean the same, and neither is quoted."""
    lines = tmp_path / "lines"
    lines.write_bytes(OpenRouterEncoder(TEMPLATE).line("r-1", "Hi"))
    creates = [e for e in chosen("POST", "/batches") if path_of(e).endswith("/batches")]
    assert len(creates) == 2
    for exchange in creates:
        provider = served(exchange)
        error = error_of(lambda p=provider: p.create(lines, Uploaded(), template=TEMPLATE, external_key="k"))
        assert type(error) is RejectedError
        assert error.code == "no_batch_endpoint"
        assert exchange["response"]["body"]["error"]["message"] not in str(error)


def test_deletes() -> None:
    """What the upstream provider cannot delete is OpenRouter's business."""
    done = completed()
    provider = served(done)
    status = provider.status(BatchHandle("openrouter", done["response"]["body"]["id"]))
    for exchange in chosen("DELETE", "/batches/"):
        served(exchange).delete_files(status)


def test_realtime() -> None:
    """A reply with its cost, and every error by its kind, sent once and not quoted."""
    kinds = {
        401: (RejectedError, "auth"),
        400: (RejectedError, "context_overflow"),
        402: (QuotaExhaustedError, "insufficient_balance"),
        429: (RateLimitedError, "rate_limit"),
    }
    seen = set()
    for exchange in chosen("POST", "/chat/completions"):
        status, body = exchange["response"]["status"], exchange["response"]["body"]
        seen.add(status)
        provider = served(exchange)
        if status == 200:
            found = provider.complete(TEMPLATE, "Hi")
            assert (found.kind, found.text) == (OutcomeKind.ANSWER, body["choices"][0]["message"]["content"])
            assert (found.cost_usd, found.model) == (body["usage"]["cost"], body["model"])
            assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (181, 12, 0)
            continue
        error = error_of(lambda p=provider: p.complete(TEMPLATE, "Hi"))
        assert (type(error), error.category) == kinds[status]
        assert body["error"]["message"] not in str(error)
    assert seen == {200, *kinds}


def test_the_recorded_schema_call_is_ours() -> None:
    """The body that worked, beside the one we send: ours asks for providers that keep the schema, and does not stream."""
    (exchange,) = [
        e for e in chosen("POST", "/chat/completions") if e["request"].get("body", {}).get("response_format")
    ]
    recorded = dict(exchange["request"]["body"])
    assert recorded.pop("stream") is False
    schema = recorded["response_format"]["json_schema"]
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=exchange["response"]["body"])

    template = RequestTemplate(recorded["model"], schema=schema["schema"], schema_name=schema["name"])
    provider = OpenRouterBatchProvider(api_key="k", transport=httpx.MockTransport(answer))
    provider.complete(template, recorded["messages"][0]["content"])
    assert sent == [{**recorded, "provider": {"require_parameters": True}}]
