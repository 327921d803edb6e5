"""When a create call was made, so that a provider's lists get the time they need before a batch counts as not there."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("llmbatch_batch", sa.Column("create_at", sa.Double))
    # an upload recorded by the first version may have been followed by a create call: the intent is the earliest it can be
    op.execute("UPDATE llmbatch_batch SET create_at = intent_at WHERE phase = 'uploaded'")
