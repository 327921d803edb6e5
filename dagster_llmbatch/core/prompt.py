"""Rows into prompts: a sandboxed Jinja2 template over the columns, or a function of the row.

A template of text and plain `{{ column }}` is compiled to concatenation, which gives the same text at a fraction of
the cost. Row text is data: braces in it are never evaluated.
"""

import difflib
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2
import pyarrow as pa
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dagster_llmbatch.core.text_forms import is_binary, rows_of, text_of, texts_of, values_of
from dagster_llmbatch.errors import ConfigurationError, InputError
from dagster_llmbatch.providers.content import Content, DocumentPart, ImagePart, TextPart

EMPTY = "the prompt is empty"
NOT_UNICODE = "the prompt holds a lone surrogate, which no provider accepts"


@dataclass(frozen=True)
class RenderFailure:
    """Why a row has no prompt. Never quotes a value of the row."""

    reason: str


Prompt = str | Callable[..., Any]
"""A template, or a function of the row, or of the row and its index, that returns text, a content part or a list of parts."""
ROW_INDEX = "row_index"
"""The row's number from 0 in the partition's input, by this name in a template, where no column of the input has it."""
Rendered = Content | RenderFailure


class PromptRenderer(Protocol):
    """Renders the rows of a batch, in order."""

    columns: "tuple[str, ...]"
    """The columns it reads."""

    def render(self, batch: pa.RecordBatch, first: int = 0) -> "list[Rendered]":
        """One prompt, or the reason for none, a row. `first` is the index of the first."""
        ...


def check_template(prompt: Prompt, *, asset: str) -> None:
    """Refuse a prompt that can never work. Raises ConfigurationError with the line of a syntax error."""
    if callable(prompt):
        if _required(prompt) > 2:
            raise ConfigurationError(
                f"{asset}: the prompt function must take the row, or the row and its index; it wants "
                f"{_required(prompt)} arguments."
            )
        return
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigurationError(f"{asset}: prompt must be a template or a function of the row; it is empty.")
    _parse(prompt, asset)


def compile_prompt(prompt: Prompt, columns: pa.Schema, *, asset: str) -> PromptRenderer:
    """A renderer for rows of these columns.

    Raises InputError for a template that names a missing or a binary column, before anything is sent.
    """
    if callable(prompt):
        return _Function(prompt, tuple(columns.names))
    tree = _parse(prompt, asset, columns.names)
    names = sorted(meta.find_undeclared_variables(tree))
    if ROW_INDEX in names and ROW_INDEX not in columns.names:
        columns = columns.append(pa.field(ROW_INDEX, pa.int64()))
    missing = [name for name in names if name not in columns.names]
    if missing:
        close = {m: difflib.get_close_matches(m, columns.names, 1) for m in missing}
        hints = "".join(f" Did you mean {found[0]!r} for {name!r}?" for name, found in close.items() if found)
        raise InputError(f"{asset}: the prompt names {missing}, and the input has only {columns.names}.{hints}")
    for name in names:
        if is_binary(columns.field(name).type):
            raise InputError(
                f"{asset}: the prompt names {name!r}, which is {columns.field(name).type} and has no text form. Decode it, "
                "or base64-encode it, in the input table."
            )
    parts = _plain_parts(tree, names)
    return _Concatenation(parts, tuple(names)) if parts is not None else _Template(prompt, tuple(names))


def _required(function: "Callable[..., Any]") -> int:
    """How many arguments a function must be given by position. One where it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return 1
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_position and p.default is inspect.Parameter.empty for p in parameters)


def prompt_source(prompt: Prompt) -> str:
    """The text of a prompt for digests: the template, or the function's source."""
    if isinstance(prompt, str):
        return prompt
    try:
        return inspect.getsource(prompt)
    except (OSError, TypeError):
        code = getattr(prompt, "__code__", None)
        if code is not None:
            return hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()
        return f"{type(prompt).__module__}.{getattr(prompt, '__qualname__', type(prompt).__qualname__)}"


def _environment(columns: "Sequence[str]" = ()) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, finalize=text_of_defined, keep_trailing_newline=True, autoescape=False
    )
    for name in columns:  # a column comes before a global of Jinja's of the same name, such as range
        environment.globals.pop(name, None)
    return environment


def text_of_defined(value: Any) -> Any:
    """Jinja's finalize: our text forms, and undefined values left to raise."""
    return value if isinstance(value, jinja2.Undefined) else text_of(value)


def _parse(prompt: str, asset: str, columns: "Sequence[str]" = ()) -> nodes.Template:
    if not _is_unicode(prompt):
        raise ConfigurationError(f"{asset}: the prompt template holds a lone surrogate, which no provider accepts.")
    try:
        return _environment(columns).parse(prompt)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(
            f"{asset}: the prompt template is wrong at line {error.lineno}: {error.message}"
        ) from None


def _plain_parts(tree: nodes.Template, columns: "list[str]") -> "list[tuple[bool, str]] | None":
    """(is a column, text or column name) where the template holds nothing else, else None."""
    parts: list[tuple[bool, str]] = []
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                parts.append((False, node.data))
            elif isinstance(node, nodes.Name) and node.name in columns:
                parts.append((True, node.name))
            else:
                return None
    return parts


