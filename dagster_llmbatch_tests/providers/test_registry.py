"""Providers by name: the model string, limits as dated data, and clients that keep their key to themselves."""

import datetime as dt

import httpx
import pytest

from dagster_llmbatch.errors import ConfigurationError, MissingApiKeyError, UnknownProviderError
from dagster_llmbatch.providers.contract import BatchHandle
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.registry import API_KEY_VARIABLES, PROVIDERS, make_provider, parse_model


@pytest.mark.parametrize(
    ("model", "parsed"),
    [
        ("openai:gpt-5-mini", ("openai", "gpt-5-mini")),
        ("openai:ft:gpt-4o-mini:acme::abc", ("openai", "ft:gpt-4o-mini:acme::abc")),
    ],
)
def test_the_model_id_is_all_after_the_first_colon(model: str, parsed: "tuple[str, str]") -> None:
    """Colons of fine-tuned models belong to the model id."""
    assert parse_model(model) == parsed


@pytest.mark.parametrize("model", ["gpt-5-mini", "openai", "openai:", "openai: ", ":gpt", "", "OpenAI:gpt", "nobody:m"])
def test_other_model_strings_are_refused(model: str) -> None:
    """The message names the asset, the string and the form it should have."""
    with pytest.raises(UnknownProviderError, match=r"shop/reviews.*provider:model") as caught:
        parse_model(model, asset="shop/reviews")
    assert repr(model) in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", "\n"])
def test_an_empty_key_is_refused(key: str) -> None:
    """The message names the environment variable to set."""
    with pytest.raises(MissingApiKeyError, match="OPENAI_API_KEY"):
        make_provider("openai", api_key=key)


def test_an_unknown_provider_is_refused_without_its_key() -> None:
    """The message lists the providers there are."""
    with pytest.raises(UnknownProviderError, match="openai") as caught:
        make_provider("nobody", api_key="sk-secret")
    assert "sk-secret" not in str(caught.value)


def test_space_around_a_key_does_not_reach_the_wire() -> None:
    """A key read from a file, with its newline, works, or is refused before any call."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200, json={"id": "b", "status": "completed"})

    try:
        provider = make_provider("openai", api_key="sk-abc\n", transport=httpx.MockTransport(answer))
    except ConfigurationError:
        return
    provider.status(BatchHandle("openai", "b"))
    assert sent == ["Bearer sk-abc"]


def test_a_key_that_no_header_can_carry_is_refused_without_it() -> None:
    """A pasted key with a sign outside ASCII is a configuration error that does not show it."""
    with pytest.raises((ConfigurationError, ValueError)) as caught:
        make_provider("openai", api_key="sk-secret-\u20ac")
    assert isinstance(caught.value, ConfigurationError)
    assert "sk-secret" not in repr(caught.value)


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_complete(name: str) -> None:
    """Each has a client, limits with a date and a source, and a variable for its key."""
    provider = make_provider(name, api_key="k", transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    assert provider.name == name
    assert provider.limits is LIMITS[name]
    assert dt.date.fromisoformat(provider.limits.as_of)
    assert provider.limits.source.startswith("https://")
    assert API_KEY_VARIABLES[name].endswith("_API_KEY")
    provider.close()


def test_openai_limits() -> None:
    """50,000 requests, 200 MB in its smaller meaning, 24 hours, and more than 11 minutes to settle a cancel."""
    limits = LIMITS["openai"]
    assert (limits.max_requests, limits.max_bytes, limits.window) == (50_000, 200_000_000, 86_400)
    assert limits.cancel_settle >= 660


@pytest.mark.parametrize(
    ("name", "requests", "size", "hours"),
    [
        ("openai", 50_000, 200_000_000, 24),
        ("anthropic", 100_000, 249_999_985, 24),
        ("gemini", 50_000, 1_900_000_000, 48),
        ("openrouter", 5_000, 199_900_000, 24),
    ],
)
def test_what_one_batch_may_hold_and_how_long_it_may_run(name: str, requests: int, size: int, hours: int) -> None:
    """Requests and bytes of a batch, and hours from create to expiry: Gemini's 24 are a target, its batches live for 48."""
    limits = LIMITS[name]
    assert (limits.max_requests, limits.max_bytes, limits.window) == (requests, size, hours * 3600)
