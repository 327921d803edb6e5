"""What a row may ask for differently from its asset: model, system prompt, parameters, from a column or a function."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_llmbatch.core.identity import canonical_json
from dagster_llmbatch.core.text_forms import rows_of
from dagster_llmbatch.errors import ConfigurationError, InputError

ByRow = str | Callable[[dict[str, Any]], Any]
"""A column's name, or a function of the row. None, from either, means: as the asset says."""
ModelIdOf = Callable[[str], str]
"""The id, at the asset's provider, of a model string. Raises ValueError, without the string, for a model of another."""


@dataclass(frozen=True)
class Own:
    """What one row asks for itself; None: as the asset says."""

    model: "str | None" = None
    """The provider's model id."""
    system: "str | None" = None
    params: "str | None" = None
    """Canonical JSON of parameters that come over the asset's."""
    problem: "str | None" = None
    """Why it cannot be asked. Never quotes a value of the row."""

    @property
    def choices(self) -> "tuple[str | None, str | None, str | None]":
        """The values of CHOICES."""
        return self.model, self.system, self.params


CHOICES = ("model", "system", "params")


class RowChoices:
    """Reads what the rows of a batch ask for themselves.

    Raises InputError for a column that is not there.
    """

    def __init__(
        self, chosen: "Mapping[str, ByRow]", columns: pa.Schema, *, model_id_of: "ModelIdOf", asset: str
    ) -> None:
        self._chosen = dict(chosen)
        self._model_id_of = model_id_of
        missing = sorted(c for c in self._chosen.values() if isinstance(c, str) and c not in columns.names)
        if missing:
            raise InputError(
                f"{asset}: the input has no column {missing}, which model, system or params are read from."
            )

    def read(self, block: pa.RecordBatch) -> "list[Own]":
        """One a row."""
        return [self._one(row) for row in rows_of(block)]

    def _one(self, row: "dict[str, Any]") -> Own:
        found: dict[str, str | None] = {}
        for name, choice in self._chosen.items():
            try:
                value = row[choice] if isinstance(choice, str) else choice(dict(row))
            except Exception as error:  # whatever the function does to one row is that row's failure alone
                return Own(problem=f"{name} failed ({type(error).__name__})")
            try:
                found[name.removeprefix("row_")] = None if value is None else self._read(name, value)
            except ValueError as error:
                return Own(problem=f"{name} {error}")
        return Own(**found)

    def _read(self, name: str, value: Any) -> str:
        if name == "row_params":
            return _params(value)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"is {type(value).__name__}, not text" if not isinstance(value, str) else "is empty")
        if name == "row_system":
            return value
        return self._model_id_of(value)


def _params(value: Any) -> str:
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise ValueError(f"is {type(found).__name__}, not a dict or the JSON text of one")
    # a struct column has every field in every row: null says that this row does not set it
    set_here = {name: v for name, v in found.items() if v is not None}
    try:
        return canonical_json(set_here).decode()
    except TypeError:
        raise ValueError("holds a value that JSON cannot hold") from None


def check_by_row(chosen: "Mapping[str, Any]", *, asset: str) -> "dict[str, ByRow]":
    """The choices that are made. Raises ConfigurationError for one that is neither a column's name nor a function."""
    found = {name: choice for name, choice in chosen.items() if choice is not None}
    for name, choice in found.items():
        if not (callable(choice) or (isinstance(choice, str) and choice)):
            raise ConfigurationError(
                f"{asset}: {name} is the name of a column or a function of the row, not {choice!r}."
            )
    return found
