"""How each provider is reached, as Dagster config: keys from the environment, addresses, what differs by account."""

import re
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_llmbatch.errors import ConfigurationError, UnknownProviderError
from dagster_llmbatch.providers.resolution import ModelSpec, split_model


class OpenAIConfig(dg.Config):
    """How to reach OpenAI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: str = Field(description='API key. Pass dg.EnvVar("OPENAI_API_KEY").', repr=False)
    base_url: str = Field(default="https://api.openai.com/v1", description="Address of the API, with /v1.")
    organization: str | None = Field(default=None, description="OpenAI organization id, where a key has several.")
    project: str | None = Field(default=None, description="OpenAI project id, where a key has several.")
    endpoint: Literal["/v1/responses", "/v1/chat/completions"] = Field(
        default="/v1/responses", description="The endpoint that is called for every row."
    )


class AnthropicConfig(dg.Config):
    """How to reach Anthropic's own API. Bedrock, Vertex and Foundry have no Message Batches endpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: str = Field(description='API key. Pass dg.EnvVar("ANTHROPIC_API_KEY").', repr=False)
    base_url: str = Field(default="https://api.anthropic.com", description="Address of the API, without /v1.")


class GeminiConfig(dg.Config):
    """How to reach the Gemini Developer API. Vertex AI has another batch API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: str = Field(description='API key. Pass dg.EnvVar("GEMINI_API_KEY").', repr=False)
    base_url: str = Field(
        default="https://generativelanguage.googleapis.com", description="Address of the API, without /v1beta."
    )
    ingest: Literal["auto", "file", "inline"] = Field(
        default="auto",
        description="How requests are handed over: as an uploaded file, inline in the create call, or by size.",
    )


class OpenRouterConfig(dg.Config):
    """How to reach OpenRouter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: str = Field(description='API key. Pass dg.EnvVar("OPENROUTER_API_KEY").', repr=False)
    base_url: str = Field(default="https://openrouter.ai/api/v1", description="Address of the API, with /v1.")


class OpenAICompatibleConfig(dg.Config):
    """How to reach a server that speaks OpenAI's API: vLLM, Ollama, LiteLLM, Groq, ..."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(description="Address of the API, with /v1.")
    api_key: str = Field(default="none", description="API key; many local servers want none.", repr=False)
    batches: bool = Field(default=False, description="Whether the server has OpenAI's files and batches endpoints.")
    endpoint: Literal["/v1/responses", "/v1/chat/completions"] = Field(
        default="/v1/chat/completions", description="The endpoint that is called for every row."
    )


class ModelConfig(dg.Config):
    """A model under a name of your own, or what is known of a model that its name does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str | None = Field(
        default=None, description="The model's provider, such as openai or compatible/NAME: under a name of your own."
    )
    model: str | None = Field(default=None, description="The provider's model id: under a name of your own.")
    batch_provider: str | None = Field(
        default=None, description="The provider that batches the model, such as openrouter; None: its vendor."
    )
    supports_async_batch: bool | None = Field(
        default=None, description="Whether the vendor can batch the model; None: it can, where it has a batch API."
    )
    openrouter_model: str | None = Field(
        default=None, description="The model's slug at OpenRouter, where that does not follow from its name."
    )

    def spec(self, name: str) -> ModelSpec:
        """What it says of the model `name`. Raises ConfigurationError where nothing could ever use it."""
        where = f"LLMBatchResource(models=...), {name!r}"
        if is_alias(name):
            if self.provider is None or self.model is None:
                raise ConfigurationError(
                    f"{where}: a name of your own needs provider and model; what is known of a provider's model stands under "
                    '"provider:model".'
                )
            provider, model = self.provider, self.model
        else:
            try:
                provider, model = split_model(name)
            except UnknownProviderError as error:
                raise UnknownProviderError(f"{where}: nothing would use it. {error}") from None
            if self.provider is not None or self.model is not None:
                raise ConfigurationError(f"{where}: provider and model stand in the name; leave them out.")
        return ModelSpec(provider, model, self.batch_provider, self.supports_async_batch, self.openrouter_model)


_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_alias(model: str) -> bool:
    """Whether a model is named by a name of the user's, of letters, digits, "_", "." and "-", and not as "provider:model"."""
    return _ALIAS.fullmatch(model) is not None


def check_models(models: "dict[str, ModelConfig]") -> "dict[str, ModelConfig]":
    """The models as given. Raises ConfigurationError for an entry that nothing could ever use, such as a mistyped one."""
    for name, config in models.items():
        values = (config.provider, config.model, config.batch_provider, config.openrouter_model)
        if not any(isinstance(value, dg.EnvVar) for value in values):  # those are checked once they have their values
            config.spec(name)
    return models


class PriceConfig(dg.Config):
    """A price of your own, in USD per million tokens, in the lane it is given for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, description="USD per million input tokens.")
    output: float = Field(ge=0, description="USD per million output tokens.")
    cached: float | None = Field(default=None, ge=0, description="USD per million cached input tokens; None: as input.")
    cache_write: float | None = Field(
        default=None, ge=0, description="USD per million input tokens written to the cache; None: as input."
    )


def key_alone(values: "dict[str, Any]", name: str) -> "dict[str, Any]":
    """`openai="..."` or `openai=EnvVar(...)` is short for the API key alone."""
    return values | {name: {"api_key": values[name]}} if isinstance(values.get(name), str) else values
