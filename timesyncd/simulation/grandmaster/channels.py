"""The measured channels of a TimeProvider and their time error, now and in the past day."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from timesyncd.simulation.grandmaster.device import Device

DAY_S = 86_400
#: Of what cte is the mean and max-te the largest: the last 100 seconds, every tenth of them.
_WINDOW_S, _WINDOW_STEP_S = 100, 10
#: What a PTP input reads where it is connected to no simulated grandmaster: a fair clock, far away.
_FAR_NS, _FAR_SWING_NS, _FAR_PERIOD_S = 15.0, 4.0, 977.0


@dataclass(frozen=True)
class MeasuredChannel:
    """`word` is its part of a path, `reference` what it is measured against."""

    kind: str
    id: int
    word: str
    reference: str = "Selected"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.id}"


_WORDS = {"PPS": "pps", "TOD": "tod", "PTP": "ptp", "SYNCE": "synce", "T1E1": "span", "10MHZ": "tenMHz"}
CHANNELS = (
    MeasuredChannel("GNSS", 1, "gnss", "GNSS"),
    *(MeasuredChannel(kind, number, word) for kind, word in _WORDS.items() for number in (1, 2)),
)
METRICS = {"te": 0, "cte": 1, "max-te": 2}
#: Those whose input is connected; the rest are disabled.
_CONNECTED = ("GNSS-1", "PTP-1")
ALARM_THRESHOLD_NS = 100


@dataclass(frozen=True)
class ChannelReading:
    unix_s: int
    value_ns: float


def status(device: Device, channel: MeasuredChannel) -> str:
    if channel.name not in _CONNECTED:
        return "disabled"
    return "monitoring" if time_error_ns(device, channel, device.unix_s) is not None else "no reference"


def time_error_ns(device: Device, channel: MeasuredChannel, unix_s: float) -> float | None:
    """
    Positive = the channel is ahead of its reference; None where there was nothing to measure. GNSS is reported as the grandmaster
    against it, a PTP input as the other clock against the grandmaster, which goes on in holdover.
    """
    at_s = device.elapsed_at(unix_s)
    if channel.name == "GNSS-1":
        return device.oscillator.measured_ns(at_s)
    if channel.name != "PTP-1":
        return None
    if device.peer is not None:
        there_ns = device.peer.oscillator.true_ns(device.peer.elapsed_at(unix_s))
    else:
        there_ns = _FAR_NS + _FAR_SWING_NS * math.sin(2 * math.pi * at_s / _FAR_PERIOD_S)
    return there_ns - device.oscillator.true_ns(at_s)


def metric_ns(device: Device, channel: MeasuredChannel, metric: str, unix_s: float) -> float | None:
    if metric == "te":
        return time_error_ns(device, channel, unix_s)
    window = (time_error_ns(device, channel, unix_s - back) for back in range(0, _WINDOW_S, _WINDOW_STEP_S))
    errors = [error for error in window if error is not None]
    if not errors:
        return None
    return sum(errors) / len(errors) if metric == "cte" else max(abs(error) for error in errors)


def points(device: Device, channel: MeasuredChannel, metric: str, back_s: int, step_s: int) -> Iterator[ChannelReading]:
    """The oldest first, on whole seconds of the grandmaster's clock; what was measured before it booted is lost."""
    last = int(device.unix_s)
    first = max(last - back_s + 1, math.ceil(device.started_s))
    for unix_s in range(first - first % -step_s, last + 1, step_s):
        value_ns = metric_ns(device, channel, metric, unix_s)
        if value_ns is not None:
            yield ChannelReading(unix_s, value_ns)


def day_file(device: Device, channel: MeasuredChannel, metric: str, tai: bool) -> str:
    """The last 24 hours, one row a minute, as the grandmaster's pages let it be saved."""
    ahead_s = device.utc_offset_s if tai else 0
    head = (
        f"# Title: {channel.kind}({metric}):Channel = {channel.name}, Reference = {channel.reference}, Unit = ns",
        f"# Device: {device.name}, {device.model}, {device.firmware}",
        f"# Timescale: {'TAI' if tai else 'UTC'}",
    )
    rows = (
        f"{datetime.fromtimestamp(point.unix_s + ahead_s, UTC):%Y-%m-%d,%H:%M:%S}, {point.value_ns:.1f}"
        for point in points(device, channel, metric, DAY_S, 60)
    )
    return "\n".join((*head, *rows)) + "\n"
