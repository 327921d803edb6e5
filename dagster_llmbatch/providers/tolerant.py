"""JSON of an answer that was paid for, read as far as it can be."""

import json
from typing import Any


def loads(text: "bytes | str") -> Any:
    """Any JSON value, as `plain` makes it.

    Raises ValueError for what is no JSON.
    """
    return plain(json.loads(text))


def plain(value: Any) -> Any:
    """A JSON value with whole numbers as integers, and text without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain(v) for v in value]
    return {plain(k): plain(v) for k, v in value.items()} if isinstance(value, dict) else value
