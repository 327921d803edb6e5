"""HTTP to a provider: what is retried, how long is waited, what an answer means, and where the key goes."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

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
from dagster_llmbatch.providers.http import ATTEMPTS, LONGEST_WAIT, ProviderHttp, backoff, retry_after
from dagster_llmbatch.providers.lines import split_lines
from dagster_llmbatch.providers.openai_faults import classify

SECRET = "sk-very-secret"
TEXT = "the provider's own words"
NOW = 1_792_000_000.0


def problem(code: "str | None" = None, kind: "str | None" = None, message: str = TEXT) -> "dict[str, Any]":
    """An error body."""
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


class Wire:
    """A transport that gives prepared answers, the last one again and again, and notes requests and waits."""

    def __init__(self, *answers: "httpx.Response | Exception") -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self.http = ProviderHttp(
            "openai",
            base_url="https://api.test/v1",
            headers={"authorization": f"Bearer {SECRET}"},
            classify=classify,
            timeout=5.0,
            transport=httpx.MockTransport(self._answer),
            sleep=self.waits.append,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)


ANSWERS: "list[tuple[str, int, dict[str, Any], type[ProviderError]]]" = [
    ("bad request", 400, problem("x"), RejectedError),
    ("bad key", 401, problem("invalid_api_key"), RejectedError),
    ("forbidden", 403, problem(), RejectedError),
    ("too large", 413, problem(), RejectedError),
    ("unprocessable", 422, problem(), RejectedError),
    ("paid out", 402, problem(), QuotaExhaustedError),
    ("rate", 429, problem("rate_limit_exceeded"), RateLimitedError),
    ("rate, no body", 429, {}, RateLimitedError),
    ("quota", 429, problem("insufficient_quota"), QuotaExhaustedError),
    ("quota by type", 429, problem(None, "insufficient_quota"), QuotaExhaustedError),
    ("billing limit 429", 429, problem("billing_hard_limit_reached"), QuotaExhaustedError),
    ("billing limit 400", 400, problem("billing_hard_limit_reached"), QuotaExhaustedError),
    ("credit", 429, problem("credit_balance_exhausted"), QuotaExhaustedError),
    ("org spend", 429, problem("organization_spend_limit_exceeded"), QuotaExhaustedError),
    ("project spend", 429, problem("project_spend_limit_exceeded"), QuotaExhaustedError),
    ("org usage", 429, problem("organization_usage_limit_exceeded"), QuotaExhaustedError),
    ("queue 400", 400, problem("token_limit_exceeded"), QueueFullError),
    ("queue 429 by text", 429, problem("x", message="Enqueued token limit reached for m"), QueueFullError),
]
AMBIGUOUS = [408, 409, 500, 502, 503, 504, 520, 529]


@pytest.mark.parametrize(("status", "body", "kind"), [a[1:] for a in ANSWERS], ids=[a[0] for a in ANSWERS])
def test_a_clear_refusal_of_a_create(status: int, body: "dict[str, Any]", kind: "type[ProviderError]") -> None:
    """Sent once; the error's class says what to do, and holds status, code and request id but no text, no key."""
    wire = Wire(httpx.Response(status, json=body, headers={"x-request-id": "req_7"}))
    with pytest.raises(ProviderError) as caught:
        wire.http.call_once("POST", "batches", json={})
    error = caught.value
    assert type(error) is kind
    assert (error.provider, error.status_code) == ("openai", status)
    assert "req_7" in str(error)
    assert TEXT not in str(error)
    assert SECRET not in f"{error!s}{error!r}{vars(error)}"
    assert len(wire.requests) == 1
    assert wire.waits == []


