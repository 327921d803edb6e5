"""Gemini's wire: batches as long-running operations, and generateContent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dagster_llmbatch.simulator.batches import DAY, Asked, Row, StoredBatch
from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL, Format, Outcome, Refusal
from dagster_llmbatch.simulator.store import Store, StoredFile, new_id
from dagster_llmbatch.simulator.wire import Call, Wire, json_of, limit_of
from dagster_llmbatch.simulator.wires.gemini_content import GenerateContent, field, malformed
from dagster_llmbatch.simulator.wires.gemini_files import RESULTS, GeminiFiles, time_of

VERSIONS = ("v1beta", "v1")
LARGEST_BODY = 20 << 20
"""Bytes of a create call."""
LARGEST_PAGE = 100
BAD_KEY = "API_KEY_INVALID"
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch"
_STATUSES = {
    400: ("INVALID_ARGUMENT", 3), 401: ("UNAUTHENTICATED", 16), 403: ("PERMISSION_DENIED", 7), 404: ("NOT_FOUND", 5),
    409: ("ALREADY_EXISTS", 6), 429: ("RESOURCE_EXHAUSTED", 8), 499: ("CANCELLED", 1), 500: ("INTERNAL", 13),
    503: ("UNAVAILABLE", 14), 504: ("DEADLINE_EXCEEDED", 4),
}  # fmt: skip
_STATES = {
    "validating": "PENDING", "completed": "SUCCEEDED", "failed": "FAILED", "expired": "EXPIRED",
    "cancelled": "CANCELLED",
}  # fmt: skip


class GeminiWire(Wire):
    """`/gemini`."""

    provider = "gemini"
    base_path = "/gemini"
    window = 2 * DAY
    shuffles = False
    request_id_header = "x-request-id"
    no_credit = Refusal(429, "Your prepayment credits are depleted.")

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._form = GenerateContent()

    def calls(self) -> "list[Call]":
        """All endpoints, of both API versions."""
        found: list[Call] = []
        for version in VERSIONS:
            batches = f"/{version}/batches"
            found += [
                *GeminiFiles(self, version).calls(),
                Call("create", "POST", f"/{version}/models/{{model}}:batchGenerateContent", self.create),
                Call("realtime", "POST", f"/{version}/models/{{model}}:generateContent", self.reply),
                Call("list", "GET", batches, self.list_batches),
                Call("cancel", "POST", f"{batches}/{{id}}:cancel", self.cancel),
                Call("status", "GET", f"{batches}/{{id}}", self.show_batch),
                Call("delete", "DELETE", f"{batches}/{{id}}", self.delete),
            ]
        return found

    def key_of(self, request: Request) -> str:
        """`x-goog-api-key`, or `?key=`. The address of an upload that has begun needs none, and Google's package sends none."""
        key = request.headers.get("x-goog-api-key", "").strip() or request.query_params.get("key", "")
        return key or request.path_params.get("upload_id", "")

    def key_refused(self, key: str) -> Refusal:
        """A wrong key is a 400."""
        if not key:
            return Refusal(403, "Method doesn't allow unregistered callers (callers without established identity).")
        return Refusal(400, "API key not valid. Please pass a valid API key.", code=BAD_KEY)

    def refuse(self, refusal: Refusal) -> Response:
        """`{"error": {"code", "message", "status", "details"}}`"""
        error: dict[str, Any] = {"code": refusal.status, "message": refusal.message, "status": _status(refusal)[0]}
        if refusal.code is not None:
            info = {"reason": refusal.code, "domain": "googleapis.com"}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info}]
        elif refusal.status == 429 and refusal is not self.no_credit:
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}]
        return JSONResponse({"error": error}, refusal.status)

    async def create(self, request: Request) -> Response:
        """POST /{version}/models/{model}:batchGenerateContent. One malformed row refuses all."""
        if len(await request.body()) > LARGEST_BODY:
            return self.refuse(Refusal(400, f"Request payload size exceeds the limit: {LARGEST_BODY} bytes."))
        model = request.path_params["model"]
        if model.startswith(UNKNOWN_MODEL):
            return self.refuse(_no_model(model, "batchGenerateContent"))
        body = await json_of(request)
        batch = body.get("batch") if isinstance(body, dict) else None
        if not isinstance(batch, dict):
            return self.refuse(Refusal(400, "* BatchGenerateContentRequest.batch: batch is not specified"))
        try:
            made = await asyncio.to_thread(self._made, batch, f"models/{model}")
        except _Refused as refused:
            return self.refuse(refused.refusal)
        return JSONResponse(self.to_json(made, "validating"))

    def _made(self, batch: "dict[str, Any]", model: str) -> StoredBatch:
        """The batch of a create call. Raises _Refused."""
        config = field(batch, "inputConfig") or {}
        name = field(config, "fileName")
        facts = {"model": model, "displayName": field(batch, "displayName"), "fileName": name}
        rows = self._file_rows(name) if name else _inline_rows(config)
        lines = [msgspec.json.encode({**row, "request": {**row["request"], "model": model}}) for row in rows]
        if not lines:
            raise _Refused(Refusal(400, "The batch has no requests."))
        if not self.store.queue_has_room(self.provider, sum(map(len, lines)) // 4):
            raise _Refused(Refusal(429, "Enqueued tokens quota exceeded for this model."))
        noted = {name: facts[name] for name in ("displayName", "fileName")}
        return self.store.create(self, new_id("batches/"), facts, {**noted, "total": len(lines)}, lines)

    def _file_rows(self, name: str) -> "Iterator[dict[str, Any]]":
        """The rows of an uploaded file."""
        file = self.store.file(self.provider, name)
        if file is None:
            raise _Refused(Refusal(403, f"You do not have permission to access the File {name} or it may not exist."))
        with file.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _file_row(line, f"Line {number} of {name}")

    async def list_batches(self, request: Request) -> Response:
        """GET /{version}/batches, newest first, by `pageSize` and `pageToken`."""
        try:
            limit = limit_of(request, LARGEST_PAGE, LARGEST_PAGE, "pageSize")
        except ValueError as error:
            return self.refuse(Refusal(400, str(error)))
        found = self.store.listed(self.provider)
        ids = [batch.id for batch in found]
        token = request.query_params.get("pageToken")
        if token:
            if token not in ids:
                return self.refuse(Refusal(400, "Invalid page token."))
            found = found[ids.index(token) + 1 :]
        page: dict[str, Any] = {"operations": [await asyncio.to_thread(self.to_json, one) for one in found[:limit]]}
        if len(found) > limit:
            page["nextPageToken"] = found[limit - 1].id
        return _json(page if found else {})

    def own(self, request: Request) -> "StoredBatch | None":
        """The batch a path names."""
        return self.store.batch(self.provider, f"batches/{request.path_params['id']}")

    async def show_batch(self, request: Request) -> Response:
        """GET /{version}/batches/{id}"""
        found = self.own(request)
        return self._missing() if found is None else _json(await asyncio.to_thread(self.to_json, found))

    async def cancel(self, request: Request) -> Response:
        """POST /{version}/batches/{id}:cancel"""
        found = self.own(request)
        if found is None:
            return self._missing()
        await asyncio.to_thread(self.store.cancel, found)
        return JSONResponse({})

    async def delete(self, request: Request) -> Response:
        """DELETE /{version}/batches/{id}: its results are gone, its work goes on and is paid."""
        found = self.own(request)
        if found is None:
            return self._missing()
        await asyncio.to_thread(self.store.run_out, found)
        self.store.files.pop(_results_name(found), None)
        return JSONResponse({})

    def _missing(self) -> Response:
        return self.refuse(Refusal(404, "Requested entity was not found."))

    async def reply(self, request: Request) -> Response:
        """POST /{version}/models/{model}:generateContent"""
        body = await json_of(request)
        wrong = malformed(body)
        if wrong is not None:
            return self.refuse(Refusal(400, wrong))
        model = request.path_params["model"]
        if model.startswith(UNKNOWN_MODEL):
            return self.refuse(_no_model(model, "generateContent"))
        return self.answered(self.realtime(self._form, {**body, "model": f"models/{model}"}))

    def format_of(self, batch: StoredBatch) -> Format:
        """generateContent"""
        return self._form

    def asked(self, line: "dict[str, Any]", number: int) -> Asked:
        """A row as it was kept: a file's has a key, an inline one has metadata, if that."""
        echo = line.get("metadata") or {}
        name = line.get("key") or echo.get("key") or next(iter(echo.values()), f"row {number}")
        return Asked(str(name), line["request"], echo)

    def row(self, batch: StoredBatch, asked: Asked, outcome: Outcome) -> bytes:
        """A reply, or a google.rpc.Status."""
        if outcome.refusal is None:
            return _line(batch, asked, {"response": outcome.reply})
        code = _status(outcome.refusal)[1]
        return _line(batch, asked, {"error": {"code": code, "message": outcome.refusal.message}})

    def unrun(self, batch: StoredBatch, asked: Asked, status: str) -> bytes:
        """Code 1, or 4 for a row whose own time was up."""
        return _line(batch, asked, {"error": {"code": 4 if status == "expired" else 1}})

    def unreadable(self, batch: StoredBatch, asked: Asked, line: bytes) -> bytes:
        """Half a line of a file; inline, a row with neither reply nor error."""
        return super().unreadable(batch, asked, line) if batch.facts["fileName"] else _line(batch, asked, {})

    def share_run(self, _batch: StoredBatch, status: str, share: float) -> float:
        """An expired batch gives nothing back, and nothing is paid for it."""
        return 0.0 if status == "expired" or self.store.gemini_cancels_all else share

    def publish(self, batch: StoredBatch, rows: "list[Row]") -> None:
        """A file of its own, in the order of the requests; nothing of a batch that expired or never began."""
        if _state(batch, str(batch.settled)) != "SUCCEEDED":
            return
        batch.results = self.store.write(f"{batch.id}-results", (row.line for row in rows))
        name = _results_name(batch)
        self.store.files[name] = StoredFile(
            name, self.provider, batch.results, "", "results", batch.ended_at or batch.created_at
        )

    def to_json(self, batch: StoredBatch, status: "str | None" = None) -> "dict[str, Any]":
        """The operation, as of now; with a status, as of the call that brought it about."""
        state = _state(batch, status or self.store.look(batch))
        ended = batch.ended_at
        updated = batch.created_at if ended is None else ended
        output = _output(batch)
        metadata = {
            "@type": _TYPE,
            "model": batch.facts["model"],
            "displayName": batch.facts["displayName"],
            "inputConfig": {"fileName": batch.facts["fileName"]} if batch.facts["fileName"] else None,
            "output": output,
            "createTime": time_of(batch.created_at),
            "endTime": None if ended is None else time_of(ended),
            "updateTime": time_of(updated),
            "batchStats": _stats(batch, state),
            "state": f"BATCH_STATE_{state}",
            "name": batch.id,
        }
        operation: dict[str, Any] = {
            "name": batch.id,
            "metadata": {name: value for name, value in metadata.items() if value is not None},
        }
        if ended is not None:
            operation["done"] = True
            if output is None:
                operation["error"] = {"code": 13, "message": f"Batch was {state.lower()}."}
            else:
                operation["response"] = {"@type": f"{_TYPE}Output", **output}
        return operation


class _Refused(Exception):
    """A create call that is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _inline_rows(config: "dict[str, Any]") -> "Iterator[dict[str, Any]]":
    """The rows of a create call. The list is nested twice."""
    for number, row in enumerate((config.get("requests") or {}).get("requests") or ()):
        wrong = malformed(row.get("request")) if isinstance(row, dict) else "an object is needed"
        if wrong is not None:
            raise _Refused(Refusal(400, f"batch.input_config.requests.requests[{number}]: {wrong}"))
        yield {"request": row["request"], "metadata": row.get("metadata") or {}}


def _file_row(line: bytes, where: str) -> "dict[str, Any]":
    """One row of an uploaded file. Raises _Refused."""
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise _Refused(Refusal(400, f"{where}: not JSON")) from error
    if not isinstance(row, dict) or not isinstance(row.get("key"), str):
        raise _Refused(Refusal(400, f"{where}: no key"))
    wrong = malformed(row.get("request"))
    if wrong is not None:
        raise _Refused(Refusal(400, f"{where}: {wrong}"))
    return {"key": row["key"], "request": row["request"]}


def _line(batch: StoredBatch, asked: Asked, result: "dict[str, Any]") -> bytes:
    if batch.facts["fileName"]:
        return msgspec.json.encode({"key": asked.custom_id, **result})
    return msgspec.json.encode({**result, "metadata": asked.echo} if asked.echo else result)


def _state(batch: StoredBatch, status: str) -> str:
    """The state's name at Google: a batch that was cancelled after it had begun is one that succeeded."""
    if status == "cancelling":
        status = "validating" if _never_began(batch) else "in_progress"
    if status == "cancelled" and not _never_began(batch):
        return "SUCCEEDED"
    return _STATES.get(status, "RUNNING")


def _never_began(batch: StoredBatch) -> bool:
    return batch.cancel_at is not None and batch.cancel_at < batch.begins_at


def _stats(batch: StoredBatch, state: str) -> "dict[str, str]":
    """Counts as texts, without those that are zero; all are pending until the end."""
    done = batch.tally["succeeded"]
    counts = {"requestCount": batch.total}
    if state == "SUCCEEDED":
        counts |= {"successfulRequestCount": done, "failedRequestCount": batch.total - done}
    else:
        counts["pendingRequestCount"] = batch.total
    return {name: str(count) for name, count in counts.items() if count}


def _output(batch: StoredBatch) -> "dict[str, Any] | None":
    """Where the results are, or themselves, nested twice."""
    if batch.results is None:
        return None
    if batch.facts["fileName"]:
        return {"responsesFile": _results_name(batch)}
    rows = batch.results.read_bytes().rstrip(b"\n").replace(b"\n", b",")
    return {"inlinedResponses": {"inlinedResponses": msgspec.Raw(b"[" + rows + b"]")}}


def _results_name(batch: StoredBatch) -> str:
    return RESULTS + batch.id.removeprefix("batches/")


def _status(refusal: Refusal) -> "tuple[str, int]":
    """Name and number of the gRPC status."""
    return _STATUSES.get(refusal.status, ("INTERNAL", 13) if refusal.status >= 500 else ("INVALID_ARGUMENT", 3))


def _no_model(model: str, method: str) -> Refusal:
    return Refusal(404, f"models/{model} is not found for API version v1beta, or is not supported for {method}.")


def _json(made: "dict[str, Any]") -> Response:
    """An answer that holds results as they were kept."""
    return Response(msgspec.json.encode(made), media_type="application/json")


WIRE = GeminiWire
