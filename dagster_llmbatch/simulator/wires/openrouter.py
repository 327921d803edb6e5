"""OpenRouter's wire: batches without a cancel, and the endpoints of others, routed."""

import asyncio
import datetime
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dagster_llmbatch.simulator.batches import DAY, TERMINAL, Asked, Row, StoredBatch
from dagster_llmbatch.simulator.execution import Format, Outcome, Refusal, hash_of
from dagster_llmbatch.simulator.store import new_id
from dagster_llmbatch.simulator.wire import Call, Wire, json_of, limit_of
from dagster_llmbatch.simulator.wires.openrouter_requests import (
    FORMS,
    NO_CODE,
    SERVED_BY,
    SUFFIX,
    cost_of,
    wrong_create,
    wrong_request,
)

LARGEST_BODY = 200_000_000
"""Bytes of a create call."""
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
LARGEST_RESULTS_PAGE = 1000
RETENTION = 30 * DAY
"""Seconds after its end that a batch can be read."""
STATUSES = ("validating", "in_progress", "completed", "failed", "expired", "cancelled")


class OpenRouterWire(Wire):
    """`/openrouter/api/v1`."""

    provider = "openrouter"
    base_path = "/openrouter/api/v1"
    request_id_header = "x-request-id"
    no_credit = Refusal(402, "Insufficient credits. Add more using https://openrouter.ai/settings/credits")

    def calls(self) -> "list[Call]":
        """All endpoints."""
        return [
            Call("create", "POST", "/batches", self.create),
            Call("list", "GET", "/batches", self.list_batches),
            Call("status", "GET", "/batches/{id}", self.show_batch),
            Call("delete", "DELETE", "/batches/{id}", self.delete),
            Call("content", "GET", "/batches/{id}/results", self.content),
            Call("cancel", "POST", "/batches/{id}/cancel", self.cancel),
            *(Call("realtime", "POST", path.removeprefix("/v1"), self.reply) for path in FORMS),
        ]

    def key_refused(self, key: str) -> Refusal:
        """401"""
        return Refusal(401, "User not found." if key else "Missing Authentication header")

    def refuse(self, refusal: Refusal) -> Response:
        """`{"error": {"message", "code"}}`; the code is missing from some."""
        return JSONResponse({"error": _problem(refusal)}, refusal.status)

    async def create(self, request: Request) -> Response:
        """POST /batches. The body is read as a stream: what the requests need has to come before them."""
        if len(await request.body()) > LARGEST_BODY:
            return self.refuse(Refusal(413, "The request body is too large."))
        body = await json_of(request)
        wrong = wrong_create(body)
        if wrong is not None:
            return self.refuse(wrong)
        facts = {"endpoint": body["endpoint"], "model": body["model"]}
        lines = [msgspec.json.encode(one) for one in body["requests"]]
        batch_id = f"batch-{int(self.store.clock.now())}-{new_id('', 20)}"
        noted = {**facts, "total": len(lines)}
        batch = await asyncio.to_thread(self.store.create, self, batch_id, facts, noted, lines)
        return JSONResponse(self.to_json(batch, "validating"), 202)

    async def list_batches(self, request: Request) -> Response:
        """GET /batches, newest first, by `limit`, `after`, `status`, `created_after` and `created_before`."""
        try:
            limit = limit_of(request, DEFAULT_PAGE, LARGEST_PAGE)
            found = await asyncio.to_thread(self._chosen, request)
        except ValueError as error:
            return self.refuse(Refusal(400, str(error)))
        after = request.query_params.get("after")
        if after is not None:
            ids = [batch["id"] for batch in found]
            found = found[ids.index(after) + 1 :] if after in ids else []
        data = found[:limit]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": len(found) > limit})

    def _chosen(self, request: Request) -> "list[dict[str, Any]]":
        """The batches a list call asks for, without results. Raises ValueError."""
        statuses = request.query_params.getlist("status")
        if not set(statuses) <= set(STATUSES):
            raise ValueError(f"status is one of {STATUSES}.")
        since, until = (_moment(request.query_params.get(name)) for name in ("created_after", "created_before"))
        found = [self.to_json(batch) for batch in self.store.listed(self.provider) if not self._purged(batch)]
        return [
            batch
            for batch in found
            if (not statuses or batch["status"] in statuses)
            and (since is None or batch["created_at"] > since)
            and (until is None or batch["created_at"] < until)
        ]

    async def show_batch(self, request: Request) -> Response:
        """GET /batches/{id}: with its results once completed, which cost 402 until there is credit again."""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        if self._purged(found):
            return self.refuse(Refusal(410, f"Batch job {found.id} is gone."))
        made = await asyncio.to_thread(self.to_json, found)
        if found.results is None:
            return JSONResponse(made)
        if self.store.out_of_credit:
            return JSONResponse({**made, "error": _problem(self.no_credit)}, 402)
        return _spliced({**made, "results": None}, "results", _lines(found))

    async def content(self, request: Request) -> Response:
        """GET /batches/{id}/results, by `limit` and `cursor`."""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        await asyncio.to_thread(self.store.look, found)
        if found.results is None:
            return self.refuse(Refusal(404, f"Batch job {found.id} has no results."))
        if self.store.out_of_credit:
            return self.refuse(self.no_credit)
        try:
            limit = limit_of(request, LARGEST_RESULTS_PAGE, LARGEST_RESULTS_PAGE)
            start = int(request.query_params.get("cursor", 0))
        except ValueError as error:
            return self.refuse(Refusal(400, str(error)))
        lines = _lines(found)
        more = len(lines) > start + limit
        page = {"object": "list", "data": None, "has_more": more, "next_cursor": str(start + limit) if more else None}
        return _spliced(page, "data", lines[start : start + limit])

    async def delete(self, request: Request) -> Response:
        """DELETE /batches/{id}, once it has ended."""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        if await asyncio.to_thread(self.store.look, found) not in TERMINAL:
            return self.refuse(Refusal(409, f"Batch job {found.id} is still running."))
        del self.store.batches[found.id]
        upstream = {"provider": SERVED_BY, "status": "unsupported"}
        deletion = {"openrouter": "deleted", "upstream": upstream}
        return JSONResponse({"id": found.id, "object": "batch", "deletion": deletion})

    async def cancel(self, _request: Request) -> Response:
        """POST /batches/{id}/cancel: there is no such thing."""
        return PlainTextResponse("404 Not Found", 404)

    def _missing(self, request: Request) -> Response:
        return self.refuse(Refusal(404, f"Batch job {request.path_params['id']} not found."))

    def _purged(self, batch: StoredBatch) -> bool:
        return batch.ended_at is not None and self.store.clock.now() >= batch.ended_at + RETENTION

    async def reply(self, request: Request) -> Response:
        """POST /chat/completions, /responses and /messages"""
        body = await json_of(request)
        if not isinstance(body, dict):
            return self.refuse(Refusal(400, "The request body is not valid JSON."))
        form = FORMS[f"/v1{request.url.path.removeprefix(self.base_path)}"]
        outcome = self.realtime(form, body)
        if outcome.reply is not None:
            return JSONResponse(outcome.reply, headers={"x-generation-id": outcome.reply["id"]})
        refusal = outcome.refusal
        if refusal is not None and refusal.status >= 500:
            # What fails upstream after the status line was sent comes as a 200.
            return JSONResponse({"error": _problem(refusal)})
        return self.answered(outcome)

    def format_of(self, batch: StoredBatch) -> Format:
        """That of the batch's endpoint."""
        return FORMS[batch.facts["endpoint"]]

    def read(self, batch: StoredBatch) -> "dict[str, Any] | None":
        """The first bad request, or a full queue upstream."""
        model = batch.facts["model"]
        seen: set[str] = set()
        for number, asked in enumerate(self.requests(batch)):
            wrong = "custom_id is used twice" if asked.custom_id in seen else wrong_request(asked.body, model)
            if wrong is not None:
                return {"message": f"requests[{number}]: {wrong}"}
            seen.add(asked.custom_id)
        if not self.store.queue_has_room(self.provider, batch.queued, before=batch):
            return {"message": "HTTP 400: invalid batch inference job: job-submission-count, in use: 16, quota: 16"}
        return None

    def requests(self, batch: StoredBatch) -> "Iterator[Asked]":
        """All requests, each with the batch's model unless it names one."""
        for asked in super().requests(batch):
            yield Asked(asked.custom_id, {"model": batch.facts["model"], **asked.body})

    def asked(self, line: "dict[str, Any]", number: int) -> Asked:
        """`{"custom_id", "body"}`"""
        return Asked(line["custom_id"], line["body"])

    def row(self, batch: StoredBatch, asked: Asked, outcome: Outcome) -> bytes:
        """A row with the HTTP answer the request had, or with an error only."""
        refusal = outcome.refusal
        if refusal is None:
            return _line(asked, outcome.reply, 200)
        if refusal.status < 429:
            return _line(asked, {"error": _problem(refusal)}, refusal.status)
        if refusal.status >= 500:
            return _line(asked, error={"message": refusal.message})
        kinds = {"type": "rate_limit_error", "param": None, "error_type": "rate_limit_exceeded"}
        return _line(asked, error={"message": refusal.message, **kinds})

    def unrun(self, batch: StoredBatch, asked: Asked, status: str) -> bytes:
        """A row whose own time was up."""
        kinds = {"type": "timeout", "param": None, "error_type": "timeout"}
        return _line(asked, error={"message": f"This request was not executed: {status}.", **kinds})

    def unreadable(self, _batch: StoredBatch, asked: Asked, line: bytes) -> bytes:
        """A row with neither reply nor error."""
        return _line(asked)

    def publish(self, batch: StoredBatch, rows: "list[Row]") -> None:
        """All rows of a batch that completed. Those of an expired one were run, and are not given back."""
        if batch.settled != "completed":
            return
        batch.results = self.store.write(f"{batch.id}-results", (row.line for row in rows))
        if not batch.tally["succeeded"]:
            batch.error = {"message": "All requests failed."}

    def to_json(self, batch: StoredBatch, status: "str | None" = None) -> "dict[str, Any]":
        """The batch object without results, as of now; with a status, as of the call that brought it about."""
        status = status or self.store.look(batch)
        ended = batch.settled is not None
        done = batch.tally["succeeded"] if ended else batch.done
        failed = batch.tally["errored"] + (batch.tally["expired"] if status == "completed" else 0)
        total = batch.total if batch.validated and status != "failed" else 0
        tokens_in, tokens_out = batch.tokens
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.facts["endpoint"],
            "model": f"{batch.facts['model'].removesuffix(SUFFIX)}-20260101",
            "completion_window": "24h",
            "status": status,
            "created_at": int(batch.created_at),
            "expires_at": int(batch.created_at) + self.window,
            "finalized_at": None if batch.ended_at is None else int(batch.ended_at),
            "provider": SERVED_BY if batch.validated else None,
            "request_counts": {"total": total, "completed": done, "failed": failed if ended else 0},
            "usage": {**usage, "cost": cost_of(batch.tokens) / 2, "is_byok": False} if status == "completed" else None,
            "error": batch.error,
            "results": None,
        }


