"""The output type of an asset: what the provider is asked for, what a valid answer is, and which columns it gives."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import AliasChoices, AliasPath, BaseModel, PydanticUserError, RootModel
from pydantic.json_schema import GenerateJsonSchema

from dagster_llmbatch.errors import ConfigurationError, UnportableSchemaError
from dagster_llmbatch.schemas.arrow_types import arrow_field, wire_names
from dagster_llmbatch.schemas.dialects import Mode, in_dialect
from dagster_llmbatch.schemas.portable import Portable, resolve
from dagster_llmbatch.schemas.validation import (
    AnswerProblem as AnswerProblem,
)
from dagster_llmbatch.schemas.validation import Invalid as Invalid
from dagster_llmbatch.schemas.validation import (
    Valid,
    json_validator,
    model_parser,
    schema_parser,
    text_validator,
)

TEXT_COLUMNS = pa.schema([pa.field("text", pa.string())])
RESERVED = "llm_"


@dataclass(frozen=True)
class OutputSchema:
    """A compiled output type. Equal digests: the same questions, columns and rules, as far as a schema can say."""

    name: str
    """Name of the schema on the wire."""
    json_schema: "Mapping[str, Any] | None"
    """The schema as the user meant it; None for plain text."""
    portable: "Mapping[str, Any] | None"
    """The schema that strict structured output accepts."""
    arrow_schema: pa.Schema
    """The output columns, all nullable."""
    keys: "tuple[str, ...]"
    """The key of each column in the answer."""
    model: "type[BaseModel] | None" = None

    @classmethod
    def compile(cls, output: "type[BaseModel] | Mapping[str, Any] | None", *, asset: str = "") -> "OutputSchema":
        """Compile a pydantic model, a JSON Schema or None (plain text).

        Raises UnportableSchemaError for what structured output cannot express, ConfigurationError for what is no output
        type, both at definition time.
        """
        if output is None:
            return cls("text", None, None, TEXT_COLUMNS, ("text",))
        where = f"{asset}: " if asset else ""
        if isinstance(output, Mapping):
            return cls._of_schema(_checked(output, where), str(output.get("title") or "answer"), None, asset)
        if not (isinstance(output, type) and issubclass(output, BaseModel)):
            raise ConfigurationError(
                f"{where}output must be a pydantic model class, a JSON Schema dict or None, not {output!r}."
            )
        if issubclass(output, RootModel):
            raise UnportableSchemaError(
                f"{where}output {output.__name__} is a RootModel; use a model with one field, which becomes the column."
            )
        unreachable = _unreachable(output)
        if unreachable is not None:
            raise UnportableSchemaError(
                f"{where}output $.{unreachable}: structured output cannot express an AliasPath.",
                path=f"$.{unreachable}",
            )
        try:
            schema = model_schema(output)
        except PydanticUserError as error:
            raise UnportableSchemaError(
                f"{where}output {output.__name__} has no JSON Schema: {error.message}"
            ) from error
        return cls._of_schema(schema, output.__name__, output, asset)

    @classmethod
    def _of_schema(
        cls, schema: "dict[str, Any]", name: str, model: "type[BaseModel] | None", asset: str
    ) -> "OutputSchema":
        portable = Portable(schema, asset=asset).rewrite()
        properties = resolve(schema, schema)["properties"]
        names = _field_names(model, tuple(properties))
        reserved = [n for n in names if n.startswith(RESERVED)]
        if reserved or len(set(names)) != len(names):
            where = f"{asset}: " if asset else ""
            raise ConfigurationError(
                f"{where}output fields {reserved or list(names)} clash: names must differ and not begin with {RESERVED!r}, "
                "which the result's system columns have."
            )
        fields = [arrow_field(n, node, schema) for n, node in zip(names, properties.values(), strict=True)]
        wire_name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "answer"
        return cls(wire_name, schema, portable, pa.schema(fields), tuple(properties), model)

    @property
    def is_text(self) -> bool:
        """Whether the answer is plain text."""
        return self.json_schema is None

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over what is asked and which columns it gives; the same in every process."""
        # Not the text of the Arrow schema: that is pyarrow's to change.
        columns = [[field.name, str(field.type)] for field in self.arrow_schema]
        canonical = json.dumps([self.name, self.json_schema, self.portable, columns, list(self.keys)], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def matches(self, other: "OutputSchema") -> bool:
        """Whether two compiled types ask for and accept the same, as far as a schema can say."""
        return self.digest == other.digest

    def for_provider(self, provider: str, mode: Mode = "batch") -> "dict[str, Any] | None":
        """The schema in a provider's dialect; None for plain text.

        Raises UnportableSchemaError for what that provider cannot express.
        """
        if self.portable is None or self.json_schema is None:
            return None
        return in_dialect(self.json_schema, self.portable, provider=provider, mode=mode)

    def validator(self) -> "Callable[[str], Valid | Invalid]":
        """A function from an answer's text to its column values, or to why it is not valid."""
        if self.json_schema is None:
            return text_validator()
        if self.model is not None:
            return json_validator(model_parser(self.model, self.json_schema, self.arrow_schema))
        return json_validator(schema_parser(self.json_schema, self.arrow_schema, self.keys))

    def to_arrow(self, columns: "Sequence[Sequence[Any]]") -> "list[pa.Array]":
        """The output columns from lists of validated values; None where there is no answer."""
        return [pa.array(values, field.type) for values, field in zip(columns, self.arrow_schema, strict=True)]

    def to_json(self) -> "dict[str, Any]":
        """The form kept in the ledger: enough to validate the answers of a plan whose code has changed since."""
        return {
            "name": self.name,
            "json_schema": self.json_schema,
            "portable": self.portable,
            "arrow_schema": base64.b64encode(self.arrow_schema.serialize().to_pybytes()).decode(),
            "keys": list(self.keys),
        }

    @classmethod
    def from_json(cls, stored: "Mapping[str, Any]") -> "OutputSchema":
        """The kept form back. It validates by the stored JSON Schema: a model's own validators are code, not data."""
        arrow_schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored["arrow_schema"])))
        return cls(stored["name"], stored["json_schema"], stored["portable"], arrow_schema, tuple(stored["keys"]))


