"""Replies of OpenAI's two endpoints. OpenRouter speaks them too."""

from typing import Any

from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL, Body, Format, Refusal, Said, texts_of, within

MISSING = "missing_required_parameter"


class Responses(Format):
    """`/v1/responses`."""

    def prompt_of(self, body: Body) -> str:
        """The instructions and all messages."""
        texts = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
        return "\n".join(texts + _messages(body.get("input")))

    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """`text.format.schema`"""
        return within(body, "text", "format", "schema")

    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """A request without text, or of an unknown model: 400 here, not 404."""
        return _refused(body, "input", 400)

    def schema_refused(self, reason: str) -> Refusal:
        """400 invalid_json_schema"""
        return _schema_refused(reason)

    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """A response object."""
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        if said.fault == "refuse":
            part = {"type": "refusal", "refusal": "I cannot help with that."}
        truncated = said.fault == "truncate"
        status = "incomplete" if truncated else "completed"
        message = {"id": f"msg_{said.name}", "type": "message", "status": status, "role": "assistant"}
        return {
            "id": f"resp_{said.name}",
            "object": "response",
            "created_at": said.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
            "instructions": None,
            "metadata": {},
            "model": dated(body["model"]),
            "output": [{**message, "content": [part]}],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": {
                "input_tokens": said.tokens[0],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": said.tokens[1],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": sum(said.tokens),
            },
        }


class Chat(Format):
    """`/v1/chat/completions`."""

    def prompt_of(self, body: Body) -> str:
        """All messages."""
        return "\n".join(_messages(body.get("messages")))

    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """`response_format.json_schema.schema`"""
        return within(body, "response_format", "json_schema", "schema")

    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """A request without messages, or of an unknown model."""
        return _refused(body, "messages", 404)

    def schema_refused(self, reason: str) -> Refusal:
        """400 invalid_json_schema"""
        return _schema_refused(reason)

    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """A chat completion."""
        refused = said.fault == "refuse"
        content = None if refused else said.text
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content, "refusal": "No." if refused else None},
            "logprobs": None,
            "finish_reason": "length" if said.fault == "truncate" else "stop",
        }
        return {
            "id": f"chatcmpl-{said.name}",
            "object": "chat.completion",
            "created": said.created,
            "model": dated(body["model"]),
            "choices": [choice],
            "usage": {
                "prompt_tokens": said.tokens[0],
                "completion_tokens": said.tokens[1],
                "total_tokens": sum(said.tokens),
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }


RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
FORMATS: "dict[str, Format]" = {RESPONSES: Responses(), CHAT: Chat()}


def dated(model: str) -> str:
    """The name of the snapshot that answers for a model."""
    return f"{model}-2026-01-01"


def _messages(found: Any) -> "list[str]":
    if isinstance(found, str):
        return [found]
    messages = found if isinstance(found, list) else []
    return [text for message in messages for text in texts_of(within(message, "content"))]


def _refused(body: Body, field: str, unknown: int) -> "Refusal | None":
    if not isinstance(body.get("model"), str):
        return Refusal(400, "you must provide a model parameter", param="model")
    if body["model"].startswith(UNKNOWN_MODEL):
        return Refusal(unknown, "The requested model does not exist.", code="model_not_found", param="model")
    if body.get("stream"):
        return Refusal(400, "The simulator does not stream.", param="stream")
    return None if body.get(field) else Refusal(400, "The request has no text.", code=MISSING)


def _schema_refused(reason: str) -> Refusal:
    return Refusal(400, f"Invalid schema for response_format: {reason}", code="invalid_json_schema")
