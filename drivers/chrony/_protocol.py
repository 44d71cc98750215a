"""Codec of chronyd's command protocol, version 6: the four requests of this driver and their replies. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from timesyncd.errors import Malformed, Refused

_VERSION = 6
_REQUEST, _REPLY = 1, 2

_REQUEST_HEADER = struct.Struct(">BBHHHIII")
_REPLY_HEADER = struct.Struct(">BBHHHHHHHIII")
_OK, _UNAUTHORISED, _NO_SUCH_SOURCE = 0, 2, 4

# An address is 20s, a Float I, a Timespec 3I.
_TRACKING = struct.Struct(">I20sHH12I")
_SOURCE_DATA = struct.Struct(">20sh5H4I")
_SOURCE_STATS = struct.Struct(">I20s8I")
_COUNT = struct.Struct(">I")
_ADDRESS = struct.Struct(">16sHxx")

_NEVER = 0xFFFFFFFF
_MODES = ("server", "peer", "refclock")
_STATES = ("selected", "nonselectable", "falseticker", "jittery", "unselected", "selectable")
_LEAPS = ("none", "insert", "delete", "unsynchronised")

#: 127.127.1.1: chronyd's own clock, its reference under the directive `local`.
LOCAL_REFERENCE = 0x7F7F0101

#: Relative resolution of chrony's Float, which has 24 significant bits.
FLOAT_RESOLUTION = 2.0**-24

#: A clock that starts in 1970 is possible; sums of larger values exceed 64 bits of nanoseconds.
_LARGEST_S = 2.0**31
_LARGEST_PPM = 1e9


class Command(IntEnum):
    N_SOURCES = 14
    SOURCE_DATA = 15
    TRACKING = 33
    SOURCE_STATS = 34


#: For each command, the code of its reply and the layout of the reply's data.
_REPLIES = {
    Command.N_SOURCES: (2, _COUNT),
    Command.SOURCE_DATA: (3, _SOURCE_DATA),
    Command.TRACKING: (5, _TRACKING),
    Command.SOURCE_STATS: (6, _SOURCE_STATS),
}

#: For each status, its meaning and what to do.
_STATUS_TEXTS = {
    1: "failed",
    _UNAUTHORISED: "not authorised: add the command to `opencommands` in chrony.conf, or use chronyd's UNIX socket",
    3: "unknown command: this chronyd is older or newer than the driver supports",
    _NO_SUCH_SOURCE: "no such source",
    6: "not enabled in this chronyd",
    18: f"protocol version other than {_VERSION}: this chronyd is older than 2.0 or newer than the driver supports",
    19: "another request length expected: this chronyd is newer than the driver supports",
}


class NoSuchSource(Refused):
    """The source was removed after the sources were counted."""


@dataclass(frozen=True, slots=True)
class ChronyRequest:
    """A request that only reads; `index` is the source's, in a request about one source."""

    command: Command
    sequence: int
    index: int | None = None

    def to_bytes(self) -> bytes:
        """The datagram, padded to the length of the reply: chronyd answers no shorter request, so as not to amplify."""
        header = _REQUEST_HEADER.pack(_VERSION, _REQUEST, 0, self.command, 0, self.sequence, 0, 0)
        data = b"" if self.index is None else _COUNT.pack(self.index)
        return (header + data).ljust(_REPLY_HEADER.size + _REPLIES[self.command][1].size, b"\0")


@dataclass(frozen=True, slots=True)
class SourceCount:
    sources: int


@dataclass(frozen=True, slots=True)
class Tracking:
    """
    chronyd's estimate of the system clock. `current_correction_s` is positive if the clock is *behind*; all other values are positive
    if it is ahead or fast. `root_dispersion_s` is that at the time of the reply. `reference_time` is randomized by up to a second,
    but changes with each update and only then.
    """

    reference_id: int
    reference: str
    stratum: int
    leap: str
    reference_time: tuple[int, int, int]
    current_correction_s: float
    last_offset_s: float
    rms_offset_s: float
    frequency_ppm: float
    residual_frequency_ppm: float
    skew_ppm: float
    root_delay_s: float
    root_dispersion_s: float
    update_interval_s: float

    @property
    def follows_refclock(self) -> bool:
        """A reference clock has no address, and its reference id is its name."""
        return self.reference == reference_text(self.reference_id)


@dataclass(frozen=True, slots=True)
class SourceData:
    """
    One source; offsets are local minus source: `measured_s` at the measurement, `adjusted_s` without the corrections since then.
    """

    name: str
    poll: int
    stratum: int
    state: str
    kind: str
    reachability: int
    since_sample_s: int | None
    measured_s: float
    adjusted_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class SourceStats:
    """chronyd's statistics of a source's last samples; with 0 samples the figures are placeholders."""

    name: str
    samples: int
    runs: int
    span_s: int
    deviation_s: float
    residual_frequency_ppm: float
    skew_ppm: float
    offset_s: float
    offset_error_s: float


Content = SourceCount | Tracking | SourceData | SourceStats


@dataclass(frozen=True, slots=True)
class Reply:
    """One datagram of chronyd, with its data not decoded yet."""

    command: int
    sequence: int
    code: int
    status: int
    data: bytes

    def content(self) -> Content:
        """The decoded data. Raises Refused for an error status, and Malformed."""
        try:
            command = Command(self.command)
        except ValueError:
            raise Malformed(f"reply to command {self.command}, which the driver never sends") from None
        if self.status != _OK:
            raise _status_error(command, self.status)
        code, layout = _REPLIES[command]
        if (self.code, len(self.data)) != (code, layout.size):
            raise Malformed(
                f"{command.name}: reply {self.code} of {len(self.data)} octets instead of {code} of {layout.size}"
            )
        match command:
            case Command.N_SOURCES:
                return SourceCount(*_COUNT.unpack(self.data))
            case Command.TRACKING:
                return _tracking(self.data)
            case Command.SOURCE_DATA:
                return _source_data(self.data)
            case Command.SOURCE_STATS:
                return _source_stats(self.data)


