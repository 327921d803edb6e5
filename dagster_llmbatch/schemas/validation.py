"""Answers to values: strict JSON, then one recovery (a Markdown fence around the whole text), then the schema."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, get_args

import pyarrow as pa
from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType

from dagster_llmbatch.schemas.arrow_types import Misfit, converter
from dagster_llmbatch.schemas.wire_values import as_meant, is_json, strict_json, with_defaults

FENCE_OPENING = re.compile(r"(`{3,})[A-Za-z0-9_.+-]*")
FENCED = "fenced"
LONG_NUMBER = re.compile(r"[0-9][0-9.]{15}")
"""A number that may have more digits than a double keeps."""
CORE_RULES = frozenset(get_args(ErrorType))
"""Names of pydantic's own rules; any other is a user's text and might hold the value."""
ISSUES = 5
"""Issues that a message names."""


class AnswerProblem(str, Enum):
    """Why an answer is not valid."""

    NOT_JSON = "not_json"
    SCHEMA_MISMATCH = "schema_mismatch"
    EMPTY = "empty"


@dataclass(frozen=True)
class Issue:
    """One rule an answer breaks, without the value that breaks it."""

    path: str
    rule: str


@dataclass(frozen=True)
class Invalid:
    """An answer that is not valid. Holds no text of it."""

    problem: AnswerProblem
    issues: "tuple[Issue, ...]" = ()

    @property
    def message(self) -> str:
        """What is wrong, in a line."""
        if self.problem is AnswerProblem.EMPTY:
            return "the answer is empty"
        if self.problem is AnswerProblem.NOT_JSON:
            return "the answer is not JSON"
        shown = "; ".join(f"{issue.path}: {issue.rule}" for issue in self.issues[:ISSUES])
        more = len(self.issues) - ISSUES
        return f"the answer does not fit the output schema: {shown}" + (f"; and {more} more" if more > 0 else "")


class Valid(NamedTuple):
    """An answer's values, one a column."""

    values: "Sequence[Any]"
    recovered: "str | None" = None
    """`fenced` where the answer stood in a Markdown fence."""


Validate = Callable[[str], Valid | Invalid]
Parse = Callable[[str], Sequence[Any] | Invalid]


def text_validator() -> Validate:
    """Plain text: anything but nothing."""

    def validate(text: str) -> "Valid | Invalid":
        if not text.strip():
            return Invalid(AnswerProblem.EMPTY)
        try:
            text.encode()
        except UnicodeEncodeError:
            return _mismatch("text", "holds a lone surrogate")
        return Valid((text,))

    return validate


def json_validator(parse: Parse) -> Validate:
    """Strict first; where that is no JSON, once more without a fence that encloses the whole text."""

    def validate(text: str) -> "Valid | Invalid":
        found = parse(text)
        if not isinstance(found, Invalid):
            return Valid(found)
        if found.problem is not AnswerProblem.NOT_JSON:
            return found
        if not text.strip():
            return Invalid(AnswerProblem.EMPTY)
        fenced = unfenced(text)
        if fenced is None:
            return found
        inner = parse(fenced)
        return inner if isinstance(inner, Invalid) else Valid(inner, FENCED)

    return validate


def unfenced(text: str) -> "str | None":
    """What stands in a Markdown fence around the whole text; None where no fence encloses it."""
    whole = text.strip()
    opening = FENCE_OPENING.match(whole)
    if opening is None or not whole.endswith(opening.group(1)):
        return None
    return whole[opening.end() : -len(opening.group(1))].strip()


def model_parser(model: "type[BaseModel]", schema: "Mapping[str, Any]", columns: pa.Schema) -> Parse:
    """Validation by the user's pydantic model, in strict mode."""
    validate_json = model.__pydantic_validator__.validate_json
    names = tuple(columns.names)
    converters = [converter(field) for field in columns]
    decimals = '"decimal"' in json.dumps(schema)
    own_names = _names_beside_maps(schema)

    def parse(text: str) -> "Sequence[Any] | Invalid":
        if ("NaN" in text or "Infinity" in text) and not is_json(text):
            return Invalid(AnswerProblem.NOT_JSON)
        try:
            if decimals and LONG_NUMBER.search(text):  # pydantic makes a Decimal of the nearest double
                text = json.dumps(as_meant(strict_json(text), schema, schema))
            found = validate_json(text, strict=True)
        except ValidationError as error:
            return _again_as_meant(text, error)
        except ValueError:
            return Invalid(AnswerProblem.NOT_JSON)
        except Exception as error:  # a user's validator: one row's answer must not stop the others
            return _raised(error)
        return _converted(names, found.__dict__, converters)

    def _again_as_meant(text: str, error: ValidationError) -> "Sequence[Any] | Invalid":
        try:
            value = strict_json(text)
            meant = as_meant(value, schema, schema)
            if meant == value:
                return _broken(error, own_names)
            return _converted(names, validate_json(json.dumps(meant), strict=True).__dict__, converters)
        except ValidationError as again:
            return _broken(again, own_names)
        except ValueError:
            return Invalid(AnswerProblem.NOT_JSON)
        except Exception as raised:  # as above
            return _raised(raised)

    return parse


