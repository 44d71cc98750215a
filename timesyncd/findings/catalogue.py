"""The catalogue of findings, and the list of open and recent ones. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from timesyncd.messages.node import ChainStep, FindingMessage, Severity


@dataclass(frozen=True, slots=True)
class FindingKind:
    """Severity, cause and remedy of the findings of one id; docs/operations.md has an entry for each."""

    severity: Severity
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A rule's result: the finding holds now, by this evidence. `chain` as in Finding."""

    evidence: str
    chain: tuple[ChainStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something an operator should know. Times are CLOCK_REALTIME in ns; `until_ns` None: it is open. `chain` leads step
    by step from the cause to the effects on the nodes; () where there is no more than one step.
    """

    id: str
    severity: Severity
    subject: str
    since_ns: int
    until_ns: int | None
    evidence: str
    cause: str
    remedy: str
    chain: tuple[ChainStep, ...] = ()


def chain_step(code: str, text: str) -> ChainStep:
    return ChainStep(code=code, text=text)


def finding_message(finding: Finding) -> FindingMessage:
    """The wire form of a finding."""
    fields = asdict(finding)
    fields["since_realtime_ns"], fields["until_realtime_ns"] = fields.pop("since_ns"), fields.pop("until_ns")
    return FindingMessage.model_validate(fields)


CATALOGUE: dict[str, FindingKind] = {
    "source-lost": FindingKind(
        "critical",
        "the clock source does not respond",
        "check that the source runs and that timesyncd may access it: timesyncd check-config, systemctl status",
    ),
    "grandmaster-lost": FindingKind(
        "warning",
        "the grandmaster does not respond on its management interface",
        "check its network, credentials and port; its PTP service may be unaffected",
    ),
    "grandmaster-antenna": FindingKind(
        "warning",
        "the grandmaster reports its GNSS antenna open, shorted or faulty",
        "check antenna, cable, surge arrester and splitter; the chain shows how long the holdover budget lasts",
    ),
    "grandmaster-spoofing": FindingKind(
        "critical",
        "the position or the time from GNSS jumped although it was held: possibly false signals",
        "compare other grandmasters and another receiver on the site; in doubt disconnect its GNSS input, so "
        "that it enters holdover",
    ),
    "grandmaster-jamming": FindingKind(
        "warning",
        "the signals of nearly all GNSS satellites dropped together: jamming, or a fault in the antenna path",
        "look for a transmitter near the antenna, a wet connector, a failing amplifier; compare other grandmasters",
    ),
    "grandmaster-few-satellites": FindingKind(
        "warning",
        "too few GNSS satellites are received well enough for a time fix",
        "check the antenna's view of the sky, its cable and its amplifier",
    ),
    "grandmaster-reference-lost": FindingKind(
        "warning",
        "the grandmaster disqualified the reference that it followed",
        "see on the grandmaster why, and which other reference it may follow",
    ),
    "grandmaster-not-locked": FindingKind(
        "warning",
        "the grandmaster reports that it is not locked to its reference",
        "check its alarms and references; the UTC bound is wider or unknown, node-to-node alignment is not affected",
    ),
    "grandmaster-unfounded-lock": FindingKind(
        "critical",
        "the grandmaster reports that it is locked, but shows no reference that it could be locked to",
        "do not rely on its clock class: check its references, and compare it with another grandmaster",
    ),
    "grandmaster-contradiction": FindingKind(
        "warning",
        "what the grandmaster reports differs from what nodes receive in its Announce messages",
        "check that `identities` names this grandmaster only, whether its ports are configured differently, and "
        "which other clock announces itself",
    ),
    "grandmasters-disagree": FindingKind(
        "critical",
        "two grandmasters are further apart than their own error bounds allow",
        "one of them is wrong: compare each with a third clock, and take the wrong one out of service",
    ),
    "grandmaster-clients": FindingKind(
        "warning",
        "a PTP port of the grandmaster is near its limit of clients or load",
        "move clients to another port or grandmaster: beyond the limit it refuses new ones",
    ),
    "grandmaster-leap": FindingKind(
        "info",
        "the grandmaster announces a leap second",
        "check that ptp4l's `utc_offset` and `utc_offset_s` here will follow it; run no job that needs UTC across it",
    ),
    "grandmaster-fan": FindingKind(
        "warning",
        "a fan of the grandmaster fails",
        "replace it before the oscillator warms up",
    ),
    "grandmaster-power": FindingKind(
        "warning",
        "a power supply of the grandmaster fails or has no input",
        "check its feeds; with one supply left, the next failure ends its service",
    ),
    "grandmaster-temperature": FindingKind(
        "warning",
        "the grandmaster is too warm or too cold",
        "check fans, filters and the room; holdover is worse meanwhile",
    ),
    "grandmaster-alarm": FindingKind(
        "warning",
        "the grandmaster has active alarms that no other finding explains",
        "read them on the grandmaster",
    ),
    "grandmaster-rebooted": FindingKind(
        "warning",
        "the grandmaster restarted",
        "if the restart was not planned, check its power and its log; earlier measurements against it are invalid",
    ),
    "grandmaster-identity-changed": FindingKind(
        "warning",
        "the grandmaster reports another clock identity",
        "a module or the device was replaced: adapt `identities`",
    ),
    "grandmaster-traps-suppressed": FindingKind(
        "warning",
        "the grandmaster sends more traps than the daemon accepts; the rest is dropped",
        "find the alarm that flaps on it; polls still show the active alarms",
    ),
    "factory-password": FindingKind(
        "critical",
        "the configured password of the grandmaster is its factory password",
        "change it on the grandmaster: everyone on the management network can reconfigure it",
    ),
    "certificate-unchecked": FindingKind(
        "warning",
        "the grandmaster's certificate is not verified",
        "replace insecure = true by the fingerprint, which timesyncd probe shows, or by ca",
    ),
    "firmware-known-flaws": FindingKind(
        "warning",
        "the grandmaster's firmware has known security flaws",
        "upgrade it; until then keep its management interface on a separate network",
    ),
    "clock-holdover": FindingKind(
        "warning",
        "the clock source has given no fresh sample for longer than holdover_after",
        "check the source and its reference; the bound grows until the next sample",
    ),
    "clock-unknown": FindingKind(
        "critical",
        "the bound of this node's clock is unknown",
        "the node's reason states why; the driver kernel alone measures no offset, and another source needs a dozen delay measurements after its start",
    ),
    "clock-disrupted": FindingKind(
        "critical",
        "the clock was stepped, its source restarted, or the source follows another clock or path",
        "the evidence names which; find out what caused it; the next valid sample ends this",
    ),
    "source-falseticker": FindingKind(
        "warning",
        "the clock source contradicts the majority of the others",
        "compare its reference with theirs; it narrows no bound meanwhile",
    ),
    "sources-contradict": FindingKind(
        "critical",
        "the clock sources contradict each other, and there is no majority",
        "find the wrong source, or add one that is independent of them; the UTC bound holds whichever is right meanwhile",
    ),
    "sources-not-independent": FindingKind(
        "warning",
        "sources that the configuration declares independent of each other share a cause of error",
        "let one of them follow another clock, or remove the declaration (independent_of); it narrows no bound meanwhile",
    ),
    "phc-seconds-differ": FindingKind(
        "critical",
        "system clock and PTP hardware clock are apart by whole seconds that no timescale explains",
        "find which of the two is wrong: compare both with another clock, and utc_offset_s with ptp4l's and phc2sys' "
        "(-O); the system clock has no bound meanwhile",
    ),
    "ntp-sources-contradict": FindingKind(
        "warning",
        "sources that chronyd reaches contradict the one that it follows, beyond the error bounds of both",
        "compare the named sources with a third clock, and remove the wrong one from chrony.conf; if no majority agrees "
        "with chronyd, the bound covers all of them meanwhile",
    ),
    "refclock-not-declared": FindingKind(
        "warning",
        "chronyd follows a reference clock, and the configuration does not state what that is: it bounds nothing "
        "against UTC",
        "if it is a GNSS receiver, declare it in refclocks of the chrony source, with its error; a clock that PTP "
        "feeds is no second opinion and stays undeclared",
    ),
    "assumption-refuted": FindingKind(
        "warning",
        "the samples refute an assumption of the configuration: a clock or a path is not what [source.bounds] states",
        "correct the named value in [source.bounds] of this source; the observed one counts meanwhile",
    ),
    "boundary-clock-unverified": FindingKind(
        "info",
        "the bound against the grandmaster rests on boundary_clock_error_ns, and nothing on this node can check it: a "
        "boundary clock that lost its own source may go on announcing class 6",
        "poll the boundary clock (a [[grandmaster]] with its identity and its oscillator's curve), or set "
        "boundary_clock_error_ns to its error in holdover; a second source of the same grandmaster through another "
        "parent checks it",
    ),
    "no-announce": FindingKind(
        "warning",
        "the PTP port follows a clock that no Announce message names: the grandmaster is unknown, and a change of it "
        "cannot be detected",
        "let the master send Announce, and ptp4l use it (BMCA ptp, inhibit_announce 0); only the bound to the parent "
        "is known meanwhile",
    ),
    "two-ports-follow": FindingKind(
        "critical",
        "two ports of one ptp4l follow a parent clock, so it is unknown which path an offset and a delay are of",
        "let the BMCA choose one (BMCA ptp), or run one ptp4l for each port; no sample counts meanwhile",
    ),
    "two-disciplines": FindingKind(
        "critical",
        "more than one daemon steers the system clock",
        "disable all but one: they undo each other's corrections",
    ),
    "unknown-discipline": FindingKind(
        "warning",
        "a program that is not recognized steers the system clock",
        "find out which: time programs, guest tools of the hypervisor, agents of the cloud, jobs that set the clock; "
        "one program alone may steer",
    ),
    "tai-offset": FindingKind(
        "info",
        "CLOCK_TAI is wrong: TAI - UTC in the kernel is not set, or is another one than configured",
        "let ptp4l, phc2sys or chronyd (leapsectz) set it; timesyncd's own tai_now() does not use it",
    ),
    "kernel-leap": FindingKind(
        "warning",
        "a leap second is armed in the kernel",
        "run no job that needs UTC across it: CLOCK_REALTIME steps, and the clock is DISRUPTED until the next "
        "valid samples",
    ),
    "leap-announced": FindingKind(
        "warning",
        "a clock source announces a leap second",
        "run no job that needs UTC across it; check that the grandmaster, NTP and leap-seconds.list agree on it",
    ),
    "leap-unexpected": FindingKind(
        "critical",
        "a leap second is announced or armed, and none is due then",
        "clear it before midnight: correct the grandmaster or NTP server; a kernel that is armed loses the flag by "
        "adjtimex --status or a restart of the program that set it",
    ),
    "leap-contradiction": FindingKind(
        "critical",
        "the clocks contradict each other about a leap second",
        "find the one that is wrong by the bulletin C of the IERS: after midnight it is off by a second",
    ),
    "phase-jump": FindingKind(
        "warning",
        "the offset moved further at once than path and clocks explain: the grandmaster's phase or the path changed",
        "compare the other nodes: a jump on all nodes is the grandmaster's, a jump on one is its path's",
    ),
    "node-offset-alone": FindingKind(
        "warning",
        "the node's offset jumped, and those of its neighbours did not: its own clock, its NIC or its path",
        "check what sets its clock, its NIC, cable and switch port; run no jobs on it while the bound is wide",
    ),
    "rack-path-delay-moved": FindingKind(
        "warning",
        "the path delays of nearly all nodes in a rack, or behind one clock, changed together: a link was "
        "rerouted or is congested",
        "find what changed between these nodes and their parent clock; if it is to stay, calibrate the path again",
    ),
    "grandmaster-outvoted": FindingKind(
        "critical",
        "the followers' other references contradict the grandmaster by more than all error bounds",
        "take it out of service until a third clock shows which is right; follow another grandmaster meanwhile",
    ),
    "node-other-domain": FindingKind(
        "warning",
        "the node is in a PTP domain that hardly any other node is in",
        "compare domainNumber of its ptp4l with that of the others: it follows another clock",
    ),
    "node-other-grandmaster": FindingKind(
        "critical",
        "a few nodes follow a grandmaster that is not configured and that no other node follows",
        "find the clock that announces this identity and stop it; if it is yours, add a [[grandmaster]] table for it",
    ),
    "clock-causality": FindingKind(
        "critical",
        "in a training job's steps a rank left a collective before another arrived, by more than the bounds of "
        "both clocks",
        "compare the node's clock with another source; do not rely on its bound, nor on the job's verdicts about "
        "ranks there",
    ),
    "replicas-apart": FindingKind(
        "warning",
        "ranks of a training job hold different parameters right after a synchronization",
        "look for what changes parameters or gradients on some ranks only: another seed, a skipped update, "
        "faulty memory; return to an earlier checkpoint",
    ),
    "loss-not-finite": FindingKind(
        "warning",
        "a loss or a gradient of a training job is not finite",
        "look at the data and the learning rate of the named rank at that step; return to a checkpoint from before it",
    ),
    "learns-worse": FindingKind(
        "warning",
        "a training job's loss is higher than that of its reference at equal steps",
        "return to the policy or compression of the reference (timesyncd policy JOB bsp), or average more often; auto "
        "does so by itself",
    ),
    "rank-missing": FindingKind(
        "warning",
        "ranks of a training job have waited for others for ten seconds and ten usual steps, or more",
        "look at the output and the stack (py-spy dump) of the rank that never came: unequal numbers of steps, a "
        "synchronization that not every rank calls, or a crash",
    ),
    "hub-nodes-missing": FindingKind(
        "warning",
        "nodes that the hub expects (hub.nodes) sent no state, or stopped sending",
        "check that they run, that timesyncd runs on them, and that they reach the broker; jobs on them have no "
        "alignment",
    ),
    "broker-names-refused": FindingKind(
        "warning",
        "the broker delivered more nodes, grandmasters, jobs or hubs than this daemon keeps: a client invents names, or the fleet "
        "has outgrown one hub",
        "find the broker's user that publishes these names, and let each node write its own topics alone (timesyncd broker-config). "
        "Name the fleet's nodes in hub.nodes, which are always kept; for a larger fleet set hub.shared on several hubs",
    ),
    "daemon-over-budget": FindingKind(
        "warning",
        "this daemon uses more of its node than limits.daemon_cpu_percent or limits.daemon_memory_mib allows; it polls less often "
        "while it is over its budget of CPU",
        "raise poll_interval_s of the source that is polled most, remove a [[source]] that is not needed, or raise the limit; a hub's "
        "cost comes from its fleet: give it a larger limit",
    ),
    "store-failing": FindingKind(
        "critical",
        "the store cannot write the history",
        "free disk space or repair the database; polling and the clock segment continue",
    ),
    "store-damaged": FindingKind(
        "critical",
        "the store's file is damaged: a failing disk, a crashed machine, or somebody truncated or removed a file of it",
        "check the disk (dmesg, smartctl -a); the damaged file is kept beside the store: remove it when it is no longer needed",
    ),
    "runtime-file-removed": FindingKind(
        "warning",
        "somebody removed or replaced what the daemon serves to training jobs in its runtime folder",
        "find out what cleans that folder; where the daemon cannot make it again, restart the service",
    ),
    "broker-lost": FindingKind(
        "warning",
        "the daemon cannot reach the MQTT broker",
        "check that the broker runs; the daemon publishes its states again after it reconnects",
    ),
}

EXPIRES_AFTER_NS = 3_600_000_000_000


class Findings:
    """The open findings, and those that ended within the last hour, by (id, subject)."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str], Finding] = {}

    def judge(self, id: str, subject: str, judgement: Judgement | None, realtime_ns: int) -> Finding | None:
        """
        Apply a rule's result, None where the finding does not hold. Returns the finding if it is to be published: it
        began, it ended, or its chain gained or lost a step. Other changes of evidence and chain are kept without
        publishing.
        """
        key = (id, subject)
        known = self._findings.get(key)
        if known is None or known.until_ns is not None:
            return None if judgement is None else self._keep(key, self._begin(id, subject, judgement, realtime_ns))
        if judgement is None:
            return self._keep(key, replace(known, until_ns=realtime_ns))
        now = self._keep(key, replace(known, evidence=judgement.evidence, chain=judgement.chain))
        return None if len(now.chain) == len(known.chain) else now

    def add_occurrence(self, id: str, subject: str, evidence: str, realtime_ns: int) -> Finding:
        """A finding that begins and ends at one moment."""
        occurrence = replace(self._begin(id, subject, Judgement(evidence), realtime_ns), until_ns=realtime_ns)
        return self._keep((id, subject), occurrence)

    def open(self) -> set[tuple[str, str]]:
        """The (id, subject) of every open finding."""
        return {key for key, finding in self._findings.items() if finding.until_ns is None}

    def drop(self, id: str, subject: str) -> None:
        """Remove a finding that another daemon publishes from now on: here it is neither open nor ended."""
        self._findings.pop((id, subject), None)

    def expire(self, realtime_ns: int) -> None:
        """Remove what ended more than an hour ago."""
        self._findings = {
            key: finding
            for key, finding in self._findings.items()
            if finding.until_ns is None or realtime_ns - finding.until_ns < EXPIRES_AFTER_NS
        }

    def all(self, realtime_ns: int) -> list[Finding]:
        """The open findings and those that ended within the hour, newest first."""
        self.expire(realtime_ns)
        return sorted(self._findings.values(), key=lambda f: (f.until_ns is not None, -f.since_ns))

    def _begin(self, id: str, subject: str, judgement: Judgement, realtime_ns: int) -> Finding:
        kind = CATALOGUE[id]
        return Finding(
            id, kind.severity, subject, realtime_ns, None, judgement.evidence, kind.cause, kind.remedy, judgement.chain
        )

    def _keep(self, key: tuple[str, str], finding: Finding) -> Finding:
        self._findings[key] = finding
        return finding
