"""What an outcome cost, in USD. Unknown stays unknown: a standard price never passes for a batch price."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import Any

PER_MILLION = 1_000_000
PROBES = (1_000, 2_000_000)
"""Token counts at which a price must be proportional to be taken for linear; long-context tiers begin between them."""


@dataclass(frozen=True)
class Price:
    """A price of the user's, in USD per million tokens, at the batch rate."""

    input: float
    output: float
    cached: "float | None" = None
    """None: cached input tokens cost what input tokens cost."""


@dataclass(frozen=True)
class _Linear:
    """A price without tiers, in USD per token."""

    input: float
    cached: float
    cache_write: float
    output: float


class PriceBook:
    """Batch prices: the user's own first, then genai-prices' batch prices."""

    source = f"genai-prices {version('genai-prices')}"
    """Where published prices come from, and as of which version."""

    def __init__(self, overrides: "Mapping[str, Price] | None" = None) -> None:
        self._overrides = dict(overrides or {})

    def price(
        self,
        provider: str,
        model: str,
        input_tokens: "int | None",
        output_tokens: "int | None",
        cached_tokens: "int | None" = None,
        cache_write_tokens: "int | None" = None,
    ) -> "float | None":
        """USD for one outcome; None where the tokens or the model's batch price are unknown.

        `input_tokens` includes cached and cache-write tokens, `output_tokens` includes reasoning tokens.
        """
        if input_tokens is None or output_tokens is None:
            return None
        cached, written = cached_tokens or 0, cache_write_tokens or 0
        own = self._overrides.get(f"{provider}:{model}")
        if own is not None:
            cached_price = own.input if own.cached is None else own.cached
            plain = input_tokens - cached
            return (plain * own.input + cached * cached_price + output_tokens * own.output) / PER_MILLION
        linear = _linear(provider, model)
        if isinstance(linear, _Linear):
            plain = input_tokens - cached - written
            return (
                plain * linear.input
                + cached * linear.cached
                + written * linear.cache_write
                + output_tokens * linear.output
            )
        if linear is None:
            return None
        found = _published(provider, model, input_tokens, output_tokens, cached, written)
        return None if found is None else float(found)


TIERED = "tiered"


@lru_cache(maxsize=256)
def _linear(provider: str, model: str) -> "_Linear | str | None":
    """The model's batch price per token; TIERED where it depends on the size of the request; None where unknown."""
    small, large = (_probe(provider, model, tokens) for tokens in PROBES)
    if small is None or large is None:
        return None
    rates = [float(price / PROBES[0]) for price in small]
    if any(abs(float(b / PROBES[1]) - rate) > 1e-15 for b, rate in zip(large, rates, strict=True)):
        return TIERED
    return _Linear(*rates)


def _probe(provider: str, model: str, tokens: int) -> "tuple[Decimal, Decimal, Decimal, Decimal] | None":
    found = (
        _published(provider, model, tokens, 0, 0, 0),
        _published(provider, model, tokens, 0, tokens, 0),
        _published(provider, model, tokens, 0, 0, tokens),
        _published(provider, model, 0, tokens, 0, 0),
    )
    return None if any(price is None for price in found) else found  # pyright: ignore[reportReturnType]


def _published(
    provider: str, model: str, input_tokens: int, output_tokens: int, cached: int, written: int
) -> "Decimal | None":
    """genai-prices' batch price of one request.

    Without a batch price of the model it silently returns the standard price, so the model is asked for its variants.
    """
    from genai_prices import Usage, calc_price

    usage = Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    context: dict[str, Any] = {"processing": "batch"}
    try:
        found = calc_price(usage, model, provider_id=provider, price_context=context)
    except LookupError:
        return None
    variants = getattr(found.model, "price_variants", None) or ()
    if not any(dict(getattr(v, "when", None) or {}).get("processing") == "batch" for v in variants):
        return None
    return found.total_price
