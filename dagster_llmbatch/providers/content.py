"""What a prompt may hold beside text: parts of a user message, as plain data."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class PartKind(str, Enum):
    """Kinds of content parts, as far as providers tell them apart."""

    TEXT = "text"
    IMAGE_URL = "image_url"
    IMAGE_DATA = "image_data"
    DOCUMENT_URL = "document_url"
    DOCUMENT_DATA = "document_data"


@dataclass(frozen=True)
class TextPart:
    """Text."""

    text: str

    @property
    def kind(self) -> PartKind:
        """Always TEXT."""
        return PartKind.TEXT


@dataclass(frozen=True)
class ImagePart:
    """An image, by URL or by bytes: one of both.

    Args:
        url: an http(s) address the provider can fetch.
        data: the image's bytes.
        media_type: such as image/png; needed with `data`.
    """

    url: "str | None" = None
    data: "bytes | None" = None
    media_type: "str | None" = None

    def __post_init__(self) -> None:
        _one_of(self, "image")

    @property
    def kind(self) -> PartKind:
        """IMAGE_URL or IMAGE_DATA."""
        return PartKind.IMAGE_URL if self.url is not None else PartKind.IMAGE_DATA


@dataclass(frozen=True)
class DocumentPart:
    """A PDF, by URL or by bytes: one of both.

    Args:
        url: an http(s) address the provider can fetch.
        data: the document's bytes.
        media_type: application/pdf unless said otherwise.
        filename: shown to the model by providers that take a name.
    """

    url: "str | None" = None
    data: "bytes | None" = None
    media_type: str = "application/pdf"
    filename: str = "document.pdf"

    def __post_init__(self) -> None:
        _one_of(self, "document")

    @property
    def kind(self) -> PartKind:
        """DOCUMENT_URL or DOCUMENT_DATA."""
        return PartKind.DOCUMENT_URL if self.url is not None else PartKind.DOCUMENT_DATA


Part = TextPart | ImagePart | DocumentPart
Content = str | tuple[Part, ...]
"""A user message: text, or parts in order."""


def _one_of(part: "ImagePart | DocumentPart", name: str) -> None:
    if (part.url is None) == (part.data is None):
        raise ValueError(f"an {name} part has a url or data, one of both")
    if part.url is not None and not part.url.startswith(("https://", "http://", "gs://")):
        raise ValueError(f"the url of an {name} part must be an http(s) or gs address; give bytes as data")
    if part.data is not None and not part.media_type:
        raise ValueError(f"an {name} part with data needs its media_type, such as image/png")


def base64_text(data: bytes) -> str:
    """Bytes as base64, the form all providers take."""
    return base64.b64encode(data).decode()


def to_json(parts: "Iterable[Part]") -> str:
    """Parts as JSON text, the form kept in the ledger."""
    return json.dumps([_plain(part) for part in parts], ensure_ascii=False, separators=(",", ":"))


def from_json(text: str) -> "tuple[Part, ...]":
    """Parts back from `to_json`. Raises ValueError for anything else."""
    try:
        return tuple(_part(found) for found in json.loads(text))
    except (TypeError, KeyError, binascii.Error) as error:
        raise ValueError("not content parts") from error


def _plain(part: Part) -> "dict[str, Any]":
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    found: dict[str, Any] = {"type": "image" if isinstance(part, ImagePart) else "document"}
    found |= {"url": part.url} if part.data is None else {"data": base64_text(part.data)}
    found |= {"media_type": part.media_type} if part.media_type else {}
    return found | ({"filename": part.filename} if isinstance(part, DocumentPart) else {})


def _part(found: "Mapping[str, Any]") -> Part:
    given = {k: v for k, v in found.items() if k != "type"}
    if "data" in given:
        given["data"] = base64.b64decode(given["data"], validate=True)
    return {"text": TextPart, "image": ImagePart, "document": DocumentPart}[found["type"]](**given)
