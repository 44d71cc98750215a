"""All that is known of one grandmaster, node or job, as tables. What came over a wire is shown as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.cli.render import (
    bound_text,
    grandmaster_row,
    holdover_left_ns,
    local_time_text,
    node_block,
    plain_text,
    table_with_headings,
    utc_error_text,
    utc_time_text,
)
from timesyncd.cli.render_job import RANK_HEADINGS, STRAGGLER_HEADINGS, job_facts, rank_cells, straggler_cells
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterOffset, GrandmasterState, NodeState, SourceState
from timesyncd.sample import ACCURACY_NS, Alarm, InputReference, Interface, PtpPort, Satellite, Sensor, TimeError
from timesyncd.units import duration_text, span_text

Facts = Sequence[tuple[str, str | None]]

ABSENT = "not provided"


def grandmaster_tables(unit: GrandmasterState) -> list[RenderableType]:
    """The line of the status screen, then every field; a list that the unit does not provide is said to be so."""
    line = Text("  ").join(grandmaster_row(unit))
    old = [] if unit.reachable else [Text("all below is what was last known", "yellow")]
    return [line, *old, facts(_unit_facts(unit)), *(part for table in _TABLES for part in _table(unit, *table))]


def node_tables(node: NodeState) -> list[RenderableType]:
    """The block of the status screen, then the sources field by field."""
    more = [
        ("bound to the parent", bound_text(node.parent, node.age_ns).plain),
        ("sample's age", None if node.age_ns is None else duration_text(node.age_ns)),
        ("published", local_time_text(node.published_realtime_ns)),
        ("clock", node.clock),
        ("seconds taken out", _text(node.utc_seconds_removed)),
        ("boot", node.boot_id),
    ]
    return [node_block(node), facts(more), *(part for source in node.sources for part in _source(source))]


def job_tables(job: JobState) -> list[RenderableType]:
    """The line of the status screen, then what holds of all ranks, the stragglers, and rank by rank."""
    line = Text.assemble(
        plain_text(job.job, "bold"), plain_text(f"  attempt {job.attempt}, {job.world_size} ranks  {job.job_id}")
    )
    stragglers = [[plain_text(cell) for cell in straggler_cells(each)] for each in job.stragglers]
    ranks = [[plain_text(cell) for cell in rank_cells(rank)] for rank in sorted(job.ranks, key=lambda rank: rank.rank)]
    late: list[RenderableType] = [
        Text("\nlate persistently", "bold"),
        table_with_headings(STRAGGLER_HEADINGS, stragglers),
    ]
    return [
        line,
        facts(job_facts(job)),
        *(late if stragglers else []),
        Text("\nranks", "bold"),
        table_with_headings(RANK_HEADINGS, ranks),
    ]


def facts(known: Facts) -> RenderableType:
    """A line a fact; what is not provided is one line at the end."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, value in known:
        if value is not None:
            table.add_row(Text(name, "dim"), plain_text(value))
    if absent := [name for name, value in known if value is None]:
        table.add_row(Text(ABSENT, "dim"), Text(", ".join(absent), "dim"))
    return table


def _unit_facts(unit: GrandmasterState) -> Facts:
    left_ns, void_ns = holdover_left_ns(unit), unit.void_before_realtime_ns
    now_ns = unit.published_realtime_ns
    return [
        ("own error", None if unit.utc is None else _error_text(unit, unit.utc.reason)),
        ("holdover budget left", None if left_ns is None else span_text(left_ns)),
        ("void", "nothing" if void_ns is None else f"what was measured before {utc_time_text(void_ns, now_ns)}: {unit.void_reason}"),
        ("selected reference", unit.selected_reference),
        ("phase to it", None if unit.phase_offset_ns is None else duration_text(unit.phase_offset_ns)),
        ("class", _text(unit.clock_class)),
        ("accuracy", _accuracy(unit.clock_accuracy)),
        ("variance", _hex(unit.offset_scaled_log_variance)),
        ("priority 1, 2", _both(unit.priority1, unit.priority2)),
        ("domain", _text(unit.domain)),
        ("time source", _hex(unit.time_source)),
        ("TAI - UTC", None if unit.utc_offset_s is None else f"{unit.utc_offset_s} s"),
        ("leap second", unit.leap),
        ("traceable", _traceable(unit)),
        ("steps removed", _text(unit.steps_removed)),
        ("GNSS", unit.gnss_state),
        ("antenna", unit.antenna),
        ("position mode", unit.gnss_position_mode),
        ("position", _position(unit)),
        ("NTP", _ntp(unit)),
        ("model", unit.model),
        ("serial", unit.serial),
        ("firmware", unit.firmware),
        ("oscillator", unit.oscillator),
        ("up for", None if unit.uptime_s is None else span_text(unit.uptime_s * 1_000_000_000)),
        ("engine boots", _text(unit.engine_boots)),
        ("system", _joined([unit.sys_name, unit.sys_descr, unit.sys_object_id])),
        ("clock identity", unit.clock_identity),
        ("identities", _joined(unit.identities)),
        ("profiles", _joined(unit.profiles)),
        ("not understood", _joined(unit.unknown) or "nothing"),
        ("polled by", f"{unit.node}, {'never read' if unit.age_ns is None else span_text(unit.age_ns) + ' ago'}"),
    ]  # fmt: skip


def _error_text(unit: GrandmasterState, reason: str) -> str:
    return utc_error_text(unit) + (f": {reason}" if reason else "")


def _traceable(unit: GrandmasterState) -> str | None:
    told = [f"{what} {'yes' if flag else 'no'}" for what, flag in
            (("time", unit.time_traceable), ("frequency", unit.frequency_traceable)) if flag is not None]  # fmt: skip
    return ", ".join(told) or None


