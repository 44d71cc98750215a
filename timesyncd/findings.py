"""The catalogue of findings, and the rules that one node can decide by itself. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a finding of one id means; docs/operations.md has an entry for each."""

    severity: Severity
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something an operator should know. Times are CLOCK_REALTIME; `until_ns` None = it stands."""

    id: str
    severity: Severity
    subject: str
    since_ns: int
    until_ns: int | None
    evidence: str
    cause: str
    remedy: str


CATALOGUE: dict[str, Kind] = {
    "source-lost": Kind(
        "critical",
        "the clock source does not answer",
        "see whether the PTP daemon runs and whether timesyncd may use its socket: timesyncd check-config, systemctl status",
    ),
    "grandmaster-lost": Kind(
        "warning",
        "the grandmaster does not answer its management port",
        "see whether the unit is reachable, and whether community and port are right; PTP itself may still be fine",
    ),
    "grandmaster-not-locked": Kind(
        "warning",
        "the grandmaster says that it is not locked to its reference",
        "look at its GNSS antenna and alarms; the UTC bound is wider or gone, node-to-node alignment is not affected",
    ),
    "grandmaster-alarm": Kind(
        "warning",
        "the grandmaster has standing alarms",
        "read them on the unit",
    ),
    "clock-holdover": Kind(
        "warning",
        "no fresh PTP sample for longer than holdover_after",
        "the bound grows until a sample comes; see the port's state and the grandmaster",
    ),
    "clock-unknown": Kind(
        "critical",
        "no bound is known for this node's clock",
        "the evidence says what is missing; a clock that just began to be watched needs a dozen delay measurements",
    ),
    "clock-disrupted": Kind(
        "critical",
        "the clock was stepped, or its source began anew",
        "find out who set the clock; it ends by itself with the next valid sample",
    ),
    "phase-jump": Kind(
        "warning",
        "the offset moved further at once than path and clocks explain: the grandmaster's phase or the path changed",
        "compare the other nodes: a jump on all is the grandmaster, a jump on one is its path",
    ),
    "store-failing": Kind(
        "critical",
        "the history cannot be written",
        "free disk space or mend the database; polling and the clock segment go on",
    ),
    "broker-lost": Kind(
        "warning",
        "the MQTT broker cannot be reached",
        "see whether the broker runs; states are published again when it is back",
    ),
}

FORGET_AFTER_NS = 3_600_000_000_000


class Findings:
    """What stands, and what stood within the last hour, by (id, subject)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Finding] = {}

    def judge(self, id: str, subject: str, evidence: str | None, realtime_ns: int) -> Finding | None:
        """The rule's verdict now: evidence when it holds, None when not. Gives the finding that began or ended thereby."""
        key = (id, subject)
        known = self._known.get(key)
        stands = known is not None and known.until_ns is None
        if evidence is not None and not stands:
            return self._keep(key, self._begin(id, subject, evidence, realtime_ns))
        if evidence is None and known is not None and stands:
            return self._keep(key, replace(known, until_ns=realtime_ns))
        if evidence is not None and known is not None:
            self._known[key] = replace(known, evidence=evidence)
        return None

    def event(self, id: str, subject: str, evidence: str, realtime_ns: int) -> Finding:
        """Something that happened at one moment."""
        happened = replace(self._begin(id, subject, evidence, realtime_ns), until_ns=realtime_ns)
        return self._keep((id, subject), happened)

    def standing(self) -> set[tuple[str, str]]:
        """The (id, subject) of every finding that stands."""
        return {key for key, finding in self._known.items() if finding.until_ns is None}

    def all(self, realtime_ns: int) -> list[Finding]:
        """What stands and what ended within the hour, newest first."""
        self._known = {
            key: finding
            for key, finding in self._known.items()
            if finding.until_ns is None or realtime_ns - finding.until_ns < FORGET_AFTER_NS
        }
        return sorted(self._known.values(), key=lambda f: (f.until_ns is not None, -f.since_ns))

    def _begin(self, id: str, subject: str, evidence: str, realtime_ns: int) -> Finding:
        kind = CATALOGUE[id]
        return Finding(id, kind.severity, subject, realtime_ns, None, evidence, kind.cause, kind.remedy)

    def _keep(self, key: tuple[str, str], finding: Finding) -> Finding:
        self._known[key] = finding
        return finding
