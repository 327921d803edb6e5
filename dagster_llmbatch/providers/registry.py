"""Providers by name: the model string, and a client for it."""

from typing import Any

from dagster_llmbatch.errors import ConfigurationError, MissingApiKeyError, UnknownProviderError
from dagster_llmbatch.providers.contract import BatchProvider
from dagster_llmbatch.providers.openai import OpenAIBatchProvider

_PROVIDERS = {"openai": OpenAIBatchProvider}
PROVIDERS = tuple(_PROVIDERS)
API_KEY_VARIABLES = {"openai": "OPENAI_API_KEY"}
"""The environment variable a provider's own tools read its key from."""


def parse_model(model: str, *, asset: str = "") -> "tuple[str, str]":
    """("openai", "gpt-5-mini") of "openai:gpt-5-mini": everything after the first colon is the provider's model id.

    Raises UnknownProviderError for another prefix, or none.
    """
    provider, colon, model_id = model.partition(":")
    if provider in _PROVIDERS and colon and model_id.strip():
        return provider, model_id
    where = f"{asset}: " if asset else ""
    raise UnknownProviderError(
        f'{where}model {model!r} is not of the form "provider:model", such as "openai:gpt-5-mini". Providers: '
        f"{', '.join(PROVIDERS)}."
    )


def make_provider(name: str, *, api_key: str, **options: Any) -> BatchProvider:
    """A client of one provider. Raises UnknownProviderError or MissingApiKeyError."""
    if name not in _PROVIDERS:
        raise UnknownProviderError(f"There is no provider {name!r}. Providers: {', '.join(PROVIDERS)}.")
    if not api_key.strip():
        raise MissingApiKeyError(
            f"The API key for {name} is empty: set {API_KEY_VARIABLES[name]} where the runs and the daemon start."
        )
    key = api_key.strip()  # a key file ends with a newline
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"The API key for {name} holds characters that no HTTP header can carry. Check {API_KEY_VARIABLES[name]}."
        )
    return _PROVIDERS[name](api_key=key, **options)
