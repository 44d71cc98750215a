"""
The findings of grandmasters: one for each cause, with its effects in the chain. Pure: time is an argument.

`GrandmasterFindings` collects the symptoms of each grandmaster, compares what it reports with what its followers
receive and with the other grandmasters, and folds symptoms of one cause into one finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement, chain_step
from timesyncd.findings.followers import Follower, FollowerSource, identities
from timesyncd.findings.grandmaster_history import GrandmasterHistory
from timesyncd.findings.grandmaster_symptoms import Symptom, symptoms
from timesyncd.findings.text import is_locked, names_text, poll_realtime_ns, utc_text
from timesyncd.messages.node import OK, ChainStep, GrandmasterOffset, GrandmasterState
from timesyncd.model.error_bound import QUALITY_LEVELS
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.units import duration_text

#: With these reasons a node has no bound against UTC whatever its grandmaster does.
_OWN_REASONS = (Reason.ARBITRARY_TIMESCALE.code, Reason.UTC_OFFSET_DIFFERS.code)

_S_PER_HOUR = 3_600


def chain(
    causes: Sequence[ChainStep], grandmaster: GrandmasterState, nodes: Iterable[Follower], now_ns: int
) -> tuple[ChainStep, ...]:
    """The `causes` in order, then their effects; () where there is only one step."""
    steps = tuple(dict.fromkeys(causes))
    if not is_locked(grandmaster):
        steps += (
            *_of_grandmaster(grandmaster, now_ns),
            *_of_nodes(grandmaster, _followers(grandmaster, nodes), _growth(grandmaster)),
        )
    return steps if len(steps) > 1 else ()


def suspect_chain(
    causes: Sequence[ChainStep], grandmaster: GrandmasterState, nodes: Iterable[Follower]
) -> tuple[ChainStep, ...]:
    """The chain of a grandmaster whose reports are in doubt."""
    steps = (
        *causes,
        *_of_nodes(grandmaster, _followers(grandmaster, nodes), "the UTC bound relies on this grandmaster's report"),
    )
    return steps if len(steps) > 1 else ()


def _followers(grandmaster: GrandmasterState, nodes: Iterable[Follower]) -> list[Follower]:
    """The followers that have a bound against it: the others have lost it for another reason."""
    announced = identities(grandmaster)
    return [n for n in nodes if n.status in ("SYNCHRONIZED", "HOLDOVER") and n.grandmaster_identity in announced]


def _of_grandmaster(grandmaster: GrandmasterState, now_ns: int) -> list[ChainStep]:
    steps = []
    if grandmaster.clock_class is not None:
        steps.append(chain_step("clock-class", f"it announces clock class {grandmaster.clock_class}"))
    if grandmaster.holdover_left_ns is not None:
        left_ns = grandmaster.holdover_left_ns - (grandmaster.age_ns or 0)
        lasts = f"lasts until {utc_text(now_ns + left_ns, now_ns)}" if left_ns > 0 else "is exhausted"
        steps.append(chain_step("holdover-budget", f"its holdover budget {lasts}"))
    if grandmaster.utc is not None and grandmaster.utc.bound_ns is None:
        steps.append(chain_step("own-error-unbounded", f"its error against UTC is unbounded: {grandmaster.utc.reason}"))
    return steps


def _of_nodes(grandmaster: GrandmasterState, followers: Iterable[Follower], bounded: str) -> list[ChainStep]:
    """One step for all nodes with the same effect; `bounded` is the effect on those with a bound against UTC."""
    effects: dict[str | None, tuple[str, list[str]]] = {}
    for node in followers:
        if node.utc is not None and node.utc.reason_code not in _OWN_REASONS:
            is_bounded = node.utc.bound_ns is not None
            effect = bounded if is_bounded else f"no bound against UTC: {node.utc.reason}"
            effects.setdefault(None if is_bounded else node.utc.reason_code, (effect, []))[1].append(node.node)
    return [
        chain_step("followers-unbounded" if reason else "followers-bounded", f"{names_text(names)}: {effect}")
        for reason, (effect, names) in effects.items()
    ]


def _growth(grandmaster: GrandmasterState) -> str:
    growth_ppb = grandmaster.utc.growth_ppb if grandmaster.utc else 0
    if growth_ppb == 0:
        return "UTC bound is wider while this lasts"
    return f"UTC bound grows by {duration_text(growth_ppb * _S_PER_HOUR)} an hour"


#: Announce changes at once, the poll follows: a contradiction counts when a poll so long after its beginning still
#: shows it.
CONTRADICTS_FOR_NS = 30 * NS_PER_S

AnnounceReceivers = Mapping[str, Sequence[tuple[str, FollowerSource]]]
"""By a grandmaster's identity: the nodes that receive its Announce messages, each with its source."""


