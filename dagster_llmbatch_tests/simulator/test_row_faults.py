"""Faults of rows: the file each lands in, and its shape there."""

import json
from typing import Any

import openai
import pytest
from openai.types import Batch

from dagster_llmbatch.simulator.faults import ROW_FAULTS
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import CHAT, RESPONSES, raw_lines, request, rows_of, submit

BOTH = pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])


def run(client: openai.OpenAI, simulator: SimulatorServer, prompts: "list[str]", endpoint: str = RESPONSES) -> Batch:
    """A batch of these prompts, r-0 and on, after its end."""
    requests = [request(f"r-{n}", prompt, url=endpoint) for n, prompt in enumerate(prompts)]
    batch = submit(client, requests, endpoint=endpoint)
    simulator.clock.advance(100)
    return client.batches.retrieve(batch.id)


def counts(batch: Batch) -> "tuple[int, int, int]":
    """total, completed, failed"""
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


def text_of(row: "dict[str, Any]") -> str:
    """The text of a good row of either endpoint."""
    body = row["response"]["body"]
    return body["choices"][0]["message"]["content"] if "choices" in body else body["output"][0]["content"][0]["text"]


@BOTH
@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_http_error_is_a_row_of_the_error_file(
    client: openai.OpenAI, simulator: SimulatorServer, endpoint: str, status: int
) -> None:
    """With the real status and body, `error` null, no usage, and unpaid."""
    batch = run(client, simulator, [f"[[sim:error_{status}]]", "fine"], endpoint)
    (row,) = rows_of(client, batch.error_file_id)
    assert (row["custom_id"], row["error"], row["response"]["status_code"]) == ("r-0", None, status)
    assert set(row["response"]["body"]["error"]) == {"message", "type", "param", "code"}
    assert [good["custom_id"] for good in rows_of(client, batch.output_file_id)] == ["r-1"]
    assert counts(batch) == (2, 1, 1)
    assert simulator.book.paid == {"r-1": 1}


def test_an_expired_row_is_in_the_error_file_without_a_response(
    client: openai.OpenAI, simulator: SimulatorServer
) -> None:
    """Also in a batch that completed."""
    batch = run(client, simulator, ["[[sim:expire]]", "fine"])
    (row,) = rows_of(client, batch.error_file_id)
    assert (row["custom_id"], row["response"], row["error"]["code"]) == ("r-0", None, "batch_expired")
    assert simulator.book.paid == {"r-1": 1}


@BOTH
def test_a_refusal_is_a_paid_200_of_the_output_file(
    client: openai.OpenAI, simulator: SimulatorServer, endpoint: str
) -> None:
    """As a refusal part, or in message.refusal."""
    batch = run(client, simulator, ["[[sim:refuse]]"], endpoint)
    (row,) = rows_of(client, batch.output_file_id)
    body = row["response"]["body"]
    if endpoint == CHAT:
        assert body["choices"][0]["message"]["content"] is None
        assert body["choices"][0]["message"]["refusal"]
    else:
        assert [part["type"] for part in body["output"][0]["content"]] == ["refusal"]
    assert batch.error_file_id is None
    assert simulator.book.requests == 1


@BOTH
def test_a_cut_answer_says_so_and_is_not_json(client: openai.OpenAI, simulator: SimulatorServer, endpoint: str) -> None:
    """incomplete for max_output_tokens, or finish_reason length."""
    batch = run(client, simulator, ["[[sim:truncate]]"], endpoint)
    (row,) = rows_of(client, batch.output_file_id)
    body = row["response"]["body"]
    if endpoint == CHAT:
        assert body["choices"][0]["finish_reason"] == "length"
    else:
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_of(row))


@BOTH
def test_texts_that_only_look_finished(client: openai.OpenAI, simulator: SimulatorServer, endpoint: str) -> None:
    """Empty, fenced, wrapped in prose, or JSON of another shape: 200 rows that are no answers."""
    faults = ["empty", "fence", "prose", "wrong_schema"]
    batch = run(client, simulator, [f"[[sim:{fault}]]" for fault in faults], endpoint)
    texts = {row["custom_id"]: text_of(row) for row in rows_of(client, batch.output_file_id)}
    assert texts["r-0"] == ""
    assert texts["r-1"].startswith("```json\n")
    assert texts["r-1"].endswith("\n```")
    assert "label" in json.loads(texts["r-1"].removeprefix("```json\n").removesuffix("\n```"))
    assert texts["r-2"].startswith("Here")
    assert "label" not in json.loads(texts["r-3"])
    assert counts(batch) == (4, 4, 0)


