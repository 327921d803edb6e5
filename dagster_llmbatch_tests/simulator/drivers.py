"""The same few things done at each provider, over plain HTTP."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import httpx

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.simulator.batches import SENTIMENT, lines_of, request

GEMINI_SENTIMENT = {
    "type": "OBJECT",
    "properties": {
        "label": {"type": "STRING", "enum": ["good", "bad"]},
        "score": {"type": "INTEGER", "minimum": 1, "maximum": 5},
    },
    "required": ["label", "score"],
}
MESSAGE_SENTIMENT = {**SENTIMENT, "properties": {"label": {"enum": ["good", "bad"]}, "score": {"type": "integer"}}}


class Driver(ABC):
    """One provider. Custom ids are r-0 and on."""

    provider: str
    key: str
    """The header the key goes into."""
    unrun: "set[str]"
    """What `kinds` says of a row that did not run."""

    def __init__(self, simulator: SimulatorServer) -> None:
        self.simulator = simulator
        address = simulator.addresses[self.provider]
        headers = {self.key: "Bearer k" if self.key == "authorization" else "k"}
        self.http = httpx.Client(base_url=address, headers=headers, trust_env=False, verify=False)

    @abstractmethod
    def create(self, prompts: "Sequence[str]", *, plain: bool = False) -> httpx.Response:
        """The answer to a create call; without a schema where plain."""

    @abstractmethod
    def read(self, batch_id: str) -> httpx.Response:
        """The batch object."""

    @abstractmethod
    def call(self, where: str, batch_id: str) -> httpx.Response:
        """One call of any kind, by its name in faults.CALLS."""

    @abstractmethod
    def state(self, body: "dict[str, Any]") -> str:
        """A batch object's state, in the provider's word."""

    @abstractmethod
    def lines(self, body: "dict[str, Any]") -> "list[bytes]":
        """The result lines of a batch that has ended, as they are on the wire."""

    @abstractmethod
    def kind(self, row: "dict[str, Any]") -> str:
        """What a row is: "ok", or the provider's word for its error."""

    @abstractmethod
    def text(self, row: "dict[str, Any]") -> str:
        """The answer of a row that is ok; empty for one without."""

    def custom_id(self, row: "dict[str, Any]") -> str:
        """The id of a row."""
        return row["custom_id"]

    def submit(self, prompts: "Sequence[str]", *, plain: bool = False) -> str:
        """The id of a new batch."""
        body = self.create(prompts, plain=plain).raise_for_status().json()
        return body.get("id") or body["name"]

    def rows(self, batch_id: str) -> "list[dict[str, Any]]":
        """All rows of a batch that has ended, but those that are not JSON."""
        found = []
        for line in self.lines(self.read(batch_id).json()):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return found

    def kinds(self, batch_id: str) -> "dict[str, str]":
        """What each row is, by custom id."""
        return {self.custom_id(row): self.kind(row) for row in self.rows(batch_id)}


class OpenAIDriver(Driver):
    """Chat completions."""

    provider, key, unrun = "openai", "authorization", {"batch_expired"}

    def create(self, prompts: "Sequence[str]", *, plain: bool = False) -> httpx.Response:
        """Upload and create."""
        lines = [request(f"r-{n}", prompt, url="/v1/chat/completions") for n, prompt in enumerate(prompts)]
        for line in lines if plain else ():
            del line["body"]["response_format"]
        files = {"file": ("b.jsonl", lines_of(lines))}
        file = self.http.post("/files", files=files, data={"purpose": "batch"}).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return self.http.post("/batches", json=body)

    def read(self, batch_id: str) -> httpx.Response:
        """GET /batches/{id}"""
        return self.http.get(f"/batches/{batch_id}")

    def call(self, where: str, batch_id: str) -> httpx.Response:
        """Of each kind."""
        if where == "create":
            return self.create(["x"])
        message = {"model": "gpt-5-nano", "messages": [{"role": "user", "content": "hello"}]}
        method, path, more = {
            "upload": ("POST", "/files", {"files": {"file": ("b.jsonl", b"x")}, "data": {"purpose": "batch"}}),
            "list": ("GET", "/batches", {}),
            "status": ("GET", f"/batches/{batch_id}", {}),
            "cancel": ("POST", f"/batches/{batch_id}/cancel", {}),
            "realtime": ("POST", "/chat/completions", {"json": message}),
            "content": ("GET", "/files/none/content", {}),
            "delete": ("DELETE", "/files/none", {}),
        }[where]
        return self.http.request(method, path, **more)

    def state(self, body: "dict[str, Any]") -> str:
        """`status`"""
        return body["status"]

    def lines(self, body: "dict[str, Any]") -> "list[bytes]":
        """Both files."""
        found: list[bytes] = []
        for name in ("output_file_id", "error_file_id"):
            if body[name]:
                found += self.http.get(f"/files/{body[name]}/content").content[:-1].split(b"\n")
        return found

    def kind(self, row: "dict[str, Any]") -> str:
        """The error's code, or the HTTP status."""
        if row["error"]:
            return row["error"]["code"]
        status = row["response"]["status_code"]
        return "ok" if status == 200 else str(status)

    def text(self, row: "dict[str, Any]") -> str:
        """`message.content`"""
        return row["response"]["body"]["choices"][0]["message"]["content"] or ""


