"""Alembic's entry point. The connection is handed in: there is no alembic.ini."""

from alembic import context

from dagster_llmbatch.ledger.database import VERSION_TABLE
from dagster_llmbatch.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
