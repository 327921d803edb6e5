"""The HTTP surface: OpenAI's files, batches and realtime endpoints, and an admin corner for tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from dagster_llmbatch.simulator.faults import HEADER, CallFault
from dagster_llmbatch.simulator.rows import prompt_of, reply
from dagster_llmbatch.simulator.store import Store, StoredBatch

Handler = Callable[[Request], Awaitable[Response]]
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
WRITE_BYTES = 1 << 20


class ConnectionDropped(Exception):
    """Raised to make the server close the connection without an answer."""


def _error(status: int, message: str, *, code: "str | None" = None, kind: str = "invalid_request_error") -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)


class Wire:
    """The endpoints over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> "list[Route]":
        """All routes."""
        v1 = [
            ("/files", "POST", "upload", self.upload),
            ("/files/{id}", "GET", "file", self.file),
            ("/files/{id}", "DELETE", "delete", self.delete_file),
            ("/files/{id}/content", "GET", "content", self.content),
            ("/batches", "POST", "create", self.create),
            ("/batches", "GET", "list", self.list_batches),
            ("/batches/{id}", "GET", "status", self.batch),
            ("/batches/{id}/cancel", "POST", "cancel", self.cancel),
            ("/responses", "POST", "realtime", self.realtime),
            ("/chat/completions", "POST", "realtime", self.realtime),
        ]
        found = [Route(f"/v1{path}", self._guarded(name, h), methods=[method]) for path, method, name, h in v1]
        admin = [
            ("/admin/health", "GET", self.health),
            ("/admin/book", "GET", self.show_book),
            ("/admin/clock", "POST", self.move_clock),
            ("/admin/faults", "POST", self.add_fault),
            ("/admin/settings", "POST", self.change_settings),
            ("/admin/expire", "POST", self.expire),
        ]
        return found + [Route(path, handler, methods=[method]) for path, method, handler in admin]

    def _guarded(self, name: str, handler: Handler) -> Handler:
        """Authorization, the book of calls, and faults around one endpoint."""

        async def guarded(request: Request) -> Response:
            self._store.book.calls[name] += 1
            key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not key:
                return _error(401, "No API key provided.", code="invalid_api_key")
            fault = self._store.faults.take(name, request.headers.get(HEADER))
            before = await self._before(fault)
            if before is not None:
                return before
            answer = await handler(request)
            if fault is not None and fault.kind == "drop_after":
                raise ConnectionDropped
            if fault is not None and fault.kind == "status_after":
                return _error(int(fault.value), "simulated", kind="server_error")
            return answer

        return guarded

    @staticmethod
    async def _before(fault: "CallFault | None") -> "Response | None":
        if fault is None:
            return None
        if fault.kind == "delay":
            await asyncio.sleep(fault.value)
        if fault.kind == "drop_before":
            raise ConnectionDropped
        if fault.kind == "status_before":
            code = "rate_limit_exceeded" if fault.value == 429 else None
            return _error(int(fault.value), "simulated", code=code)
        return None

    async def upload(self, request: Request) -> Response:
        """POST /v1/files"""
        async with request.form(max_part_size=1 << 30) as form:
            content = form.get("file")
            if content is None or isinstance(content, str):
                return _error(400, "'file' is a required property")
            stored = self._store.new_file(content.filename or "upload", str(form.get("purpose")))
            with stored.path.open("wb") as target:
                while piece := await content.read(WRITE_BYTES):
                    target.write(piece)
        return JSONResponse(stored.to_json())

    async def file(self, request: Request) -> Response:
        """GET /v1/files/{id}"""
        found = self._store.files.get(request.path_params["id"])
        return JSONResponse(found.to_json()) if found else _error(404, "No such file object.")

    async def delete_file(self, request: Request) -> Response:
        """DELETE /v1/files/{id}"""
        found = self._store.files.pop(request.path_params["id"], None)
        if found is None:
            return _error(404, "No such file object.")
        return JSONResponse({"id": found.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """GET /v1/files/{id}/content"""
        found = self._store.files.get(request.path_params["id"])
        if found is None:
            return _error(404, "No such file object.")
        return FileResponse(found.path, media_type="application/octet-stream", filename=found.filename)

    async def create(self, request: Request) -> Response:
        """POST /v1/batches"""
        body = msgspec.json.decode(await request.body())
        if body.get("completion_window") != "24h":
            return _error(400, "Invalid value for completion_window.")
        if body.get("input_file_id") not in self._store.files:
            return _error(400, "No such input file.", code="invalid_request")
        batch = self._store.create(body["input_file_id"], body["endpoint"], body.get("metadata"))
        return JSONResponse(self._store.to_json(batch))

    async def batch(self, request: Request) -> Response:
        """GET /v1/batches/{id}"""
        found = self._store.batches.get(request.path_params["id"])
        return await self._shown(found, request)

    async def cancel(self, request: Request) -> Response:
        """POST /v1/batches/{id}/cancel"""
        found = self._store.batches.get(request.path_params["id"])
        if found is not None and self._store.look(found) not in ("completed", "failed", "expired", "cancelled"):
            found.cancel_at = found.cancel_at or self._store.clock.now()
        return await self._shown(found, request)

    async def _shown(self, batch: "StoredBatch | None", request: Request) -> Response:
        if batch is None:
            return _error(404, f"No batch found with id '{request.path_params['id']}'.")
        return JSONResponse(await asyncio.to_thread(self._store.to_json, batch))

    async def list_batches(self, request: Request) -> Response:
        """GET /v1/batches, newest first."""
        limit = min(int(request.query_params.get("limit", DEFAULT_PAGE)), LARGEST_PAGE)
        visible = self._store.clock.now() - self._store.list_lag
        shown = [b for b in reversed(self._store.batches.values()) if b.created_at <= visible]
        after = request.query_params.get("after")
        if after is not None:
            ids = [b.id for b in shown]
            shown = shown[ids.index(after) + 1 :] if after in ids else []
        page = [self._store.to_json(b) for b in shown[:limit]]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(shown) > limit,
            }
        )

    async def realtime(self, request: Request) -> Response:
        """POST /v1/responses and /v1/chat/completions"""
        body = msgspec.json.decode(await request.body())
        fault = self._store.faults.of_row(request.headers.get("x-request-id", ""), prompt_of(body))
        if fault in ("error_400", "error_429", "error_500"):
            return _error(int(fault[-3:]), "simulated", code="simulated")
        made = reply(body, request.url.path, fault, self._store.clock.now())
        self._store.book.pay(made["id"], (0, 0))
        return JSONResponse(made)

    async def health(self, _request: Request) -> Response:
        """GET /admin/health"""
        return JSONResponse({"status": "ok", "now": self._store.clock.now()})

    async def show_book(self, _request: Request) -> Response:
        """GET /admin/book"""
        return JSONResponse(self._store.book.to_json())

    async def move_clock(self, request: Request) -> Response:
        """POST /admin/clock {"advance": seconds}"""
        self._store.clock.advance(float((await request.json())["advance"]))
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
        except ValueError as error:
            return _error(400, str(error))
        return JSONResponse({"added": body})

    async def change_settings(self, request: Request) -> Response:
        """POST /admin/settings {"batch_seconds", "cancel_seconds", "list_lag", "token_limit"}"""
        body: dict[str, Any] = await request.json()
        unknown = set(body) - {"batch_seconds", "cancel_seconds", "list_lag", "token_limit"}
        if unknown:
            return _error(400, f"unknown settings {sorted(unknown)}")
        for name, value in body.items():
            setattr(self._store, name, value)
        return JSONResponse(body)

    async def expire(self, request: Request) -> Response:
        """POST /admin/expire {"batch_id", "share"}"""
        body: dict[str, Any] = await request.json()
        await asyncio.to_thread(self._store.expire, body["batch_id"], float(body.get("share", 0.0)))
        return JSONResponse({"expired": body["batch_id"]})


def build_app(store: Store) -> "Callable[..., Awaitable[None]]":
    """The ASGI application of one store."""
    inner = Starlette(routes=Wire(store).routes())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await inner(scope, receive, send)
        except ConnectionDropped:
            transport = getattr(getattr(send, "__self__", None), "transport", None)
            if transport is not None:
                transport.abort()

    return app