@pytest.mark.parametrize("status", AMBIGUOUS)
def test_a_create_that_may_have_worked_is_ambiguous(status: int) -> None:
    """408, 409 and 5xx are never resent and never called a refusal."""
    wire = Wire(httpx.Response(status, json=problem("server_error")))
    with pytest.raises(AmbiguousCreateError) as caught:
        wire.http.call_once("POST", "batches", json={})
    assert caught.value.status_code == status
    assert len(wire.requests) == 1


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"id": "bat', b"[]", b"null", b'"x"'])
def test_an_unreadable_success_of_a_create_is_ambiguous(content: bytes) -> None:
    """A 200 without an object means that a batch may exist."""
    wire = Wire(httpx.Response(200, content=content))
    with pytest.raises(AmbiguousCreateError):
        wire.http.call_once("POST", "batches", json={})
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ReadTimeout(SECRET),
        httpx.WriteTimeout(SECRET),
        httpx.ReadError(SECRET),
        httpx.WriteError(SECRET),
        httpx.RemoteProtocolError(SECRET),
        httpx.DecodingError(SECRET),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_create_lost_on_the_way_is_ambiguous(failure: Exception) -> None:
    """Once the request may have left, nothing is resent and nothing of httpx's text is shown."""
    wire = Wire(failure)
    with pytest.raises(AmbiguousCreateError) as caught:
        wire.http.call_once("POST", "batches", json={})
    assert len(wire.requests) == 1
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("x"), httpx.ConnectTimeout("x"), httpx.PoolTimeout("x")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_create_that_never_left_is_transient(failure: Exception) -> None:
    """Without a connection the provider saw nothing: safe to try again later, not ambiguous."""
    wire = Wire(failure)
    with pytest.raises(TransientProviderError):
        wire.http.call_once("POST", "batches", json={})
    assert len(wire.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_idempotent_calls_are_retried(status: int) -> None:
    """What may pass is asked again, with a wait before each."""
    wire = Wire(httpx.Response(status, json=problem()), httpx.Response(200, json={"id": "x"}))
    assert wire.http.call("GET", "batches/x") == {"id": "x"}
    assert len(wire.requests) == 2
    assert len(wire.waits) == 1


@pytest.mark.parametrize("failure", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.RemoteProtocolError("x")])
def test_lost_connections_are_retried(failure: Exception) -> None:
    """An idempotent call outlives a broken connection."""
    wire = Wire(failure, httpx.Response(200, json={"ok": 1}))
    assert wire.http.call("GET", "batches/x") == {"ok": 1}


def test_retries_end() -> None:
    """After the last attempt the error is raised, without one more wait; waits grow."""
    wire = Wire(httpx.Response(503))
    with pytest.raises(TransientProviderError) as caught:
        wire.http.call("GET", "batches/x")
    assert caught.value.status_code == 503
    assert len(wire.requests) == ATTEMPTS
    assert len(wire.waits) == ATTEMPTS - 1
    assert wire.waits == sorted(wire.waits)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, problem(), RejectedError),
        (401, problem(), RejectedError),
        (404, problem(), BatchNotFoundError),
        (429, problem("insufficient_quota"), QuotaExhaustedError),
    ],
)
def test_what_a_retry_cannot_mend_is_raised_at_once(
    status: int, body: "dict[str, Any]", kind: "type[ProviderError]"
) -> None:
    """No second call and no wait."""
    wire = Wire(httpx.Response(status, json=body))
    with pytest.raises(kind):
        wire.http.call("GET", "batches/x")
    assert len(wire.requests) == 1
    assert wire.waits == []


def test_retry_after_is_the_least_wait() -> None:
    """The provider's wait is a floor, with jitter upwards only."""
    wire = Wire(httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(200, json={}))
    wire.http.call("GET", "batches/x")
    assert 7.0 <= wire.waits[0] <= 7.0 * 1.25


@pytest.mark.parametrize("attempt", range(8))
@pytest.mark.parametrize("floor", [None, 0.0, 3.0, 1000.0])
def test_backoff_has_a_floor_and_a_cap(attempt: int, floor: "float | None") -> None:
    """Never below half a second doubling or the provider's wish, never above the cap."""
    least = min(max(0.5 * 2**attempt, floor or 0.0), LONGEST_WAIT)
    assert all(least <= backoff(attempt, floor) <= LONGEST_WAIT for _ in range(20))


def test_backoff_spreads() -> None:
    """Two clients refused at once do not come back at once."""
    assert len({backoff(1, 2.0) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Tue, 13 Oct 2026 17:47:10 GMT"}, 30.0),
        ({"retry-after": "Tue, 13 Oct 2026 17:00:00 GMT"}, 0.0),
        ({"retry-after": "later"}, None),
        ({"retry-after": ""}, None),
    ],
    ids=str,
)
def test_retry_after_forms(headers: "dict[str, str]", seconds: "float | None") -> None:
    """Milliseconds, seconds, and HTTP dates; what cannot be read is no wish."""
    now = 1_791_913_600.0  # Tue, 13 Oct 2026 17:46:40 GMT
    assert retry_after(httpx.Headers(headers), now) == seconds