def _problem(refusal: Refusal) -> "dict[str, Any]":
    code = {} if refusal.code == NO_CODE else {"code": refusal.status}
    return {"message": refusal.message, **code}


def _line(
    asked: Asked, body: "dict[str, Any] | None" = None, status: int = 200, error: "dict[str, Any] | None" = None
) -> bytes:
    name = hash_of(asked.custom_id)
    response = None if body is None else {"status_code": status, "request_id": f"req_batch_{name}", "body": body}
    return msgspec.json.encode(
        {"id": f"batch_req_batch_{name}", "custom_id": asked.custom_id, "response": response, "error": error}
    )


def _lines(batch: StoredBatch) -> "list[bytes]":
    return batch.results.read_bytes().split(b"\n")[:-1] if batch.results else []


def _spliced(made: "dict[str, Any]", field: str, lines: "list[bytes]") -> Response:
    """An answer that holds result lines as they were kept."""
    content = {**made, field: msgspec.Raw(b"[" + b",".join(lines) + b"]")}
    return Response(msgspec.json.encode(content), media_type="application/json")


def _moment(given: "str | None") -> "float | None":
    """Unix seconds, given so or in ISO 8601. Raises ValueError."""
    if given is None or given.replace(".", "", 1).isdigit():
        return None if given is None else float(given)
    return datetime.datetime.fromisoformat(given.replace("Z", "+00:00")).timestamp()


WIRE = OpenRouterWire
