"""The table of finished requests."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("arrived_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("slo_s", sa.Float),
        sa.Column("latency_s", sa.Float),
        sa.Column("slo_met", sa.Boolean),
        sa.Column("steps", sa.Integer),
        sa.Column("recompute_steps", sa.Integer),
        sa.Column("mean_threshold", sa.Float),
        sa.Column("min_threshold", sa.Float),
        sa.Column("instances", ARRAY(sa.Text), nullable=False),
        sa.Column("migrations", sa.Integer),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_arrived_at", "requests", ["arrived_at"])