def test_negative_milliseconds_are_no_wait() -> None:
    """A wait is never negative."""
    assert retry_after({"retry-after-ms": "-5"}, NOW) == 0.0


def test_the_wish_stands_in_the_error() -> None:
    """The core can schedule by what the provider asked."""
    wire = Wire(httpx.Response(429, headers={"retry-after": "90"}))
    with pytest.raises(RateLimitedError) as caught:
        wire.http.call_once("POST", "batches", json={})
    assert caught.value.retry_after == 90.0


def test_a_redirect_is_not_followed() -> None:
    """The key goes to the base address only."""
    wire = Wire(httpx.Response(307, headers={"location": "https://elsewhere.test/"}))
    with pytest.raises(RejectedError):
        wire.http.call("GET", "batches/x")
    assert [request.url.host for request in wire.requests] == ["api.test"]
    assert wire.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_base_address_keeps_its_path() -> None:
    """Gateways under a path are reached, with or without a final slash."""
    wire = Wire(httpx.Response(200, json={}))
    wire.http.call("GET", "batches/x")
    assert str(wire.requests[0].url) == "https://api.test/v1/batches/x"


def test_a_download_is_retried_at_its_start() -> None:
    """A 503 or a refused connection before the first byte is asked again."""
    wire = Wire(httpx.Response(503), httpx.ConnectError("x"), httpx.Response(200, content=b"abc"))
    with wire.http.download("files/f/content") as pieces:
        assert b"".join(pieces) == b"abc"
    assert len(wire.waits) == 2


def test_a_download_of_a_missing_file_is_not_found() -> None:
    """A deleted result file is named as such, at once."""
    wire = Wire(httpx.Response(404, json=problem()))
    with pytest.raises(BatchNotFoundError), wire.http.download("files/f/content") as pieces:
        list(pieces)
    assert len(wire.requests) == 1


class Broken(httpx.SyncByteStream):
    """A body whose connection is lost after its first bytes."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> "Iterator[bytes]":
        yield b"first\n"
        raise httpx.ReadError(SECRET)

    def close(self) -> None:
        """Note that the response was closed."""
        self.closed = True


def _serving(answer: "Callable[[httpx.Request], httpx.Response]") -> ProviderHttp:
    transport = httpx.MockTransport(answer)
    return ProviderHttp(
        "openai", base_url="https://api.test", headers={}, classify=classify, timeout=1.0, transport=transport
    )


def test_a_download_lost_in_the_middle_is_transient() -> None:
    """It is told from an end, is not resumed, and its connection is closed."""
    body, calls = Broken(), []
    http = _serving(lambda request: calls.append(1) or httpx.Response(200, stream=body))
    with pytest.raises(TransientProviderError) as caught, http.download("files/f/content") as pieces:
        list(pieces)
    assert SECRET not in str(caught.value)
    assert body.closed
    assert len(calls) == 1


def test_a_success_without_an_object_is_transient() -> None:
    """A proxy's page in place of JSON is asked again, then an error."""
    wire = Wire(httpx.Response(200, content=b"<html>"))
    with pytest.raises(TransientProviderError):
        wire.http.call("GET", "batches/x")
    assert len(wire.requests) == ATTEMPTS


def test_the_key_stands_in_no_representation() -> None:
    """Neither the client nor what it holds shows the key."""
    http = Wire(httpx.Response(200, json={})).http
    assert SECRET not in f"{http!r}{vars(http)!r}"


LINES = 'é{"a":"\u2028\u0085\x0b\x0c"}'.encode()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_lines_split_at_newlines_only(size: int, ending: bytes, final: bool) -> None:
    """However the bytes arrive: LF or CRLF, with or without a last one; U+2028 and its like end no line."""
    content = ending.join([LINES, b"", b"  ", LINES]) + (ending if final else b"")
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    assert list(split_lines(pieces)) == [LINES, LINES]


def test_an_empty_file_has_no_lines() -> None:
    """No bytes, or only blank lines, are no rows."""
    assert list(split_lines([])) == []
    assert list(split_lines([b"\n", b"\r\n"])) == []
