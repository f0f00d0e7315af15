"""Requests from their arrival on, with their class and thresholds; the decisions of the reconfigurator."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0002"
down_revision = "0001"

ADDED = (
    ("request_class", sa.Text),
    ("unmasked_tokens", sa.Integer),
    ("thresholds", ARRAY(sa.Float)),
    ("threshold_steps", ARRAY(sa.Integer)),
    ("threshold_tokens", ARRAY(sa.Integer)),
)


def upgrade() -> None:
    for name, kind in ADDED:
        op.add_column("requests", sa.Column(name, kind))
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.Text, nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("mean_threshold", sa.Float),
        sa.Column("slack_s", sa.Float),
        sa.Column("solve_s", sa.Float),
        sa.Column("inputs", JSONB, nullable=False),
        sa.Column("target", JSONB, nullable=False),
        sa.Column("events", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", name="pk_plans"),
    )
    op.create_index("ix_plans_decided_at", "plans", ["decided_at"])
