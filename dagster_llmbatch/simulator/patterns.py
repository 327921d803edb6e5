"""Texts that look like a regular expression."""

import importlib
import random
import sys
from typing import Any

# Python's own reading of a pattern; it has no public name.
_reader = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_MOST_REPEATS = 3
_PRINTABLE = [chr(code) for code in range(32, 127)]
_CATEGORIES = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
    "CATEGORY_SPACE": " ",
}


def text_like(pattern: str, seed: random.Random) -> str:
    """A text made along the pattern. Look-around is not seen: the caller has to try the text."""
    return _sequence(_reader.parse(pattern), seed, {})


def _sequence(parts: Any, seed: random.Random, groups: "dict[int, str]") -> str:
    return "".join(_part(str(code), given, seed, groups) for code, given in parts)


def _part(code: str, given: Any, seed: random.Random, groups: "dict[int, str]") -> str:
    if code == "LITERAL":
        return chr(given)
    if code == "NOT_LITERAL":
        return seed.choice([one for one in _PRINTABLE if one != chr(given)])
    if code == "ANY":
        return seed.choice(_PRINTABLE)
    if code == "IN":
        return seed.choice(_members(given))
    if code == "BRANCH":
        return _sequence(seed.choice(given[1]), seed, groups)
    if code == "SUBPATTERN":
        groups[given[0]] = _sequence(given[-1], seed, groups)
        return groups[given[0]]
    if code == "GROUPREF":
        return groups.get(given, "")
    if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = given
        return "".join(
            _sequence(inner, seed, groups) for _ in range(seed.randint(least, min(most, least + _MOST_REPEATS)))
        )
    return ""  # anchors and look-around have no text of their own


def _members(given: Any) -> "list[str]":
    """The characters of a set."""
    found: set[str] = set()
    for code, value in given:
        if str(code) == "LITERAL":
            found.add(chr(value))
        elif str(code) == "RANGE":
            found.update(chr(one) for one in range(value[0], value[1] + 1))
        elif str(code) == "CATEGORY":
            name = str(value)
            kind = set(_CATEGORIES[name.replace("_NOT_", "_")])
            found |= set(_PRINTABLE) - kind if "_NOT_" in name else kind
    negated = any(str(code) == "NEGATE" for code, _ in given)
    return sorted(set(_PRINTABLE) - found if negated else found)
