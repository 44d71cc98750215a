"""A grandmaster's metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from statistics import median

from prometheus_client.core import Metric

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound
from timesyncd.messages.node import GrandmasterState
from timesyncd.metrics.parts import gauge, seconds, state_rows
from timesyncd.sample import ACCURACY_NS, ClockState, PtpPort

#: Of each kind of part (a port, a sensor, a channel) so many series a unit at most, whatever it says that it has.
MAX_PARTS = 64

ALARM_SEVERITIES = ("critical", "major", "minor", "event")


def grandmasters(units: Sequence[GrandmasterState]) -> Iterator[Metric]:
    """Of a unit that does not answer only that, and its bound, which grows: the rest would be its last word, not the present."""
    yield from _unit_gauges(units, _OF_EVERY_UNIT)
    present = [unit for unit in units if unit.reachable]
    yield from _unit_gauges(present, _OF_PRESENT_UNITS)
    for name, text, states, read in _UNIT_STATES:
        yield gauge(f"grandmaster_{name}", text, ("grandmaster", "state"),
                     (((g.name, state), value) for g in present if (now := read(g)) for state, value in state_rows(states, now)))  # fmt: skip
    yield gauge("grandmaster_alarms", "Standing alarms by the unit's own severity.", ("grandmaster", "severity"),
                 (((g.name, severity), count) for g in present for severity, count in _alarms(g)))  # fmt: skip
    for name, text, label, read_all in _UNIT_PARTS:
        parts = [(g.name, dict(islice(read_all(g), MAX_PARTS))) for g in present]
        yield gauge(f"grandmaster_{name}", text, ("grandmaster", *label),
                     (((unit, *key), value) for unit, found in parts for key, value in found.items()))  # fmt: skip
    yield gauge("grandmaster_info", "What it is.", ("grandmaster", "model", "serial", "firmware", "oscillator"),
                 (((g.name, g.model or "", g.serial or "", g.firmware or "", g.oscillator or ""), 1.0) for g in present))  # fmt: skip


def _unit_gauges(units: Sequence[GrandmasterState], gauges: Iterable[UnitGauge]) -> Iterator[Metric]:
    for name, text, read in gauges:
        yield gauge(f"grandmaster_{name}", text, ("grandmaster",), [((g.name,), read(g)) for g in units])


def _unit_bound_now(unit: GrandmasterState) -> float | None:
    """None where nothing holds any more: what a poll told is too old, or the holdover budget is used up since."""
    if (
        unit.utc is None
        or unit.age_ns is None
        or unit.age_ns > GRANDMASTER_EXPIRES_AFTER_NS
        or _holdover_left_ns(unit) == 0
    ):
        return None
    return seconds(Bound(unit.utc.bound_ns, unit.utc.growth_ppb).at(unit.age_ns))


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
    ("age_seconds", "Since it last answered.", lambda g: seconds(g.age_ns)),
    ("utc_bound_seconds", "Bound on its own error against UTC, now; absent when there is none.", _unit_bound_now),
    ("holdover_left_seconds", "Until its holdover budget is used up.", lambda g: seconds(_holdover_left_ns(g))),
)
_OF_PRESENT_UNITS: tuple[UnitGauge, ...] = (
    ("uptime_seconds", "Since it started.", lambda g: g.uptime_s),
    ("clock_state_since_timestamp_seconds", "When its clock state began.",
     lambda g: seconds(g.clock_state_since_realtime_ns)),
    ("clock_class", "clockClass that it announces.", lambda g: g.clock_class),
    ("clock_accuracy_seconds", "The accuracy that it announces; absent where that bounds nothing.",
     lambda g: seconds(ACCURACY_NS.get(-1 if g.clock_accuracy is None else g.clock_accuracy))),
    ("phase_offset_seconds", "Its phase against its own reference.", lambda g: seconds(g.phase_offset_ns)),
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
     lambda g: (((e.channel, e.metric), seconds(e.value_ns)) for e in g.time_errors or ())),
    ("temperature_celsius", "A temperature inside it.", ("sensor",), _temperatures),
    ("sensor_ok", "1 when the unit rates a fan, a supply or a temperature as good.", ("sensor", "kind"), _sensors_ok),
    ("offset_seconds", "Its time minus another unit's.", ("other",),
     lambda g: (((o.other,), seconds(o.offset_ns)) for o in g.offsets)),
    ("offset_bound_seconds", "How well that offset is known.", ("other",),
     lambda g: (((o.other,), seconds(o.bound_ns)) for o in g.offsets)),
)  # fmt: skip
