"""What a user passes through to a provider, checked before it is encoded."""

import json
from collections.abc import Mapping
from typing import Any

from dagster_llmbatch.errors import ConfigurationError


def check_json(params: "Mapping[str, Any]") -> None:
    """Raise ConfigurationError for a parameter that JSON cannot hold."""
    for name, value in params.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"params[{name!r}] is no JSON value: {error}") from None
