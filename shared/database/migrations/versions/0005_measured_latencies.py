"""All rows of a latency profile: also those of mixed iterations and of several contexts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "measured_latencies",
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("tp", sa.Integer, nullable=False),
        sa.Column("step_kind", sa.Text, nullable=False),
        sa.Column("batch_tokens", sa.Integer, nullable=False),
        sa.Column("context_tokens", sa.Integer, nullable=False),
        sa.Column("recompute_tokens", sa.Integer, nullable=False),
        sa.Column("latency_s", sa.Float, nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "model",
            "device",
            "tp",
            "step_kind",
            "batch_tokens",
            "context_tokens",
            "recompute_tokens",
            name="pk_measured_latencies",
        ),
    )
