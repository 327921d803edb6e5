"""Recorded traffic of OpenAI's: every file is read, and means what its recording shows.

Files are looked for beside the repository, in `../shared/recorded`, or where LLMBATCH_RECORDED points.
"""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import BatchNotFoundError, ProviderError, RejectedError
from dagster_llmbatch.providers.contract import (
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
from dagster_llmbatch.providers.openai import OpenAIBatchProvider
from dagster_llmbatch.providers.openai_batches import read_batch
from dagster_llmbatch.providers.openai_faults import classify
from dagster_llmbatch.providers.openai_rows import read_row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LLMBATCH_RECORDED") or ROOT.parent / "shared" / "recorded") / "openai"
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []
ROWS = FOLDER / "captured_and_documented_rows.jsonl"

pytestmark = pytest.mark.skipif(not FILES, reason="no recorded traffic (set LLMBATCH_RECORDED)")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def recorded(path: Path) -> Any:
    """A file's content."""
    return json.loads(path.read_text("utf-8"))


def exchanges(path: Path) -> "list[dict[str, Any]]":
    """The exchanges of a file, none where it holds something else."""
    found = recorded(path)
    return found if isinstance(found, list) else []


def content_of(body: Any) -> bytes:
    """A recorded body as the bytes it stood for."""
    return body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode()


def wrapped(body: Any, status: int) -> Outcome:
    """The outcome of a reply, put into a result row."""
    line = {"custom_id": "x", "response": {"status_code": status, "body": body}, "error": None}
    found = read_row(content_of(line))
    assert found is not None
    return found


def served(exchange: "dict[str, Any]") -> OpenAIBatchProvider:
    """A provider that gets one recorded answer to everything."""
    answer = exchange["response"]
    content = content_of(answer["body"])
    transport = httpx.MockTransport(lambda request: httpx.Response(answer["status"], content=content))
    return OpenAIBatchProvider(api_key="k", transport=transport, sleep=lambda seconds: None)


@every_file
def test_every_file_holds_something_we_read(path: Path) -> None:
    """No recording is passed over: each has batches, rows, replies, errors or uploads."""
    if not exchanges(path):
        assert recorded(path)["results"]
        return
    for exchange in exchanges(path):
        url = httpx.URL(exchange["request"]["url"]).path
        assert url.startswith(("/v1/files", "/v1/batches", "/v1/responses", "/v1/chat/completions"))


@every_file
def test_batch_objects(path: Path) -> None:
    """Every batch object, of every age, is read without an unknown state, and its counts and files are kept."""
    found = exchanges(path)
    bodies = [e["response"]["body"] for e in found] if found else [recorded(path)["batch"]]
    listed = [batch for body in bodies if isinstance(body, dict) for batch in body.get("data") or ()]
    batches = [body for body in [*bodies, *listed] if isinstance(body, dict) and body.get("object") == "batch"]
    for body in batches:
        status = read_batch(body, "openai")
        assert status.handle.batch_id == body["id"]
        assert status.state is not BatchState.UNKNOWN
        assert status.provider_state == body["status"]
        assert status.total == body["request_counts"]["total"]
        assert (status.created_at, status.expires_at) == (body["created_at"], body["expires_at"])
        given = {name: body[name] for name in ("output_file_id", "error_file_id") if body[name]}
        assert status.result_refs == given
        # a recording made while the batch ran has no end yet
        assert (status.ended_at is not None) == status.state.ended


@every_file
def test_result_files(path: Path) -> None:
    """Every line of every downloaded file has text, model and tokens under its own custom_id; one was cut off."""
    for exchange in exchanges(path):
        if not exchange["request"]["url"].endswith("/content"):
            continue
        content = content_of(exchange["response"]["body"])
        lines = [json.loads(line) for line in split_lines([content])]
        status = read_batch({"id": "b", "status": "completed", "output_file_id": "f"}, "openai")
        found = list(served(exchange).outcomes(status))
        assert [o.custom_id for o in found] == [line["custom_id"] for line in lines]
        for outcome, line in zip(found, lines, strict=True):
            body = line["response"]["body"]
            cut = any(choice["finish_reason"] == "length" for choice in body.get("choices") or ())
            assert outcome.kind is (OutcomeKind.TRUNCATED if cut else OutcomeKind.ANSWER)
            assert outcome.text
            assert outcome.model == body["model"]
            usage = body["usage"]
            assert outcome.input_tokens == usage.get("input_tokens", usage.get("prompt_tokens"))
            assert outcome.output_tokens == usage.get("output_tokens", usage.get("completion_tokens"))
            assert outcome.cached_tokens is not None
            assert outcome.reasoning_tokens is not None


@every_file
def test_batch_usage_is_the_sum_of_its_rows(path: Path) -> None:
    """Where a recording has a batch's own usage and its replies, our token counts add up to it."""
    if exchanges(path):
        return
    found = recorded(path)
    outcomes = [wrapped(result["body"], result["status_code"]) for result in found["results"]]
    assert {o.kind for o in outcomes} == {OutcomeKind.ANSWER}
    usage = found["batch"]["usage"]
    assert sum(o.input_tokens or 0 for o in outcomes) == usage["input_tokens"]
    assert sum(o.output_tokens or 0 for o in outcomes) == usage["output_tokens"]


@every_file
def test_realtime_replies_and_errors(path: Path) -> None:
    """A reply or an error of the realtime endpoints means the same as a row of a result file."""
    for exchange in exchanges(path):
        if not exchange["request"]["url"].endswith(("/responses", "/chat/completions")):
            continue
        status, body = exchange["response"]["status"], exchange["response"]["body"]
        found = wrapped(body, status)
        if status == 200:
            tool = any(choice["finish_reason"] == "tool_calls" for choice in body.get("choices") or ())
            assert found.kind is (OutcomeKind.EMPTY if tool else OutcomeKind.ANSWER)
            assert found.input_tokens
            continue
        assert (found.kind, found.retryable) == (OutcomeKind.PROVIDER_ERROR, False)
        assert found.error_code == body["error"]["code"]
        expected = {
            "context_length_exceeded": ErrorCategory.CONTEXT_OVERFLOW,
            "invalid_api_key": ErrorCategory.AUTH,
        }
        assert found.error_category is expected.get(body["error"]["code"], ErrorCategory.CLIENT_ERROR)


@every_file
def test_errors_of_calls(path: Path) -> None:
    """A recorded error is a refusal with the provider's code, and without its text."""
    http = ProviderHttp("openai", base_url="https://api.test", headers={}, classify=classify, timeout=1.0)
    for exchange in exchanges(path):
        answer = exchange["response"]
        if answer["status"] == 200:
            continue
        error: ProviderError = http.error(httpx.Response(answer["status"], content=content_of(answer["body"])))
        assert type(error) is RejectedError
        assert error.code == answer["body"]["error"]["code"]
        assert answer["body"]["error"]["message"] not in str(error)
    http.close()


@every_file
def test_uploads_creates_and_cancels(path: Path, tmp_path: Path) -> None:
    """Recorded answers to the three POSTs give a file id, a batch and a batch that is cancelling."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"{}\n")
    for exchange in exchanges(path):
        if exchange["request"]["method"] != "POST":
            continue
        url, body = httpx.URL(exchange["request"]["url"]).path, exchange["response"]["body"]
        provider = served(exchange)
        if url == "/v1/files":
            assert provider.upload(lines, external_key="k").refs == {"input_file_id": body["id"]}
        elif url == "/v1/batches":
            status = provider.create(
                Path("unused"), Uploaded({"input_file_id": "f"}), template=RequestTemplate("m"), external_key="k"
            )
            assert (status.handle.batch_id, status.state) == (body["id"], BatchState.RUNNING)
        elif url.endswith("/cancel"):
            status = provider.cancel(BatchHandle("openai", body["id"]))
            assert status.state is BatchState.CANCELLING


def test_list_pages_are_searched_by_file() -> None:
    """A batch on the second page is found by its input file after the first page's last id; a stranger is not found."""
    found = [e for e in exchanges(FOLDER / "ruby-openai_list_pages.json") if e["request"]["method"] == "GET"]
    first, second = (e["response"]["body"] for e in found)
    wanted = second["data"][0]
    assert wanted["id"] not in {batch["id"] for batch in first["data"]}
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("after"))
        page = first if asked[-1] is None else {**second, "has_more": False}
        return httpx.Response(200, json=page)

    provider = OpenAIBatchProvider(api_key="k", transport=httpx.MockTransport(answer))
    status = provider.find(Search("llmb-1", Uploaded({"input_file_id": wanted["input_file_id"]}), 0, ()))
    assert status is not None
    assert status.handle.batch_id == wanted["id"]
    assert asked == [None, first["last_id"]]
    assert provider.find(Search("llmb-1", Uploaded({"input_file_id": "file-x"}), 0, ())) is None


