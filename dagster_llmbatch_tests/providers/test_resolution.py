"""Who batches a model."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.errors import ConfigurationError, MissingApiKeyError, NotBatchCapableError, UnknownProviderError
from dagster_llmbatch.providers.resolution import BatchAbility, ModelSpec, Resolution, ability_at, resolve, split_model

YES, NO = BatchAbility(), BatchAbility(False, "it is a test")
MINI, HAIKU, SLUG = "openai:gpt-5-mini", "anthropic:claude-haiku-4-5", "openrouter:anthropic/claude-haiku-4.5"
LOCAL = "compatible/local"
NO_KEY, CANNOT = MissingApiKeyError, NotBatchCapableError


def spec(name: str, **fields: Any) -> ModelSpec:
    """A registry entry of "provider:model"."""
    return ModelSpec(*split_model(name), **fields)


def only(*models: str) -> BatchAbility:
    """Batches of these models alone."""
    return BatchAbility(models=frozenset(models))


RESOLVES: "dict[str, tuple[str, dict[str, Any], tuple[str, str, bool]]]" = {
    # what: (model, the rest of the question, (provider, model there, fallback))
    "the vendor": (MINI, {"configured": {"openai": YES}}, ("openai", "gpt-5-mini", False)),
    "the vendor before OpenRouter": (
        MINI,
        {"configured": {"openrouter": YES, "openai": YES}},
        ("openai", "gpt-5-mini", False),
    ),
    "the vendor keeps its dated name": (
        "anthropic:claude-haiku-4-5-20251001",
        {"configured": {"anthropic": YES}},
        ("anthropic", "claude-haiku-4-5-20251001", False),
    ),
    "a fine-tuned model at its vendor": (
        "openai:ft:gpt-4o-mini:acme::abc",
        {"configured": {"openai": YES}},
        ("openai", "ft:gpt-4o-mini:acme::abc", False),
    ),
    "the asset's word before the vendor": (
        MINI,
        {"configured": {"openrouter": YES, "openai": YES}, "batch_provider": "openrouter"},
        ("openrouter", "openai/gpt-5-mini", False),
    ),
    "the asset's word before the entry's": (
        "fast",
        {
            "configured": {"openrouter": YES, "openai": YES},
            "batch_provider": "openai",
            "spec": spec(MINI, batch_provider="openrouter"),
        },
        ("openai", "gpt-5-mini", False),
    ),
    "the entry's word before the vendor": (
        "fast",
        {"configured": {"openrouter": YES, "openai": YES}, "spec": spec(MINI, batch_provider="openrouter")},
        ("openrouter", "openai/gpt-5-mini", False),
    ),
    "the entry's word before the vendor of a slug": (
        "fast",
        {"configured": {"openrouter": YES, "anthropic": YES}, "spec": spec(SLUG, batch_provider="openrouter")},
        ("openrouter", "anthropic/claude-haiku-4.5", False),
    ),
    "the entry and not the name": (
        "openai:anything",
        {"configured": {"openai": YES, "anthropic": YES}, "spec": spec(HAIKU)},
        ("anthropic", "claude-haiku-4-5", False),
    ),
    "the asset's word for the vendor of a slug": (
        SLUG,
        {"configured": {"anthropic": YES}, "batch_provider": "anthropic"},
        ("anthropic", "claude-haiku-4-5", False),
    ),
    "the vendor a slug names": (
        SLUG,
        {"configured": {"openrouter": YES, "anthropic": YES}},
        ("anthropic", "claude-haiku-4-5", False),
    ),
    "the vendor a slug names, without OpenRouter": (
        "openrouter:google/gemini-2.5-flash",
        {"configured": {"gemini": YES}},
        ("gemini", "gemini-2.5-flash", False),
    ),
    "a slug whose vendor is not configured": (
        SLUG,
        {"configured": {"openrouter": YES, "openai": YES}},
        ("openrouter", "anthropic/claude-haiku-4.5", False),
    ),
    "a slug whose vendor cannot batch": (
        SLUG,
        {"configured": {"openrouter": YES, "anthropic": NO}},
        ("openrouter", "anthropic/claude-haiku-4.5", False),
    ),
    "a slug of a vendor that is not ours": (
        "openrouter:z-ai/glm-5.3",
        {"configured": {"openrouter": YES, "openai": YES}},
        ("openrouter", "z-ai/glm-5.3", False),
    ),
    "the batch variant of a slug is the model": (
        "openrouter:z-ai/glm-5.3:batch",
        {"configured": {"openrouter": only("z-ai/glm-5.3")}},
        ("openrouter", "z-ai/glm-5.3", False),
    ),
    "a slug that OpenRouter does not batch, at its vendor": (
        "smart",
        {"configured": {"openrouter": YES, "anthropic": YES}, "spec": spec(SLUG, supports_async_batch=False)},
        ("anthropic", "claude-haiku-4-5", False),
    ),
    "fallback: the vendor has no key": (
        HAIKU,
        {"configured": {"openrouter": YES}},
        ("openrouter", "anthropic/claude-haiku-4.5", True),
    ),
    "fallback: the vendor's address has no batch API": (
        MINI,
        {"configured": {"openrouter": YES, "openai": NO}},
        ("openrouter", "openai/gpt-5-mini", True),
    ),
    "fallback: the vendor does not batch this model": (
        MINI,
        {"configured": {"openrouter": YES, "openai": only("gpt-5")}},
        ("openrouter", "openai/gpt-5-mini", True),
    ),
    "fallback: the entry says the vendor cannot": (
        "fast",
        {"configured": {"openrouter": YES, "openai": YES}, "spec": spec(MINI, supports_async_batch=False)},
        ("openrouter", "openai/gpt-5-mini", True),
    ),
    "fallback: a compatible server without batches, whose slug is given": (
        "local",
        {
            "configured": {"openrouter": YES, LOCAL: NO},
            "spec": spec(f"{LOCAL}:Llama-3.3", openrouter_model="meta-llama/llama-3.3-70b-instruct"),
        },
        ("openrouter", "meta-llama/llama-3.3-70b-instruct", True),
    ),
    "a compatible server with batches": (
        f"{LOCAL}:Llama-3.3",
        {"configured": {"openrouter": YES, LOCAL: YES}},
        (LOCAL, "Llama-3.3", False),
    ),
    "the entry says the provider can, against what is known": (
        "local",
        {"configured": {LOCAL: NO}, "spec": spec(f"{LOCAL}:m", supports_async_batch=True)},
        (LOCAL, "m", False),
    ),
    "a model of OpenRouter's list": (
        MINI,
        {"configured": {"openrouter": only("openai/gpt-5-mini")}},
        ("openrouter", "openai/gpt-5-mini", True),
    ),
}


@pytest.mark.parametrize(("model", "question", "expected"), RESOLVES.values(), ids=RESOLVES)
def test_it_resolves(model: str, question: "dict[str, Any]", expected: "tuple[str, str, bool]") -> None:
    """The provider, its name of the model, and whether it stands in for another, which is never silent."""
    found = resolve(model, **question)
    assert (found.provider, found.model, found.fallback) == expected
    assert found.reason
    assert bool(found.warnings) is found.fallback


RAISES: "dict[str, tuple[str, dict[str, Any], type[ConfigurationError], str]]" = {
    # what: (model, the rest of the question, error, what its message says)
    "no key at all": (MINI, {"configured": {}}, NO_KEY, "configure openai with an API key, or configure openrouter"),
    "no key of the vendor, and OpenRouter cannot": (
        MINI,
        {"configured": {"openrouter": NO}},
        NO_KEY,
        "configure openai with an API key",
    ),
    "no key of the vendor, and OpenRouter does not sell it": (
        "openai:ft:gpt-4o-mini:acme::abc",
        {"configured": {"openrouter": YES}},
        NO_KEY,
        "configure openai with an API key",
    ),
    "no key of the vendor, and OpenRouter does not batch it": (
        HAIKU,
        {"configured": {"openrouter": only("z-ai/glm-5.3")}},
        NO_KEY,
        "openrouter has no batches of anthropic/claude-haiku-4.5",
    ),
    "the vendor cannot, and OpenRouter has no key": (
        MINI,
        {"configured": {"openai": NO}},
        CANNOT,
        "it is a test.*LLMBatchResource.complete.*or configure openrouter with an API key",
    ),
    "the entry says it cannot, and OpenRouter has no key": (
        "fast",
        {"configured": {"openai": YES}, "spec": spec(MINI, supports_async_batch=False)},
        CANNOT,
        "supports_async_batch=False.*configure openrouter",
    ),
    "neither can": (
        MINI,
        {"configured": {"openai": NO, "openrouter": NO}},
        CANNOT,
        "cannot batch.*LLMBatchResource.complete",
    ),
    "a compatible server without batches stays in the house": (
        f"{LOCAL}:meta-llama/llama-3.3-70b-instruct",
        {"configured": {LOCAL: NO, "openrouter": YES}},
        CANNOT,
        "openrouter_model",
    ),
    "a compatible server that is not configured": (f"{LOCAL}:m", {"configured": {}}, NO_KEY, f"configure {LOCAL}, or"),
    "the asset's word is not configured": (
        MINI,
        {"configured": {"openai": YES}, "batch_provider": "openrouter"},
        NO_KEY,
        "the asset's batch_provider is openrouter.*Nothing goes elsewhere.*configure openrouter with an API key",
    ),
    "the asset's word has no fallback": (
        MINI,
        {"configured": {"openrouter": YES}, "batch_provider": "openai"},
        NO_KEY,
        "configure openai",
    ),
    "the asset's word cannot batch": (
        MINI,
        {"configured": {"openai": NO, "openrouter": YES}, "batch_provider": "openai"},
        CANNOT,
        "it is a test",
    ),
    "the asset's word does not sell the model": (
        HAIKU,
        {"configured": {"openai": YES, "anthropic": YES}, "batch_provider": "openai"},
        CANNOT,
        "openai has no model known to be anthropic:claude-haiku-4-5",
    ),
    "the entry's word has no fallback": (
        "fast",
        {"configured": {"openrouter": YES, "openai": YES}, "spec": spec(SLUG, batch_provider="anthropic")},
        NO_KEY,
        "the registry entry's batch_provider is anthropic",
    ),
    "the asset's word against what the entry says": (
        "fast",
        {
            "configured": {"openai": YES, "openrouter": YES},
            "batch_provider": "openai",
            "spec": spec(MINI, supports_async_batch=False),
        },
        CANNOT,
        "supports_async_batch=False",
    ),
    "a slug without any key": (SLUG, {"configured": {}}, NO_KEY, "openrouter.*or configure anthropic, its vendor"),
    "a free variant, which only OpenRouter has, and not in batches": (
        "openrouter:openai/gpt-5-mini:free",
        {"configured": {"openrouter": YES, "openai": YES}},
        CANNOT,
        "openrouter has no batches of openai/gpt-5-mini:free",
    ),
}


@pytest.mark.parametrize(("model", "question", "error", "message"), RAISES.values(), ids=RAISES)
def test_it_raises(model: str, question: "dict[str, Any]", error: "type[ConfigurationError]", message: str) -> None:
    """With the model's name, the reason and what to do."""
    with pytest.raises(error, match=message) as caught:
        resolve(model, **question)
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{model}: ")


