"""Gemini's generateContent: requests, their two schema dialects, and replies."""

from collections.abc import Mapping
from typing import Any

from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL, Body, Format, Refusal, Said, texts_of

REQUEST_FIELDS = {
    "model", "contents", "systemInstruction", "generationConfig", "safetySettings", "tools", "toolConfig",
    "cachedContent",
}  # fmt: skip
SCHEMA_FIELDS = {
    "type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties",
    "required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf",
    "propertyOrdering", "default", "minimum", "maximum",
}  # fmt: skip
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_KEPT = ("format", "pattern", "minimum", "maximum", "required", "enum")
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


class GenerateContent(Format):
    """`models/M:generateContent`."""

    leaves_out = True

    def prompt_of(self, body: Body) -> str:
        """The system instruction and all contents."""
        contents = [field(body, "systemInstruction"), *(field(body, "contents") or ())]
        parts = [part for content in contents if isinstance(content, Mapping) for part in content.get("parts") or ()]
        return "\n".join(texts_of(parts))

    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """`responseSchema` in JSON Schema's words; `responseJsonSchema` outside batches only, as users report."""
        config = field(body, "generationConfig") or {}
        schema = field(config, "responseSchema")
        if schema is not None:
            return json_schema_of(schema)
        return None if in_batch else field(config, "responseJsonSchema")

    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """What a request is refused for that could be parsed."""
        if str(body.get("model", "")).removeprefix("models/").startswith(UNKNOWN_MODEL):
            return Refusal(404, f"{body['model']} is not found for API version v1beta.")
        if not self.prompt_of(body):
            return Refusal(400, "* GenerateContentRequest.contents: contents is not specified")
        config = field(body, "generationConfig") or {}
        schemas = [name for name in ("responseSchema", "responseJsonSchema") if field(config, name) is not None]
        if len(schemas) > 1:
            return Refusal(400, "Only one of response_schema and response_json_schema can be set.")
        if schemas and field(config, "responseMimeType") != "application/json":
            return Refusal(400, "A response schema needs the response mime type application/json.")
        return None

    def id_of(self, reply: Body) -> str:
        """`responseId`"""
        return reply["responseId"]

    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """Candidates and usage, without what is zero or empty. Part of the tokens out went into thoughts."""
        reasons = {"refuse": "SAFETY", "truncate": "MAX_TOKENS"}
        content: dict[str, Any] = {"role": "model"}
        if said.fault == "refuse":
            content = {}
        elif said.text:
            content = {"parts": [*_thoughts(body), {"text": said.text}], "role": "model"}
        thoughts = said.tokens[1] // 2
        usage = {
            "promptTokenCount": said.tokens[0],
            "candidatesTokenCount": said.tokens[1] - thoughts,
            "totalTokenCount": sum(said.tokens),
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": said.tokens[0]}],
            "thoughtsTokenCount": thoughts,
            "serviceTier": "standard",
        }
        return {
            "candidates": [{"content": content, "finishReason": reasons.get(said.fault or "", "STOP"), "index": 0}],
            "usageMetadata": {name: value for name, value in usage.items() if value},
            "modelVersion": str(body.get("model", "")).removeprefix("models/"),
            "responseId": said.name,
        }


def field(body: Body, name: str) -> Any:
    """A field by its own name or in snake case."""
    return body.get(name, body.get(snake(name)))


def snake(name: str) -> str:
    """`responseSchema` to `response_schema`"""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def malformed(request: Any) -> "str | None":
    """Why a request cannot be parsed, or None: that refuses a whole create call."""
    if not isinstance(request, Mapping):
        return "Invalid value: a request is an object."
    unknown = _unknown(request, REQUEST_FIELDS)
    if unknown:
        return f'Invalid JSON payload received. Unknown name "{unknown}": Cannot find field.'
    contents = field(request, "contents")
    if contents is not None and not (isinstance(contents, list) and all(isinstance(one, Mapping) for one in contents)):
        return "Invalid value at 'contents': a list of objects."
    config = field(request, "generationConfig") or {}
    if not isinstance(config, Mapping):
        return "Invalid value at 'generation_config': an object."
    schema = field(config, "responseSchema")
    return None if schema is None else _malformed_schema(schema, "generation_config.response_schema")


def _malformed_schema(node: Any, path: str) -> "str | None":
    if not isinstance(node, Mapping):
        return f"Invalid value at '{path}': an object."
    unknown = _unknown(node, SCHEMA_FIELDS)
    if unknown:
        return f"Invalid JSON payload received. Unknown name \"{unknown}\" at '{path}': Cannot find field."
    kind = node.get("type")
    if kind is not None and (not isinstance(kind, str) or kind.lower() not in TYPES):
        return f"Invalid value at '{path}.type' (type.googleapis.com/google.ai.generativelanguage.v1beta.Type)."
    enum = node.get("enum")
    if enum is not None and not (str(kind).lower() == "string" and all(isinstance(value, str) for value in enum)):
        return f"Invalid value at '{path}.enum': texts, of type STRING."
    for name, inner in _inner(node):
        wrong = _malformed_schema(inner, f"{path}.{name}")
        if wrong is not None:
            return wrong
    return None


def _inner(node: Body) -> "list[tuple[str, Any]]":
    found = [(f"properties.{name}", inner) for name, inner in (node.get("properties") or {}).items()]
    found += [("items", node["items"])] if "items" in node else []
    return found + [(f"any_of[{number}]", inner) for number, inner in enumerate(field(node, "anyOf") or ())]


def _unknown(node: Body, known: "set[str]") -> "str | None":
    names = known | {snake(name) for name in known}
    return next((name for name in node if name not in names), None)


def json_schema_of(node: Body) -> "dict[str, Any]":
    """A `responseSchema` in JSON Schema's words: lower-case types, null as a branch, counts as numbers."""
    made = {name: node[name] for name in _KEPT if name in node}
    made |= {name: int(field(node, name)) for name in _COUNTS if field(node, name) is not None}
    options = field(node, "anyOf")
    if options:
        made["anyOf"] = [json_schema_of(option) for option in options]
    elif "type" in node:
        made["type"] = node["type"].lower()
    if "properties" in node:
        names = [name for name in field(node, "propertyOrdering") or () if name in node["properties"]]
        names += [name for name in node["properties"] if name not in names]
        made["properties"] = {name: json_schema_of(node["properties"][name]) for name in names}
    if "items" in node:
        made["items"] = json_schema_of(node["items"])
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") else made


def _thoughts(body: Body) -> "list[dict[str, Any]]":
    """The thought part that comes before the answer where it was asked for."""
    config = field(field(body, "generationConfig") or {}, "thinkingConfig") or {}
    return [{"text": "Let me think.", "thought": True}] if field(config, "includeThoughts") else []
