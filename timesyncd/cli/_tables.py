"""
All fields of one grandmaster, node or job, and a node's error budget, as tables of 80 columns. Strings from the network are
printed as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.bound import STAT_PROBABILITY
from timesyncd.cli.assumptions import AssumedValue, assumed_values, unobservable_assumptions
from timesyncd.cli.budget import (
    REFERENCES,
    BudgetLine,
    Selection,
    current_bound_lines,
    forecast_text,
    growth_lines,
    node_forecast,
    reference_lines,
    selection_of,
    term_lines,
)
from timesyncd.cli.render import (
    bound_text,
    explained_source,
    followed_text,
    grandmaster_row,
    headline,
    local_time_text,
    measured_clock,
    node_block,
    plain_text,
    source_text,
    table_with_headings,
    utc_time_text,
)
from timesyncd.cli.render_job import RANK_HEADINGS, STRAGGLER_HEADINGS, job_facts, rank_cells, straggler_cells
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import OK, GrandmasterOffset, GrandmasterState, NodeState, SourceState
from timesyncd.sample import ACCURACY_NS, Alarm, InputReference, Interface, PtpPort, Satellite, Sensor, TimeError
from timesyncd.units import duration_text, span_text

Facts = Sequence[tuple[str, str | None]]

ABSENT = "not provided"


def grandmaster_tables(grandmaster: GrandmasterState) -> list[RenderableType]:
    """
    The line of the status screen, then every field; a field that the grandmaster does not provide is named as such.
    """
    line = Text("  ").join(grandmaster_row(grandmaster))
    old = [] if grandmaster.reachable else [Text("not reachable: everything below is the last known state", "yellow")]
    return [
        line,
        *old,
        facts(_grandmaster_facts(grandmaster)),
        *(part for table in _TABLES for part in _table(grandmaster, *table)),
    ]


def node_tables(node: NodeState, limit_ns: int | None) -> list[RenderableType]:
    """The block of the status screen, then every field of each source. `limit_ns`: the operator's limit of its bound."""
    more = [
        ("bound to the parent", bound_text(node.parent, node.age_ns).plain),
        ("age of the sample", None if node.age_ns is None else duration_text(node.age_ns)),
        ("published", local_time_text(node.published_realtime_ns)),
        ("measured clock", node.clock),
        ("UTC seconds removed", _text(node.utc_seconds_removed)),
        ("boot", node.boot_id),
    ]
    return [node_block(node, limit_ns), facts(more), *(part for source in node.sources for part in _source(source))]


def job_tables(job: JobState) -> list[RenderableType]:
    """The job's line, then the facts of the whole job, its stragglers, and each rank."""
    line = Text.assemble(
        plain_text(job.job, "bold"), plain_text(f"  attempt {job.attempt}, {job.world_size} ranks  {job.job_id}")
    )
    stragglers = [[plain_text(cell) for cell in straggler_cells(each)] for each in job.stragglers]
    ranks = [[plain_text(cell) for cell in rank_cells(rank)] for rank in sorted(job.ranks, key=lambda rank: rank.rank)]
    straggler_table: list[RenderableType] = [
        Text("\nstragglers", "bold"),
        table_with_headings(STRAGGLER_HEADINGS, stragglers),
    ]
    return [
        line,
        facts(job_facts(job)),
        *(straggler_table if stragglers else []),
        Text("\nranks", "bold"),
        table_with_headings(RANK_HEADINGS, ranks),
    ]


