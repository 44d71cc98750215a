"""The catalogue of findings, and how one begins and ends. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from timesyncd.messages.node import FindingMessage, Severity


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What a finding of one id means; docs/operations.md has an entry for each."""

    severity: Severity
    cause: str
    remedy: str


class Step(NamedTuple):
    """One step of a chain: the id of the finding that causes it, or the name of a consequence; and the sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why a finding holds now. `chain` as in Finding."""

    evidence: str
    chain: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something an operator should know. Times are CLOCK_REALTIME; `until_ns` None = it stands. `chain` leads step by step from
    the cause to what it does to whom, where more than one thing follows.
    """

    id: str
    severity: Severity
    subject: str
    since_ns: int
    until_ns: int | None
    evidence: str
    cause: str
    remedy: str
    chain: tuple[Step, ...] = ()


def finding_message(finding: Finding) -> FindingMessage:
    """The wire form of a finding."""
    fields = asdict(finding)
    fields["chain"] = [step._asdict() for step in finding.chain]
    fields["since_realtime_ns"], fields["until_realtime_ns"] = fields.pop("since_ns"), fields.pop("until_ns")
    return FindingMessage.model_validate(fields)


CATALOGUE: dict[str, FindingKind] = {
    "source-lost": FindingKind(
        "critical",
        "the clock source does not answer",
        "see whether what it reads is there and runs, and whether timesyncd may use it: timesyncd check-config, systemctl status",
    ),
    "grandmaster-lost": FindingKind(
        "warning",
        "the grandmaster does not answer its management port",
        "see whether the grandmaster is reachable, and whether credentials and port are right; PTP itself may still be fine",
    ),
    "grandmaster-antenna": FindingKind(
        "warning",
        "the grandmaster sees its GNSS antenna open, shorted or faulty",
        "look at antenna, cable, surge arrester and splitter; the chain says how long its holdover will do",
    ),
    "grandmaster-spoofing": FindingKind(
        "critical",
        "the position or the time that GNSS gives jumped while it was held: perhaps false signals",
        "compare the other grandmasters and another receiver on the site; while in doubt take GNSS from the grandmaster: it holds over",
    ),
    "grandmaster-jamming": FindingKind(
        "warning",
        "the signals of nearly all GNSS satellites fell together: jamming, or the antenna's path",
        "look for a transmitter near the antenna, a wet connector, a dying amplifier; compare the other grandmasters",
    ),
    "grandmaster-few-satellites": FindingKind(
        "warning",
        "fewer GNSS satellites are received well than a time fix needs",
        "look at the antenna's view of the sky, its cable and its amplifier",
    ),
    "grandmaster-reference-lost": FindingKind(
        "warning",
        "the reference that the grandmaster followed is disqualified",
        "see on the grandmaster why, and what else it may follow",
    ),
    "grandmaster-not-locked": FindingKind(
        "warning",
        "the grandmaster says that it is not locked to its reference",
        "look at its alarms and references; the UTC bound is wider or gone, node-to-node alignment is not affected",
    ),
    "grandmaster-unfounded-lock": FindingKind(
        "critical",
        "the grandmaster says that it is locked, and shows nothing that it could be locked to",
        "do not trust its class: look at its references, and compare it with another grandmaster",
    ),
    "grandmaster-contradiction": FindingKind(
        "warning",
        "what the grandmaster says of itself is not what nodes hear of it in Announce",
        "see whether `identities` names this grandmaster alone, whether ports are configured differently, and who else announces",
    ),
    "grandmasters-disagree": FindingKind(
        "critical",
        "two grandmasters are further apart than their own error bounds allow",
        "one of them is wrong: compare each with a third clock, and take the wrong one out of service",
    ),
    "grandmaster-clients": FindingKind(
        "warning",
        "a PTP port of the grandmaster is near its limit of clients or load",
        "move clients to another port or grandmaster: beyond the limit new ones are refused",
    ),
    "grandmaster-leap": FindingKind(
        "info",
        "a leap second is announced",
        "see that ptp4l's `utc_offset` and `utc_offset_s` here will follow it; run no job that needs UTC over it",
    ),
    "grandmaster-fan": FindingKind(
        "warning", "a fan of the grandmaster fails", "replace it before the oscillator gets warm"
    ),
    "grandmaster-power": FindingKind(
        "warning",
        "a power supply of the grandmaster fails or is not fed",
        "see its feeds; with one left the next failure ends the grandmaster's service",
    ),
    "grandmaster-temperature": FindingKind(
        "warning",
        "the grandmaster is too warm or too cold",
        "see fans, filters and the room; holdover is worse meanwhile",
    ),
    "grandmaster-alarm": FindingKind(
        "warning",
        "the grandmaster has standing alarms that no other finding explains",
        "read them on the grandmaster",
    ),
    "grandmaster-rebooted": FindingKind(
        "warning",
        "the grandmaster started anew",
        "if nobody did that, see its power and its log; what was measured against it before is void",
    ),
    "grandmaster-identity-changed": FindingKind(
        "warning",
        "the grandmaster shows another clock identity",
        "a module or the grandmaster was replaced: adapt `identities`",
    ),
    "grandmaster-traps-suppressed": FindingKind(
        "warning",
        "the grandmaster sends more traps than are taken; the rest is dropped",
        "find out what flaps on it; polls still tell what stands",
    ),
    "factory-password": FindingKind(
        "critical",
        "the configured password of the grandmaster is the one that the factory set",
        "change it on the grandmaster: whoever reaches the management network can set it up anew",
    ),
    "certificate-unchecked": FindingKind(
        "warning",
        "the grandmaster's certificate is not checked",
        "replace insecure = true by the grandmaster's fingerprint, which timesyncd probe shows, or by ca",
    ),
    "firmware-known-flaws": FindingKind(
        "warning",
        "the grandmaster's firmware has known security flaws",
        "upgrade it; until then keep its management port on a network of its own",
    ),
    "clock-holdover": FindingKind(
        "warning",
        "no fresh sample of the clock source for longer than holdover_after",
        "the bound grows until a sample comes; see the source, and what it follows",
    ),
    "clock-unknown": FindingKind(
        "critical",
        "no bound is known for this node's clock",
        "the evidence says what is missing; a clock that just began to be watched needs a dozen delay measurements",
    ),
    "clock-disrupted": FindingKind(
        "critical",
        "the clock was stepped, or its source began anew",
        "find out who set the clock; it ends by itself with the next valid sample",
    ),
    "source-falseticker": FindingKind(
        "warning",
        "the clock source cannot be right where the majority of the others is",
        "it narrows no bound; compare what it follows with what they follow",
    ),
    "sources-contradict": FindingKind(
        "critical",
        "the clock sources contradict each other, and no majority says which is wrong",
        "the UTC bound is as wide as all of them; find the wrong one, or add a third",
    ),
    "path-below-minimum": FindingKind(
        "warning",
        "the path delay is below its calibrated minimum: the calibration is wrong, or something takes out too much",
        "there is no sample meanwhile; look for a transparent clock that over-corrects, or calibrate path_minimum_ns anew",
    ),
    "two-disciplines": FindingKind(
        "critical",
        "more than one daemon steers the system clock",
        "they undo each other's work, and neither knows: switch all but one off",
    ),
    "tai-offset": FindingKind(
        "info",
        "CLOCK_TAI is wrong: nobody has told the kernel TAI - UTC, or another one",
        "let ptp4l, phc2sys or chronyd (leapsectz) set it; timesyncd's own tai_now() does not use it",
    ),
    "kernel-leap": FindingKind(
        "warning",
        "a leap second is armed in the kernel",
        "CLOCK_REALTIME will step by it, and the clock be DISRUPTED until the next valid samples; run no job that needs UTC over it",
    ),
    "phase-jump": FindingKind(
        "warning",
        "the offset moved further at once than path and clocks explain: the grandmaster's phase or the path changed",
        "compare the other nodes: a jump on all is the grandmaster, a jump on one is its path",
    ),
    "node-offset-alone": FindingKind(
        "warning",
        "the node's offset jumped, and those of the nodes beside it did not: its own clock, its NIC or its path",
        "look at this node: who sets its clock, its NIC, cable and switch port; keep jobs from it while the bound is wide",
    ),
    "rack-path-delay-moved": FindingKind(
        "warning",
        "the path delays of nearly all nodes of a rack, or behind one clock, moved together: a link was rerouted or is congested",
        "find what changed between them and their parent clock; calibrate the path anew if it is to stay",
    ),
    "grandmaster-outvoted": FindingKind(
        "critical",
        "what its followers know of the time from elsewhere contradicts the grandmaster, beyond all error bounds",
        "take it out of service until a third clock says which is right; follow another grandmaster meanwhile",
    ),
    "node-other-domain": FindingKind(
        "warning",
        "the node is in a PTP domain that hardly any other node is in",
        "compare domainNumber of its ptp4l with that of the others: what it follows there is not their clock",
    ),
    "node-other-grandmaster": FindingKind(
        "critical",
        "a few nodes follow a grandmaster that no configured grandmaster is and that no others follow",
        "find who announces this identity and stop it; if it is yours, give it a [[grandmaster]] table",
    ),
    "clock-causality": FindingKind(
        "critical",
        "in a training job's steps somebody left a collective before somebody else had arrived, by more than the bounds of both clocks",
        "compare the node's clock with another source; its bound is not to be relied on, nor is any verdict on the job's ranks there",
    ),
    "replicas-apart": FindingKind(
        "warning",
        "ranks of a training job that keep one model have different ones, right after a synchronization",
        "look what changes parameters or gradients on some ranks alone: another seed, a skipped update, a faulty memory or device; go back to a checkpoint from before",
    ),
    "hub-nodes-missing": FindingKind(
        "warning",
        "nodes that the hub expects (hub.nodes) were never heard, or fell silent",
        "see whether they run, whether timesyncd does, and whether they reach the broker; jobs on them have no alignment",
    ),
    "store-failing": FindingKind(
        "critical",
        "the history cannot be written",
        "free disk space or mend the database; polling and the clock segment go on",
    ),
    "broker-lost": FindingKind(
        "warning",
        "the MQTT broker cannot be reached",
        "see whether the broker runs; states are published again when it is back",
    ),
}

EXPIRES_AFTER_NS = 3_600_000_000_000


class Findings:
    """What stands, and what stood within the last hour, by (id, subject)."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str], Finding] = {}

    def judge(self, id: str, subject: str, judged: Judgement | None, realtime_ns: int) -> Finding | None:
        """
        The rule's verdict now, None when it does not hold. Gives the finding to tell anew: one that began or ended thereby,
        or whose chain became longer or shorter. Evidence and the words of the chain are brought up to date silently.
        """
        key = (id, subject)
        known = self._findings.get(key)
        if known is None or known.until_ns is not None:
            return None if judged is None else self._keep(key, self._begin(id, subject, judged, realtime_ns))
        if judged is None:
            return self._keep(key, replace(known, until_ns=realtime_ns))
        now = self._keep(key, replace(known, evidence=judged.evidence, chain=judged.chain))
        return None if len(now.chain) == len(known.chain) else now

    def add_occurrence(self, id: str, subject: str, evidence: str, realtime_ns: int) -> Finding:
        """Something that happened at one moment."""
        happened = replace(self._begin(id, subject, Judgement(evidence), realtime_ns), until_ns=realtime_ns)
        return self._keep((id, subject), happened)

    def open(self) -> set[tuple[str, str]]:
        """The (id, subject) of every finding that stands."""
        return {key for key, finding in self._findings.items() if finding.until_ns is None}

    def drop(self, id: str, subject: str) -> None:
        """Somebody else tells of it from now on: here it neither stands nor ended."""
        self._findings.pop((id, subject), None)

    def expire(self, realtime_ns: int) -> None:
        """What ended more than an hour ago."""
        self._findings = {
            key: finding
            for key, finding in self._findings.items()
            if finding.until_ns is None or realtime_ns - finding.until_ns < EXPIRES_AFTER_NS
        }

    def all(self, realtime_ns: int) -> list[Finding]:
        """What stands and what ended within the hour, newest first."""
        self.expire(realtime_ns)
        return sorted(self._findings.values(), key=lambda f: (f.until_ns is not None, -f.since_ns))

    def _begin(self, id: str, subject: str, judged: Judgement, realtime_ns: int) -> Finding:
        kind = CATALOGUE[id]
        return Finding(
            id, kind.severity, subject, realtime_ns, None, judged.evidence, kind.cause, kind.remedy, judged.chain
        )

    def _keep(self, key: tuple[str, str], finding: Finding) -> Finding:
        self._findings[key] = finding
        return finding
