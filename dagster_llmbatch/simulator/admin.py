"""The corner for tests that reach the simulator over HTTP only: clock, faults, settings, expiry and the book."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dagster_llmbatch.simulator.store import SETTINGS, Store


class Admin:
    """The admin endpoints over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> "list[Route]":
        """All of them."""
        found = [
            ("health", "GET", self.health),
            ("book", "GET", self.show_book),
            ("clock", "POST", self.move_clock),
            ("faults", "POST", self.add_fault),
            ("settings", "POST", self.change_settings),
            ("expire", "POST", self.expire),
        ]
        return [Route(f"/admin/{name}", handler, methods=[method]) for name, method, handler in found]

    async def health(self, _request: Request) -> Response:
        """GET /admin/health"""
        return JSONResponse({"status": "ok", "now": self._store.clock.now()})

    async def show_book(self, _request: Request) -> Response:
        """GET /admin/book"""
        return JSONResponse(self._store.book.to_json())

    async def move_clock(self, request: Request) -> Response:
        """POST /admin/clock {"advance": seconds}"""
        body: dict[str, Any] = await request.json()
        if not isinstance(body.get("advance"), int | float):
            return _problem(400, "'advance' is a number of seconds.")
        self._store.clock.advance(body["advance"])
        return JSONResponse({"now": self._store.clock.now()})

    async def add_fault(self, request: Request) -> Response:
        """POST /admin/faults {"where", "kind", "value", "times"} or {"rows", "containing", "fraction"}"""
        body: dict[str, Any] = await request.json()
        try:
            if "rows" in body:
                self._store.faults.add_rows(
                    body["rows"], containing=body.get("containing", ""), fraction=body.get("fraction", 1.0)
                )
            else:
                self._store.faults.add(body["where"], body["kind"], body.get("value", 0.0), times=body.get("times", 1))
        except KeyError as error:
            return _problem(400, f"{error} is missing.")
        except ValueError as error:
            return _problem(400, str(error))
        return JSONResponse({"added": body})

    async def change_settings(self, request: Request) -> Response:
        """POST /admin/settings, any of store.SETTINGS"""
        body: dict[str, Any] = await request.json()
        unknown = set(body) - set(SETTINGS)
        if unknown:
            return _problem(400, f"unknown settings {sorted(unknown)}")
        for name, value in body.items():
            setattr(self._store, name, value)
        return JSONResponse(body)

    async def expire(self, request: Request) -> Response:
        """POST /admin/expire {"batch_id", "share"}"""
        body: dict[str, Any] = await request.json()
        if body.get("batch_id") not in self._store.batches:
            return _problem(404, "No such batch.")
        await asyncio.to_thread(self._store.expire, body["batch_id"], float(body.get("share", 0.0)))
        return JSONResponse({"expired": body["batch_id"]})


def _problem(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)
