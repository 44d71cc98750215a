"""
A grandmaster as it is inside, in simulated time. What it serves over SNMP is in oids.py, over HTTPS in https.py.

A new Device does not change, locked to GNSS, until it is changed: by `set_state`, by `advance`, or by a scenario. With
`speed` set, the agent calls `catch_up` before it answers, so that an idle grandmaster costs nothing. Dates that it shows are
those of the real clock, whatever the speed: only what happens to it goes faster.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter

from timesyncd.simulation.grandmaster import gnss
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, Listener, SimulatedAlarm
from timesyncd.simulation.grandmaster.gnss import SimulatedSatellite
from timesyncd.simulation.grandmaster.servo import Servo, next_servo, stays_s
from timesyncd.simulation.grandmaster.snapshot import QUALIFY_S, DeviceSnapshot

__all__ = ["Device", "DeviceEvent", "Servo", "SimulatedAlarm", "SimulatedSatellite"]

Action = Callable[["Device"], None]

#: How long the grandmaster is silent when it reboots.
_BOOT_S = 60.0
#: The share of a port's clients from which on it reports that the limit is near.
_NEAR_LIMIT = 0.9

_SERVO_ALARMS = {
    Servo.WARMUP: "warmup", Servo.FREERUN: "freerun", Servo.BRIDGING: "bridging", Servo.HOLDOVER: "holdover",
    Servo.EXTENDED_HOLDOVER: "holdover-exceeded", Servo.FAILED: "failed",
}  # fmt: skip


@dataclass
class Device(DeviceSnapshot):
    """A grandmaster, and what happens to it. `peer` is the grandmaster that its input PTP-1 measures."""

    peer: Device | None = field(default=None, repr=False, compare=False)
    _script: list[tuple[float, Action]] = field(default_factory=list, init=False, repr=False)
    _servo_since_s: float = field(default=0.0, init=False, repr=False)
    _recovering: bool = field(default=False, init=False, repr=False)

    def subscribe(self, listener: Listener) -> None:
        """`listener` is called with every DeviceEvent, in order, while time advances."""
        self.board.listeners.append(listener)

    def schedule(self, after_s: float, action: Action) -> None:
        """Do something when that much more simulated time has passed."""
        bisect.insort(self._script, (self.elapsed_s + after_s, action), key=itemgetter(0))

    def catch_up(self) -> None:
        """Advance to the present, where a speed is set."""
        behind_s = (self.clock() - self.epoch_s) * self.speed - self.elapsed_s
        if behind_s > 0:
            self.advance(behind_s)

    def next_change_s(self) -> float | None:
        """After how much simulated time something will happen by itself; None: never."""
        moment_s = self._next_moment_s()
        return None if moment_s is None else moment_s - self.elapsed_s

    def advance(self, seconds: float) -> None:
        """Let simulated time pass. How it is cut into pieces changes nothing."""
        until_s = self.elapsed_s + seconds
        while (moment_s := self._next_moment_s()) is not None and moment_s <= until_s:
            self._move(moment_s)
            while self._script and self._script[0][0] <= self.elapsed_s:
                self._script.pop(0)[1](self)
            self._settle()
        self._move(until_s)
        self._look()

    def _next_moment_s(self) -> float | None:
        moment_s = min(self._moments_s(), default=None)
        return None if moment_s is None else max(moment_s, self.elapsed_s)

    def _moments_s(self) -> Iterator[float]:
        if self._script:
            yield self._script[0][0]
        if self._boots_until_s is not None:
            yield self._boots_until_s
            return
        stays = stays_s(self.servo, self._recovering, self.dwell)
        if stays is not None:
            yield self._servo_since_s + stays
        if self._usable_since_s is not None and not self.reference_usable:
            yield self._usable_since_s + QUALIFY_S
        look_s = self.receiver.look_again_s(self.elapsed_s)
        if look_s is not None:
            yield (math.floor(self.elapsed_s / look_s) + 1) * look_s
        if self.leap_at_s is not None:
            yield self.elapsed_s + (self.leap_at_s - self.unix_s) * (self.speed or 1.0)

    def _move(self, to_s: float) -> None:
        self.oscillator.carry(to_s)
        self.elapsed_s = to_s

    def _settle(self) -> None:
        """Everything that follows at once from what holds now."""
        if self._boots_until_s is not None and self.elapsed_s >= self._boots_until_s:
            self._boot()
        self._look()
        if self.answering:
            self._judge_reference()
            self._leap()
            while (servo := self._next_servo()) is not self.servo:
                self._enter(servo)
            self.board.compare(self._conditions(), self.unix_s)
        self._measure()

    def _judge_reference(self) -> None:
        if not gnss.solves(self.satellites):
            if self._usable_since_s is not None and not self.lying:
                self.report("reference-lost")
            self._usable_since_s = None
        elif self._usable_since_s is None:
            self._usable_since_s = self.elapsed_s

    def _next_servo(self) -> Servo:
        if ("failed", 0) in self.failures:
            return Servo.FAILED
        in_state_s = self.elapsed_s - self._servo_since_s
        return next_servo(self.servo, in_state_s, self.reference_usable, self._recovering, self.dwell)

    def _enter(self, servo: Servo) -> None:
        self._recovering = servo is Servo.FAST_TRACK and self.servo in (Servo.HOLDOVER, Servo.EXTENDED_HOLDOVER)
        if servo.follows:
            tau_s = 20.0 if servo is Servo.LOCKED else (stays_s(servo, self._recovering, self.dwell) or 1.0) / 8
            self.oscillator.follow(self.receiver.time_offset_ns, tau_s)
        else:
            self.oscillator.release(cold=servo in (Servo.WARMUP, Servo.FREERUN))
        if not self._recovering:
            self.clock_class, self.clock_accuracy = servo.clock_class, servo.clock_accuracy
        self.servo, self._servo_since_s = servo, self.elapsed_s
        if servo is Servo.LOCKED:
            self.report("normal-track")
            self.report("reference-selected")
        elif servo is Servo.FAST_TRACK:
            self.report("holdover-recovery" if self._recovering else "fast-track")

    def _look(self) -> None:
        self.satellites = self.receiver.sky(self.elapsed_s)
        self._measure()

    def _measure(self) -> None:
        measured_ns = self.oscillator.measured_ns(self.elapsed_s)
        self.phase_offset_ns = self.oscillator.phase_ns if measured_ns is None else measured_ns

    def reboot(self) -> None:
        """Silent for a while, then in warm-up, with a new count of boots."""
        self._boots_until_s = self.elapsed_s + _BOOT_S

    def _boot(self) -> None:
        self._boots_until_s = None
        self.started_s = self.unix_s
        self.engine_boots += 1
        self._usable_since_s = None
        self.board.restart(self.unix_s)
        self._enter(Servo.WARMUP)
        self.report("reboot")

    def move_reference(self, by_ns: float) -> None:
        """What the receiver takes for UTC jumps; a grandmaster that follows it is pulled along."""
        self.receiver.time_offset_ns += by_ns
        if self.oscillator.steered:
            self.oscillator.follow(self.receiver.time_offset_ns, 60.0)
            self.report("phase-changed")

    def announce_leap(self, leap: str) -> None:
        """A leap second (insert, delete, none) at the end of this half-year."""
        self.leap = leap
        self.leap_at_s = None if leap == "none" else _next_half_year_s(self.unix_s)
        if leap != "none":
            self.report("leap-pending")

    def _leap(self) -> None:
        if self.leap_at_s is not None and self.unix_s >= self.leap_at_s - 1e-3:
            step_s = 1 if self.leap == "insert" else -1
            self.utc_offset_s += step_s
            self.tai_offset_s += step_s
            self.announce_leap("none")

    def set_state(
        self,
        servo: Servo,
        *,
        clock_class: int | None = None,
        clock_accuracy: int | None = None,
        satellites: Sequence[SimulatedSatellite] | None = None,
        alarms: Sequence[SimulatedAlarm] = (),
    ) -> None:
        """
        Move a grandmaster whose time does not run to another state; class and accuracy follow the servo unless given, which is how to
        make a grandmaster that lies. The satellites stay as they were unless given. Time that passes goes on from there.
        """
        self.servo, self._servo_since_s = servo, self.elapsed_s
        self.clock_class = servo.clock_class if clock_class is None else clock_class
        self.clock_accuracy = servo.clock_accuracy if clock_accuracy is None else clock_accuracy
        self.satellites = self.satellites if satellites is None else tuple(satellites)
        self.board.standing = tuple(alarms)
        if not servo.follows:
            self.oscillator.release()

    def report(self, name: str, index: int = 0) -> None:
        """An event that does not stand; a name of alarms.KINDS."""
        self.board.report(name, index, self.unix_s)

    def _conditions(self) -> Iterator[tuple[str, int]]:
        yield from sorted(self.failures)
        if not self.lying:
            if not gnss.solves(self.satellites):
                yield "gnss-not-tracking", 0
            elif gnss.signal_low(self.satellites):
                yield "gnss-signal-low", 0
            if self.receiver.antenna != "ok":
                yield f"antenna-{self.receiver.antenna}", 0
        if self.servo in _SERVO_ALARMS and ("failed", 0) not in self.failures:
            yield _SERVO_ALARMS[self.servo], 0
        if max(self._client_counts) >= _NEAR_LIMIT * self.made_of.max_clients:
            yield "near-client-limit", 0


def _next_half_year_s(unix_s: float) -> float:
    now = datetime.fromtimestamp(unix_s, UTC)
    end = datetime(now.year, 7, 1, tzinfo=UTC) if now.month < 7 else datetime(now.year + 1, 1, 1, tzinfo=UTC)
    return end.timestamp()
