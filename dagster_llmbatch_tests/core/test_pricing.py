"""Prices of both lanes: the published or the user's own, never one lane's in place of the other's."""

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import DataSnapshot, get_snapshot, set_custom_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, PriceVariant, Provider
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core import pricing
from dagster_llmbatch.core.pricing import LISTS, Price, PriceBook
from dagster_llmbatch.providers.contract import Mode

BOOK = PriceBook()
ON = date(2026, 12, 1)
"""The figures below hold on this day."""
AT = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)
M = 1_000_000
NATIVE = ("openai", "anthropic", "gemini")
MODELS = {
    (name, m.id): m
    for name in NATIVE
    for p in get_snapshot().providers
    if p.id == LISTS[name]
    for m in p.models
    if m.is_match(m.id)  # entries of fine-tuned models match a prefix that is longer than their id
}
# the provider lists the same price for both lanes
SAME_IN_BOTH_LANES = {("openai", "gpt-3.5-turbo-1106")}
CLASSES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")


def batch_classes(model: Any) -> "set[str]":
    """The token classes of which the published data hold a batch price, in the simple way the data are written today."""
    variants = [v for v in model.price_variants or () if v.when == {"processing": "batch"}]
    return {name for v in variants for name in CLASSES if getattr(v.prices, name) is not None}


WITH, WITHOUT = (sorted(n for n, m in MODELS.items() if bool(batch_classes(m)) is known) for known in (True, False))
WHOLE = [
    name
    for name in WITH
    if {"output_mtok"} | {c for c in CLASSES if getattr(MODELS[name].get_prices(AT), c)} <= batch_classes(MODELS[name])
]
"""Models of which every token class has a batch price."""


def published(name: "tuple[str, str]", mode: Mode, *tokens: int) -> Decimal:
    """genai-prices' own price of (input, output, cached, cache write, of that one hour) tokens."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
    usage = Usage(**dict(zip(names, tokens, strict=True)))
    context = {"processing": "batch"} if mode == "batch" else None
    return calc_price(
        usage, name[1], provider_id=LISTS[name[0]], genai_request_timestamp=AT, price_context=context
    ).total_price


def per_million(name: str, mode: Mode = "batch", at: int = 1000, book: PriceBook = BOOK) -> "list[float | None]":
    """USD per million (input, cached, cache write, one-hour cache write, output) tokens of requests with `at` input."""
    provider, _, model = name.partition(":")

    def price(output: int, *cache: int) -> "float | None":
        return book.price(provider, model, at, output, *cache, mode=mode, on=ON)

    plain = price(0)
    given_tokens = (plain, price(0, at), price(0, 0, at), price(0, 0, at, at))
    made = price(1000)
    return [
        *(None if usd is None else round(usd / at * M, 9) for usd in given_tokens),
        None if made is None or plain is None else round((made - plain) / 1000 * M, 9),
    ]


def test_the_data_hold_both_kinds_of_models() -> None:
    """The tests below have something to try, of every provider."""
    for name in NATIVE:
        assert len([n for n in WITH if n[0] == name]) > 10
        assert len([n for n in WHOLE if n[0] == name]) > 10
        assert len([n for n in WITHOUT if n[0] == name]) > 5


TABLE = [
    # USD per million: model, at input tokens, realtime input/output, batch input/output
    ("openai:gpt-5-nano", 1000, 0.05, 0.40, 0.025, 0.20),
    ("openai:gpt-5.4-nano", 1000, 0.20, 1.25, 0.10, 0.625),
    ("openai:gpt-5.4-mini", 1000, 0.75, 4.50, 0.375, 2.25),
    ("openai:gpt-6-sol", 272_000, 2, 10, 1, 5),
    ("openai:gpt-6-sol", 272_001, 4, 15, 2, 7.5),
    ("openai:gpt-6.1-terra", 272_000, 1, 5, 0.5, 2.5),
    ("openai:gpt-6.1-terra", 272_001, 2, 7.5, 1, 3.75),
    ("anthropic:claude-haiku-4-5", 1000, 1, 5, 0.5, 2.5),
    ("anthropic:claude-haiku-4-5-20251001", 1000, 1, 5, 0.5, 2.5),
    ("anthropic:claude-haiku-5-5", 100_000, 0.1, 0.5, 0.05, 0.25),
    ("anthropic:claude-haiku-5-5", 100_001, 0.5, 2.5, 0.25, 1.25),
    ("anthropic:claude-sonnet-5-5", 1000, 2, 10, 1, 5),
    ("anthropic:claude-opus-5-5", 1000, 4, 20, 2, 10),
    ("anthropic:claude-fable-5-2", 1000, 8, 40, 4, 20),
    ("gemini:gemini-2.5-flash", 1000, 0.30, 2.50, 0.15, 1.25),
    ("gemini:models/gemini-2.5-flash", 1000, 0.30, 2.50, 0.15, 1.25),
    ("gemini:gemini-3.8-flash", 1000, 0.75, 3.75, 0.375, 1.875),
    ("gemini:gemini-3.1-pro-preview", 200_000, 2, 12, 1, 6),
    ("gemini:gemini-3.1-pro-preview", 200_001, 4, 18, 2, 9),
    ("openrouter:z-ai/glm-5.3", 1000, 1.4, 4.4, 0.45, 2),
    ("openrouter:openai/gpt-oss-20b", 1000, 0.03, 0.14, 0.024, 0.112),
]


@pytest.mark.parametrize(("name", "at", "input_", "output", "batch_input", "batch_output"), TABLE)
def test_sample_prices(
    name: str, at: int, input_: float, output: float, batch_input: float, batch_output: float
) -> None:
    """Figures of the providers' price pages, in both lanes and on both sides of a long-context step."""
    for mode, expected in (("realtime", (input_, output)), ("batch", (batch_input, batch_output))):
        found = per_million(name, mode, at)
        assert (found[0], found[-1]) == expected


