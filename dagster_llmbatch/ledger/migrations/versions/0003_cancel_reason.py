"""Why and when we asked to stop a batch; until when, and why, a waiting run has nothing to do."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("llmbatch_batch", sa.Column("cancel_reason", sa.String(16)))
    op.add_column("llmbatch_batch", sa.Column("cancel_at", sa.Double))
    op.add_column("llmbatch_waiting", sa.Column("not_before", sa.Double))
    op.add_column("llmbatch_waiting", sa.Column("reason", sa.Text))
    # the second version cancelled past a deadline only, and marked that in the provider's state until the batch ended
    op.execute(
        "UPDATE llmbatch_batch SET cancel_reason = 'deadline', cancel_at = deadline "
        "WHERE provider_state = 'cancelling' AND phase = 'submitted'"
    )
