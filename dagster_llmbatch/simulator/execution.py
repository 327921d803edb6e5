"""One request into one reply: the steps are the same for all providers; a Format is the shape they take."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagster_llmbatch.simulator.answers import SchemaRefused, answer

Body = Mapping[str, Any]
SEPARATOR = "\u2028"
UNKNOWN_MODEL = "no-such-model"
"""Model names that begin so do not exist, at any provider."""
_ERRORS = {"error_400": 400, "error_429": 429, "error_500": 500}


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused. A wire gives it the provider's shape, as an HTTP answer or as a row.

    Attributes:
        status: the HTTP status it has, or would have outside a batch.
        code: the provider's own word for it, where a status is not enough.
        param: the field at fault, for the providers that name it.
    """

    status: int
    message: str
    code: "str | None" = None
    param: "str | None" = None


@dataclass(frozen=True)
class Said:
    """What the model said to one request.

    Attributes:
        fault: the row fault that is to show in the reply: "refuse" and "truncate" are more than a text.
        tokens: in and out.
        name: the same for the same prompt; for ids.
        created: unix seconds.
    """

    text: str
    fault: "str | None"
    tokens: "tuple[int, int]"
    name: str
    created: int
    in_batch: bool


@dataclass(frozen=True)
class Outcome:
    """A reply, or the refusal of one."""

    reply: "dict[str, Any] | None" = None
    refusal: "Refusal | None" = None
    tokens: "tuple[int, int]" = (0, 0)


class Format(ABC):
    """The request and reply bodies of one endpoint."""

    leaves_out = False
    """Whether answers lack some of a schema's optional properties."""

    @abstractmethod
    def prompt_of(self, body: Body) -> str:
        """All text of a request, for seeds and markers."""

    @abstractmethod
    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """The JSON Schema that the answer keeps to."""

    @abstractmethod
    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """What is wrong with a request, or None."""

    @abstractmethod
    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """The reply body."""

    def id_of(self, reply: Body) -> str:
        """What a reply is booked under where there is no custom id."""
        return reply["id"]

    def schema_refused(self, reason: str) -> Refusal:
        """The refusal of a schema no answer can be made for."""
        return Refusal(400, f"Invalid schema: {reason}")


def outcome_of(form: Format, body: Body, fault: "str | None", created: float, *, in_batch: bool) -> Outcome:
    """What becomes of one request, in a batch or alone."""
    if fault in _ERRORS:
        return Outcome(refusal=Refusal(_ERRORS[fault], "simulated"))
    wrong = form.refused(body, in_batch=in_batch)
    if wrong is not None:
        return Outcome(refusal=wrong)
    prompt = form.prompt_of(body)
    try:
        text = answer(prompt, form.schema_of(body, in_batch=in_batch), leave_out=form.leaves_out)
    except SchemaRefused as error:
        return Outcome(refusal=form.schema_refused(str(error)))
    text = _faulty(text, fault)
    tokens = max(1, len(prompt) // 4), max(1, len(text) // 4)
    said = Said(text, fault, tokens, hash_of(prompt), int(created), in_batch)
    return Outcome(reply=form.reply(body, said), tokens=tokens)


def hash_of(text: str) -> str:
    """24 hex digits, the same for the same text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def within(body: Any, *names: str) -> Any:
    """What lies so deep in a request; None where it, or anything on the way, is missing or of another kind."""
    for name in names:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def texts_of(content: Any) -> "list[str]":
    """The texts of a message's content: one text, or parts some of which have one."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return [text if isinstance(text, str) else "" for text in texts]


def _faulty(text: str, fault: "str | None") -> str:
    changed = {
        "truncate": text[: max(1, len(text) // 2)],
        "empty": "",
        "refuse": "",
        "fence": f"```json\n{text}\n```",
        "prose": f"Here is what you asked for: {text}",
        "wrong_schema": '{"unexpected": true}',
        "separator": text.replace(" ", SEPARATOR, 1),
    }
    return changed.get(fault or "", text)
