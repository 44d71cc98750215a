"""chronyd's command protocol, version 6: the four questions that this driver asks, and their answers. Pure."""

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
_ERROR_CODE = 1
_OK, _UNAUTHORISED, _NO_SUCH_SOURCE = 0, 2, 4

# An address is 20s, a Float I, a Timespec 3I.
_TRACKING = struct.Struct(">I20sHH12I")
_SOURCE_DATA = struct.Struct(">20sh5H4I")
_SOURCE_STATS = struct.Struct(">I20s8I")
_COUNT = struct.Struct(">I")
_ADDRESS = struct.Struct(">16sHxx")

_NEVER = 0xFFFFFFFF
_REFCLOCK = 2
_STATES = ("selected", "nonselectable", "falseticker", "jittery", "unselected", "selectable")
_LEAPS = ("none", "insert", "delete", "unsynchronised")

#: 127.127.1.1: chronyd's own clock, where the directive `local` lets it pass for a reference.
LOCAL_REFERENCE = 0x7F7F0101

#: A Float has 24 significant bits: it is right within this share of its value.
FLOAT_RESOLUTION = 2.0**-24

#: A clock that starts in 1970 is a possible one; what is beyond leaves the 64 bits of nanoseconds, added up.
_LARGEST_S = 2.0**31
_LARGEST_PPM = 1e9


class Command(IntEnum):
    N_SOURCES = 14
    SOURCE_DATA = 15
    TRACKING = 33
    SOURCE_STATS = 34


#: Of each command: the code of its reply, and the layout of the reply's data.
_REPLIES = {
    Command.N_SOURCES: (2, _COUNT),
    Command.SOURCE_DATA: (3, _SOURCE_DATA),
    Command.TRACKING: (5, _TRACKING),
    Command.SOURCE_STATS: (6, _SOURCE_STATS),
}

#: Of each status: what it says and what to do.
_REFUSALS = {
    1: "failed",
    _UNAUTHORISED: "not authorised: let `opencommands` in chrony.conf name it, or take chronyd's UNIX socket",
    3: "does not know this question: it is older or newer than this driver",
    _NO_SUCH_SOURCE: "no such source",
    6: "not enabled in this chronyd",
    18: f"speaks another version of the protocol than {_VERSION}: it is older than chrony 2.0, or newer than this driver",
    19: "wants a question of another length: it is newer than this driver",
}


class NoSuchSource(Refused):
    """The source went away since they were counted."""


@dataclass(frozen=True, slots=True)
class ChronyRequest:
    """A question; `index` of the source, where it is about one. It reads and can do nothing else."""

    command: Command
    sequence: int
    index: int | None = None

    def to_bytes(self) -> bytes:
        """As long as the answer: chronyd amplifies nothing."""
        header = _REQUEST_HEADER.pack(_VERSION, _REQUEST, 0, self.command, 0, self.sequence, 0, 0)
        data = b"" if self.index is None else _COUNT.pack(self.index)
        return (header + data).ljust(_REPLY_HEADER.size + _REPLIES[self.command][1].size, b"\0")


@dataclass(frozen=True, slots=True)
class SourceCount:
    sources: int


@dataclass(frozen=True, slots=True)
class Tracking:
    """
    What chronyd thinks of the system clock. `current_correction_s` is positive where the clock is *behind*; every other sign runs the
    other way: positive is ahead, or too fast. `root_dispersion_s` is of the moment of the answer. `reference_time` is blurred by up to
    a second, but changes with each update and only then.
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


@dataclass(frozen=True, slots=True)
class SourceData:
    """One source; offsets are local minus source, `measured_s` as it was and `adjusted_s` less what was corrected since."""

    name: str
    poll: int
    stratum: int
    state: str
    mode: int
    reachability: int
    since_sample_s: int | None
    measured_s: float
    adjusted_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What chronyd makes of a source's last samples; without any, its figures are placeholders."""

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
    """One datagram of chronyd, its data not yet read."""

    command: int
    sequence: int
    code: int
    status: int
    data: bytes

    def content(self) -> Content:
        """Raises Refused where chronyd says no, and Malformed."""
        try:
            command = Command(self.command)
        except ValueError:
            raise Malformed(f"an answer to command {self.command}, which was not asked") from None
        if self.status != _OK:
            raise _refusal(command, self.status)
        code, layout = _REPLIES[command]
        if (self.code, len(self.data)) != (code, layout.size):
            raise Malformed(
                f"{command.name}: reply {self.code} of {len(self.data)} octets, not {code} of {layout.size}"
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
        raise Malformed(f"{len(datagram)} octets are no answer of chronyd")
    version, kind, _, command, code, status, _, _, _, sequence, _, _ = _REPLY_HEADER.unpack_from(datagram)
    if kind != _REPLY or (version != _VERSION and status == _OK):
        raise Malformed(f"packet type {kind} of version {version} is no answer of chronyd")
    return Reply(command, sequence, code, status, datagram[_REPLY_HEADER.size :])


def float_value(number: int) -> float:
    """chrony's Float: 7 bits of exponent and 25 of coefficient, both signed. Every one is finite, and exact here."""
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
        raise Malformed(f"{value:g} {unit} where {least:g} to {most:g} can be")
    return value


def reference_text(reference_id: int) -> str:
    """Four characters, as of a reference clock (GPS, PHC0); hexadecimal where they are none."""
    name = reference_id.to_bytes(4, "big").rstrip(b"\0")
    if name and all(0x20 < octet < 0x7F for octet in name):
        return name.decode("ascii")
    return f"{reference_id:08X}"


def _address_text(field: bytes) -> str | None:
    """None where there is no address."""
    octets, family = _ADDRESS.unpack(field)
    match family:
        case 0:
            return None
        case 1:
            return str(IPv4Address(octets[:4]))
        case 2:
            return str(IPv6Address(octets))
        case 3:  # a name that is not resolved yet; chronyc calls it so too
            return f"ID#{int.from_bytes(octets[:4], 'big'):010d}"
    raise Malformed(f"address family {family}")


def _tracking(data: bytes) -> Tracking:
    reference_id, address, stratum, leap, *rest = _TRACKING.unpack(data)
    correction, last, rms, frequency, residual, skew, delay, dispersion, interval = rest[3:]
    if leap >= len(_LEAPS):
        raise Malformed(f"leap status {leap}")
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
    if mode == _REFCLOCK:  # its address is its name
        name = reference_text(int.from_bytes(address[:4], "big"))
    else:
        name = _address_text(address) or "unknown"
    return SourceData(
        name=name,
        poll=poll,
        stratum=stratum,
        state=_STATES[state] if state < len(_STATES) else f"unknown({state})",
        mode=mode,
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


def _refusal(command: Command, status: int) -> Refused:
    kind = NoSuchSource if status == _NO_SUCH_SOURCE else Refused
    return kind(f"{command.name}: {_REFUSALS.get(status, f'status {status}')}")
