"""The findings of grandmasters: one for each cause, with what follows from it in its chain. Pure: time is an argument."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judged
from timesyncd.findings.followers import Follower
from timesyncd.findings.grandmaster_history import UnitHistory
from timesyncd.findings.grandmaster_symptoms import Symptom, symptoms
from timesyncd.findings.text import is_locked, poll_realtime_ns
from timesyncd.findings.unit_chain import chain, doubt
from timesyncd.findings.unit_checks import Hearers, contradictions, disagreements, hearers
from timesyncd.messages.node import GrandmasterState
from timesyncd.model.grandmaster import UnitEvent
from timesyncd.model.grandmaster_events import UnitEventKind

#: How a unit loses the time, step by step: the first that holds is the cause, the others follow from it.
LADDER = (
    "grandmaster-antenna", "grandmaster-spoofing", "grandmaster-jamming", "grandmaster-few-satellites",
    "grandmaster-reference-lost", "grandmaster-not-locked",
)  # fmt: skip

#: Its word is in doubt although it looks well: such a finding stands by itself, whatever else does.
DOUBTS = ("grandmaster-spoofing", "grandmaster-unfounded-lock")

#: What happens to a unit and is told at once. A jump becomes a suspicion; the other kinds stand as a state.
EVENTS = {
    UnitEventKind.RESTARTED: "grandmaster-rebooted",
    UnitEventKind.IDENTITY_CHANGED: "grandmaster-identity-changed",
}

#: A poller that published a unit's state within this is alive.
POLLER_ALIVE_NS = 60 * NS_PER_S

Key = tuple[str, str]
Timer = tuple[str, str, str]
"""What is timed: (subject, id, aspect) of a symptom, whatever its words say at the moment."""


class UnitFindings:
    """Judges the units that this daemon polls. Remembers of each what its rules compare with, and since when they hold."""

    def __init__(self) -> None:
        self._histories: dict[str, UnitHistory] = defaultdict(UnitHistory)
        self._since: dict[Timer, int] = {}

    def happened(self, unit: str, event: UnitEvent) -> str | None:
        """Take what happened between two polls of a unit. The id of the finding that is to be told at once, if it is one."""
        self._histories[unit].happened(event)
        return EVENTS.get(event.kind)

    def judge(
        self,
        units: Sequence[GrandmasterState],
        heard: Sequence[GrandmasterState],
        nodes: Sequence[Follower],
        now_ns: int,
    ) -> dict[Key, Judged]:
        """
        What holds now, by (id, subject). `units` as this daemon polls them, `heard` as others do; `now_ns` is CLOCK_REALTIME.
        """
        own = {unit.name for unit in units}
        everybody = [*units, *(unit for unit in heard if unit.name not in own)]
        heard_by = hearers(nodes)
        since: dict[Timer, int] = {}
        judged: dict[Key, Judged] = {}
        for unit in units:
            found = self._found(unit, everybody, heard_by, now_ns)
            since |= {_timer(*each): self._since.get(_timer(*each), now_ns) for each in found}
            if not is_judged_elsewhere(unit.name, unit.node, heard, now_ns):
                judged |= _folded(_due(found, since, poll_realtime_ns(unit, now_ns)), unit, nodes, now_ns)
        self._since = since
        return judged

    def _found(
        self, unit: GrandmasterState, everybody: Sequence[GrandmasterState], heard_by: Hearers, now_ns: int
    ) -> list[tuple[str, Symptom]]:
        history = self._histories[unit.name]
        history.note(unit, now_ns)
        own = [*symptoms(unit, history, now_ns), *contradictions(unit, heard_by)]
        return [*((unit.name, symptom) for symptom in own), *disagreements(unit, everybody)]


def _timer(subject: str, symptom: Symptom) -> Timer:
    return subject, symptom.id, symptom.aspect


def _due(found: Iterable[tuple[str, Symptom]], since: Mapping[Timer, int], polled_ns: int) -> dict[Key, list[str]]:
    """The texts of what counts, by (id, subject). What must last is confirmed by a poll, not by waiting for one."""
    due: dict[Key, list[str]] = {}
    for subject, symptom in found:
        lasted_ns = polled_ns - since[_timer(subject, symptom)]
        if symptom.after_ns == 0 or lasted_ns >= symptom.after_ns:
            due.setdefault((symptom.id, subject), []).append(symptom.text)
    return due


def _folded(
    due: Mapping[Key, list[str]], unit: GrandmasterState, nodes: Sequence[Follower], now_ns: int
) -> dict[Key, Judged]:
    """One finding for all that the first step of the ladder leads to; the others as they are."""
    steps = [(id, unit.name) for id in LADDER if (id, unit.name) in due]
    judged = {}
    for key, texts in due.items():
        is_root, is_doubt = key in steps[:1], key[0] in DOUBTS
        causes = [due[step][0] for step in steps] if is_root else texts[:1]
        told: tuple[str, ...] = ()
        if is_doubt and (is_locked(unit) or not is_root):
            told = doubt(causes, unit, nodes)
        elif is_root:
            told = chain(causes, unit, nodes, now_ns)
        if is_root or is_doubt or key not in steps:
            judged[key] = Judged("; ".join(dict.fromkeys(texts)), told)
    return judged


def is_judged_elsewhere(unit: str, node: str, heard: Iterable[GrandmasterState], now_ns: int) -> bool:
    """
    A second daemon polls it too: the one whose node comes first by name tells its findings. One whose clock is ahead of ours
    must not silence us long after its end.
    """
    return any(
        other.name == unit
        and other.node < node
        and other.reachable
        and abs(now_ns - other.published_realtime_ns) < POLLER_ALIVE_NS
        for other in heard
    )
