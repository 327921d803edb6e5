"""What errors and docstrings advise can be done."""

import ast
import re
from pathlib import Path

import pytest

import dagster_llmbatch

PACKAGE = Path(dagster_llmbatch.__file__).parent
REFUSED = re.compile(r"policy=\"realtime\"|on_expiry|\b(ask|asked|rows|use)\b[^.]* in realtime|use realtime")
"""The realtime lane of an asset and the option `on_expiry` do not exist: `LLMBatchResource.complete` does."""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_text_advises_what_is_refused(path: Path) -> None:
    """No string of the package names an option that a user cannot set."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [text for text in strings if REFUSED.search(" ".join(text.split()))] == []
