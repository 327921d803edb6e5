"""The ledger's tables, the same on SQLite and PostgreSQL. Small: one row a batch, never one a table row."""

import sqlalchemy as sa

metadata = sa.MetaData()

entries = sa.Table(
    "llmbatch_entry",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("asset_key", sa.Text, nullable=False),
    sa.Column("partition_key", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("plan_digest", sa.String(64), nullable=False),
    sa.Column("plan_segment", sa.Text, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("predecessor_id", sa.String(36)),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until", sa.Double),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("published_at", sa.Double),
    sa.Column("results_segment", sa.Text),
    sa.Column("summary", sa.JSON),
    sa.Column("failure", sa.Text),
    sa.UniqueConstraint("namespace", "asset_key", "partition_key", "generation", name="llmbatch_entry_generation"),
)

batches = sa.Table(
    "llmbatch_batch",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), nullable=False, index=True),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("chunk", sa.Integer, nullable=False),
    sa.Column("external_key", sa.String(128), nullable=False, unique=True),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("request_count", sa.BigInteger, nullable=False),
    sa.Column("request_bytes", sa.BigInteger, nullable=False),
    sa.Column("requests_segment", sa.Text, nullable=False),
    sa.Column("intent_at", sa.Double, nullable=False),
    sa.Column("refs", sa.JSON, nullable=False),
    sa.Column("batch_id", sa.Text),
    sa.Column("handle", sa.JSON),
    sa.Column("outcomes_segment", sa.Text),
    sa.Column("provider_state", sa.Text),
    sa.Column("total", sa.BigInteger),
    sa.Column("completed", sa.BigInteger),
    sa.Column("failed", sa.BigInteger),
    sa.Column("status", sa.JSON),
    sa.Column("next_poll_at", sa.Double),
    sa.Column("poll_interval", sa.Double),
    sa.Column("failed_checks", sa.Integer, nullable=False),
    sa.Column("last_error", sa.Text),
    sa.Column("submitted_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("collected_at", sa.Double),
    sa.Column("deadline", sa.Double),
    sa.Column("create_at", sa.Double),
    sa.Column("cancel_reason", sa.String(16)),
    sa.Column("cancel_at", sa.Double),
)
sa.Index("llmbatch_batch_due", batches.c.phase, batches.c.next_poll_at)

runs = sa.Table(
    "llmbatch_run",
    metadata,
    sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), primary_key=True),
    sa.Column("run_id", sa.String(64), primary_key=True, index=True),
    sa.Column("noted_at", sa.Double, nullable=False),
)
"""Which runs work or worked on an entry."""

waiting = sa.Table(
    "llmbatch_waiting",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), primary_key=True),
    sa.Column("continuation_id", sa.String(64), index=True),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("woken_at", sa.Double),
    sa.Column("not_before", sa.Double),
    sa.Column("reason", sa.Text),
)
"""Runs that ended and left a partition to be continued."""

notes = sa.Table(
    "llmbatch_note",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""Small facts by name, such as the progress that was reported last."""
