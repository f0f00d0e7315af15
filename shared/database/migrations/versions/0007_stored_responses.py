"""API keys whose responses are stored."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("stores_responses", sa.Boolean, server_default=sa.false(), nullable=False))