def announce_receivers(nodes: Iterable[Follower]) -> AnnounceReceivers:
    """The sources whose newest sample is fresh: a source with a reason has none."""
    found: dict[str, list[tuple[str, FollowerSource]]] = {}
    for node in nodes:
        for source in node.sources if node.status == "SYNCHRONIZED" else []:
            if source.reason_code == OK and source.grandmaster_identity is not None:
                found.setdefault(source.grandmaster_identity, []).append((node.node, source))
    return found


def contradictions(grandmaster: GrandmasterState, receivers: AnnounceReceivers) -> list[Symptom]:
    """Fields in which this grandmaster's Announce messages, as nodes receive them, differ from what it reports."""
    found: dict[tuple[str, str], set[str]] = {}
    for identity in identities(grandmaster):
        for node, source in receivers.get(identity, []):
            for what, difference in _differences(grandmaster, source):
                found.setdefault((what, difference), set()).add(node)
    return [
        Symptom("grandmaster-contradiction", f"{difference} ({names_text(list(names))})", CONTRADICTS_FOR_NS, what)
        for (what, difference), names in found.items()
    ]


_YES_NO = {None: None, True: "yes", False: "no"}


def _differences(grandmaster: GrandmasterState, source: FollowerSource) -> Iterator[tuple[str, str]]:
    received_class = source.clock_class if source.clock_class not in QUALITY_LEVELS else None
    pairs = (
        ("clock class", grandmaster.clock_class, received_class, "{}"),
        ("clock accuracy", grandmaster.clock_accuracy, source.clock_accuracy, "0x{:02x}"),
        ("UTC offset", grandmaster.utc_offset_s, source.current_utc_offset_s, "{} s"),
        ("time traceable", _YES_NO[grandmaster.time_traceable], _YES_NO[source.time_traceable], "{}"),
    )
    for what, reported, received, form in pairs:
        if reported is not None and received is not None and reported != received:
            yield (
                what,
                f"{what}: the grandmaster reports {form.format(reported)}, nodes receive {form.format(received)}",
            )
    if grandmaster.leap is not None and source.leap not in (None, "none", grandmaster.leap):
        own, announced = _LEAP_TEXTS[grandmaster.leap], _LEAP_TEXTS[source.leap]
        yield "leap second", f"leap second: the grandmaster reports {own}, nodes receive {announced}"
    if grandmaster.steps_removed:
        steps = (
            f"it reports {grandmaster.steps_removed} steps to its own grandmaster, nodes receive it as a grandmaster"
        )
        yield "steps", steps


_LEAP_TEXTS = {"none": "none", "insert": "an insertion", "delete": "a deletion", "both": "both"}


def disagreements(grandmaster: GrandmasterState, others: Sequence[GrandmasterState]) -> list[tuple[str, Symptom]]:
    """(subject, symptom) of each pair in which `grandmaster` is the first by name."""
    found = []
    offsets = {offset.other: offset for offset in grandmaster.offsets}
    for other in others:
        if other.name > grandmaster.name:
            subject = f"{grandmaster.name}, {other.name}"
            found += [(subject, symptom) for symptom in _of_pair(grandmaster, other, offsets.get(other.name))]
    return found


