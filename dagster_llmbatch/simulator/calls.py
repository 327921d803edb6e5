"""What surrounds every call: the key, the book of calls, and faults."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dagster_llmbatch.simulator.faults import HEADER, CallFault
from dagster_llmbatch.simulator.store import Store

Handler = Callable[[Request], Awaitable[Response]]
ABORT = "llmbatch.abort"
"""Where the ASGI scope holds what closes its connection."""


class Dropped(Response):
    """No answer: the connection is closed."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Close, and stay until the server has noticed, or it would answer 500 itself."""
        scope[ABORT]()
        while (await receive())["type"] != "http.disconnect":
            continue


def problem(
    status: int, message: str, *, code: "str | None" = None, kind: "str | None" = None, param: "str | None" = None
) -> Response:
    """An error body of the provider's shape."""
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


def guarded(store: Store, name: str, handler: Handler) -> Handler:
    """One endpoint with what surrounds it."""

    async def call(request: Request) -> Response:
        store.book.calls[name] += 1
        answer = await _before(store, name, request)
        if isinstance(answer, CallFault) or answer is None:
            made = await handler(request)
            answer = made if answer is None else _after(answer, made)
        answer.headers["x-request-id"] = f"req_{uuid.uuid4().hex}"
        return answer

    return call


async def _before(store: Store, name: str, request: Request) -> "Response | CallFault | None":
    """The answer without any work, or a fault for after it."""
    if not request.headers.get("authorization", "").removeprefix("Bearer").strip():
        await _drain(request)
        return problem(401, "No API key provided.", code="invalid_api_key")
    try:
        fault = store.faults.take(name, request.headers.get(HEADER))
    except ValueError as error:
        await _drain(request)
        return problem(400, str(error), param=HEADER)
    if fault is None:
        return None
    if fault.kind == "delay":
        await asyncio.sleep(fault.value)
    if fault.kind in ("drop_before", "status_before"):
        await _drain(request)
        return Dropped() if fault.kind == "drop_before" else _status(int(fault.value))
    return fault


def _after(fault: CallFault, made: Response) -> Response:
    """What the client gets instead of the answer to work that is done."""
    if fault.kind == "drop_after":
        return Dropped()
    return _status(int(fault.value)) if fault.kind == "status_after" else made


def _status(status: int) -> Response:
    return problem(status, "simulated", code="rate_limit_exceeded" if status == 429 else None)


async def _drain(request: Request) -> None:
    """Take the whole body: a client that is still sending would see a broken pipe, not the answer."""
    async for _ in request.stream():
        continue
