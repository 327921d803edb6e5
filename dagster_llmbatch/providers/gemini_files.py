"""Gemini's file uploads: a session is started, then the bytes go to the address it names."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dagster_llmbatch.errors import TransientProviderError
from dagster_llmbatch.providers.contract import ErrorCategory
from dagster_llmbatch.providers.http import ProviderHttp
from dagster_llmbatch.providers.lines import CHUNK_BYTES

JSONL = "application/jsonl"


def upload_file(http: ProviderHttp, path: Path, *, version: str, display_name: str) -> str:
    """Upload request lines and return the file's name, `files/...`. Retried from a new session, as a broken one may hold
    some of the bytes."""
    return http.retried(lambda: _upload_once(http, path, version, display_name))


@dataclass(frozen=True)
class _Bytes:
    """A file's bytes in pieces: the same ones each time they are iterated over."""

    path: Path

    def __iter__(self) -> "Iterator[bytes]":
        with self.path.open("rb") as content:
            while piece := content.read(CHUNK_BYTES):
                yield piece


def _upload_once(http: ProviderHttp, path: Path, version: str, display_name: str) -> str:
    size = path.stat().st_size
    start = {
        "x-goog-upload-protocol": "resumable",
        "x-goog-upload-command": "start",
        "x-goog-upload-header-content-length": str(size),
        "x-goog-upload-header-content-type": JSONL,
    }
    file = {"displayName": display_name, "mimeType": JSONL, "sizeBytes": size}
    session = http.exchange("POST", f"upload/{version}/files", headers=start, json={"file": file})
    address = session.headers.get("x-goog-upload-url")
    if not address:
        raise _without("an upload address")
    send = {"content-length": str(size), "x-goog-upload-offset": "0", "x-goog-upload-command": "upload, finalize"}
    sent = http.body(http.exchange("POST", address, headers=send, content=_Bytes(path)))
    name = (sent.get("file") or {}).get("name")
    if not name:
        raise _without("a file name")
    return str(name)


def _without(what: str) -> TransientProviderError:
    return TransientProviderError(
        f"gemini: the upload was answered without {what}.",
        provider="gemini",
        category=ErrorCategory.SERVER_ERROR.value,
    )
