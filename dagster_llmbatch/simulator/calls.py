"""What surrounds every call: the key, the book of calls, and faults."""

import asyncio
import uuid
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dagster_llmbatch.simulator.execution import Refusal
from dagster_llmbatch.simulator.faults import HEADER, CallFault
from dagster_llmbatch.simulator.wire import WRONG_KEY, Call, Handler, Wire

ABORT = "llmbatch.abort"
"""Where the ASGI scope holds what closes its connection."""
BOUGHT = ("create", "realtime")
"""The calls that cost money."""


class Dropped(Response):
    """No answer: the connection is closed."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Close, and stay until the server has noticed, or it would answer 500 itself."""
        scope[ABORT]()
        while (await receive())["type"] != "http.disconnect":
            continue


def guarded(wire: Wire, call: Call) -> Handler:
    """One endpoint with what surrounds it."""

    async def handled(request: Request) -> Response:
        wire.store.book.calls[call.name] += 1
        try:
            answer = await _before(wire, call.name, request)
            if isinstance(answer, CallFault) or answer is None:
                made = await call.handler(request)
                answer = made if answer is None else _after(wire, answer, made)
        except ClientDisconnect:  # in the middle of its body: nothing was done, and nobody is there to be told
            return Dropped()
        answer.headers.setdefault(wire.request_id_header, f"req_{uuid.uuid4().hex}")
        return answer

    return handled


async def _before(wire: Wire, name: str, request: Request) -> "Response | CallFault | None":
    """The answer without any work, or a fault for after it."""
    key = wire.key_of(request)
    if not key or key.startswith(WRONG_KEY):
        await _drain(request)
        return wire.refuse(wire.key_refused(key))
    try:
        fault = wire.store.faults.take(name, request.headers.get(HEADER))
    except ValueError as error:
        await _drain(request)
        return wire.refuse(Refusal(400, str(error), param=HEADER))
    if fault is not None and fault.kind == "delay":
        await request.body()  # taken, and worked on although nobody may wait for the answer any more
        await asyncio.sleep(fault.value)
    if fault is not None and fault.kind in ("drop_before", "status_before"):
        await _drain(request)
        return Dropped() if fault.kind == "drop_before" else _status(wire, int(fault.value))
    if wire.store.out_of_credit and name in BOUGHT:
        await _drain(request)
        return wire.refuse(wire.no_credit)
    return fault


def _after(wire: Wire, fault: CallFault, made: Response) -> Response:
    """What the client gets instead of the answer to work that is done."""
    if fault.kind == "drop_after":
        return Dropped()
    return _status(wire, int(fault.value)) if fault.kind == "status_after" else made


def _status(wire: Wire, status: int) -> Response:
    return wire.refuse(Refusal(status, "simulated"))


async def _drain(request: Request) -> None:
    """Take the whole body: a client that is still sending would see a broken pipe, not the answer."""
    async for _ in request.stream():
        continue
