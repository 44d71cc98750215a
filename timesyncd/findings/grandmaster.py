"""
The findings of grandmasters: one for each cause, with what follows from it in its chain. Pure: time is an argument.

From a grandmaster's trouble to what it does to whom: the steps of one finding's chain. Pure.

What a grandmaster says of itself against what others know: the nodes that hear it, and the other units. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judged, Step
from timesyncd.findings.followers import Follower, HeardBy
from timesyncd.findings.grandmaster_history import UnitHistory
from timesyncd.findings.grandmaster_symptoms import Symptom, symptoms
from timesyncd.findings.text import identities, is_locked, names_text, poll_realtime_ns, utc_text
from timesyncd.messages.node import OK, GrandmasterOffset, GrandmasterState
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.units import duration_text

#: Why a node may have no bound against UTC whatever its grandmaster does.
_OWN_REASONS = (Reason.ARBITRARY_TIMESCALE.code, Reason.UTC_OFFSET_DIFFERS.code)

_S_PER_HOUR = 3_600


def chain(causes: Sequence[Step], unit: GrandmasterState, nodes: Iterable[Follower], now_ns: int) -> tuple[Step, ...]:
    """`causes` in order, then what follows from them; () where they are all there is to say."""
    steps = tuple(dict.fromkeys(causes))
    if not is_locked(unit):
        steps += (*_of_unit(unit, now_ns), *_of_nodes(unit, _followers(unit, nodes), _growth(unit)))
    return steps if len(steps) > 1 else ()


def doubt(causes: Sequence[Step], unit: GrandmasterState, nodes: Iterable[Follower]) -> tuple[Step, ...]:
    """The chain of a unit whose word is in doubt."""
    steps = (*causes, *_of_nodes(unit, _followers(unit, nodes), "the UTC bound rests on what this unit says"))
    return steps if len(steps) > 1 else ()


def _followers(unit: GrandmasterState, nodes: Iterable[Follower]) -> list[Follower]:
    """Those whose clock is known against it: of the others its trouble is not the reason."""
    announced = identities(unit)
    return [n for n in nodes if n.status in ("SYNCHRONIZED", "HOLDOVER") and n.grandmaster_identity in announced]


def _of_unit(unit: GrandmasterState, now_ns: int) -> list[Step]:
    steps = []
    if unit.clock_class is not None:
        steps.append(Step("clock-class", f"it announces clock class {unit.clock_class}"))
    if unit.holdover_left_ns is not None:
        left_ns = unit.holdover_left_ns - (unit.age_ns or 0)
        lasts = f"lasts until {utc_text(now_ns + left_ns, now_ns)}" if left_ns > 0 else "is spent"
        steps.append(Step("holdover-budget", f"its holdover budget {lasts}"))
    if unit.utc is not None and unit.utc.bound_ns is None:
        steps.append(Step("own-error-unbounded", f"its error against UTC is not bounded: {unit.utc.reason}"))
    return steps


def _of_nodes(unit: GrandmasterState, followers: Iterable[Follower], bounded: str) -> list[Step]:
    """One step for all nodes that fare alike; `bounded` is how those with a bound against UTC do."""
    fares: dict[str | None, tuple[str, list[str]]] = {}
    for node in followers:
        if node.utc is not None and node.utc.reason_code not in _OWN_REASONS:
            is_bounded = node.utc.bound_ns is not None
            fare = bounded if is_bounded else f"no bound against UTC: {node.utc.reason}"
            fares.setdefault(None if is_bounded else node.utc.reason_code, (fare, []))[1].append(node.node)
    return [
        Step("followers-unbounded" if reason else "followers-bounded", f"{names_text(names)}: {fare}")
        for reason, (fare, names) in fares.items()
    ]


def _growth(unit: GrandmasterState) -> str:
    growth_ppb = unit.utc.growth_ppb if unit.utc else 0
    if growth_ppb == 0:
        return "UTC bound is wider while this lasts"
    return f"UTC bound grows by {duration_text(growth_ppb * _S_PER_HOUR)} an hour"


#: Announce tells at once, a poll later: a contradiction counts when a poll so long after its beginning still shows it.
CONTRADICTS_FOR_NS = 30 * NS_PER_S

#: Of G.8265.1 these classes stand for a quality level of the network's own, and are not the unit's class.
_QUALITY_LEVELS = range(80, 111)

Hearers = Mapping[str, Sequence[tuple[str, HeardBy]]]
"""By a grandmaster's identity: which nodes hear it in Announce, and by which source."""


def hearers(nodes: Iterable[Follower]) -> Hearers:
    """Of the sources whose newest sample is fresh: one with a reason has none."""
    found: dict[str, list[tuple[str, HeardBy]]] = {}
    for node in nodes:
        for source in node.sources if node.status == "SYNCHRONIZED" else []:
            if source.reason_code == OK and source.grandmaster_identity is not None:
                found.setdefault(source.grandmaster_identity, []).append((node.node, source))
    return found


