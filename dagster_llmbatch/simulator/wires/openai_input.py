"""What OpenAI refuses: a create call at once, an input file later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL

ENDPOINTS = ("/v1/responses", "/v1/chat/completions")
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
MOST_REQUESTS = 50_000
"""Of one batch: https://platform.openai.com/docs/guides/batch."""


def wrong_create(body: Any) -> "tuple[str, str | None] | None":
    """Message and parameter of a create call that is refused, or None."""
    if not isinstance(body, Mapping):
        return "We could not parse the JSON body of your request.", None
    if not isinstance(body.get("input_file_id"), str):
        return "Missing required parameter: 'input_file_id'.", "input_file_id"
    if body.get("endpoint") not in ENDPOINTS:
        return f"Invalid value for endpoint; the simulator has {ENDPOINTS}.", "endpoint"
    if body.get("completion_window") != "24h":
        return "Invalid value for completion_window.", "completion_window"
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, Mapping) or len(metadata) > MOST_METADATA:
        return f"metadata is a map of at most {MOST_METADATA} pairs.", "metadata"
    for key, value in metadata.items():
        if not isinstance(value, str) or len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            return f"A metadata pair is text of at most {LONGEST_KEY} and {LONGEST_VALUE} characters.", "metadata"
    return None


class InputFile:
    """One pass over a batch's input, up to the first line that is wrong.

    Attributes:
        model: the one model of all lines.
        total: the requests.
        tokens: an estimate of the prompt tokens: a quarter of the bytes.
        error: an entry of the batch's `errors.data`, or None.
    """

    def __init__(self, path: Path, endpoint: str) -> None:
        self.model: str | None = None
        self.tokens = 0
        self._endpoint = endpoint
        self._ids: set[str] = set()
        self.error = self._first_error(path)

    @property
    def total(self) -> int:
        """The requests."""
        return len(self._ids)

    def _first_error(self, path: Path) -> "dict[str, Any] | None":
        size = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                size += len(line)
                if line.strip():
                    wrong = self._wrong_line(line)
                    if wrong is not None:
                        return entry(*wrong, number)
                if len(self._ids) > MOST_REQUESTS:
                    return entry("too_many_tasks", None, None)
        self.tokens = size // 4
        return None if self._ids else entry("empty_file", "file_id", None)

    def _wrong_line(self, line: bytes) -> "tuple[str, str | None] | None":
        try:
            found = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return "invalid_json_line", None
        if not isinstance(found, dict):
            return "invalid_json_line", None
        custom_id, body = found.get("custom_id"), found.get("body")
        if not isinstance(custom_id, str) or not custom_id:
            return "missing_required_parameter", "custom_id"
        if custom_id in self._ids:
            return "duplicate_custom_id", "custom_id"
        if found.get("url") != self._endpoint:
            return "invalid_url", "url"
        if found.get("method") != "POST":
            return "invalid_request", "method"
        self._ids.add(custom_id)
        return self._wrong_body(body) if isinstance(body, dict) else ("missing_required_parameter", "body")

    def _wrong_body(self, body: "dict[str, Any]") -> "tuple[str, str | None] | None":
        model = body.get("model")
        if body.get("stream"):
            return "streaming_unsupported", "body.stream"
        if not isinstance(model, str) or not model:
            return "invalid_request", "body.model"
        self.model = self.model or model
        if model != self.model:
            return "mismatched_model", "body.model"
        return ("model_not_found", "body.model") if model.startswith(UNKNOWN_MODEL) else None


def entry(code: str, param: "str | None", line: "int | None", message: "str | None" = None) -> "dict[str, Any]":
    """One entry of `errors.data`."""
    return {"code": code, "message": message or f"simulated {code}", "param": param, "line": line}
