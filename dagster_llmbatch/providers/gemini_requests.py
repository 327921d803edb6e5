"""Requests to Gemini: a line of a batch file, the body of a realtime call, and the envelope of an inline batch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.errors import ConfigurationError
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, Part, TextPart, base64_text
from dagster_llmbatch.providers.contract import Mode, RequestTemplate
from dagster_llmbatch.providers.lines import split_lines
from dagster_llmbatch.providers.params import check_json

OUTPUT_CAP = "maxOutputTokens"
"""Cuts an answer off and changes nothing else: not part of a fingerprint."""
REQUEST_FIELDS = frozenset({"safetySettings", "tools", "toolConfig", "cachedContent", "serviceTier", "store"})
"""Params that stand on the request itself; all others stand in its generationConfig."""
SCHEMA_FIELDS: "dict[Mode, str]" = {"batch": "responseSchema", "realtime": "responseJsonSchema"}
"""By mode: batches were seen to ignore responseJsonSchema, at full price."""

_OURS = frozenset({"model", "contents", "systemInstruction"})
_OURS_WITH_SCHEMA = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
_MEDIA_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
}
# stand where the two changing values go; a digest-like text that no template holds
_ID = "\x00custom-id-8c0d27e4\x00"
_PARTS = "\x00parts-8c0d27e4\x00"


class GeminiEncoder:
    """Requests of one template: everything but the key and the prompt is encoded once.

    `params` are GenerateContentRequest's: REQUEST_FIELDS and what stands in `generationConfig`, the latter given as that
    dict or flat beside it. Names may be spelled as on the wire or in snake_case.
    """

    def __init__(self, template: RequestTemplate, mode: Mode = "batch") -> None:
        request = _request(template, mode)
        fingerprinted = {**request, "generationConfig": {**request.get("generationConfig", {})}}
        fingerprinted["generationConfig"].pop(OUTPUT_CAP, None)
        self.identity = msgspec.json.encode(["generateContent", template.model, fingerprinted], order="deterministic")
        encode = msgspec.json.encode
        self._before, self._after = encode(request).rsplit(encode(_PARTS), 1)
        self._encode = encode

    def line(self, custom_id: str, prompt: Content) -> bytes:
        """One line of batch input, with its newline."""
        key = self._encode(custom_id)
        return b"".join((b'{"key":', key, b',"request":', self._before, self._parts(prompt), self._after, b"}\n"))

    def body(self, prompt: Content) -> bytes:
        """The body of one realtime call."""
        return b"".join((self._before, self._parts(prompt), self._after))

    def _parts(self, prompt: Content) -> bytes:
        if isinstance(prompt, str):
            return b'[{"text":' + self._encode(prompt) + b"}]"
        return self._encode([_part(part) for part in prompt])


class _Request(msgspec.Struct, gc=False):
    key: str
    request: msgspec.Raw


def inline_body(requests: Path, display_name: str) -> "Iterator[bytes]":
    """The body of an inline create, read from the file of request lines as it is sent."""
    encode, decode = msgspec.json.encode, msgspec.json.Decoder(_Request).decode
    yield b'{"batch":{"displayName":' + encode(display_name) + b',"inputConfig":{"requests":{"requests":['
    with requests.open("rb") as content:
        for number, line in enumerate(split_lines(content)):
            row = decode(line)
            item = (
                b"," if number else b"",
                b'{"request":',
                row.request,
                b',"metadata":{"key":',
                encode(row.key),
                b"}}",
            )
            yield b"".join(item)
    yield b"]}}}}"


def _request(template: RequestTemplate, mode: Mode) -> "dict[str, Any]":
    """The request. The prompt comes last, so that it can be split off and prompts share a cached prefix."""
    params = _params(template)
    request = {name: value for name, value in params.items() if name in REQUEST_FIELDS}
    config = {name: value for name, value in params.items() if name not in REQUEST_FIELDS}
    if template.system is not None:
        request["systemInstruction"] = {"parts": [{"text": template.system}], "role": "user"}
    if template.schema is not None:
        config |= {"responseMimeType": "application/json", SCHEMA_FIELDS[mode]: template.schema}
    if config:
        request["generationConfig"] = config
    return {**request, "contents": [{"role": "user", "parts": _PARTS}]}


def _params(template: RequestTemplate) -> "dict[str, Any]":
    """All params side by side, under their names on the wire. Raises ConfigurationError for what cannot be sent."""
    given = {_camel(name): value for name, value in template.params.items()}
    config = given.pop("generationConfig", None) or {}
    if not isinstance(config, Mapping):
        raise ConfigurationError("params['generationConfig'] must be a dict.")
    nested = {_camel(name): value for name, value in config.items()}
    names = [*map(_camel, template.params), *map(_camel, config)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"params {twice} are given twice, flat, in generationConfig or in another spelling.")
    params = {**given, **nested}
    ours = sorted((_OURS | (_OURS_WITH_SCHEMA if template.schema is not None else frozenset())) & set(params))
    if ours:
        raise ConfigurationError(
            f"params {ours} are set by dagster_llmbatch (model, system, prompt, output); remove them."
        )
    if params.get("candidateCount", 1) != 1:
        raise ConfigurationError("params['candidateCount'] must be 1: a row has one answer, and each is billed.")
    check_json(params)
    return params


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _part(part: Part) -> "dict[str, Any]":
    if isinstance(part, TextPart):
        return {"text": part.text}
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": base64_text(part.data)}}
    media_type = _media_type(part)
    return {"fileData": {"fileUri": part.url, **({"mimeType": media_type} if media_type else {})}}


def _media_type(part: "ImagePart | DocumentPart") -> "str | None":
    """As given, else by the address's ending; None leaves it to the provider, which fetches the address."""
    if part.media_type:
        return part.media_type
    path = (part.url or "").split("?")[0].split("#")[0]
    return _MEDIA_TYPES.get(path.rpartition(".")[2].lower())
