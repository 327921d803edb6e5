"""Requests to Anthropic: the body of /v1/messages, which is also the `params` of a batch's request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.errors import ConfigurationError
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, Part, TextPart, base64_text
from dagster_llmbatch.providers.contract import RequestTemplate
from dagster_llmbatch.providers.lines import JoinedLines
from dagster_llmbatch.providers.params import check_json

MAX_TOKENS = 8192
"""`max_tokens` where params give none: Anthropic demands one. All models take it, and a realtime call that uses it up
still ends within the timeout. Models that think by default think within it: raise it for those."""
BETAS = "betas"
"""The parameter that becomes the anthropic-beta header."""
_OURS = frozenset({"model", "messages", "stream", "output_format"})
_NOT_BATCHED = ("speed", "store", "previous_thread_event_id", "cache_hint", "context_hint")
# stands where the prompt goes; a digest-like text that no template holds
_PROMPT = "\x00prompt-5b1f8e0e\x00"


class AnthropicEncoder:
    """Request lines and bodies of one template: everything but the custom id and the prompt is encoded once."""

    def __init__(self, template: RequestTemplate) -> None:
        body = _body(template)
        fingerprinted = {k: v for k, v in body.items() if k != "max_tokens"}
        self.identity = msgspec.json.encode(
            ["/v1/messages", betas_of(template.params), fingerprinted], order="deterministic"
        )
        self._encode = msgspec.json.encode
        self._before, self._after = self._encode(body).rsplit(self._encode(_PROMPT), 1)

    def line(self, custom_id: str, prompt: Content) -> bytes:
        """One request of a batch, with a newline."""
        encode, content = self._encode, self._content(prompt)
        return b"".join(
            (b'{"custom_id":', encode(custom_id), b',"params":', self._before, content, self._after, b"}\n")
        )

    def body(self, prompt: Content) -> bytes:
        """The same request as the body of a realtime call."""
        return b"".join((self._before, self._content(prompt), self._after))

    def _content(self, prompt: Content) -> bytes:
        return self._encode(prompt if isinstance(prompt, str) else [_block(part) for part in prompt])


def create_body(requests: Path) -> JoinedLines:
    """The body of a create call."""
    return JoinedLines(requests, b'{"requests":[', b"]}")


def refuse_unbatchable(params: "Mapping[str, Any]") -> None:
    """Raise ConfigurationError for params that a realtime call takes and a batch answers with an error in every row."""
    found = [name for name in _NOT_BATCHED if params.get(name) is not None]
    bill_to = params.get("billing_policy")
    if isinstance(bill_to, dict) and bill_to.get("bill_to", "self") != "self":
        found.append("billing_policy")
    if found:
        raise ConfigurationError(
            f"params {found} cannot be used in Anthropic's batches. Remove them, or call LLMBatchResource.complete for each "
            "row."
        )


def betas_of(params: "Mapping[str, Any]") -> "list[str]":
    """The beta names of `params`, each once and in order of the alphabet. Raises ConfigurationError for other shapes."""
    found = params.get(BETAS) or ()
    if isinstance(found, list | tuple) and all(isinstance(name, str) and _is_beta(name) for name in found):
        return sorted(set(found))
    raise ConfigurationError(f"params[{BETAS!r}] must be a list of beta names, such as 'output-300k-2026-03-24'.")


def _is_beta(name: str) -> bool:
    return name.isascii() and name.isprintable() and name == name.strip() != "" and "," not in name


def _body(template: RequestTemplate) -> "dict[str, Any]":
    """The request body. The prompt comes last, so that it can be split off."""
    params = {name: value for name, value in template.params.items() if name != BETAS}
    _check(params)
    max_tokens = params.pop("max_tokens", MAX_TOKENS)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise ConfigurationError("params['max_tokens'] must be a whole number of at least 1.")
    body: dict[str, Any] = {"model": template.model, "max_tokens": max_tokens, **params}
    if template.system is not None:
        if "system" in params:
            raise ConfigurationError("params['system'] is set beside the system prompt; remove one of them.")
        body["system"] = template.system
    if template.schema is not None:
        config = dict(params.get("output_config") or {})
        if "format" in config:
            raise ConfigurationError("params['output_config']['format'] is set by `output`; remove one of them.")
        body["output_config"] = {**config, "format": {"type": "json_schema", "schema": template.schema}}
    return {**body, "messages": [{"role": "user", "content": _PROMPT}]}


def _check(params: "Mapping[str, Any]") -> None:
    ours = sorted(_OURS & set(params))
    if ours:
        raise ConfigurationError(f"params {ours} are set by dagster_llmbatch (model, prompt, output); remove them.")
    check_json(params)


def _block(part: Part) -> "dict[str, Any]":
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image", "source": _source(part)}
    return {"type": "document", "source": _source(part), "title": part.filename}


def _source(part: "ImagePart | DocumentPart") -> "dict[str, Any]":
    if part.data is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": base64_text(part.data)}
