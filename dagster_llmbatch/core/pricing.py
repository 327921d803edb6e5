"""What an outcome cost, in USD. Unknown stays unknown: a standard price never passes for a batch price.

A price is one request's tokens, each class at its published price in the lane it was sent in. No discount is worked out
here, so none can be applied twice. Not in it, because no outcome counts them: web searches and cache storage. Tokens of
images and sound are priced as text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_llmbatch.providers.contract import Mode

PER_MILLION = 1_000_000

Counts = NDArray[np.float64] | float | None
"""Tokens of one outcome or of many, NaN or None where they are not known."""


@dataclass(frozen=True)
class Price:
    """A price of the user's, in USD per million tokens, in the lane it is given for."""

    input: float
    output: float
    cached: "float | None" = None
    """None: cached input tokens cost what input tokens cost."""
    cache_write: "float | None" = None
    """Of any lifetime. None: tokens written to the cache cost what input tokens cost."""


class Tier(NamedTuple):
    """USD per token of requests with more than `above` input tokens."""

    above: int
    input: float
    cached: float
    cache_write: float
    cache_write_1h: float
    output: float
    """NaN: not published. Only a request without output has a price then."""


class Rates:
    """What one model costs in one lane. Long requests may cost more a token, all of their tokens.

    Args:
        tiers: in ascending order of `above`; the first holds from no tokens on.
    """

    def __init__(self, tiers: "Sequence[Tier]") -> None:
        self._above = np.array([tier.above for tier in tiers])
        self._usd = np.array([tier[1:] for tier in tiers], np.float64).T  # NaN where there is no price

    def usd(
        self,
        input_tokens: Counts,
        output_tokens: Counts,
        cached_tokens: Counts = None,
        cache_write_tokens: Counts = None,
        cache_write_1h_tokens: Counts = None,
    ) -> "NDArray[np.float64]":
        """USD of outcomes, each at one place of the arrays, in which NaN (or None) stands for a count that is not known.

        `input_tokens` includes cached and cache-write tokens, `cache_write_tokens` those of one hour, `output_tokens`
        reasoning tokens. NaN without input or output tokens, for counts that contradict each other, and for output without
        a published price.
        """
        counts = (input_tokens, output_tokens, cached_tokens, cache_write_tokens, cache_write_1h_tokens)
        given, made, cached, written, written_1h = (np.asarray(count, np.float64) for count in counts)
        cached, written_1h = np.nan_to_num(cached), np.nan_to_num(written_1h)
        written = np.where(np.isnan(written), written_1h, written)
        plain = given - cached - written
        usd = self._usd[:, np.searchsorted(self._above, given) - 1]
        total = plain * usd[0] + cached * usd[1] + (written - written_1h) * usd[2] + written_1h * usd[3]
        total = total + np.where(made == 0, 0.0, made * usd[4])
        return np.where((plain < 0) | (written_1h > written), np.nan, total)


class PriceBook:
    """Prices of both lanes: the user's own first, then those genai-prices publishes.

    Args:
        batch: prices of the user's by "provider:model", for requests sent in batches.
        realtime: the same for realtime calls. Neither lane's price is derived from the other's.
    """

    def __init__(
        self, batch: "Mapping[str, Price] | None" = None, realtime: "Mapping[str, Price] | None" = None
    ) -> None:
        self._own: dict[tuple[Mode, str, str], Rates] = {}
        own: tuple[tuple[Mode, Mapping[str, Price]], ...] = (("batch", batch or {}), ("realtime", realtime or {}))
        for mode, prices in own:
            for name, price in prices.items():
                provider, _, model = name.partition(":")
                self._own[mode, provider, _listed_id(provider, model)] = _flat(price)

    @property
    def source(self) -> str:
        """Where published prices come from, in which version, and how new they are."""
        return _source()

    def rates(
        self,
        provider: str,
        model: str,
        *,
        snapshot: "str | None" = None,
        mode: Mode = "batch",
        on: "date | None" = None,
    ) -> "Rates | None":
        """What the model costs a token; None where that is not known.

        Args:
            provider: where it was asked.
            model: as it was asked for.
            snapshot: the dated model that answered. It comes first if it is listed, but after the user's own price of
                either name.
            mode: the lane.
            on: the day it was asked, in UTC; None: today.
        """
        names = [_listed_id(provider, name) for name in (snapshot, model) if name]
        for name in names:
            if own := self._own.get((mode, provider, name)):
                return own
        day = on or datetime.now(timezone.utc).date()
        for name in names:
            if published := _published(provider, name, mode, day):
                return published
        return None

    def price(
        self,
        provider: str,
        model: str,
        *tokens: "int | None",
        snapshot: "str | None" = None,
        mode: Mode = "batch",
        on: "date | None" = None,
    ) -> "float | None":
        """USD for one outcome by its counts, in the order of `Rates.usd`; None where they or the price are unknown."""
        rates = self.rates(provider, model, snapshot=snapshot, mode=mode, on=on)
        usd = math.nan if rates is None else float(rates.usd(*tokens))
        return None if math.isnan(usd) else usd


def _flat(price: Price) -> Rates:
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.cache_write is None else price.cache_write
    tokens = (price.input, cached, written, written, price.output)
    return Rates([Tier._make((-1, *(usd / PER_MILLION for usd in tokens)))])


