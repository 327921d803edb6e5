"""One request into one result row, in OpenAI's shape, with the faults a row can have."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dagster_llmbatch.simulator.answers import SchemaRefused, answer

RESPONSES = "/v1/responses"
SEPARATOR = "\u2028"


@dataclass(frozen=True)
class Row:
    """What one request leaves in the result files."""

    lines: "tuple[bytes, ...]"
    error: bool
    """Whether they go to the error file."""
    paid: bool
    usage: "tuple[int, int]" = (0, 0)


def prompt_of(body: "Mapping[str, Any]") -> str:
    """All text of a request, for seeds and markers."""
    texts = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
    messages = body.get("input", body.get("messages"))
    if isinstance(messages, str):
        return "\n".join([*texts, messages])
    for message in messages or ():
        content = message.get("content")
        texts += [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    return "\n".join(texts)


def schema_of(body: "Mapping[str, Any]") -> "Mapping[str, Any] | None":
    """The JSON Schema a request asks for."""
    text = ((body.get("text") or {}).get("format")) or {}
    chat = ((body.get("response_format") or {}).get("json_schema")) or {}
    return text.get("schema") or chat.get("schema")


def reply(body: "Mapping[str, Any]", endpoint: str, fault: "str | None", created: float) -> "dict[str, Any]":
    """A finished reply of the endpoint to one request. Raises SchemaRefused."""
    prompt = prompt_of(body)
    text = _faulty_text(answer(prompt, schema_of(body)), fault)
    tokens_in = max(1, len(prompt) // 4)
    tokens_out = max(1, len(text) // 4)
    name = _hash(prompt)
    make = _responses_body if endpoint == RESPONSES else _chat_body
    return make(f"{body.get('model')}-2026-01-01", name, text, fault, (tokens_in, tokens_out), int(created))


def outcome_of(
    body: "Mapping[str, Any]", endpoint: str, fault: "str | None", created: float
) -> "tuple[int, dict[str, Any]]":
    """HTTP status and body of one request, in a batch or alone."""
    if fault in ("error_400", "error_429", "error_500"):
        return int(fault[-3:]), _problem(int(fault[-3:]), "simulated")
    if not body.get("input" if endpoint == RESPONSES else "messages"):
        return 400, _problem(400, "The request has no text.", "missing_required_parameter")
    try:
        return 200, reply(body, endpoint, fault, created)
    except SchemaRefused as error:
        return 400, _problem(400, f"Invalid schema for response_format: {error}", "invalid_json_schema")


def usage_of(made: "Mapping[str, Any]") -> "tuple[int, int]":
    """Tokens in and out of a reply of either endpoint."""
    usage = made["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def row(custom_id: str, body: "Mapping[str, Any]", endpoint: str, fault: "str | None", created: float) -> Row:
    """The result row of one batch request."""
    if fault == "expire":
        return Row((unrun_line(custom_id, "batch_expired"),), error=True, paid=False)
    status, made = outcome_of(body, endpoint, fault, created)
    line = _line(custom_id, status, made)
    if status != 200:
        return Row((line,), error=True, paid=False)
    lines = {
        "missing": (),
        "duplicate": (line, line),
        "stranger": (line, _line(f"stranger-{custom_id}", status, made)),
        "crlf": (line + b"\r",),
        "unreadable": (line[: len(line) // 2],),
    }.get(fault or "", (line,))
    return Row(lines, error=False, paid=True, usage=usage_of(made))


def _faulty_text(text: str, fault: "str | None") -> str:
    changed = {
        "truncate": text[: max(1, len(text) // 2)],
        "empty": "",
        "refuse": "",
        "fence": f"```json\n{text}\n```",
        "prose": f"Here is what you asked for: {text}",
        "wrong_schema": '{"unexpected": true}',
        "separator": text.replace(" ", SEPARATOR, 1),
    }
    return changed.get(fault or "", text)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _line(custom_id: str, status: int, body: "dict[str, Any]") -> bytes:
    request = _hash(custom_id)
    found = {
        "id": f"batch_req_{request}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request, "body": body},
        "error": None,
    }
    return msgspec.json.encode(found)


def _problem(status: int, message: str, code: "str | None" = None) -> "dict[str, Any]":
    kind = {400: "invalid_request_error", 429: "rate_limit_exceeded", 500: "server_error"}[status]
    return {"error": {"message": message, "type": kind, "param": None, "code": code or kind}}


def unrun_line(custom_id: str, code: str) -> bytes:
    """The error row of a request that was not run."""
    error = {"code": code, "message": "This request was not executed."}
    return msgspec.json.encode(
        {"id": f"batch_req_{_hash(custom_id)}", "custom_id": custom_id, "response": None, "error": error}
    )


def _responses_body(
    model: str, name: str, text: str, fault: "str | None", tokens: "tuple[int, int]", created: int
) -> "dict[str, Any]":
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if fault == "refuse":
        part = {"type": "refusal", "refusal": "I cannot help with that."}
    truncated = fault == "truncate"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": created,
        "status": "incomplete" if truncated else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [
            {
                "id": f"msg_{name}",
                "type": "message",
                "status": "incomplete" if truncated else "completed",
                "role": "assistant",
                "content": [part],
            }
        ],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        },
    }


def _chat_body(
    model: str, name: str, text: str, fault: "str | None", tokens: "tuple[int, int]", created: int
) -> "dict[str, Any]":
    refused = fault == "refuse"
    message = {"role": "assistant", "content": None if refused else text, "refusal": "No." if refused else None}
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "length" if fault == "truncate" else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
