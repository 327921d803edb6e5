"""Input table to plan: one row id, prompt and fingerprint a row, and the columns to carry into the result.

The plan is a segment of the ledger. From then on it is the only input: the upstream table may change while a batch
is out. Bad input is refused here, before anything is spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_llmbatch.core.by_row import CHOICES, ModelIdOf, Own, RowChoices
from dagster_llmbatch.core.cyclic_gc import cyclic_gc_paused
from dagster_llmbatch.core.identity import canonical_json, digest
from dagster_llmbatch.core.prompt import Rendered, RenderFailure, compile_prompt
from dagster_llmbatch.core.recipe import FORMAT_VERSION, Recipe
from dagster_llmbatch.core.requests import (
    CONTENT,
    FINGERPRINT,
    MODEL,
    PARAMS,
    PROBLEM,
    PROMPT,
    ROW_ID,
    SYSTEM,
    Askings,
)
from dagster_llmbatch.core.row_ids import id_name, refuse_repeated, row_ids
from dagster_llmbatch.core.tables import open_rows
from dagster_llmbatch.errors import ConfigurationError, InputError, NotBatchCapableError, UnportableSchemaError
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers import content
from dagster_llmbatch.providers.content import Content, Part
from dagster_llmbatch.providers.contract import BatchProvider, RequestEncoder, RequestTemplate

PLAN_FIELDS = (
    pa.field(ROW_ID, pa.string()),
    pa.field(PROMPT, pa.large_string()),
    pa.field(FINGERPRINT, pa.string()),
    pa.field(PROBLEM, pa.string()),
)
"""The plan segment's columns after the kept input columns. `llm_problem` says why a row cannot be sent."""
CONTENT_FIELD = pa.field(CONTENT, pa.large_string())
"""JSON of a prompt's content parts, in plans whose prompt is a function; null where the prompt is text."""
CHOICE_FIELDS = (pa.field(MODEL, pa.string()), pa.field(SYSTEM, pa.large_string()), pa.field(PARAMS, pa.large_string()))
"""What rows choose themselves, in plans where they may."""
BLOCK_ROWS = 8192
"""Rows worked on at a time."""


@dataclass(frozen=True)
class Plan:
    """A partition ready to be bought."""

    segment: str
    digest: str
    """Equal digests: the same rows, requests and kept columns. A second run then attaches instead of buying."""
    row_count: int
    settings: "Mapping[str, Any]"
    """JSON kept in the ledger: what a continuation needs to work on the plan, whatever the code says by then."""


def request_template(recipe: Recipe, provider: str, *, where: str) -> RequestTemplate:
    """What all requests of the asset share, in the provider's schema dialect.

    Raises UnportableSchemaError where it has none: the definition could not know which provider the model resolves to.
    """
    try:
        schema = recipe.output.for_provider(provider)
    except UnportableSchemaError as error:
        raise UnportableSchemaError(
            f"{where}: {error} Nothing was spent.", path=error.path, provider=error.provider
        ) from None
    return RequestTemplate(
        model=recipe.model,
        system=recipe.system,
        params=dict(recipe.params),
        schema=schema,
        schema_name=recipe.output.name,
    )


