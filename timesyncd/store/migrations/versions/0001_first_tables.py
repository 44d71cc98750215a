"""The first tables. A released migration never changes: what tables.py gains is a new file's."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    clock_sample()
    grandmaster_sample()
    source_event()
    gap()
    finding()
    incarnation()


def clock_sample() -> None:
    timed(
        "clock_sample",
        *columns(sa.String(), "source", "clock", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "as_of_ns", "real_minus_boot_ns", nullable=False),
        *columns(sa.BigInteger(), "offset_ns", "path_delay_ns", "granularity_ns", "ingress_time_ns", nullable=False),
        *columns(sa.BigInteger(), "frequency_ppb"),
        *columns(sa.String(), "port_state", "grandmaster_identity", "parent_identity", nullable=False),
        *columns(sa.BigInteger(), "steps_removed", "clock_class", "clock_accuracy", "time_source", nullable=False),
        *columns(sa.Boolean(), "ptp_timescale", "time_traceable", nullable=False),
        *columns(sa.BigInteger(), "current_utc_offset_s"),
        *columns(sa.BigInteger(), "sync_interval_ns", "delay_interval_ns", nullable=False),
        *columns(sa.BigInteger(), "delay_requests_sent", "delay_responses_received"),
        *columns(sa.String(), "gm_status", "utc_status"),
        *columns(sa.BigInteger(), "parent_bound_ns", "parent_growth_ppb"),
        *columns(sa.String(), "parent_reason"),
        *columns(sa.BigInteger(), "gm_bound_ns", "gm_growth_ppb"),
        *columns(sa.String(), "gm_reason"),
        *columns(sa.BigInteger(), "utc_bound_ns", "utc_growth_ppb"),
        *columns(sa.String(), "utc_reason"),
        *columns(sa.BigInteger(), "utc_seconds_removed"),
        *columns(sa.JSON(), "terms"),
    )


def grandmaster_sample() -> None:
    timed(
        "grandmaster_sample",
        *columns(sa.String(), "source", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "boottime_ns", nullable=False),
        *columns(sa.String(), "clock_state"),
        *columns(
            sa.BigInteger(),
            "clock_class",
            "clock_accuracy",
            "offset_scaled_log_variance",
            "phase_offset_ns",
            "utc_offset_s",
            "time_source",
        ),
        *columns(sa.String(), "gnss_state", "selected_reference", "clock_identity", "model", "serial", "firmware"),
        *columns(sa.String(), "sys_name", "sys_descr", "sys_object_id"),
        *columns(sa.BigInteger(), "uptime_s"),
        *columns(sa.JSON(), "satellites", "alarms", "profiles", "unknown"),
    )


def source_event() -> None:
    timed(
        "source_event",
        *columns(sa.String(), "source", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "boottime_ns", nullable=False),
        *columns(sa.String(), "reason"),
        *columns(sa.Boolean(), "restarted", nullable=False),
        *columns(sa.String(), "port_state"),
    )


def gap() -> None:
    timed(
        "gap",
        *columns(sa.String(), "source", "reason", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "until_realtime_ns", "rows_lost", nullable=False),
    )


def finding() -> None:
    op.create_table(
        "finding",
        *columns(sa.String(), "finding_id", "subject", nullable=False),
        *columns(sa.BigInteger(), "since_realtime_ns", nullable=False),
        *columns(sa.BigInteger(), "until_realtime_ns"),
        *columns(sa.String(), "severity", "evidence", "cause", "remedy", nullable=False),
        sa.PrimaryKeyConstraint("finding_id", "subject", "since_realtime_ns", name="pk_finding"),
    )


def incarnation() -> None:
    op.create_table(
        "incarnation",
        *columns(sa.String(), "node", nullable=False),
        *columns(sa.BigInteger(), "incarnation", "started_realtime_ns", nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_incarnation"),
    )


def timed(name: str, *own: sa.Column[Any]) -> None:
    """A table whose rows have an id, a source and a time, with the index that queries and retention use."""
    id_type = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    key = sa.PrimaryKeyConstraint("id", name=f"pk_{name}")
    op.create_table(name, sa.Column("id", id_type, nullable=False), *own, key)
    op.create_index(f"ix_{name}_source_realtime_ns", name, ["source", "realtime_ns"])


def columns(of: Any, *names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, of, nullable=nullable) for name in names]
