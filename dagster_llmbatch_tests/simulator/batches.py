"""What the simulator's tests send and read."""

import json
from collections.abc import Sequence
from typing import Any

import openai
from openai.types import Batch

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
SENTIMENT = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}, "score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["label", "score"],
    "additionalProperties": False,
}


def request(custom_id: str, prompt: str = "hello", *, url: str = RESPONSES, **changes: Any) -> "dict[str, Any]":
    """One input line; `changes` go into its body."""
    if url == CHAT:
        schema = {"name": "Sentiment", "schema": SENTIMENT, "strict": True}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    else:
        form = {"type": "json_schema", "name": "Sentiment", "schema": SENTIMENT, "strict": True}
        body = {"input": [{"role": "user", "content": prompt}], "text": {"format": form}}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "gpt-5-nano", **body, **changes}}


def lines_of(requests: "Sequence[Any]") -> bytes:
    """The input file of some requests."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


def submit(
    client: openai.OpenAI,
    requests: "Sequence[Any] | bytes",
    *,
    endpoint: Any = RESPONSES,
    metadata: "dict[str, str] | None" = None,
) -> Batch:
    """Upload and create."""
    content = requests if isinstance(requests, bytes) else lines_of(requests)
    file = client.files.create(file=("batch.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata=metadata or {}
    )


def raw_lines(client: openai.OpenAI, file_id: "str | None") -> "list[bytes]":
    """The lines of a result file, cut at newlines only; none without a file."""
    if file_id is None:
        return []
    content = client.files.content(file_id).content
    assert content.endswith(b"\n")
    return content[:-1].split(b"\n")


def rows_of(client: openai.OpenAI, file_id: "str | None") -> "list[dict[str, Any]]":
    """The rows of a result file."""
    return [json.loads(line) for line in raw_lines(client, file_id)]