CACHE_TABLE = [
    # USD per million: model, lane, input, cached, cache write, cache write for one hour, output
    ("anthropic:claude-haiku-4-5", "realtime", 1, 0.1, 1.25, 2, 5),
    ("anthropic:claude-haiku-4-5", "batch", 0.5, 0.05, 0.625, 1, 2.5),
    ("anthropic:claude-opus-5-5", "batch", 2, 0.1, 2.5, 4, 10),
    ("openai:gpt-5-mini", "batch", 0.125, 0.0125, 0.125, 0.125, 1),
    ("openai:gpt-6-sol", "batch", 1, 0.1, 1.25, 1.25, 5),
    # OpenAI's batch table holds no price of cached tokens of its older models: they cost what batched input costs
    ("openai:o3", "realtime", 2, 0.5, 2, 2, 8),
    ("openai:o3", "batch", 1, 1, 1, 1, 4),
    ("openai:gpt-4.1", "batch", 1, 1, 1, 1, 4),
    # Google's says "Same as Standard", or a price of its own
    ("gemini:gemini-2.5-flash", "batch", 0.15, 0.03, 0.15, 0.15, 1.25),
    ("gemini:gemini-3.5-flash-lite", "batch", 0.15, 0.02, 0.15, 0.15, 1.25),
    ("gemini:gemini-3.8-flash", "batch", 0.375, 0.0375, 0.375, 0.375, 1.875),
]


@pytest.mark.parametrize(("name", "mode", "usd"), [(name, mode, usd) for name, mode, *usd in CACHE_TABLE])
def test_every_token_class_has_its_own_price(name: str, mode: Mode, usd: "list[float]") -> None:
    """One published price a class, and no factor of ours on top."""
    assert per_million(name, mode) == usd


def test_a_cache_price_follows_the_long_context_step_of_its_request() -> None:
    """Gemini 2.5 Pro: cached tokens at the standard price in both tiers, input and output at half."""
    assert per_million("gemini:gemini-2.5-pro", at=200_000) == [0.625, 0.125, 0.625, 0.625, 5]
    assert per_million("gemini:gemini-2.5-pro", at=200_001) == [1.25, 0.25, 1.25, 1.25, 7.5]


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_a_batch_price_has_no_batch_price(name: "tuple[str, str]") -> None:
    """genai-prices would give the standard price here; we say unknown."""
    assert BOOK.price(*name, 1000, 1000, on=ON) is None


