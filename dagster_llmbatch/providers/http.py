"""One HTTP client a provider: where the key goes, what is retried, and what an answer means, decided once."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
import msgspec

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    BatchNotFoundError,
    ProviderError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    TransientProviderError,
)
from dagster_llmbatch.providers.classify import HINTS, Classify
from dagster_llmbatch.providers.contract import ErrorCategory
from dagster_llmbatch.providers.lines import CHUNK_BYTES
from dagster_llmbatch.providers.tolerant import loads

ATTEMPTS = 5
LONGEST_WAIT = 60.0
"""Seconds waited at most before one retry."""
CONNECT_TIMEOUT = 10.0
# httpx raises these before a byte of the request left: the provider cannot have seen it
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


T = TypeVar("T")


class ProviderHttp:
    """HTTP to one provider. The key goes to its base address only: redirects are not followed."""

    def __init__(
        self,
        provider: str,
        *,
        base_url: str,
        headers: "Mapping[str, str]",
        classify: Classify,
        timeout: float,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        self.provider = provider
        self._classify = classify
        self._sleep = sleep
        self._client = httpx.Client(
            base_url=base_url.rstrip("/") + "/",
            headers=dict(headers),
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout)),
            transport=transport,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(self, method: str, path: str, **options: Any) -> "dict[str, Any]":
        """An idempotent call: retried on what may pass, JSON object back.

        Raises TransientProviderError or RateLimitedError once the retries are spent, and the other ProviderErrors at once.
        """
        return self.retried(lambda: self.body(self.exchange(method, path, **options)))

    def call_for_headers(self, method: str, path: str, **options: Any) -> "Mapping[str, str]":
        """As `call`, for answers whose headers count, whatever their body is."""
        return self.retried(lambda: self.exchange(method, path, **options).headers)

    def call_once(self, method: str, path: str, **options: Any) -> "dict[str, Any]":
        """A call that must not be sent twice.

        Raises AmbiguousCreateError wherever the provider may have done it: timeouts, resets, 408, 409, 5xx, an unreadable
        success. TransientProviderError only where nothing was sent.
        """
        try:
            response = self._send(method, path, **options)
        except NEVER_SENT as error:
            raise self._transport_error(error) from None
        except httpx.HTTPError as error:
            raise AmbiguousCreateError(
                f"{self.provider}: {type(error).__name__} after the request was sent.", provider=self.provider
            ) from None
        if response.is_success:
            body = _object(response.content)
            if body is not None:
                return body
        elif response.status_code not in (408, 409) and response.status_code < 500:
            raise self._refused(response)
        raise AmbiguousCreateError(
            f"{self.provider}: HTTP {response.status_code} to a request that it may have carried out.",
            provider=self.provider,
            status_code=response.status_code,
        )

    def call_realtime(self, path: str, content: bytes, **options: Any) -> "dict[str, Any]":
        """POST one request for an answer at once. Never resent here: an answer that was lost may have been billed."""
        sent = {"content-type": "application/json", **options.pop("headers", {})}
        try:
            response = self._send("POST", path, content=content, headers=sent, **options)
        except httpx.HTTPError as error:
            raise self._transport_error(error) from None
        if not response.is_success:
            raise self._refused(response)
        return self.body(response)

    def retried(self, call: "Callable[[], T]") -> "T":
        """What `call` gives, once it does not fail for a passing reason: it may be called several times."""
        for attempt in range(ATTEMPTS):
            try:
                return call()
            except (TransientProviderError, RateLimitedError) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._sleep(backoff(attempt, error.retry_after))
        raise AssertionError("unreachable")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._client.send(self._request(method, path, **options))

    def _request(self, method: str, path: str, **options: Any) -> httpx.Request:
        """The request, to our own host only: it carries the key."""
        request = self._client.build_request(method, path, **options)
        if request.url.copy_with(raw_path=b"/") != self._client.base_url.copy_with(raw_path=b"/"):
            raise RejectedError(
                f"{self.provider}: it answered with an address on another host ({request.url.host}), where the API key is not "
                "sent.",
                provider=self.provider,
            )
        return request

    def _refused(self, response: httpx.Response) -> ProviderError:
        """The error of a call that names no batch, so that 404 is a refusal."""
        found = self.error(response)
        if isinstance(found, BatchNotFoundError):
            return RejectedError(
                str(found),
                provider=self.provider,
                status_code=404,
                code=found.code,
                category=found.category,
                hint=found.hint,
            )
        return found

    @contextmanager
    def download(self, path: str) -> "Iterator[Iterator[bytes]]":
        """The body of a GET, in pieces. Only the start is retried: who reads on decides what a broken middle means."""
        response = self._open(path)
        try:
            yield response.iter_bytes(CHUNK_BYTES)
        except httpx.HTTPError as error:
            raise self._transport_error(error) from None
        finally:
            response.close()

    def _open(self, path: str) -> httpx.Response:
        for attempt in range(ATTEMPTS):
            try:
                response = self._client.send(self._request("GET", path), stream=True)
                if response.is_success:
                    return response
                response.read()
                response.close()
                raise self.error(response)
            except (httpx.HTTPError, TransientProviderError, RateLimitedError) as error:
                found = self._transport_error(error) if isinstance(error, httpx.HTTPError) else error
                if attempt == ATTEMPTS - 1:
                    raise found from None
                self._sleep(backoff(attempt, found.retry_after))
        raise AssertionError("unreachable")

    def exchange(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One try of one call: a successful response, or a ProviderError."""
        try:
            response = self._send(method, path, **options)
        except httpx.HTTPError as error:
            raise self._transport_error(error) from None
        if not response.is_success:
            raise self.error(response)
        return response

    def body(self, response: httpx.Response) -> "dict[str, Any]":
        """The JSON object of a successful answer."""
        body = _object(response.content)
        if body is None:
            raise TransientProviderError(
                f"{self.provider}: HTTP {response.status_code} without a JSON object.",
                provider=self.provider,
                status_code=response.status_code,
                category=ErrorCategory.SERVER_ERROR.value,
            )
        return body

    def _transport_error(self, error: httpx.HTTPError) -> TransientProviderError:
        timed_out = isinstance(error, httpx.TimeoutException) and not isinstance(error, NEVER_SENT)
        category = ErrorCategory.API_TIMEOUT if timed_out else ErrorCategory.CONNECTION_ERROR
        return TransientProviderError(
            f"{self.provider} could not be reached ({type(error).__name__}).",
            provider=self.provider,
            category=category.value,
            hint=HINTS[category],
        )

    def error(self, response: httpx.Response) -> ProviderError:
        """The error an answer means. Its message holds status, code and request id, never the provider's text."""
        status = response.status_code
        fault = self._classify(status, _object(response.content) or {})
        category = fault.category
        details = f"{self.provider}: HTTP {status}" + (f" {fault.code}" if fault.code else "")
        request_id = next((response.headers[n] for n in REQUEST_IDS if n in response.headers), None)
        details += f" (request {request_id})" if request_id else ""
        hint = HINTS.get(category)
        asked = retry_after(response.headers, time.time())
        known = {
            "provider": self.provider,
            "status_code": status,
            "code": fault.code,
            "retry_after": fault.retry_after if asked is None else asked,
            "category": category.value,
            "hint": hint,
        }
        if status == 404:
            return BatchNotFoundError(f"{details}: not found.", **known)
        kind, what = _CLASSES.get(category, (RejectedError, "refused"))
        return kind(f"{details}: {what}." + (f" {hint}" if hint else ""), **known)


