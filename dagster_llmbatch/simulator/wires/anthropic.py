"""Anthropic's wire: message batches and messages."""

import asyncio
import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from dagster_llmbatch.simulator.batches import Asked, Row, StoredBatch
from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL, Body, Format, Outcome, Refusal, Said, texts_of, within
from dagster_llmbatch.simulator.store import new_id
from dagster_llmbatch.simulator.wire import Call, Wire, json_of, limit_of
from dagster_llmbatch.simulator.wires.anthropic_schema import schema_error

DEFAULT_PAGE, LARGEST_PAGE = 20, 1000
MOST_REQUESTS = 100_000
LARGEST_BODY = 256_000_000
"""Bytes of a create call."""
CUSTOM_ID = r"^[a-zA-Z0-9_-]{1,64}$"
SHORTEST_CACHED = 1024
"""Tokens; a shorter prefix is silently not cached."""
POLL_SECONDS = "10"
_TYPES = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    409: "conflict_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_RETRIED = (408, 409, 429)
_COUNTS = {"succeeded": "succeeded", "errored": "errored", "canceled": "cancelled", "expired": "expired"}


class Messages(Format):
    """`/v1/messages`."""

    leaves_out = True

    def prompt_of(self, body: Body) -> str:
        """The system prompt and all messages."""
        return "\n".join(texts_of(_blocks(body)))

    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """`output_config.format.schema`"""
        return within(body, "output_config", "format", "schema")

    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """What `params` is checked for: at once when alone, and only when the row runs in a batch."""
        model, most = body.get("model"), body.get("max_tokens")
        if not isinstance(model, str):
            return Refusal(400, "model: Field required")
        if not isinstance(most, int) or most < 1:
            return Refusal(400, "max_tokens: Field required" if most is None else "max_tokens: must be at least 1")
        if not isinstance(body.get("messages"), list):
            return Refusal(400, "messages: Field required")
        if not body["messages"]:
            return Refusal(400, "messages: at least one message is required")
        if model.startswith(UNKNOWN_MODEL):
            return Refusal(404, f"model: {model}")
        if body.get("stream"):
            return Refusal(400, "stream: not supported here")
        schema: Any = self.schema_of(body, in_batch=in_batch)
        if schema is not None and not isinstance(schema, Mapping):
            return Refusal(400, "output_config.format.schema: Input should be an object")
        wrong = None if schema is None else schema_error(schema)
        return None if wrong is None else Refusal(400, f"output_config.format.schema: {wrong}")

    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """A message."""
        reasons = {"refuse": "refusal", "truncate": "max_tokens"}
        refused = said.fault == "refuse"
        model = str(body["model"])
        return {
            "model": model if re.search(r"-\d{8}$", model) else f"{model}-20260101",
            "id": f"msg_{said.name}",
            "type": "message",
            "role": "assistant",
            "content": [] if refused else [{"type": "text", "text": said.text}],
            "stop_reason": reasons.get(said.fault or "", "end_turn"),
            "stop_sequence": None,
            "stop_details": {"type": "refusal", "category": "bio", "explanation": "No."} if refused else None,
            "usage": self._usage(body, said),
        }

    def _usage(self, body: Body, said: Said) -> "dict[str, Any]":
        """Token counts; those of a cached prefix are not among `input_tokens`. About half the requests find it."""
        prefix, long = _cached_prefix(body)
        cached = min(len(prefix) // 4, said.tokens[0])
        if cached < SHORTEST_CACHED:
            cached = 0
        found = int(said.name, 16) % 2 == 0
        written = 0 if found else cached
        return {
            "input_tokens": said.tokens[0] - cached,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached if found else 0,
            "cache_creation": {
                "ephemeral_5m_input_tokens": 0 if long else written,
                "ephemeral_1h_input_tokens": written if long else 0,
            },
            "output_tokens": said.tokens[1],
            "service_tier": "batch" if said.in_batch else "standard",
            "inference_geo": "not_available",
        }


class AnthropicWire(Wire):
    """`/anthropic`."""

    provider = "anthropic"
    base_path = "/anthropic"
    request_id_header = "request-id"
    no_credit = Refusal(400, "Your credit balance is too low to access the Anthropic API.")
    _messages = Messages()

    def calls(self) -> "list[Call]":
        """All endpoints."""
        return [
            Call("create", "POST", "/v1/messages/batches", self.create),
            Call("list", "GET", "/v1/messages/batches", self.list_batches),
            Call("status", "GET", "/v1/messages/batches/{id}", self.show_batch),
            Call("delete", "DELETE", "/v1/messages/batches/{id}", self.delete),
            Call("cancel", "POST", "/v1/messages/batches/{id}/cancel", self.cancel),
            Call("content", "GET", "/v1/messages/batches/{id}/results", self.content),
            Call("realtime", "POST", "/v1/messages", self.reply),
        ]

    def key_of(self, request: Request) -> str:
        """`x-api-key`, or a bearer."""
        return request.headers.get("x-api-key", "").strip() or super().key_of(request)

    def key_refused(self, _key: str) -> Refusal:
        """401"""
        return Refusal(401, "invalid x-api-key")

    def refuse(self, refusal: Refusal) -> Response:
        """`{"type": "error", "error": {"type", "message"}, "request_id"}`"""
        request_id = new_id("req_")
        headers = {self.request_id_header: request_id}
        if refusal.status == 429:
            headers["retry-after"] = "1"
        elif refusal.status < 500 and refusal.status not in _RETRIED:
            headers["x-should-retry"] = "false"
        body = {"type": "error", "error": _error(refusal), "request_id": request_id}
        return JSONResponse(body, refusal.status, headers=headers)

    async def create(self, request: Request) -> Response:
        """POST /v1/messages/batches. Only ids are looked at; what is wrong with `params` shows in the row."""
        if len(await request.body()) > LARGEST_BODY:
            return self.refuse(Refusal(413, "Request exceeds the maximum size"))
        body = await json_of(request)
        wrong = _wrong_create(body)
        if wrong is not None:
            return self.refuse(Refusal(400, wrong))
        lines = [msgspec.json.encode(one) for one in body["requests"]]
        batch_id, noted = new_id("msgbatch_", 24), {"total": len(lines)}
        batch = await asyncio.to_thread(self.store.create, self, batch_id, {}, noted, lines)
        return JSONResponse(self.to_json(batch, request, "in_progress"))

    async def list_batches(self, request: Request) -> Response:
        """GET /v1/messages/batches, newest first, by `limit` and `after_id` or `before_id`."""
        try:
            limit = limit_of(request, DEFAULT_PAGE, LARGEST_PAGE)
        except ValueError as error:
            return self.refuse(Refusal(400, str(error)))
        found = self.store.listed(self.provider)
        ids = [batch.id for batch in found]
        after, before = (request.query_params.get(name) for name in ("after_id", "before_id"))
        if before is not None:
            newer = found[: ids.index(before)] if before in ids else []
            page, more = newer[-limit:], len(newer) > limit
        else:
            older = found if after is None else found[ids.index(after) + 1 :] if after in ids else []
            page, more = older[:limit], len(older) > limit
        data = [await asyncio.to_thread(self.to_json, batch, request) for batch in page]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return JSONResponse({"data": data, "has_more": more, **ends})

    async def show_batch(self, request: Request) -> Response:
        """GET /v1/messages/batches/{id}; `retry-after` until it has ended."""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        made = await asyncio.to_thread(self.to_json, found, request)
        headers = {"retry-after": POLL_SECONDS} if made["ended_at"] is None else {}
        return JSONResponse(made, headers=headers)

    async def cancel(self, request: Request) -> Response:
        """POST /v1/messages/batches/{id}/cancel"""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        status = await asyncio.to_thread(self.store.cancel, found)
        return JSONResponse(self.to_json(found, request, status))

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/messages/batches/{id}, once it has ended; its results go with it."""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        await asyncio.to_thread(self.store.look, found)
        if not found.settled:
            words = "In progress batches cannot be deleted. Consider canceling the batch instead."
            return self.refuse(Refusal(400, words))
        del self.store.batches[found.id]
        return JSONResponse({"id": found.id, "type": "message_batch_deleted"})

    async def content(self, request: Request) -> Response:
        """GET /v1/messages/batches/{id}/results"""
        found = self.own(request)
        if found is None:
            return self._missing(request)
        await asyncio.to_thread(self.store.look, found)
        if found.results is None:
            return self.refuse(Refusal(404, f"Message Batch {found.id} has no available results."))
        return FileResponse(found.results, media_type="application/x-jsonl", filename=f"{found.id}_results.jsonl")

    def _missing(self, request: Request) -> Response:
        return self.refuse(Refusal(404, f"Message Batch {request.path_params['id']} not found."))

    async def reply(self, request: Request) -> Response:
        """POST /v1/messages"""
        body = await json_of(request)
        if not isinstance(body, dict):
            return self.refuse(Refusal(400, "The request body is not valid JSON"))
        return self.answered(self.realtime(self._messages, body))

    def format_of(self, batch: StoredBatch) -> Format:
        """Messages."""
        return self._messages

    def asked(self, line: "dict[str, Any]", number: int) -> Asked:
        """`{"custom_id", "params"}`"""
        params = line.get("params")
        return Asked(line["custom_id"], params if isinstance(params, dict) else {})

    def row(self, batch: StoredBatch, asked: Asked, outcome: Outcome) -> bytes:
        """Succeeded, or errored: the error is nested twice."""
        result: dict[str, Any] = {"type": "succeeded", "message": outcome.reply}
        if outcome.refusal is not None:
            error = {"details": {"error_visibility": "user_facing"}, **_error(outcome.refusal)}
            result = {"type": "errored", "error": {"type": "error", "error": error, "request_id": None}}
        return msgspec.json.encode({"custom_id": asked.custom_id, "result": result})

    def unrun(self, batch: StoredBatch, asked: Asked, status: str) -> bytes:
        """Canceled or expired."""
        kind = "expired" if status == "expired" else "canceled"
        return msgspec.json.encode({"custom_id": asked.custom_id, "result": {"type": kind}})

    def publish(self, batch: StoredBatch, rows: "list[Row]") -> None:
        """All rows in one stream."""
        batch.results = self.store.write(f"{batch.id}-results", (row.line for row in rows))

    def to_json(self, batch: StoredBatch, request: Request, status: "str | None" = None) -> "dict[str, Any]":
        """The batch object, as of now; with a status, as of the call that brought it about."""
        status = status or self.store.look(batch)
        ended = batch.settled is not None
        counts = {name: batch.tally[kept] if ended else 0 for name, kept in _COUNTS.items()}
        results = f"{str(request.base_url).rstrip('/')}{self.base_path}/v1/messages/batches/{batch.id}/results"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "canceling" if status == "cancelling" else "in_progress",
            "request_counts": {"processing": 0 if ended else batch.total, **counts},
            "ended_at": _time(batch.ended_at),
            "created_at": _time(batch.created_at),
            "expires_at": _time(batch.created_at + self.window),
            "archived_at": None,
            "cancel_initiated_at": _time(batch.cancel_at),
            "results_url": results if ended else None,
        }


def _blocks(body: Body) -> "list[Any]":
    """All content blocks, in the order the cache sees them."""
    contents = [body.get("system")]
    messages = body.get("messages")
    if isinstance(messages, list):
        contents += [within(message, "content") for message in messages]
    blocks: list[Any] = []
    for content in contents:
        blocks += [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, Mapping)]


def _cached_prefix(body: Body) -> "tuple[str, bool]":
    """The text up to the last cache breakpoint, and whether it is to be kept for an hour."""
    blocks = _blocks(body)
    marks = [block.get("cache_control") for block in blocks]
    if blocks and body.get("cache_control"):
        marks[-1] = body["cache_control"]
    for position in range(len(blocks) - 1, -1, -1):
        if marks[position]:
            return "\n".join(texts_of(blocks[: position + 1])), within(marks[position], "ttl") == "1h"
    return "", False


def _error(refusal: Refusal) -> "dict[str, str]":
    usual = "api_error" if refusal.status >= 500 else "invalid_request_error"
    return {"type": _TYPES.get(refusal.status, usual), "message": refusal.message}


def _wrong_create(body: Any) -> "str | None":
    """Why a create call is refused, or None."""
    requests = body.get("requests") if isinstance(body, dict) else None
    if not isinstance(requests, list):
        return "requests: Field required"
    if not requests:
        return "requests: List should have at least 1 item after validation, not 0"
    if len(requests) > MOST_REQUESTS:
        return f"requests: List should have at most {MOST_REQUESTS} items after validation, not {len(requests)}"
    seen: set[str] = set()
    for number, one in enumerate(requests):
        custom_id = one.get("custom_id") if isinstance(one, dict) else None
        if not isinstance(custom_id, str):
            return f"requests.{number}.custom_id: Field required"
        if not re.fullmatch(CUSTOM_ID, custom_id):
            return f"requests.{number}.custom_id: String should match pattern '{CUSTOM_ID}'"
        if custom_id in seen:
            return f"requests: custom_id's must be unique within a batch. Duplicate custom_id found: {custom_id}"
        seen.add(custom_id)
    return None


def _time(moment: "float | None") -> "str | None":
    return None if moment is None else datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).isoformat()


WIRE = AnthropicWire
