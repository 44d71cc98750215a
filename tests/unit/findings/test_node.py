"""Findings of a node: the kernel's status, the sources' agreement, the path, and the published state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import HEALTHY
from wire import node_state

from timesyncd.daemon.node_state import NO_SOURCE
from timesyncd.findings.catalogue import CATALOGUE, Judgement
from timesyncd.findings.node import (
    agreement_conditions,
    boundary_clock_conditions,
    independence_conditions,
    kernel_conditions,
    path_conditions,
    phc_conditions,
    state_findings,
    two_ports_conditions,
    utc_conditions,
)
from timesyncd.messages.node import NodeState, SourceState
from timesyncd.model.assumptions import Assumption, Refutation
from timesyncd.model.independence import SharedCause
from timesyncd.model.selection import Agreement
from timesyncd.sample import KernelSample, NoSample, NoSampleCause, NtpSource, PhcSample, UtcOrigin, UtcSample

CALM = KernelSample("kernel", 0, 0, 0, 0, True, "none", 37, disciplines=("chronyd",))
#: 2016-12-31T12:00:00Z.
NOW_NS = 1_483_185_600 * 10**9
AGREED = Agreement(-1_500, 2_500_000, 1_000)


def standing(sample: KernelSample, utc_offset_s: int | None = 37) -> dict[str, str]:
    return {
        id: evidence for id, evidence in kernel_conditions(sample, utc_offset_s, NOW_NS).items() if evidence is not None
    }


def test_one_discipline_and_the_configured_offset_call_for_nothing() -> None:
    """All earlier findings end."""
    assert kernel_conditions(CALM, 37, NOW_NS) == dict.fromkeys(
        ("two-disciplines", "unknown-discipline", "tai-offset", "kernel-leap")
    )


@pytest.mark.parametrize(
    ("disciplines", "evidence"),
    [
        ((), None),
        (("phc2sys",), None),
        (("chronyd", "phc2sys"), "running: chronyd, phc2sys"),
        (("chronyd", "phc2sys", "systemd-timesyncd"), "running: chronyd, phc2sys, systemd-timesyncd"),
    ],
)
def test_two_disciplines_are_named(disciplines: tuple[str, ...], evidence: str | None) -> None:
    """More than one daemon that steers CLOCK_REALTIME."""
    assert kernel_conditions(replace(CALM, disciplines=disciplines), 37, NOW_NS)["two-disciplines"] == evidence


def test_one_that_may_not_steer_is_no_second_discipline() -> None:
    """A ptp4l whose process status is unknown is no evidence."""
    assert standing(replace(CALM, undecided_disciplines=("ptp4l",))) == {}


@pytest.mark.parametrize(
    ("kernel_offset_s", "wanted_s", "evidence"),
    [
        (37, 37, None),
        (0, None, None),
        (0, 37, "TAI - UTC is 0 s in the kernel and 37 s in the configuration"),
        (36, 37, "TAI - UTC is 36 s in the kernel and 37 s in the configuration"),
        (37, 38, "TAI - UTC is 37 s in the kernel and 38 s in the configuration"),
    ],
)
def test_another_tai_offset_than_configured_is_a_finding(
    kernel_offset_s: int, wanted_s: int | None, evidence: str | None
) -> None:
    """0 is one of them: it was never set. Where no offset is configured there is no finding."""
    assert kernel_conditions(replace(CALM, tai_offset_s=kernel_offset_s), wanted_s, NOW_NS)["tai-offset"] == evidence


@pytest.mark.parametrize(
    ("leap", "evidence"),
    [
        ("insert", "23:59:60 UTC of 2016-12-31 is inserted; CLOCK_REALTIME steps by it"),
        ("delete", "23:59:59 UTC of 2016-12-31 is deleted; CLOCK_REALTIME steps by it"),
        ("both", "a second is both inserted and deleted at the end of 2016-12-31 UTC; CLOCK_REALTIME steps by it"),
    ],
)
def test_an_armed_leap_second_is_a_finding(leap: str, evidence: str) -> None:
    """Its direction and its time."""
    assert list(standing(replace(CALM, leap=leap)).values()) == [evidence]


def test_simultaneous_faults_are_separate_findings() -> None:
    """No finding hides another."""
    worst = replace(CALM, disciplines=("chronyd", "phc2sys"), tai_offset_s=0, leap="delete")

    assert standing(worst).keys() == {"two-disciplines", "tai-offset", "kernel-leap"}


def test_a_falseticker_is_a_finding_of_that_source_only() -> None:
    """With the interval that the others agree on; the others' findings end."""
    found = agreement_conditions(AGREED._replace(falsetickers=("b",)), ["a", "b"])

    assert found == {
        ("source-falseticker", "a"): None,
        ("source-falseticker", "b"): "by the other sources the clock's error is -1.50 us to 2.50 ms",
        ("sources-contradict", "a"): None,
        ("sources-contradict", "b"): None,
    }


