"""The recent past of a grandmaster, as far as rules compare with it; bounded. Pure: the states carry the times."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.text import utc_text
from timesyncd.messages.node import GrandmasterState
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.sample import Position, Satellite

#: Weather does not lower C/N0 of three satellites in four by so much; while half of the drop remains, it lasts.
DROP_DB = 6
RECOVERED_DB = 3
MIN_COMMON_SATELLITES = 4

#: The first readings all count, later ones not more often than this: an hour of them is kept.
READING_EVERY_NS = 60 * NS_PER_S
MIN_READINGS = 5
MAX_READINGS = 60

#: A change that lasts for so long is the new normal: another antenna, another place.
NORMAL_AFTER_NS = 86_400 * NS_PER_S

#: A held position does not move; receivers round to a metre or less.
MOVED_M = 100

#: For so long a jump remains a suspicion, a restart explains what follows, and an announced leap second explains a new
#: offset.
RECENT_NS = 3_600 * NS_PER_S

_METRES_A_DEGREE = 111_320


class GrandmasterHistory:
    """
    One grandmaster's past. `selected` is the last reference that it selected while that reference was not disqualified.
    """

    def __init__(self) -> None:
        self.signal = SignalHistory()
        self.held = HeldPosition()
        self.selected: str | None = None
        self._was_locked = False
        self._leap_ns: int | None = None
        self._restarted_ns: int | None = None
        self._jump: tuple[str, int] | None = None

    def update(self, grandmaster: GrandmasterState, now_ns: int) -> None:
        """Take in the grandmaster's state; the same state again changes nothing."""
        self.signal.update(grandmaster.satellites or [], now_ns)
        self.held.update(grandmaster, now_ns)
        now, reported = selected_reference(grandmaster), qualifications(grandmaster)
        if now is not None and reported.get(self.selected or "") != "disqualified":
            self.selected = now
        self._was_locked = grandmaster.clock_state == "locked"
        if grandmaster.leap in ("insert", "delete"):
            self._leap_ns = now_ns

    def add_event(self, event: GrandmasterEvent) -> None:
        """Take in an event between two polls, before the state of the later poll."""
        if event.kind is GrandmasterEventKind.RESTARTED:
            self._restarted_ns, self.selected = event.realtime_ns, None
        is_leap = event.kind is GrandmasterEventKind.UTC_OFFSET_CHANGED and _is_recent(self._leap_ns, event.realtime_ns)
        if event.kind in _SUSPICIOUS and self._was_locked and not is_leap:
            evidence = f"{event.evidence} while it was locked, at {utc_text(event.realtime_ns, event.realtime_ns)}"
            self._jump = (evidence, event.realtime_ns)

    def suspicion(self, now_ns: int) -> str | None:
        """A jump of its time within the last hour."""
        return self._jump[0] if self._jump is not None and _is_recent(self._jump[1], now_ns) else None

    def restarted_ns(self, now_ns: int) -> int | None:
        """When it restarted, within the last hour."""
        return self._restarted_ns if _is_recent(self._restarted_ns, now_ns) else None


_SUSPICIOUS = (GrandmasterEventKind.PHASE_JUMPED, GrandmasterEventKind.UTC_OFFSET_CHANGED)


def _is_recent(then_ns: int | None, now_ns: int) -> bool:
    return then_ns is not None and now_ns - then_ns < RECENT_NS


@dataclass(frozen=True, slots=True)
class SignalDrop:
    """C/N0 of nearly all satellites dropped together, by at least `db` below the earlier median."""

    db: int
    since_ns: int


class SignalHistory:
    """The satellites' C/N0 of the last hour; readings during a drop do not count as normal."""

    def __init__(self) -> None:
        self.drop: SignalDrop | None = None
        self._readings: deque[tuple[int, dict[int, int]]] = deque(maxlen=MAX_READINGS)
        self._newest: tuple[dict[int, int], int | None] = ({}, None)

    def update(self, satellites: list[Satellite], now_ns: int) -> None:
        levels = {each.number: each.cn0_db_hz for each in satellites if each.cn0_db_hz}
        if levels != self._newest[0]:  # medians are slow, and levels change once a minute
            self._newest = (levels, self._dropped_db(levels))
        dropped_db = self._newest[1]
        if self.drop is not None and now_ns - self.drop.since_ns >= NORMAL_AFTER_NS:
            self.drop, self._newest = None, ({}, None)
            self._readings.clear()
        elif dropped_db is not None and dropped_db >= (RECOVERED_DB if self.drop else DROP_DB):
            self.drop = SignalDrop(dropped_db, self.drop.since_ns if self.drop else now_ns)
        elif dropped_db is not None:
            self.drop = None
        if self.drop is None and levels:
            self._keep(levels, now_ns)

    def _keep(self, levels: dict[int, int], now_ns: int) -> None:
        newest = self._readings[-1] if self._readings else (-READING_EVERY_NS, {})
        is_new = len(self._readings) < MIN_READINGS and levels != newest[1]
        if is_new or now_ns - newest[0] >= READING_EVERY_NS:
            self._readings.append((now_ns, levels))

    def _dropped_db(self, levels: dict[int, int]) -> int | None:
        """The smallest drop among three satellites in four, in dB; None with too few readings."""
        if len(self._readings) < MIN_READINGS:
            return None
        drops = []
        for number, level in levels.items():
            before = [reading[number] for _, reading in self._readings if number in reading]
            if len(before) >= MIN_READINGS:
                drops.append(median(before) - level)
        return int(sorted(drops)[len(drops) // 4]) if len(drops) >= MIN_COMMON_SATELLITES else None


class HeldPosition:
    """
    The position at which the receiver began to hold. `moved_m` is the distance from there now, None while it is there.
    """

    def __init__(self) -> None:
        self.moved_m: int | None = None
        self._held: Position | None = None
        self._moved_ns = 0

    def update(self, grandmaster: GrandmasterState, now_ns: int) -> None:
        mode, position = grandmaster.gnss_position_mode, grandmaster.position
        if mode is None or position is None:
            return
        if "hold" not in mode.lower():
            self._begin(None)
            return
        if self._held is None:
            self._begin(position)
        moved_m = distance_m(self._held or position, position)
        if moved_m <= MOVED_M:
            self.moved_m = None
        elif self.moved_m is None:
            self.moved_m, self._moved_ns = round(moved_m), now_ns
        elif now_ns - self._moved_ns >= NORMAL_AFTER_NS:
            self._begin(position)

    def _begin(self, position: Position | None) -> None:
        self._held, self.moved_m = position, None


def distance_m(one: Position, other: Position) -> float:
    """The distance along the ground, for short distances."""
    north = other.latitude_deg - one.latitude_deg
    east = (other.longitude_deg - one.longitude_deg + 180) % 360 - 180
    return math.hypot(north, east * math.cos(math.radians(one.latitude_deg))) * _METRES_A_DEGREE


def qualifications(grandmaster: GrandmasterState) -> dict[str, str]:
    return {reference.name: reference.qualification for reference in grandmaster.references or []}


def selected_reference(grandmaster: GrandmasterState) -> str | None:
    chosen = (name for name, reported in qualifications(grandmaster).items() if reported == "selected")
    return grandmaster.selected_reference or next(chosen, None)