def facts(known: Facts) -> RenderableType:
    """One line per fact; the names of absent ones are the last line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, value in known:
        if value is not None:
            table.add_row(Text(name, "dim"), plain_text(value))
    if absent := [name for name, value in known if value is None]:
        table.add_row(Text(ABSENT, "dim"), Text(", ".join(absent), "dim"))
    return table


def _grandmaster_facts(grandmaster: GrandmasterState) -> Facts:
    left_ns, invalid_ns = grandmaster.current_holdover_left_ns, grandmaster.invalid_before_realtime_ns
    now_ns = grandmaster.published_realtime_ns
    return [
        ("error against UTC", None if grandmaster.utc is None else _error_text(grandmaster, grandmaster.utc.reason)),
        ("holdover budget left", None if left_ns is None else span_text(left_ns)),
        ("invalidated", "nothing" if invalid_ns is None else f"samples before {utc_time_text(invalid_ns, now_ns)}: {grandmaster.invalidation_reason}"),
        ("selected reference", grandmaster.selected_reference),
        ("phase to reference", None if grandmaster.phase_offset_ns is None else duration_text(grandmaster.phase_offset_ns)),
        ("class", _text(grandmaster.clock_class)),
        ("accuracy", _accuracy(grandmaster.clock_accuracy)),
        ("variance", _hex(grandmaster.offset_scaled_log_variance)),
        ("priority 1, 2", _both(grandmaster.priority1, grandmaster.priority2)),
        ("domain", _text(grandmaster.domain)),
        ("time source", _hex(grandmaster.time_source)),
        ("TAI - UTC", None if grandmaster.utc_offset_s is None else f"{grandmaster.utc_offset_s} s"),
        ("leap second", grandmaster.leap),
        ("traceable", _traceable(grandmaster)),
        ("steps removed", _text(grandmaster.steps_removed)),
        ("GNSS", grandmaster.gnss_state),
        ("antenna", grandmaster.antenna),
        ("position mode", grandmaster.gnss_position_mode),
        ("position", _position(grandmaster)),
        ("NTP", _ntp(grandmaster)),
        ("model", grandmaster.model),
        ("serial", grandmaster.serial),
        ("firmware", grandmaster.firmware),
        ("oscillator", grandmaster.oscillator),
        ("uptime", None if grandmaster.uptime_s is None else span_text(grandmaster.uptime_s * 1_000_000_000)),
        ("engine boots", _text(grandmaster.engine_boots)),
        ("system", _joined([grandmaster.sys_name, grandmaster.sys_descr, grandmaster.sys_object_id])),
        ("clock identity", grandmaster.clock_identity),
        ("identities", _joined(grandmaster.identities)),
        ("profiles", _joined(grandmaster.profiles)),
        ("not understood", _joined(grandmaster.unknown) or "nothing"),
        ("SNMP error", grandmaster.snmp_error or "none"),
        ("polled by", f"{grandmaster.node}, {'no poll succeeded yet' if grandmaster.age_ns is None else span_text(grandmaster.age_ns) + ' ago'}"),
    ]  # fmt: skip


def _error_text(grandmaster: GrandmasterState, reason: str) -> str:
    now_ns = grandmaster.current_utc_bound_ns
    error = "unbounded" if now_ns is None else f"+-{duration_text(now_ns)}"
    return f"{error}: {reason}" if reason else error


def _traceable(grandmaster: GrandmasterState) -> str | None:
    flags = [f"{what} {'yes' if flag else 'no'}" for what, flag in
            (("time", grandmaster.time_traceable), ("frequency", grandmaster.frequency_traceable)) if flag is not None]  # fmt: skip
    return ", ".join(flags) or None


def _position(grandmaster: GrandmasterState) -> str | None:
    if grandmaster.position is None:
        return None
    height = "" if grandmaster.position.height_m is None else f", {grandmaster.position.height_m:.1f} m"
    return f"{grandmaster.position.latitude_deg:.5f}, {grandmaster.position.longitude_deg:.5f}{height}"


def _ntp(grandmaster: GrandmasterState) -> str | None:
    stratum = None if grandmaster.ntp_stratum is None else f"stratum {grandmaster.ntp_stratum}"
    return _joined([grandmaster.ntp_mode, stratum, grandmaster.ntp_leap and f"leap {grandmaster.ntp_leap}"])


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
    ("offset to other grandmasters", "offsets", ("grandmaster", "offset", "evidence"), _offset),
    ("hardware", "sensors", ("name", "kind", "value", "rating"), _sensor),
    ("interfaces", "interfaces", ("name", "state", "speed"), _interface),
)


def _table(
    grandmaster: GrandmasterState,
    title: str,
    field: str,
    headings: Sequence[str],
    row: Callable[[Any], list[str | None]],
) -> list[RenderableType]:
    """The rows of one list; "-": not provided."""
    items = getattr(grandmaster, field)
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
        (f"offset{measured_clock(source)}", None if source.offset_ns is None else duration_text(source.offset_ns)),
        ("offset error", None if source.error_ns is None else f"+-{duration_text(source.error_ns)}"),
        ("path delay", None if source.path_delay_ns is None else duration_text(source.path_delay_ns)),
        ("frequency", None if source.frequency_ppb is None else f"{source.frequency_ppb} ppb"),
        ("steps removed", _text(source.steps_removed)),
        ("class", _text(source.clock_class)),
        ("accuracy", _hex(source.clock_accuracy)),
        ("grandmaster", source.grandmaster_identity),
        ("TAI - UTC", None if source.current_utc_offset_s is None else f"{source.current_utc_offset_s} s"),
        ("last poll", None if source.since_poll_ns is None else f"{span_text(source.since_poll_ns)} ago"),
        ("poll duration", None if duration_ns is None else duration_text(duration_ns)),
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


SHARE = f"{STAT_PROBABILITY:.1%}"


def budget_tables(node: NodeState) -> list[RenderableType]:
    """
    The summary, then the terms and sums at the sample, their growth, the bounds now, the sources, and what is assumed.
    """
    parts: list[RenderableType] = [_summary(node)]
    if node.age_ns is not None:
        at_sample = [*term_lines(node), *reference_lines(node)]
        later = f"now, {duration_text(node.age_ns)} later"
        for title, lines in (
            ("at the sample", at_sample),
            ("growth per second", growth_lines(node)),
            (later, current_bound_lines(node)),
        ):
            parts += [Text(), _budget_table(title, lines)]
    if node.sources:
        parts += [Text("\nsources", "bold"), _budget_sources(node)]
    return parts + _assumption_tables(node)


def _summary(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_row(plain_text(node.node, "bold"), headline(node))
    if node.reason:
        table.add_row("reason", plain_text(node.reason))
    for line in current_bound_lines(node):
        if line.name != "parent" and line.hard_ns is not None:
            table.add_row("within", _within(line, followed_text(node) if line.name == "grandmaster" else "UTC"))
    if (expected := node_forecast(node)) is not None:
        lasts, _, expires = forecast_text(expected, len(expected.exceeds)).rpartition(", ")
        text = f"without new samples: {lasts},\n{expires}" if lasts else f"without new samples: {expires}"
        table.add_row("forecast", text)
    return table


def _within(line: BudgetLine, reference: str) -> Text:
    share = "" if line.stat_ns is None else f" ({SHARE}: +-{duration_text(line.stat_ns)})"
    return Text.assemble((f"+-{duration_text(line.hard_ns)}", "bold"), f"{share} of ", plain_text(reference))


def _budget_table(title: str, lines: Sequence[BudgetLine]) -> RenderableType:
    """Names of the terms as in the message, with spaces; sums are bold. A reason is printed once."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(plain_text(title, "bold"), no_wrap=True, min_width=21)
    table.add_column("", width=34)
    for heading in ("hard", SHARE):
        table.add_column(Text(heading, "dim"), justify="right", no_wrap=True, min_width=8)
    printed = OK
    for line in lines:
        is_sum = line.name in REFERENCES
        is_unknown = is_sum and line.hard_ns is None
        what = _unknown_text(line, printed) if is_unknown else line.what
        printed = line.reason_code if is_unknown else printed
        numbers = [
            Text("" if ns is None else duration_text(ns), "bold" if is_sum else "")
            for ns in (line.hard_ns, line.stat_ns)
        ]
        name = plain_text(line.name.replace("_", " "), "bold" if is_sum else "")
        table.add_row(name, plain_text(what, "yellow" if is_unknown else "dim"), *numbers)
    return table


