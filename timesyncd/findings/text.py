"""Grandmasters and the nodes that follow them: who follows which unit, and how a unit fares, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.followers import Follower
from timesyncd.messages.node import GrandmasterState, NodeState
from timesyncd.units import span_text

#: So many names are listed before "and n more".
MOST_NAMES = 6

_ANTENNA_WORDS = {
    "open": "GNSS antenna open",
    "short": "GNSS antenna shorted",
    "fault": "GNSS antenna faulty",
}


def identities(unit: GrandmasterState) -> set[str]:
    """Every clock identity that the unit may announce: as configured, and as it says itself, one a port where it has them."""
    said = [unit.clock_identity, *(port.clock_identity for port in unit.ports or [])]
    return {*unit.identities, *(identity for identity in said if identity is not None)}


def by_identity(units: Iterable[GrandmasterState]) -> dict[str, GrandmasterState]:
    """Who announces which identity; of two that announce one the first."""
    found: dict[str, GrandmasterState] = {}
    for unit in units:
        found = dict.fromkeys(identities(unit), unit) | found
    return found


def follows(node: Follower, units: Iterable[GrandmasterState]) -> GrandmasterState | None:
    """The unit that the node's clock follows, None where it is none of these."""
    return by_identity(units).get(node.grandmaster_identity or "")


def joined(node: NodeState, units: Iterable[GrandmasterState], now_ns: int) -> NodeState:
    """The node's state with the unit that it follows, and how that one fares."""
    unit = follows(node, units)
    if unit is None:
        return node
    return node.model_copy(update={"grandmaster": unit.name, "grandmaster_note": unit_note(unit, now_ns)})


def unit_note(unit: GrandmasterState, now_ns: int) -> str:
    """As "gm-a: HOLDOVER since 02:14Z, GNSS antenna open, budget left 3 h 40 min"; `now_ns` is CLOCK_REALTIME."""
    told = [
        state_text(unit, now_ns),
        antenna_text(unit) or _antenna_alarm(unit),
        None if is_locked(unit) else budget_text(unit),
        None if unit.reachable else "it does not answer: last known",
    ]
    return f"{unit.name}: {', '.join(text for text in told if text)}"


def is_locked(unit: GrandmasterState) -> bool:
    """Also a unit that does not tell its state."""
    return unit.clock_state in (None, "locked")


def state_text(unit: GrandmasterState, now_ns: int) -> str:
    """As "HOLDOVER since 02:14Z"; since when only where it is not locked."""
    if unit.clock_state is None:
        return "state unknown" if unit.clock_class is None else f"clock class {unit.clock_class}"
    state = unit.clock_state.replace("_", " ").upper()
    since_ns = unit.clock_state_since_realtime_ns
    return state if is_locked(unit) or since_ns is None else f"{state} since {utc_text(since_ns, now_ns)}"


def antenna_text(unit: GrandmasterState) -> str | None:
    """What is wrong with the antenna, None: nothing that is known."""
    return _ANTENNA_WORDS.get(unit.antenna or "")


def _antenna_alarm(unit: GrandmasterState) -> str | None:
    """Where the unit reports alarms by itself alone, they tell more of its antenna than it does."""
    return next((alarm.text for alarm in unit.alarms or [] if "antenna" in alarm.text.lower()), None)


def budget_text(unit: GrandmasterState) -> str | None:
    """What the holdover budget has left when the state was published."""
    if unit.holdover_left_ns is None:
        return None
    left_ns = unit.holdover_left_ns - (unit.age_ns or 0)
    return f"budget left {span_text(left_ns)}" if left_ns > 0 else "budget spent"


def poll_realtime_ns(unit: GrandmasterState, now_ns: int) -> int:
    """When the unit was polled, by CLOCK_REALTIME."""
    return now_ns - (unit.age_ns or 0)


def utc_text(realtime_ns: int, now_ns: int) -> str:
    """The minute in UTC, as "02:14Z"; with its date where that is not today's."""
    then, now = (datetime.fromtimestamp(ns // NS_PER_S, UTC) for ns in (realtime_ns, now_ns))
    return f"{then:%H:%MZ}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%MZ}"


def names_text(names: Sequence[str]) -> str:
    """Comma-separated, in order; a long list is cut and counted."""
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"
