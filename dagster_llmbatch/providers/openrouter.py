"""OpenRouter's batch API. Facts: https://openrouter.ai/docs/batch-quickstart and recorded traffic, read 2026-11-30.

A batch carries no name of ours and cannot be cancelled; its results, and what it cost, stand in the batch object.
"""

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    BatchUnprovenError,
    CannotCancelError,
    ProviderError,
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
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.openai_batches import CLOCK_SKEW, listed, number
from dagster_llmbatch.providers.openai_requests import CHAT
from dagster_llmbatch.providers.openai_rows import reply_line, unreadable_reply
from dagster_llmbatch.providers.openrouter_requests import OpenRouterEncoder, batch_body, group_of, realtime_body
from dagster_llmbatch.providers.openrouter_rows import (
    NO_BATCH_ENDPOINT,
    classify,
    custom_id_of,
    read_batch,
    read_row,
    share_cost,
    split_rows,
)

RESULTS_PAGE = 1000
_CREATED = "created_at"
"""The handle's reference to when the batch was created, in unix seconds."""
Results = list[bytes] | None
"""Rows as they came, or None where there is no list of them."""


class OpenRouterBatchProvider:
    """A BatchProvider over OpenRouter's batches and chat completions. `now` gives unix seconds."""

    name = "openrouter"
    limits = LIMITS["openrouter"]

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str = "https://openrouter.ai/api/v1",
        timeout: float = 120.0,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
        now: "Callable[[], float]" = time.time,
    ) -> None:
        self._now = now
        self._http = ProviderHttp(
            self.name,
            base_url=base_url,
            headers={"authorization": f"Bearer {api_key}"},
            classify=classify,
            timeout=timeout,
            transport=transport,
            sleep=sleep,
        )

    def encoder(self, template: RequestTemplate) -> OpenRouterEncoder:
        """The encoder of one group of requests. Raises NotBatchCapableError for what only a realtime call takes."""
        return OpenRouterEncoder(template)

    def group(self, template: RequestTemplate) -> str:
        """A batch holds one model, one choice of providers and one schema."""
        return group_of(template)

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Nothing is uploaded: the requests go in the create call."""
        return Uploaded({"request_bytes": str(requests.stat().st_size)})

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: one POST with all requests in it, never resent.

        Raises RejectedError of code `no_batch_endpoint` where the model, or the account, has no batches; that is free.
        """
        body = batch_body(requests, template)
        headers = {"content-type": "application/json", "content-length": str(body.length)}
        try:
            created = self._http.call_once("POST", "batches", content=body, headers=headers)
        except RejectedError as error:
            raise _explained(error, template.model) from None
        if not created.get("id"):
            raise AmbiguousCreateError(
                f"{self.name}: the create call succeeded without naming a batch.", provider=self.name
            )
        return read_batch(created, BatchHandle(self.name, str(created["id"]), {_CREATED: str(self._now())}))

    def find(self, search: Search) -> "BatchStatus | None":
        """Look among the batches created since, of our endpoint and size, for one whose results have our custom ids.

        The model is not compared: OpenRouter answers with another name than the one asked for.
        """
        ours = frozenset(search.custom_ids)
        since = max(0.0, search.since - CLOCK_SKEW)  # times before 1970 are refused
        unproven: BatchUnprovenError | None = None
        for body in listed(self._http, {"created_after": int(since)}, since=since):
            if body["id"] in search.known or not _may_be(body, len(ours), since):
                continue
            handle = BatchHandle(self.name, str(body["id"]), {_CREATED: str(number(body.get("created_at")) or 0)})
            try:
                found = self._proven(handle, ours)
            except BatchUnprovenError as error:
                unproven = error
                continue
            if found is not None:
                return found
        if unproven is not None:
            raise unproven
        return None

    def _proven(self, handle: BatchHandle, ours: "Collection[str]") -> "BatchStatus | None":
        """The batch where its results have our custom ids, None where it is another's. Raises BatchUnprovenError."""
        try:
            status, results = self._read(handle)
        except BatchNotFoundError:
            raise self._unproven(handle, "is listed and cannot be read") from None
        if not status.state.ended:
            raise self._unproven(handle, "runs, and only results prove whose it is")
        if results is None and status.state is BatchState.COMPLETED:
            results = self._paged(handle)
        found = {custom_id_of(row) for row in results or ()} - {None}
        if found & set(ours):
            return status
        if not found and (results or status.state is BatchState.COMPLETED):
            raise self._unproven(handle, "ended without results that prove whose it is")
        # another's; or one that ended without any result, which leaves nothing to collect, whose it may be
        return None

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises TransientProviderError for one that is too young to be sure that it is not there."""
        expect(handle, self.name)
        try:
            return self._read(handle)[0]
        except BatchNotFoundError as error:
            age = self._now() - float(handle.refs.get(_CREATED, 0))
            if error.status_code == 404 and age < self.limits.appears_within:
                raise TransientProviderError(
                    f"{self.name}: batch {handle.batch_id} does not show yet, {age:.0f} s after it was created.",
                    provider=self.name,
                    status_code=404,
                    category=ErrorCategory.SERVER_ERROR.value,
                ) from None
            raise

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> "Iterator[Outcome]":
        """Read the results there are, however the batch ended, each with its share of the batch's cost.

        Raises TransientProviderError where answers are counted and no result is there.
        """
        expect(status.handle, self.name)
        current, results = self._read(status.handle)
        if results is None and current.state is BatchState.COMPLETED:
            results = self._paged(status.handle)
        if not results and current.state is BatchState.COMPLETED and current.completed:
            raise TransientProviderError(
                f"{self.name}: batch {status.handle.batch_id} counts {current.completed} answers and shows none.",
                provider=self.name,
                category=ErrorCategory.SERVER_ERROR.value,
            )
        found = [outcome for row in results or () if (outcome := read_row(row, extras)) is not None]
        yield from share_cost(found, current.cost_usd)

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Always CannotCancelError."""
        expect(handle, self.name)
        raise CannotCancelError(
            f"{self.name} cannot cancel: batch {handle.batch_id} runs to its end, and is billed.", provider=self.name
        )

    def delete_files(self, status: BatchStatus) -> None:
        """Delete an ended batch with its requests and results; gone already is fine. One that runs cannot be deleted."""
        expect(status.handle, self.name)
        if not status.state.ended:
            return
        try:
            self._http.call("DELETE", f"batches/{status.handle.batch_id}")
        except ProviderError as error:
            if not _gone(error):
                raise

    def complete(self, template: RequestTemplate, prompt: Content, *, extras: "Collection[str]" = ()) -> Outcome:
        """One realtime chat completion, sent once. Its cost is what OpenRouter says."""
        reply = self._http.call_realtime("chat/completions", realtime_body(template, prompt))
        return read_row(reply_line(reply), extras) or unreadable_reply()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _read(self, handle: BatchHandle) -> "tuple[BatchStatus, Results]":
        """A batch and its results. Raises BatchNotFoundError, also for one whose time is over."""
        try:
            body, results = self._split(f"batches/{handle.batch_id}", "results")
        except RejectedError as error:
            if not _gone(error):
                raise
            raise BatchNotFoundError(str(error), provider=self.name, status_code=error.status_code) from None
        return read_batch(body, handle, results), results

    def _paged(self, handle: BatchHandle) -> Results:
        """The results from their own address, page by page; None where there is no such address."""
        path = f"batches/{handle.batch_id}/results?limit={RESULTS_PAGE}"
        found: list[bytes] = []
        cursors: set[str] = set()
        cursor = ""
        while cursor not in cursors:
            cursors.add(cursor)
            try:
                page, rows = self._split(path + (f"&cursor={quote(cursor)}" if cursor else ""), "data")
            except BatchNotFoundError:
                if not cursor:
                    return None
                raise
            found += rows or ()
            cursor = str(page.get("next_cursor") or "") if page.get("has_more", True) else ""
        return found

    def _split(self, path: str, rows: str) -> "tuple[dict[str, Any], Results]":
        """An answer without its rows, and those."""
        with self._http.download(path) as pieces:
            content = b"".join(pieces)
        try:
            return split_rows(content, rows)
        except ValueError:
            raise TransientProviderError(
                f"{self.name}: an answer of {len(content)} bytes is no JSON object.",
                provider=self.name,
                category=ErrorCategory.SERVER_ERROR.value,
            ) from None

    def _unproven(self, handle: BatchHandle, why: str) -> BatchUnprovenError:
        return BatchUnprovenError(f"{self.name}: batch {handle.batch_id} {why}.", provider=self.name)


def _may_be(body: "dict[str, Any]", total: int, since: float) -> bool:
    """Whether a listed batch may be the one looked for. What it does not say, or not yet, rules nothing out."""
    created, counts = number(body.get("created_at")), body.get("request_counts") or {}
    return (
        body.get("endpoint") in (None, CHAT)
        and counts.get("total") in (None, 0, total)
        and (created is None or created >= since)
    )


def _gone(error: ProviderError) -> bool:
    return isinstance(error, BatchNotFoundError) or error.status_code == 410


def _explained(error: RejectedError, model: str) -> RejectedError:
    if error.code != NO_BATCH_ENDPOINT:
        return error
    return RejectedError(
        f"openrouter: {model} has no batch endpoint for this account. Nothing was bought. Take another model, or call "
        "LLMBatchResource.complete for each row.",
        provider=error.provider,
        status_code=error.status_code,
        code=error.code,
        category=error.category,
        hint="Take a model that OpenRouter can batch, or call LLMBatchResource.complete for each row.",
    )