def test_rows_that_are_missing_doubled_or_strange(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A missing row is in neither file though it was paid; a stranger comes with the row it was made from."""
    batch = run(client, simulator, ["[[sim:missing]]", "[[sim:duplicate]]", "[[sim:stranger]]"])
    ids = sorted(row["custom_id"] for row in rows_of(client, batch.output_file_id))
    assert ids == ["r-1", "r-1", "r-2", "stranger-r-2"]
    assert batch.error_file_id is None
    assert counts(batch) == (3, 3, 0)
    assert simulator.book.requests == 3


def test_lines_that_are_hard_to_read(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """CRLF and U+2028 are still one line of JSON each; half a line is not JSON and spoils no other."""
    texts = ["[[sim:crlf]]", "[[sim:unreadable]]", "fine"]
    batch = run(client, simulator, texts)
    lines = raw_lines(client, batch.output_file_id)
    assert len(lines) == 3
    assert sum(line.endswith(b"\r") for line in lines) == 1
    readable = []
    for line in lines:
        try:
            readable.append(json.loads(line)["custom_id"])
        except json.JSONDecodeError:
            assert b"r-1" in line
    assert sorted(readable) == ["r-0", "r-2"]


def test_a_line_separator_inside_an_answer(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """U+2028 comes unescaped, so str.splitlines would cut the row in two."""
    plain = request("r-0", "[[sim:separator]]")
    del plain["body"]["text"]
    batch = submit(client, [plain])
    simulator.clock.advance(100)
    (line,) = raw_lines(client, client.batches.retrieve(batch.id).output_file_id)
    assert len(line.decode().splitlines()) == 2
    assert "\u2028" in text_of(json.loads(line))


def test_files_are_null_when_they_would_be_empty(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A batch all of whose rows failed is completed, without an output file."""
    batch = run(client, simulator, ["[[sim:error_400]]", "[[sim:error_500]]"])
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert len(rows_of(client, batch.error_file_id)) == 2
    assert counts(batch) == (2, 0, 2)
    good = run(client, simulator, ["fine"])
    assert good.error_file_id is None
    none = run(client, simulator, ["[[sim:missing]]"])
    assert (none.status, none.output_file_id, none.error_file_id) == ("completed", None, None)


def test_rules_break_rows_by_text_and_by_share(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """The same share of the same rows each time, about as many as asked for."""
    simulator.faults.add_rows("error_400", containing="broken")
    simulator.faults.add_rows("error_500", fraction=0.3)
    prompts = ["broken"] * 10 + ["fine"] * 190
    first, second = run(client, simulator, prompts), run(client, simulator, prompts)
    failed = [rows_of(client, batch.error_file_id) for batch in (first, second)]
    by_id = [{row["custom_id"]: row["response"]["status_code"] for row in rows} for rows in failed]
    assert by_id[0] == by_id[1]
    assert sum(status == 400 for status in by_id[0].values()) == 10
    assert 30 <= sum(status == 500 for status in by_id[0].values()) <= 90


def test_a_script_decides_row_by_row(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """It sees the custom id and the body."""
    simulator.store.script = lambda custom_id, body: "missing" if custom_id == "r-1" and body["input"] else None
    batch = run(client, simulator, ["fine"] * 3)
    assert sorted(row["custom_id"] for row in rows_of(client, batch.output_file_id)) == ["r-0", "r-2"]


def test_requests_no_answer_can_be_made_for_are_400_rows(client: openai.OpenAI, simulator: SimulatorServer) -> None:
    """A body without text, or a schema that cannot be met; the batch still ends."""
    empty = request("r-0")
    del empty["body"]["input"]
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Nowhere"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "A", "schema": schema, "strict": True}}
    batch = submit(client, [empty, request("r-1", text=form), request("r-2")])
    simulator.clock.advance(100)
    batch = client.batches.retrieve(batch.id)
    codes = {row["custom_id"]: row["response"]["body"]["error"]["code"] for row in rows_of(client, batch.error_file_id)}
    assert codes == {"r-0": "missing_required_parameter", "r-1": "invalid_json_schema"}
    assert counts(batch) == (3, 1, 2)


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_every_row_fault_makes_a_difference(client: openai.OpenAI, simulator: SimulatorServer, fault: str) -> None:
    """None of the names is accepted and then ignored."""
    plain = request("r-0", "the same prompt")
    del plain["body"]["text"]
    found = []
    for one in (None, fault):
        if one:
            simulator.faults.add_rows(one)
        batch = submit(client, [plain])
        simulator.clock.advance(100)
        batch = client.batches.retrieve(batch.id)
        lines = raw_lines(client, batch.output_file_id), raw_lines(client, batch.error_file_id)
        created = str(batch.completed_at).encode()
        found.append([[line.replace(created, b"now") for line in file] for file in lines])
    assert found[0] != found[1]
