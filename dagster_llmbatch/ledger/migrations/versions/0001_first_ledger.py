"""The first ledger: entries, batches, runs, waiting runs, notes.

Written out, not taken from tables.py: a migration must go on meaning what it meant on its day.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "llmbatch_entry",
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
    op.create_table(
        "llmbatch_batch",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), nullable=False),
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
    )
    op.create_index("ix_llmbatch_batch_entry_id", "llmbatch_batch", ["entry_id"])
    op.create_index("llmbatch_batch_due", "llmbatch_batch", ["phase", "next_poll_at"])
    op.create_table(
        "llmbatch_run",
        sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), primary_key=True),
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("noted_at", sa.Double, nullable=False),
    )
    op.create_index("ix_llmbatch_run_run_id", "llmbatch_run", ["run_id"])
    op.create_table(
        "llmbatch_waiting",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("entry_id", sa.String(36), sa.ForeignKey("llmbatch_entry.id"), primary_key=True),
        sa.Column("continuation_id", sa.String(64)),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("woken_at", sa.Double),
    )
    op.create_index("ix_llmbatch_waiting_continuation_id", "llmbatch_waiting", ["continuation_id"])
    op.create_table(
        "llmbatch_note",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
