"""One HTTP client a provider: where the key goes, what is retried, and what an answer means, decided once."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

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

RETRY_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Worth asking again where the call is idempotent."""
QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
    }
)
"""A person must pay or raise a limit: waiting does not help."""
QUEUE_FULL_CODES = frozenset({"token_limit_exceeded"})
ATTEMPTS = 5
LONGEST_WAIT = 60.0
"""Seconds waited at most before one retry."""
CONNECT_TIMEOUT = 10.0
CHUNK_BYTES = 1 << 20
# httpx raises these before a byte of the request left: the provider cannot have seen it
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class ProviderHttp:
    """HTTP to one provider. The key goes to its base address only: redirects are not followed."""

    def __init__(
        self,
        provider: str,
        *,
        base_url: str,
        headers: "Mapping[str, str]",
        timeout: float,
        transport: "httpx.BaseTransport | None" = None,
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> None:
        self.provider = provider
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
        for attempt in range(ATTEMPTS):
            try:
                return self._once(method, path, **options)
            except (TransientProviderError, RateLimitedError) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._sleep(backoff(attempt, error.retry_after))
        raise AssertionError("unreachable")

    def call_once(self, method: str, path: str, **options: Any) -> "dict[str, Any]":
        """A call that must not be sent twice.

        Raises AmbiguousCreateError wherever the provider may have done it: timeouts, resets, 408, 409, 5xx, an unreadable
        success. TransientProviderError only where nothing was sent.
        """
        try:
            response = self._client.request(method, path, **options)
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
            refused = self.error(response)
            if isinstance(refused, BatchNotFoundError):  # there is no batch yet that could be missing
                raise RejectedError(str(refused), provider=self.provider, status_code=404, code=refused.code)
            raise refused
        raise AmbiguousCreateError(
            f"{self.provider}: HTTP {response.status_code} to a request that it may have carried out.",
            provider=self.provider,
            status_code=response.status_code,
        )

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
                response = self._client.send(self._client.build_request("GET", path), stream=True)
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

    def _once(self, method: str, path: str, **options: Any) -> "dict[str, Any]":
        try:
            response = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._transport_error(error) from None
        if not response.is_success:
            raise self.error(response)
        body = _object(response.content)
        if body is None:
            raise TransientProviderError(
                f"{self.provider}: HTTP {response.status_code} without a JSON object.",
                provider=self.provider,
                status_code=response.status_code,
            )
        return body

    def _transport_error(self, error: httpx.HTTPError) -> TransientProviderError:
        return TransientProviderError(
            f"{self.provider} could not be reached ({type(error).__name__}).", provider=self.provider
        )

    def error(self, response: httpx.Response) -> ProviderError:
        """The error an answer means. Its message holds status, code and request id, never the provider's text."""
        code, quota, queue = _classify(response)
        status = response.status_code
        details = f"{self.provider}: HTTP {status}" + (f" {code}" if code else "")
        request_id = response.headers.get("x-request-id")
        details += f" (request {request_id})" if request_id else ""
        known = {
            "provider": self.provider,
            "status_code": status,
            "code": code,
            "retry_after": retry_after(response.headers, time.time()),
        }
        if queue:
            return QueueFullError(f"{details}: the batch queue is full.", **known)
        if quota or status == 402:
            return QuotaExhaustedError(
                f"{details}: no credit, or a spend limit is reached. Raise it and run again.", **known
            )
        if status == 429:
            return RateLimitedError(f"{details}: rate limited.", **known)
        if status == 404:
            return BatchNotFoundError(f"{details}: not found.", **known)
        if status in RETRY_STATUSES or status >= 500:
            return TransientProviderError(f"{details}.", **known)
        if status in (401, 403):
            return RejectedError(f"{details}: the API key is not accepted. Check the key and its project.", **known)
        return RejectedError(f"{details}: refused.", **known)


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
    try:
        found = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def _classify(response: httpx.Response) -> "tuple[str | None, bool, bool]":
    """(the provider's code, whether a quota is exhausted, whether the batch queue is full)."""
    body = _object(response.content) or {}
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    code, kind = error.get("code"), error.get("type")
    names = {str(name) for name in (code, kind) if name}
    message = str(error.get("message") or "").lower()
    queue = bool(names & QUEUE_FULL_CODES) or "enqueued token" in message
    return (str(code or kind) if names else None), bool(names & QUOTA_CODES), queue
