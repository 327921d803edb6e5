"""The ledger's schema, version by version (Alembic), in a version table of our own."""