def _is_unicode(text: str) -> bool:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _checked(prompt: str) -> "Rendered":
    return _not_empty(prompt) if _is_unicode(prompt) else RenderFailure(NOT_UNICODE)


def _not_empty(prompt: str) -> "Rendered":
    return RenderFailure(EMPTY) if not prompt or prompt.isspace() else prompt


class _ByRow(ABC):
    """Renders a batch at once; where a value of it has no text form, row by row, so that its row fails alone."""

    columns: "tuple[str, ...]"

    def render(self, batch: pa.RecordBatch, first: int = 0) -> "list[Rendered]":
        """One prompt, or the reason for none, a row. `first` is the index of the first."""
        try:
            return self._render(batch, first)
        except (ValueError, OverflowError, TypeError):
            return [self._alone(batch.slice(at, 1), first + at) for at in range(batch.num_rows)]

    def _alone(self, row: pa.RecordBatch, index: int) -> "Rendered":
        try:
            return self._render(row, index)[0]
        except (ValueError, OverflowError, TypeError) as error:
            return RenderFailure(f"a value has no text form ({type(error).__name__})")

    @abstractmethod
    def _render(self, batch: pa.RecordBatch, first: int) -> "list[Rendered]": ...


def _column(batch: pa.RecordBatch, name: str, first: int) -> pa.Array:
    """What a template means by a name: the column, or the rows' indexes where no column has that name."""
    if name == ROW_INDEX and name not in batch.schema.names:
        return pa.array(range(first, first + batch.num_rows), pa.int64())
    return batch.column(name)


class _Concatenation(_ByRow):
    """Text and columns, joined. The template was checked and Arrow's text is Unicode: so is every prompt."""

    def __init__(self, parts: "list[tuple[bool, str]]", columns: "tuple[str, ...]") -> None:
        self.columns = columns
        self._form = "".join(
            "{}" if is_column else text.replace("{", "{{").replace("}", "}}") for is_column, text in parts
        )
        self._order = [text for is_column, text in parts if is_column]

    def _render(self, batch: pa.RecordBatch, first: int) -> "list[Rendered]":
        if not self._order:
            return [_not_empty(self._form.format())] * batch.num_rows
        texts = {name: texts_of(_column(batch, name, first)) for name in self.columns}
        form = self._form.format
        return [_not_empty(form(*values)) for values in zip(*(texts[name] for name in self._order), strict=True)]


class _Template(_ByRow):
    """A Jinja2 template of any kind."""

    def __init__(self, prompt: str, columns: "tuple[str, ...]") -> None:
        self.columns = columns
        self._template = _environment(columns).from_string(prompt)

    def _render(self, batch: pa.RecordBatch, first: int) -> "list[Rendered]":
        values = [values_of(_column(batch, name, first)) for name in self.columns]
        rows = zip(*values, strict=True) if values else ((),) * batch.num_rows
        return [self._one(dict(zip(self.columns, row, strict=True))) for row in rows]

    def _one(self, row: "Mapping[str, Any]") -> "Rendered":
        try:
            return _checked(self._template.render(row))
        except Exception as error:  # whatever a template does to one row is that row's failure alone
            return RenderFailure(f"the prompt template failed ({type(error).__name__})")


class _Function(_ByRow):
    """A user's function of the row, or of the row and its index."""

    def __init__(self, function: "Callable[..., Any]", columns: "tuple[str, ...]") -> None:
        self.columns = columns
        self._function = function
        self._takes_index = _required(function) == 2

    def _render(self, batch: pa.RecordBatch, first: int) -> "list[Rendered]":
        return [self._one(row, index) for index, row in enumerate(rows_of(batch), first)]

    def _one(self, row: "dict[str, Any]", index: int) -> "Rendered":
        try:
            prompt = self._function(row, index) if self._takes_index else self._function(row)
        except Exception as error:  # whatever the function does to one row is that row's failure alone
            return RenderFailure(f"the prompt function failed ({type(error).__name__})")
        if isinstance(prompt, str):
            return _checked(prompt)
        return _checked_parts([prompt] if isinstance(prompt, PARTS) else prompt)


PARTS = (TextPart, ImagePart, DocumentPart)


def _checked_parts(given: Any) -> "Rendered":
    if not isinstance(given, (list, tuple)):
        return RenderFailure(f"the prompt function returned {type(given).__name__}, not text or content parts")
    parts = tuple(TextPart(part) if isinstance(part, str) else part for part in given)
    strange = next((type(part).__name__ for part in parts if not isinstance(part, PARTS)), None)
    if strange is not None:
        return RenderFailure(f"the prompt function returned a list with {strange}, which is no content part")
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if not all(_is_unicode(text) for text in texts):
        return RenderFailure(NOT_UNICODE)
    if len(texts) == len(parts):  # text alone is a text prompt, whatever it was given as
        return _not_empty("".join(texts))
    return parts
