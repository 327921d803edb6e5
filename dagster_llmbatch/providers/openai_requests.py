"""Requests in OpenAI's two shapes, Responses and Chat Completions: bodies, content parts and lines of batch input."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dagster_llmbatch.errors import ConfigurationError
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, Part, TextPart, base64_text
from dagster_llmbatch.providers.contract import RequestTemplate
from dagster_llmbatch.providers.params import check_json

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
OUTPUT_CAPS = ("max_output_tokens", "max_tokens", "max_completion_tokens")
"""Parameters that cut an answer off and change nothing else: not part of a fingerprint."""
_OURS = frozenset({"model", "input", "messages", "stream", "background", "instructions", "response_format"})
# stand where the two changing values go; a digest-like text that no template holds
_ID = "\x00custom-id-5b1f8e0e\x00"
PROMPT = "\x00prompt-5b1f8e0e\x00"
"""Stands for the prompt in a body that is cut into pieces."""


class LineEncoder:
    """Request lines of one template: everything but the custom id and the prompt is encoded once.

    Args:
        envelope: what stands around the body, beside `custom_id`.
        body: with PROMPT where the prompt goes, as the last text of all.
        identity: see RequestEncoder.
        part: one content part in the form of the endpoint.
    """

    def __init__(
        self,
        envelope: "Mapping[str, Any]",
        body: "Mapping[str, Any]",
        identity: bytes,
        part: "Callable[[Part], dict[str, Any]]",
    ) -> None:
        self.identity = identity
        self._part = part
        encoded = msgspec.json.encode({"custom_id": _ID, **envelope, "body": body}) + b"\n"
        self._head, rest = encoded.split(msgspec.json.encode(_ID), 1)
        self._middle, self._tail = rest.rsplit(msgspec.json.encode(PROMPT), 1)
        self._encode = msgspec.json.encode

    def line(self, custom_id: str, prompt: Content) -> bytes:
        """One line of batch input, with its newline."""
        encode = self._encode
        content = encode(prompt) if isinstance(prompt, str) else encode([self._part(part) for part in prompt])
        return b"".join((self._head, encode(custom_id), self._middle, content, self._tail))


class OpenAIEncoder(LineEncoder):
    """Lines of OpenAI's batch input for one endpoint."""

    def __init__(self, template: RequestTemplate, endpoint: str) -> None:
        body = template_body(template, endpoint)
        super().__init__({"method": "POST", "url": endpoint}, body, identity(endpoint, body), PARTS[endpoint])


def identity(endpoint: str, body: "Mapping[str, Any]") -> bytes:
    """The bytes of a body that decide what an answer means."""
    fingerprinted = {k: v for k, v in body.items() if k not in OUTPUT_CAPS}
    return msgspec.json.encode([endpoint, fingerprinted], order="deterministic")


def realtime_body(template: RequestTemplate, endpoint: str, prompt: Content) -> bytes:
    """The body of one realtime call: the same as a line's."""
    return filled(template_body(template, endpoint), prompt, PARTS[endpoint])


def filled(body: "Mapping[str, Any]", prompt: Content, part: "Callable[[Part], dict[str, Any]]") -> bytes:
    """A body with the prompt in its place."""
    head, tail = msgspec.json.encode(body).rsplit(msgspec.json.encode(PROMPT), 1)
    return head + msgspec.json.encode(prompt if isinstance(prompt, str) else [part(one) for one in prompt]) + tail


def template_body(template: RequestTemplate, endpoint: str) -> "dict[str, Any]":
    """The request body with PROMPT for the prompt, which comes last: it can be split off, and prompts share a cached prefix.

    Raises ConfigurationError for params that we set ourselves, or that are no JSON.
    """
    params = checked_params(template.params)
    messages = [{"role": "system", "content": template.system}] if template.system is not None else []
    messages.append({"role": "user", "content": PROMPT})
    schema = _named_schema(template)
    if endpoint == CHAT:
        formatted = {"response_format": {"type": "json_schema", "json_schema": schema}} if schema else {}
        return {"model": template.model, **params, **formatted, "messages": messages}
    text = dict(params.pop("text", None) or {})
    if schema:
        if "format" in text:
            raise ConfigurationError("params['text']['format'] is set by `output`; remove one of them.")
        text["format"] = {"type": "json_schema", **schema}
    stored = {"store": params.pop("store", False)}
    return {"model": template.model, **params, **stored, **({"text": text} if text else {}), "input": messages}


def _named_schema(template: RequestTemplate) -> "dict[str, Any] | None":
    if template.schema is None:
        return None
    return {"name": template.schema_name, "schema": template.schema, "strict": True}


def checked_params(given: "Mapping[str, Any]") -> "dict[str, Any]":
    """A copy of the params, all of them JSON and none of them ours. Raises ConfigurationError."""
    params = dict(given)
    ours = sorted(_OURS & set(params))
    if ours:
        raise ConfigurationError(
            f"params {ours} are set by dagster_llmbatch (model, system, prompt, output); remove them."
        )
    check_json(params)
    return params


def responses_part(part: Part) -> "dict[str, Any]":
    """One content part of /v1/responses."""
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": address(part), "detail": "auto"}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.filename, "file_data": address(part)}


def chat_part(part: Part) -> "dict[str, Any]":
    """One content part of /v1/chat/completions. Raises ConfigurationError for a document by URL, which it does not take."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": address(part)}}
    if part.url is not None:
        raise ConfigurationError("chat completions take no document by url: give its bytes as data.")
    return {"type": "file", "file": {"filename": part.filename, "file_data": address(part)}}


def address(part: "ImagePart | DocumentPart") -> str:
    """A part's URL, or its bytes as a data: URI."""
    if part.data is None:
        return str(part.url)
    return f"data:{part.media_type};base64,{base64_text(part.data)}"


PARTS = {RESPONSES: responses_part, CHAT: chat_part}
"""By endpoint."""
