"""Batch prices: the published or the user's own, never the standard price in their place."""

from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core.pricing import Price, PriceBook

BOOK = PriceBook()
MODELS = {m.id: m for p in get_snapshot().providers if p.id == "openai" for m in p.models}
# OpenAI lists the same price for both lanes of this model
SAME_IN_BOTH_LANES = {"gpt-3.5-turbo-1106"}


def has_batch_price(model: Any) -> bool:
    """Whether the published data hold a batch price of the model."""
    return any((variant.when or {}).get("processing") == "batch" for variant in model.price_variants or ())


WITH, WITHOUT = (sorted(n for n, m in MODELS.items() if has_batch_price(m) is known) for known in (True, False))


def published(model: str, context: "dict[str, Any] | None", *tokens: int) -> Decimal:
    """genai-prices' price of (input, output, cached, cache write) tokens."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    usage = Usage(**dict(zip(names, tokens, strict=True)))
    return calc_price(usage, model, provider_id="openai", price_context=context).total_price


def price(model: str, *tokens: int, book: PriceBook = BOOK) -> "float | None":
    """Our price of (input, output, cached, cache write) tokens."""
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
    return book.price("openai", model, **dict(zip(names, tokens, strict=True)))


def test_the_data_hold_both_kinds_of_models() -> None:
    """The tests below have something to try."""
    assert len(WITH) > 10
    assert "gpt-5.3" in WITHOUT


@pytest.mark.parametrize("model", WITHOUT)
def test_a_model_without_a_batch_price_has_no_price(model: str) -> None:
    """genai-prices would give the standard price here; we say unknown."""
    assert price(model, 1000, 1000, 0, 0) is None


@pytest.mark.parametrize("model", WITH)
def test_a_batch_price_is_below_the_standard_price(model: str) -> None:
    """Every known batch price is cheaper than the standard price of the same tokens."""
    for tokens in ((1000, 500, 0, 0), (1000, 500, 400, 0), (500_000, 1000, 0, 0)):
        found = price(model, *tokens)
        if found is None:
            continue
        standard = float(published(model, None, *tokens))
        assert found == pytest.approx(standard) if model in SAME_IN_BOTH_LANES else found < standard


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["gpt-5-mini", "gpt-5.4", "gpt-5.5-pro", "gpt-6-luna", "gpt-4o", "o3"]),
    st.integers(0, 1_500_000),
    st.integers(0, 100_000),
    st.floats(0, 1),
)
def test_the_fast_price_is_the_published_one(model: str, given_tokens: int, made: int, share: float) -> None:
    """Prices kept per token give what genai-prices gives, also across long-context tiers."""
    tokens = (given_tokens, made, int(given_tokens * share), 0)
    assert price(model, *tokens) == pytest.approx(float(published(model, {"processing": "batch"}, *tokens)), rel=1e-9)


def test_a_million_tokens_of_a_known_model() -> None:
    """gpt-5-mini: half of 0.25 and 2 USD a million."""
    assert price("gpt-5-mini", 1_000_000, 0, 0, 0) == pytest.approx(0.125)
    assert price("gpt-5-mini", 0, 1_000_000, 0, 0) == pytest.approx(1.0)
    assert price("gpt-5-mini-2025-08-07", 1_000_000, 1_000_000, 0, 0) == pytest.approx(1.125)


@pytest.mark.parametrize("model", ["gpt-5.3", "gpt-99", "", "llama"])
def test_unknown_models_have_no_price(model: str) -> None:
    """Unknown stays unknown: None, not 0."""
    assert price(model, 10, 10, 0, 0) is None


def test_an_unknown_provider_has_no_price() -> None:
    """A provider genai-prices does not list gives None."""
    assert BOOK.price("nobody", "gpt-5-mini", input_tokens=1, output_tokens=1) is None


@pytest.mark.parametrize(("given_tokens", "made"), [(None, 1), (1, None), (None, None)])
def test_unknown_tokens_have_no_price(given_tokens: "int | None", made: "int | None") -> None:
    """Without both counts there is no price, whatever the model."""
    own = PriceBook({"openai:m": Price(1, 1)})
    assert BOOK.price("openai", "gpt-5-mini", input_tokens=given_tokens, output_tokens=made) is None
    assert own.price("openai", "m", input_tokens=given_tokens, output_tokens=made) is None


def test_no_tokens_cost_nothing() -> None:
    """A known zero is 0, not unknown."""
    assert price("gpt-5-mini", 0, 0, 0, 0) == 0.0


def test_the_users_price_comes_first() -> None:
    """A price of the user's is taken as the batch rate, for known and unknown models, and for its provider only."""
    book = PriceBook({"openai:gpt-5-mini": Price(2, 4, cached=1), "openai:gpt-5.3": Price(3, 5)})
    assert price("gpt-5-mini", 1_000_000, 1_000_000, 500_000, 0, book=book) == pytest.approx(1 + 0.5 + 4)
    assert price("gpt-5.3", 1_000_000, 1_000_000, 500_000, 0, book=book) == pytest.approx(8)
    assert book.price("other", "gpt-5.3", input_tokens=1, output_tokens=1) is None


def test_the_source_names_its_version() -> None:
    """Metadata can say where a price came from."""
    assert BOOK.source.startswith("genai-prices ")
