"""Operators' notes: comments, deploys, acknowledgements and silences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "operator_note",
        sa.Column("note_id", sa.String(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("node", "kind", "author", "text", "subject")),
        sa.Column("finding", sa.String(), nullable=True),
        sa.Column("realtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("until_realtime_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("note_id", name="pk_operator_note"),
    )
    op.create_index("ix_operator_note_realtime_ns", "operator_note", ["realtime_ns"])
