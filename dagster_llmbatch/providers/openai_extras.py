"""What a reply holds beside its text, read only where asked for: a second decode of the whole line."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.providers.contract import Outcome
from dagster_llmbatch.providers.tolerant import loads


def with_extras(outcome: Outcome, line: bytes, extras: "Collection[str]") -> Outcome:
    """The outcome with the wanted EXTRAS of its line, None where the reply has none."""
    body = _body(line)
    if body is None:
        return outcome
    found = _chat(body) if body.get("choices") else _responses(body)
    found["response"] = _json(body)
    return msgspec.structs.replace(outcome, **{name: found[name] for name in extras})


def _body(line: bytes) -> "dict[str, Any] | None":
    try:
        row = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        row = loads(line)
    body = (row.get("response") or {}).get("body")
    return body if isinstance(body, dict) else None


def _chat(body: "Mapping[str, Any]") -> "dict[str, str | None]":
    choice = next(_objects(body["choices"]), {})
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    # `reasoning` at OpenRouter and newer vLLM, `reasoning_content` at DeepSeek and others
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    return {
        "reasoning": reasoning if isinstance(reasoning, str) else None,
        "tool_calls": _json([_chat_call(call) for call in _objects(message.get("tool_calls"))]),
        "logprobs": _json(choice.get("logprobs")),
        "grounding": _json(message.get("annotations")),
    }


def _responses(body: "Mapping[str, Any]") -> "dict[str, str | None]":
    items = list(_objects(body.get("output")))
    parts = [part for item in items if item.get("type") == "message" for part in _objects(item.get("content"))]
    thoughts = [
        part["text"]
        for item in items
        if item.get("type") == "reasoning"
        for part in (*_objects(item.get("summary")), *_objects(item.get("content")))
        if isinstance(part.get("text"), str)
    ]
    return {
        "reasoning": "\n\n".join(thoughts) or None,
        "tool_calls": _json([_responses_call(item) for item in items if item.get("type") in _CALLS]),
        "logprobs": _json([entry for part in parts for entry in part.get("logprobs") or ()]),
        "grounding": _json([entry for part in parts for entry in part.get("annotations") or ()]),
    }


_CALLS = ("function_call", "custom_tool_call")


def _chat_call(call: "Mapping[str, Any]") -> "dict[str, Any]":
    given = call.get("function") or call.get("custom") or {}
    return {"id": call.get("id"), "name": given.get("name"), "arguments": _arguments(given)}


def _responses_call(item: "Mapping[str, Any]") -> "dict[str, Any]":
    return {"id": item.get("call_id"), "name": item.get("name"), "arguments": _arguments(item)}


def _arguments(given: "Mapping[str, Any]") -> "str | None":
    """Raw JSON text, or a custom tool's free text; some servers give an object."""
    found = given.get("arguments", given.get("input"))
    return found if isinstance(found, str) else _json(found)


def _json(value: Any) -> "str | None":
    """JSON text, or None for nothing at all."""
    return msgspec.json.encode(value).decode() if value else None


def _objects(value: Any) -> "Iterator[dict[str, Any]]":
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())
