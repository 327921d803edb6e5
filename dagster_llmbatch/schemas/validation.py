"""Answers to values: strict JSON, then one recovery (a Markdown fence around the whole text), then the schema."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pydantic import BaseModel, ValidationError

from dagster_llmbatch.schemas.arrow_types import converter, is_plain
from dagster_llmbatch.schemas.portable import without_filler_nulls

FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*\Z", re.DOTALL)
FENCED = "fenced"
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
        fence = FENCE.match(text)
        if fence is None:
            return found
        inner = parse(fence.group(1))
        return inner if isinstance(inner, Invalid) else Valid(inner, FENCED)

    return validate


def model_parser(model: "type[BaseModel]", schema: "Mapping[str, Any]", columns: pa.Schema) -> Parse:
    """Validation by the user's pydantic model, in strict mode."""
    validate_json = model.__pydantic_validator__.validate_json
    names = tuple(columns.names)
    plain = all(is_plain(field) for field in columns)
    converters = [converter(field) for field in columns]
    floats = any(pa.types.is_floating(field.type) for field in columns) or not plain

    def parse(text: str) -> "Sequence[Any] | Invalid":
        if floats and ("NaN" in text or "Infinity" in text) and not _is_json(text):
            return Invalid(AnswerProblem.NOT_JSON)
        try:
            found = validate_json(text, strict=True)
        except ValidationError as error:
            return _again_without_nulls(text, error)
        except UnicodeEncodeError:
            return Invalid(AnswerProblem.NOT_JSON)
        return _converted(names, found.__dict__, converters)

    def _again_without_nulls(text: str, error: ValidationError) -> "Sequence[Any] | Invalid":
        first = error.errors(include_input=False, include_url=False, include_context=False)
        if first[0]["type"] == "json_invalid":
            return Invalid(AnswerProblem.NOT_JSON)
        try:
            value = msgspec.json.decode(text)
            pruned = without_filler_nulls(value, schema, schema)
            if pruned != value:
                return _converted(names, validate_json(json.dumps(pruned), strict=True).__dict__, converters)
        except ValidationError as again:
            first = again.errors(include_input=False, include_url=False, include_context=False)
        except msgspec.DecodeError:
            return Invalid(AnswerProblem.NOT_JSON)
        return Invalid(AnswerProblem.SCHEMA_MISMATCH, tuple(_issue(e["loc"], e["type"]) for e in first))

    return parse


def schema_parser(schema: "Mapping[str, Any]", columns: pa.Schema, keys: "Sequence[str]") -> Parse:
    """Validation by a JSON Schema alone: given as the output, or stored with a plan whose model has changed since."""
    from jsonschema import Draft202012Validator, FormatChecker

    validator = Draft202012Validator(dict(schema), format_checker=FormatChecker())
    converters = [converter(field) for field in columns]
    names = tuple(columns.names)

    def parse(text: str) -> "Sequence[Any] | Invalid":
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return Invalid(AnswerProblem.NOT_JSON)
        value = without_filler_nulls(value, schema, schema)
        issues = tuple(_issue(e.absolute_path, str(e.validator)) for e in validator.iter_errors(value))
        if issues:
            return Invalid(AnswerProblem.SCHEMA_MISMATCH, issues)
        row = {name: value.get(key) for name, key in zip(names, keys, strict=True)}
        return _converted(names, row, converters)

    return parse


def _converted(names: "Sequence[str]", row: "Mapping[str, Any]", converters: "Sequence[Any]") -> "list[Any] | Invalid":
    try:
        return [convert(row[name]) for name, convert in zip(names, converters, strict=True)]
    except (ValueError, OverflowError):
        return _unfit(names, row, converters)


def _unfit(names: "Sequence[str]", row: "Mapping[str, Any]", converters: "Sequence[Any]") -> Invalid:
    issues = []
    for name, convert in zip(names, converters, strict=True):
        try:
            convert(row[name])
        except ValidationError:
            issues.append(Issue(name, "does not fit its column"))
        except (ValueError, OverflowError) as error:
            issues.append(Issue(name, str(error)))
    return Invalid(AnswerProblem.SCHEMA_MISMATCH, tuple(issues))


def _mismatch(path: str, rule: str) -> Invalid:
    return Invalid(AnswerProblem.SCHEMA_MISMATCH, (Issue(path, rule),))


def _issue(location: Any, rule: str) -> Issue:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else str(part))
    return Issue(path or "$", rule.replace("_", " "))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
