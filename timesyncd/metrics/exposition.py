"""
The Prometheus metrics of a daemon, its sources and the grandmasters, rebuilt at each scrape, so that no metric outlives
its source.
"""

from __future__ import annotations

import dataclasses
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from timesyncd.bound import STAT_PROBABILITY, Bound, ClockStatus, status_at
from timesyncd.build import this_build
from timesyncd.clocks import Clocks
from timesyncd.driver import PollReport
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import (
    OK,
    BoundMessage,
    FindingMessage,
    GrandmasterState,
    NodeState,
    SourceState,
    Status,
    status_name,
)
from timesyncd.metrics import hub
from timesyncd.metrics.hub import FleetSnapshot, MessageLag
from timesyncd.metrics.parts import gauge, seconds, state_rows
from timesyncd.sample import ACCURACY_NS, ClockState, PortState, PtpPort


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the daemon's start; None: that part is not configured. The fields are the metrics' names."""

    samples_total: int | None = None
    store_rows_total: int | None = None
    store_dropped_total: int | None = None
    store_rollups_total: int | None = None
    store_damaged_values_total: int | None = None
    outbox_sent_total: int | None = None
    outbox_resent_total: int | None = None
    outbox_lost_total: int | None = None
    history_stored_total: int | None = None
    history_lost_total: int | None = None
    mqtt_published_total: int | None = None
    mqtt_dropped_total: int | None = None
    mqtt_outdated_total: int | None = None
    mqtt_rejected_total: int | None = None
    mqtt_failed_total: int | None = None
    mqtt_names_refused_total: int | None = None
    alarms_refused_total: int | None = None
    joblink_datagrams_total: int | None = None
    joblink_rejected_total: int | None = None
    web_refused_total: int | None = None


COUNTER_HELP = {
    "samples_total": "Clock samples accepted.",
    "store_rows_total": "Rows committed to the store.",
    "store_dropped_total": "Rows that the store dropped: queue overflow, or no column for the value.",
    "store_rollups_total": "Minutes and hours of a source that were rolled up.",
    "store_damaged_values_total": "Stored values that the roll-ups leave out: they have not their column's type.",
    "outbox_sent_total": "History rows sent to the hubs for the first time.",
    "outbox_resent_total": "History rows sent again because no hub confirmed them.",
    "outbox_lost_total": "History rows dropped before a hub confirmed them: too old, or outbox full.",
    "history_stored_total": "History rows of nodes that this hub stored.",
    "history_lost_total": "History rows that a node had already dropped when this hub requested them.",
    "mqtt_published_total": "MQTT messages that the broker acknowledged.",
    "mqtt_dropped_total": "MQTT messages dropped because the broker was unreachable or slow.",
    "mqtt_outdated_total": "Received MQTT messages that were older than the known state.",
    "mqtt_rejected_total": "Received MQTT messages that were malformed.",
    "mqtt_failed_total": "Received MQTT messages whose processing failed unexpectedly; the log has the error.",
    "mqtt_names_refused_total": "Messages of nodes, grandmasters, jobs and hubs without room for another name, and names dropped for others.",
    "alarms_refused_total": "Rejected traps and syslog messages: unknown sender, bad credentials, duplicates.",
    "joblink_datagrams_total": "Datagrams of ranks accepted on the job socket.",
    "joblink_rejected_total": "Rejected datagrams on the job socket: malformed, or too many jobs.",
    "web_refused_total": "HTTP requests with a wrong token, without those of addresses that are blocked for guessing.",
}


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """
    The values of one scrape; None: that part is not configured. `node.age_ns` is the age at the scrape.

    `polls` holds the latest report of each source. `fleet` and `lag` exist on a hub. `outbox_waiting` counts history
    rows that no hub has confirmed, `store_waiting` rows that the store has not committed yet.
    """

    node: NodeState
    polls: Sequence[PollReport] = ()
    grandmasters: Sequence[GrandmasterState] = ()
    jobs: Sequence[JobState] = ()
    findings: Sequence[FindingMessage] = ()
    mqtt_connected: bool | None = None
    counters: Counters = Counters()
    fleet: FleetSnapshot | None = None
    lag: MessageLag | None = None
    outbox_waiting: int | None = None
    store_waiting: int | None = None
    cost: DaemonCost | None = None


class Metrics:
    """The metrics as text; each call of `render` is one scrape."""

    def __init__(self, snapshot: Callable[[], MetricsSnapshot], clocks: Clocks) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(snapshot, clocks))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, snapshot: Callable[[], MetricsSnapshot], clocks: Clocks) -> None:
        self._snapshot = snapshot
        self._clocks = clocks

    def collect(self) -> Iterator[Metric]:
        yield from families(self._snapshot(), self._clocks.realtime_ns())


def families(snapshot: MetricsSnapshot, realtime_ns: int) -> Iterator[Metric]:
    node = snapshot.node
    yield gauge(
        "node_info", "Name and topology of this node.", ("node", "topology"), [((node.node, node.topology), 1.0)]
    )
    this = this_build()
    labels = ("version", "commit", "python")
    yield gauge(
        "build_info", "Which timesyncd this is.", labels, [((this.version, this.commit or "", this.python), 1.0)]
    )
    if node.sources:
        yield from _node(node)
    yield from _sources(snapshot.node.sources)
    yield from _polls(snapshot.polls)
    yield from grandmasters(snapshot.grandmasters)
    yield from hub.jobs(snapshot.jobs, realtime_ns)
    yield from hub.findings(snapshot.findings)
    if snapshot.fleet is not None:
        yield from hub.fleet(snapshot.fleet, realtime_ns)
    yield from _services(snapshot)
    if snapshot.cost is not None:
        yield from _cost(snapshot.cost)
    yield from _counters(snapshot.counters)


def _services(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    connected = None if snapshot.mqtt_connected is None else float(snapshot.mqtt_connected)
    yield gauge("mqtt_connected", "1 while the daemon is connected to the broker.", (), [((), connected)])
    yield gauge("outbox_waiting_rows", "History rows that the hubs have not confirmed yet.", (),
                [((), snapshot.outbox_waiting)])  # fmt: skip
    yield gauge("store_waiting_rows", "Rows that the store has not committed yet.", (),
                [((), snapshot.store_waiting)])  # fmt: skip
    if snapshot.lag is not None:
        yield from snapshot.lag.families()


def _cost(cost: DaemonCost) -> Iterator[Metric]:
    """Processor time and memory are in process_*."""
    yield gauge("poll_slowdown", "By how much polls are further apart than configured, to keep to the budget of CPU; 1: not at all.",
                (), [((), cost.poll_factor)])  # fmt: skip
    polls = CounterMetricFamily("timesyncd_source_polls_total", "Polls of a source or grandmaster.", labels=("source",))
    for each in cost.sources:
        polls.add_metric((each.source,), each.polls)
    yield polls
    for what, sent, received in (
        ("packets", "packets_sent", "packets_received"),
        ("bytes", "bytes_sent", "bytes_received"),
    ):
        text = f"The {what} sent to and received from a source, a grandmaster or the broker; none of HTTPS."
        family = CounterMetricFamily(f"timesyncd_source_{what}_total", text, labels=("source", "direction"))
        for each in cost.sources:
            family.add_metric((each.source, "sent"), getattr(each, sent))
            family.add_metric((each.source, "received"), getattr(each, received))
        yield family


def _node(node: NodeState) -> Iterator[Metric]:
    names = get_args(Status)
    gm_status, utc_status = (_status_now(node, status) for status in (node.status, node.utc_status))
    yield gauge(
        "clock_status", "1 for the current status against the grandmaster.", ("node", "status"),
        (((node.node, name), value) for name, value in state_rows(names, gm_status)),
    )  # fmt: skip
    yield gauge(
        "utc_status", "1 for the current status against UTC.", ("node", "status"),
        (((node.node, name), value) for name, value in state_rows(names, utc_status)),
    )  # fmt: skip
    yield from _main(node)
    yield from _bounds(node, gm_status, utc_status)
    yield gauge("bound_age_seconds", "Age of the bound's newest sample.", ("node",),
                 [((node.node,), seconds(node.age_ns))])  # fmt: skip
    yield from _budget(node)
    if node.grandmaster_identity is not None:
        identities = (node.node, node.grandmaster_identity, node.parent_identity or "")
        yield gauge("following_info", "Grandmaster and parent that the node follows.", ("node", "grandmaster_identity", "parent_identity"),
                     [(identities, 1.0)])  # fmt: skip


def _main(node: NodeState) -> Iterator[Metric]:
    """The main bound: against the grandmaster, or against UTC where the sources know no grandmaster."""
    status = _status_now(node, node.main_status)
    main = None if node.main_bound is None else _bound_now(node.main_bound, status, node.age_ns)
    yield gauge("node_status", "1 for the current status of the main bound.", ("node", "status"),
                (((node.node, name), value) for name, value in state_rows(get_args(Status), status)))  # fmt: skip
    yield gauge("node_bound_seconds", "The main bound now: against the grandmaster, or against UTC where the sources know none.",
                ("node",), [((node.node,), main)])  # fmt: skip
    growth = None if main is None or node.main_bound is None else seconds(node.main_bound.growth_ppb)
    yield gauge("node_bound_growth_ratio", "Growth of the main bound, in seconds per second.", ("node",),
                [((node.node,), growth)])  # fmt: skip
    left_ns = None if main is None or node.age_ns is None else node.void_after_ns - node.age_ns
    yield gauge("node_bound_holds_seconds", "Time until the main bound expires without new samples.", ("node",),
                [((node.node,), seconds(left_ns))])  # fmt: skip


def _bounds(node: NodeState, gm_status: Status, utc_status: Status) -> Iterator[Metric]:
    for name, against, hard, statistical, status in (
        ("parent", "the PTP parent", node.parent, node.parent_stat, gm_status),
        ("gm", "the grandmaster", node.gm, node.gm_stat, gm_status),
        ("utc", "UTC", node.utc, node.utc_stat, utc_status),
    ):  # fmt: skip
        yield gauge(f"{name}_bound_seconds", f"Hard bound on the clock error against {against}, now; absent if unknown.",
                     ("node",), [((node.node,), _bound_now(hard, status, node.age_ns))])  # fmt: skip
        yield gauge(f"{name}_bound_stat_seconds", f"Statistical bound on the clock error against {against}, now; it holds at a share of {STAT_PROBABILITY} of all times.",
                     ("node",), [((node.node,), _bound_now(statistical, status, node.age_ns))])  # fmt: skip


def _budget(node: NodeState) -> Iterator[Metric]:
    """Terms and rates, until the bound expires."""
    holds = node.age_ns is not None and node.age_ns < node.void_after_ns
    kinds = [("hard", node.terms), ("stat", node.stat_terms)] if holds else []
    yield gauge("bound_term_seconds", "Terms of the bounds against the PTP parent, at the newest sample.", ("node", "kind", "term"),
                 (((node.node, kind, term), seconds(ns)) for kind, terms in kinds for term, ns in terms.items()))  # fmt: skip
    yield gauge("bound_growth_ratio", "Rates that add up to the growth of the hard bound against the PTP parent, in seconds per second.", ("node", "rate"),
                 (((node.node, rate), seconds(ppb)) for rate, ppb in node.rates.items() if holds))  # fmt: skip
    yield gauge("source_falseticker", "1 if the source contradicts the majority of the sources.", ("source",),
                 (((s.name,), float(s.name in node.falsetickers)) for s in _read_now(node.sources)))  # fmt: skip


def _read_now(sources: Sequence[SourceState]) -> list[SourceState]:
    """The sources with a current sample; the state of the others is their last known one."""
    return [source for source in sources if source.reachable and source.reason_code == OK]


def _status_now(node: NodeState, written: Status) -> Status:
    if node.age_ns is None:
        return written
    return status_name(status_at(ClockStatus[written], node.age_ns, node.holdover_after_ns, node.void_after_ns))


def _bound_now(message: BoundMessage | None, status: Status, age_ns: int | None) -> float | None:
    """Seconds; None if the bound is unknown, or the status UNKNOWN or DISRUPTED."""
    if message is None or age_ns is None or status in ("UNKNOWN", "DISRUPTED"):
        return None
    return seconds(Bound(message.bound_ns, message.growth_ppb).at(age_ns))


def _sources(sources: Sequence[SourceState]) -> Iterator[Metric]:
    sources = _read_now(sources)
    gauges: tuple[tuple[str, str, Callable[[SourceState], float | None]], ...] = (
        (
            "offset_seconds",
            "Local clock minus reference; positive: the local clock is ahead. Whole seconds against a PHC are removed.",
            lambda s: seconds(s.offset_ns),
        ),
        (
            "offset_error_seconds",
            "Error of that offset as the source states it.",
            lambda s: seconds(s.error_ns),
        ),
        ("path_delay_seconds", "Mean path delay to the PTP parent.", lambda s: seconds(s.path_delay_ns)),
        ("frequency_ratio", "Frequency offset against the reference.", lambda s: seconds(s.frequency_ppb)),
        ("steps_removed", "PTP stepsRemoved: communication paths to the grandmaster.", lambda s: s.steps_removed),
        ("clock_class", "clockClass of the grandmaster that the source follows.", lambda s: s.clock_class),
    )
    for name, text, read in gauges:
        yield gauge(name, text, ("source",), [((s.name,), read(s)) for s in sources])
    ports = [(s.name, s.port_state) for s in sources if s.port_state is not None]
    names = [state.name for state in PortState]
    yield gauge("port_state", "1 for the current state of the PTP port.", ("source", "state"),
                 (((source, name), value) for source, port in ports for name, value in state_rows(names, port)))  # fmt: skip


def _polls(polls: Sequence[PollReport]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[PollReport], float | None]], ...] = (
        ("poll_duration_seconds", "Duration of the latest poll.", lambda p: seconds(p.duration_ns)),
        ("poll_success", "1 when the latest poll succeeded.", lambda p: float(p.error is None)),
        ("poll_failures_in_row", "Failed polls since the last successful one.", lambda p: p.failures),
    )
    for name, text, read in gauges:
        yield gauge(name, text, ("source",), [((p.source,), read(p)) for p in polls])


def _counters(counters: Counters) -> Iterator[Metric]:
    for field in dataclasses.fields(counters):
        value: int | None = getattr(counters, field.name)
        if value is not None:
            yield CounterMetricFamily(f"timesyncd_{field.name}", COUNTER_HELP[field.name], value)


#: The largest number of series of one kind of part (port, sensor, channel) of a grandmaster, however many it reports.
MAX_PARTS = 64

ALARM_SEVERITIES = ("critical", "major", "minor", "event")


def grandmasters(states: Sequence[GrandmasterState]) -> Iterator[Metric]:
    """An unreachable grandmaster has only reachability, age and its growing bound: its other values are outdated."""
    yield from _gauges(states, _ALWAYS)
    present = [state for state in states if state.reachable]
    yield from _gauges(present, _WHILE_REACHABLE)
    for name, text, names, read in _STATES:
        yield gauge(f"grandmaster_{name}", text, ("grandmaster", "state"),
                     (((g.name, state), value) for g in present if (now := read(g)) for state, value in state_rows(names, now)))  # fmt: skip
    yield gauge("grandmaster_alarms", "Active alarms by the grandmaster's own severity.", ("grandmaster", "severity"),
                 (((g.name, severity), count) for g in present for severity, count in _alarms(g)))  # fmt: skip
    for metric, text, label, read_all in _PARTS:
        parts = [(g.name, dict(islice(read_all(g), MAX_PARTS))) for g in present]
        yield gauge(f"grandmaster_{metric}", text, ("grandmaster", *label),
                     (((name, *key), value) for name, found in parts for key, value in found.items()))  # fmt: skip
    yield gauge("grandmaster_info", "Model, serial number, firmware and oscillator.", ("grandmaster", "model", "serial", "firmware", "oscillator"),
                 (((g.name, g.model or "", g.serial or "", g.firmware or "", g.oscillator or ""), 1.0) for g in present))  # fmt: skip


def _gauges(states: Sequence[GrandmasterState], gauges: Iterable[GrandmasterGauge]) -> Iterator[Metric]:
    for name, text, read in gauges:
        yield gauge(f"grandmaster_{name}", text, ("grandmaster",), [((g.name,), read(g)) for g in states])


def _alarms(state: GrandmasterState) -> Iterator[tuple[str, float]]:
    """An unknown severity counts as "other", so that no device determines the number of series."""
    if state.alarms is not None:
        severities = Tally(a.severity if a.severity in ALARM_SEVERITIES else "other" for a in state.alarms)
        yield from ((severity, severities[severity]) for severity in (*ALARM_SEVERITIES, "other"))


def _cn0_median(state: GrandmasterState) -> float | None:
    known = [satellite.cn0_db_hz for satellite in state.satellites or () if satellite.cn0_db_hz is not None]
    return median(known) if known else None


def _temperatures(state: GrandmasterState) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for sensor in state.sensors or ():
        if sensor.kind == "temperature" and sensor.unit in ("C", "celsius"):
            yield (sensor.name,), sensor.value


def _sensors_ok(state: GrandmasterState) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Of several sensors with one name (a fan, and its speed), a bad one takes precedence."""
    rated = [sensor for sensor in state.sensors or () if sensor.ok is not None]
    for sensor in sorted(rated, key=lambda sensor: sensor.ok is False):  # the last one of a name is exported
        yield (sensor.name, sensor.kind), float(sensor.ok is True)


