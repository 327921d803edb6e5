"""Recorded traffic of Anthropic's: every file is read, and means what its recording shows.

Files are looked for beside the repository, in `../shared/recorded`, or where LLMBATCH_RECORDED points.
"""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    BatchNotFoundError,
    BatchUnprovenError,
    ProviderError,
    RateLimitedError,
    RejectedError,
)
from dagster_llmbatch.providers.anthropic import REQUEST_COUNT, AnthropicBatchProvider, read_batch
from dagster_llmbatch.providers.anthropic_rows import classify, read_message, read_row
from dagster_llmbatch.providers.contract import (
    EXTRAS,
    BatchHandle,
    BatchState,
    ErrorCategory,
    Outcome,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.lines import split_lines

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LLMBATCH_RECORDED") or ROOT.parent / "shared" / "recorded") / "anthropic"
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []
ROWS = FOLDER / "captured_and_documented_rows.jsonl"

pytestmark = pytest.mark.skipif(not FILES, reason="no recorded traffic (set LLMBATCH_RECORDED)")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
STATES = {"in_progress": BatchState.RUNNING, "canceling": BatchState.CANCELLING, "ended": BatchState.COMPLETED}
CATEGORIES = {
    "realtime_auth_error": ErrorCategory.AUTH,
    "realtime_404_model": ErrorCategory.CLIENT_ERROR,
    "realtime_context_overflow": ErrorCategory.CONTEXT_OVERFLOW,
    "realtime_400_unsupported_effort": ErrorCategory.CLIENT_ERROR,
}
"""What the recorded errors of realtime calls mean, by file."""


def recorded(path: Path) -> Any:
    """A file's content."""
    return json.loads(path.read_text("utf-8"))


def exchanges(path: Path) -> "list[dict[str, Any]]":
    """The exchanges of a file, none where it holds something else."""
    found = recorded(path)
    return found if isinstance(found, list) else []


def at(path: Path, ending: str, method: str) -> "Iterator[dict[str, Any]]":
    """The exchanges of a file with one method, whose address ends so."""
    for exchange in exchanges(path):
        if exchange["request"]["method"] == method and url_path(exchange).endswith(ending):
            yield exchange


def url_path(exchange: "dict[str, Any]") -> str:
    """The path asked for."""
    return httpx.URL(exchange["request"]["url"]).path


def content_of(body: Any) -> bytes:
    """A recorded body as the bytes it stood for."""
    return body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode()


def served(exchange: "dict[str, Any]") -> AnthropicBatchProvider:
    """A provider that gets one recorded answer to everything."""
    answer = exchange["response"]
    headers = {k: v for k, v in answer["headers"].items() if k != "content-encoding"}
    transport = httpx.MockTransport(
        lambda request: httpx.Response(answer["status"], content=content_of(answer["body"]), headers=headers)
    )
    return AnthropicBatchProvider(api_key="k", transport=transport, sleep=lambda seconds: None)


def check_reply(outcome: Outcome, message: "dict[str, Any]") -> None:
    """An outcome says what its recorded reply says. No recording was cut off, refused or cached."""
    texts = [block["text"] for block in message["content"] if block["type"] == "text"]
    thoughts = [block["thinking"] for block in message["content"] if block["type"] == "thinking"]
    assert (outcome.kind, outcome.text) == (OutcomeKind.ANSWER, "".join(texts))
    assert (outcome.model, outcome.finish_reason) == (message["model"], message["stop_reason"])
    usage = message["usage"]
    assert usage["cache_creation_input_tokens"] == usage["cache_read_input_tokens"] == 0
    assert (outcome.input_tokens, outcome.output_tokens) == (usage["input_tokens"], usage["output_tokens"])
    assert (outcome.cached_tokens, outcome.cache_write_tokens) == (0, 0)
    assert outcome.cache_write_1h_tokens == (0 if "cache_creation" in usage else None)
    assert outcome.reasoning_tokens == usage.get("output_tokens_details", {}).get("thinking_tokens")
    assert (outcome.reasoning or "") == "\n\n".join(thoughts).strip()
    assert json.loads(outcome.response or "") == message


@every_file
def test_every_file_holds_something_we_read(path: Path) -> None:
    """No recording is passed over: each has batches, results, replies or errors."""
    if not exchanges(path):
        assert recorded(path)["results"]
    for exchange in exchanges(path):
        assert url_path(exchange).startswith("/v1/messages")


@every_file
def test_batch_objects(path: Path) -> None:
    """Every batch object, of every age, is read without an unknown state, and its counts and times are kept."""
    found = exchanges(path)
    bodies = [e["response"]["body"] for e in found] if found else [recorded(path)["batch"]]
    for body in [b for b in bodies if isinstance(b, dict) and b.get("type") == "message_batch"]:
        status = read_batch(body)
        assert status.handle == BatchHandle("anthropic", body["id"])
        assert status.state is STATES[body["processing_status"]]
        assert status.total == sum(body["request_counts"].values())
        assert status.completed == body["request_counts"]["succeeded"]
        assert status.created_at == datetime.fromisoformat(body["created_at"]).timestamp()
        assert status.expires_at == pytest.approx(status.created_at + 86_400)
        assert (status.ended_at is not None) == status.state.ended
        assert ("results_url" in status.result_refs) == status.state.ended


@every_file
def test_result_files(path: Path) -> None:
    """Every line of every download is an answer under its own custom_id, with its text, model and tokens."""
    for exchange in at(path, "/results", "GET"):
        lines = [json.loads(line) for line in split_lines([content_of(exchange["response"]["body"])])]
        status = read_batch({"id": url_path(exchange).split("/")[-2], "processing_status": "ended"})
        found = list(served(exchange).outcomes(status, extras=EXTRAS))
        assert [o.custom_id for o in found] == [line["custom_id"] for line in lines]
        for outcome, line in zip(found, lines, strict=True):
            check_reply(outcome, line["result"]["message"])


def test_results_without_their_lines() -> None:
    """One recording holds bare results: put into lines, all are answers."""
    for result in recorded(FOLDER / "ellmer_sonnet-5_capitals.json")["results"]:
        found = read_row(content_of({"custom_id": "x", "result": result}), EXTRAS)
        assert found is not None
        check_reply(found, result["message"])


@every_file
def test_realtime_replies(path: Path) -> None:
    """A recorded reply is an answer, also one that carries retry-after."""
    for exchange in at(path, "/v1/messages", "POST"):
        if exchange["response"]["status"] == 200:
            found = served(exchange).complete(RequestTemplate("m"), "x", extras=EXTRAS)
            check_reply(found, exchange["response"]["body"])
            assert found == read_message(exchange["response"]["body"], EXTRAS)


@every_file
def test_realtime_errors(path: Path) -> None:
    """A recorded error has its category, the provider's code, and none of its text; none passes by itself."""
    for exchange in at(path, "/v1/messages", "POST"):
        if exchange["response"]["status"] == 200:
            continue
        with pytest.raises(RejectedError) as caught:
            served(exchange).complete(RequestTemplate("m"), "x")
        error = exchange["response"]["body"]["error"]
        assert caught.value.category == CATEGORIES[path.stem].value
        assert caught.value.code == error["type"]
        assert error["message"] not in str(caught.value)
        assert not caught.value.retryable


@every_file
def test_creates_and_cancels(path: Path, tmp_path: Path) -> None:
    """The recorded answers to a create of as many requests, and to a cancel, are batches."""
    for exchange in at(path, "/batches", "POST"):
        lines = tmp_path / "lines"
        sent = exchange["request"]["body"]["requests"]
        lines.write_bytes(b"".join(json.dumps(request).encode() + b"\n" for request in sent))
        provider = served(exchange)
        uploaded = provider.upload(lines, external_key="k")
        assert uploaded == Uploaded({REQUEST_COUNT: str(len(sent))})
        status = provider.create(lines, uploaded, template=RequestTemplate("m"), external_key="k")
        assert (status.state, status.total) == (BatchState.RUNNING, len(sent))
    for exchange in at(path, "/cancel", "POST"):
        status = served(exchange).cancel(BatchHandle("anthropic", exchange["response"]["body"]["id"]))
        assert status.state is BatchState.CANCELLING


@every_file
def test_recorded_batches_are_found_again(path: Path) -> None:
    """By time, size and results, in a list made of the recorded object: unproven while it ran, ours after its end."""
    downloads = list(at(path, "/results", "GET"))
    for exchange in exchanges(path):
        body = exchange["response"]["body"]
        if not isinstance(body, dict) or body.get("type") != "message_batch":
            continue
        results = content_of(downloads[0]["response"]["body"]) if downloads else b""
        custom_ids = [json.loads(line)["custom_id"] for line in split_lines([results])]
        total = sum(body["request_counts"].values())

        def answer(request: httpx.Request, body: Any = body, results: bytes = results) -> httpx.Response:
            if request.url.path.endswith("/results"):
                return httpx.Response(200, content=results)
            return httpx.Response(200, json={"data": [body], "has_more": False, "last_id": body["id"]})

        provider = AnthropicBatchProvider(api_key="k", transport=httpx.MockTransport(answer))
        since = datetime.fromisoformat(body["created_at"]).timestamp() - 1
        search = Search("k", Uploaded({REQUEST_COUNT: str(total)}), since, custom_ids)
        if body["processing_status"] == "ended":
            assert provider.find(search) == read_batch(body)
        else:
            with pytest.raises(BatchUnprovenError):
                provider.find(search)


def test_captured_and_documented_rows() -> None:
    """Rows seen in the field or in the docs, in the file's order."""
    entries = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]
    rows = [entry["row"] for entry in entries if "row" in entry]
    found = [read_row(content_of(row)) for row in rows]
    assert [o and (o.custom_id, o.kind, o.error_category, o.retryable) for o in found] == [
        ("ok-1", OutcomeKind.ANSWER, None, False),
        ("bad-model", OutcomeKind.PROVIDER_ERROR, ErrorCategory.CLIENT_ERROR, False),
        ("image_url", OutcomeKind.PROVIDER_ERROR, ErrorCategory.CLIENT_ERROR, False),
        ("23", OutcomeKind.PROVIDER_ERROR, ErrorCategory.CLIENT_ERROR, False),
        ("c-1", OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False),
        ("e-1", OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True),
    ]
    assert [o and o.error_code for o in found[1:4]] == [
        "not_found_error",
        "invalid_request_error",
        "invalid_request_error",
    ]


def test_captured_error_answers() -> None:
    """Error answers seen in the field, in the file's order, with the wait that the 429 asks for."""
    http = ProviderHttp("anthropic", base_url="https://api.test", headers={}, classify=classify, timeout=1.0)
    errors: list[ProviderError] = []
    for entry in (json.loads(line) for line in ROWS.read_text("utf-8").splitlines()):
        if "body" in entry:
            response = httpx.Response(entry["status"], headers=entry.get("headers"), content=content_of(entry["body"]))
            errors.append(http.error(response))
            assert entry["body"]["error"]["message"] not in str(errors[-1])
    assert [(type(error), error.category) for error in errors] == [
        (RejectedError, "auth"),
        (BatchNotFoundError, "client_error"),
        (BatchNotFoundError, "client_error"),
        (RejectedError, "client_error"),
        (RejectedError, "client_error"),
        (RejectedError, "client_error"),
        (RateLimitedError, "rate_limit"),
    ]
    assert errors[-1].retry_after == 23
    http.close()