def _position(unit: GrandmasterState) -> str | None:
    if unit.position is None:
        return None
    height = "" if unit.position.height_m is None else f", {unit.position.height_m:.1f} m"
    return f"{unit.position.latitude_deg:.5f}, {unit.position.longitude_deg:.5f}{height}"


def _ntp(unit: GrandmasterState) -> str | None:
    stratum = None if unit.ntp_stratum is None else f"stratum {unit.ntp_stratum}"
    return _joined([unit.ntp_mode, stratum, unit.ntp_leap and f"leap {unit.ntp_leap}"])


def _reference(each: InputReference) -> list[str | None]:
    return [each.name, each.qualification]


def _port(each: PtpPort) -> list[str | None]:
    enabled = {None: None, True: "enabled", False: "disabled"}[each.enabled]
    clients = (
        None if each.clients is None else f"{each.clients}" + (f" of {each.max_clients}" if each.max_clients else "")
    )
    load = None if each.client_load_percent is None else f"{each.client_load_percent} %"
    return [each.name, each.state or enabled, each.profile, _text(each.domain), clients, load, each.clock_identity]


def _satellite(each: Satellite) -> list[str | None]:
    cn0 = None if each.cn0_db_hz is None else f"{each.cn0_db_hz} dB-Hz"
    return [str(each.number), cn0, {None: None, True: "healthy", False: "unhealthy"}[each.healthy]]


def _alarm(each: Alarm) -> list[str | None]:
    return [each.severity, f"{each.id}.{each.index}", each.since, each.text]


def _time_error(each: TimeError) -> list[str | None]:
    threshold = None if each.alarm_threshold_ns is None else duration_text(each.alarm_threshold_ns)
    return [each.channel, each.metric, duration_text(each.value_ns), each.reference, each.status, threshold]


def _sensor(each: Sensor) -> list[str | None]:
    value = None if each.value is None else f"{each.value:g} {each.unit or ''}"
    return [each.name, each.kind, value, {None: None, True: "good", False: "bad"}[each.ok]]


def _interface(each: Interface) -> list[str | None]:
    speed = None if each.speed_mbps is None else f"{each.speed_mbps} Mbit/s"
    return [each.name, {None: None, True: "up", False: "down"}[each.up], speed]


def _offset(each: GrandmasterOffset) -> list[str | None]:
    return [each.other, f"{duration_text(each.offset_ns)} +-{duration_text(each.bound_ns)}", each.evidence]


_TABLES: tuple[tuple[str, str, Sequence[str], Callable[[Any], list[str | None]]], ...] = (
    ("alarms", "alarms", ("severity", "id", "since", "text"), _alarm),
    ("references", "references", ("name", "qualification"), _reference),
    ("PTP ports", "ports", ("name", "state", "profile", "domain", "clients", "load", "identity"), _port),
    ("satellites", "satellites", ("number", "C/N0", "health"), _satellite),
    ("time errors", "time_errors", ("channel", "metric", "value", "reference", "status", "threshold"), _time_error),
    ("its time less that of", "offsets", ("unit", "offset", "evidence"), _offset),
    ("hardware", "sensors", ("name", "kind", "value", "rated"), _sensor),
    ("interfaces", "interfaces", ("name", "state", "speed"), _interface),
)


def _table(
    unit: GrandmasterState, title: str, field: str, headings: Sequence[str], row: Callable[[Any], list[str | None]]
) -> list[RenderableType]:
    """A cell that is not provided is a dash."""
    items = getattr(unit, field)
    if not items:
        return [Text(f"\n{title}: {ABSENT if items is None else 'none'}", "dim")]
    rows = [[plain_text("-" if cell is None else cell) for cell in row(item)] for item in items]
    return [Text(f"\n{title}", "bold"), table_with_headings(headings, rows)]


def _source(source: SourceState) -> list[RenderableType]:
    duration_ns = source.poll_duration_ns
    known = [
        ("driver", source.driver),
        ("reachable", "yes" if source.reachable else "no"),
        ("reason", source.reason or "none"),
        ("port", source.port_state),
        ("state", source.detail),
        ("offset", None if source.offset_ns is None else duration_text(source.offset_ns)),
        ("known within", None if source.error_ns is None else f"+-{duration_text(source.error_ns)}"),
        ("path delay", None if source.path_delay_ns is None else duration_text(source.path_delay_ns)),
        ("frequency", None if source.frequency_ppb is None else f"{source.frequency_ppb} ppb"),
        ("steps removed", _text(source.steps_removed)),
        ("class", _text(source.clock_class)),
        ("accuracy", _hex(source.clock_accuracy)),
        ("grandmaster", source.grandmaster_identity),
        ("TAI - UTC", None if source.current_utc_offset_s is None else f"{source.current_utc_offset_s} s"),
        ("poll took", None if duration_ns is None else duration_text(duration_ns)),
    ]
    return [Text.assemble("\n", plain_text(source.name, "bold")), facts(known)]


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _hex(value: int | None) -> str | None:
    return None if value is None else f"0x{value:02x}"


def _accuracy(code: int | None) -> str | None:
    within_ns = None if code is None else ACCURACY_NS.get(code)
    return _hex(code) if within_ns is None else f"{_hex(code)}, announced as within {duration_text(within_ns)}"


def _both(first: int | None, second: int | None) -> str | None:
    return None if first is None and second is None else f"{_text(first) or '-'}, {_text(second) or '-'}"


def _joined(parts: Sequence[str | None]) -> str | None:
    return ", ".join(part for part in parts if part) or None
