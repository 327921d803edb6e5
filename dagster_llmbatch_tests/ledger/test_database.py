"""The ledger's database: its schema, and what a user sees of its failures."""

import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from dagster_llmbatch.errors import ConfigurationError, LedgerError, LedgerNotDurableError, LedgerVersionError
from dagster_llmbatch.ledger import database
from dagster_llmbatch.ledger.database import ADVISORY_LOCK, HEAD, VERSION_TABLE, database_url
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.ledger.tables import metadata
from dagster_llmbatch_tests.ledger.steps import KEY, entry


def test_the_migrations_make_the_tables(ledger: Ledger, ledger_url: str) -> None:
    """The scripts end where tables.py and HEAD are."""
    entry(ledger)
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]
    engine = sa.create_engine(database_url(ledger_url))
    with engine.connect() as connection:
        ours = {
            "version_table": VERSION_TABLE,
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or "llmbatch" in name,
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=ours), metadata) == []
        assert connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == HEAD
    engine.dispose()


def test_a_newer_ledger_is_refused(ledger: Ledger, ledger_url: str) -> None:
    """A ledger that a newer version wrote is left alone, with what to do."""
    entry(ledger)
    engine = sa.create_engine(database_url(ledger_url))
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    newer = Ledger(ledger_url)
    with pytest.raises(LedgerVersionError, match="9999"):
        newer.latest_entry(KEY)
    newer.close()
    with engine.connect() as connection:
        assert connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == "9999"
    engine.dispose()


def test_a_finished_schema_takes_no_lock(ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first read of a ledger at HEAD does not wait for who writes or migrates."""
    known = entry(ledger)
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.1)
    sqlite = ledger.database.is_sqlite
    engine = sa.create_engine(database_url(ledger_url), poolclass=sa.NullPool)
    impatient = ledger_url if sqlite else f"{ledger_url}&options=-clock_timeout%3D100"
    with engine.connect() as connection:
        if sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            connection.execute(sa.text("LOCK TABLE llmbatch_entry IN SHARE ROW EXCLUSIVE MODE"))
        fresh = Ledger(impatient)
        assert fresh.latest_entry(KEY) == known
        fresh.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://u:hush@127.0.0.1:1/x",
        "postgresql+psycopg2://127.0.0.1:1/x?user=u&password=hush",
    ],
)
def test_an_unreachable_database_is_named_without_its_password(url: str) -> None:
    """Neither the message nor the traceback holds the password; the address and the reason are there."""
    with pytest.raises(LedgerError, match=r"127\.0\.0\.1.*refused") as caught:
        Ledger(url).latest_entry(KEY)
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.retryable


def test_a_wrong_password_is_not_shown(postgres_url: str) -> None:
    """A password in the URL of a database that exists and refuses is hidden as well."""
    url = sa.make_url(postgres_url).set(username="nobody", password="hush")
    with pytest.raises(LedgerError, match="nobody") as caught:
        Ledger(url.render_as_string(hide_password=False)).set_note("a", "b")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_what_is_no_url_is_refused_without_showing_it() -> None:
    """A mistyped URL may hold a password: it is not repeated."""
    mistyped = "postgresql//u:hush@h/x"
    with pytest.raises(ConfigurationError, match="not a database URL") as caught:
        Ledger(mistyped)
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_a_locked_sqlite_is_a_ledger_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the middle names the file and the reason, and no value that was to be written."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.05)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    ledger.set_note("a", "1")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    value = "whisper"
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"ledger\.db.*database is locked") as caught:
            ledger.set_note("a", value)
    assert caught.value.retryable
    assert "whisper" not in "".join(traceback.format_exception(caught.value))
    assert ledger.note("a") == "1"


def test_a_lost_connection_is_a_ledger_error(postgres_url: str) -> None:
    """PostgreSQL going away in the middle of a transaction is ours to say; the next call connects again."""
    ledger = Ledger(postgres_url)
    ledger.set_note("a", "1")
    engine = sa.create_engine(postgres_url)
    kill = sa.text("SELECT pg_terminate_backend(:pid, 10000)")
    write = sa.text("UPDATE llmbatch_note SET value = :value")
    with pytest.raises(LedgerError) as caught, ledger.database.write() as connection:
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar()
        with engine.connect() as other:
            assert other.execute(kill, {"pid": pid}).scalar()
        connection.execute(write, {"value": "whisper"})
    assert caught.value.retryable
    assert "whisper" not in "".join(traceback.format_exception(caught.value))
    assert ledger.note("a") == "1"
    ledger.close()
    engine.dispose()


def test_urls() -> None:
    """Bare PostgreSQL URLs get the driver that is installed; memory is refused."""
    assert database_url("postgresql://h/x").drivername == "postgresql+psycopg2"
    assert database_url("postgres://h/x").drivername == "postgresql+psycopg2"
    with pytest.raises(LedgerNotDurableError):
        database_url("sqlite://")
