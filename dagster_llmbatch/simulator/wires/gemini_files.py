"""Gemini's files: resumable uploads, and downloads of results."""

import base64
import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from dagster_llmbatch.simulator.batches import DAY
from dagster_llmbatch.simulator.execution import Refusal
from dagster_llmbatch.simulator.store import StoredFile, new_id
from dagster_llmbatch.simulator.wire import Call, Wire, json_of
from dagster_llmbatch.simulator.wires.gemini_content import field

LIFE = 2 * DAY
"""Seconds an uploaded file is kept."""
NAME = r"files/[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
LONGEST_DISPLAY_NAME = 512
GRANULARITY = 8 << 20
RESULTS = "files/batch-"
"""How the names of result files begin."""


@dataclass
class Session:
    """An upload that has begun."""

    file: StoredFile
    mime_type: str


class GeminiFiles:
    """The file endpoints of one wire and API version."""

    def __init__(self, wire: Wire, version: str) -> None:
        self._wire = wire
        self._store = wire.store
        self._version = version
        self._sessions: dict[str, Session] = {}

    def calls(self) -> "list[Call]":
        """All file endpoints."""
        return [
            Call("upload_start", "POST", f"/upload/{self._version}/files", self.start),
            Call("upload", "POST", f"/upload/{self._version}/files/{{upload_id}}", self.upload),
            Call("content", "GET", f"/download/{self._version}/files/{{id}}:download", self.content),
            Call("content", "GET", f"/{self._version}/files/{{id}}:download", self.content),
            Call("files", "GET", f"/{self._version}/files", self.list_files),
            Call("file", "GET", f"/{self._version}/files/{{id}}", self.show),
            Call("delete", "DELETE", f"/{self._version}/files/{{id}}", self.delete),
        ]

    async def start(self, request: Request) -> Response:
        """POST /upload/{version}/files: where to send the bytes to."""
        command = request.headers.get("x-goog-upload-command")
        if command != "start" or request.headers.get("x-goog-upload-protocol") != "resumable":
            return self._wire.refuse(Refusal(400, "The simulator has resumable uploads only."))
        asked = (await json_of(request) or {}).get("file") or {}
        name = asked.get("name") or new_id("files/", 12)
        shown = field(asked, "displayName") or ""
        if not re.fullmatch(NAME, name) or len(shown) > LONGEST_DISPLAY_NAME:
            return self._wire.refuse(Refusal(400, "Invalid file name or display name."))
        if self._store.file(self._wire.provider, name) is not None:
            return self._wire.refuse(Refusal(409, f"File {name} already exists."))
        path = self._store.folder / new_id("upload-")
        path.touch()
        file = StoredFile(name, self._wire.provider, path, shown, "upload", self._store.clock.now())
        session = new_id("")
        mime_type = request.headers.get("x-goog-upload-header-content-type", "application/octet-stream")
        self._sessions[session] = Session(file, mime_type)
        root = f"{str(request.base_url).rstrip('/')}{self._wire.base_path}"
        headers = {
            "x-goog-upload-url": f"{root}/upload/{self._version}/files/{session}",
            "x-goog-upload-status": "active",
            "x-goog-upload-chunk-granularity": str(GRANULARITY),
        }
        return JSONResponse({}, headers=headers)

    async def upload(self, request: Request) -> Response:
        """POST to the address `start` gave: a chunk, or the last one, which makes the file."""
        session = self._sessions.get(request.path_params["upload_id"])
        commands = [one.strip() for one in request.headers.get("x-goog-upload-command", "").split(",")]
        if session is None or "upload" not in commands:
            return self._wire.refuse(Refusal(404 if session is None else 400, "No such upload, or no such command."))
        path = session.file.path
        if request.headers.get("x-goog-upload-offset") != str(path.stat().st_size):
            return self._wire.refuse(Refusal(400, "The offset is not where the last chunk ended."))
        with path.open("ab") as target:
            async for piece in request.stream():
                target.write(piece)
        if "finalize" not in commands:
            return JSONResponse({}, headers={"x-goog-upload-status": "active"})
        del self._sessions[request.path_params["upload_id"]]
        self._store.files[session.file.id] = session.file
        shown = self._shown(session.file, request, mime_type=session.mime_type)
        return JSONResponse({"file": shown}, headers={"x-goog-upload-status": "final"})

    async def list_files(self, request: Request) -> Response:
        """GET /{version}/files, newest first, all on one page."""
        files = [self._shown(file, request) for file in self._store.files_of(self._wire.provider) if self._alive(file)]
        return JSONResponse({"files": files} if files else {})

    async def show(self, request: Request) -> Response:
        """GET /{version}/files/{id}"""
        file = self._own(request)
        return self._missing(request) if file is None else JSONResponse(self._shown(file, request))

    async def delete(self, request: Request) -> Response:
        """DELETE /{version}/files/{id}; a result file goes with its batch only."""
        file = self._own(request)
        if file is None:
            return self._missing(request)
        if file.id.startswith(RESULTS):
            return self._wire.refuse(Refusal(400, "The file id is longer than 40 characters."))
        del self._store.files[file.id]
        return JSONResponse({})

    async def content(self, request: Request) -> Response:
        """GET /download/{version}/files/{id}:download, or as Google's package does without /download; of results only."""
        file = self._own(request)
        if file is None:
            return self._missing(request)
        if not file.id.startswith(RESULTS):
            return self._wire.refuse(Refusal(400, "Only generated files can be downloaded."))
        return FileResponse(file.path, media_type="application/octet-stream")

    def _own(self, request: Request) -> "StoredFile | None":
        file = self._store.file(self._wire.provider, f"files/{request.path_params['id']}")
        return file if file is not None and self._alive(file) else None

    def _alive(self, file: StoredFile) -> bool:
        return file.id.startswith(RESULTS) or self._store.clock.now() < file.created_at + LIFE

    def _missing(self, request: Request) -> Response:
        """403, not 404."""
        words = f"You do not have permission to access the File {request.path_params['id']} or it may not exist."
        return self._wire.refuse(Refusal(403, words))

    def _shown(self, file: StoredFile, request: Request, *, mime_type: str = "application/jsonl") -> "dict[str, Any]":
        """The file object."""
        made = file.id.startswith(RESULTS)
        root = f"{str(request.base_url).rstrip('/')}{self._wire.base_path}/{self._version}"
        shown = {
            "name": file.id,
            "displayName": file.filename,
            "mimeType": mime_type,
            "sizeBytes": str(file.path.stat().st_size),
            "createTime": time_of(file.created_at),
            "updateTime": time_of(file.created_at),
            "expirationTime": None if made else time_of(file.created_at + LIFE),
            "sha256Hash": base64.b64encode(hashlib.sha256(file.path.read_bytes()).hexdigest().encode()).decode(),
            "uri": f"{root}/{file.id}",
            "downloadUri": f"{root}/{file.id}:download?alt=media" if made else None,
            "state": "ACTIVE",
            "source": "GENERATED" if made else "UPLOADED",
        }
        return {name: value for name, value in shown.items() if value}


def time_of(moment: float) -> str:
    """RFC 3339, as Google writes it."""
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
