"""Strings and numbers that fit a JSON Schema."""

import functools
import math
import random
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dagster_llmbatch.simulator.patterns import text_like

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper", "kelp", "lumen")
WIDTH = 100
"""How far a number goes from the one bound it has."""
TRIES = 50
MOST_DECIMALS = 12

_FORMATS = {
    "date": lambda seed: f"20{seed.randint(10, 29)}-{seed.randint(1, 12):02}-{seed.randint(1, 28):02}",
    "time": lambda seed: f"{seed.randint(0, 23):02}:{seed.randint(0, 59):02}:00Z",
    "date-time": lambda seed: f"{_FORMATS['date'](seed)}T{_FORMATS['time'](seed)}",
    "email": lambda seed: f"{seed.choice(WORDS)}@example.com",
    "hostname": lambda seed: f"{seed.choice(WORDS)}.example.com",
    "uri": lambda seed: f"https://{seed.choice(WORDS)}.example.com/{seed.randint(1, 999)}",
    "ipv4": lambda seed: f"192.0.2.{seed.randint(1, 254)}",
    "ipv6": lambda seed: f"2001:db8::{seed.randint(1, 9999):x}",
    "duration": lambda seed: f"PT{seed.randint(1, 59)}M",
    "uuid": lambda seed: _uuid(f"{seed.getrandbits(128):032x}"),
}


class NoSuchText(ValueError):
    """No text was found for a pattern."""


def _uuid(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def string(node: "Mapping[str, Any]", seed: random.Random) -> str:
    """A text of the node's format, pattern and length."""
    made = _FORMATS.get(node.get("format", ""))
    if made is not None:
        return made(seed)
    least, most = node.get("minLength", 0), node.get("maxLength", math.inf)
    if "pattern" in node:
        return _patterned(node["pattern"], least, most, seed)
    text = " ".join(seed.choice(WORDS) for _ in range(3))
    while len(text) < least:
        text += " " + seed.choice(WORDS)
    return text[: int(most)] if len(text) > most else text


def _patterned(pattern: str, least: int, most: float, seed: random.Random) -> str:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise NoSuchText(f"not a pattern: {pattern!r}") from error
    # The pattern of a decimal number is by far the commonest, and the longest to hit by chance.
    made = f"{seed.randint(0, 999)}.{seed.randint(0, 99):02}"
    for _ in range(TRIES):
        if wanted.search(made) and least <= len(made) <= most:
            return made
        made = text_like(pattern, seed)
    raise NoSuchText(f"the simulator found no text for the pattern {pattern!r}")


def integer(node: "Mapping[str, Any]", seed: random.Random) -> int:
    """A whole number within the node's bounds."""
    # The whole multiples of p/q are the multiples of p.
    step = Fraction(str(node.get("multipleOf", 1))).numerator
    first, last = _grid(*_bounds(node), Fraction(step))
    return step * seed.randint(first, max(first, last))


def number(node: "Mapping[str, Any]", seed: random.Random) -> float:
    """A number within the node's bounds, with three decimals where that many are enough."""
    bounds = _bounds(node)
    if "multipleOf" in node:
        step = Fraction(str(node["multipleOf"]))
        first, last = _grid(*bounds, step)
        return float(step * seed.randint(first, max(first, last)))
    for decimals in range(3, MOST_DECIMALS + 1):
        step = Fraction(1, 10**decimals)
        first, last = _grid(*bounds, step)
        if first <= last:
            return float(step * seed.randint(first, last))
    return float(node.get("minimum", node.get("maximum", 0.0)))


def _bounds(node: "Mapping[str, Any]") -> "tuple[Any, Any, Any, Any]":
    return node.get("minimum"), node.get("exclusiveMinimum"), node.get("maximum"), node.get("exclusiveMaximum")


@functools.lru_cache(maxsize=1000)
def _grid(low: Any, above: Any, high: Any, below: Any, step: Fraction) -> "tuple[int, int]":
    """First and last multiple of `step` within bounds."""
    lows = [] if low is None else [math.ceil(Fraction(str(low)) / step)]
    lows += [] if above is None else [math.floor(Fraction(str(above)) / step) + 1]
    highs = [] if high is None else [math.floor(Fraction(str(high)) / step)]
    highs += [] if below is None else [math.ceil(Fraction(str(below)) / step) - 1]
    width = math.ceil(WIDTH / step)
    if lows:
        return max(lows), min(highs, default=max(lows) + width)
    return (min(highs) - width, min(highs)) if highs else (0, width)
