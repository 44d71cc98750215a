"""The findings of one node: its clock's status, its sources, the kernel, the path, the store and the broker. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from timesyncd.clocks import HALF_SECOND_NS, NS_PER_S
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.leap import kernel_leap_text
from timesyncd.findings.steering import unknown_discipline
from timesyncd.messages.node import NodeState
from timesyncd.model.assumptions import Assumption, Refutation
from timesyncd.model.independence import SharedCause
from timesyncd.model.selection import Agreement
from timesyncd.sample import (
    ClockSample,
    KernelSample,
    NoSample,
    NoSampleCause,
    PhcSample,
    Reading,
    UtcOrigin,
    UtcSample,
)
from timesyncd.units import duration_text

Conditions = dict[str, str | None]
"""Evidence by finding id; None where the finding does not hold."""

_STATUS_FINDINGS = {"HOLDOVER": "clock-holdover", "UNKNOWN": "clock-unknown", "DISRUPTED": "clock-disrupted"}


def state_findings(
    node: NodeState, store_problem: str | None, broker_problem: str | None
) -> dict[tuple[str, str], Judgement]:
    """The findings that the node's state calls for now, by (id, subject)."""
    found: dict[tuple[str, str], str] = {}
    clock_finding = _STATUS_FINDINGS.get(node.main_status)
    if clock_finding and node.sources:
        found[clock_finding, node.node] = node.reason
    for source in node.sources:
        if not source.reachable and source.poll_duration_ns is not None:
            found["source-lost", source.name] = source.reason or ""
    if store_problem:
        found["store-failing", node.node] = store_problem
    if broker_problem:
        found["broker-lost", node.node] = broker_problem
    return {key: Judgement(evidence) for key, evidence in found.items()}


def kernel_conditions(sample: KernelSample, utc_offset_s: int | None, realtime_ns: int) -> Conditions:
    """
    By id: the evidence, or None where the finding does not hold. `utc_offset_s` is TAI - UTC as this node's sources are
    configured, `realtime_ns` now.
    """
    return {
        "two-disciplines": _two_disciplines(sample.disciplines),
        "unknown-discipline": unknown_discipline(sample),
        "tai-offset": _tai_offset(sample.tai_offset_s, utc_offset_s),
        "kernel-leap": kernel_leap_text(sample.leap, realtime_ns),
    }


def agreement_conditions(agreement: Agreement | None, sources: list[str]) -> dict[tuple[str, str], str | None]:
    """The same by (id, source)."""
    false = agreement.falsetickers if agreement else ()
    interval = f"{duration_text(agreement.low_ns)} to {duration_text(agreement.high_ns)}" if agreement else ""
    found: dict[tuple[str, str], str | None] = {}
    for name in sources:
        evidence = f"by the other sources the clock's error is {interval}" if name in false else None
        found["source-falseticker", name] = evidence
        contradicts = agreement is not None and name in agreement.contradicting
        evidence = f"no single majority; the bound holds whichever is right: {interval}" if contradicts else None
        found["sources-contradict", name] = evidence
    return found


_SHARED = {
    SharedCause.SAME_GRANDMASTER: "both follow one grandmaster",
    SharedCause.SAME_PARENT: "both follow one parent clock",
    SharedCause.SAME_PHC: "both measure one PTP hardware clock",
    SharedCause.SAME_REFERENCE: "both daemons follow one reference",
}


def independence_conditions(
    refuted: Mapping[str, tuple[str, SharedCause]], sources: list[str]
) -> dict[str, str | None]:
    """The evidence of `sources-not-independent` by source."""
    return {
        name: f"declared independent of {refuted[name][0]}, but {_SHARED[refuted[name][1]]}"
        if name in refuted
        else None
        for name in sources
    }


def path_conditions(sample: ClockSample, refutations: Sequence[Refutation]) -> Conditions:
    """The same of one PTP sample, and of the assumptions that its source's samples have refuted so far."""
    nameless = None in (sample.parent_identity, sample.grandmaster_identity)
    state = f"port {sample.port_state.name}, and no Announce names its parent" if nameless else None
    refuted = "; ".join(map(_refutation_text, refutations)) or None
    return {"assumption-refuted": refuted, "no-announce": state}


def boundary_clock_conditions(sample: ClockSample, assumed_ns: int | None, witness: str | None) -> Conditions:
    """
    The same of the boundary clocks between this node and the grandmaster, each within `assumed_ns` (None: not
    configured). `witness` checks them: a source that sees the grandmaster through another parent, or the only boundary
    clock's poller that knows it locked.
    """
    clocks = sample.steps_removed - 1
    evidence = f"{clocks} between this node and the grandmaster, each assumed to be within"
    is_unverified = clocks > 0 and assumed_ns is not None and witness is None and sample.grandmaster_identity
    return {"boundary-clock-unverified": f"{evidence} {duration_text(assumed_ns)}" if is_unverified else None}


def _refutation_text(refutation: Refutation) -> str:
    assumption, assumed, observed = refutation
    if assumption is Assumption.PATH_MINIMUM:
        return f"{assumption} is {assumed}, and a path delay was below it: the minimum counts as 0 now"
    return f"{assumption} is {assumed}, and the samples show {observed}: that value counts now"


def two_ports_conditions(reading: Reading) -> Conditions:
    """The same of one reading of a ptp4l; {} where it shows neither."""
    if isinstance(reading, NoSample) and reading.change is NoSampleCause.TWO_PORTS_FOLLOW:
        return {"two-ports-follow": reading.reason}
    return {"two-ports-follow": None} if isinstance(reading, ClockSample) else {}


def phc_conditions(sample: PhcSample, utc_offsets_s: Collection[int]) -> Conditions:
    """The same of one reading of a PHC and the system clock; `utc_offsets_s` as the node's sources are configured."""
    allowed_s = [0, *(-seconds for seconds in sorted(utc_offsets_s))]
    evidence = None
    if all(abs(sample.offset_ns - seconds * NS_PER_S) >= HALF_SECOND_NS for seconds in allowed_s):
        allowed = " or ".join(f"{seconds} s" for seconds in allowed_s)
        apart = f"system clock minus {sample.clock} is {sample.offset_ns / NS_PER_S:+.3f} s"
        evidence = f"{apart}; the timescales allow {allowed}"
    return {"phc-seconds-differ": evidence}


def utc_conditions(sample: UtcSample) -> Conditions:
    """The same of one sample of an NTP daemon."""
    undeclared = f"chronyd follows {sample.reference}" if sample.origin is UtcOrigin.REFCLOCK else None
    apart = ((source.name, source.contradicts_by_ns) for source in sample.ntp_sources)
    names = ", ".join(f"{name}, by at least {duration_text(ns)}" for name, ns in apart if ns is not None)
    outcome = (
        "the bound covers all of them"
        if sample.covers_contradicting
        else f"most of the others agree with {sample.reference}"
    )
    contradicted = f"{sample.reference} is contradicted by {names}; {outcome}" if names else None
    return {"refclock-not-declared": undeclared, "ntp-sources-contradict": contradicted}


def _two_disciplines(disciplines: tuple[str, ...]) -> str | None:
    return f"running: {', '.join(disciplines)}" if len(disciplines) > 1 else None


def _tai_offset(kernel_s: int, configured_s: int | None) -> str | None:
    if configured_s is None or kernel_s == configured_s:
        return None
    return f"TAI - UTC is {kernel_s} s in the kernel and {configured_s} s in the configuration"
