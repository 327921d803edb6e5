"""The ledger's database: URL, engine, transactions, and a schema that concurrent first users may all ask for."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError

from dagster_llmbatch.errors import ConfigurationError, LedgerError, LedgerNotDurableError, LedgerVersionError

VERSION_TABLE = "llmbatch_migration"
HEAD = "0003"
"""The newest migration. A test compares it with the scripts."""
BUSY_TIMEOUT = 60.0
"""Seconds a SQLite writer waits for another."""
ADVISORY_LOCK = 0x6C6C6D62
"""PostgreSQL advisory lock around migrations: "llmb"."""


def database_url(url: str) -> sa.URL:
    """The SQLAlchemy URL for a user's one.

    A bare `postgresql://` means psycopg 3 to SQLAlchemy 2.1 and psycopg2 to SQLAlchemy 2.0; it is given the driver
    that is installed. Raises LedgerNotDurableError for a database in memory, ConfigurationError for what is no URL.
    """
    try:
        parsed = sa.make_url(url)
    except ArgumentError:  # its text may hold the URL, and that a password
        raise ConfigurationError(
            "ledger_url is not a database URL. Give one such as sqlite:////var/lib/llmbatch/ledger.db or "
            "postgresql://user:password@host/database."
        ) from None
    if parsed.drivername in ("postgres", "postgresql"):
        driver = next((name for name in ("psycopg2", "psycopg") if importlib.util.find_spec(name)), "psycopg2")
        return parsed.set(drivername=f"postgresql+{driver}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LedgerNotDurableError(
            "ledger_url names a SQLite database in memory: it is gone when the run ends, and a batch that is out would be "
            "bought again. Give a file, such as sqlite:////var/lib/llmbatch/ledger.db, or a PostgreSQL URL."
        )
    return parsed


class Database:
    """One small pool of connections and its transactions."""

    def __init__(self, url: str) -> None:
        self.url = database_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._ready = False
        if self.is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(
                self.url, connect_args={"timeout": BUSY_TIMEOUT}, poolclass=sa.NullPool, hide_parameters=True
            )
            event.listen(self._engine, "connect", _prepare_sqlite)
        else:
            self._engine = sa.create_engine(
                self.url,
                isolation_level="READ COMMITTED",  # what ON CONFLICT and row locks here count on
                pool_size=1,
                max_overflow=1,
                pool_pre_ping=True,
                hide_parameters=True,
            )

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def insert(self, table: sa.Table) -> Any:
        """An INSERT of the database's own dialect, which knows ON CONFLICT."""
        return sqlite_insert(table) if self.is_sqlite else postgresql_insert(table)

    @contextmanager
    def write(self) -> "Iterator[sa.Connection]":
        """A short transaction that writes. SQLite takes the write lock at once, so that nobody deadlocks later.

        Raises LedgerError where the database cannot be reached or fails.
        """
        with self._failures():
            self._ensure_schema()
            with self._begin() as connection:
                yield connection

    @contextmanager
    def read(self) -> "Iterator[sa.Connection]":
        """A connection to read from. Raises LedgerError where the database cannot be reached or fails."""
        with self._failures():
            self._ensure_schema()
            with self._engine.connect() as connection:
                yield connection

    @contextmanager
    def _failures(self) -> "Iterator[None]":
        """The database's failures as ours: no password, no statement, no parameters, and worth another try."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            reason = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
            for secret in self._secrets():
                reason = reason.replace(secret, "***")
            failed = LedgerError(
                f"The ledger at {self._shown()} failed: {reason}. What it recorded stays. Run again when the database answers."
            )
            failed.retryable = True
            raise failed from None

    def _secrets(self) -> "list[str]":
        asked = [self.url.password, *(value for name, value in self.url.query.items() if "password" in name)]
        return [str(secret) for secret in asked if secret]

    def _shown(self) -> str:
        return self.url.set(query={}).render_as_string(hide_password=True)  # a query may hold a password too

    @contextmanager
    def _begin(self) -> "Iterator[sa.Connection]":
        with self._engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            if self.is_sqlite:
                connection.exec_driver_sql("COMMIT")
            connection.commit()

    def _ensure_schema(self) -> None:
        if self._ready:
            return
        with self._engine.connect() as connection:  # most processes find it done and take no lock
            self._ready = self._version(connection) == HEAD
        if self._ready:
            return
        with self._begin() as connection:
            if not self.is_sqlite:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
            self._migrate(connection)
        self._ready = True

    @staticmethod
    def _version(connection: sa.Connection) -> "str | None":
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            return None
        return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()

    def _migrate(self, connection: sa.Connection) -> None:
        current = self._version(connection)
        if current == HEAD:
            return
        if current is not None and current > HEAD:
            raise LedgerVersionError(
                f"The ledger at {self._shown()} is at version {current}; this dagster_llmbatch knows {HEAD}. Update it here "
                "too."
            )
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _prepare_sqlite(connection: object, _record: object) -> None:
    # transactions are begun by us (BEGIN IMMEDIATE), not by the driver at the first write
    connection.isolation_level = None  # pyright: ignore[reportAttributeAccessIssue]
    cursor = connection.cursor()  # pyright: ignore[reportAttributeAccessIssue]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