class _AsAsked(GenerateJsonSchema):
    """Decimals as text, sets without order: what is asked, and the same in every process."""

    def decimal_schema(self, schema: Any) -> "dict[str, Any]":
        return {"type": "string", "format": "decimal"}

    def set_schema(self, schema: Any) -> "dict[str, Any]":
        return self._repeatable(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> "dict[str, Any]":
        return self._repeatable(super().frozenset_schema(schema))

    def _repeatable(self, schema: "dict[str, Any]") -> "dict[str, Any]":
        # pydantic takes a list with repetitions for a set, so the schema must too.
        return {k: v for k, v in schema.items() if k != "uniqueItems"}

    def encode_default(self, dft: Any) -> Any:
        found = super().encode_default(dft)
        return sorted(found, key=json.dumps) if isinstance(dft, (set, frozenset)) else found


def model_schema(model: "type[BaseModel]") -> "dict[str, Any]":
    """The JSON Schema of a pydantic model, as we ask for it."""
    return model.model_json_schema(mode="validation", schema_generator=_AsAsked)


def _checked(schema: "Mapping[str, Any]", where: str) -> "dict[str, Any]":
    """An own copy of a user's JSON Schema. Raises ConfigurationError where it is none."""
    from dagster_llmbatch.schemas.json_schema_rules import fault_of  # jsonschema is slow to import

    try:
        own = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}output is a dict that JSON cannot hold: {error}.") from error
    fault = fault_of(own)
    if fault is not None:
        raise ConfigurationError(f"{where}output is no JSON Schema: {fault}.")
    return own


def _field_names(model: "type[BaseModel] | None", keys: "tuple[str, ...]") -> "tuple[str, ...]":
    """The column of each key in the answer: the model's field name, whatever alias the wire uses."""
    if model is None:
        return keys
    names = wire_names(model)
    return tuple(names.get(key, key) for key in keys)


def _unreachable(model: "type[BaseModel]") -> "str | None":
    """A field that takes its value only from inside another: no schema asks for that."""
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasPath) or (
            isinstance(alias, AliasChoices) and not any(isinstance(c, str) for c in alias.choices)
        ):
            return name
    return None
