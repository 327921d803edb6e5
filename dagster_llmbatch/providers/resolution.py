"""Which provider batches a model: decided from names and configuration alone, before anything is bought.

Decides about batches that are not out yet. One that is out stays where it is: the provider stored with it in the ledger is
asked for it, whatever would be resolved today.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from dagster_llmbatch.errors import (
    ConfigurationError,
    MissingApiKeyError,
    NotBatchCapableError,
    UnknownProviderError,
)
from dagster_llmbatch.providers.slugs import BATCH_VARIANT, from_openrouter, is_dated, split_variant, to_openrouter

OPENROUTER = "openrouter"
NAMES = ("openai", "anthropic", "gemini", OPENROUTER)
_COMPATIBLE = re.compile(r"compatible/[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ModelSpec:
    """An entry of the model registry: a model under a name of the user's."""

    provider: str
    """A provider's name, or compatible/NAME."""
    model: str
    """The provider's model id."""
    batch_provider: "str | None" = None
    """Who batches it, instead of `provider`; realtime calls stay with `provider`."""
    supports_async_batch: "bool | None" = None
    """Whether `provider` can batch it, where the user knows better; None: as far as is known of the provider."""
    openrouter_model: "str | None" = None
    """Its slug at OpenRouter, where that does not follow from its name. A compatible server's model may go to OpenRouter
    only where this is given: its rows may be meant to stay in the house."""

    def __post_init__(self) -> None:
        for name in (self.provider, self.batch_provider):
            _check_provider(name, f"ModelSpec of {self.model!r}")
        if not self.model.strip():
            raise ConfigurationError(f"ModelSpec of {self.provider!r} names no model")


@dataclass(frozen=True)
class BatchAbility:
    """What is known of a configured provider's batch API."""

    batches: bool = True
    why_not: str = "it has no batch API"
    """Where it does not batch: the reason, for errors."""
    models: "frozenset[str] | None" = None
    """Ids of the models it can batch, OpenRouter's without ":batch"; None: not known, take any."""


@dataclass(frozen=True)
class Resolution:
    """Who gets a batch, and why."""

    provider: str
    model: str
    """The model id at that provider."""
    fallback: bool
    """OpenRouter stands in for the provider that was meant."""
    reason: str
    warnings: "tuple[str, ...]" = ()
    """What a person should read in the log: another provider than was meant, or another snapshot."""


def split_model(model: str) -> "tuple[str, str]":
    """("openai", "gpt-5-mini") of "openai:gpt-5-mini": everything after the first colon is the provider's model id.

    Raises UnknownProviderError for another prefix, or none.
    """
    provider, _, model_id = model.partition(":")
    if _is_provider(provider) and model_id.strip():
        return provider, model_id
    raise UnknownProviderError(
        f'model {model!r} is not of the form "provider:model", such as "openai:gpt-5-mini". Providers: '
        f"{', '.join(NAMES)}, compatible/NAME."
    )


def ability_at(base_url: str) -> BatchAbility:
    """What an address alone tells of batches: clouds that resell a vendor's models do not have the vendor's batch API."""
    host = urlsplit(base_url).hostname or ""
    for reseller, pattern in _RESELLERS.items():
        if pattern.fullmatch(host):
            return BatchAbility(False, f"{host} is {reseller}, which does not have the vendor's batch API")
    return BatchAbility()


_RESELLERS = {
    "Azure": re.compile(r".+\.(openai|services\.ai|cognitiveservices)\.azure\.com"),
    "Amazon Bedrock": re.compile(r"bedrock-.+\.amazonaws\.com"),
    "Vertex AI": re.compile(r"(.+[.-])?aiplatform\.googleapis\.com"),
}


def resolve(
    model: str,
    *,
    configured: "Mapping[str, BatchAbility]",
    batch_provider: "str | None" = None,
    spec: "ModelSpec | None" = None,
) -> Resolution:
    """Who batches a model.

    In this order: `batch_provider`, the entry's own, the vendor, OpenRouter. The first two are somebody's word, and raise
    rather than go elsewhere. OpenRouter stands in for a vendor without a key or without a batch API. A model that was asked
    for at OpenRouter goes to its vendor where that is configured.

    Args:
        model: "provider:model"; with a `spec` its name in the registry, for errors only.
        configured: the providers that can be called, and what each can batch.
        batch_provider: the asset's own word.
        spec: the model's entry in the registry.

    Raises MissingApiKeyError where the provider that was meant is not configured, NotBatchCapableError where it cannot
    batch the model, in either case with nobody to stand in; and UnknownProviderError for names that are none.
    """
    asked = _Asked(model, spec or ModelSpec(*split_model(model)), configured)
    _check_provider(batch_provider, model)
    told = batch_provider or asked.spec.batch_provider
    if told is not None:
        return asked.as_told(told, "the asset's" if batch_provider else "the registry entry's")
    return asked.by_slug() if asked.spec.provider == OPENROUTER else asked.by_vendor()