def test_a_fallback_says_so() -> None:
    """The warning names the model, where its batches go, why, and how to forbid it."""
    found = resolve(MINI, configured={"openrouter": YES})
    assert found.reason == "openai is not configured"
    assert found.warnings == (
        "openai:gpt-5-mini: its batches go to OpenRouter as openai/gpt-5-mini, because openai is not configured. "
        "Set batch_provider='openai' to have an error instead.",
    )


@pytest.mark.parametrize(("batch_provider", "warnings"), [(None, 2), ("openrouter", 1)])
def test_a_date_that_is_lost_is_said(batch_provider: "str | None", warnings: int) -> None:
    """OpenRouter's slug has no date, so another snapshot may answer."""
    found = resolve("openai:gpt-5-mini-2025-08-07", configured={"openrouter": YES}, batch_provider=batch_provider)
    assert found.model == "openai/gpt-5-mini"
    assert len(found.warnings) == warnings
    assert "another snapshot" in found.warnings[-1]


MODELS = [
    MINI,
    HAIKU,
    SLUG,
    "openai:ft:gpt-4o-mini:acme::abc",
    "anthropic:claude-haiku-4-5-20251001",
    "gemini:models/gemini-2.5-flash",
    "openrouter:z-ai/glm-5.3:batch",
    "openrouter:openai/gpt-oss-20b:free",
    "openrouter:auto",
    f"{LOCAL}:meta-llama/llama-3.3-70b-instruct",
]
PROVIDERS = ["openai", "anthropic", "gemini", "openrouter", LOCAL]
ABILITIES = [YES, NO, only("gpt-5-mini", "claude-haiku-4-5"), only("openai/gpt-5-mini"), only()]
SPECS = st.builds(
    spec,
    st.sampled_from(MODELS),
    batch_provider=st.none() | st.sampled_from(PROVIDERS),
    supports_async_batch=st.sampled_from([None, True, False]),
    openrouter_model=st.sampled_from([None, "z-ai/glm-5.3", "openai/gpt-5-mini"]),
)


