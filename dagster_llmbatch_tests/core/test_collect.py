"""Results joined to requests by custom_id: one outcome a row, whatever the provider's files hold."""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core.collect import GONE, collect, reconcile
from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA, REQUEST_SCHEMA
from dagster_llmbatch.errors import BatchNotFoundError, TransientProviderError
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, CancelReason
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    OutcomeKind,
)
from dagster_llmbatch.providers.limits import LIMITS

FILES = {"output_file_id": "file-o"}
ENDED = 1000.0


def status(state: BatchState = BatchState.COMPLETED, **fields: Any) -> BatchStatus:
    """A status of an ended batch."""
    fields = {"provider_state": state.value, "result_refs": FILES, **fields}
    return BatchStatus(BatchHandle("openai", "batch_1"), state, **fields)


def answer(custom_id: str, text: str = "yes") -> Outcome:
    """A complete answer."""
    return Outcome(custom_id, OutcomeKind.ANSWER, text=text, input_tokens=3, output_tokens=1)


def failure(custom_id: str) -> Outcome:
    """A provider's error that may pass."""
    return Outcome(
        custom_id, OutcomeKind.PROVIDER_ERROR, error_code="x", error_category=ErrorCategory.SERVER_ERROR, retryable=True
    )


REQUESTS = [(4, "a", 1), (9, "c", 2), (5, "b", 1)]
"""Row, custom_id and attempt, as sent."""


def test_every_request_gets_its_own_answer_in_any_order() -> None:
    """Rows are joined by custom_id, never by place."""
    found = reconcile(["a", "b", "c"], [answer("c", "C"), answer("a", "A"), answer("b", "B")], status=status())
    assert [o.text for o in found.outcomes] == ["A", "B", "C"]
    assert found.counted == [True, True, True]
    assert (found.duplicates, found.strangers, found.missing) == (0, 0, 0)


def test_strangers_are_counted_and_left_out() -> None:
    """A custom_id that was never sent belongs to no row."""
    found = reconcile(["a"], [answer("z"), answer("a"), answer("A")], status=status())
    assert [o.custom_id for o in found.outcomes] == ["a"]
    assert found.strangers == 2


@pytest.mark.parametrize(
    ("given_outcomes", "kept"),
    [
        ([answer("a", "1"), answer("a", "2")], "1"),
        ([failure("a"), answer("a", "2")], "2"),
        ([answer("a", "1"), failure("a")], "1"),
        ([failure("a"), answer("a", "2"), answer("a", "3")], "2"),
    ],
    ids=["two answers", "error, answer", "answer, error", "error, two answers"],
)
def test_the_first_counts_and_an_answer_beats_an_error(given_outcomes: "list[Outcome]", kept: str) -> None:
    """Of several results for one request the first answer is kept."""
    found = reconcile(["a"], given_outcomes, status=status())
    assert found.outcomes[0].text == kept
    assert found.duplicates == len(given_outcomes) - 1


@pytest.mark.parametrize("kind", [OutcomeKind.REFUSAL, OutcomeKind.TRUNCATED, OutcomeKind.EMPTY])
def test_whatever_was_paid_for_beats_an_error(kind: OutcomeKind) -> None:
    """A billed reply is kept over an unbilled error for the same request."""
    found = reconcile(["a"], [failure("a"), Outcome("a", kind)], status=status())
    assert found.outcomes[0].kind is kind


@pytest.mark.parametrize(
    ("ended", "kind", "category", "retryable", "counts"),
    [
        (status(), OutcomeKind.MISSING, ErrorCategory.MISSING, True, True),
        (status(provider_state=GONE), OutcomeKind.RESULTS_EXPIRED, ErrorCategory.MISSING, False, True),
        (status(BatchState.EXPIRED), OutcomeKind.EXPIRED, ErrorCategory.EXPIRED, True, True),
        (status(BatchState.CANCELLED), OutcomeKind.CANCELLED, ErrorCategory.CANCELLED, False, True),
        (status(BatchState.FAILED), OutcomeKind.PROVIDER_ERROR, ErrorCategory.CLIENT_ERROR, False, True),
        (
            status(BatchState.FAILED, queue_full=True),
            OutcomeKind.PROVIDER_ERROR,
            ErrorCategory.QUEUE_FULL,
            True,
            False,
        ),
    ],
    ids=["completed", "gone", "expired", "cancelled", "failed", "queue full"],
)
def test_a_request_without_a_result_is_named(
    ended: BatchStatus, kind: OutcomeKind, category: ErrorCategory, retryable: bool, counts: bool
) -> None:
    """What a missing result means follows from how the batch ended; a full queue uses up no attempt."""
    found = reconcile(["a", "b"], [answer("a")], status=ended)
    outcome = found.outcomes[1]
    assert (found.counted, outcome.kind) == ([True, counts], kind)
    assert (outcome.error_category, outcome.retryable, found.missing) == (category, retryable, 1)
    assert outcome.custom_id == "b"
    assert found.outcomes[0].text == "yes"