class AnthropicDriver(Driver):
    """Messages."""

    provider, key, unrun = "anthropic", "x-api-key", {"expired"}

    def params(self, prompt: str, *, plain: bool = False) -> "dict[str, Any]":
        """One request."""
        form = {"format": {"type": "json_schema", "schema": MESSAGE_SENTIMENT}}
        body = {"model": "claude-haiku-4-5", "max_tokens": 99, "messages": [{"role": "user", "content": prompt}]}
        return body if plain else {**body, "output_config": form}

    def create(self, prompts: "Sequence[str]", *, plain: bool = False) -> httpx.Response:
        """POST /v1/messages/batches"""
        requests = [{"custom_id": f"r-{n}", "params": self.params(p, plain=plain)} for n, p in enumerate(prompts)]
        return self.http.post("/v1/messages/batches", json={"requests": requests})

    def read(self, batch_id: str) -> httpx.Response:
        """GET /v1/messages/batches/{id}"""
        return self.http.get(f"/v1/messages/batches/{batch_id}")

    def call(self, where: str, batch_id: str) -> httpx.Response:
        """Of each kind."""
        if where == "create":
            return self.create(["x"])
        path = f"/v1/messages/batches/{batch_id}"
        method, path, more = {
            "list": ("GET", "/v1/messages/batches", {}),
            "status": ("GET", path, {}),
            "cancel": ("POST", f"{path}/cancel", {}),
            "content": ("GET", f"{path}/results", {}),
            "delete": ("DELETE", path, {}),
            "realtime": ("POST", "/v1/messages", {"json": self.params("hello")}),
        }[where]
        return self.http.request(method, path, **more)

    def state(self, body: "dict[str, Any]") -> str:
        """`processing_status`"""
        return body["processing_status"]

    def lines(self, body: "dict[str, Any]") -> "list[bytes]":
        """The results."""
        return self.http.get(body["results_url"]).content[:-1].split(b"\n")

    def kind(self, row: "dict[str, Any]") -> str:
        """The inner error's type, or that of the result."""
        result = row["result"]
        if result["type"] == "errored":
            return result["error"]["error"]["type"]
        return "ok" if result["type"] == "succeeded" else result["type"]

    def text(self, row: "dict[str, Any]") -> str:
        """All text blocks."""
        return "".join(block["text"] for block in row["result"]["message"]["content"])