def _leaps_contradict(one: GrandmasterState, other: GrandmasterState) -> bool:
    """A grandmaster may announce a leap second earlier than another one, so only insertion and deletion contradict."""
    return {one.leap, other.leap} == {"insert", "delete"}


def _of_pair(
    grandmaster: GrandmasterState, other: GrandmasterState, offset: GrandmasterOffset | None
) -> Iterator[Symptom]:
    allowed_ns = None if offset is None else _sum(utc_bound_ns(grandmaster), utc_bound_ns(other))
    if offset is not None and allowed_ns is not None and abs(offset.offset_ns) - offset.bound_ns > allowed_ns:
        way = "ahead of" if offset.offset_ns > 0 else "behind"
        apart = f"{duration_text(abs(offset.offset_ns))} {way} {other.name} within {duration_text(offset.bound_ns)}"
        allowed = f"by their own bounds at most {duration_text(allowed_ns)}"
        text = f"{grandmaster.name} is {apart} ({offset.evidence}); {allowed}"
        yield Symptom("grandmasters-disagree", text, aspect="time")
    both = (grandmaster, other)
    if _leaps_contradict(*both):
        said = ", ".join(f"{each.name} announces {_LEAP_TEXTS[each.leap or 'none']}" for each in both)
        yield Symptom("grandmasters-disagree", f"leap second: {said}", CONTRADICTS_FOR_NS, "leap second")
    if grandmaster.utc_offset_s == other.utc_offset_s:
        return
    if all(each.reachable and is_locked(each) and each.utc_offset_s is not None for each in both):
        text = f"UTC offset: {', '.join(f'{each.name} reports {each.utc_offset_s} s' for each in both)}"
        yield Symptom("grandmasters-disagree", text, CONTRADICTS_FOR_NS, "UTC offset")


def utc_bound_ns(grandmaster: GrandmasterState) -> int | None:
    """The grandmaster's own error against UTC at its age; None: unbounded, or not judged."""
    if grandmaster.utc is None or grandmaster.age_ns is None:
        return None
    return Bound(grandmaster.utc.bound_ns, grandmaster.utc.growth_ppb).at(grandmaster.age_ns)


def _sum(one_ns: int | None, other_ns: int | None) -> int | None:
    return None if one_ns is None or other_ns is None else one_ns + other_ns


#: How a grandmaster loses the time, step by step: the first that holds is the cause, the later ones are its effects.
LADDER = (
    "grandmaster-antenna", "grandmaster-spoofing", "grandmaster-jamming", "grandmaster-few-satellites",
    "grandmaster-reference-lost", "grandmaster-not-locked",
)  # fmt: skip

#: Findings that put its reports in doubt although it looks healthy: they are not folded into another cause.
DOUBTS = ("grandmaster-spoofing", "grandmaster-unfounded-lock")

#: Events that are findings at once. A jump becomes a suspicion; the other kinds show in the state.
EVENTS = {
    GrandmasterEventKind.RESTARTED: "grandmaster-rebooted",
    GrandmasterEventKind.IDENTITY_CHANGED: "grandmaster-identity-changed",
}

#: A poller that published a grandmaster's state within this is alive.
POLLER_ALIVE_NS = 60 * NS_PER_S

Key = tuple[str, str]
Timer = tuple[str, str, str]
"""What is timed: (subject, id, aspect) of a symptom, independent of its text."""


