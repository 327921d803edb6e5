"""OpenRouter's requests: chat completions, and a batch as one JSON body that is read as it arrives."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.errors import ConfigurationError, NotBatchCapableError
from dagster_llmbatch.providers.content import Content, DocumentPart, Part, PartKind
from dagster_llmbatch.providers.contract import RequestTemplate
from dagster_llmbatch.providers.lines import JoinedLines
from dagster_llmbatch.providers.openai_requests import (
    CHAT,
    LineEncoder,
    address,
    chat_part,
    filled,
    identity,
    template_body,
)

BATCH_SUFFIX = ":batch"
_BATCH_ROUTING = frozenset({"only", "allow_fallbacks"})
"""Keys of `provider` that a batch takes."""


class OpenRouterEncoder(LineEncoder):
    """Request lines of one template. Model and provider choice stand once at the head of the batch, not in the lines.

    Raises NotBatchCapableError for what only a realtime call takes, ConfigurationError for params nobody takes.
    """

    def __init__(self, template: RequestTemplate) -> None:
        body = _shared_body(template)
        _refuse_realtime_only(body)
        line = {name: value for name, value in body.items() if name not in ("model", "provider")}
        super().__init__({}, line, identity(CHAT, body), _text_part)


def group_of(template: RequestTemplate) -> str:
    """A batch has one model and one choice of providers; behind Google's models also one schema."""
    alike = [template.schema_name, template.schema, template.params.get("provider")]
    digest = hashlib.sha256(msgspec.json.encode(alike, order="deterministic")).hexdigest()
    return f"{template.model}#{digest[:16]}"


def realtime_body(template: RequestTemplate, prompt: Content) -> bytes:
    """The body of one realtime call: with a schema, only providers that keep to it are asked."""
    body = _shared_body(template)
    if template.schema is not None:
        routing = {"require_parameters": True, **(body.pop("provider", None) or {})}
        body = {"model": body.pop("model"), "provider": routing, **body}
    return filled(body, prompt, openrouter_part)


def batch_body(requests: Path, template: RequestTemplate) -> JoinedLines:
    """The create call's body: what the batch is, then the file's lines as one list.

    The provider reads it as a stream: what the batch is must come before the requests.
    """
    head: dict[str, Any] = {"endpoint": CHAT, "model": batch_model(template.model), "completion_window": "24h"}
    head |= {"provider": template.params["provider"]} if template.params.get("provider") else {}
    return JoinedLines(requests, msgspec.json.encode(head)[:-1] + b',"requests":[', b"]}")


def batch_model(model: str) -> str:
    """The model id under which a batch is bought."""
    return model if model.endswith(BATCH_SUFFIX) else model + BATCH_SUFFIX


def openrouter_part(part: Part) -> "dict[str, Any]":
    """One content part of OpenRouter's chat completions: as OpenAI's, and a document's address may be a URL."""
    if isinstance(part, DocumentPart):
        return {"type": "file", "file": {"filename": part.filename, "file_data": address(part)}}
    return chat_part(part)


def _shared_body(template: RequestTemplate) -> "dict[str, Any]":
    body = template_body(template, CHAT)
    routing = body.get("provider")
    if not isinstance(routing, Mapping | None):
        raise ConfigurationError('params[\'provider\'] must be an object, such as {"only": ["azure"]}.')
    body["model"] = template.model.removesuffix(BATCH_SUFFIX)
    return body


def _refuse_realtime_only(body: "Mapping[str, Any]") -> None:
    plugins = body.get("plugins")
    web = isinstance(plugins, list) and any(isinstance(p, Mapping) and p.get("id") == "web" for p in plugins)
    found = [
        *(["params['plugins']: web"] if web else []),
        *(["the model's :online"] if ":online" in body["model"] else []),
        *(f"params[{name!r}]" for name in ("modalities", "audio", "image_config") if name in body),
        *(f"params['provider'][{key!r}]" for key in sorted(set(body.get("provider") or ()) - _BATCH_ROUTING)),
    ]
    if found:
        raise NotBatchCapableError(
            f"openrouter takes in realtime calls only: {', '.join(found)}. Remove it, or call "
            "LLMBatchResource.complete for each row."
        )


def _text_part(part: Part) -> "dict[str, Any]":
    if part.kind is not PartKind.TEXT:
        raise NotBatchCapableError(
            f"openrouter's batches hold text only, and a prompt has a part of {part.kind.value}."
        )
    return chat_part(part)
