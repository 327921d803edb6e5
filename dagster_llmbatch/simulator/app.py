"""The HTTP surface: OpenAI's files, batches and realtime endpoints, and an admin corner for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from dagster_llmbatch.simulator.calls import ABORT, guarded, problem
from dagster_llmbatch.simulator.checks import UNKNOWN_MODEL, wrong_create
from dagster_llmbatch.simulator.rows import RESPONSES, outcome_of, prompt_of, usage_of
from dagster_llmbatch.simulator.store import Store, StoredBatch, StoredFile

DEFAULT_PAGE, LARGEST_PAGE = 20, 100
LARGEST_FILES_PAGE = 10_000
WRITE_BYTES = 1 << 20


class Wire:
    """The endpoints over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> "list[Route]":
        """All routes."""
        v1 = [
            ("/files", "POST", "upload", self.upload),
            ("/files", "GET", "files", self.list_files),
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
        found = [Route(f"/v1{path}", guarded(self._store, name, h), methods=[method]) for path, method, name, h in v1]
        admin = [
            ("/admin/health", "GET", self.health),
            ("/admin/book", "GET", self.show_book),
            ("/admin/clock", "POST", self.move_clock),
            ("/admin/faults", "POST", self.add_fault),
            ("/admin/settings", "POST", self.change_settings),
            ("/admin/expire", "POST", self.expire),
        ]
        return found + [Route(path, handler, methods=[method]) for path, method, handler in admin]

    async def upload(self, request: Request) -> Response:
        """POST /v1/files"""
        async with request.form(max_part_size=1 << 30) as form:
            content = form.get("file")
            purpose = form.get("purpose")
            if content is None or isinstance(content, str):
                return problem(400, "'file' is a required property")
            if not isinstance(purpose, str):
                return problem(400, "'purpose' is a required property")
            stored = self._store.new_file(content.filename or "upload", purpose)
            with stored.path.open("wb") as target:
                while piece := await content.read(WRITE_BYTES):
                    target.write(piece)
        return JSONResponse(stored.to_json())

    async def list_files(self, request: Request) -> Response:
        """GET /v1/files, newest first."""
        purpose = request.query_params.get("purpose")
        found = [f for f in reversed(list(self._store.files.values())) if purpose in (None, f.purpose)]
        return _page(found, request, LARGEST_FILES_PAGE, LARGEST_FILES_PAGE, StoredFile.to_json)

    async def file(self, request: Request) -> Response:
        """GET /v1/files/{id}"""
        found = self._store.files.get(request.path_params["id"])
        return JSONResponse(found.to_json()) if found else problem(404, "No such file object.")

    async def delete_file(self, request: Request) -> Response:
        """DELETE /v1/files/{id}"""
        found = self._store.files.pop(request.path_params["id"], None)
        if found is None:
            return problem(404, "No such file object.")
        return JSONResponse({"id": found.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """GET /v1/files/{id}/content"""
        found = self._store.files.get(request.path_params["id"])
        if found is None:
            return problem(404, "No such file object.")
        return FileResponse(found.path, media_type="application/octet-stream", filename=found.filename)

    async def create(self, request: Request) -> Response:
        """POST /v1/batches"""
        body = await _json(request)
        wrong = wrong_create(body)
        if wrong is not None:
            return problem(400, wrong[0], param=wrong[1])
        batch = self._store.create(body["input_file_id"], body["endpoint"], body.get("metadata"))
        return JSONResponse(self._store.to_json(batch, "validating"))

    async def batch(self, request: Request) -> Response:
        """GET /v1/batches/{id}"""
        found = self._store.batches.get(request.path_params["id"])
        return await self._shown(found, request)

    async def cancel(self, request: Request) -> Response:
        """POST /v1/batches/{id}/cancel"""
        found = self._store.batches.get(request.path_params["id"])
        if found is None:
            return await self._shown(None, request)
        status = await asyncio.to_thread(self._store.cancel, found)
        return JSONResponse(self._store.to_json(found, status))

    async def _shown(self, batch: "StoredBatch | None", request: Request) -> Response:
        if batch is None:
            return problem(404, f"No batch found with id '{request.path_params['id']}'.")
        return JSONResponse(await asyncio.to_thread(self._store.to_json, batch))

    async def list_batches(self, request: Request) -> Response:
        """GET /v1/batches, newest first."""
        visible = self._store.clock.now() - self._store.list_lag
        shown = [b for b in reversed(self._store.batches.values()) if b.created_at <= visible]
        return await asyncio.to_thread(_page, shown, request, DEFAULT_PAGE, LARGEST_PAGE, self._store.to_json)

    async def realtime(self, request: Request) -> Response:
        """POST /v1/responses and /v1/chat/completions"""
        body = await _json(request)
        if not isinstance(body, dict) or not isinstance(body.get("model"), str):
            return problem(400, "you must provide a model parameter", param="model")
        if body["model"].startswith(UNKNOWN_MODEL):
            status = 400 if request.url.path == RESPONSES else 404
            return problem(status, "The requested model does not exist.", code="model_not_found", param="model")
        if body.get("stream"):
            return problem(400, "The simulator does not stream.", param="stream")
        prompt = prompt_of(body)
        fault = self._store.faults.of_row(prompt, prompt)
        status, made = outcome_of(body, request.url.path, fault, self._store.clock.now())
        if status == 200:
            self._store.book.pay(made["id"], usage_of(made))
        return JSONResponse(made, status)

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
            return problem(400, "'advance' is a number of seconds.", param="advance")
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
            return problem(400, f"{error} is missing.")
        except ValueError as error:
            return problem(400, str(error))
        return JSONResponse({"added": body})

    async def change_settings(self, request: Request) -> Response:
        """POST /admin/settings {"batch_seconds", "cancel_seconds", "list_lag", "token_limit"}"""
        body: dict[str, Any] = await request.json()
        unknown = set(body) - {"batch_seconds", "cancel_seconds", "list_lag", "token_limit"}
        if unknown:
            return problem(400, f"unknown settings {sorted(unknown)}")
        for name, value in body.items():
            setattr(self._store, name, value)
        return JSONResponse(body)

    async def expire(self, request: Request) -> Response:
        """POST /admin/expire {"batch_id", "share"}"""
        body: dict[str, Any] = await request.json()
        if body.get("batch_id") not in self._store.batches:
            return problem(404, "No such batch.", param="batch_id")
        await asyncio.to_thread(self._store.expire, body["batch_id"], float(body.get("share", 0.0)))
        return JSONResponse({"expired": body["batch_id"]})


async def _json(request: Request) -> Any:
    """The body, or None for what is not JSON."""
    try:
        return msgspec.json.decode(await request.body())
    except msgspec.DecodeError:
        return None


def _page(
    found: "Sequence[Any]", request: Request, usual: int, largest: int, to_json: "Callable[[Any], dict[str, Any]]"
) -> Response:
    """One page of a list, by `limit` and `after`."""
    try:
        limit = int(request.query_params.get("limit", usual))
    except ValueError:
        limit = 0
    if not 1 <= limit <= largest:
        return problem(400, f"limit is a number from 1 to {largest}.", param="limit")
    after = request.query_params.get("after")
    if after is not None:
        ids = [one.id for one in found]
        found = found[ids.index(after) + 1 :] if after in ids else []
    data = [to_json(one) for one in found[:limit]]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return JSONResponse({"object": "list", "data": data, **ends, "has_more": len(found) > limit})


def build_app(store: Store) -> "Callable[..., Awaitable[None]]":
    """The ASGI application of one store."""
    inner = Starlette(routes=Wire(store).routes())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        # Starlette wraps `send`, so a route can reach uvicorn's transport only through the scope.
        await inner({**scope, ABORT: send.__self__.transport.abort}, receive, send)

    return app
