"""Providers as configuration: which can be reached, what is known of models and prices, and who batches a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field, field_validator, model_validator

from dagster_llmbatch.core.pricing import Price, PriceBook
from dagster_llmbatch.errors import MissingApiKeyError, UnknownProviderError
from dagster_llmbatch.provider_config import (
    AnthropicConfig,
    GeminiConfig,
    ModelConfig,
    OpenAICompatibleConfig,
    OpenAIConfig,
    OpenRouterConfig,
    PriceConfig,
    check_models,
    is_alias,
    key_alone,
)
from dagster_llmbatch.providers.contract import BatchProvider
from dagster_llmbatch.providers.registry import COMPATIBLE, PROVIDERS, how_to_configure, make_provider
from dagster_llmbatch.providers.resolution import BatchAbility, ModelSpec, Resolution, ability_at, resolve, split_model


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


class ProviderResource(dg.ConfigurableResource):
    """The providers, models and prices of a resource."""

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
        default={},
        description="Models under names of your own, with provider and model; and, by provider:model, what is known of a "
        "model that its name does not say.",
    )
    request_timeout: float = Field(default=120.0, gt=0, description="Seconds one HTTP call may take.")
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

    @field_validator("models")
    @classmethod
    def _no_entry_is_dead(cls, models: "dict[str, ModelConfig]") -> "dict[str, ModelConfig]":
        return check_models(models)

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

    def model_spec(self, model: str) -> ModelSpec:
        """What is known of "provider:model", or of a name in `models`. Raises UnknownProviderError for neither."""
        known = self.models.get(model)
        if known is not None:
            return known.spec(model)
        if is_alias(model):
            names = sorted(name for name in self.models if is_alias(name))
            raise UnknownProviderError(
                f'model {model!r} is neither "provider:model", such as "openai:gpt-5-mini", nor a name in '
                f"LLMBatchResource(models=...), which has {names or 'no names'}. Nothing was spent."
            )
        return ModelSpec(*split_model(model))

    def resolve(self, model: str, *, batch_provider: "str | None" = None) -> Resolution:
        """Where a model is batched. Raises UnknownProviderError, MissingApiKeyError or NotBatchCapableError."""
        spec = self.model_spec(model)
        try:
            return resolve(model, batch_provider=batch_provider, spec=spec, configured=self.configured())
        except MissingApiKeyError as error:
            meant = batch_provider or spec.batch_provider or spec.provider
            raise MissingApiKeyError(f"{error} For {meant}: {how_to_configure(meant)}") from None

    def price_book(self) -> PriceBook:
        """The prices of both lanes: `prices` and `realtime_prices`, then what genai-prices publishes."""
        own = (
            {n: Price(**p.model_dump()) for n, p in prices.items()} for prices in (self.prices, self.realtime_prices)
        )
        return PriceBook(*own)
