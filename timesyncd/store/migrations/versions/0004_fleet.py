"""Roll-ups, events, the outbox, and how far a hub has each node's history."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("clock_sample", sa.Column("domain", sa.BigInteger()))
    rollup()
    event()
    keyed("outbox", [*numbers("sequence")], *numbers("realtime_ns"), sa.Column("row", sa.JSON()))
    keyed("outbox_counter", [*numbers("stream")], *numbers("next_sequence"))
    keyed("received", [*texts("node")], *numbers("stream", "stored_up_to", "lost"))


def rollup() -> None:
    key = [*texts("node", "source", "quantity"), *numbers("span_s", "realtime_ns")]
    values = numbers("count", "minimum", "maximum", "mean", "p50", "p99")
    keyed("rollup", key, *values, sqlite_with_rowid=False)
    op.create_index("ix_rollup_span_s_realtime_ns", "rollup", ["span_s", "realtime_ns"])


def event() -> None:
    keyed(
        "event",
        [*texts("node"), *numbers("stream", "sequence")],
        *numbers("realtime_ns"),
        *texts("event_id", "type"),
        sa.Column("subject", sa.String()),
        *texts("time"),
        sa.Column("data", sa.JSON()),
        sa.UniqueConstraint("node", "event_id", name="uq_event_node_event_id"),
    )
    op.create_index("ix_event_realtime_ns", "event", ["realtime_ns"])


def keyed(name: str, key: list[sa.Column[Any]], *others: sa.schema.SchemaItem, **options: Any) -> None:
    """A table whose rows are told apart by `key`."""
    primary = sa.PrimaryKeyConstraint(*(column.name for column in key), name=f"pk_{name}")
    op.create_table(name, *key, *others, primary, **options)


def numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False, autoincrement=False) for name in names]


def texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String(), nullable=False) for name in names]