def test_a_failed_batch_gives_its_reason_to_each_row() -> None:
    """The provider's code and message for the batch stand in every row's outcome."""
    ended = status(BatchState.FAILED, error_code="mismatched_model", error_message="line 2", result_refs={})
    found = reconcile(["a", "b", "c"], [], status=ended)
    assert {(o.error_code, o.error_message) for o in found.outcomes} == {("mismatched_model", "line 2")}
    assert len(found.outcomes) == 3


SENT = [f"id{n}" for n in range(6)]
RESULTS = st.lists(
    st.tuples(st.sampled_from([*SENT, "stranger", ""]), st.sampled_from([OutcomeKind.ANSWER, OutcomeKind.EXPIRED])),
    max_size=15,
)


@settings(max_examples=80, deadline=None)
@given(RESULTS, st.sampled_from([BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED]))
def test_each_request_has_one_outcome_and_the_counts_add_up(
    results: "list[tuple[str, OutcomeKind]]", state: BatchState
) -> None:
    """Whatever comes back: every row once, an answer wherever one came, and every line accounted for."""
    found = reconcile(SENT, (Outcome(i, kind) for i, kind in results), status=status(state))
    for custom_id, outcome in zip(SENT, found.outcomes, strict=True):
        assert outcome.custom_id == custom_id
        assert (outcome.kind is OutcomeKind.ANSWER) == ((custom_id, OutcomeKind.ANSWER) in results)
    read = len(SENT) - found.missing + found.duplicates + found.strangers
    assert read == len(results)


class Files:
    """A provider that has only results, and may break while they are read."""

    def __init__(self, outcomes: "list[Outcome]", then: "Exception | None" = None) -> None:
        self._outcomes, self._then = outcomes, then
        self.read = 0
        self.limits = LIMITS["openai"]

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """The outcomes, then the error."""
        self.read += 1
        yield from self._outcomes
        if self._then is not None:
            raise self._then


@pytest.fixture
def segments(tmp_path: Path) -> SegmentStore:
    """An empty store."""
    return SegmentStore(str(tmp_path / "segments"))


def record(segments: SegmentStore, *, cancelled: "CancelReason | None" = None) -> BatchRecord:
    """A batch that ended at ENDED, with its requests on disk."""
    rows, ids, attempts = zip(*REQUESTS, strict=True)
    with segments.writer("requests", REQUEST_SCHEMA, row_group_rows=100) as writer:
        writer.write(pa.table([rows, ids, attempts], schema=REQUEST_SCHEMA))
    return BatchRecord(
        id="b1", entry_id="e1", wave=1, chunk=0, external_key="k", provider="openai", phase=BatchPhase.ENDED,
        request_count=3, request_bytes=9, requests_segment=writer.name, intent_at=0.0, batch_id="batch_1",
        ended_at=ENDED, cancel_reason=cancelled and cancelled.value,
    )  # fmt: skip


def collected(
    segments: SegmentStore, provider: Any, ended: BatchStatus, *, batch: "BatchRecord | None" = None, now: float = 0.0
) -> "list[dict[str, Any]]":
    """The outcomes segment's rows after a collect."""
    name = collect(batch or record(segments), ended, provider=provider, segments=segments, now=now)
    return pa.Table.from_batches(list(segments.batches(name)), schema=OUTCOME_SCHEMA).to_pylist()


def test_a_collected_segment_holds_each_row_in_order(segments: SegmentStore) -> None:
    """Rows are sorted, with batch, lane, attempt and tokens; unknown tokens are null."""
    provider = Files([answer("c"), failure("b"), answer("a", "A\u2028")])
    rows = collected(segments, provider, status())
    assert [(r["row"], r["attempt"], r["kind"], r["text"]) for r in rows] == [
        (4, 1, "answer", "A\u2028"),
        (5, 1, "provider_error", None),
        (9, 2, "answer", "yes"),
    ]
    assert {(r["batch_id"], r["lane"]) for r in rows} == {("batch_1", "batch")}
    assert (rows[0]["input_tokens"], rows[0]["cached_tokens"]) == (3, None)
    assert (rows[1]["error_category"], rows[1]["retryable"]) == ("server_error", True)


def test_collecting_twice_gives_the_same_segment(segments: SegmentStore) -> None:
    """Another order of the same results is the same segment: a repeat after a crash adds nothing."""
    batch, outcomes = record(segments), [answer("a"), answer("b"), answer("c")]
    names = {
        collect(batch, status(), provider=Files(given), segments=segments, now=0.0)  # type: ignore[arg-type]
        for given in (outcomes, outcomes[::-1])
    }
    assert len(names) == 1


def test_gaps_and_strangers_are_said_in_the_log(segments: SegmentStore, caplog: pytest.LogCaptureFixture) -> None:
    """The warning counts what is missing, repeated and unknown, and quotes no answer."""
    with caplog.at_level(logging.WARNING):
        collected(segments, Files([answer("a", "SECRET"), answer("a", "SECRET"), answer("z", "SECRET")]), status())
    assert "2 of 3 requests have no result, 1 results are repeated, 1 have a custom_id" in caplog.text
    assert "SECRET" not in caplog.text


