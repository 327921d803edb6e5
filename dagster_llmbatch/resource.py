"""The resource: configuration into a workplace, and our errors into Dagster's Failure."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, model_validator

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch.core import single_batch
from dagster_llmbatch.core.advance import Workplace
from dagster_llmbatch.core.pricing import Price, PriceBook
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.single_batch import LLMRequest, LLMResult, Output
from dagster_llmbatch.errors import InputError, LedgerNotDurableError, LLMBatchError, MissingApiKeyError
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.provider_config import (
    AnthropicConfig,
    GeminiConfig,
    ModelConfig,
    OpenAICompatibleConfig,
    OpenAIConfig,
    OpenRouterConfig,
    PriceConfig,
    key_alone,
)
from dagster_llmbatch.providers.contract import BatchHandle, BatchProvider, BatchStatus
from dagster_llmbatch.providers.registry import COMPATIBLE, PROVIDERS, how_to_configure, make_provider
from dagster_llmbatch.providers.resolution import BatchAbility, ModelSpec, Resolution, ability_at, resolve, split_model

WORKING_FOLDER = ".llmbatch"
"""Where the ledger goes when the Dagster home is temporary."""


class Clients:
    """One client a provider, made when it is first needed."""

    def __init__(self, make: "Callable[[str], BatchProvider]") -> None:
        self._make = make
        self._made: dict[str, BatchProvider] = {}

    def of(self, provider: str) -> BatchProvider:
        """The client of a provider by name. Raises MissingApiKeyError where it is not configured."""
        if provider not in self._made:
            self._made[provider] = self._make(provider)
        return self._made[provider]

    def close(self) -> None:
        """Close all connections."""
        for client in self._made.values():
            client.close()


class LLMBatchResource(dg.ConfigurableResource):
    """Runs prompts over tables through a provider's batch API, and remembers in a ledger what was paid for.

    The ledger is SQLite in the Dagster home, or the PostgreSQL database of the Dagster instance where it has one; the
    segments (requests, answers) are Parquet files beside it, or below `storage_path`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    openai: OpenAIConfig | None = Field(default=None, description="OpenAI: at least its api_key.")
    anthropic: AnthropicConfig | None = Field(default=None, description="Anthropic: at least its api_key.")
    gemini: GeminiConfig | None = Field(default=None, description="Google Gemini: at least its api_key.")
    openrouter: OpenRouterConfig | None = Field(default=None, description="OpenRouter: at least its api_key.")
    compatible: dict[str, OpenAICompatibleConfig] = Field(
        default={},
        description="Servers that speak OpenAI's API, by a name of your own; their models are compatible/NAME:model.",
    )
    models: dict[str, ModelConfig] = Field(
        default={}, description="What is known of a model that its name does not say, by model string."
    )
    storage_path: str | None = Field(
        default=None,
        description="Folder or object store URL (s3://, gs://, az://) for the ledger's Parquet segments.",
    )
    ledger_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the ledger; None: follow the Dagster instance.", repr=False
    )
    namespace: str = Field(
        default="default",
        min_length=1,
        description="Keeps deployments apart that share a ledger or a provider key, such as staging and production.",
    )
    poll_interval: float = Field(default=60.0, gt=0, description="Seconds before a batch is polled first.")
    poll_backoff: float = Field(default=1.5, ge=1, description="Factor from one poll interval to the next.")
    poll_interval_max: float = Field(default=600.0, gt=0, description="Longest poll interval, in seconds.")
    request_timeout: float = Field(default=120.0, gt=0, description="Seconds one HTTP call may take.")
    max_attempts: int = Field(default=3, ge=1, description="Times a row may be sent before it goes to review.")
    max_requests_per_batch: int | None = Field(
        default=None, ge=1, description="Most requests in one provider batch; None: the provider's own limit."
    )
    on_reclaim: Literal["adopt", "resubmit"] = Field(
        default="adopt",
        description="What to do about a batch that may exist at the provider and cannot be proven ours: wait for proof, or "
        "buy again at the risk of paying twice.",
    )
    on_queue_full: Literal["wait", "fail"] = Field(
        default="wait",
        description="What a run does when the provider's batch queue is full: wait and send again, smaller if need be, or "
        "fail. Nothing is lost, and no attempt is used up.",
    )
    max_batches_in_progress: int | None = Field(
        default=None, gt=0, description="Batches of one provider that may be out at once, over all partitions."
    )
    cancel_on_terminate: bool = Field(
        default=True,
        description='Whether terminating a run that waits in itself (wait="block") cancels its batches at the provider. '
        "What they finished is kept, and the next run of the partition goes on.",
    )
    prices: dict[str, PriceConfig] = Field(
        default={}, description="Batch prices of your own by model string, such as openai:my-finetune."
    )
    realtime_prices: dict[str, PriceConfig] = Field(
        default={}, description="Prices of your own for realtime calls, by model string."
    )

    @model_validator(mode="before")
    @classmethod
    def _keys_alone(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name in PROVIDERS:
                values = key_alone(values, name)
        return values

    def policy(self) -> Policy:
        """The rules about money and patience that follow from the configuration."""
        return Policy(
            max_attempts=self.max_attempts,
            poll_first=self.poll_interval,
            poll_factor=self.poll_backoff,
            poll_max=max(self.poll_interval, self.poll_interval_max),
            lease=max(900.0, 4 * self.request_timeout),
            max_requests_per_batch=self.max_requests_per_batch,
            on_reclaim=self.on_reclaim,
            on_queue_full=self.on_queue_full,
            max_batches_in_progress=self.max_batches_in_progress,
        )

    def configured(self) -> "dict[str, BatchAbility]":
        """The providers that can be reached, and what their addresses and our configuration tell of their batches."""
        found: dict[str, BatchAbility] = {}
        for name in PROVIDERS:
            config = getattr(self, name)
            if config is not None and config.api_key:
                found[name] = ability_at(config.base_url)
        for name, server in self.compatible.items():
            without = BatchAbility(False, "its configuration says batches=False")
            found[f"{COMPATIBLE}{name}"] = ability_at(server.base_url) if server.batches else without
        return found

    def provider(self, name: str) -> BatchProvider:
        """The client of one provider. Raises MissingApiKeyError where it is not configured."""
        if name.startswith(COMPATIBLE):
            config = self.compatible.get(name.removeprefix(COMPATIBLE))
        else:
            config = getattr(self, name) if name in PROVIDERS else None
        if config is None or not config.api_key:
            raise MissingApiKeyError(f"LLMBatchResource cannot reach {name}: {how_to_configure(name)}")
        options = {k: v for k, v in config.model_dump().items() if k != "api_key" and v is not None}
        return make_provider(name, api_key=config.api_key, timeout=self.request_timeout, **options)

    @contextmanager
    def clients(self) -> "Iterator[Clients]":
        """Clients of all providers, closed afterwards."""
        found = Clients(self.provider)
        try:
            yield found
        finally:
            found.close()

    def resolve(self, model: str, *, batch_provider: "str | None" = None) -> Resolution:
        """Where a model is batched. Raises MissingApiKeyError or NotBatchCapableError."""
        known = self.models.get(model)
        spec = None if known is None else ModelSpec(*split_model(model), **known.model_dump())
        try:
            return resolve(model, batch_provider=batch_provider, spec=spec, configured=self.configured())
        except MissingApiKeyError as error:
            meant = batch_provider or (spec.batch_provider if spec else None) or split_model(model)[0]
            raise MissingApiKeyError(f"{error} For {meant}: {how_to_configure(meant)}") from None

    def submit(self, requests: "Iterable[LLMRequest]", *, external_key: "str | None" = None) -> BatchHandle:
        """Create one provider batch, outside any asset and ledger; the handle is plain data (`to_json`, `from_json`).

        All requests are of one provider, and of one group as it needs (model, schema or headers).

        Args:
            requests: what to ask.
            external_key: a name of your own for the batch. Called again with the same one after a crash or an
                AmbiguousCreateError, the batch is found and not bought again, where the provider can search.
        """
        with self.clients() as clients:
            asked = iter(requests)
            first = next(asked, None)
            if first is None:
                raise InputError("there are no requests to submit.")
            provider = clients.of(self.resolve(first.model).provider)
            status = single_batch.submit(
                chain([first], asked),
                provider,
                model_id_of=partial(self._model_id, provider.name),
                external_key=external_key,
            )
        return status.handle

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch: `progress` in four words, `provider_state` in the provider's."""
        with self.clients() as clients:
            return clients.of(handle.provider).status(handle)

    def results(
        self,
        handle: BatchHandle,
        *,
        output: Output = None,
        outputs: "Mapping[str, Output] | None" = None,
        extras: "Collection[str]" = (),
    ) -> "Iterator[LLMResult]":
        """The results of an ended batch, in the provider's order, each once it is read.

        Args:
            handle: of `submit`.
            output: the output type of all requests, which validates their answers; without one they are not validated.
            outputs: output types by custom id, before `output`.
            extras: further fields of the reply to keep in the outcomes (`providers.contract.EXTRAS`).
        """
        with self.clients() as clients:
            provider = clients.of(handle.provider)
            status = provider.status(handle)
            if not status.state.ended:
                raise InputError(f"batch {handle.batch_id} is {status.provider_state}: there are no results yet.")
            own = outputs or {}
            found = single_batch.results(
                provider.outcomes(status, extras=extras), lambda custom_id: own.get(custom_id, output)
            )
            prices = self.price_book()
            for result in found:
                yield single_batch.priced(result, prices, provider=handle.provider, mode="batch")

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask the provider to stop a batch. Raises CannotCancelError where there is no cancel."""
        with self.clients() as clients:
            return clients.of(handle.provider).cancel(handle)

    def complete(self, request: LLMRequest, *, extras: "Collection[str]" = ()) -> LLMResult:
        """One realtime call at the full price, validated. Asked once: an answer that is lost may have been billed."""
        provider_name, model_id = split_model(request.model)
        with self.clients() as clients:
            found = single_batch.complete(
                request, clients.of(provider_name), model_id_of=lambda _: model_id, extras=extras
            )
        return single_batch.priced(found, self.price_book(), provider=provider_name, mode="realtime", model=model_id)

    def _model_id(self, provider: str, model: str) -> str:
        found = self.resolve(model)
        if found.provider != provider:
            raise InputError(f"model {model!r} is batched at {found.provider}, and the batch is one of {provider}.")
        return found.model

    @contextmanager
    def ledger(self, instance: dg.DagsterInstance) -> "Iterator[tuple[Ledger, SegmentStore]]":
        """The ledger and its segments. Raises LedgerNotDurableError where they would not outlive the run."""
        url, root = self._places(instance)
        ledger = Ledger(url)
        try:
            yield ledger, SegmentStore(root)
        finally:
            ledger.close()

    @contextmanager
    def workplace(
        self, instance: dg.DagsterInstance, *, now: "Callable[[], float]" = time.time
    ) -> "Iterator[Workplace]":
        """Everything one partition's work needs, closed afterwards."""
        with self.clients() as clients, self.ledger(instance) as (ledger, segments):
            yield Workplace(clients.of, ledger, segments, self.policy(), self.price_book(), now=now)

    def is_in_working_folder(self, instance: dg.DagsterInstance) -> bool:
        """Whether the ledger goes to `.llmbatch/` because the Dagster home is temporary."""
        return self.ledger_url is None and internals.is_temporary(instance)

    def _places(self, instance: dg.DagsterInstance) -> "tuple[str, str]":
        home = Path(WORKING_FOLDER).absolute()
        if not internals.is_temporary(instance):
            home = Path(instance.storage_directory()) / "llmbatch"
        url = self.ledger_url or internals.postgres_url(instance) or f"sqlite:///{home / 'ledger.db'}"
        root = self.storage_path or str(home / "segments")
        launcher = internals.launches_elsewhere(instance)
        if launcher is not None:
            self._refuse_local(url, root, launcher)
        return url, root

    @staticmethod
    def _refuse_local(url: str, root: str, launcher: str) -> None:
        local = [name for name, value in (("ledger_url", url), ("storage_path", root)) if _is_local(value)]
        if local:
            raise LedgerNotDurableError(
                f"Runs start through {launcher}, perhaps on another machine, and {' and '.join(local)} would be a local "
                "path there: the next run would not find what this one paid for. Nothing was spent. Give ledger_url a "
                "PostgreSQL URL and storage_path an object store such as s3://bucket/llmbatch."
            )

    def price_book(self) -> PriceBook:
        """The prices of both lanes: `prices` and `realtime_prices`, then what genai-prices publishes."""
        own = (
            {n: Price(**p.model_dump()) for n, p in prices.items()} for prices in (self.prices, self.realtime_prices)
        )
        return PriceBook(*own)


def _is_local(place: str) -> bool:
    scheme = place.split("://", 1)[0] if "://" in place else "file"
    return scheme in ("file", "local", "memory") or scheme.startswith("sqlite")


@contextmanager
def failures() -> "Iterator[None]":
    """Our errors as Dagster failures: without step retries where running again cannot mend it."""
    try:
        yield
    except LLMBatchError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"llmbatch/error": type(error).__name__},
            allow_retries=error.retryable,
        ) from error
