"""The ASGI application: every provider's wire on one store, and the admin corner."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from dagster_llmbatch.simulator.admin import Admin
from dagster_llmbatch.simulator.calls import ABORT, guarded
from dagster_llmbatch.simulator.store import Store
from dagster_llmbatch.simulator.wire import Wire


def build_app(store: Store, wires: "Sequence[Wire]") -> "Callable[..., Awaitable[None]]":
    """The application of one store."""
    routes = [
        Route(wire.base_path + call.path, guarded(wire, call), methods=[call.method])
        for wire in wires
        for call in wire.calls()
    ]
    inner = Starlette(routes=routes + Admin(store).routes())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        # Starlette wraps `send`, so a route can reach uvicorn's transport only through the scope.
        await inner({**scope, ABORT: send.__self__.transport.abort}, receive, send)

    return app