def test_a_contradiction_is_a_finding_of_every_source() -> None:
    """It is undecidable which is wrong."""
    found = agreement_conditions(AGREED._replace(contradicting=("a", "b"), sources=("a", "b")), ["a", "b", "kernel"])
    evidence = "no single majority; the bound holds whichever is right: -1.50 us to 2.50 ms"

    assert [found["sources-contradict", name] for name in ("a", "b", "kernel")] == [evidence, evidence, None]
    assert [found["source-falseticker", name] for name in "ab"] == [None, None]


@pytest.mark.parametrize("agreement", [None, AGREED])
def test_sources_that_agree_or_are_one_call_for_nothing(agreement: Agreement | None) -> None:
    """Earlier findings end, for each source."""
    found = agreement_conditions(agreement, ["a", "b"])

    assert len(found) == 4 and set(found.values()) == {None}


@pytest.mark.parametrize("origin", UtcOrigin)
def test_a_reference_clock_that_is_not_declared_is_a_finding(origin: UtcOrigin) -> None:
    """The operator knows what it is; a PHC is none that could be declared."""
    sample = UtcSample("utc", 1, 0, 0, 1, 1, "GPS", 1, "none", 0, 1, origin=origin)
    evidence = "chronyd follows GPS" if origin is UtcOrigin.REFCLOCK else None

    assert utc_conditions(sample)["refclock-not-declared"] == evidence


def test_ntp_sources_that_contradict_the_followed_one_are_a_finding() -> None:
    """With how far at least, and whether the bound allows for them."""
    far = NtpSource("192.0.2.4", "nonselectable", 2, 255, 1, 1, 1, contradicts_by_ns=46_700_000)
    sample = UtcSample("utc", 1, 0, 0, 1, 1, "GPS", 1, "none", 0, 1, ntp_sources=(far,), covers_contradicting=True)
    outvoted, calm = replace(sample, covers_contradicting=False), replace(sample, ntp_sources=())
    named = "GPS is contradicted by 192.0.2.4, by at least 46.7 ms"

    assert [utc_conditions(each)["ntp-sources-contradict"] for each in (sample, outvoted, calm)] == [
        f"{named}; the bound covers all of them",
        f"{named}; most of the others agree with GPS",
        None,
    ]


@pytest.mark.parametrize(
    ("offset_ns", "evidence"),
    [
        (-37 * 10**9 + 400, None),
        (-36_600_000_000, None),
        (400_000_000, None),
        (-36_041_400_000, "system clock minus phc:0 is -36.041 s; the timescales allow 0 s or -37 s"),
        (1_000_000_000, "system clock minus phc:0 is +1.000 s; the timescales allow 0 s or -37 s"),
    ],
)
def test_seconds_that_no_timescale_explains_are_a_finding(offset_ns: int, evidence: str | None) -> None:
    """Of system clock and PHC one is wrong by more than half a second."""
    sample = PhcSample("nic", "phc:0", 1, 0, offset_ns, 600, "extended")

    assert phc_conditions(sample, {37})["phc-seconds-differ"] == evidence


def test_two_ports_that_follow_are_a_finding() -> None:
    """Until a sample comes from one of them."""
    both = NoSample("ptp", 1, "ports 1 and 2 both follow", change=NoSampleCause.TWO_PORTS_FOLLOW)
    silent = NoSample("ptp", 1, "no Sync")

    assert two_ports_conditions(both) == {"two-ports-follow": "ports 1 and 2 both follow"}
    assert two_ports_conditions(HEALTHY) == {"two-ports-follow": None}
    assert two_ports_conditions(silent) == {}


def test_a_refuted_declaration_is_a_finding_of_its_source() -> None:
    """It names the other source and the clock that both have in common."""
    found = independence_conditions({"spare": ("ptp", SharedCause.SAME_GRANDMASTER)}, ["ptp", "spare"])

    assert found == {"ptp": None, "spare": "declared independent of ptp, but both follow one grandmaster"}


@pytest.mark.parametrize("cause", [each for each in SharedCause if each is not SharedCause.NOT_DECLARED])
def test_every_shared_cause_has_its_evidence(cause: SharedCause) -> None:
    """Independence that the configuration does not declare refutes nothing."""
    assert independence_conditions({"a": ("b", cause)}, ["a"])["a"]


