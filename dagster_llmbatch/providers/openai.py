"""OpenAI's Batch API, and servers that speak it. Facts: https://platform.openai.com/docs/guides/batch, read 2026-11-30."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from dagster_llmbatch.errors import AmbiguousCreateError, BatchNotFoundError, ConfigurationError
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    Outcome,
    RequestTemplate,
    Search,
    Uploaded,
    expect,
)
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.lines import split_lines
from dagster_llmbatch.providers.openai_rows import QUEUE_FULL_CODES, classify, read_row

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
KEY = "llmbatch_key"
"""The metadata pair that carries our external key."""
OUTPUT_CAPS = ("max_output_tokens", "max_tokens", "max_completion_tokens")
"""Parameters that cut an answer off and change nothing else: not part of a fingerprint."""
CLOCK_SKEW = 300.0
"""Seconds the provider's clock may be behind ours."""
PAGE = 100

_STATES = {
    "validating": BatchState.PENDING,
    "in_progress": BatchState.RUNNING,
    "finalizing": BatchState.RUNNING,
    "cancelling": BatchState.CANCELLING,
    "completed": BatchState.COMPLETED,
    "failed": BatchState.FAILED,
    "expired": BatchState.EXPIRED,
    "cancelled": BatchState.CANCELLED,
}


class OpenAIBatchProvider:
    """A BatchProvider over OpenAI's files and batches endpoints."""

    name = "openai"
    limits = LIMITS["openai"]

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = "https://api.openai.com/v1",
        endpoint: str = RESPONSES,
        organization: "str | None" = None,
        project: "str | None" = None,
        timeout: float = 120.0,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"}
        headers |= {"openai-organization": organization} if organization else {}
        headers |= {"openai-project": project} if project else {}
        self._endpoint = endpoint
        self._http = ProviderHttp(
            self.name,
            base_url=base_url,
            headers=headers,
            classify=classify,
            timeout=timeout,
            transport=transport,
            sleep=sleep,
        )

    def encoder(self, template: RequestTemplate) -> "OpenAIEncoder":
        """The encoder of one group of requests. Raises ConfigurationError for params that cannot be batched."""
        return OpenAIEncoder(template, self._endpoint)

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Upload the request lines as a file of purpose `batch`."""
        with requests.open("rb") as content:
            # httpx reads the file from its start again when the upload is retried
            files = {"file": (f"{external_key}.jsonl", content, "application/jsonl")}
            found = self._http.call("POST", "files", data={"purpose": "batch"}, files=files)
        return Uploaded({"input_file_id": str(found["id"])})

    def group(self, template: RequestTemplate) -> str:
        """A batch holds one model; its schemas and parameters may differ."""
        return template.model

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: one POST, never resent."""
        body = {
            "input_file_id": uploaded.refs["input_file_id"],
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {KEY: external_key},
        }
        created = self._http.call_once("POST", "batches", json=body)
        if not created.get("id"):
            raise AmbiguousCreateError("openai: the create call succeeded without naming a batch.", provider="openai")
        return read_batch(created)

    def find(self, search: Search) -> "BatchStatus | None":
        """Page through the batches, newest first, for our key or our input file."""
        file_id = search.uploaded.refs.get("input_file_id")
        after: dict[str, Any] = {}
        while True:
            page = self._http.call("GET", "batches", params={"limit": PAGE, **after})
            batches = page.get("data") or []
            for batch in batches:
                if (batch.get("metadata") or {}).get(KEY) == search.external_key or (
                    file_id is not None and batch.get("input_file_id") == file_id
                ):
                    return read_batch(batch)
            oldest = batches[-1] if batches else {}
            if not page.get("has_more") or (oldest.get("created_at") or 0) < search.since - CLOCK_SKEW:
                return None
            after = {"after": page.get("last_id") or oldest["id"]}

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises BatchNotFoundError where the provider does not know it."""
        expect(handle, self.name)
        return read_batch(self._http.call("GET", f"batches/{handle.batch_id}"))

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """Stream the rows of the output file, then of the error file; either may be absent."""
        expect(status.handle, self.name)
        for name in ("output_file_id", "error_file_id"):
            file_id = status.result_refs.get(name)
            if file_id:
                with self._http.download(f"files/{file_id}/content") as pieces:
                    for line in split_lines(pieces):
                        outcome = read_row(line)
                        if outcome is not None:
                            yield outcome

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask to stop: it takes 5 to 10 minutes, and rows go on finishing meanwhile."""
        expect(handle, self.name)
        return read_batch(self._http.call("POST", f"batches/{handle.batch_id}/cancel"))

    def delete_files(self, status: BatchStatus) -> None:
        """Delete the input, output and error files; gone already is fine."""
        files = [status.handle.refs.get("input_file_id"), *status.result_refs.values()]
        for file_id in filter(None, files):
            try:
                self._http.call("DELETE", f"files/{file_id}")
            except BatchNotFoundError:
                continue

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class OpenAIEncoder:
    """Request lines of one template: everything but the custom id and the prompt is encoded once."""

    def __init__(self, template: RequestTemplate, endpoint: str) -> None:
        body = _body(template, endpoint)
        fingerprinted = {k: v for k, v in body.items() if k not in OUTPUT_CAPS}
        self.identity = msgspec.json.encode([endpoint, fingerprinted], order="deterministic")
        line = {"custom_id": _ID, "method": "POST", "url": endpoint, "body": body}
        encoded = msgspec.json.encode(line) + b"\n"
        self._head, rest = encoded.split(msgspec.json.encode(_ID), 1)
        self._middle, self._tail = rest.rsplit(msgspec.json.encode(_PROMPT), 1)
        self._encode = msgspec.json.encode

    def line(self, custom_id: str, prompt: str) -> bytes:
        """One line of batch input, with its newline."""
        encode = self._encode
        return b"".join((self._head, encode(custom_id), self._middle, encode(prompt), self._tail))