class GeminiDriver(Driver):
    """generateContent, inline."""

    provider, key, unrun = "gemini", "x-goog-api-key", {"4"}
    model = "/v1beta/models/gemini-2.5-flash"

    def body(self, prompt: str, *, plain: bool = False) -> "dict[str, Any]":
        """One request."""
        config = {"responseMimeType": "application/json", "responseSchema": GEMINI_SENTIMENT}
        body = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
        return body if plain else {**body, "generationConfig": config}

    def create(self, prompts: "Sequence[str]", *, plain: bool = False) -> httpx.Response:
        """POST :batchGenerateContent"""
        rows = [
            {"request": self.body(prompt, plain=plain), "metadata": {"key": f"r-{n}"}}
            for n, prompt in enumerate(prompts)
        ]
        batch = {"displayName": "mine", "inputConfig": {"requests": {"requests": rows}}}
        return self.http.post(f"{self.model}:batchGenerateContent", json={"batch": batch})

    def read(self, batch_id: str) -> httpx.Response:
        """GET /v1beta/batches/{id}"""
        return self.http.get(f"/v1beta/{batch_id}")

    def call(self, where: str, batch_id: str) -> httpx.Response:
        """Of each kind."""
        if where == "create":
            return self.create(["x"])
        start = {"x-goog-upload-protocol": "resumable", "x-goog-upload-command": "start"}
        method, path, more = {
            "upload_start": ("POST", "/upload/v1beta/files", {"headers": start}),
            "upload": ("POST", "/upload/v1beta/files/none", {"content": b"x" * 300_000}),
            "list": ("GET", "/v1beta/batches", {}),
            "status": ("GET", f"/v1beta/{batch_id}", {}),
            "cancel": ("POST", f"/v1beta/{batch_id}:cancel", {"json": {}}),
            "content": ("GET", "/download/v1beta/files/none:download", {}),
            "delete": ("DELETE", f"/v1beta/{batch_id}", {}),
            "realtime": ("POST", f"{self.model}:generateContent", {"json": self.body("hello")}),
        }[where]
        return self.http.request(method, path, **more)

    def state(self, body: "dict[str, Any]") -> str:
        """`metadata.state`"""
        return body["metadata"]["state"].removeprefix("BATCH_STATE_")

    def lines(self, body: "dict[str, Any]") -> "list[bytes]":
        """The inline responses, which come twice."""
        first, second = body["response"], body["metadata"]["output"]
        assert first["inlinedResponses"] == second["inlinedResponses"]
        return [json.dumps(row).encode() for row in first["inlinedResponses"]["inlinedResponses"]]

    def custom_id(self, row: "dict[str, Any]") -> str:
        """`metadata.key`"""
        return row["metadata"]["key"]

    def kind(self, row: "dict[str, Any]") -> str:
        """The gRPC code."""
        return "ok" if "response" in row else str(row["error"]["code"]) if "error" in row else "nothing"

    def text(self, row: "dict[str, Any]") -> str:
        """All parts."""
        content = row["response"]["candidates"][0]["content"]
        return "".join(part["text"] for part in content.get("parts", ()))


class OpenRouterDriver(Driver):
    """Chat completions."""

    provider, key, unrun = "openrouter", "authorization", {"timeout"}

    def message(self, prompt: str, *, plain: bool = False) -> "dict[str, Any]":
        """One request."""
        schema = {"type": "json_schema", "json_schema": {"name": "S", "strict": True, "schema": SENTIMENT}}
        body = {"messages": [{"role": "user", "content": prompt}]}
        return body if plain else {**body, "response_format": schema}

    def create(self, prompts: "Sequence[str]", *, plain: bool = False, **changes: Any) -> httpx.Response:
        """POST /batches"""
        rows = [{"custom_id": f"r-{n}", "body": self.message(p, plain=plain)} for n, p in enumerate(prompts)]
        top = {"endpoint": "/v1/chat/completions", "model": "z-ai/glm-5.3:batch", **changes}
        return self.http.post("/batches", json={**top, "requests": rows})

    def read(self, batch_id: str) -> httpx.Response:
        """GET /batches/{id}"""
        return self.http.get(f"/batches/{batch_id}")

    def call(self, where: str, batch_id: str) -> httpx.Response:
        """Of each kind."""
        if where == "create":
            return self.create(["x"])
        method, path, more = {
            "list": ("GET", "/batches", {}),
            "status": ("GET", f"/batches/{batch_id}", {}),
            "cancel": ("POST", f"/batches/{batch_id}/cancel", {}),
            "content": ("GET", f"/batches/{batch_id}/results", {}),
            "delete": ("DELETE", f"/batches/{batch_id}", {}),
            "realtime": ("POST", "/chat/completions", {"json": {"model": "z-ai/glm-5.3", **self.message("hello")}}),
        }[where]
        return self.http.request(method, path, **more)

    def state(self, body: "dict[str, Any]") -> str:
        """`status`"""
        return body["status"]

    def lines(self, body: "dict[str, Any]") -> "list[bytes]":
        """The inline results."""
        return [json.dumps(row).encode() for row in body["results"]]

    def kind(self, row: "dict[str, Any]") -> str:
        """The error's type, "bare" for one without, or the HTTP status."""
        if row["error"]:
            return row["error"].get("error_type", "bare")
        if not row["response"]:
            return "nothing"
        status = row["response"]["status_code"]
        return "ok" if status == 200 else str(status)

    def text(self, row: "dict[str, Any]") -> str:
        """`message.content`"""
        return row["response"]["body"]["choices"][0]["message"]["content"] or ""


DRIVERS = {found.provider: found for found in (OpenAIDriver, AnthropicDriver, GeminiDriver, OpenRouterDriver)}
