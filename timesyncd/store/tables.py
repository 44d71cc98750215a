"""The store's tables; docs/store.md explains them to people who query them. migrations/ creates them."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
)

#: The newest revision of migrations/.
REVISION = "0001"

#: In a column's `info`: what `intact` requires of its values, the type of JSON and the least number.
SHAPE, LEAST = "shape", "least"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)


def _id() -> Column[int]:
    """Counts rows in the order of storing, which holds even when clocks step."""
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _ints(*names: str, nullable: bool = True) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=nullable) for name in names]


def _texts(*names: str, nullable: bool = True) -> list[Column[str]]:
    return [Column(name, String, nullable=nullable) for name in names]


def _flags(*names: str, nullable: bool = True) -> list[Column[bool]]:
    return [Column(name, Boolean, nullable=nullable) for name in names]


def _jsons(shape: Literal["array", "object"], *names: str) -> list[Column[Any]]:
    return [Column(name, JSON(none_as_null=True), info={SHAPE: shape}) for name in names]


clock_sample = Table(
    "clock_sample",
    metadata,
    _id(),
    *_texts("source", "clock", nullable=False),
    *_ints("realtime_ns", "as_of_ns", "read_ns", "real_minus_boot_ns", nullable=False),
    *_ints("offset_ns", "path_delay_ns", "granularity_ns", "ingress_time_ns", nullable=False),
    *_ints("frequency_ppb", "max_frequency_ppb"),
    *_texts("port_state", nullable=False),
    *_texts("grandmaster_identity", "parent_identity"),
    *_ints("steps_removed", "clock_class", "clock_accuracy", "time_source", nullable=False),
    *_flags("ptp_timescale", "time_traceable", nullable=False),
    *_ints("current_utc_offset_s"),
    *_ints("sync_interval_ns", "delay_interval_ns", nullable=False),
    *_ints("delay_requests_sent", "delay_responses_received"),
    *_jsons("array", "exchanges"),
    *_jsons("object", "phc"),
    *_texts("gm_status", "utc_status"),
    *_ints("parent_bound_ns", "parent_growth_ppb"),
    *_texts("parent_reason_code"),
    *_ints("gm_bound_ns", "gm_growth_ppb"),
    *_texts("gm_reason_code"),
    *_ints("utc_bound_ns", "utc_growth_ppb"),
    *_texts("utc_reason_code"),
    *_ints("utc_seconds_removed"),
    *_ints("parent_stat_bound_ns", "parent_stat_growth_ppb", "gm_stat_bound_ns", "gm_stat_growth_ppb"),
    *_ints("utc_stat_bound_ns", "utc_stat_growth_ppb"),
    *_jsons("object", "terms", "stat_terms", "rates"),
    *_ints("domain", "daemon_pid"),
    *_flags("leap61", "leap59"),
    Index(None, "source", "realtime_ns"),
)

phc_sample = Table(
    "phc_sample",
    metadata,
    _id(),
    *_texts("source", "clock", nullable=False),
    *_ints("realtime_ns", "as_of_ns", "real_minus_boot_ns", "offset_ns", "width_ns", nullable=False),
    *_texts("method", nullable=False),
    *_ints("frequency_ppb", "system_frequency_ppb", "max_frequency_ppb"),
    *_flags("steered"),
    Index(None, "source", "realtime_ns"),
)

utc_sample = Table(
    "utc_sample",
    metadata,
    _id(),
    *_texts("source", nullable=False),
    *_ints("realtime_ns", "as_of_ns", "real_minus_boot_ns", "offset_ns", "error_ns", "growth_ppb", nullable=False),
    *_texts("reference", nullable=False),
    *_ints("stratum", nullable=False),
    *_texts("leap", nullable=False),
    *_ints("root_delay_ns", "root_dispersion_ns", nullable=False),
    *_ints("frequency_ppb", "skew_ppb"),
    *_jsons("array", "ntp_sources"),
    *_texts("utc_status"),
    *_ints("utc_bound_ns", "utc_growth_ppb"),
    *_texts("utc_reason_code"),
    *_texts("origin", nullable=False),
    *_flags("covers_contradicting", nullable=False),
    Index(None, "source", "realtime_ns"),
)

kernel_sample = Table(
    "kernel_sample",
    metadata,
    _id(),
    *_texts("source", nullable=False),
    *_ints("realtime_ns", "boottime_ns", "frequency_ppb", "maxerror_ns", "esterror_ns", nullable=False),
    *_flags("synchronized", nullable=False),
    *_texts("leap", nullable=False),
    *_ints("tai_offset_s", nullable=False),
    *_jsons("array", "disciplines", "undecided_disciplines", "undecided_ptp4l"),
    *_flags("programs_visible"),
    *_texts("unexplained_movement"),
    *_ints("vm_disruptions"),
    Index(None, "source", "realtime_ns"),
)

grandmaster_sample = Table(
    "grandmaster_sample",
    metadata,
    _id(),
    *_texts("source", nullable=False),
    *_ints("realtime_ns", "boottime_ns", nullable=False),
    *_flags("whole", nullable=False),
    *_texts("clock_state", "selected_reference", "clock_identity"),
    *_ints("clock_class", "clock_accuracy", "offset_scaled_log_variance", "phase_offset_ns"),
    *_ints("priority1", "priority2", "domain", "steps_removed"),
    *_ints("utc_offset_s", "time_source"),
    *_texts("leap"),
    *_flags("time_traceable", "frequency_traceable"),
    *_texts("gnss_state", "gnss_position_mode", "antenna", "ntp_mode", "ntp_leap"),
    *_ints("ntp_stratum", "uptime_s", "engine_boots"),
    *_jsons("array", "alarms"),
    *_ints("utc_bound_ns", "utc_growth_ppb"),
    *_texts("utc_reason_code"),
    *_texts("model", "serial", "firmware", "oscillator", "sys_name", "sys_descr", "sys_object_id"),
    *_jsons("array", "references", "ports", "satellites"),
    *_jsons("object", "position"),
    *_jsons("array", "time_errors", "sensors", "interfaces", "profiles", "unknown"),
    *_texts("snmp_error"),
    Index(None, "source", "realtime_ns"),
)

#: Columns that are large or seldom change: only rows that are `whole` have them, all other rows have NULL.
SLOW = (
    "model", "serial", "firmware", "oscillator", "sys_name", "sys_descr", "sys_object_id", "references", "ports", "satellites",
    "position", "time_errors", "sensors", "interfaces", "profiles", "unknown",
)  # fmt: skip

time_error = Table(
    "time_error",
    metadata,
    _id(),
    *_texts("source", "channel", "metric", nullable=False),
    *_ints("realtime_ns", "value_ns", nullable=False),
    UniqueConstraint("source", "realtime_ns", "channel", "metric"),
)

alarm_event = Table(
    "alarm_event",
    metadata,
    _id(),
    *_texts("source", nullable=False),
    *_ints("realtime_ns", nullable=False),
    *_texts("action", nullable=False),
    *_ints("alarm_id"),
    *_ints("alarm_index", nullable=False),
    *_texts("severity", "text", nullable=False),
    *_ints("alarm_sequence"),
    *_ints("lost", nullable=False),
    *_texts("at"),
    Index(None, "source", "realtime_ns"),
)

source_event = Table(
    "source_event",
    metadata,
    _id(),
    *_texts("source", nullable=False),
    *_ints("realtime_ns", "boottime_ns", nullable=False),
    *_texts("reason_code", "reason"),
    *_flags("restarted", nullable=False),
    *_texts("port_state"),
    Index(None, "source", "realtime_ns"),
)

gap = Table(
    "gap",
    metadata,
    _id(),
    *_texts("source", "reason_code", "reason", nullable=False),
    *_ints("realtime_ns", "until_realtime_ns", "rows_lost", nullable=False),
    Index(None, "source", "realtime_ns"),
)

finding = Table(
    "finding",
    metadata,
    Column("finding_id", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("since_realtime_ns", BigInteger, primary_key=True),
    *_ints("until_realtime_ns"),
    *_texts("severity", "evidence", "cause", "remedy", nullable=False),
    *_jsons("array", "chain"),
)

incarnation = Table(
    "incarnation",
    metadata,
    Column("node", String, primary_key=True),
    *_ints("incarnation", "started_realtime_ns", nullable=False),
)


def _key(name: str, of: type[String | BigInteger] = BigInteger) -> Column[Any]:
    return Column(name, of, primary_key=True, autoincrement=False)


#: The node's roll-ups of minutes and hours; on a hub, every node's. `realtime_ns` is where the span begins.
rollup = Table(
    "rollup",
    metadata,
    *(_key(name, String) for name in ("node", "source", "quantity")),
    *(_key(name) for name in ("span_s", "realtime_ns")),
    Column("count", BigInteger, nullable=False, info={LEAST: 1}),
    *_ints("minimum", "maximum", "mean", "p50", "p99", nullable=False),
    Index(None, "span_s", "realtime_ns"),
    sqlite_with_rowid=False,
)

#: The node's CloudEvents; on a hub, every node's. `sequence` is the row's number in the `stream` of its node's history.
event = Table(
    "event",
    metadata,
    _key("node", String),
    *(_key(name) for name in ("stream", "sequence")),
    *_ints("realtime_ns", nullable=False),
    *_texts("event_id", "type", nullable=False),
    *_texts("subject"),
    *_texts("time", nullable=False),
    *_jsons("object", "data"),
    UniqueConstraint("node", "event_id"),
    Index(None, "realtime_ns"),
)

#: What operators wrote: comments, deploys, acknowledgements and silences of findings; on a hub, of every node.
operator_note = Table(
    "operator_note",
    metadata,
    _key("note_id", String),
    *_texts("node", "kind", "author", "text", "subject", nullable=False),
    *_texts("finding"),
    *_ints("realtime_ns", nullable=False),
    *_ints("until_realtime_ns"),
    Index(None, "realtime_ns"),
)

#: Rows that the hubs have not confirmed yet; `row` is a HistoryRow.
outbox = Table("outbox", metadata, _key("sequence"), *_ints("realtime_ns", nullable=False), *_jsons("object", "row"))

#: One row: the stream of this store and its next sequence number, kept even when the outbox is empty.
outbox_counter = Table("outbox_counter", metadata, _key("stream"), *_ints("next_sequence", nullable=False))

#: On a hub: the progress of each node's history.
received = Table("received", metadata, _key("node", String), *_ints("stream", "stored_up_to", "lost", nullable=False))

#: Tables that retention trims and `history` reads: each has `source` and `realtime_ns`, and an index on both.
TIMED = (
    clock_sample, phc_sample, utc_sample, kernel_sample, grandmaster_sample, time_error, alarm_event, source_event, gap,
)  # fmt: skip


def has_current_tables(connection: Connection) -> bool:
    """Whether the store has every table, by this version's revision. To migrate it takes a process, and most of a second of CPU."""
    if not {*metadata.tables, "alembic_version"}.issubset(inspect(connection).get_table_names()):
        return False
    return list(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()) == [REVISION]