_CLASSES: "dict[ErrorCategory, tuple[type[ProviderError], str]]" = {
    ErrorCategory.QUEUE_FULL: (QueueFullError, "the batch queue is full"),
    ErrorCategory.INSUFFICIENT_BALANCE: (QuotaExhaustedError, "no credit, or a spend limit is reached"),
    ErrorCategory.RATE_LIMIT: (RateLimitedError, "rate limited"),
    ErrorCategory.API_TIMEOUT: (TransientProviderError, "timed out"),
    ErrorCategory.SERVER_ERROR: (TransientProviderError, "the provider failed"),
    ErrorCategory.CONNECTION_ERROR: (TransientProviderError, "the provider failed"),
    ErrorCategory.AUTH: (RejectedError, "the API key is not accepted"),
}
REQUEST_IDS = ("x-request-id", "request-id", "x-generation-id")


def backoff(attempt: int, floor: "float | None") -> float:
    """Seconds before the next try: 0.5 doubling, never below what the provider asked for, jitter upwards only."""
    wait = max(0.5 * 2**attempt, floor or 0.0)
    return min(wait * (1 + 0.25 * random.random()), LONGEST_WAIT)


def retry_after(headers: "Mapping[str, str]", now: float) -> "float | None":
    """Seconds a provider asked to wait (`retry-after-ms`, or `retry-after` in seconds or as an HTTP date)."""
    if (milliseconds := headers.get("retry-after-ms")) is not None and _number(milliseconds) is not None:
        return max(0.0, float(milliseconds)) / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        until = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
    return max(0.0, (until - datetime.fromtimestamp(now, timezone.utc)).total_seconds())


def _number(text: str) -> "float | None":
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def _object(content: bytes) -> "dict[str, Any] | None":
    """The JSON object of an answer, also where it stands alone in a list, as some of Google's errors do."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            found = loads(content)  # half a surrogate pair costs no answer
        except ValueError:
            return None
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    return found if isinstance(found, dict) else None
