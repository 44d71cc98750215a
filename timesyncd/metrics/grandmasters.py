"""The metrics of grandmasters."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from statistics import median

from prometheus_client.core import Metric

from timesyncd.messages.node import GrandmasterState
from timesyncd.metrics.parts import gauge, seconds, state_rows
from timesyncd.sample import ACCURACY_NS, ClockState, PtpPort

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
        "1 for the announced leap second: none, insert or delete.",
        ["none", "insert", "delete"],
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