def _listed_id(provider: str, model: str) -> str:
    """The model id as price lists write it."""
    if provider == "gemini":
        return model.removeprefix("models/")
    return model.removesuffix(OPENROUTER_BATCH) if provider == "openrouter" else model


LISTS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google", "openrouter": "openrouter"}
"""Our provider to genai-prices' provider. Any other one, such as a compatible server, has no published prices."""
OPENROUTER_BATCH = ":batch"
"""OpenRouter sells batches as a model of its own, listed with this suffix and its own price."""
CLASSES = {
    "input": "input_mtok",
    "cached": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "output": "output_mtok",
}
"""Our token class to genai-prices' name of its price."""
BATCH = {"processing": "batch"}
SAME_AS_STANDARD = {"gemini": frozenset({"cached"})}
"""Classes that a provider's batch table lists at the standard price, by provider. Where genai-prices holds no batch price
of them, the standard one is what is published: Google's table says "Same as Standard" (read 2026-10-14). OpenAI's is
silent for its older models, so there a cached token costs what a batched input token costs."""


@lru_cache(maxsize=1024)
def _published(provider: str, model: str, mode: Mode, on: date) -> "Rates | None":
    """What genai-prices publishes of a model in one lane, in force on a day. Read once: a row costs no look-up."""
    if provider not in LISTS:
        return None
    if provider == "openrouter" and mode == "batch":
        prices = _standard(provider, model + OPENROUTER_BATCH, on)
    else:
        prices = _batch(provider, model, on) if mode == "batch" else _standard(provider, model, on)
    return _by_tier(prices) if "input" in prices else None


def _find(provider: str, model: str, on: date, context: "dict[str, str] | None") -> Any:
    """genai-prices' entry of a model with its prices on a day, or None."""
    from genai_prices import Usage, calc_price  # loads all its data: only where something is priced

    usage = Usage(input_tokens=0, output_tokens=0)
    at = datetime.combine(on, time(12), timezone.utc)
    try:
        found = calc_price(usage, model, provider_id=LISTS[provider], genai_request_timestamp=at, price_context=context)
    except LookupError:
        return None
    # a price of its own for reasoning cannot be applied: output tokens include reasoning
    return None if getattr(found.model_price, "output_reasoning_mtok", None) is not None else found


def _standard(provider: str, model: str, on: date) -> "dict[str, Any]":
    """The standard price of each token class that has one."""
    found = _find(provider, model, on, None)
    if found is None or (model.endswith(OPENROUTER_BATCH) and found.model.id != model.lower()):
        return {}
    return _classes(found.model_price)


def _batch(provider: str, model: str, on: date) -> "dict[str, Any]":
    """The batch price of each token class that has one.

    Asked for a batch price it does not have, genai-prices answers with the standard price and does not say so. So a price
    counts only where a variant holds it that applies to batches alone, on that day, and at this provider.
    """
    found = _find(provider, model, on, BATCH)
    if found is None or not any(model is found.model for model in found.provider.models):
        return {}  # an entry lent by another provider is priced without its variants
    at = datetime.combine(on, time(12), timezone.utc)
    held: set[str] = set()
    for variant in getattr(found.model, "price_variants", None) or ():
        if variant.when == BATCH and (variant.constraint is None or variant.constraint.active(at)):
            held |= _classes(variant.prices).keys()
    if held:
        held |= SAME_AS_STANDARD.get(provider, frozenset())
    return {name: price for name, price in _classes(found.model_price).items() if name in held}


def _classes(prices: Any) -> "dict[str, Any]":
    found = {name: getattr(prices, key, None) for name, key in CLASSES.items()}
    return {name: price for name, price in found.items() if price is not None}


def _by_tier(prices: "Mapping[str, Any]") -> Rates:
    """Prices in USD per million, each with tiers of its own, as tiers of all classes in USD per token."""
    plain = prices["input"]
    written = prices.get("cache_write", plain)
    # a class without a price of its own costs what the class it is part of costs
    classes = (plain, prices.get("cached", plain), written, prices.get("cache_write_1h", written))
    made = prices.get("output")
    starts = {tier.start for price in (*classes, made) for tier in getattr(price, "tiers", ())} | {-1}

    def tier(above: int) -> Tier:
        output = math.nan if made is None else _per_token(made, above)
        return Tier._make((above, *(_per_token(price, above) for price in classes), output))

    return Rates([tier(above) for above in sorted(starts)])


def _per_token(price: Any, above: int) -> float:
    """USD per token of a request with more than `above` input tokens."""
    usd = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):  # in ascending order
        if tier.start <= above:
            usd = tier.price
    return float(usd / Decimal(PER_MILLION))


def _source() -> str:
    """The package does not say when its data were made: the newest price in force is the best there is."""
    from genai_prices.data_snapshot import get_snapshot

    name, snapshot = f"genai-prices {version('genai-prices')}", get_snapshot()
    if snapshot.from_auto_update:
        return f"{name}, updated {snapshot.timestamp.date()}"
    today = datetime.now(timezone.utc).date()
    models: list[Any] = [m for p in snapshot.providers if p.id in LISTS.values() for m in p.models]
    dated = [c for m in models for c in [*(m.prices if isinstance(m.prices, list) else ()), *(m.price_variants or ())]]
    starts = [start for c in dated if (start := getattr(c.constraint, "start_date", None)) and start <= today]
    return f"{name}, its newest price in force since {max(starts)}" if starts else name
