"""OpenAI's wire: files, batches and realtime endpoints."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from dagster_llmbatch.simulator.batches import DAY, RUN, TERMINAL, VALIDATED, Asked, Row, StoredBatch
from dagster_llmbatch.simulator.execution import Format, Outcome, Refusal, hash_of
from dagster_llmbatch.simulator.store import StoredFile, new_id
from dagster_llmbatch.simulator.wire import Call, Wire, json_of, limit_of
from dagster_llmbatch.simulator.wires.openai_input import InputFile, entry, wrong_create
from dagster_llmbatch.simulator.wires.openai_replies import FORMATS, dated

DEFAULT_PAGE, LARGEST_PAGE = 20, 100
LARGEST_FILES_PAGE = 10_000
WRITE_BYTES = 1 << 20
NO_CREDIT = "insufficient_quota"
_TYPES = {429: "rate_limit_exceeded"}
_CODES = {429: "rate_limit_exceeded", 500: "server_error"}


class OpenAIWire(Wire):
    """`/v1`."""

    provider = "openai"
    base_path = "/v1"
    request_id_header = "x-request-id"
    no_credit = Refusal(429, "You exceeded your current quota.", code=NO_CREDIT)

    def calls(self) -> "list[Call]":
        """All endpoints."""
        return [
            Call("upload", "POST", "/files", self.upload),
            Call("files", "GET", "/files", self.list_files),
            Call("file", "GET", "/files/{id}", self.show_file),
            Call("delete", "DELETE", "/files/{id}", self.delete_file),
            Call("content", "GET", "/files/{id}/content", self.content),
            Call("create", "POST", "/batches", self.create),
            Call("list", "GET", "/batches", self.list_batches),
            Call("status", "GET", "/batches/{id}", self.show_batch),
            Call("cancel", "POST", "/batches/{id}/cancel", self.cancel),
            Call("realtime", "POST", "/responses", self.reply),
            Call("realtime", "POST", "/chat/completions", self.reply),
        ]

    def refuse(self, refusal: Refusal) -> Response:
        """`{"error": {"message", "type", "param", "code"}}`"""
        return JSONResponse(_problem(refusal), refusal.status)

    async def upload(self, request: Request) -> Response:
        """POST /v1/files"""
        async with request.form(max_part_size=1 << 30) as form:
            content = form.get("file")
            purpose = form.get("purpose")
            if content is None or isinstance(content, str):
                return self.refuse(Refusal(400, "'file' is a required property"))
            if not isinstance(purpose, str):
                return self.refuse(Refusal(400, "'purpose' is a required property"))
            name = content.filename or "upload"
            stored = self.store.new_file(self.provider, new_id("file-", 24), name, purpose)
            with stored.path.open("wb") as target:
                while piece := await content.read(WRITE_BYTES):
                    target.write(piece)
        return JSONResponse(_file_json(stored))

    async def list_files(self, request: Request) -> Response:
        """GET /v1/files, newest first."""
        purpose = request.query_params.get("purpose")
        found = [file for file in self.store.files_of(self.provider) if purpose in (None, file.purpose)]
        return self._page(found, request, LARGEST_FILES_PAGE, LARGEST_FILES_PAGE, _file_json)

    async def show_file(self, request: Request) -> Response:
        """GET /v1/files/{id}"""
        found = self._file(request)
        return self._no_file() if found is None else JSONResponse(_file_json(found))

    async def delete_file(self, request: Request) -> Response:
        """DELETE /v1/files/{id}"""
        found = self._file(request)
        if found is None:
            return self._no_file()
        del self.store.files[found.id]
        return JSONResponse({"id": found.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """GET /v1/files/{id}/content"""
        found = self._file(request)
        if found is None:
            return self._no_file()
        return FileResponse(found.path, media_type="application/octet-stream", filename=found.filename)

    def _file(self, request: Request) -> "StoredFile | None":
        return self.store.file(self.provider, request.path_params["id"])

    def _no_file(self) -> Response:
        return self.refuse(Refusal(404, "No such file object."))

    async def create(self, request: Request) -> Response:
        """POST /v1/batches. What is wrong with the lines shows later."""
        body = await json_of(request)
        wrong = wrong_create(body)
        if wrong is not None:
            return self.refuse(Refusal(400, wrong[0], param=wrong[1]))
        facts = {name: body.get(name) for name in ("input_file_id", "endpoint", "metadata")}
        noted = {"metadata": facts["metadata"], "input_file_id": facts["input_file_id"]}
        batch = self.store.create(self, new_id("batch_"), facts, noted)
        return JSONResponse(self.to_json(batch, "validating"))

    async def show_batch(self, request: Request) -> Response:
        """GET /v1/batches/{id}"""
        found = self.own(request)
        if found is None:
            return self._no_batch(request)
        return JSONResponse(await asyncio.to_thread(self.to_json, found))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/batches/{id}/cancel"""
        found = self.own(request)
        if found is None:
            return self._no_batch(request)
        status = await asyncio.to_thread(self.store.cancel, found)
        return JSONResponse(self.to_json(found, status))

    def _no_batch(self, request: Request) -> Response:
        return self.refuse(Refusal(404, f"No batch found with id '{request.path_params['id']}'."))

    async def list_batches(self, request: Request) -> Response:
        """GET /v1/batches, newest first."""
        found = self.store.listed(self.provider)
        return await asyncio.to_thread(self._page, found, request, DEFAULT_PAGE, LARGEST_PAGE, self.to_json)

    def _page(
        self, found: "Sequence[Any]", request: Request, usual: int, largest: int, to_json: "Callable[[Any], Any]"
    ) -> Response:
        """One page of a list, by `limit` and `after`."""
        try:
            limit = limit_of(request, usual, largest)
        except ValueError as error:
            return self.refuse(Refusal(400, str(error), param="limit"))
        after = request.query_params.get("after")
        if after is not None:
            ids = [one.id for one in found]
            found = found[ids.index(after) + 1 :] if after in ids else []
        data = [to_json(one) for one in found[:limit]]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": len(found) > limit})

    async def reply(self, request: Request) -> Response:
        """POST /v1/responses and /v1/chat/completions"""
        body = await json_of(request)
        if not isinstance(body, dict):
            return self.refuse(Refusal(400, "We could not parse the JSON body of your request."))
        return self.answered(self.realtime(FORMATS[request.url.path], body))

    def format_of(self, batch: StoredBatch) -> Format:
        """That of the batch's endpoint."""
        return FORMATS[batch.facts["endpoint"]]

    def read(self, batch: StoredBatch) -> "dict[str, Any] | None":
        """The first bad line, or a full queue."""
        file = self.store.file(self.provider, batch.facts["input_file_id"])
        if file is None or file.purpose != "batch":
            return entry("invalid_request", "file_id", None)
        found = InputFile(file.path, batch.facts["endpoint"])
        if found.error is not None:
            return found.error
        if not self.store.queue_has_room(self.provider, found.tokens, before=batch):
            limit = f"Limit: {self.store.token_limit:,} enqueued tokens."
            words = f"Enqueued token limit reached for {found.model}. {limit}"
            return entry("token_limit_exceeded", None, None, words)
        batch.source, batch.total, batch.queued = file.path, found.total, found.tokens
        batch.facts["model"] = found.model
        return None

    def asked(self, line: "dict[str, Any]", number: int) -> Asked:
        """`{"custom_id", "method", "url", "body"}`"""
        return Asked(line["custom_id"], line["body"])

    def row(self, batch: StoredBatch, asked: Asked, outcome: Outcome) -> bytes:
        """A row with the HTTP answer the request had."""
        status, body = 200, outcome.reply
        if outcome.refusal is not None:
            status, body = outcome.refusal.status, _problem(outcome.refusal)
        request = hash_of(asked.custom_id)
        return _line(asked, {"status_code": status, "request_id": request, "body": body}, None)

    def unrun(self, batch: StoredBatch, asked: Asked, status: str) -> bytes:
        """A row without an HTTP answer."""
        return _line(asked, None, {"code": f"batch_{status}", "message": "This request was not executed."})

    def publish(self, batch: StoredBatch, rows: "list[Row]") -> None:
        """Two files, each only if it has a line."""
        for kind, succeeded in (("output", True), ("error", False)):
            lines = [row.line for row in rows if row.succeeded is succeeded]
            if lines:
                name = f"{batch.id}_{kind}.jsonl"
                file = self.store.new_file(self.provider, new_id("file-", 24), name, "batch_output")
                file.path.write_bytes(b"\n".join(lines) + b"\n")
                batch.facts[f"{kind}_file_id"] = file.id

    def to_json(self, batch: StoredBatch, status: "str | None" = None) -> "dict[str, Any]":
        """The batch object, as of now; with a status, as of the call that brought it about."""
        status = status or self.store.look(batch)
        facts = batch.facts
        read = batch.source is not None
        ended = batch.settled is not None
        done = batch.tally["succeeded"] if ended else batch.done
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": facts["endpoint"],
            "model": dated(facts["model"]) if read else None,
            "errors": {"object": "list", "data": [batch.error]} if batch.error else None,
            "input_file_id": facts["input_file_id"],
            "completion_window": "24h",
            "status": status,
            "output_file_id": facts.get("output_file_id"),
            "error_file_id": facts.get("error_file_id"),
            **self._times(batch, status),
            "request_counts": {"total": batch.total, "completed": done, "failed": batch.total - done if ended else 0},
            "usage": {
                "input_tokens": batch.tokens[0],
                "output_tokens": batch.tokens[1],
                "total_tokens": sum(batch.tokens),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
            "metadata": facts["metadata"],
        }

    def _times(self, batch: StoredBatch, status: str) -> "dict[str, int | None]":
        """All the `..._at` fields."""
        created = int(batch.created_at)
        ended = None if batch.ended_at is None else int(batch.ended_at)
        # Between its states a batch is not looked at; an end that was forced may come before they are due.
        latest = int(self.store.clock.now()) if ended is None else ended
        begun = min(int(batch.created_at + batch.seconds * VALIDATED), latest) if batch.source is not None else None
        run = min(int(batch.created_at + batch.seconds * RUN), latest)
        return {
            "created_at": created,
            "in_progress_at": begun,
            "expires_at": created + self.window,
            "finalizing_at": run if status == "finalizing" or (ended and begun is not None) else None,
            **{f"{name}_at": ended if status == name else None for name in TERMINAL},
            "cancelling_at": None if batch.cancel_at is None else int(batch.cancel_at),
        }


def _problem(refusal: Refusal) -> "dict[str, Any]":
    kind = "server_error" if refusal.status >= 500 else _TYPES.get(refusal.status, "invalid_request_error")
    code = refusal.code or _CODES.get(refusal.status)
    if code == NO_CREDIT:
        kind = NO_CREDIT
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": code}}


def _line(asked: Asked, response: "dict[str, Any] | None", error: "dict[str, Any] | None") -> bytes:
    return msgspec.json.encode(
        {
            "id": f"batch_req_{hash_of(asked.custom_id)}",
            "custom_id": asked.custom_id,
            "response": response,
            "error": error,
        }
    )


def _file_json(file: StoredFile) -> "dict[str, Any]":
    """The file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.path.stat().st_size,
        "created_at": int(file.created_at),
        "expires_at": int(file.created_at) + 30 * DAY,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


WIRE = OpenAIWire