def broken(custom_id: str, category: "ErrorCategory | None") -> Outcome:
    """An error line whose message must not be repeated."""
    return Outcome(custom_id, OutcomeKind.PROVIDER_ERROR, error_category=category, error_message="SECRET")


@pytest.mark.parametrize(
    ("results", "ended", "said"),
    [
        (
            [broken("a", ErrorCategory.RATE_LIMIT), broken("b", ErrorCategory.AUTH), broken("c", ErrorCategory.AUTH)],
            status(),
            "batch batch_1 (completed): 3 of 3 requests failed at openai: 2 auth, 1 rate_limit.",
        ),
        ([answer("a"), answer("b"), broken("c", None)], status(), "1 of 3 requests failed at openai: 1 unknown."),
        ([answer("a")], status(BatchState.EXPIRED), "2 of 3 requests failed at openai: 2 expired."),
        ([answer("a")], status(BatchState.CANCELLED), "2 of 3 requests failed at openai: 2 cancelled."),
        ([], status(BatchState.FAILED, error_message="SECRET"), "3 of 3 requests failed at openai: 3 client_error."),
        ([answer("a")], status(), None),
        ([answer("a"), Outcome("b", OutcomeKind.REFUSAL), Outcome("c", OutcomeKind.EMPTY)], status(), None),
    ],
    ids=["by category", "no category", "expired", "cancelled", "failed as a whole", "missing", "answered badly"],
)
def test_failures_at_the_provider_are_counted_by_category(
    segments: SegmentStore,
    caplog: pytest.LogCaptureFixture,
    results: "list[Outcome]",
    ended: BatchStatus,
    said: "str | None",
) -> None:
    """One warning a batch, the most frequent category first, without the provider's text; none for what the model said."""
    with caplog.at_level(logging.WARNING):
        collected(segments, Files(results), ended)
    found = [record.getMessage() for record in caplog.records if "requests failed at" in record.getMessage()]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    assert "SECRET" not in caplog.text


def test_a_failed_batch_without_files_is_not_downloaded(segments: SegmentStore) -> None:
    """Nothing ran: the provider is not asked for results."""
    provider = Files([answer("a")])
    rows = collected(segments, provider, status(BatchState.FAILED, result_refs={}))
    assert provider.read == 0
    assert {r["kind"] for r in rows} == {"provider_error"}


def test_a_broken_download_writes_nothing(segments: SegmentStore, tmp_path: Path) -> None:
    """A connection lost in the middle is an error to try again, never rows taken for missing."""
    lost = TransientProviderError("lost", provider="openai")
    with pytest.raises(TransientProviderError):
        collected(segments, Files([answer("a")], lost), status())
    assert not list(tmp_path.rglob("outcomes/**/*.parquet"))


NOT_FOUND = BatchNotFoundError("gone", provider="openai", status_code=404)
OVER = ENDED + LIMITS["openai"].retention


def test_files_gone_keep_what_was_read(segments: SegmentStore) -> None:
    """Answers read before the file was gone are kept; the others are named, and not bought again unasked."""
    rows = collected(segments, Files([answer("a")], NOT_FOUND), status(), now=OVER)
    assert [(r["kind"], r["retryable"]) for r in rows] == [
        ("answer", False),
        ("results_expired", False),
        ("results_expired", False),
    ]


def test_files_that_should_be_there_are_not_given_up(segments: SegmentStore, tmp_path: Path) -> None:
    """Not found while the provider still keeps results proves nothing: an error, and the answers stay to be collected."""
    with pytest.raises(BatchNotFoundError):
        collected(segments, Files([answer("a")], NOT_FOUND), status(), now=OVER - 1)
    assert not list(tmp_path.rglob("outcomes/**/*.parquet"))
    gone = BatchNotFoundError("gone", provider="openai", status_code=410)
    assert len(collected(segments, Files([], gone), status(), now=0.0)) == 3


@pytest.mark.parametrize(
    ("reason", "again", "counted"),
    [
        (None, False, True),
        (CancelReason.OPERATOR, False, True),
        (CancelReason.DEADLINE, True, True),
        (CancelReason.TERMINATED, True, False),
    ],
)
def test_rows_go_again_by_who_cancelled_them(
    segments: SegmentStore, reason: "CancelReason | None", again: bool, counted: bool
) -> None:
    """Ours at a deadline or with a run, not a person's; those without a row in the results as well. Answers stay."""
    results = [answer("a"), Outcome("b", OutcomeKind.CANCELLED, error_code="batch_cancelled")]
    rows = collected(segments, Files(results), status(BatchState.CANCELLED), batch=record(segments, cancelled=reason))
    assert [r["kind"] for r in rows] == ["answer", "cancelled", "cancelled"]
    assert [r["retryable"] for r in rows] == [False, again, again]
    assert [r["counted"] for r in rows] == [True, counted, counted]
