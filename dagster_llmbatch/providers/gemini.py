"""Gemini's Batch Mode and its generateContent, Developer API. Facts: https://ai.google.dev/gemini-api/docs/batch-api,
read 2026-11-30."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    ConfigurationError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import Content
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    RequestTemplate,
    Search,
    Uploaded,
    expect,
)
from dagster_llmbatch.providers.gemini_batches import (
    CANCEL_ASKED,
    FILE_NAME,
    INLINED_RESPONSES,
    RESPONSES_FILE,
    inlined_rows,
    read_batch,
)
from dagster_llmbatch.providers.gemini_faults import classify
from dagster_llmbatch.providers.gemini_files import upload_file
from dagster_llmbatch.providers.gemini_requests import GeminiEncoder, inline_body
from dagster_llmbatch.providers.gemini_rows import read_reply, read_row
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.lines import split_lines

Ingest = Literal["auto", "file", "inline"]
INGEST = "ingest"
"""Among the refs of an upload: `file` or `inline`."""
INLINE_BYTES = 4_000_000
"""Files of request lines up to this size go inline with ingest="auto": the answer of every poll holds the results twice."""
MOST_INLINE_BYTES = 18_000_000
"""With ingest="inline": 20 MiB are refused, and the envelope of small requests adds a tenth."""
PAGE = 50
"""Batches asked for at once. Each may come with its results, so pages are kept small."""


class GeminiBatchProvider:
    """A BatchProvider over the Gemini Developer API (not Vertex).

    Args:
        ingest: how requests are handed over: `file` uploads them first, `inline` puts them into the create call, and
            `auto` takes inline for small batches.
    """

    name = "gemini"

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = "https://generativelanguage.googleapis.com",
        version: str = "v1beta",
        ingest: Ingest = "auto",
        timeout: float = 120.0,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        if ingest not in ("auto", "file", "inline"):
            raise ConfigurationError(f'ingest is "auto", "file" or "inline", not {ingest!r}.')
        self._ingest = ingest
        self._version = version
        limits = LIMITS["gemini"]
        self.limits = replace(limits, max_bytes=MOST_INLINE_BYTES) if ingest == "inline" else limits
        self._http = ProviderHttp(
            self.name,
            base_url=base_url,
            headers={"x-goog-api-key": api_key},
            classify=classify,
            timeout=timeout,
            transport=transport,
            sleep=sleep,
        )

    def encoder(self, template: RequestTemplate) -> GeminiEncoder:
        """The encoder of one group of requests. Raises ConfigurationError for params that cannot be batched."""
        return GeminiEncoder(template)

    def group(self, template: RequestTemplate) -> str:
        """A batch holds one model, which stands in its address; schemas and parameters may differ."""
        return template.model

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Upload the request lines as a file named by our key, or send nothing where they go inline."""
        small = self._ingest == "auto" and requests.stat().st_size <= INLINE_BYTES
        if self._ingest == "inline" or small:
            return Uploaded({INGEST: "inline"})
        name = upload_file(self._http, requests, version=self._version, display_name=external_key)
        return Uploaded({INGEST: "file", FILE_NAME: name})

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: one POST, never resent. How requests were handed over is what `uploaded` says, not `ingest`."""
        file_name = uploaded.refs.get(FILE_NAME)
        if file_name is None:
            sent: dict[str, Any] = {"content": inline_body(requests, external_key)}
        else:
            batch = {"displayName": external_key, "inputConfig": {FILE_NAME: file_name}}
            sent = {"content": msgspec.json.encode({"batch": batch})}
        path = f"{self._model(template.model)}:batchGenerateContent"
        created = self._http.call_once("POST", path, headers={"content-type": "application/json"}, **sent)
        if not created.get("name"):
            raise AmbiguousCreateError("gemini: the create call succeeded without naming a batch.", provider="gemini")
        return read_batch(created, uploaded.refs)

    def find(self, search: Search) -> "BatchStatus | None":
        """Page through all batches for our key or our input file: nothing says in which order they are listed."""
        file_name = search.uploaded.refs.get(FILE_NAME)
        token: dict[str, str] = {}
        while True:
            page = self._http.call("GET", f"{self._version}/batches", params={"pageSize": PAGE, **token})
            for operation in page.get("operations") or ():
                if operation.get("name") not in search.known and _is_ours(operation, search.external_key, file_name):
                    return read_batch(operation, search.uploaded.refs)
            if not page.get("nextPageToken"):
                return None
            token = {"pageToken": str(page["nextPageToken"])}

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises BatchNotFoundError where the provider does not know it."""
        expect(handle, self.name)
        found = self._http.call("GET", f"{self._version}/{handle.batch_id}")
        return read_batch({**found, "name": handle.batch_id}, handle.refs)

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """Stream the rows of the results file, or of the operation itself.

        Rows that were cancelled are final where the batch is cancelled or its handle says that its cancel was asked for.
        A batch that is cancelled after its start ends as succeeded, though, just as one whose rows the provider gave up
        by itself: where nothing tells of a cancel, such rows are a passing error.
        """
        expect(status.handle, self.name)
        cancelled = status.state is BatchState.CANCELLED or CANCEL_ASKED in status.handle.refs
        for row in self._rows(status):
            outcome = read_row(row, cancelled=cancelled, extras=extras)
            if outcome is not None:
                yield outcome

    def _rows(self, status: BatchStatus) -> "Iterator[bytes]":
        responses_file = status.result_refs.get(RESPONSES_FILE)
        if responses_file:
            yield from self._lines(responses_file, status.handle)
        elif status.result_refs.get(INLINED_RESPONSES):
            with self._http.download(f"{self._version}/{status.handle.batch_id}") as pieces:
                body = b"".join(pieces)
            yield from _inlined(body)

    def _lines(self, file_name: str, handle: BatchHandle) -> "Iterator[bytes]":
        try:
            with self._http.download(f"download/{self._version}/{file_name}:download?alt=media") as pieces:
                yield from split_lines(pieces)
        except RejectedError as error:
            if error.status_code != 403:
                raise
            # so they answer for a file that is gone, and for a key that may not read it: the batch tells them apart
            self.status(handle)
            raise BatchNotFoundError(
                f"gemini: the results of {handle.batch_id} are gone.", provider="gemini", status_code=403
            ) from None

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask to stop. The handle of the status that comes back notes it (CANCEL_ASKED): record that one."""
        expect(handle, self.name)
        try:
            self._http.call("POST", f"{self._version}/{handle.batch_id}:cancel", json={})
        except RejectedError:
            ended = self.status(handle)
            if ended.state.ended:  # before the call came
                return ended
            raise
        found = self.status(replace(handle, refs={**handle.refs, CANCEL_ASKED: "true"}))
        return found if found.state.ended else replace(found, state=BatchState.CANCELLING)

    def delete_files(self, status: BatchStatus) -> None:
        """Delete the uploaded file, and the batch with its results; gone already is fine."""
        expect(status.handle, self.name)
        file_name = status.handle.refs.get(FILE_NAME)
        if file_name:
            self._delete(file_name, gone=(403, 404))  # 403 is what a file that is gone gets
        self._delete(status.handle.batch_id, gone=(404,))

    def _delete(self, name: str, *, gone: "Collection[int]") -> None:
        try:
            self._http.call("DELETE", f"{self._version}/{name}")
        except (BatchNotFoundError, RejectedError) as error:
            if error.status_code not in gone:
                raise

    def complete(self, template: RequestTemplate, prompt: Content, *, extras: "Collection[str]" = ()) -> Outcome:
        """One realtime call, sent once. Its outcome has no custom_id."""
        body = GeminiEncoder(template, "realtime").body(prompt)
        return read_reply(
            self._http.call_realtime(f"{self._model(template.model)}:generateContent", body), extras=extras
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _model(self, model: str) -> str:
        """The address of a model: `gemini-...` or, with its collection, `models/...` and `tunedModels/...`."""
        return f"{self._version}/{quote(model if '/' in model else f'models/{model}')}"


def _is_ours(operation: "Mapping[str, Any]", external_key: str, file_name: "str | None") -> bool:
    metadata = operation.get("metadata") or {}
    input_file = (metadata.get("inputConfig") or {}).get(FILE_NAME)
    return metadata.get("displayName") == external_key or (file_name is not None and input_file == file_name)


def _inlined(body: bytes) -> "list[bytes]":
    try:
        return inlined_rows(body)
    except ValueError:
        raise TransientProviderError(
            "gemini: a batch was answered with something that is no JSON.",
            provider="gemini",
            category=ErrorCategory.SERVER_ERROR.value,
        ) from None
