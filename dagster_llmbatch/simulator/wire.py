"""A provider's wire: its routes and shapes, on top of what it does with its batches."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dagster_llmbatch.simulator.batches import BatchRules, StoredBatch
from dagster_llmbatch.simulator.execution import Format, Outcome, Refusal, outcome_of
from dagster_llmbatch.simulator.store import Store

Handler = Callable[[Request], Awaitable[Response]]
WRONG_KEY = "wrong-key"
"""Keys that begin so are refused, at any provider."""


class Call(NamedTuple):
    """One endpoint.

    Attributes:
        name: one of faults.CALLS.
        path: below the wire's base path.
    """

    name: str
    method: str
    path: str
    handler: Handler


class Wire(BatchRules):
    """One provider: to add one, subclass this in a module of `wires` and name the class WIRE there."""

    base_path: ClassVar[str]
    """What follows host and port in the base_url a client is given."""
    request_id_header: ClassVar[str]
    no_credit: ClassVar[Refusal]
    """The refusal of a call that could not be paid for."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @abstractmethod
    def calls(self) -> "list[Call]":
        """All endpoints."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> Response:
        """An error answer of the provider's shape."""

    def key_of(self, request: Request) -> str:
        """The key a call was sent with; empty without one."""
        return request.headers.get("authorization", "").removeprefix("Bearer").strip()

    def key_refused(self, _key: str) -> Refusal:
        """The refusal of a call without a key, or with a wrong one."""
        return Refusal(401, "No API key provided.", code="invalid_api_key")

    def own(self, request: Request) -> "StoredBatch | None":
        """The batch a path names."""
        return self.store.batch(self.provider, request.path_params["id"])

    def realtime(self, form: Format, body: "dict[str, Any]") -> Outcome:
        """One request answered at once, and booked under the id of its reply."""
        prompt = form.prompt_of(body)
        fault = self.store.faults.of_row(prompt, prompt)
        outcome = outcome_of(form, body, fault, self.store.clock.now(), in_batch=False)
        if outcome.reply is not None:
            self.store.book.pay(form.id_of(outcome.reply), outcome.tokens)
        return outcome

    def answered(self, outcome: Outcome) -> Response:
        """The HTTP answer of a realtime call."""
        return JSONResponse(outcome.reply) if outcome.refusal is None else self.refuse(outcome.refusal)


async def json_of(request: Request) -> Any:
    """The body, or None for what is not JSON."""
    try:
        return msgspec.json.decode(await request.body())
    except msgspec.DecodeError:
        return None


def limit_of(request: Request, usual: int, largest: int, name: str = "limit") -> int:
    """A page's size as asked for. Raises ValueError."""
    limit = int(request.query_params.get(name, usual))
    if not 1 <= limit <= largest:
        raise ValueError(f"{name} is a number from 1 to {largest}.")
    return limit