def _of_ports(read: Callable[[PtpPort], float | None]) -> PartReader:
    return lambda state: (((port.name,), read(port)) for port in state.ports or ())


def _load_ratio(port: PtpPort) -> float | None:
    return None if port.client_load_percent is None else port.client_load_percent / 100


GrandmasterGauge = tuple[str, str, Callable[[GrandmasterState], float | None]]
PartReader = Callable[[GrandmasterState], Iterable[tuple[tuple[str, ...], float | None]]]

_ALWAYS: tuple[GrandmasterGauge, ...] = (
    ("reachable", "1 if the grandmaster replied to the latest poll.", lambda g: float(g.reachable)),
    ("age_seconds", "Time since the last successful poll.", lambda g: seconds(g.age_ns)),
    (
        "utc_bound_seconds",
        "Bound on the grandmaster's own error against UTC, now; absent if unknown.",
        lambda g: seconds(g.current_utc_bound_ns),
    ),
    (
        "holdover_left_seconds",
        "Time until the holdover budget is used up.",
        lambda g: seconds(g.current_holdover_left_ns),
    ),
)
_WHILE_REACHABLE: tuple[GrandmasterGauge, ...] = (
    ("uptime_seconds", "Time since the grandmaster started.", lambda g: g.uptime_s),
    ("clock_state_since_timestamp_seconds", "Begin of the current clock state, as a Unix time.",
     lambda g: seconds(g.clock_state_since_realtime_ns)),
    ("clock_class", "Announced PTP clockClass.", lambda g: g.clock_class),
    ("clock_accuracy_seconds", "Announced PTP clockAccuracy; absent for values that state no limit.",
     lambda g: seconds(ACCURACY_NS.get(-1 if g.clock_accuracy is None else g.clock_accuracy))),
    ("phase_offset_seconds", "Phase offset of the grandmaster against its own reference.", lambda g: seconds(g.phase_offset_ns)),
    ("utc_offset_seconds", "Announced TAI minus UTC.", lambda g: g.utc_offset_s),
    ("satellites_tracked", "Satellites tracked.", lambda g: g.satellites_tracked),
    ("satellites_healthy", "Satellites tracked and healthy.", lambda g: g.satellites_healthy),
    ("satellites_cn0_median_dbhz", "Median C/N0 of the tracked satellites.", _cn0_median),
    ("ntp_stratum", "Stratum of the grandmaster as an NTP server.", lambda g: g.ntp_stratum),
)  # fmt: skip
_STATES: tuple[tuple[str, str, Sequence[str], Callable[[GrandmasterState], str | None]], ...] = (
    (
        "clock_state",
        "1 for the current state of the grandmaster's clock.",
        [state.value for state in ClockState],
        lambda g: g.clock_state,
    ),
    (
        "leap",
        "1 for the announced leap second: none, insert, delete, or both.",
        ["none", "insert", "delete", "both"],
        lambda g: g.leap,
    ),
)
_PARTS: tuple[tuple[str, str, tuple[str, ...], PartReader], ...] = (
    ("port_clients", "Clients of a PTP port.", ("port",), _of_ports(lambda port: port.clients)),
    ("port_max_clients", "Largest number of clients that a PTP port serves.", ("port",), _of_ports(lambda port: port.max_clients)),
    ("port_load_ratio", "Used share of a PTP port's capacity.", ("port",), _of_ports(_load_ratio)),
    ("time_error_seconds", "Newest time error of a channel; positive: the channel is ahead.", ("channel", "metric"),
     lambda g: (((e.channel, e.metric), seconds(e.value_ns)) for e in g.time_errors or ())),
    ("temperature_celsius", "Temperature inside the grandmaster.", ("sensor",), _temperatures),
    ("sensor_ok", "1 if the grandmaster rates a fan, a power supply or a temperature as good.", ("sensor", "kind"), _sensors_ok),
    ("offset_seconds", "Time of this grandmaster minus that of another one.", ("other",),
     lambda g: (((o.other,), seconds(o.offset_ns)) for o in g.offsets)),
    ("offset_bound_seconds", "Bound on the error of that offset.", ("other",),
     lambda g: (((o.other,), seconds(o.bound_ns)) for o in g.offsets)),
)  # fmt: skip
