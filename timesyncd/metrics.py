"""Prometheus: what stands at the moment of a scrape, built anew each time, so that no metric outlives its source."""

from __future__ import annotations

import dataclasses
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from timesyncd.bound import STAT_PROBABILITY, UNIT_HOLDS_NS, Bound, ClockStatus, status_at
from timesyncd.clocks import Clocks
from timesyncd.driver import PollReport
from timesyncd.messages import (
    BoundMessage,
    FindingMessage,
    GrandmasterState,
    JobState,
    NodeState,
    Severity,
    SourceState,
    Status,
    status_name,
)
from timesyncd.sample import ACCURACY_NS, ClockState, PortState, PtpPort

Rows = Iterable[tuple[tuple[str, ...], float | None]]

#: Of each kind of part (a port, a sensor, a channel) so many series a unit at most, whatever it says that it has.
MOST_PARTS = 64

ALARM_SEVERITIES = ("critical", "major", "minor", "event")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counted since the daemon's start; None: that part is not configured."""

    samples_total: int | None = None
    store_rows_total: int | None = None
    store_dropped_total: int | None = None
    mqtt_published_total: int | None = None
    mqtt_dropped_total: int | None = None
    mqtt_outdated_total: int | None = None
    mqtt_rejected_total: int | None = None
    alarms_refused_total: int | None = None
    joblink_datagrams_total: int | None = None
    joblink_rejected_total: int | None = None


