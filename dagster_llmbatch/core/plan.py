"""Input table to plan: one row id, prompt and fingerprint a row, and the columns to carry into the result.

The plan is a segment of the ledger. From then on it is the only input: the upstream table may change while a batch
is out. Bad input is refused here, before anything is spent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_llmbatch.core.cyclic_gc import cyclic_gc_paused
from dagster_llmbatch.core.identity import Fingerprints, canonical_json, digest
from dagster_llmbatch.core.prompt import PromptRenderer, RenderFailure, compile_prompt
from dagster_llmbatch.core.recipe import FORMAT_VERSION, Recipe
from dagster_llmbatch.core.tables import open_rows
from dagster_llmbatch.errors import InputError
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import BatchProvider, RequestEncoder, RequestTemplate

ROW_ID, PROMPT, FINGERPRINT, PROBLEM = "llm_row_id", "llm_prompt", "llm_fingerprint", "llm_problem"
PLAN_FIELDS = (
    pa.field(ROW_ID, pa.string()),
    pa.field(PROMPT, pa.large_string()),
    pa.field(FINGERPRINT, pa.string()),
    pa.field(PROBLEM, pa.string()),
)
"""The plan segment's columns after the kept input columns. `llm_problem` says why a row cannot be sent."""
BLOCK_ROWS = 8192
"""Rows worked on at a time."""
EXAMPLES = 5
"""How many row ids an error quotes."""


@dataclass(frozen=True)
class Plan:
    """A partition ready to be bought."""

    segment: str
    digest: str
    """Equal digests: the same rows, requests and kept columns. A second run then attaches instead of buying."""
    row_count: int
    settings: "Mapping[str, Any]"
    """JSON kept in the ledger: what a continuation needs to work on the plan, whatever the code says by then."""


def request_template(recipe: Recipe) -> RequestTemplate:
    """What all requests of the asset share, in the provider's schema dialect."""
    return RequestTemplate(
        model=recipe.model,
        system=recipe.system,
        params=dict(recipe.params),
        schema=recipe.output.for_provider(recipe.provider),
        schema_name=recipe.output.name,
    )


@cyclic_gc_paused()
def plan_rows(
    rows: Any, *, recipe: Recipe, provider: BatchProvider, segments: SegmentStore, namespace: str, partition: str
) -> Plan:
    """Render, fingerprint and store every row of `rows` (anything that speaks Arrow, or a path to Parquet).

    Raises InputError for null or repeated ids, missing or clashing columns, and columns Parquet cannot hold.
    """
    where = f"{recipe.asset}, partition {partition}" if partition else recipe.asset
    reader = open_rows(rows, asset=where)
    kept = _kept_columns(recipe, reader.schema, where)
    renderer = compile_prompt(recipe.prompt, reader.schema, asset=where)
    template = request_template(recipe)
    encoder = provider.encoder(template)
    fingerprints = Fingerprints(encoder.identity)
    too_large = TooLarge(encoder, provider.limits.max_bytes)
    schema = pa.schema([*(reader.schema.field(name) for name in kept), *PLAN_FIELDS])
    with segments.writer("plan", schema, row_group_rows=BLOCK_ROWS, where=where) as writer:
        for block in _plan_blocks(reader, recipe, renderer, fingerprints, too_large, kept, schema, where):
            writer.write(block)
    if recipe.id_column is not None:
        try:
            _refuse_repeated(segments.table(writer.name, columns=[ROW_ID]).column(ROW_ID), recipe.id_column, where)
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
        "id_column": recipe.id_column,
    }
    return Plan(writer.name, digest(writer.digest, canonical_json(settings)), writer.rows, settings)


def stored_template(settings: "Mapping[str, Any]") -> RequestTemplate:
    """The request template a plan was made with."""
    return RequestTemplate(**settings["template"])


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
        if len(prompt) <= self._surely_fits:
            return None
        size = len(self._encoder.line(self.LONGEST_CUSTOM_ID, prompt))
        return None if size <= self._max_bytes else f"{TOO_LARGE}: {size:,} bytes, the limit is {self._max_bytes:,}"


TOO_LARGE = "request too large"


def _kept_columns(recipe: Recipe, schema: pa.Schema, where: str) -> "list[str]":
    names = schema.names if recipe.keep_columns is None else list(recipe.keep_columns)
    missing = [name for name in [*names, *([recipe.id_column] if recipe.id_column else [])] if name not in schema.names]
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


def _plan_blocks(
    reader: pa.RecordBatchReader,
    recipe: Recipe,
    renderer: PromptRenderer,
    fingerprints: Fingerprints,
    too_large: "TooLarge",
    kept: "list[str]",
    schema: pa.Schema,
    where: str,
) -> "Iterator[pa.RecordBatch]":
    first = 0
    for incoming in reader:
        for at in range(0, incoming.num_rows, BLOCK_ROWS):
            block = incoming.slice(at, BLOCK_ROWS)
            row_ids = _row_ids(block, recipe.id_column, first, where)
            prompts: list[str | None] = []
            problems: list[str | None] = []
            for rendered in renderer.render(block):
                if isinstance(rendered, RenderFailure):
                    prompts.append(None)
                    problems.append(rendered.reason)
                else:
                    prompts.append(rendered)
                    problems.append(too_large.problem(rendered))
            # Arrow first: it leaves each text its UTF-8, which the fingerprint would else make once more
            stored = pa.array(prompts, pa.large_string())
            found = [None if prompt is None else fingerprints.of(prompt) for prompt in prompts]
            arrays = [block.column(name) for name in kept]
            arrays += [row_ids, stored, pa.array(found, pa.string()), pa.array(problems, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            first += block.num_rows


def _row_ids(block: pa.RecordBatch, id_column: "str | None", first: int, where: str) -> pa.Array:
    if id_column is None:
        return pa.array([str(first + i) for i in range(block.num_rows)], pa.string())
    ids = block.column(id_column)
    if ids.null_count:
        rows = [first + i for i in np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[:EXAMPLES].tolist()]
        raise InputError(
            f"{where}: {ids.null_count} or more rows have no {id_column!r} (row numbers from 0: {rows}). Every row needs "
            "an id of its own; filter them out or fill them in."
        )
    if pa.types.is_dictionary(ids.type):
        ids = pc.cast(ids, ids.type.value_type)
    if not (pa.types.is_integer(ids.type) or _is_text(ids.type)):
        raise InputError(
            f"{where}: the id column {id_column!r} is {ids.type}; ids must be integers or text. Cast it in the input."
        )
    return pc.cast(ids, pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _refuse_repeated(ids: pa.ChunkedArray, id_column: str, where: str) -> None:
    if len(ids.unique()) == len(ids):
        return
    counts = ids.value_counts()
    repeated = counts.filter(pa.array(counts.field("counts").to_numpy() > 1))
    examples = repeated.field("values").slice(0, EXAMPLES).to_pylist()
    raise InputError(
        f"{where}: {len(repeated)} ids in {id_column!r} stand on more than one row, such as {examples}. Every row needs "
        "an id of its own; remove the duplicates, or name another id_column."
    )
