"""
The line of a check by Nagios, Icinga or Checkmk, as the Monitoring Plugins Development Guidelines define it. Pure.

The worst of a clock's state and of the findings that no operator took decides. CRITICAL counts as worse than UNKNOWN, and
UNKNOWN as worse than WARNING: an unknown clock may be a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, NodeState
from timesyncd.messages.notes import HandledFinding
from timesyncd.messages.overview import ConfiguredLimits, Headline
from timesyncd.units import duration_text


class State(IntEnum):
    """The exit status of the check."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


#: The worst first.
_ORDER = (State.CRITICAL, State.UNKNOWN, State.WARNING, State.OK)

_OF_STATUS = {"SYNCHRONIZED": State.OK, "HOLDOVER": State.WARNING, "DISRUPTED": State.CRITICAL}
_OF_SEVERITY = {"critical": State.CRITICAL, "warning": State.WARNING}

#: So many findings are named.
MAX_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class Check:
    """A state, the sentence for people, and the performance data as they are printed."""

    state: State
    text: str
    data: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        data = f" | {' '.join(self.data)}" if self.data else ""
        return f"TIMESYNCD {self.state.name}: {_one_line(self.text)}{data}"


def seconds_datum(label: str, ns: int | None, critical_ns: int | None = None) -> str:
    """
    `label=value[UOM];[warn];[crit];[min]` of a duration that is at least 0, in seconds. None: `U`, which is not known.
    """
    if ns is None:
        return f"{label}=U"
    return f"{label}={_seconds(ns)}s;;{'' if critical_ns is None else _seconds(critical_ns)};0"


def node_check(node: NodeState, limits: ConfiguredLimits) -> Check:
    """Of a node's clock: its status, and its bound as it is now against `limits.node_bound_ns`."""
    status, bound, limit_ns = node.main_status, node.main_bound, limits.node_bound_ns
    known_ns = None
    if status in ("SYNCHRONIZED", "HOLDOVER") and bound is not None and node.age_ns is not None:
        known_ns = Bound(bound.bound_ns, bound.growth_ppb).at(node.age_ns)
    data = seconds_datum("bound", known_ns, limit_ns), seconds_datum("age", node.age_ns)
    if known_ns is None:
        why = node.reason or (bound.reason if bound is not None else "") or "no clock source is configured"
        return Check(_OF_STATUS.get(status, State.UNKNOWN), f"{node.node} {status}, its bound is unknown: {why}", data)
    text = f"{node.node} {status}, bound {duration_text(known_ns)}"
    if limit_ns is not None and known_ns > limit_ns:
        return Check(State.CRITICAL, f"{text}, above the limit of {duration_text(limit_ns)}", data)
    return Check(_OF_STATUS[status], text, data)


def fleet_check(headline: Headline) -> Check:
    """Of a hub without a clock of its own: the alignment of the fleet against the operator's limit."""
    states = {"within": State.OK, "unlimited": State.OK, "exceeded": State.CRITICAL, "unknown": State.UNKNOWN}
    data = (
        seconds_datum("alignment", headline.alignment_ns, headline.limits.fleet_alignment_ns),
        f"nodes={headline.nodes};;;0",
        f"without_bound={headline.without_bound};;;0;{headline.nodes}",
    )
    return Check(states[headline.verdict], headline.text, data)


def grandmaster_check(grandmaster: GrandmasterState) -> Check:
    """Of a grandmaster: it answers and is locked, or in holdover within its budget."""
    left_ns, name = grandmaster.current_holdover_left_ns, grandmaster.name
    data = [seconds_datum("utc_bound", grandmaster.current_utc_bound_ns), seconds_datum("holdover_left", left_ns)]
    if grandmaster.satellites_tracked is not None:
        data.append(f"satellites={grandmaster.satellites_tracked};;;0")
    if not grandmaster.reachable:
        why = grandmaster.reason or "no reason is known"
        return Check(State.CRITICAL, f"{name} does not answer: {why}", tuple(data))
    states = {"locked": State.OK, "holdover": State.WARNING, None: State.UNKNOWN}
    state = states.get(grandmaster.clock_state, State.CRITICAL)
    return Check(state, f"{name} {grandmaster.clock_state or 'does not state its clock state'}", tuple(data))


def job_check(job: JobState, limits: ConfiguredLimits) -> Check:
    """Of a job: its clocks are comparable and within the limit, and no rank is slow."""
    limit_ns = limits.job_alignment_ns
    overhead = "U" if job.sync_overhead is None else f"{100 * job.sync_overhead:.3f}%;;;0;100"
    data = (
        seconds_datum("alignment", job.alignment_ns, limit_ns),
        f"sync_overhead={overhead}",
        seconds_datum("arrival_skew_p99", job.arrival_skew_p99_ns),
    )
    if job.alignment_ns is None:
        return Check(State.UNKNOWN, f"{job.job}: the alignment is unknown: {job.alignment_reason}", data)
    text = f"{job.job}: aligned within {duration_text(job.alignment_ns)}"
    if limit_ns is not None and job.alignment_ns > limit_ns:
        return Check(State.CRITICAL, f"{text}, above the limit of {duration_text(limit_ns)}", data)
    if job.straggler_rank is not None:
        return Check(State.WARNING, f"{text}, rank {job.straggler_rank} is a straggler", data)
    return Check(State.OK, text, data)


def with_findings(check: Check, findings: Iterable[FindingMessage]) -> Check:
    """The check with active findings that no operator took: the worse of both, and the worst few by name."""
    counted = [each for each in findings if each.severity in _OF_SEVERITY]
    ordered = sorted(counted, key=lambda each: _ORDER.index(_OF_SEVERITY[each.severity]))
    state = min([check.state, *(_OF_SEVERITY[each.severity] for each in ordered)], key=_ORDER.index)
    named = [f"{each.id} of {each.subject}" for each in ordered[:MAX_FINDINGS]]
    if len(ordered) > MAX_FINDINGS:
        named.append(f"{len(ordered) - MAX_FINDINGS} more")
    text = f"{check.text}; {', '.join(named)}" if named else check.text
    return Check(state, text, (*check.data, f"findings={len(ordered)};;;0"))


def open_findings(answer: Mapping[str, Any], handled: Iterable[Any], subject: str | None) -> list[FindingMessage]:
    """The active findings that no operator acknowledged or silenced; of one subject, or of all with `subject` None."""
    taken = {(each.finding, each.subject) for each in map(HandledFinding.model_validate, handled)}
    findings = [FindingMessage.model_validate(each) for each in answer["findings"]]
    return [
        each
        for each in findings
        if each.until_realtime_ns is None
        and (each.id, each.subject) not in taken
        and (subject is None or each.subject == subject or each.subject.startswith(f"{subject}, "))
    ]


def _seconds(ns: int) -> str:
    """Exact, without an exponent, which several readers of performance data do not know."""
    whole, rest = divmod(ns, NS_PER_S)
    return f"{whole}.{rest:09d}"


def _one_line(text: str) -> str:
    """Without what ends the text: a line end, another control character, or the bar before the performance data."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f|]", " ", text).split())
