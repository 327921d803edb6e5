"""Providers by name: the model string, and a client for it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from dagster_llmbatch.errors import ConfigurationError, MissingApiKeyError, UnknownProviderError
from dagster_llmbatch.providers.anthropic import AnthropicBatchProvider
from dagster_llmbatch.providers.contract import BatchProvider
from dagster_llmbatch.providers.gemini import GeminiBatchProvider
from dagster_llmbatch.providers.openai import OpenAIBatchProvider
from dagster_llmbatch.providers.openrouter import OpenRouterBatchProvider
from dagster_llmbatch.providers.resolution import split_model

_PROVIDERS: "dict[str, Callable[..., BatchProvider]]" = {
    "openai": OpenAIBatchProvider,
    "anthropic": AnthropicBatchProvider,
    "gemini": GeminiBatchProvider,
    "openrouter": OpenRouterBatchProvider,
}
PROVIDERS = tuple(_PROVIDERS)
COMPATIBLE = "compatible/"
"""Begins the name of a provider that is an OpenAI-compatible server: compatible/groq."""
API_KEY_VARIABLES = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}
"""The environment variable a provider's own tools read its key from."""


def parse_model(model: str, *, asset: str = "") -> "tuple[str, str]":
    """("openai", "gpt-5-mini") of "openai:gpt-5-mini": everything after the first colon is the provider's model id.

    Raises UnknownProviderError for another prefix, or none.
    """
    try:
        return split_model(model)
    except UnknownProviderError as error:
        raise UnknownProviderError(f"{asset}: {error}" if asset else str(error)) from None


def how_to_configure(name: str) -> str:
    """What a user does to make a provider reachable."""
    if name.startswith(COMPATIBLE):
        short = name.removeprefix(COMPATIBLE)
        return f'set LLMBatchResource(compatible={{"{short}": {{"base_url": "http://.../v1"}}}}).'
    variable = API_KEY_VARIABLES.get(name, "API_KEY")
    return (
        f'set LLMBatchResource({name}={{"api_key": dg.EnvVar("{variable}")}}), and {variable} where the runs and the '
        "daemon start."
    )


def make_provider(name: str, *, api_key: str, **options: Any) -> BatchProvider:
    """A client of one provider. Raises UnknownProviderError or MissingApiKeyError."""
    make = _PROVIDERS.get(name)
    if make is None and name.startswith(COMPATIBLE):
        make = partial(OpenAIBatchProvider, name=name)
    if make is None:
        raise UnknownProviderError(
            f"There is no provider {name!r}. Providers: {', '.join(PROVIDERS)}, compatible/NAME."
        )
    key = api_key.strip()  # a key file ends with a newline
    if not key:
        raise MissingApiKeyError(f"The API key for {name} is empty: {how_to_configure(name)}")
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"The API key for {name} holds characters that no HTTP header can carry. Check where it is set."
        )
    return make(api_key=key, **options)
