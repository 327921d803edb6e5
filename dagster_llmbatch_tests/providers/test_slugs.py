"""Names of models at their vendors and at OpenRouter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_llmbatch.providers.slugs import from_openrouter, split_variant, to_openrouter

BOTH_WAYS = [
    ("openai", "gpt-5-mini", "openai/gpt-5-mini"),
    ("openai", "gpt-6.1-terra", "openai/gpt-6.1-terra"),
    ("openai", "o4-mini", "openai/o4-mini"),
    ("anthropic", "claude-haiku-4-5", "anthropic/claude-haiku-4.5"),
    ("anthropic", "claude-opus-5", "anthropic/claude-opus-5"),
    ("anthropic", "claude-fable-5-2", "anthropic/claude-fable-5.2"),
    ("anthropic", "claude-opus-4-1", "anthropic/claude-opus-4.1"),
    ("anthropic", "claude-sonnet-4-0", "anthropic/claude-sonnet-4"),
    ("gemini", "gemini-2.5-flash", "google/gemini-2.5-flash"),
    ("gemini", "gemini-3.1-pro-preview", "google/gemini-3.1-pro-preview"),
    ("gemini", "gemini-2.5-flash-preview-09-2025", "google/gemini-2.5-flash-preview-09-2025"),
]


@pytest.mark.parametrize(("provider", "model", "slug"), BOTH_WAYS)
def test_names_that_follow_both_ways(provider: str, model: str, slug: str) -> None:
    """And the ":batch" variant is the same model."""
    assert to_openrouter(provider, model) == slug
    assert from_openrouter(slug) == (provider, model)
    assert from_openrouter(f"{slug}:batch") == (provider, model)


@pytest.mark.parametrize(
    ("provider", "model", "slug"),
    [
        ("openai", "gpt-5-mini-2025-08-07", "openai/gpt-5-mini"),
        ("anthropic", "claude-haiku-4-5-20251001", "anthropic/claude-haiku-4.5"),
        ("anthropic", "claude-sonnet-4-20250514", "anthropic/claude-sonnet-4"),
        ("anthropic", "claude-3-5-haiku-20241022", "anthropic/claude-3.5-haiku"),
        ("anthropic", "claude-3-7-sonnet-latest", "anthropic/claude-3.7-sonnet"),
        ("gemini", "models/gemini-2.5-flash", "google/gemini-2.5-flash"),
    ],
)
def test_names_that_lose_something_on_the_way_to_openrouter(provider: str, model: str, slug: str) -> None:
    """The date of a snapshot, "-latest" and Gemini's "models/" are no part of a slug."""
    assert to_openrouter(provider, model) == slug


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "ft:gpt-4o-mini-2024-07-18:acme::abc"),
        ("openai", "gpt-oss-120b"),
        ("openai", "text-embedding-3-small"),
        ("openai", "my-model"),
        ("gemini", "gemma-3-27b-it"),
        ("gemini", "claude-haiku-4-5"),
        ("anthropic", "gpt-5"),
        ("openrouter", "openai/gpt-5"),
        ("compatible/local", "gpt-5"),
    ],
)
def test_what_openrouter_does_not_sell_has_no_slug(provider: str, model: str) -> None:
    """Fine-tuned models, open weights under a vendor's name, and models of nobody we know."""
    assert to_openrouter(provider, model) is None


@pytest.mark.parametrize(
    "slug",
    [
        "openai/gpt-oss-120b",
        "openai/gpt-5-mini:free",
        "google/gemini-2.5-flash-preview:thinking",
        "google/gemma-3-27b-it",
        "anthropic/claude-opus-5-fast",
        "anthropic/claude-3.5-haiku",
        "anthropic/claude-4.5-haiku-20251001",
        "z-ai/glm-5.3",
        "gemini/gemini-2.5-flash",
        "gpt-5-mini",
        "openrouter/auto",
        "",
    ],
)
def test_slugs_no_vendor_of_ours_has_a_name_for(slug: str) -> None:
    """A ":free" model costs money at its vendor, so it is not the same one."""
    assert from_openrouter(slug) is None


@pytest.mark.parametrize(
    ("slug", "parts"),
    [("a/b:batch", ("a/b", "batch")), ("a/b:free", ("a/b", "free")), ("a/b", ("a/b", "")), ("", ("", ""))],
)
def test_variants(slug: str, parts: "tuple[str, str]") -> None:
    """The part after the colon says how OpenRouter serves the model."""
    assert split_variant(slug) == parts


@given(st.text("abcdefg-.:/0123456789opntcluei", max_size=30))
def test_any_text_is_a_name_or_none(text: str) -> None:
    """Nothing raises, and what has a vendor's name finds its slug again."""
    for provider in ("openai", "anthropic", "gemini"):
        slug = to_openrouter(provider, text)
        assert slug is None or slug.count("/") == 1
    found = from_openrouter(text)
    if found is not None:
        assert to_openrouter(*found) is not None
