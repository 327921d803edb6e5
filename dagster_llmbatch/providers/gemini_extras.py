"""What a reply of Gemini's holds beside its text, read only where asked for."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

_GROUNDS = ("groundingMetadata", "citationMetadata", "urlContextMetadata")


def read_extras(reply: Any, extras: "Collection[str]") -> "dict[str, str]":
    """Those of EXTRAS that are wanted and there, by name."""
    if not isinstance(reply, dict):
        return {}
    candidates = reply.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    candidate = first if isinstance(first, dict) else {}
    found = {name: read(reply, candidate) for name, read in _READERS.items() if name in extras}
    return {name: value for name, value in found.items() if value is not None}


def _reasoning(reply: "Mapping[str, Any]", candidate: "Mapping[str, Any]") -> "str | None":
    texts = [part["text"] for part in _parts(candidate) if part.get("thought") and isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def _tool_calls(reply: "Mapping[str, Any]", candidate: "Mapping[str, Any]") -> "str | None":
    calls = [part["functionCall"] for part in _parts(candidate) if isinstance(part.get("functionCall"), dict)]
    found = [
        {"id": call.get("id"), "name": call.get("name"), "arguments": _json(call.get("args") or {})} for call in calls
    ]
    return _json(found) if found else None


def _logprobs(reply: "Mapping[str, Any]", candidate: "Mapping[str, Any]") -> "str | None":
    found = candidate.get("logprobsResult")
    return None if found is None else _json(found)


def _grounding(reply: "Mapping[str, Any]", candidate: "Mapping[str, Any]") -> "str | None":
    found = {name: candidate[name] for name in _GROUNDS if candidate.get(name)}
    return _json(found) if found else None


def _response(reply: "Mapping[str, Any]", candidate: "Mapping[str, Any]") -> str:
    return _json(reply)


_READERS: "dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]]" = {
    "reasoning": _reasoning,
    "tool_calls": _tool_calls,
    "logprobs": _logprobs,
    "grounding": _grounding,
    "response": _response,
}


def _parts(candidate: "Mapping[str, Any]") -> "Iterator[dict[str, Any]]":
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    yield from (part for part in (parts if isinstance(parts, list) else ()) if isinstance(part, dict))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