@cyclic_gc_paused()
def plan_rows(
    rows: Any,
    *,
    recipe: Recipe,
    provider: BatchProvider,
    segments: SegmentStore,
    namespace: str,
    partition: str,
    model_id_of: "ModelIdOf | None" = None,
) -> Plan:
    """Render, fingerprint and store every row of `rows` (anything that speaks Arrow, or a path to Parquet).

    Args:
        recipe: with the id the model has at `provider`.
        model_id_of: reads the models that rows choose; None: "provider:model" of `provider`.

    Raises InputError for null or repeated ids, missing or clashing columns, and columns Parquet cannot hold;
    UnportableSchemaError for an output type that `provider` cannot take.
    """
    where = f"{recipe.asset}, partition {partition}" if partition else recipe.asset
    reader = open_rows(rows, asset=where)
    kept = _kept_columns(recipe, reader.schema, where)
    template = request_template(recipe, provider.name, where=where)
    rows_planned = _RowPlanner(
        recipe, Askings(provider, template), provider, reader.schema, model_id_of or _prefixed(provider.name), where
    )
    schema = pa.schema([*(reader.schema.field(name) for name in kept), *rows_planned.fields])
    with segments.writer("plan", schema, row_group_rows=BLOCK_ROWS, where=where) as writer:
        first = 0
        for incoming in reader:
            for at in range(0, incoming.num_rows, BLOCK_ROWS):
                block = incoming.slice(at, BLOCK_ROWS)
                ids = row_ids(block, recipe.id_column, first, where)
                arrays = [*(block.column(name) for name in kept), ids, *rows_planned.plan(block, ids, first)]
                writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
                first += block.num_rows
    if recipe.id_column is not None:
        try:
            refuse_repeated(segments.table(writer.name, columns=[ROW_ID]).column(ROW_ID), recipe.id_column, where)
        except InputError:
            segments.delete(writer.name)
            raise
    settings = {
        "format": FORMAT_VERSION,
        "namespace": namespace,
        "provider": provider.name,
        "template": {
            "model": template.model,
            "system": template.system,
            "params": dict(template.params),
            "schema": template.schema,
            "schema_name": template.schema_name,
        },
        "output": recipe.output.to_json(),
        "kept": kept,
        "id_column": None if recipe.id_column is None else id_name(recipe.id_column),
        **({"extras": list(recipe.extras)} if recipe.extras else {}),
    }
    return Plan(writer.name, digest(writer.digest, canonical_json(settings)), writer.rows, settings)


def _prefixed(provider: str) -> ModelIdOf:
    def model_id_of(model: str) -> str:
        prefix, colon, model_id = model.partition(":")
        if not colon or prefix != provider:
            raise ValueError(f'is not of the form "{provider}:model": a row may name another model, not a provider')
        return model_id

    return model_id_of


class _RowPlanner:
    """Prompts, fingerprints and problems of blocks of rows."""

    def __init__(
        self,
        recipe: Recipe,
        askings: Askings,
        provider: BatchProvider,
        columns: pa.Schema,
        model_id_of: ModelIdOf,
        where: str,
    ) -> None:
        self._renderer = compile_prompt(recipe.prompt, columns, asset=where)
        self._choices = RowChoices(recipe.by_row, columns, model_id_of=model_id_of, asset=where)
        self._askings = askings
        self._provider = provider
        self._where = where
        self._has_parts = callable(recipe.prompt)
        self._has_choices = bool(recipe.by_row)
        self._choice_fields = dict(zip(CHOICES, CHOICE_FIELDS, strict=True)) if recipe.by_row else {}
        self._too_large = TooLarge(askings.shared.encoder, provider.limits.max_bytes)
        self.fields = (
            *PLAN_FIELDS,
            *([CONTENT_FIELD] if self._has_parts else []),
            *self._choice_fields.values(),
        )

    def plan(self, block: pa.RecordBatch, row_ids: pa.Array, first: int) -> "list[pa.Array]":
        """The columns of `fields` after the row id. `first` is the number of the block's first row."""
        rendered = self._renderer.render(block, first)
        chosen = self._choices.read(block) if self._has_choices else []
        if chosen:
            problems = [
                self._problem_of(*row, row_ids) for row in zip(range(len(rendered)), rendered, chosen, strict=True)
            ]
        else:
            problems = [self._problem(at, found, row_ids) for at, found in enumerate(rendered)]
        texts = [found if isinstance(found, str) else None for found in rendered]
        parts = (
            [content.to_json(found) if isinstance(found, tuple) else None for found in rendered]
            if self._has_parts
            else []
        )
        # Arrow first: it leaves each text its UTF-8, which the fingerprint would else make once more
        made = [pa.array(texts, pa.large_string())]
        made.append(pa.array(self._fingerprints(texts, parts, chosen, problems), pa.string()))
        made.append(pa.array(problems, pa.string()))
        made += [pa.array(parts, pa.large_string())] if self._has_parts else []
        made += [pa.array([getattr(own, n) for own in chosen], f.type) for n, f in self._choice_fields.items()]
        return made

    def _fingerprints(
        self,
        texts: "list[str | None]",
        parts: "list[str | None]",
        chosen: "list[Own]",
        problems: "list[str | None]",
    ) -> "list[str | None]":
        by = self._askings.shared.fingerprints
        if not parts and not chosen:
            return [None if text is None else by.of(text) for text in texts]
        found: list[str | None] = []
        for at, text in enumerate(texts):
            if chosen:
                usable = problems[at] is None
                by = (self._askings.of(*chosen[at].choices) if usable else self._askings.shared).fingerprints
            described = parts[at] if parts else None
            if described is not None:
                found.append(by.of_parts(described))
            else:
                found.append(None if text is None else by.of(text))
        return found

    def _problem_of(self, at: int, rendered: Rendered, own: Own, row_ids: pa.Array) -> "str | None":
        """Why a row that may choose cannot be sent, or None."""
        if own.problem is not None:
            return own.problem
        try:
            asking = self._askings.of(*own.choices)
        except ConfigurationError:
            return "row_params holds what dagster_llmbatch sets itself, or what cannot be batched"
        found = self._problem(at, rendered, row_ids)
        if found is None and asking is not self._askings.shared and isinstance(rendered, str):
            return TooLarge(asking.encoder, self._provider.limits.max_bytes).problem(rendered)
        return found

    def _problem(self, at: int, rendered: Rendered, row_ids: pa.Array) -> "str | None":
        """Why the row cannot be sent, or None. Raises NotBatchCapableError for parts that no batch here takes."""
        if isinstance(rendered, str):
            return self._too_large.problem(rendered)
        if isinstance(rendered, RenderFailure):
            return rendered.reason
        return self._too_large.problem_of_parts(self._checked_parts(rendered, row_ids[at]))

    def _checked_parts(self, parts: "tuple[Part, ...]", row_id: Any) -> "tuple[Part, ...]":
        strange = sorted({part.kind.value for part in parts if part.kind not in self._provider.limits.batch_parts})
        if strange:
            raise NotBatchCapableError(
                f"{self._where}, row {row_id}: the prompt has {', '.join(strange)}, which {self._provider.name} takes in no "
                "batch. Nothing was spent. Give the part in a form it takes, or another model or batch_provider."
            )
        return parts