@pytest.mark.parametrize("name", WITH)
def test_a_batch_price_is_below_the_realtime_price(name: "tuple[str, str]") -> None:
    """Every known batch price is cheaper than the realtime price of the same tokens."""
    made = 0 if MODELS[name].get_prices(AT).output_mtok is None else 500
    for tokens in ((1000, made), (500_000, made)):
        batch, realtime = (BOOK.price(*name, *tokens, mode=mode, on=ON) for mode in ("batch", "realtime"))
        assert batch is not None
        assert realtime is not None
        assert batch == pytest.approx(realtime) if name in SAME_IN_BOTH_LANES else batch < realtime


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(WHOLE),
    st.sampled_from(["batch", "realtime"]),
    st.integers(0, 1_500_000),
    st.integers(0, 100_000),
    st.tuples(*[st.floats(0, 1)] * 3),
)
def test_the_price_is_the_published_one(
    name: "tuple[str, str]", mode: Mode, given_tokens: int, made: int, shares: "tuple[float, float, float]"
) -> None:
    """Prices kept per token give what genai-prices gives, also across long-context steps."""
    cached = int(given_tokens * shares[0])
    written = int((given_tokens - cached) * shares[1])
    tokens = (given_tokens, made, cached, written, int(written * shares[2]))
    found = BOOK.price(*name, *tokens, mode=mode, on=ON)
    assert found == pytest.approx(float(published(name, mode, *tokens)), rel=1e-9)


def test_a_row_costs_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """genai-prices is asked once a model, lane and day, for models with long-context steps too."""
    asked: list[Any] = []
    ask = genai_prices.calc_price
    monkeypatch.setattr(genai_prices, "calc_price", lambda *a, **k: asked.append(a) or ask(*a, **k))
    pricing._published.cache_clear()
    for tokens in range(1, 2_000_000, 1000):
        assert PriceBook().price("openai", "gpt-6-sol", tokens, 10, on=ON)
    assert len(asked) == 1


def test_prices_change_on_their_day() -> None:
    """Gemini 3.8 Flash doubles in 2027; the batch prices of before the data's first day are unknown, not standard."""
    days = {day: BOOK.price("gemini", "gemini-3.8-flash", M, 0, on=day) for day in (ON, date(2027, 1, 1))}
    assert list(days.values()) == pytest.approx([0.375, 0.75])
    assert BOOK.price("gemini", "gemini-3.8-flash", M, 0, on=date(2026, 10, 13)) is None
    assert BOOK.price("gemini", "gemini-3.8-flash", M, 0, on=date(2026, 10, 13), mode="realtime") == 0.75


@pytest.mark.parametrize("model", ["claude-sonnet-4-0", "claude-3-haiku"])
def test_a_model_that_another_provider_lends_has_no_batch_price(model: str) -> None:
    """genai-prices prices Google's Claude models by Anthropic's list, without its batch variants."""
    assert BOOK.price("gemini", model, 1000, 1000, on=ON) is None


@pytest.fixture
def shop() -> "Iterator[Any]":
    """A price list of one model, whose variants a test may set."""
    prices = ModelPrice(input_mtok=Decimal(2), output_mtok=Decimal(8), cache_read_mtok=Decimal(1))
    own = ModelInfo("shop", ClauseEquals("shop"), prices=prices)
    custom = DataSnapshot(providers=[Provider("openai", "Shop", "x", models=[own])], from_auto_update=True)
    set_custom_snapshot(custom)
    pricing._published.cache_clear()
    yield own
    set_custom_snapshot(None)
    pricing._published.cache_clear()


def variant(when: "dict[str, str]", **usd: int) -> PriceVariant:
    """Prices under a condition."""
    return PriceVariant(when, ModelPrice(**{f"{name}_mtok": Decimal(value) for name, value in usd.items()}))


