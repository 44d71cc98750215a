"""What a grandmaster says of itself against what others know: the nodes that hear it, and the other units. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.followers import Follower, HeardBy
from timesyncd.findings.grandmaster_symptoms import Symptom
from timesyncd.findings.text import identities, is_locked, names_text
from timesyncd.messages.node import GrandmasterOffset, GrandmasterState
from timesyncd.units import duration_text

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
            if source.reason is None and source.grandmaster_identity is not None:
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