def schema_parser(schema: "Mapping[str, Any]", columns: pa.Schema, keys: "Sequence[str]") -> Parse:
    """Validation by a JSON Schema alone: given as the output, or stored with a plan whose model has changed since."""
    from dagster_llmbatch.schemas.json_schema_rules import rules_of  # jsonschema is slow to import

    rules = rules_of(schema)
    own_names = _names_beside_maps(schema)
    converters = [converter(field) for field in columns]
    names = tuple(columns.names)

    def parse(text: str) -> "Sequence[Any] | Invalid":
        try:
            value = strict_json(text)
        except ValueError:
            return Invalid(AnswerProblem.NOT_JSON)
        try:
            value = as_meant(value, schema, schema)
            issues = tuple(_issue(e.absolute_path, str(e.validator), own_names) for e in rules.iter_errors(value))
            if issues:
                return Invalid(AnswerProblem.SCHEMA_MISMATCH, issues)
            value = with_defaults(value, schema, schema)
        except RecursionError:
            return _mismatch("$", "nested too deeply")
        row = {name: value.get(key) for name, key in zip(names, keys, strict=True)}
        return _converted(names, row, converters)

    return parse


def _converted(names: "Sequence[str]", row: "Mapping[str, Any]", converters: "Sequence[Any]") -> "list[Any] | Invalid":
    try:
        return [convert(row[name]) for name, convert in zip(names, converters, strict=True)]
    except Exception:  # a user's validator may have made a value of any type
        return _unfit(names, row, converters)


def _unfit(names: "Sequence[str]", row: "Mapping[str, Any]", converters: "Sequence[Any]") -> Invalid:
    issues = []
    for name, convert in zip(names, converters, strict=True):
        try:
            convert(row[name])
        except Misfit as error:
            issues.append(Issue(name, str(error)))
        except Exception:  # its text may hold the value
            issues.append(Issue(name, "does not fit its column"))
    return Invalid(AnswerProblem.SCHEMA_MISMATCH, tuple(issues))


def _broken(error: ValidationError, names: "frozenset[str] | None") -> Invalid:
    found = error.errors(include_input=False, include_url=False, include_context=False)
    issues = []
    for e in found:
        kind = e["type"] if e["type"] in CORE_RULES else "a rule of the model"
        # The last step of an unexpected key's path is the key, which is the answer's text.
        issues.append(_issue(e["loc"][:-1] if kind == "extra_forbidden" else e["loc"], kind, names))
    return Invalid(AnswerProblem.SCHEMA_MISMATCH, tuple(issues))


def _raised(error: Exception) -> Invalid:
    return _mismatch("$", f"a validator of the model raised {type(error).__name__}")


def _mismatch(path: str, rule: str) -> Invalid:
    return Invalid(AnswerProblem.SCHEMA_MISMATCH, (Issue(path, rule),))


def _names_beside_maps(schema: "Mapping[str, Any]") -> "frozenset[str] | None":
    """The names a path may show where keys of maps, which are the answer's text, may stand in it; None: no maps, any name."""
    names: set[str] = set()
    maps = False
    nodes: list[Any] = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            maps = maps or isinstance(node.get("additionalProperties"), Mapping)
            names |= {name for holder in ("properties", "$defs") for name in node.get(holder) or {}}
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return frozenset(names) if maps else None


def _issue(location: Any, rule: str, names: "frozenset[str] | None" = None) -> Issue:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif names is not None and part not in names:
            path += "{}"
        else:
            path += f".{part}" if path else str(part)
    return Issue(path or "$", rule.replace("_", " "))