def contradictions(unit: GrandmasterState, heard: Hearers) -> list[Symptom]:
    """What nodes hear in this unit's Announce and it does not say of itself; one a field, with who hears what."""
    found: dict[tuple[str, str], set[str]] = {}
    for identity in identities(unit):
        for node, source in heard.get(identity, []):
            for what, told in _differences(unit, source):
                found.setdefault((what, told), set()).add(node)
    return [
        Symptom("grandmaster-contradiction", f"{told} ({names_text(list(names))})", CONTRADICTS_FOR_NS, what)
        for (what, told), names in found.items()
    ]


def _differences(unit: GrandmasterState, source: HeardBy) -> Iterator[tuple[str, str]]:
    heard_class = source.clock_class if source.clock_class not in _QUALITY_LEVELS else None
    pairs = (
        ("clock class", unit.clock_class, heard_class, "{}"),
        ("clock accuracy", unit.clock_accuracy, source.clock_accuracy, "0x{:02x}"),
        ("UTC offset", unit.utc_offset_s, source.current_utc_offset_s, "{} s"),
    )
    for what, said, heard, form in pairs:
        if said is not None and heard is not None and said != heard:
            yield what, f"{what}: the unit says {form.format(said)}, nodes hear {form.format(heard)}"
    if unit.steps_removed:
        yield "steps", f"the unit says that it is {unit.steps_removed} steps from its grandmaster, nodes hear it as one"


def disagreements(unit: GrandmasterState, others: Sequence[GrandmasterState]) -> list[tuple[str, Symptom]]:
    """(subject, symptom) of each pair in which `unit` is the first by name."""
    found = []
    offsets = {offset.other: offset for offset in unit.offsets}
    for other in others:
        if other.name > unit.name:
            subject = f"{unit.name}, {other.name}"
            found += [(subject, symptom) for symptom in _of_pair(unit, other, offsets.get(other.name))]
    return found


def _of_pair(unit: GrandmasterState, other: GrandmasterState, offset: GrandmasterOffset | None) -> Iterator[Symptom]:
    allowed_ns = None if offset is None else _sum(utc_bound_ns(unit), utc_bound_ns(other))
    if offset is not None and allowed_ns is not None and abs(offset.offset_ns) - offset.bound_ns > allowed_ns:
        way = "ahead of" if offset.offset_ns > 0 else "behind"
        apart = f"{duration_text(abs(offset.offset_ns))} {way} {other.name} within {duration_text(offset.bound_ns)}"
        text = f"{unit.name} is {apart} ({offset.evidence}); by their own bounds at most {duration_text(allowed_ns)}"
        yield Symptom("grandmasters-disagree", text, aspect="time")
    if unit.utc_offset_s == other.utc_offset_s:
        return
    both = (unit, other)
    if all(each.reachable and is_locked(each) and each.utc_offset_s is not None for each in both):
        text = f"UTC offset: {', '.join(f'{each.name} says {each.utc_offset_s} s' for each in both)}"
        yield Symptom("grandmasters-disagree", text, CONTRADICTS_FOR_NS, "UTC offset")


def utc_bound_ns(unit: GrandmasterState) -> int | None:
    """The unit's own error against UTC at its age; None: unbounded, or not judged."""
    if unit.utc is None or unit.age_ns is None:
        return None
    return Bound(unit.utc.bound_ns, unit.utc.growth_ppb).at(unit.age_ns)


def _sum(one_ns: int | None, other_ns: int | None) -> int | None:
    return None if one_ns is None or other_ns is None else one_ns + other_ns


#: How a unit loses the time, step by step: the first that holds is the cause, the others follow from it.
LADDER = (
    "grandmaster-antenna", "grandmaster-spoofing", "grandmaster-jamming", "grandmaster-few-satellites",
    "grandmaster-reference-lost", "grandmaster-not-locked",
)  # fmt: skip

#: Its word is in doubt although it looks well: such a finding stands by itself, whatever else does.
DOUBTS = ("grandmaster-spoofing", "grandmaster-unfounded-lock")

#: What happens to a unit and is told at once. A jump becomes a suspicion; the other kinds stand as a state.
EVENTS = {
    GrandmasterEventKind.RESTARTED: "grandmaster-rebooted",
    GrandmasterEventKind.IDENTITY_CHANGED: "grandmaster-identity-changed",
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

    def happened(self, unit: str, event: GrandmasterEvent) -> str | None:
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
        causes = [Step(step[0], due[step][0]) for step in (steps if is_root else [key])]
        told: tuple[Step, ...] = ()
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