class TooLarge:
    """Finds the requests that no batch of the provider can hold: each fails alone, before anything is sent."""

    WORST_ESCAPE = 6
    """JSON writes at most six bytes for one of a prompt's."""
    LONGEST_CUSTOM_ID = "r" * 64

    def __init__(self, encoder: RequestEncoder, max_bytes: int) -> None:
        self._encoder = encoder
        self._max_bytes = max_bytes
        room = max_bytes - len(encoder.line(self.LONGEST_CUSTOM_ID, ""))
        self._surely_fits = room // (self.WORST_ESCAPE * 4)  # in characters, at four bytes each

    def problem(self, prompt: str) -> "str | None":
        """Why the request cannot be sent, or None."""
        return None if len(prompt) <= self._surely_fits else self._measured(prompt)

    def problem_of_parts(self, parts: "tuple[Part, ...]") -> "str | None":
        """Why a request with content parts cannot be sent, or None."""
        return self._measured(parts)

    def _measured(self, prompt: Content) -> "str | None":
        size = len(self._encoder.line(self.LONGEST_CUSTOM_ID, prompt))
        return None if size <= self._max_bytes else f"{TOO_LARGE}: {size:,} bytes, the limit is {self._max_bytes:,}"


TOO_LARGE = "request too large"


def _kept_columns(recipe: Recipe, schema: pa.Schema, where: str) -> "list[str]":
    names = schema.names if recipe.keep_columns is None else list(recipe.keep_columns)
    needed = [*names, *([recipe.id_column] if isinstance(recipe.id_column, str) else [])]
    missing = [name for name in needed if name not in schema.names]
    if missing:
        raise InputError(f"{where}: the input has no column {missing}; it has {schema.names}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{where}: keep_columns names {repeated} more than once. Name each column once.")
    clashes = [name for name in names if name in recipe.output.arrow_schema.names]
    if clashes:
        raise InputError(
            f"{where}: {clashes} are input columns and fields of the output as well. Rename one side, or list the "
            "columns to carry over in keep_columns."
        )
    return names
