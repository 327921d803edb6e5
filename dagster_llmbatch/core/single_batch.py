"""One provider batch, or one realtime call, without an asset and without a ledger: for those who keep handles themselves."""

import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from dagster_llmbatch.core.collect import reconcile
from dagster_llmbatch.core.identity import canonical_json
from dagster_llmbatch.core.outcomes import PAID_FINAL, PRICED_TOKENS
from dagster_llmbatch.core.pricing import PriceBook
from dagster_llmbatch.core.requests import Asking, Askings
from dagster_llmbatch.errors import InputError, NotBatchCapableError
from dagster_llmbatch.providers.content import Content
from dagster_llmbatch.providers.contract import (
    BatchProvider,
    BatchState,
    BatchStatus,
    Mode,
    Outcome,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.schemas.output import Invalid, OutputSchema

Output = type[BaseModel] | Mapping[str, Any] | None
CUSTOM_ID_LENGTH = 64


@dataclass(frozen=True)
class LLMRequest:
    """One request of the low-level API.

    Args:
        custom_id: names it in the results: 1 to 64 of `[A-Za-z0-9_-]`, which every provider takes; unique in its batch.
        prompt: text, or a tuple of content parts.
        model: "provider:model", or a name in the resource's `models`.
        system: system prompt.
        params: passed through to the provider.
        output: a pydantic model, a JSON Schema, or None for plain text.
    """

    custom_id: str
    prompt: Content
    model: str
    system: "str | None" = None
    params: "Mapping[str, Any]" = field(default_factory=dict)
    output: Output = None


@dataclass(frozen=True)
class LLMResult:
    """What came back for one request."""

    custom_id: str
    status: Literal["succeeded", "failed"]
    value: "dict[str, Any] | None"
    """Of a valid answer: its fields by column name; `text` for plain text."""
    validated: bool
    """Whether the answer was checked against its output type: never without one."""
    error: "str | None"
    """Why there is no answer. Never quotes the answer."""
    outcome: Outcome
    """The provider's side: text, tokens, finish reason, error category."""
    cost_usd: "float | None" = None
    """USD; None where unknown."""


class Askers:
    """The askings of requests: one encoder for all requests that differ in their prompts only."""

    def __init__(self, provider: BatchProvider, mode: Mode, model_id_of: "Callable[[str], str]") -> None:
        self._provider = provider
        self._mode: Mode = mode
        self._model_id_of = model_id_of
        self._made: dict[tuple[Any, ...], tuple[Asking, Output]] = {}

    def of(self, request: LLMRequest) -> Asking:
        """The asking of one request. Raises ConfigurationError, UnportableSchemaError among them."""
        params = canonical_json(dict(request.params))
        key = (request.model, request.system, params, id(request.output))
        if key not in self._made:
            output = OutputSchema.compile(request.output, asset=request.custom_id)
            template = RequestTemplate(
                model=self._model_id_of(request.model),
                system=request.system,
                params=dict(request.params),
                schema=output.for_provider(self._provider.name, self._mode),
                schema_name=output.name,
            )
            # the output type is kept too: its id is in the key
            self._made[key] = Askings(self._provider, template).shared, request.output
        return self._made[key][0]


def submit(
    requests: "Iterable[LLMRequest]",
    provider: BatchProvider,
    *,
    model_id_of: "Callable[[str], str]",
    external_key: "str | None",
) -> BatchStatus:
    """Create one batch of requests of one group. With an external key, the batch that carries it already is taken.

    Raises InputError, before anything is sent, for repeated or unusable custom ids, requests that cannot share a batch and
    more than a batch may hold; NotBatchCapableError for content parts that no batch takes; ProviderErrors, of which
    AmbiguousCreateError asks for another call with the same external key.
    """
    askers = Askers(provider, "batch", model_id_of)
    ids: dict[str, None] = {}
    groups: dict[str, RequestTemplate] = {}
    size = 0
    with tempfile.TemporaryDirectory(prefix="llmbatch-") as scratch:
        path = Path(scratch) / "requests.jsonl"
        with path.open("wb") as out:
            for request in requests:
                _check(request, ids, provider)
                asking = askers.of(request)
                groups.setdefault(asking.group, asking.template)
                line = asking.encoder.line(request.custom_id, request.prompt)
                size += len(line)
                out.write(line)
        limits = provider.limits
        if len(groups) != 1 or len(ids) > limits.max_requests or size > limits.max_bytes:
            raise InputError(
                f"{len(ids)} requests of {len(groups)} groups and {size:,} bytes are not one batch of {provider.name}, which "
                f"holds one group (of model, schema or headers, as the provider needs), {limits.max_requests:,} requests and "
                f"{limits.max_bytes:,} bytes. Nothing was spent. Submit them in parts."
            )
        if external_key is not None:
            found = provider.find(Search(external_key, Uploaded(), 0.0, tuple(ids)))
            if found is not None:
                return found
        key = external_key or f"llmb-{uuid.uuid4().hex}"
        uploaded = provider.upload(path, external_key=key)
        return provider.create(path, uploaded, template=next(iter(groups.values())), external_key=key)


def complete(
    request: LLMRequest,
    provider: BatchProvider,
    *,
    model_id_of: "Callable[[str], str]",
    extras: "Collection[str]" = (),
) -> LLMResult:
    """One realtime call, validated. Raises ProviderErrors; nothing is asked twice."""
    template = Askers(provider, "realtime", model_id_of).of(request).template
    outcome = provider.complete(template, request.prompt, extras=extras)
    schema = OutputSchema.compile(request.output)
    return result_of(msgspec.structs.replace(outcome, custom_id=request.custom_id), schema, schema.validator())


def _check(request: LLMRequest, ids: "dict[str, None]", provider: BatchProvider) -> None:
    custom_id = request.custom_id
    legal = custom_id.isascii() and custom_id.replace("-", "").replace("_", "a").isalnum()
    if not legal or len(custom_id) > CUSTOM_ID_LENGTH:
        raise InputError(f"custom_id {custom_id!r}: a custom_id is 1 to {CUSTOM_ID_LENGTH} of A-Z, a-z, 0-9, _ and -.")
    if custom_id in ids:
        raise InputError(f"custom_id {custom_id!r} is given twice; every request needs one of its own.")
    ids[custom_id] = None
    parts = () if isinstance(request.prompt, str) else request.prompt
    strange = sorted({part.kind.value for part in parts if part.kind not in provider.limits.batch_parts})
    if strange:
        raise NotBatchCapableError(
            f"request {custom_id}: {provider.name} takes {', '.join(strange)} in no batch. Nothing was spent. Call complete."
        )


def results(
    outcomes: "Iterable[Outcome]", outputs: "Mapping[str, Output] | Callable[[str], Output]"
) -> "Iterator[LLMResult]":
    """Outcomes with their answers validated by the output type of their custom id; without one, not validated."""
    output_of = outputs.get if isinstance(outputs, Mapping) else outputs
    compiled: dict[int, tuple[Output, OutputSchema, Any]] = {}
    for outcome in outcomes:
        output = output_of(outcome.custom_id)
        if id(output) not in compiled:
            schema = OutputSchema.compile(output)
            compiled[id(output)] = output, schema, schema.validator()  # the output too: its id is its key
        _, schema, validate = compiled[id(output)]
        yield result_of(outcome, schema, validate)


def results_in_order(
    requests: "Sequence[LLMRequest]", status: BatchStatus, provider: BatchProvider, *, extras: "Collection[str]" = ()
) -> "Iterator[LLMResult]":
    """A result for each request of an ended batch, in their order; where none came back, the reason."""
    nothing_ran = status.state is BatchState.FAILED and not status.result_refs
    outcomes = () if nothing_ran else provider.outcomes(status, extras=extras)
    found = reconcile([request.custom_id for request in requests], outcomes, status=status)
    return results(found.outcomes, {request.custom_id: request.output for request in requests})


def result_of(outcome: Outcome, schema: OutputSchema, validate: Any) -> LLMResult:
    """One outcome, its answer validated."""
    if outcome.kind is not OutcomeKind.ANSWER:
        why = outcome.kind.value if outcome.kind in PAID_FINAL else outcome.error_code or outcome.kind.value
        return LLMResult(outcome.custom_id, "failed", None, False, why, outcome, outcome.cost_usd)
    found = validate(outcome.text or "")
    if isinstance(found, Invalid):
        return LLMResult(outcome.custom_id, "failed", None, False, found.message, outcome, outcome.cost_usd)
    value = dict(zip(schema.arrow_schema.names, found.values, strict=True))
    return LLMResult(outcome.custom_id, "succeeded", value, not schema.is_text, None, outcome, outcome.cost_usd)


def priced(result: LLMResult, prices: PriceBook, *, provider: str, mode: Mode, model: "str | None" = None) -> LLMResult:
    """A result with its cost: what the provider says, else by the price list; 0 where nothing is billed.

    Args:
        model: the provider's id of the model that was asked for; None: the outcome's own has to do.
    """
    outcome = result.outcome
    if outcome.cost_usd is not None or outcome.kind not in PAID_FINAL:
        return result if outcome.cost_usd is not None else replace(result, cost_usd=0.0)
    tokens = [getattr(outcome, name) for name in PRICED_TOKENS]
    asked_for = model or outcome.model or ""
    return replace(result, cost_usd=prices.price(provider, asked_for, *tokens, snapshot=outcome.model, mode=mode))
