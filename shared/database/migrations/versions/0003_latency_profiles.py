"""Latency profiles by model and device."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "latency_profiles",
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("tp", sa.Integer, nullable=False),
        sa.Column("step_kind", sa.Text, nullable=False),
        sa.Column("batch_tokens", sa.Integer, nullable=False),
        sa.Column("latency_s", sa.Float, nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model", "device", "tp", "step_kind", "batch_tokens", name="pk_latency_profiles"),
    )