@settings(max_examples=1000)
@given(
    st.sampled_from(MODELS),
    st.dictionaries(st.sampled_from(PROVIDERS), st.sampled_from(ABILITIES)),
    st.none() | st.sampled_from(PROVIDERS),
    st.none() | SPECS,
)
def test_every_question_has_one_answer(
    model: str, configured: "dict[str, BatchAbility]", batch_provider: "str | None", entry: "ModelSpec | None"
) -> None:
    """A provider that is configured, or one of two errors; the same each time, whatever the order of the providers."""

    def answer(providers: "dict[str, BatchAbility]") -> "Resolution | tuple[type[Exception], str]":
        try:
            return resolve(model, configured=providers, batch_provider=batch_provider, spec=entry)
        except (MissingApiKeyError, NotBatchCapableError) as error:
            return type(error), str(error)

    found = answer(configured)
    assert found == answer(dict(reversed(configured.items())))
    if not isinstance(found, Resolution):
        assert found[1].startswith(f"{model}: ")
        return
    assert found.provider in configured
    assert found.model
    told = batch_provider or (entry.batch_provider if entry else None)
    assert told in (None, found.provider)
    assert not found.fallback or (found.provider == "openrouter" and told is None and found.warnings)
    says_yes = entry is not None and entry.provider == found.provider and entry.supports_async_batch is True
    assert configured[found.provider].batches or says_yes


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (MINI, ("openai", "gpt-5-mini")),
        ("openai:ft:gpt-4o-mini:acme::abc", ("openai", "ft:gpt-4o-mini:acme::abc")),
        ("openrouter:z-ai/glm-5.3:batch", ("openrouter", "z-ai/glm-5.3:batch")),
        ("compatible/vllm-1:meta/llama:8b", ("compatible/vllm-1", "meta/llama:8b")),
    ],
)
def test_the_model_id_is_all_after_the_first_colon(name: str, parts: "tuple[str, str]") -> None:
    """Colons and slashes belong to the model id."""
    assert split_model(name) == parts