@pytest.mark.parametrize(
    "variants",
    [
        [],
        [variant({"service_tier": "flex"}, input=1, output=4)],
        [variant({"processing": "batch", "service_tier": "priority"}, input=1, output=4)],
        [variant({"processing": "Batch"}, input=1, output=4)],
    ],
)
def test_a_variant_for_another_condition_is_not_the_batch_price(shop: Any, variants: "list[PriceVariant]") -> None:
    """No variant, one of a service tier, and one that asks for more than a batch leave the batch price unknown."""
    shop.price_variants = variants
    assert BOOK.price("openai", "shop", 1000, 1000) is None
    assert per_million("openai:shop", "realtime") == [2, 1, 2, 2, 8]


def test_each_class_without_a_batch_price_is_taken_by_its_rule(shop: Any) -> None:
    """Cached tokens: as batched input. Output: unknown, so a request that has some has no price. Input: no price at all."""
    shop.price_variants = [variant({"processing": "batch"}, input=1)]
    assert per_million("openai:shop") == [1, 1, 1, 1, None]
    pricing._published.cache_clear()
    shop.price_variants = [variant({"processing": "batch"}, output=4)]
    assert per_million("openai:shop") == [None] * 5


def test_reasoning_with_a_price_of_its_own_leaves_the_price_unknown(shop: Any) -> None:
    """Output tokens include reasoning tokens, so its price could not be applied."""
    shop.prices = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(2), output_reasoning_mtok=Decimal(3))
    assert BOOK.price("openai", "shop", 1000, 1000, mode="realtime") is None


@pytest.mark.usefixtures("shop")
def test_the_source_of_updated_prices_is_their_day() -> None:
    """A user who keeps genai-prices up to date sees as of when."""
    assert BOOK.source.endswith(f", updated {get_snapshot().timestamp.date()}")


def test_the_source_names_version_and_day() -> None:
    """Metadata can say where a price came from and how new it is, and no price of the future counts as its age."""
    name, _, day = BOOK.source.rpartition(" ")
    assert name == f"genai-prices {genai_prices.__version__}, its newest price in force since"
    assert ON <= date.fromisoformat(day) <= datetime.now(timezone.utc).date()


@pytest.mark.parametrize("mode", ["batch", "realtime"])
@pytest.mark.parametrize(
    "name",
    [
        "openai:gpt-99",
        "openai:",
        "openai:llama",
        "nobody:gpt-5-mini",
        "compatible/local:gpt-5-mini",
        "google:gemini-2.5-flash",
        "openrouter:nobody/nothing",
        "openrouter:openai/gpt-oss-20b:free",
    ],
)
def test_what_is_not_listed_has_no_price(name: str, mode: Mode) -> None:
    """Unknown stays unknown: None, not 0. A compatible server's models are not priced by their namesakes."""
    provider, _, model = name.partition(":")
    assert BOOK.price(provider, model, 10, 10, mode=mode, on=ON) is None


def test_openrouter_sells_batches_under_a_name_of_their_own() -> None:
    """The batch price is that of the ":batch" entry, asked for with or without it; without the entry it is unknown."""
    for model in ("z-ai/glm-5.3", "z-ai/glm-5.3:batch"):
        assert BOOK.price("openrouter", model, M, M, on=ON) == pytest.approx(2.45)
        assert BOOK.price("openrouter", model, M, M, mode="realtime", on=ON) == pytest.approx(5.8)
    assert BOOK.price("openrouter", "mistralai/mistral-nemo", M, M, on=ON) is None
    assert BOOK.price("openrouter", "mistralai/mistral-nemo", M, M, mode="realtime", on=ON)


@pytest.mark.parametrize(("given_tokens", "made"), [(None, 1), (1, None), (None, None)])
def test_unknown_tokens_have_no_price(given_tokens: "int | None", made: "int | None") -> None:
    """Without both counts there is no price, whatever the model."""
    own = PriceBook({"openai:m": Price(1, 1)})
    assert BOOK.price("openai", "gpt-5-mini", given_tokens, made) is None
    assert own.price("openai", "m", given_tokens, made) is None