def _unknown_text(line: BudgetLine, printed: str) -> str:
    """`printed`: the code of the reason that the line above has printed."""
    return f"unknown: {line.what}" if line.what and line.reason_code != printed else "unknown"


def _budget_sources(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    explained = explained_source(node)
    for source in node.sources:
        selection, interval = selection_of(source, node), _interval_text(source)
        more = [Text(f"\n{interval}", "dim")] if interval else []
        if selection is not None:
            name, style = _SELECTIONS[selection]
            more.append(Text(f"; {name}" if interval else f"\n{name}", style))
        text = source_text(source, with_reason=source is not explained)
        table.add_row(plain_text(source.name), Text.assemble(text, *more))
    return table


_SELECTIONS: dict[Selection, tuple[str, str]] = {
    Selection.TRUECHIMER: ("truechimer", "dim"),
    Selection.FALSETICKER: ("FALSETICKER", "bold red"),
    Selection.CONTRADICTED: ("CONTRADICTED", "bold red"),
    Selection.DEPENDENT: ("not declared independent: narrows nothing", "dim"),
}


def _interval_text(source: SourceState) -> str:
    """The bound on the error against UTC by this source alone, at its sample; empty: unknown."""
    bound_ns = None if source.utc is None else source.utc.bound_ns
    return "" if bound_ns is None else f"UTC +-{duration_text(bound_ns)} by this source alone"


def _assumption_tables(node: NodeState) -> list[RenderableType]:
    parts: list[RenderableType] = []
    values = assumed_values(node)
    for name in dict.fromkeys(each.source for each in values):
        rows = [_assumed_row(each) for each in values if each.source == name]
        parts += [Text(), plain_text(f"assumed by {name}", "bold"), _columns(rows)]
    if unobservable := unobservable_assumptions(node):
        rows = [
            [Text(assumption.value), plain_text(_of_sources(assumption.text, sources, node), "dim")]
            for assumption, sources in unobservable
        ]
        parts += [Text("\nassumed, and no sample shows it (docs/error-bound.md)", "bold"), _columns(rows)]
    return parts


def _assumed_row(each: AssumedValue) -> list[Text]:
    state, style = {
        None: ("no sample can refute it", "dim"),
        False: ("not refuted", "dim"),
        True: (f"REFUTED: {_value_text(each.in_force, each.unit)}", "bold red"),
    }[each.refuted]
    if each.refuted is None and each.in_force != each.value:
        state, style = f"{_value_text(each.in_force, each.unit)} since a leap second", "dim"
    return [plain_text(each.name), Text(_value_text(each.value, each.unit)), Text(each.origin), Text(state, style)]


def _value_text(value: int | None, unit: str) -> str:
    return "not set" if value is None else f"{value} {unit}".rstrip()


def _of_sources(text: str, sources: Sequence[str], node: NodeState) -> str:
    """With the sources that it is about, where there are others."""
    return f"{text} ({', '.join(sources)})" if sources and len(node.sources) > 1 else text


def _columns(rows: Sequence[Sequence[Text]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
