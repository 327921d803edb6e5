"""The life of a batch: states by the clock, counts, times, expiry, cancel, validation, the queue and the list."""

from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import RESPONSES, lines_of, request, rows_of, submit


def ten(**changes: Any) -> "list[dict[str, Any]]":
    """Ten good requests."""
    return [request(f"r-{n}", f"text {n}", **changes) for n in range(10)]


def counts(batch: Batch) -> "tuple[int, int, int]":
    """total, completed, failed"""
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


def test_states_follow_the_clock(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """validating, in_progress with rising counts, finalizing, completed; each time field set from its state on."""
    made = submit(client, ten())
    seen = []
    for moment in (0, 9, 10, 50, 94, 95, 99, 100, 500):
        simulator.clock.advance(moment - (seen[-1][0] if seen else 0))
        batch = client.batches.retrieve(made.id)
        seen.append((moment, batch))
    states = [batch.status for _, batch in seen]
    assert states == ["validating"] * 2 + ["in_progress"] * 3 + ["finalizing"] * 2 + ["completed"] * 2
    assert [counts(batch) for _, batch in seen[:3]] == [(0, 0, 0), (0, 0, 0), (10, 0, 0)]
    done = [counts(batch)[1] for _, batch in seen]
    assert done == sorted(done)
    assert 0 < done[3] < 10
    for _, batch in seen:
        ended = batch.status == "completed"
        assert (batch.in_progress_at is None) == (batch.status == "validating")
        assert (batch.finalizing_at is None) == (batch.status in ("validating", "in_progress"))
        assert (batch.completed_at is not None) == (batch.output_file_id is not None) == ended
        assert (batch.usage is not None and batch.usage.total_tokens > 0) == ended
        assert batch.expires_at == batch.created_at + 86_400
    last = seen[-1][1]
    times = [last.created_at, last.in_progress_at, last.finalizing_at, last.completed_at]
    assert times == sorted(time for time in times if time is not None)
    assert (last.failed_at, last.expired_at, last.cancelled_at, last.cancelling_at) == (None,) * 4
    assert last.model == "gpt-5-nano-2026-01-01"


def test_without_seconds_a_batch_has_ended_at_the_next_poll(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """But not in the answer to its create."""
    simulator.store.batch_seconds = 0
    made = submit(client, ten())
    assert made.status == "validating"
    assert client.batches.retrieve(made.id).status == "completed"


def test_rows_come_in_an_order_of_their_own(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """Both files are shuffled."""
    batch = submit(client, [request(f"r-{n}", "[[sim:error_400]]" if n % 2 else "fine") for n in range(100)])
    simulator.clock.advance(100)
    batch = client.batches.retrieve(batch.id)
    for file_id in (batch.output_file_id, batch.error_file_id):
        numbers = [int(row["custom_id"][2:]) for row in rows_of(client, file_id)]
        assert len(numbers) == 50
        assert numbers != sorted(numbers)


def test_an_expired_batch_has_partial_results(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """Finished rows in the output and paid; the rest batch_expired in the error file."""
    made = submit(client, ten())
    simulator.store.expire(made.id, 0.6)
    batch = client.batches.retrieve(made.id)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    assert len(rows_of(client, batch.output_file_id)) == 6
    unrun = rows_of(client, batch.error_file_id)
    assert {(row["response"], row["error"]["code"]) for row in unrun} == {(None, "batch_expired")}
    assert counts(batch) == (10, 6, 4)
    assert simulator.book.requests == 6
    simulator.store.expire(made.id, 0.0)
    assert client.batches.retrieve(made.id) == batch


def test_a_batch_slower_than_its_window_expires_by_the_clock(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """After 24 hours, with what it did until then."""
    simulator.store.batch_seconds = 2 * 86_400
    made = submit(client, ten())
    simulator.clock.advance(86_399)
    assert client.batches.retrieve(made.id).status == "in_progress"
    simulator.clock.advance(1)
    batch = client.batches.retrieve(made.id)
    assert batch.status == "expired"
    assert 0 < counts(batch)[1] < 10
    assert simulator.book.requests == counts(batch)[1]


def test_a_cancelled_batch_keeps_what_was_done(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """It is cancelling for as long as set, then the rest are batch_cancelled rows; a second cancel changes nothing."""
    simulator.store.cancel_seconds = 300
    made = submit(client, ten())
    simulator.clock.advance(60)
    first = client.batches.cancel(made.id)
    assert (first.status, first.cancelled_at) == ("cancelling", None)
    simulator.clock.advance(299)
    assert client.batches.cancel(made.id).cancelling_at == first.cancelling_at
    assert client.batches.retrieve(made.id).status == "cancelling"
    simulator.clock.advance(1)
    batch = client.batches.retrieve(made.id)
    assert batch.status == "cancelled"
    done = rows_of(client, batch.output_file_id)
    unrun = rows_of(client, batch.error_file_id)
    assert {(row["response"], row["error"]["code"]) for row in unrun} == {(None, "batch_cancelled")}
    assert 0 < len(done) < 10
    assert sorted(row["custom_id"] for row in done + unrun) == [f"r-{n}" for n in range(10)]
    assert counts(batch) == (10, len(done), len(unrun))
    assert simulator.book.requests == len(done)


def test_cancel_during_validation_leaves_no_files(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """Both file ids null and counts 0, as recorded."""
    made = submit(client, ten())
    client.batches.cancel(made.id)
    batch = client.batches.retrieve(made.id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)
    assert counts(batch) == (0, 0, 0)
    assert simulator.book.requests == 0


def test_cancel_after_the_end_changes_nothing(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A completed batch stays completed."""
    made = submit(client, ten())
    simulator.clock.advance(100)
    assert client.batches.cancel(made.id).status == "completed"
    assert client.batches.retrieve(made.id).cancelling_at is None


def test_a_deleted_input_does_not_stop_a_running_batch(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """It has been read by then; deleted before that, the batch fails."""
    running = submit(client, ten())
    simulator.clock.advance(10)
    client.batches.retrieve(running.id)
    waiting = submit(client, ten())
    for batch in (running, waiting):
        client.files.delete(batch.input_file_id)
    simulator.clock.advance(100)
    assert client.batches.retrieve(running.id).status == "completed"
    assert client.batches.retrieve(waiting.id).status == "failed"


WRONG_LINES = {
    "invalid_json_line": (None, b'{"custom_id": "r-1", "bod\n'),
    "invalid_json_line array": (None, b"[1]\n"),
    "invalid_json_line bytes": (None, b'{"custom_id": "\xff"}\n'),
    "duplicate_custom_id": ("custom_id", lines_of([request("r-0")])),
    "missing_required_parameter": ("custom_id", lines_of([{**request("x"), "custom_id": ""}])),
    "missing_required_parameter number": ("custom_id", lines_of([{**request("x"), "custom_id": 7}])),
    "missing_required_parameter body": ("body", lines_of([{**request("x"), "body": None}])),
    "mismatched_model": ("body.model", lines_of([request("r-1", model="gpt-5.4-nano")])),
    "invalid_request": ("body.model", lines_of([request("r-1", model=None)])),
    "invalid_url": ("url", lines_of([request("r-1", url="/v1/chat/completions")])),
    "streaming_unsupported": ("body.stream", lines_of([request("r-1", stream=True)])),
}


def failed(client: openai.OpenAI, simulator: SimulatorServer, made: Batch) -> "Any":
    """The one error of a batch that failed its validation, after a look at all that must be empty then."""
    simulator.clock.advance(100)
    batch = client.batches.retrieve(made.id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id, batch.in_progress_at, batch.model) == (None,) * 4
    assert counts(batch) == (0, 0, 0)
    assert simulator.book.requests == 0
    assert batch.errors is not None
    assert batch.errors.data is not None
    (error,) = batch.errors.data
    return error


@pytest.mark.parametrize("name", WRONG_LINES)
def test_a_wrong_line_fails_the_whole_batch(client: openai.OpenAI, simulator: SimulatorServer, name: str) -> None:
    """The create is accepted; then the first wrong line is named by code, parameter and number."""
    param, line = WRONG_LINES[name]
    error = failed(client, simulator, submit(client, lines_of([request("r-0")]) + line + line))
    assert (error.code, error.param, error.line) == (name.split()[0], param, 2)
    assert error.message


def test_an_unknown_model_fails_the_whole_batch(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """As model_not_found at the first line."""
    error = failed(client, simulator, submit(client, ten(model="no-such-model-9")))
    assert (error.code, error.param, error.line) == ("model_not_found", "body.model", 1)


@pytest.mark.parametrize("purpose", [None, "user_data"])
def test_a_missing_or_wrong_file_fails_the_batch(
    client: openai.OpenAI, simulator: SimulatorServer, purpose: Any
) -> None:
    """As invalid_request of file_id, with no line."""
    file_id = "file-none"
    if purpose:
        file_id = client.files.create(file=("b.jsonl", lines_of(ten())), purpose=purpose).id
    made = client.batches.create(input_file_id=file_id, endpoint=RESPONSES, completion_window="24h")
    error = failed(client, simulator, made)
    assert (error.code, error.param, error.line) == ("invalid_request", "file_id", None)


def test_blank_lines_and_a_missing_last_newline_are_fine(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """Only lines with text are requests."""
    made = submit(client, b"\n" + lines_of(ten()).replace(b"\n", b"\n\n").rstrip())
    simulator.clock.advance(100)
    assert counts(client.batches.retrieve(made.id)) == (10, 10, 0)


def test_an_input_without_requests_fails(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """Blank lines alone are an empty file."""
    assert failed(client, simulator, submit(client, b"\n")).code == "empty_file"


def test_one_request_too_many_fails(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """50,000 pass; who does not split has nothing."""
    lines = lines_of([request(f"r-{number}") for number in range(50_001)])
    assert failed(client, simulator, submit(client, lines)).code == "too_many_tasks"
    made = submit(client, lines[: lines.rstrip(b"\n").rindex(b"\n") + 1])
    simulator.clock.advance(100)
    assert client.batches.retrieve(made.id).status == "completed"


def test_validation_takes_its_time(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A wrong input is validating first, as at the provider."""
    made = submit(client, b"nonsense\n")
    assert client.batches.retrieve(made.id).status == "validating"
    simulator.clock.advance(10)
    assert client.batches.retrieve(made.id).status == "failed"


def test_a_full_queue_fails_later_batches_until_there_is_room(
    client: openai.OpenAI, simulator: SimulatorServer
) -> None:
    """token_limit_exceeded counts what was created earlier and has not ended, polled or not."""
    content = lines_of(ten())
    simulator.store.token_limit = len(content) // 4 + 10
    first, second = submit(client, content), submit(client, content)
    simulator.clock.advance(10)
    batch = client.batches.retrieve(second.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == "token_limit_exceeded"
    assert "Enqueued token limit reached for gpt-5-nano" in str(batch.errors.data[0].message)
    assert client.batches.retrieve(first.id).status == "in_progress"
    simulator.clock.advance(90)
    third = submit(client, content)
    simulator.clock.advance(10)
    assert client.batches.retrieve(third.id).status == "in_progress"


def test_the_list_lags_but_a_read_by_id_does_not(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A batch shows in the list only when it is as old as the lag."""
    simulator.store.list_lag = 30
    made = submit(client, ten())
    assert list(client.batches.list()) == []
    assert client.batches.retrieve(made.id).id == made.id
    simulator.clock.advance(30)
    assert [batch.id for batch in client.batches.list()] == [made.id]


def test_pages_of_the_list(client: openai.OpenAI, http: httpx.Client) -> None:
    """20 by default, at most 100, with first and last id; a list with nothing left says so."""
    ids = [submit(client, b"").id for _ in range(21)][::-1]
    page = http.get("/batches").json()
    assert [one["id"] for one in page["data"]] == ids[:20]
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, ids[0], ids[19])
    page = http.get("/batches", params={"after": ids[19]}).json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (ids[20:], False)
    page = http.get("/batches", params={"after": ids[20]}).json()
    assert (page["data"], page["first_id"], page["has_more"]) == ([], None, False)
    for wrong in (0, 101, "many"):
        assert http.get("/batches", params={"limit": wrong}).status_code == 400


def test_the_book_counts_calls_batches_and_paid_rows(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """What the user's ledger has to agree with."""
    made = submit(client, [request("r-0"), request("r-1", "[[sim:error_500]]")], metadata={"stamp": "s"})
    simulator.clock.advance(100)
    batch = [client.batches.retrieve(made.id) for _ in range(3)][-1]
    book = simulator.book
    assert dict(book.calls) == {"upload": 1, "create": 1, "status": 3}
    assert (book.batches, book.requests, dict(book.paid)) == (1, 1, {"r-0": 1})
    assert book.creates == [
        {"provider": "openai", "id": made.id, "metadata": {"stamp": "s"}, "input_file_id": made.input_file_id}
    ]
    assert batch.usage is not None
    assert (book.input_tokens, book.output_tokens) == (batch.usage.input_tokens, batch.usage.output_tokens)
