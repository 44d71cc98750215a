"""Detects events of a grandmaster between two of its samples. Pure."""

from __future__ import annotations

from enum import StrEnum

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.sample import ACCURACY_NS, ClockState, GrandmasterSample, TimeError

#: A phase that moves by more than this between two polls, beyond its rate and twice its accuracy, has jumped.
JUMP_NS = 1_000

#: The largest rate of a grandmaster's phase; the nodes assume the same (`grandmaster_rate_ppb`).
RATE_PPB = 100

#: sysUpTime counts hundredths of a second in 32 bits.
UPTIME_WRAPS_S = 2**32 // 100

#: How far an agent's uptime may lag between two readings without a restart.
UPTIME_SLACK_S = 60

#: States without information: not reported this time, or not mapped by a profile.
UNKNOWN_STATES = (None, ClockState.UNKNOWN)
HOLDOVER_STATES = (ClockState.HOLDOVER, ClockState.HOLDOVER_OUT_OF_SPEC)


class GrandmasterEventKind(StrEnum):
    """The kinds of events, the most severe first."""

    RESTARTED = "restarted"
    IDENTITY_CHANGED = "identity-changed"
    UTC_OFFSET_CHANGED = "utc-offset-changed"
    PHASE_JUMPED = "phase-jumped"
    LEFT_HOLDOVER = "left-holdover"
    RELOCKED = "relocked"
    LEAP_ANNOUNCED = "leap-announced"

    @property
    def invalidation_reason(self) -> Reason | None:
        """Why this event invalidates its followers' earlier samples; None: it does not."""
        return _INVALIDATIONS.get(self)


_INVALIDATIONS = {
    GrandmasterEventKind.RESTARTED: Reason.GRANDMASTER_RESTARTED,
    GrandmasterEventKind.IDENTITY_CHANGED: Reason.GRANDMASTER_IDENTITY_CHANGED,
    GrandmasterEventKind.UTC_OFFSET_CHANGED: Reason.GRANDMASTER_UTC_OFFSET_CHANGED,
    GrandmasterEventKind.PHASE_JUMPED: Reason.GRANDMASTER_JUMPED,
    GrandmasterEventKind.LEFT_HOLDOVER: Reason.GRANDMASTER_LEFT_HOLDOVER,
    GrandmasterEventKind.RELOCKED: Reason.GRANDMASTER_LEFT_HOLDOVER,
}


