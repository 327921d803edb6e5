"""OpenRouter as the tests play it: a provider over answers of their own, and the objects it sends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from dagster_llmbatch.providers.contract import (
    BatchHandle,
    RequestTemplate,
)
from dagster_llmbatch.providers.openrouter import OpenRouterBatchProvider
from dagster_llmbatch.providers.openrouter_requests import OpenRouterEncoder

SECRET = "sk-or-very-secret"
NOW = 2_000_000.0
MODEL = "z-ai/glm-5.3"
TEMPLATE = RequestTemplate(MODEL)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
MISSING = {"error": {"message": "Batch job batch-1 not found.", "code": 404}}
HANDLE = BatchHandle("openrouter", "batch-1", {"created_at": str(NOW - 1000)})
Answer = Callable[[httpx.Request], httpx.Response]


class Api:
    """A provider over a function that answers its requests, which are noted, at a time that a test sets."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[httpx.Request] = []
        self.now = NOW
        self._answer = answer
        self.provider = OpenRouterBatchProvider(
            api_key=SECRET,
            transport=httpx.MockTransport(self._handle),
            sleep=lambda seconds: None,
            now=lambda: self.now,
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)


def always(content: Any, status: int = 200) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content)


def raising(error: Exception) -> Answer:
    """No answer at all."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def batch(**fields: Any) -> "dict[str, Any]":
    """A batch object as OpenRouter sends it."""
    return {
        "id": "batch-1", "object": "batch", "endpoint": "/v1/chat/completions", "model": "z-ai/glm-5.3-20260816",
        "completion_window": "24h", "status": "in_progress", "created_at": NOW, "expires_at": None, "finalized_at": None,
        "provider": None, "request_counts": {"total": 2, "completed": 0, "failed": 0}, "usage": None, "results": None,
        "error": None, **fields,
    }  # fmt: skip


def reply(content: Any = "yes", tokens: "tuple[int, int] | None" = (10, 5), **fields: Any) -> "dict[str, Any]":
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = None if tokens is None else {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return {"model": "z-ai/glm-5.3:batch", "provider": "DeepInfra", "choices": [choice], "usage": usage, **fields}


def result(custom_id: str, body: Any = None, error: Any = None, status: int = 200) -> "dict[str, Any]":
    """One result of a batch: a reply unless said otherwise."""
    given = reply() if body is None and error is None else body
    response = None if given is None else {"status_code": status, "request_id": "r", "body": given}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": error}


def lines_of(folder: Path, template: RequestTemplate, *prompts: str) -> Path:
    """A file of request lines."""
    encoder, path = OpenRouterEncoder(template), folder / "lines"
    path.write_bytes(b"".join(encoder.line(f"r-{n}", prompt) for n, prompt in enumerate(prompts)))
    return path
