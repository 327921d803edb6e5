"""Providers by name: the model string, and a client for it."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from dagster_llmbatch.errors import ConfigurationError, MissingApiKeyError, UnknownProviderError
from dagster_llmbatch.providers.contract import BatchProvider
from dagster_llmbatch.providers.openai import OpenAIBatchProvider

_PROVIDERS: "dict[str, Callable[..., BatchProvider]]" = {
    "openai": OpenAIBatchProvider,
}
PROVIDERS = tuple(_PROVIDERS)
COMPATIBLE = "compatible/"
"""Begins the name of a provider that is an OpenAI-compatible server: compatible/groq."""
_COMPATIBLE_NAME = re.compile(r"compatible/[A-Za-z0-9_.-]+")
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
    provider, colon, model_id = model.partition(":")
    if colon and model_id.strip() and (provider in _PROVIDERS or _COMPATIBLE_NAME.fullmatch(provider)):
        return provider, model_id
    where = f"{asset}: " if asset else ""
    raise UnknownProviderError(
        f'{where}model {model!r} is not of the form "provider:model", such as "openai:gpt-5-mini". Providers: '
        f"{', '.join(PROVIDERS)}, and compatible/NAME for an OpenAI-compatible server."
    )


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
    if make is None and _COMPATIBLE_NAME.fullmatch(name):
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
