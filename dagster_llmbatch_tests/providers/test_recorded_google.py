"""Recorded traffic of Google's: every file is read, and means what its recording shows.

Files are looked for beside the repository, in `../shared/recorded`, or where LLMBATCH_RECORDED points.
"""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import ProviderError, QuotaExhaustedError, RateLimitedError, RejectedError
from dagster_llmbatch.providers.contract import (
    BatchState,
    ErrorCategory,
    Outcome,
    OutcomeKind,
    RequestTemplate,
    Uploaded,
)
from dagster_llmbatch.providers.gemini import GeminiBatchProvider
from dagster_llmbatch.providers.gemini_batches import read_batch
from dagster_llmbatch.providers.gemini_requests import GeminiEncoder
from dagster_llmbatch.providers.gemini_rows import read_reply, read_row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LLMBATCH_RECORDED") or ROOT.parent / "shared" / "recorded") / "google"
REALTIME = sorted(FOLDER.glob("realtime_*.json")) if FOLDER.is_dir() else []
INLINE = FOLDER / "ruby_llm_gemini-2_5-flash_inline.json"
FILE_MODE = FOLDER / "ellmer_gemini-3_5-flash_filemode.json"
SEEN = FOLDER / "captured_and_documented_rows.jsonl"
VERTEX = FOLDER / "curator_vertex_result_rows.jsonl"

pytestmark = pytest.mark.skipif(not REALTIME, reason="no recorded traffic (set LLMBATCH_RECORDED)")
every_reply = pytest.mark.parametrize("path", REALTIME, ids=lambda path: path.stem)


def recorded(path: Path) -> Any:
    """A file's content."""
    return json.loads(path.read_text("utf-8"))


