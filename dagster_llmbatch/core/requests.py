"""Rows of a plan as provider-ready requests: which template a row is asked with, and the line it becomes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dagster_llmbatch.core.identity import Fingerprints
from dagster_llmbatch.core.recipe import FORMAT_VERSION
from dagster_llmbatch.errors import LedgerVersionError
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers import content
from dagster_llmbatch.providers.content import Content
from dagster_llmbatch.providers.contract import BatchProvider, RequestEncoder, RequestTemplate

ROW_ID, PROMPT, FINGERPRINT, PROBLEM = "llm_row_id", "llm_prompt", "llm_fingerprint", "llm_problem"
CONTENT, MODEL, SYSTEM, PARAMS = "llm_content", "llm_row_model", "llm_row_system", "llm_row_params"
OPTIONAL = (CONTENT, MODEL, SYSTEM, PARAMS)
"""Plan columns that are there only where the recipe has prompts with parts, or choices by row."""
TEMPLATES_KEPT = 512
"""Encoders kept at hand; a table may have as many templates as rows."""


@dataclass(frozen=True)
class Asking:
    """One template, ready to make requests."""

    template: RequestTemplate
    encoder: RequestEncoder
    group: str
    """Requests of equal groups may share a batch."""
    fingerprints: Fingerprints


class Askings:
    """The asset's template with what a row chooses itself put over it."""

    def __init__(self, provider: BatchProvider, template: RequestTemplate) -> None:
        self._provider = provider
        self._template = template
        self._made = lru_cache(TEMPLATES_KEPT)(self._make)
        self.shared = self._make(None, None, None)
        """Of the rows that choose nothing."""

    def of(self, model: "str | None", system: "str | None", params: "str | None") -> Asking:
        """The asking of a row by its choices; `params` is JSON. Raises ConfigurationError for params that cannot be sent."""
        if model is None and system is None and params is None:
            return self.shared
        return self._made(model, system, params)

    def _make(self, model: "str | None", system: "str | None", params: "str | None") -> Asking:
        template = replace(
            self._template,
            model=model or self._template.model,
            system=self._template.system if system is None else system,
            params={**self._template.params, **(json.loads(params) if params else {})},
        )
        encoder = self._provider.encoder(template)
        return Asking(template, encoder, self._provider.group(template), Fingerprints(encoder.identity))


def refuse_newer(settings: "Mapping[str, Any]", *, where: str) -> None:
    """Raise LedgerVersionError for a stored plan in a layout that only a later version knows."""
    if settings["format"] > FORMAT_VERSION:
        raise LedgerVersionError(
            f"{where}: its plan has format {settings['format']}, and this dagster_llmbatch reads up to {FORMAT_VERSION}. "
            "Nothing was spent. Upgrade dagster_llmbatch where this runs, then materialize the partition again."
        )


def stored_template(settings: "Mapping[str, Any]") -> RequestTemplate:
    """The request template a plan was made with."""
    return RequestTemplate(**settings["template"])


class PlannedRequests:
    """The requests of a stored plan, read forward."""

    def __init__(
        self, settings: "Mapping[str, Any]", plan_segment: str, *, provider: BatchProvider, segments: SegmentStore
    ) -> None:
        self._askings = Askings(provider, stored_template(settings))
        self._plan_segment = plan_segment
        self._segments = segments
        there = segments.schema(plan_segment).names
        self._optional = [name for name in OPTIONAL if name in there]

    def blocks(self, *columns: str) -> "Iterator[PlannedBlock]":
        """Blocks of the plan with `columns` and what makes up requests."""
        first = 0
        for block in self._segments.batches(self._plan_segment, columns=[*columns, PROMPT, *self._optional]):
            yield PlannedBlock(first, block, self._askings)
            first += block.num_rows


@dataclass(frozen=True)
class PlannedBlock:
    """Rows of a plan that follow each other."""

    first: int
    """Row number of the first."""
    table: pa.RecordBatch
    askings: Askings

    def requests(self, rows: "Sequence[int]") -> "Iterator[tuple[Asking, Content]]":
        """Asking and user message of some rows, by their place in the block."""
        prompts = self._picked(PROMPT, rows)
        given = [self._picked(name, rows) for name in OPTIONAL]
        if not any(values is not None for values in given):
            for prompt in prompts or ():
                yield self.askings.shared, prompt
            return
        absent = [None] * len(rows)
        for prompt, parts, *choices in zip(prompts or (), *(v or absent for v in given), strict=True):
            yield self.askings.of(*choices), prompt if parts is None else content.from_json(parts)

    def _picked(self, name: str, rows: "Sequence[int]") -> "list[Any] | None":
        if name not in self.table.schema.names:
            return None
        return self.table.column(name).take(pa.array(rows, pa.int64())).to_pylist()
