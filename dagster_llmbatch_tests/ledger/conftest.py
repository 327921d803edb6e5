"""A fresh ledger, on a SQLite file and on a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_llmbatch.ledger.sql_ledger import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh ledger's URL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def ledger(ledger_url: str) -> "Iterator[Ledger]":
    """A fresh ledger."""
    found = Ledger(ledger_url)
    yield found
    found.close()