def lines(path: Path) -> "list[Any]":
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def served(status: int, body: Any, sent: "list[Any] | None" = None) -> GeminiBatchProvider:
    """A provider that gets one recorded answer to everything; bodies it sends are noted."""

    def answer(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(json.loads(request.read()))
        return httpx.Response(status, json=body)

    return GeminiBatchProvider(api_key="k", transport=httpx.MockTransport(answer), sleep=lambda seconds: None)


def check_tokens(outcome: Outcome, usage: "dict[str, Any]") -> None:
    """Our counts add up to Google's total."""
    assert outcome.input_tokens is not None
    assert outcome.output_tokens is not None
    assert outcome.input_tokens + outcome.output_tokens == usage.get("totalTokenCount", 0)
    assert outcome.reasoning_tokens == usage.get("thoughtsTokenCount", 0)


def test_no_recording_is_passed_over() -> None:
    """Every file of the folder is read by one of the tests below."""
    assert {*REALTIME, INLINE, FILE_MODE, SEEN, VERTEX} == set(FOLDER.iterdir())


EXPECTED_ERRORS = {
    "realtime_404_model": (RejectedError, ErrorCategory.CLIENT_ERROR, "NOT_FOUND", None),
    "realtime_auth_error": (RejectedError, ErrorCategory.AUTH, "INVALID_ARGUMENT", None),
    "realtime_context_overflow": (RateLimitedError, ErrorCategory.RATE_LIMIT, "RESOURCE_EXHAUSTED", 48.0),
}
EXPECTED_KINDS = {
    "realtime_max_tokens": (OutcomeKind.TRUNCATED, "MAX_TOKENS"),
    "realtime_max_tokens_thinking_empty": (OutcomeKind.TRUNCATED, "MAX_TOKENS"),
    "realtime_safety_block": (OutcomeKind.REFUSAL, "SAFETY"),
    "realtime_prompt_blockReason_vertex": (OutcomeKind.REFUSAL, "MODEL_ARMOR"),
}


@every_reply
def test_realtime(path: Path) -> None:
    """Answers, cut off ones, blocks and errors, each as what it is, with all its tokens."""
    for exchange in recorded(path):
        status, body = exchange["response"]["status"], exchange["response"]["body"]
        provider = served(status, body)
        if status != 200:
            kind, category, code, wait = EXPECTED_ERRORS[path.stem]
            with pytest.raises(ProviderError) as caught:
                provider.complete(RequestTemplate("m"), "x")
            error = caught.value
            assert (type(error), error.category, error.code, error.retry_after) == (kind, category.value, code, wait)
            assert body["error"]["message"] not in str(error)
            continue
        found = provider.complete(RequestTemplate("m"), "x", extras=["response"])
        kind, reason = EXPECTED_KINDS.get(path.stem, (OutcomeKind.ANSWER, "STOP"))
        assert (found.kind, found.finish_reason, found.model) == (kind, reason, body["modelVersion"])
        assert bool((found.text or "").strip()) is (kind is OutcomeKind.ANSWER or path.stem == "realtime_max_tokens")
        assert json.loads(found.response or "") == body
        check_tokens(found, body["usageMetadata"])


@every_reply
def test_realtime_requests(path: Path) -> None:
    """What clients sent is what we send for the same intent: one prompt, settings, schema and system prompt."""
    for exchange in recorded(path):
        sent = exchange["request"]["body"]
        if len(sent["contents"]) != 1 or "modelArmorConfig" in sent:
            continue  # a conversation, or Vertex
        if not sent["generationConfig"]:
            del sent["generationConfig"]  # theirs is empty, ours absent
        expected = json.loads(json.dumps(sent))
        schema = sent.get("generationConfig", {}).pop("responseJsonSchema", None)
        if schema:
            assert sent["generationConfig"].pop("responseMimeType") == "application/json"
        system = sent.get("systemInstruction", {}).get("parts", [{}])[0].get("text")
        params = {k: v for k, v in sent.items() if k not in ("contents", "systemInstruction")}
        template = RequestTemplate("m", system=system, params=params, schema=schema)
        made = json.loads(GeminiEncoder(template, "realtime").body(sent["contents"][0]["parts"][0]["text"]))
        assert made == expected


def test_inline_batch(tmp_path: Path) -> None:
    """Created, polled and collected: two answers, shown twice and read once."""
    create, *polls = recorded(INLINE)
    sent: list[Any] = []
    wanted = create["request"]["body"]["batch"]
    rows = wanted["inputConfig"]["requests"]["requests"]
    path = tmp_path / "lines"
    encoder = GeminiEncoder(RequestTemplate("gemini-2.5-flash"))
    path.write_bytes(
        b"".join(
            encoder.line(row["metadata"]["custom_id"], row["request"]["contents"][0]["parts"][0]["text"])
            for row in rows
        )
    )
    status = served(200, create["response"]["body"], sent).create(
        path,
        Uploaded({"ingest": "inline"}),
        template=RequestTemplate("gemini-2.5-flash"),
        external_key=wanted["displayName"],
    )
    for row in rows:  # theirs have empty settings, the model once more, and another name for the key
        row["request"].pop("generationConfig")
        row["request"].pop("model")
        row["metadata"] = {"key": row["metadata"]["custom_id"]}
    assert sent == [{"batch": wanted}]
    assert (status.state, status.total, status.completed) == (BatchState.RUNNING, 2, 0)
    states = [served(200, poll["response"]["body"]).status(status.handle) for poll in polls]
    assert [s.state for s in states] == [BatchState.RUNNING, BatchState.COMPLETED]
    last = polls[-1]["response"]["body"]
    text = json.dumps(last).replace('"custom_id"', '"key"')  # what we would have sent comes back
    found = list(served(200, json.loads(text)).outcomes(states[-1]))
    assert [(o.custom_id, o.kind, o.text) for o in found] == [
        ("0", OutcomeKind.ANSWER, "4"),
        ("1", OutcomeKind.ANSWER, "Jupiter"),
    ]
    shown = last["response"]["inlinedResponses"]["inlinedResponses"]
    for outcome, row in zip(found, shown, strict=True):
        check_tokens(outcome, row["response"]["usageMetadata"])


def test_file_mode() -> None:
    """The operation names its results file; its replies have texts and tokens."""
    found = recorded(FILE_MODE)
    status = read_batch(found["batch"], {})
    assert (status.state, status.total, status.completed, status.failed) == (BatchState.COMPLETED, 4, 4, 0)
    assert status.handle.refs == {"fileName": found["batch"]["metadata"]["inputConfig"]["fileName"]}
    assert status.result_refs == {"responsesFile": found["batch"]["response"]["responsesFile"]}
    assert status.created_at is not None
    assert status.ended_at is not None
    assert 0 < status.ended_at - status.created_at < 60
    for number, result in enumerate(found["results"]):
        outcome = read_row(json.dumps({"key": f"r-{number}", "response": result["body"]}).encode())
        assert outcome is not None
        assert (outcome.custom_id, outcome.kind) == (f"r-{number}", OutcomeKind.ANSWER)
        check_tokens(outcome, result["body"]["usageMetadata"])


def test_captured_and_documented() -> None:
    """Batches, rows and errors seen in the field or in the docs."""
    seen = lines(SEEN)
    batches = [read_batch(entry["body"], {}) for entry in seen if "name" in entry.get("body", {})]
    assert [(b.state, bool(b.result_refs)) for b in batches] == [
        (BatchState.RUNNING, False),
        (BatchState.COMPLETED, True),
        (BatchState.CANCELLED, False),
        (BatchState.COMPLETED, True),
    ]
    assert all(batch.total for batch in batches)
    cancelled = next(entry["body"] for entry in seen if "AFTER" in entry["_what"])
    for refs, kind in (({}, OutcomeKind.PROVIDER_ERROR), ({"cancel_asked": "true"}, OutcomeKind.CANCELLED)):
        (row,) = served(200, cancelled).outcomes(read_batch(cancelled, refs))
        assert (row.custom_id, row.kind) == ("smoke", kind)
    (bad,) = [read_row(json.dumps(entry["row"]).encode()) for entry in seen if "row" in entry]
    assert bad is not None
    assert (bad.custom_id, bad.error_category, bad.retryable) == ("t-invalid", ErrorCategory.CLIENT_ERROR, False)
    errors = [entry for entry in seen if "status" in entry]
    expected = [(RejectedError, ErrorCategory.TOO_LARGE), (QuotaExhaustedError, ErrorCategory.INSUFFICIENT_BALANCE)]
    for entry, (kind, category) in zip(errors, expected, strict=True):
        with pytest.raises(kind) as caught:
            served(entry["status"], entry["body"]).create(
                Path("unused"), Uploaded({"fileName": "files/f"}), template=RequestTemplate("m"), external_key="k"
            )
        assert caught.value.category == category.value
        assert caught.value.retry_after is None
    assert len(batches) + 1 + len(errors) == len(seen)


def test_rows_of_vertex_are_not_ours() -> None:
    """They have no key, so none is taken for one of ours; their replies are the same, though."""
    rows = lines(VERTEX)
    assert rows
    for row in rows:
        assert read_row(json.dumps(row).encode()) is None
        outcome = read_reply(row["response"])
        assert outcome.kind in (OutcomeKind.ANSWER, OutcomeKind.TRUNCATED)
        check_tokens(outcome, row["response"]["usageMetadata"])