@pytest.mark.parametrize("tokens", [(10, 1, 11), (10, 1, 6, 5), (10, 1, 0, 2, 3), (-1, 1)])
def test_counts_that_contradict_each_other_have_no_price(tokens: "tuple[int, ...]") -> None:
    """More cached or written than there was input is no usage to price."""
    assert BOOK.price("anthropic", "claude-haiku-4-5", *tokens) is None


def test_no_tokens_cost_nothing() -> None:
    """A known zero is 0, not unknown."""
    assert BOOK.price("openai", "gpt-5-mini", 0, 0, 0, 0) == 0.0


def test_one_hour_writes_without_the_total_are_the_total() -> None:
    """A provider that gives only the one-hour count has written at least those."""
    assert BOOK.price("anthropic", "claude-haiku-4-5", M, 0, 0, None, M, on=ON) == pytest.approx(1)


def test_the_users_price_comes_first() -> None:
    """A price of the user's is taken as it is, for known and unknown models, in its lane and for its provider only."""
    book = PriceBook(
        {"openai:gpt-5-mini": Price(2, 4, cached=1, cache_write=3), "openai:gpt-5.3": Price(3, 5)},
        {"compatible/local:llama": Price(6, 7)},
    )
    assert per_million("openai:gpt-5-mini", book=book) == [2, 1, 3, 3, 4]
    assert per_million("openai:gpt-5.3", at=999_999, book=book) == [3, 3, 3, 3, 5]
    assert per_million("openai:gpt-5-mini", "realtime", book=book) == [0.25, 0.025, 0.25, 0.25, 2]
    assert per_million("compatible/local:llama", "realtime", book=book) == [6, 6, 6, 6, 7]
    assert per_million("compatible/local:llama", book=book) == [None] * 5
    assert per_million("other:gpt-5.3", book=book) == [None] * 5


def test_the_users_price_is_found_by_the_ids_providers_answer_with() -> None:
    """Gemini's "models/" and OpenRouter's ":batch" are no part of a model's name."""
    book = PriceBook({"gemini:models/gemini-mine": Price(1, 1), "openrouter:a/b": Price(2, 2)})
    assert book.price("gemini", "gemini-mine", M, 0) == 1
    assert book.price("openrouter", "a/b:batch", M, 0) == 2


def test_a_fine_tuned_model_has_its_own_price() -> None:
    """The listed price of fine-tuned models, not that of the model they began as."""
    assert per_million("openai:ft:gpt-4o-mini-2024-07-18:acme::abc") == [0.15, 0.15, 0.15, 0.15, 0.6]


def test_a_free_model_of_the_users_costs_nothing() -> None:
    """A price of 0 that the user gave is a price."""
    assert PriceBook({"compatible/local:llama": Price(0, 0)}).price("compatible/local", "llama", M, M) == 0.0


@pytest.mark.parametrize(("mode", "usd"), [("realtime", 368), ("batch", 184)])
def test_forty_thousand_tasks(mode: Mode, usd: float) -> None:
    """40,000 tasks of 3,000 tokens in and 400 out, at 2 and 8 USD a million: 368 USD realtime, 184 in batches."""
    book = PriceBook({"openai:m": Price(1, 4)}, {"openai:m": Price(2, 8)})
    one = book.price("openai", "m", 3000, 400, mode=mode)
    assert one is not None
    assert one * 40_000 == pytest.approx(usd)


def test_the_users_price_holds_for_the_dated_model_that_answers() -> None:
    """Providers answer with the dated name: its published price does not come before the user's of the name asked for."""
    asked, dated = "gpt-5-mini", "gpt-5-mini-2025-08-07"
    mine = {f"openai:{asked}": Price(7, 9)}
    assert PriceBook().price("openai", asked, M, M, snapshot=dated, on=ON) == pytest.approx(1.125)
    assert PriceBook(mine).price("openai", asked, M, M, snapshot=dated, on=ON) == pytest.approx(16)
    both = PriceBook({**mine, f"openai:{dated}": Price(1, 2)})
    assert both.price("openai", asked, M, M, snapshot=dated, on=ON) == pytest.approx(3)