class GrandmasterFindings:
    """
    Judges the grandmasters that this daemon polls. Keeps the history that the rules compare with, and since when
    symptoms hold.
    """

    def __init__(self) -> None:
        self._histories: dict[str, GrandmasterHistory] = defaultdict(GrandmasterHistory)
        self._since: dict[Timer, int] = {}

    def add_event(self, grandmaster: str, event: GrandmasterEvent) -> str | None:
        """Take in an event between two polls. Returns the id of the finding to publish at once, None if it is none."""
        self._histories[grandmaster].add_event(event)
        return EVENTS.get(event.kind)

    def judge(
        self,
        grandmasters: Sequence[GrandmasterState],
        remote: Sequence[GrandmasterState],
        nodes: Sequence[Follower],
        now_ns: int,
    ) -> dict[Key, Judgement]:
        """
        What holds now, by (id, subject). `grandmasters` as this daemon polls them, `remote` as other daemons do;
        `now_ns` is CLOCK_REALTIME.
        """
        own = {grandmaster.name for grandmaster in grandmasters}
        everyone = [*grandmasters, *(grandmaster for grandmaster in remote if grandmaster.name not in own)]
        receivers = announce_receivers(nodes)
        since: dict[Timer, int] = {}
        judged: dict[Key, Judgement] = {}
        for grandmaster in grandmasters:
            found = self._found(grandmaster, everyone, receivers, now_ns)
            since |= {_timer(*each): self._since.get(_timer(*each), now_ns) for each in found}
            if not is_judged_elsewhere(grandmaster.name, grandmaster.node, remote, now_ns):
                judged |= _folded(_due(found, since, poll_realtime_ns(grandmaster, now_ns)), grandmaster, nodes, now_ns)
        self._since = since
        return judged

    def _found(
        self,
        grandmaster: GrandmasterState,
        everyone: Sequence[GrandmasterState],
        receivers: AnnounceReceivers,
        now_ns: int,
    ) -> list[tuple[str, Symptom]]:
        history = self._histories[grandmaster.name]
        history.update(grandmaster, now_ns)
        own = [*symptoms(grandmaster, history, now_ns), *contradictions(grandmaster, receivers)]
        return [*((grandmaster.name, symptom) for symptom in own), *disagreements(grandmaster, everyone)]


def _timer(subject: str, symptom: Symptom) -> Timer:
    return subject, symptom.id, symptom.aspect


def _due(found: Iterable[tuple[str, Symptom]], since: Mapping[Timer, int], polled_ns: int) -> dict[Key, list[str]]:
    """The texts of the symptoms that lasted long enough, by (id, subject). Only a poll confirms that one lasts."""
    due: dict[Key, list[str]] = {}
    for subject, symptom in found:
        lasted_ns = polled_ns - since[_timer(subject, symptom)]
        if symptom.after_ns == 0 or lasted_ns >= symptom.after_ns:
            due.setdefault((symptom.id, subject), []).append(symptom.text)
    return due


def _folded(
    due: Mapping[Key, list[str]], grandmaster: GrandmasterState, nodes: Sequence[Follower], now_ns: int
) -> dict[Key, Judgement]:
    """One finding for the first step of the ladder with all later ones; other findings unchanged."""
    steps = [(id, grandmaster.name) for id in LADDER if (id, grandmaster.name) in due]
    judged = {}
    for key, texts in due.items():
        is_root, is_doubt = key in steps[:1], key[0] in DOUBTS
        causes = [chain_step(step[0], due[step][0]) for step in (steps if is_root else [key])]
        steps_of_chain: tuple[ChainStep, ...] = ()
        if is_doubt and (is_locked(grandmaster) or not is_root):
            steps_of_chain = suspect_chain(causes, grandmaster, nodes)
        elif is_root:
            steps_of_chain = chain(causes, grandmaster, nodes, now_ns)
        if is_root or is_doubt or key not in steps:
            judged[key] = Judgement("; ".join(dict.fromkeys(texts)), steps_of_chain)
    return judged


def is_judged_elsewhere(grandmaster: str, node: str, remote: Iterable[GrandmasterState], now_ns: int) -> bool:
    """
    Whether another daemon, which polls it too, publishes its findings: that whose node comes first by name. A state
    from the future does not count for long, so that a daemon with a fast clock silences no other one after its end.
    """
    return any(
        other.name == grandmaster
        and other.node < node
        and other.reachable
        and abs(now_ns - other.published_realtime_ns) < POLLER_ALIVE_NS
        for other in remote
    )