def test_a_port_that_receives_no_announce_is_a_finding() -> None:
    """A change of the master cannot be known then."""
    nameless = path_conditions(replace(HEALTHY, parent_identity=None, grandmaster_identity=None), ())
    named = path_conditions(HEALTHY, ())

    assert (named.get("no-announce"), nameless.get("no-announce")) == (
        None,
        "port SLAVE, and no Announce names its parent",
    )


def test_a_refuted_assumption_names_both_values() -> None:
    """As the configuration spells it, with what counts from now on."""
    refuted = (
        Refutation(Assumption.LOCAL_DRIFT, 50_000, 75_900),
        Refutation(Assumption.PATH_MINIMUM, 900, 0),
    )

    assert path_conditions(HEALTHY, refuted)["assumption-refuted"] == (
        "local_drift_ppb is 50000, and the samples show 75900: that value counts now; "
        "path_minimum_ns is 900, and a path delay was below it: the minimum counts as 0 now"
    )
    assert path_conditions(HEALTHY, ())["assumption-refuted"] is None


@pytest.mark.parametrize(
    ("steps_removed", "assumed_ns", "second_view", "holds"),
    [
        (1, 100, None, False),
        (2, 100, None, True),
        (3, 100, "other", False),
        (2, None, None, False),
    ],
)
def test_boundary_clocks_that_no_second_path_checks_are_for_information(
    steps_removed: int, assumed_ns: int | None, second_view: str | None, holds: bool
) -> None:
    """Where no error is configured there is no bound that rests on it, and a second path checks one."""
    sample = replace(HEALTHY, steps_removed=steps_removed)
    found = boundary_clock_conditions(sample, assumed_ns, second_view)["boundary-clock-unverified"]

    assert (found is not None) is holds
    assert found is None or f"{steps_removed - 1} between this node and the grandmaster" in found
    assert CATALOGUE["boundary-clock-unverified"].severity == "info"


SOURCE_LOST = SourceState(name="ptp", driver="ptp4l", reachable=False, reason="no answer", poll_duration_ns=1)
SOURCE_NEW = SOURCE_LOST.model_copy(update={"poll_duration_ns": None})


def state(**changes: Any) -> NodeState:
    fields: dict[str, Any] = {"status": "SYNCHRONIZED", "age_ns": 0, "since_realtime_ns": 1}
    return node_state("node-b").model_copy(update=fields | changes)


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({}, {}),
        ({"status": "HOLDOVER", "reason": "why", "sources": [SOURCE_NEW]}, {("clock-holdover", "node-b"): "why"}),
        ({"status": "UNKNOWN", "reason": "why", "sources": [SOURCE_NEW]}, {("clock-unknown", "node-b"): "why"}),
        ({"status": "DISRUPTED", "reason": "why", "sources": [SOURCE_NEW]}, {("clock-disrupted", "node-b"): "why"}),
        ({"sources": [SOURCE_LOST]}, {("source-lost", "ptp"): "no answer"}),
        ({"sources": [SOURCE_NEW]}, {}),
        ({"status": "UNKNOWN", "reason": NO_SOURCE, "reason_code": "no_source"}, {}),
    ],
)
def test_each_condition_of_a_state_is_one_finding(node: dict[str, Any], found: dict[tuple[str, str], str]) -> None:
    """One finding a condition, about its own subject, with evidence; a source that was never polled is no finding."""
    judged = state_findings(state(**node), None, None)

    assert {key: each.evidence for key, each in judged.items()} == found


def test_store_and_broker_are_the_node_s_own_findings() -> None:
    """Both are findings of the node, with the failure as evidence."""
    found = state_findings(state(), "disk full", "no connection for 9 s")

    assert found == {
        ("store-failing", "node-b"): Judgement("disk full"),
        ("broker-lost", "node-b"): Judgement("no connection for 9 s"),
    }


def test_everything_that_can_be_wrong_with_a_node_is_in_the_catalogue() -> None:
    """No condition leads to an id without an entry."""
    found = [
        state_findings(state(status=status, sources=[SOURCE_LOST]), "full", "lost")
        for status in ("HOLDOVER", "UNKNOWN", "DISRUPTED")
    ]

    assert {id for each in found for id, _ in each} <= set(CATALOGUE)


def test_every_finding_is_in_the_catalogue() -> None:
    """An id without an entry could not be published."""
    ids = {*kernel_conditions(CALM, 37, NOW_NS), *(id for id, _ in agreement_conditions(None, ["a"]))}

    assert ids <= CATALOGUE.keys()
