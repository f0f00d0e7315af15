"""API keys of operators."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("operator", sa.Boolean, server_default=sa.false(), nullable=False))