def test_captured_and_documented_rows() -> None:
    """Rows and batch fragments seen in the field or in the docs."""
    by_kind: dict[str, list[Any]] = {"row": [], "body": [], "batch_fragment": []}
    for line in ROWS.read_text("utf-8").splitlines():
        entry = json.loads(line)
        for name, values in by_kind.items():
            if name in entry:
                values.append(entry[name])
    outcomes = [read_row(content_of(row)) for row in by_kind["row"]]
    assert [(o and o.kind, o and o.retryable) for o in outcomes] == [
        (OutcomeKind.EXPIRED, True),
        (OutcomeKind.CANCELLED, False),
        (OutcomeKind.PROVIDER_ERROR, False),
    ]
    http = ProviderHttp("openai", base_url="https://api.test", headers={}, classify=classify, timeout=1.0)
    errors = [http.error(httpx.Response(404, json=body)) for body in by_kind["body"]]
    assert [type(error) for error in errors] == [BatchNotFoundError]
    statuses = [read_batch({"id": "b", **fragment}, "openai") for fragment in by_kind["batch_fragment"]]
    assert [(s.state, s.error_code, s.queue_full) for s in statuses] == [
        (BatchState.FAILED, "mismatched_model", False),
        (BatchState.FAILED, "token_limit_exceeded", True),
    ]
