"""The first tables. A released migration never changes: what tables.py gains later is a new migration's."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_INT, _TEXT, _FLAG, _JSON = sa.BigInteger(), sa.String(), sa.Boolean(), sa.JSON()


def upgrade() -> None:
    clock_sample()
    phc_sample()
    utc_sample()
    kernel_sample()
    grandmaster_sample()
    time_error()
    alarm_event()
    source_event()
    gap()
    rollup()
    event()
    outbox()
    finding()
    incarnation()


def clock_sample() -> None:
    timed(
        "clock_sample",
        *required(_TEXT, "source", "clock"),
        *required(_INT, "realtime_ns", "as_of_ns", "read_ns", "real_minus_boot_ns"),
        *required(_INT, "offset_ns", "path_delay_ns", "granularity_ns", "ingress_time_ns"),
        *optional(_INT, "frequency_ppb", "max_frequency_ppb"),
        *required(_TEXT, "port_state"),
        *optional(_TEXT, "grandmaster_identity", "parent_identity"),
        *required(_INT, "steps_removed", "clock_class", "clock_accuracy", "time_source"),
        *required(_FLAG, "ptp_timescale", "time_traceable"),
        *optional(_INT, "current_utc_offset_s"),
        *required(_INT, "sync_interval_ns", "delay_interval_ns"),
        *optional(_INT, "delay_requests_sent", "delay_responses_received"),
        *optional(_JSON, "exchanges", "phc"),
        *optional(_TEXT, "gm_status", "utc_status"),
        *bound("parent"),
        *bound("gm"),
        *bound("utc"),
        *optional(_INT, "utc_seconds_removed"),
        *optional(_INT, "parent_stat_bound_ns", "parent_stat_growth_ppb", "gm_stat_bound_ns", "gm_stat_growth_ppb"),
        *optional(_INT, "utc_stat_bound_ns", "utc_stat_growth_ppb"),
        *optional(_JSON, "terms", "stat_terms", "rates"),
        *optional(_INT, "domain", "daemon_pid"),
        *optional(_FLAG, "leap61", "leap59"),
    )


def phc_sample() -> None:
    timed(
        "phc_sample",
        *required(_TEXT, "source", "clock"),
        *required(_INT, "realtime_ns", "as_of_ns", "real_minus_boot_ns", "offset_ns", "width_ns"),
        *required(_TEXT, "method"),
        *optional(_INT, "frequency_ppb", "system_frequency_ppb", "max_frequency_ppb"),
        *optional(_FLAG, "steered"),
    )


def utc_sample() -> None:
    timed(
        "utc_sample",
        *required(_TEXT, "source"),
        *required(_INT, "realtime_ns", "as_of_ns", "real_minus_boot_ns", "offset_ns", "error_ns", "growth_ppb"),
        *required(_TEXT, "reference"),
        *required(_INT, "stratum"),
        *required(_TEXT, "leap"),
        *required(_INT, "root_delay_ns", "root_dispersion_ns"),
        *optional(_INT, "frequency_ppb", "skew_ppb"),
        *optional(_JSON, "ntp_sources"),
        *optional(_TEXT, "utc_status"),
        *bound("utc"),
        *required(_TEXT, "origin"),
        *required(_FLAG, "covers_contradicting"),
    )


def kernel_sample() -> None:
    timed(
        "kernel_sample",
        *required(_TEXT, "source"),
        *required(_INT, "realtime_ns", "boottime_ns", "frequency_ppb", "maxerror_ns", "esterror_ns"),
        *required(_FLAG, "synchronized"),
        *required(_TEXT, "leap"),
        *required(_INT, "tai_offset_s"),
        *optional(_JSON, "disciplines", "undecided_disciplines", "undecided_ptp4l"),
        *optional(_FLAG, "programs_visible"),
        *optional(_TEXT, "unexplained_movement"),
        *optional(_INT, "vm_disruptions"),
    )


def grandmaster_sample() -> None:
    timed(
        "grandmaster_sample",
        *required(_TEXT, "source"),
        *required(_INT, "realtime_ns", "boottime_ns"),
        *required(_FLAG, "whole"),
        *optional(_TEXT, "clock_state", "selected_reference", "clock_identity"),
        *optional(_INT, "clock_class", "clock_accuracy", "offset_scaled_log_variance", "phase_offset_ns"),
        *optional(_INT, "priority1", "priority2", "domain", "steps_removed", "utc_offset_s", "time_source"),
        *optional(_TEXT, "leap"),
        *optional(_FLAG, "time_traceable", "frequency_traceable"),
        *optional(_TEXT, "gnss_state", "gnss_position_mode", "antenna", "ntp_mode", "ntp_leap"),
        *optional(_INT, "ntp_stratum", "uptime_s", "engine_boots"),
        *optional(_JSON, "alarms"),
        *bound("utc"),
        *optional(_TEXT, "model", "serial", "firmware", "oscillator", "sys_name", "sys_descr", "sys_object_id"),
        *optional(_JSON, "references", "ports", "satellites", "position", "time_errors", "sensors", "interfaces"),
        *optional(_JSON, "profiles", "unknown"),
        *optional(_TEXT, "snmp_error"),
    )


def time_error() -> None:
    """Its unique key is also the index that queries and retention use."""
    unique = ["source", "realtime_ns", "channel", "metric"]
    op.create_table(
        "time_error",
        identifier(),
        *required(_TEXT, "source", "channel", "metric"),
        *required(_INT, "realtime_ns", "value_ns"),
        sa.PrimaryKeyConstraint("id", name="pk_time_error"),
        sa.UniqueConstraint(*unique, name="uq_time_error_source_realtime_ns_channel_metric"),
    )


def alarm_event() -> None:
    timed(
        "alarm_event",
        *required(_TEXT, "source"),
        *required(_INT, "realtime_ns"),
        *required(_TEXT, "action"),
        *optional(_INT, "alarm_id"),
        *required(_INT, "alarm_index"),
        *required(_TEXT, "severity", "text"),
        *optional(_INT, "alarm_sequence"),
        *required(_INT, "lost"),
        *optional(_TEXT, "at"),
    )


def source_event() -> None:
    timed(
        "source_event",
        *required(_TEXT, "source"),
        *required(_INT, "realtime_ns", "boottime_ns"),
        *optional(_TEXT, "reason_code", "reason"),
        *required(_FLAG, "restarted"),
        *optional(_TEXT, "port_state"),
    )


def gap() -> None:
    timed(
        "gap",
        *required(_TEXT, "source", "reason_code", "reason"),
        *required(_INT, "realtime_ns", "until_realtime_ns", "rows_lost"),
    )


def rollup() -> None:
    key = [*required(_TEXT, "node", "source", "quantity"), *key_numbers("span_s", "realtime_ns")]
    values = required(_INT, "count", "minimum", "maximum", "mean", "p50", "p99")
    keyed("rollup", key, *values, sqlite_with_rowid=False)
    op.create_index("ix_rollup_span_s_realtime_ns", "rollup", ["span_s", "realtime_ns"])


def event() -> None:
    keyed(
        "event",
        [*required(_TEXT, "node"), *key_numbers("stream", "sequence")],
        *required(_INT, "realtime_ns"),
        *required(_TEXT, "event_id", "type"),
        *optional(_TEXT, "subject"),
        *required(_TEXT, "time"),
        *optional(_JSON, "data"),
        sa.UniqueConstraint("node", "event_id", name="uq_event_node_event_id"),
    )
    op.create_index("ix_event_realtime_ns", "event", ["realtime_ns"])


def outbox() -> None:
    """The node's outbox, its counter, and on a hub the progress of each node's history."""
    keyed("outbox", key_numbers("sequence"), *required(_INT, "realtime_ns"), *optional(_JSON, "row"))
    keyed("outbox_counter", key_numbers("stream"), *required(_INT, "next_sequence"))
    keyed("received", required(_TEXT, "node"), *required(_INT, "stream", "stored_up_to", "lost"))


def finding() -> None:
    keyed(
        "finding",
        [*required(_TEXT, "finding_id", "subject"), *key_numbers("since_realtime_ns")],
        *optional(_INT, "until_realtime_ns"),
        *required(_TEXT, "severity", "evidence", "cause", "remedy"),
        *optional(_JSON, "chain"),
    )


def incarnation() -> None:
    keyed("incarnation", required(_TEXT, "node"), *required(_INT, "incarnation", "started_realtime_ns"))


def timed(name: str, *own: sa.Column[Any]) -> None:
    """A table whose rows have an id, a source and a time, with the index that queries and retention use."""
    op.create_table(name, identifier(), *own, sa.PrimaryKeyConstraint("id", name=f"pk_{name}"))
    op.create_index(f"ix_{name}_source_realtime_ns", name, ["source", "realtime_ns"])


def keyed(name: str, key: list[sa.Column[Any]], *others: sa.schema.SchemaItem, **options: Any) -> None:
    """A table whose primary key is `key`."""
    primary = sa.PrimaryKeyConstraint(*(column.name for column in key), name=f"pk_{name}")
    op.create_table(name, *key, *others, primary, **options)


def identifier() -> sa.Column[Any]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)


def bound(name: str) -> list[sa.Column[Any]]:
    return [*optional(_INT, f"{name}_bound_ns", f"{name}_growth_ppb"), *optional(_TEXT, f"{name}_reason_code")]


def key_numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, _INT, nullable=False, autoincrement=False) for name in names]


def required(of: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, of, nullable=False) for name in names]


def optional(of: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, of) for name in names]