@pytest.mark.parametrize(
    "name",
    ["gpt-5", "openai", "openai:", "openai: ", ":gpt", "", "OpenAI:gpt", "nobody:m", "compatible:m", "compatible/:m"],
)
def test_other_model_strings_are_refused(name: str) -> None:
    """The message shows the string and the form it should have."""
    with pytest.raises(UnknownProviderError, match="provider:model") as caught:
        resolve(name, configured={"openai": YES})
    assert repr(name) in str(caught.value)


def test_names_that_are_no_provider_are_refused() -> None:
    """In an asset or an entry, where the entry is made."""
    with pytest.raises(UnknownProviderError, match=r"no provider 'azure'.*compatible/NAME"):
        resolve(MINI, configured={"openai": YES}, batch_provider="azure")
    with pytest.raises(UnknownProviderError, match="no provider 'google'"):
        ModelSpec("google", "gemini-2.5-flash")
    with pytest.raises(UnknownProviderError, match="no provider 'azure'"):
        ModelSpec("openai", "gpt-5", batch_provider="azure")
    with pytest.raises(ConfigurationError, match="no model"):
        ModelSpec("openai", " ")


@pytest.mark.parametrize(
    ("base_url", "reseller"),
    [
        ("https://api.openai.com/v1", None),
        ("https://api.anthropic.com", None),
        ("https://generativelanguage.googleapis.com", None),
        ("http://localhost:8000/v1", None),
        ("https://azure.com.example.org/v1", None),
        ("https://shop.openai.azure.com/openai/v1", "Azure"),
        ("https://shop.services.ai.azure.com/anthropic", "Azure"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "Amazon Bedrock"),
        ("https://europe-west1-aiplatform.googleapis.com/v1", "Vertex AI"),
        ("https://aiplatform.googleapis.com/v1", "Vertex AI"),
        ("not an address", None),
    ],
)
def test_addresses_of_resellers_cannot_batch(base_url: str, reseller: "str | None") -> None:
    """And the reason is named; any other address may."""
    found = ability_at(base_url)
    assert found.batches is (reseller is None)
    assert reseller is None or reseller in found.why_not