class ChangeDetector:
    """
    Compares each field of a sample with the last sample that reported it. `state` is the last reported clock state.
    """

    def __init__(self) -> None:
        self.state: ClockState | None = None
        self._last_reported: dict[str, GrandmasterSample] = {}
        self._channels: dict[str, TimeError] = {}

    def accept(self, sample: GrandmasterSample) -> list[tuple[GrandmasterEventKind, str]]:
        """The events since the last sample, the most severe first, each with its evidence."""
        restart = self._change("engine_boots", sample) or self._uptime_back(sample)
        if restart:
            self._last_reported.pop("phase_offset_ns", None)
            self._channels.clear()
        events = [
            (GrandmasterEventKind.RESTARTED, restart),
            (GrandmasterEventKind.IDENTITY_CHANGED, self._change("clock_identity", sample)),
            (GrandmasterEventKind.UTC_OFFSET_CHANGED, self._change("utc_offset_s", sample)),
            (GrandmasterEventKind.PHASE_JUMPED, self._phase_jump(sample) or self._channels_jump(sample)),
            *self._reference_back(sample),
            (GrandmasterEventKind.LEAP_ANNOUNCED, self._leap(sample)),
        ]
        self._remember(sample)
        return [(kind, why) for kind, why in events if why is not None]

    def _remember(self, sample: GrandmasterSample) -> None:
        for field in ("engine_boots", "clock_identity", "utc_offset_s", "leap", "phase_offset_ns"):
            if getattr(sample, field) is not None:
                self._last_reported[field] = sample
        uptime = self._last_reported.get("uptime_s")
        # The uptime is polled less often than the rest: only a changed number is a new reading.
        if sample.uptime_s is not None and (uptime is None or uptime.uptime_s != sample.uptime_s):
            self._last_reported["uptime_s"] = sample
        self._channels |= {error.channel: error for error in _channels(sample)}
        self.state = self.state if sample.clock_state in UNKNOWN_STATES else sample.clock_state

    def _change(self, field: str, sample: GrandmasterSample) -> str | None:
        last = self._last_reported.get(field)
        before, now = getattr(last, field, None), getattr(sample, field)
        return f"{field} changed from {before} to {now}" if None not in (before, now) and before != now else None

    def _uptime_back(self, sample: GrandmasterSample) -> str | None:
        """
        Evidence that the uptime went back, or is lower than the elapsed time explains.

        sysUpTime also wraps after 497 days: that is no restart where the grandmaster reports engine boots, which did
        not change.
        """
        last, now_s = self._last_reported.get("uptime_s"), sample.uptime_s
        if last is None or last.uptime_s is None or now_s is None or now_s == last.uptime_s:
            return None
        due_s = last.uptime_s + (sample.boottime_ns - last.boottime_ns) // NS_PER_S
        if last.uptime_s <= now_s and due_s - UPTIME_SLACK_S <= now_s:
            return None
        boots_unchanged = sample.engine_boots is not None and "engine_boots" in self._last_reported
        if boots_unchanged and due_s + UPTIME_SLACK_S >= UPTIME_WRAPS_S:
            return None
        return f"uptime is {now_s} s, expected at least {due_s} s"

    def _phase_jump(self, sample: GrandmasterSample) -> str | None:
        """Evidence from its own phase offset, as long as that is against the same reference."""
        last = self._last_reported.get("phase_offset_ns")
        if last is None or last.phase_offset_ns is None or sample.phase_offset_ns is None:
            return None
        if last.selected_reference != sample.selected_reference:
            return None
        moved_ns = sample.phase_offset_ns - last.phase_offset_ns
        jumped = abs(moved_ns) > _explained_ns(sample, sample.boottime_ns - last.boottime_ns)
        return f"the phase offset moved by {moved_ns} ns" if jumped else None

    def _channels_jump(self, sample: GrandmasterSample) -> str | None:
        """
        Evidence from its measured inputs: if only some time errors jump, those inputs jumped, not the grandmaster.
        """
        known = [(self._channels[each.channel], each) for each in _channels(sample) if each.channel in self._channels]
        pairs = [
            (last, new)
            for last, new in known
            if last.at_realtime_ns != new.at_realtime_ns and last.reference == new.reference
        ]
        moved = [
            f"{new.channel} by {new.value_ns - last.value_ns} ns"
            for last, new in pairs
            if abs(new.value_ns - last.value_ns) > _explained_ns(sample, abs(new.at_realtime_ns - last.at_realtime_ns))
        ]
        return f"the time errors moved: {', '.join(moved)}" if moved and len(moved) == len(pairs) else None

    def _reference_back(self, sample: GrandmasterSample) -> list[tuple[GrandmasterEventKind, str | None]]:
        before, now = self.state, sample.clock_state
        if now in UNKNOWN_STATES or before is None or before is now:
            return []
        why = f"clock_state changed from {before} to {now}"
        if before in HOLDOVER_STATES and now not in HOLDOVER_STATES:
            return [(GrandmasterEventKind.LEFT_HOLDOVER, why)]
        return [(GrandmasterEventKind.RELOCKED, why)] if now is ClockState.LOCKED else []

    def _leap(self, sample: GrandmasterSample) -> str | None:
        last = self._last_reported.get("leap")
        begins = sample.leap in ("insert", "delete") and (last is None or last.leap != sample.leap)
        return f"the grandmaster announces a leap second: {sample.leap}" if begins else None


def _channels(sample: GrandmasterSample) -> list[TimeError]:
    """The momentary time errors; the constant part and the maximum describe a span of time."""
    return [error for error in sample.time_errors or () if error.metric == "te"]


def _explained_ns(sample: GrandmasterSample, elapsed_ns: int) -> int:
    """
    How far the phase may move in this time without a jump: its rate, and twice the accuracy for the reference's noise.
    """
    return JUMP_NS + 2 * (accuracy_ns(sample) or 0) + RATE_PPB * elapsed_ns // NS_PER_S


def accuracy_ns(sample: GrandmasterSample) -> int | None:
    """The upper limit of the reported clockAccuracy; None: not reported, or without an upper limit."""
    return None if sample.clock_accuracy is None else ACCURACY_NS.get(sample.clock_accuracy)
