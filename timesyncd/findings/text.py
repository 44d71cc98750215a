"""A grandmaster's state, times and lists of names as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import GrandmasterState
from timesyncd.units import span_text

#: So many names are listed before "and n more".
MAX_NAMES_LISTED = 6

_ANTENNA_WORDS = {
    "open": "GNSS antenna open",
    "short": "GNSS antenna shorted",
    "fault": "GNSS antenna faulty",
}


def grandmaster_summary_text(grandmaster: GrandmasterState, now_ns: int) -> str:
    """As "gm-a: HOLDOVER since 02:14Z, GNSS antenna open, budget left 3 h 40 min"; `now_ns` is CLOCK_REALTIME."""
    parts = [
        state_text(grandmaster, now_ns),
        antenna_text(grandmaster) or _antenna_alarm(grandmaster),
        None if is_locked(grandmaster) else budget_text(grandmaster),
        None if grandmaster.reachable else "not responding: last known state",
    ]
    return f"{grandmaster.name}: {', '.join(text for text in parts if text)}"


def is_locked(grandmaster: GrandmasterState) -> bool:
    """True also for a grandmaster that does not report its state."""
    return grandmaster.clock_state in (None, "locked")


def state_text(grandmaster: GrandmasterState, now_ns: int) -> str:
    """As "HOLDOVER since 02:14Z"; since when only where it is not locked."""
    if grandmaster.clock_state is None:
        return "state unknown" if grandmaster.clock_class is None else f"clock class {grandmaster.clock_class}"
    state = grandmaster.clock_state.replace("_", " ").upper()
    since_ns = grandmaster.clock_state_since_realtime_ns
    return state if is_locked(grandmaster) or since_ns is None else f"{state} since {utc_text(since_ns, now_ns)}"


def antenna_text(grandmaster: GrandmasterState) -> str | None:
    """The fault of the antenna; None where none is known."""
    return _ANTENNA_WORDS.get(grandmaster.antenna or "")


def _antenna_alarm(grandmaster: GrandmasterState) -> str | None:
    """Where it serves no antenna state, its alarms may show the fault."""
    return next((alarm.text for alarm in grandmaster.alarms or [] if "antenna" in alarm.text.lower()), None)


def budget_text(grandmaster: GrandmasterState) -> str | None:
    """What is left of the holdover budget as of now."""
    if grandmaster.holdover_left_ns is None:
        return None
    left_ns = grandmaster.holdover_left_ns - (grandmaster.age_ns or 0)
    return f"budget left {span_text(left_ns)}" if left_ns > 0 else "budget exhausted"


def poll_realtime_ns(grandmaster: GrandmasterState, now_ns: int) -> int:
    """When the grandmaster was polled, by CLOCK_REALTIME."""
    return now_ns - (grandmaster.age_ns or 0)


def utc_text(realtime_ns: int, now_ns: int) -> str:
    """The minute in UTC, as "02:14Z"; with its date where that is not today's."""
    then, now = (datetime.fromtimestamp(ns // NS_PER_S, UTC) for ns in (realtime_ns, now_ns))
    return f"{then:%H:%MZ}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%MZ}"


def names_text(names: Sequence[str]) -> str:
    """Comma-separated, in order; a long list is cut, with the number of the rest."""
    shown = ", ".join(sorted(names)[:MAX_NAMES_LISTED])
    return shown if len(names) <= MAX_NAMES_LISTED else f"{shown} and {len(names) - MAX_NAMES_LISTED} more"