def parse(datagram: bytes) -> Reply:
    """Raises Malformed."""
    if len(datagram) < _REPLY_HEADER.size:
        raise Malformed(f"datagram of {len(datagram)} octets is too short for a reply of chronyd")
    version, kind, _, command, code, status, _, _, _, sequence, _, _ = _REPLY_HEADER.unpack_from(datagram)
    if kind != _REPLY or (version != _VERSION and status == _OK):
        raise Malformed(f"packet type {kind} of version {version} is not a reply of chronyd")
    return Reply(command, sequence, code, status, datagram[_REPLY_HEADER.size :])


def float_value(number: int) -> float:
    """The value of chrony's Float: 7 bits of exponent and 25 of coefficient, both signed. Each is finite and exact as a float."""
    exponent, coefficient = number >> 25, number & 0x1FFFFFF
    exponent -= 0x80 if exponent & 0x40 else 0
    coefficient -= 0x2000000 if coefficient & 0x1000000 else 0
    return coefficient * 2.0 ** (exponent - 25)


def _seconds(number: int, least: float = -_LARGEST_S) -> float:
    return _within(float_value(number), least, _LARGEST_S, "s")


def _ppm(number: int, least: float = -_LARGEST_PPM) -> float:
    return _within(float_value(number), least, _LARGEST_PPM, "ppm")


def _within(value: float, least: float, most: float, unit: str) -> float:
    if not least <= value <= most:
        raise Malformed(f"{value:g} {unit} is implausible; allowed: {least:g} to {most:g} {unit}")
    return value


def reference_text(reference_id: int) -> str:
    """The four characters of a reference clock (GPS, PHC0); hexadecimal if they are not printable."""
    name = reference_id.to_bytes(4, "big").rstrip(b"\0")
    if name and all(0x20 < octet < 0x7F for octet in name):
        return name.decode("ascii")
    return f"{reference_id:08X}"


def _address_text(field: bytes) -> str | None:
    """None if there is no address."""
    octets, family = _ADDRESS.unpack(field)
    match family:
        case 0:
            return None
        case 1:
            return str(IPv4Address(octets[:4]))
        case 2:
            return str(IPv6Address(octets))
        case 3:  # a name that is not resolved yet; chronyc prints it like this too
            return f"ID#{int.from_bytes(octets[:4], 'big'):010d}"
    raise Malformed(f"address family {family}; allowed: 0 to 3")


def _tracking(data: bytes) -> Tracking:
    reference_id, address, stratum, leap, *rest = _TRACKING.unpack(data)
    correction, last, rms, frequency, residual, skew, delay, dispersion, interval = rest[3:]
    if leap >= len(_LEAPS):
        raise Malformed(f"leap status {leap}; allowed: 0 to {len(_LEAPS) - 1}")
    return Tracking(
        reference_id=reference_id,
        reference=_address_text(address) or reference_text(reference_id),
        stratum=stratum,
        leap=_LEAPS[leap],
        reference_time=(rest[0], rest[1], rest[2]),
        current_correction_s=_seconds(correction),
        last_offset_s=_seconds(last),
        rms_offset_s=_seconds(rms),
        frequency_ppm=_ppm(frequency),
        residual_frequency_ppm=_ppm(residual),
        skew_ppm=_ppm(skew, 0),
        root_delay_s=_seconds(delay, 0),
        root_dispersion_s=_seconds(dispersion, 0),
        update_interval_s=_seconds(interval),
    )


def _source_data(data: bytes) -> SourceData:
    address, poll, stratum, state, mode, _, reachability, since, measured, adjusted, error = _SOURCE_DATA.unpack(data)
    kind = _MODES[mode] if mode < len(_MODES) else f"unknown({mode})"
    if kind == "refclock":  # its address is its name
        name = reference_text(int.from_bytes(address[:4], "big"))
    else:
        name = _address_text(address) or "unknown"
    return SourceData(
        name=name,
        poll=poll,
        stratum=stratum,
        state=_STATES[state] if state < len(_STATES) else f"unknown({state})",
        kind=kind,
        reachability=reachability,
        since_sample_s=None if since == _NEVER else since,
        measured_s=_seconds(measured),
        adjusted_s=_seconds(adjusted),
        error_s=_seconds(error, 0),
    )


def _source_stats(data: bytes) -> SourceStats:
    reference_id, address, samples, runs, span, *floats = _SOURCE_STATS.unpack(data)
    deviation, residual, skew, offset, error = floats
    return SourceStats(
        name=_address_text(address) or reference_text(reference_id),
        samples=samples,
        runs=runs,
        span_s=span,
        deviation_s=_seconds(deviation, 0),
        residual_frequency_ppm=_ppm(residual),
        skew_ppm=_ppm(skew, 0),
        offset_s=_seconds(offset),
        offset_error_s=_seconds(error, 0),
    )


def _status_error(command: Command, status: int) -> Refused:
    kind = NoSuchSource if status == _NO_SUCH_SOURCE else Refused
    return kind(f"{command.name}: {_STATUS_TEXTS.get(status, f'unknown status {status}')}")
