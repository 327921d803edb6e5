"""A result line in OpenAI's form, decoded: only the fields that make an outcome, for both endpoints."""

import json
from types import NoneType
from typing import Any

import msgspec

from dagster_llmbatch.providers.openai_faults import WireError
from dagster_llmbatch.providers.tolerant import loads


class TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: "int | None" = None
    cache_write_tokens: "int | None" = None
    reasoning_tokens: "int | None" = None


class Usage(msgspec.Struct, gc=False):
    input_tokens: "int | None" = None
    output_tokens: "int | None" = None
    prompt_tokens: "int | None" = None
    completion_tokens: "int | None" = None
    input_tokens_details: "TokenDetails | None" = None
    output_tokens_details: "TokenDetails | None" = None
    prompt_tokens_details: "TokenDetails | None" = None
    completion_tokens_details: "TokenDetails | None" = None
    cost: Any = None
    """USD at OpenRouter; an object, or in another unit, elsewhere."""


class Part(msgspec.Struct, gc=False):
    type: "str | None" = None
    text: "str | None" = None
    refusal: "str | None" = None


class Item(msgspec.Struct, gc=False):
    type: "str | None" = None
    content: "list[Part] | None" = None


class Incomplete(msgspec.Struct, gc=False):
    reason: "str | None" = None


class Message(msgspec.Struct, gc=False):
    content: "str | None" = None
    refusal: "str | None" = None


class Choice(msgspec.Struct, gc=False):
    message: "Message | None" = None
    finish_reason: "str | None" = None
    error: "WireError | None" = None


class Body(msgspec.Struct, gc=False):
    model: "str | None" = None
    status: "str | None" = None
    error: "WireError | None" = None
    incomplete_details: "Incomplete | None" = None
    output: "list[Item] | None" = None
    choices: "list[Choice] | None" = None
    usage: "Usage | None" = None


class Response(msgspec.Struct, gc=False):
    status_code: "int | None" = None
    body: "Body | None" = None


class Line(msgspec.Struct, gc=False):
    custom_id: str
    response: "Response | None" = None
    error: "WireError | None" = None


_decode = msgspec.json.Decoder(Line).decode


def decode_line(line: bytes) -> "Line | None":
    """One line of a result file; None where it cannot be read."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _tolerant(line)


def _tolerant(line: bytes) -> "Line | None":
    """A line that is JSON and has some field in another shape than documented: its answer was paid for all the same."""
    try:
        found = loads(line)
        return None if not isinstance(found, dict) else msgspec.convert(_reshaped(found), Line)
    except (ValueError, msgspec.MsgspecError):
        return None


def _reshaped(row: "dict[str, Any]") -> "dict[str, Any]":
    response = row.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if isinstance(response, dict) and not isinstance(body, dict):
        body = response["body"] = None if body is None else {"error": {"message": str(body)}}
    shown: dict[str, Any] = body or {}
    choices = _dicts(shown, "choices")
    for holder in (row, shown, *choices):
        _reshape_error(holder)
    _only(shown, str, "model", "status")
    _reshape_usage(shown)
    for item in _dicts(shown, "output"):
        if item.get("type") != "message":
            item.pop("content", None)
        elif isinstance(item.get("content"), str):
            item["content"] = [{"type": "output_text", "text": item["content"]}]
        _dicts(item, "content")
    for choice in choices:
        _only(choice, str, "finish_reason")
        message = choice.get("message") or {}
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part.get("text") or "" for part in _dicts(message, "content"))
        _only(message, str, "content", "refusal")
    return row


def _reshape_error(holder: "dict[str, Any]") -> None:
    error = holder.get("error")
    if error is not None and not isinstance(error, dict):
        holder["error"] = {"message": str(error)}
    elif error is not None and not isinstance(error.get("message"), str | NoneType):
        error["message"] = json.dumps(error["message"])


def _reshape_usage(body: "dict[str, Any]") -> None:
    _only(body, dict, "usage")
    usage: dict[str, Any] = body.get("usage") or {}
    _only(usage, int, *(name for name in usage if name.endswith("_tokens")))
    _only(usage, dict, *(name for name in usage if name.endswith("_details")))
    for name in [name for name in usage if name.endswith("_details")]:
        _only(usage[name], int, *usage[name])


def _only(holder: "dict[str, Any]", kind: type, *names: str) -> None:
    """Drop the named fields that are of another type: without them the rest can be read."""
    for name in names:
        if name in holder and (not isinstance(holder[name], kind) or isinstance(holder[name], bool)):
            del holder[name]


def _dicts(holder: "dict[str, Any]", name: str) -> "list[dict[str, Any]]":
    """The objects in a list of them. What else stands between them is dropped from it."""
    found = holder.get(name)
    objects = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if objects:
        holder[name] = objects
    return objects