# stand where the two changing values go; a digest-like text that no template holds
_ID = "\x00custom-id-5b1f8e0e\x00"
_PROMPT = "\x00prompt-5b1f8e0e\x00"
_OURS = frozenset({"model", "input", "messages", "stream", "instructions", "response_format"})


def _body(template: RequestTemplate, endpoint: str) -> "dict[str, Any]":
    """The request body. The user's prompt comes last, so that it can be split off and prompts share a cached prefix."""
    params = dict(template.params)
    ours = sorted(_OURS & set(params))
    if ours:
        raise ConfigurationError(
            f"params {ours} are set by dagster_llmbatch (model, system, prompt, output); remove them."
        )
    for name, value in params.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"params[{name!r}] is no JSON value: {error}") from None
    messages = [{"role": "system", "content": template.system}] if template.system is not None else []
    messages.append({"role": "user", "content": _PROMPT})
    if endpoint == CHAT:
        schema = _named_schema(template)
        formatted = {"response_format": {"type": "json_schema", "json_schema": schema}} if schema else {}
        return {"model": template.model, **params, **formatted, "messages": messages}
    text = dict(params.pop("text", None) or {})
    schema = _named_schema(template)
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


def read_batch(body: "Mapping[str, Any]") -> BatchStatus:
    """A batch object as a status. Old objects lack fields; either file id may be null, empty or absent."""
    raw = str(body.get("status"))
    state = _STATES.get(raw, BatchState.UNKNOWN)
    counts = body.get("request_counts") or {}
    errors = ((body.get("errors") or {}).get("data") or [{}])[0]
    ended = next((body[name] for name in _ENDED_AT if body.get(name)), None)
    return BatchStatus(
        handle=BatchHandle("openai", str(body["id"]), {"input_file_id": str(body.get("input_file_id") or "")}),
        state=state,
        provider_state=raw,
        total=counts.get("total"),
        completed=counts.get("completed"),
        failed=counts.get("failed"),
        created_at=body.get("created_at"),
        expires_at=body.get("expires_at"),
        ended_at=ended,
        result_refs={name: body[name] for name in ("output_file_id", "error_file_id") if body.get(name)},
        error_code=errors.get("code"),
        error_message=errors.get("message"),
        queue_full=state is BatchState.FAILED and errors.get("code") in QUEUE_FULL_CODES,
    )


_ENDED_AT = ("completed_at", "failed_at", "expired_at", "cancelled_at")