@dataclass(frozen=True)
class _Obstacle:
    """Why a provider cannot batch the model, and what kind of error that is."""

    error: "type[ConfigurationError]"
    why: str
    advice: str = "call LLMBatchResource.complete for each row"


@dataclass(frozen=True)
class _Asked:
    """One question: a model, and the providers there are."""

    name: str
    spec: ModelSpec
    configured: "Mapping[str, BatchAbility]"

    def as_told(self, provider: str, whose: str) -> Resolution:
        """There or nowhere."""
        found = self.at(provider)
        if isinstance(found, str):
            return Resolution(provider, found, False, f"{whose} batch_provider", self.dateless(found))
        raise found.error(
            f"{self.name}: {whose} batch_provider is {provider}, and {found.why}. Nothing goes elsewhere instead: "
            f"{found.advice}, or choose another batch_provider."
        )

    def by_slug(self) -> Resolution:
        """At its vendor, else at OpenRouter, where it was asked for: no fallback."""
        vendor, _ = from_openrouter(self.spec.model) or (None, "")
        if vendor is not None and isinstance(found := self.at(vendor), str):
            return Resolution(vendor, found, False, f"{vendor} sells the model and is configured")
        found = self.at(OPENROUTER)
        if isinstance(found, str):
            return Resolution(OPENROUTER, found, False, "the model was asked for at openrouter")
        also = "" if vendor is None or vendor in self.configured else f", or configure {vendor}, its vendor"
        raise found.error(f"{self.name}: {found.why}. To mend it {found.advice}{also}.")

    def by_vendor(self) -> Resolution:
        """At its vendor, else at OpenRouter in its stead."""
        vendor = self.spec.provider
        found, instead = self.at(vendor), self.at(OPENROUTER)
        if isinstance(found, str):
            return Resolution(vendor, found, False, "the model's own provider")
        if isinstance(instead, str):
            warning = (
                f"{self.name}: its batches go to OpenRouter as {instead}, because {found.why}. Set "
                f"batch_provider={vendor!r} to have an error instead."
            )
            return Resolution(OPENROUTER, instead, True, found.why, (warning, *self.dateless(instead)))
        advice = ", or ".join(dict.fromkeys((found.advice, instead.advice)))
        raise found.error(
            f"{self.name}: {found.why}, and OpenRouter cannot stand in: {instead.why}. To mend it {advice}."
        )

    def dateless(self, model: str) -> "tuple[str, ...]":
        """The warning that the date of a snapshot was lost on the way to another provider."""
        if not is_dated(self.spec.model) or is_dated(model):
            return ()
        return (f"{self.name}: {model} has no date at OpenRouter, so it may be another snapshot of the model.",)

    def at(self, provider: str) -> "str | _Obstacle":
        """The model's id at a provider that can batch it for all that is known, else what keeps it from that."""
        model, spec = self.model_at(provider), self.spec
        users_word = spec.supports_async_batch if provider == spec.provider else None
        if model is None:
            why = f"{provider} has no model known to be {spec.provider}:{spec.model}"
            return _Obstacle(NotBatchCapableError, why, "say which it is with ModelSpec(openrouter_model=...)")
        if users_word is False:
            return _Obstacle(NotBatchCapableError, "its registry entry says supports_async_batch=False")
        ability = self.configured.get(provider)
        if ability is None:
            key = "" if provider.startswith("compatible/") else " with an API key"
            return _Obstacle(MissingApiKeyError, f"{provider} is not configured", f"configure {provider}{key}")
        if users_word is True:
            return model
        if not ability.batches:
            return _Obstacle(NotBatchCapableError, f"{provider} cannot batch: {ability.why_not}")
        variant = provider == OPENROUTER and split_variant(model)[1]
        if variant or (ability.models is not None and model not in ability.models):
            return _Obstacle(NotBatchCapableError, f"{provider} has no batches of {model}")
        return model

    def model_at(self, provider: str) -> "str | None":
        """The model's id at a provider; None where it has none there."""
        spec = self.spec
        if spec.provider == OPENROUTER and provider != OPENROUTER:
            vendor, model = from_openrouter(spec.model) or (None, None)
            return model if vendor == provider else None
        if provider == OPENROUTER and spec.provider != OPENROUTER:
            return spec.openrouter_model or to_openrouter(spec.provider, spec.model)
        if provider != spec.provider:
            return None
        return spec.model.removesuffix(f":{BATCH_VARIANT}") if provider == OPENROUTER else spec.model


def _is_provider(name: str) -> bool:
    return name in NAMES or _COMPATIBLE.fullmatch(name) is not None


def _check_provider(name: "str | None", where: str) -> None:
    if name is not None and not _is_provider(name):
        raise UnknownProviderError(
            f"{where}: there is no provider {name!r}. Providers: {', '.join(NAMES)}, compatible/NAME."
        )