COUNTER_HELP = {
    "samples_total": "Fresh clock samples accepted.",
    "store_rows_total": "Rows committed to the store.",
    "store_dropped_total": "Rows that the store dropped because it fell behind.",
    "mqtt_published_total": "Messages that the broker took.",
    "mqtt_dropped_total": "Messages dropped because the broker was away or slow.",
    "mqtt_outdated_total": "Messages received that were older than what was known.",
    "mqtt_rejected_total": "Messages received that were not well-formed.",
    "alarms_refused_total": "Traps and lines of syslog that were no news of a unit here: strangers, wrong keys, repetitions.",
    "joblink_datagrams_total": "Datagrams of ranks that were understood.",
    "joblink_rejected_total": "Datagrams on the job link that were not well-formed, or of more jobs than are kept.",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape shows. `node.age_ns` is as of now; `polls` holds each source's latest report; None: not configured."""

    node: NodeState
    polls: Sequence[PollReport] = ()
    grandmasters: Sequence[GrandmasterState] = ()
    jobs: Sequence[JobState] = ()
    findings: Sequence[FindingMessage] = ()
    mqtt_connected: bool | None = None
    counters: Counters = Counters()


class Metrics:
    """Calling `render` is one scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot], clocks: Clocks) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(snapshot, clocks))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot], clocks: Clocks) -> None:
        self._snapshot = snapshot
        self._clocks = clocks

    def collect(self) -> Iterator[Metric]:
        yield from families(self._snapshot(), self._clocks.realtime_ns())


def families(snapshot: Snapshot, realtime_ns: int) -> Iterator[Metric]:
    yield from _node(snapshot.node)
    yield from _sources(snapshot.node.sources)
    yield from _polls(snapshot.polls)
    yield from _grandmasters(snapshot.grandmasters)
    yield from _jobs(snapshot.jobs, realtime_ns)
    yield from _findings(snapshot.findings)
    yield from _counters(snapshot.counters)
    connected = None if snapshot.mqtt_connected is None else float(snapshot.mqtt_connected)
    yield _gauge("mqtt_connected", "1 while connected to the broker.", (), [((), connected)])


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> GaugeMetricFamily:
    """A value of None is left out: absent, never 0."""
    family = GaugeMetricFamily(f"timesyncd_{name}", text, labels=labels)
    for label_values, value in rows:
        if value is not None:
            family.add_metric(label_values, value)
    return family


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _one_of(names: Iterable[str], actual: str | None) -> Iterator[tuple[str, float]]:
    """A state as one series a name, 1 for the present one, so that an alert can name the state it means."""
    for name in names:
        yield name, float(name == actual)


def _node(node: NodeState) -> Iterator[Metric]:
    names = get_args(Status)
    gm_status, utc_status = (_status_now(node, status) for status in (node.status, node.utc_status))
    yield _gauge(
        "clock_status", "1 for the present status against the grandmaster.", ("node", "status"),
        (((node.node, name), value) for name, value in _one_of(names, gm_status)),
    )  # fmt: skip
    yield _gauge(
        "utc_status", "1 for the present status against UTC.", ("node", "status"),
        (((node.node, name), value) for name, value in _one_of(names, utc_status)),
    )  # fmt: skip
    yield from _bounds(node, gm_status, utc_status)
    yield _gauge("bound_age_seconds", "Age of the sample that the bound rests on.", ("node",),
                 [((node.node,), _seconds(node.age_ns))])  # fmt: skip
    yield from _budget(node)
    if node.grandmaster_identity is not None:
        identities = (node.node, node.grandmaster_identity, node.parent_identity or "")
        yield _gauge("following_info", "Whom the node follows.", ("node", "grandmaster_identity", "parent_identity"),
                     [(identities, 1.0)])  # fmt: skip


def _bounds(node: NodeState, gm_status: Status, utc_status: Status) -> Iterator[Metric]:
    for name, hard, statistical, status in (
        ("parent", node.parent, node.parent_stat, gm_status), ("gm", node.gm, node.gm_stat, gm_status),
        ("utc", node.utc, node.utc_stat, utc_status),
    ):  # fmt: skip
        yield _gauge(f"{name}_bound_seconds", f"Bound on the clock's error ({name}), now; absent when there is none.",
                     ("node",), [((node.node,), _bound_now(hard, status, node.age_ns))])  # fmt: skip
        yield _gauge(f"{name}_bound_stat_seconds", f"The same at a share of {STAT_PROBABILITY} of all moments.",
                     ("node",), [((node.node,), _bound_now(statistical, status, node.age_ns))])  # fmt: skip


def _budget(node: NodeState) -> Iterator[Metric]:
    """Of a bound that is void nothing is left to explain."""
    holds = node.age_ns is not None and node.age_ns < node.void_after_ns
    kinds = [("hard", node.terms), ("stat", node.stat_terms)] if holds else []
    yield _gauge("bound_term_seconds", "What the parent bounds are made of, as of that sample.", ("node", "kind", "term"),
                 (((node.node, kind, term), _seconds(ns)) for kind, terms in kinds for term, ns in terms.items()))  # fmt: skip
    yield _gauge("bound_growth_ratio", "What the hard parent bound grows by, in seconds each second.", ("node", "rate"),
                 (((node.node, rate), _seconds(ppb)) for rate, ppb in node.rates.items() if holds))  # fmt: skip
    yield _gauge("source_falseticker", "1 where it cannot be right while the majority of the sources is.", ("source",),
                 (((s.name,), float(s.name in node.falsetickers)) for s in _read_now(node.sources)))  # fmt: skip


def _read_now(sources: Sequence[SourceState]) -> list[SourceState]:
    """What a state holds of the others is their last sample, not the present."""
    return [source for source in sources if source.reachable and source.reason is None]


def _status_now(node: NodeState, written: Status) -> Status:
    if node.age_ns is None:
        return written
    return status_name(status_at(ClockStatus[written], node.age_ns, node.holdover_after_ns, node.void_after_ns))


def _bound_now(message: BoundMessage | None, status: Status, age_ns: int | None) -> float | None:
    """Seconds; None where the status leaves no bound to rely on."""
    if message is None or age_ns is None or status in ("UNKNOWN", "DISRUPTED"):
        return None
    return _seconds(Bound(message.bound_ns, message.growth_ppb).at(age_ns))


def _sources(sources: Sequence[SourceState]) -> Iterator[Metric]:
    sources = _read_now(sources)
    gauges: tuple[tuple[str, str, Callable[[SourceState], float | None]], ...] = (
        (
            "offset_seconds",
            "Local clock minus reference: positive = ahead; against a PHC without whole seconds.",
            lambda s: _seconds(s.offset_ns),
        ),
        (
            "offset_error_seconds",
            "How well the source itself says that it knows that offset.",
            lambda s: _seconds(s.error_ns),
        ),
        ("path_delay_seconds", "Mean path delay to the parent.", lambda s: _seconds(s.path_delay_ns)),
        ("frequency_ratio", "Frequency error against the reference.", lambda s: _seconds(s.frequency_ppb)),
        ("steps_removed", "Hops to the grandmaster.", lambda s: s.steps_removed),
        ("clock_class", "clockClass of the grandmaster that the source follows.", lambda s: s.clock_class),
    )
    for name, text, read in gauges:
        yield _gauge(name, text, ("source",), [((s.name,), read(s)) for s in sources])
    ports = [(s.name, s.port_state) for s in sources if s.port_state is not None]
    names = [state.name for state in PortState]
    yield _gauge("port_state", "1 for the PTP port's present state.", ("source", "state"),
                 (((source, name), value) for source, port in ports for name, value in _one_of(names, port)))  # fmt: skip


def _polls(polls: Sequence[PollReport]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[PollReport], float | None]], ...] = (
        ("poll_duration_seconds", "How long the latest poll took.", lambda p: _seconds(p.duration_ns)),
        ("poll_success", "1 when the latest poll succeeded.", lambda p: float(p.error is None)),
        ("poll_failures_in_row", "Polls failed since the last that succeeded.", lambda p: p.lost),
    )
    for name, text, read in gauges:
        yield _gauge(name, text, ("source",), [((p.source,), read(p)) for p in polls])


def _grandmasters(units: Sequence[GrandmasterState]) -> Iterator[Metric]:
    """Of a unit that does not answer only that, and its bound, which grows: the rest would be its last word, not the present."""
    yield from _unit_gauges(units, _OF_EVERY_UNIT)
    present = [unit for unit in units if unit.reachable]
    yield from _unit_gauges(present, _OF_PRESENT_UNITS)
    for name, text, states, read in _UNIT_STATES:
        yield _gauge(f"grandmaster_{name}", text, ("grandmaster", "state"),
                     (((g.name, state), value) for g in present if (now := read(g)) for state, value in _one_of(states, now)))  # fmt: skip
    yield _gauge("grandmaster_alarms", "Standing alarms by the unit's own severity.", ("grandmaster", "severity"),
                 (((g.name, severity), count) for g in present for severity, count in _alarms(g)))  # fmt: skip
    for name, text, label, read_all in _UNIT_PARTS:
        parts = [(g.name, dict(islice(read_all(g), MOST_PARTS))) for g in present]
        yield _gauge(f"grandmaster_{name}", text, ("grandmaster", *label),
                     (((unit, *key), value) for unit, found in parts for key, value in found.items()))  # fmt: skip
    yield _gauge("grandmaster_info", "What it is.", ("grandmaster", "model", "serial", "firmware", "oscillator"),
                 (((g.name, g.model or "", g.serial or "", g.firmware or "", g.oscillator or ""), 1.0) for g in present))  # fmt: skip


def _unit_gauges(units: Sequence[GrandmasterState], gauges: Iterable[UnitGauge]) -> Iterator[Metric]:
    for name, text, read in gauges:
        yield _gauge(f"grandmaster_{name}", text, ("grandmaster",), [((g.name,), read(g)) for g in units])


def _unit_bound_now(unit: GrandmasterState) -> float | None:
    """None where nothing holds any more: what a poll told is too old, or the holdover budget is used up since."""
    if unit.utc is None or unit.age_ns is None or unit.age_ns > UNIT_HOLDS_NS or _holdover_left_ns(unit) == 0:
        return None
    return _seconds(Bound(unit.utc.bound_ns, unit.utc.growth_ppb).at(unit.age_ns))


def _holdover_left_ns(unit: GrandmasterState) -> int | None:
    if unit.holdover_left_ns is None or unit.age_ns is None:
        return None
    return max(0, unit.holdover_left_ns - unit.age_ns)


def _alarms(unit: GrandmasterState) -> Iterator[tuple[str, float]]:
    """A severity that a unit made up itself is "other": no device decides how many series there are."""
    if unit.alarms is not None:
        severities = Tally(a.severity if a.severity in ALARM_SEVERITIES else "other" for a in unit.alarms)
        yield from ((severity, severities[severity]) for severity in (*ALARM_SEVERITIES, "other"))


def _cn0_median(unit: GrandmasterState) -> float | None:
    known = [satellite.cn0_db_hz for satellite in unit.satellites or () if satellite.cn0_db_hz is not None]
    return median(known) if known else None


def _temperatures(unit: GrandmasterState) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for sensor in unit.sensors or ():
        if sensor.kind == "temperature" and sensor.unit in ("C", "celsius"):
            yield (sensor.name,), sensor.value


def _sensors_ok(unit: GrandmasterState) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Of several with one name (a fan, and the sensor of its speed) the one that is not well counts."""
    rated = [sensor for sensor in unit.sensors or () if sensor.ok is not None]
    for sensor in sorted(rated, key=lambda sensor: sensor.ok is False):  # the last of a name is the one that is shown
        yield (sensor.name, sensor.kind), float(sensor.ok is True)


def _of_ports(read: Callable[[PtpPort], float | None]) -> PartReader:
    return lambda unit: (((port.name,), read(port)) for port in unit.ports or ())


def _load_ratio(port: PtpPort) -> float | None:
    return None if port.client_load_percent is None else port.client_load_percent / 100


UnitGauge = tuple[str, str, Callable[[GrandmasterState], float | None]]
PartReader = Callable[[GrandmasterState], Iterable[tuple[tuple[str, ...], float | None]]]

_OF_EVERY_UNIT: tuple[UnitGauge, ...] = (
    ("reachable", "1 when it answered the latest poll.", lambda g: float(g.reachable)),
    ("age_seconds", "Since it last answered.", lambda g: _seconds(g.age_ns)),
    ("utc_bound_seconds", "Bound on its own error against UTC, now; absent when there is none.", _unit_bound_now),
    ("holdover_left_seconds", "Until its holdover budget is used up.", lambda g: _seconds(_holdover_left_ns(g))),
)
_OF_PRESENT_UNITS: tuple[UnitGauge, ...] = (
    ("uptime_seconds", "Since it started.", lambda g: g.uptime_s),
    ("clock_state_since_timestamp_seconds", "When its clock state began.",
     lambda g: _seconds(g.clock_state_since_realtime_ns)),
    ("clock_class", "clockClass that it announces.", lambda g: g.clock_class),
    ("clock_accuracy_seconds", "The accuracy that it announces; absent where that bounds nothing.",
     lambda g: _seconds(ACCURACY_NS.get(-1 if g.clock_accuracy is None else g.clock_accuracy))),
    ("phase_offset_seconds", "Its phase against its own reference.", lambda g: _seconds(g.phase_offset_ns)),
    ("utc_offset_seconds", "TAI minus UTC that it announces.", lambda g: g.utc_offset_s),
    ("satellites_tracked", "Satellites tracked.", lambda g: g.satellites_tracked),
    ("satellites_healthy", "Satellites tracked and healthy.", lambda g: g.satellites_healthy),
    ("satellites_cn0_median_dbhz", "Median C/N0 of its satellites.", _cn0_median),
    ("ntp_stratum", "Its stratum as an NTP server.", lambda g: g.ntp_stratum),
)  # fmt: skip
_UNIT_STATES: tuple[tuple[str, str, Sequence[str], Callable[[GrandmasterState], str | None]], ...] = (
    ("clock_state", "1 for its servo's present state.", [state.value for state in ClockState], lambda g: g.clock_state),
    ("leap", "1 for what it announces of a leap second.", ["none", "insert", "delete"], lambda g: g.leap),
)
_UNIT_PARTS: tuple[tuple[str, str, tuple[str, ...], PartReader], ...] = (
    ("port_clients", "Clients of a PTP port.", ("port",), _of_ports(lambda port: port.clients)),
    ("port_max_clients", "Clients that a PTP port takes at most.", ("port",), _of_ports(lambda port: port.max_clients)),
    ("port_load_ratio", "Share of a PTP port's capacity that is used.", ("port",), _of_ports(_load_ratio)),
    ("time_error_seconds", "Newest time error of a channel: positive = the channel is ahead.", ("channel", "metric"),
     lambda g: (((e.channel, e.metric), _seconds(e.value_ns)) for e in g.time_errors or ())),
    ("temperature_celsius", "A temperature inside it.", ("sensor",), _temperatures),
    ("sensor_ok", "1 when the unit rates a fan, a supply or a temperature as good.", ("sensor", "kind"), _sensors_ok),
    ("offset_seconds", "Its time minus another unit's.", ("other",),
     lambda g: (((o.other,), _seconds(o.offset_ns)) for o in g.offsets)),
    ("offset_bound_seconds", "How well that offset is known.", ("other",),
     lambda g: (((o.other,), _seconds(o.bound_ns)) for o in g.offsets)),
)  # fmt: skip


def _jobs(jobs: Sequence[JobState], realtime_ns: int) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[JobState], float | None]], ...] = (
        ("sync_overhead_ratio", "Time in synchronization to elapsed time.", lambda j: j.sync_overhead),
        ("alignment_seconds", "Bound on how far the clocks of its nodes are apart, now.",
         lambda j: _alignment_now(j, realtime_ns)),
        ("arrival_skew_seconds", "First to last arrival in the newest complete step.", lambda j: _seconds(j.arrival_skew_ns)),
        ("arrival_skew_error_seconds", "The skew's error bar.", lambda j: _seconds(j.arrival_skew_error_ns)),
        ("slow_rank", "The rank that is last persistently; absent when none is.", lambda j: j.slow_rank),
        ("steps_complete", "Steps of which every rank's marks came.", lambda j: j.steps_complete),
        ("steps_incomplete", "Steps closed without all marks.", lambda j: j.steps_incomplete),
    )  # fmt: skip
    for name, text, read in gauges:
        rows = [((j.job_id, j.job, str(j.attempt)), read(j)) for j in jobs]
        yield _gauge(f"job_{name}", text, ("job_id", "job", "attempt"), rows)


def _alignment_now(job: JobState, realtime_ns: int) -> float | None:
    age_ns = max(0, realtime_ns - job.published_realtime_ns)
    return _seconds(Bound(job.alignment_ns, job.alignment_growth_ppb or 0).at(age_ns))


def _findings(findings: Sequence[FindingMessage]) -> Iterator[Metric]:
    standing = Tally(f.severity for f in findings if f.until_realtime_ns is None)
    yield _gauge("findings", "Standing findings.", ("severity",),
                 [((severity,), standing[severity]) for severity in get_args(Severity)])  # fmt: skip


def _counters(counters: Counters) -> Iterator[Metric]:
    for field in dataclasses.fields(counters):
        value: int | None = getattr(counters, field.name)
        if value is not None:
            yield CounterMetricFamily(f"timesyncd_{field.name}", COUNTER_HELP[field.name], value)
