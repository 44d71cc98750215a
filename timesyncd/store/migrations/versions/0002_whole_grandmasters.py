"""Grandmasters whole: every field of a sample, time errors, alarm events; a finding's chain."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    grandmaster_sample()
    time_error()
    alarm_event()
    op.add_column("finding", sa.Column("chain", sa.JSON(), nullable=True))


def grandmaster_sample() -> None:
    """Every row of before is whole: it holds all that was read then."""
    added = [
        sa.Column("whole", sa.Boolean(), nullable=False, server_default=sa.true()),
        *columns(sa.String(), "oscillator", "leap", "gnss_position_mode", "antenna", "ntp_mode", "ntp_leap"),
        *columns(sa.BigInteger(), "priority1", "priority2", "domain", "steps_removed", "ntp_stratum", "engine_boots"),
        *columns(sa.BigInteger(), "utc_bound_ns", "utc_growth_ppb"),
        *columns(sa.String(), "utc_reason"),
        *columns(sa.Boolean(), "time_traceable", "frequency_traceable"),
        *columns(sa.JSON(), "references", "ports", "position", "time_errors", "sensors", "interfaces"),
    ]
    for column in added:
        op.add_column("grandmaster_sample", column)


def time_error() -> None:
    """Its unique key is the index that queries and retention use."""
    op.create_table(
        "time_error",
        identifier(),
        *columns(sa.String(), "source", "channel", "metric", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "value_ns", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_time_error"),
        sa.UniqueConstraint(
            "source", "realtime_ns", "channel", "metric", name="uq_time_error_source_realtime_ns_channel_metric"
        ),
    )


def alarm_event() -> None:
    op.create_table(
        "alarm_event",
        identifier(),
        *columns(sa.String(), "source", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", nullable=False),
        *columns(sa.String(), "action", nullable=False),
        *columns(sa.BigInteger(), "alarm_id"),
        *columns(sa.BigInteger(), "alarm_index", nullable=False),
        *columns(sa.String(), "severity", "text", nullable=False),
        *columns(sa.BigInteger(), "alarm_sequence"),
        *columns(sa.BigInteger(), "lost", nullable=False),
        *columns(sa.String(), "at"),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_event"),
    )
    op.create_index("ix_alarm_event_source_realtime_ns", "alarm_event", ["source", "realtime_ns"])


def identifier() -> sa.Column[Any]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)


def columns(of: Any, *names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, of, nullable=nullable) for name in names]
