"""One module a provider. A module that names a class WIRE is served; there is no other list."""

import importlib
import pkgutil

from dagster_llmbatch.simulator.store import Store
from dagster_llmbatch.simulator.wire import Wire


def all_wires(store: Store) -> "list[Wire]":
    """The wires of all providers, on one store."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [module.WIRE(store) for module in modules if hasattr(module, "WIRE")]
