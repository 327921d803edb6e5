"""OpenAI's Batch API, and servers that speak it. Facts: https://platform.openai.com/docs/guides/batch, read 2026-11-30."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    ConfigurationError,
    NotBatchCapableError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import Content, PartKind
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchStatus,
    ErrorCategory,
    Limits,
    Outcome,
    RequestTemplate,
    Search,
    Uploaded,
    expect,
)
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.lines import split_lines
from dagster_llmbatch.providers.openai_batches import CLOCK_SKEW, listed, read_batch
from dagster_llmbatch.providers.openai_faults import classify
from dagster_llmbatch.providers.openai_requests import CHAT, PARTS, RESPONSES, OpenAIEncoder, realtime_body
from dagster_llmbatch.providers.openai_rows import read_row, reply_line, unreadable_reply

KEY = "llmbatch_key"
"""The metadata pair that carries our external key."""


class OpenAIBatchProvider:
    """A BatchProvider over OpenAI's files and batches endpoints, at OpenAI or at a server that speaks them.

    Args:
        api_key: sent as a bearer token; empty, or a placeholder, for servers that ask for none.
        endpoint: /v1/responses or /v1/chat/completions; most compatible servers have the second only.
        name: stands in handles and errors: a batch is looked for only where it was submitted.
        batches: False for a server without batch endpoints: every batch call raises NotBatchCapableError, and `limits` says
            that a batch takes no parts.
    """

    limits = LIMITS["openai"]

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = "https://api.openai.com/v1",
        endpoint: str = RESPONSES,
        name: str = "openai",
        batches: bool = True,
        organization: "str | None" = None,
        project: "str | None" = None,
        timeout: float = 120.0,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        if endpoint not in PARTS:
            raise ConfigurationError(f"{name}: endpoint {endpoint!r} is none of {', '.join(PARTS)}.")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        headers |= {"openai-organization": organization} if organization else {}
        headers |= {"openai-project": project} if project else {}
        self.name = name
        if endpoint == CHAT or not batches:
            self.limits = _narrowed(self.limits, endpoint, batches)
        self._endpoint = endpoint
        self._batches = batches
        self._http = ProviderHttp(
            name,
            base_url=base_url,
            headers=headers,
            classify=classify,
            timeout=timeout,
            transport=transport,
            sleep=sleep,
        )

    def encoder(self, template: RequestTemplate) -> OpenAIEncoder:
        """The encoder of one group of requests. Raises ConfigurationError for params that cannot be batched."""
        return OpenAIEncoder(template, self._endpoint)

    def group(self, template: RequestTemplate) -> str:
        """A batch holds one model; its schemas and parameters may differ."""
        return template.model

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Upload the request lines as a file of purpose `batch`."""
        self._expect_batches()
        with requests.open("rb") as content:
            # httpx reads the file from its start again when the upload is retried
            files = {"file": (f"{external_key}.jsonl", content, "application/jsonl")}
            found = self._http.call("POST", "files", data={"purpose": "batch"}, files=files)
        if not found.get("id"):
            raise TransientProviderError(
                f"{self.name}: the upload succeeded without naming a file.",
                provider=self.name,
                category=ErrorCategory.SERVER_ERROR.value,
            )
        return Uploaded({"input_file_id": str(found["id"])})

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: one POST, never resent."""
        self._expect_batches()
        body = {
            "input_file_id": uploaded.refs["input_file_id"],
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {KEY: external_key},
        }
        created = self._http.call_once("POST", "batches", json=body)
        if not created.get("id"):
            raise AmbiguousCreateError(
                f"{self.name}: the create call succeeded without naming a batch.", provider=self.name
            )
        return read_batch(created, self.name, uploaded.refs)

    def find(self, search: Search) -> "BatchStatus | None":
        """Page through the batches, newest first, for our key or our input file."""
        self._expect_batches()
        file_id = search.uploaded.refs.get("input_file_id")
        for batch in listed(self._http, {}, since=search.since - CLOCK_SKEW):
            metadata = batch.get("metadata")
            named = isinstance(metadata, dict) and metadata.get(KEY) == search.external_key
            if named or (file_id is not None and batch.get("input_file_id") == file_id):
                return read_batch(batch, self.name)
        return None

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises BatchNotFoundError where the provider does not know it."""
        self._expect_batches()
        expect(handle, self.name)
        found = self._http.call("GET", f"batches/{handle.batch_id}")
        return read_batch({"id": handle.batch_id, **found}, self.name, handle.refs)

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """Stream the rows of the output file, then of the error file; either may be absent."""
        self._expect_batches()
        expect(status.handle, self.name)
        for name in ("output_file_id", "error_file_id"):
            file_id = status.result_refs.get(name)
            if file_id:
                with self._http.download(f"files/{file_id}/content") as pieces:
                    for line in split_lines(pieces):
                        outcome = read_row(line, extras)
                        if outcome is not None:
                            yield outcome

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask to stop: it takes 5 to 10 minutes, and rows go on finishing meanwhile."""
        self._expect_batches()
        expect(handle, self.name)
        found = self._http.call("POST", f"batches/{handle.batch_id}/cancel")
        return read_batch({"id": handle.batch_id, **found}, self.name, handle.refs)

    def delete_files(self, status: BatchStatus) -> None:
        """Delete the input, output and error files; gone already is fine."""
        self._expect_batches()
        files = [status.handle.refs.get("input_file_id"), *status.result_refs.values()]
        for file_id in filter(None, files):
            try:
                self._http.call("DELETE", f"files/{file_id}")
            except BatchNotFoundError:
                continue

    def complete(self, template: RequestTemplate, prompt: Content, *, extras: "Collection[str]" = ()) -> Outcome:
        """One realtime call to the configured endpoint, sent once."""
        body = realtime_body(template, self._endpoint, prompt)
        reply = self._http.call_realtime(self._endpoint.removeprefix("/v1/"), body)
        return read_row(reply_line(reply), extras) or unreadable_reply()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _expect_batches(self) -> None:
        if not self._batches:
            raise NotBatchCapableError(
                f"{self.name} has no batch endpoints (batches=False). Call LLMBatchResource.complete for each row."
            )


def _narrowed(limits: Limits, endpoint: str, batches: bool) -> Limits:
    if endpoint == CHAT:
        not_taken = frozenset({PartKind.DOCUMENT_URL})
        limits = replace(
            limits, batch_parts=limits.batch_parts - not_taken, realtime_parts=limits.realtime_parts - not_taken
        )
    return limits if batches else replace(limits, batch_parts=frozenset())
