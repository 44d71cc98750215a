"""Traps of the machine and the network: steps, leap seconds, suspend, migration, boundary and transparent clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from network_path import PathSpec
from pitfall_lab import Node, misses, replay
from samples import HEALTHY, nth
from scenarios import Scenario

from timesyncd.bound import ClockStatus, ErrorBound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.node import kernel_conditions
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, TraceRow
from timesyncd.sample import KernelSample, NoSample, PortState, UtcSample

UTC: dict[str, Any] = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}
KERNEL = KernelSample("kernel", 0, 0, 0, 0, True, "none", 37)

#: chronyd's leapsecmode of Google, AWS and Meta: linear, noon to noon.
SMEAR_PPB = NS_PER_S / 86_400


def ensemble_of(*names: str, **settings: Any) -> Ensemble:
    return Ensemble({name: EnsembleSettings(SourceSettings(**settings)) for name in names})


def fed(ensemble: Ensemble, **changes: Any) -> ErrorBound:
    bound = [ensemble.accept(nth(index, **changes)).bound for index in range(12)][-1]
    assert bound is not None
    return bound


def ntp_sample(as_of_ns: int) -> UtcSample:
    """An NTP daemon that knows UTC well."""
    return UtcSample("ntp", as_of_ns, HEALTHY.real_minus_boot_ns, 0, 5_000, 1_000, "time1", 2, "none", 100, 100)


@pytest.mark.parametrize("tai_offset_s", [0, 36, 38])
def test_pitfall_21_tai_offset_0_or_wrong_in_the_kernel_bounds_nothing(tai_offset_s: int) -> None:
    """The daemon reports it, and an armed leap second too; neither the published bound nor the next one depends on it."""
    wrong = replace(KERNEL, tai_offset_s=tai_offset_s, leap="insert")
    reported = {id for id, evidence in kernel_conditions(wrong, 37, 0).items() if evidence is not None}
    with_kernel, without = ensemble_of("ptp", "kernel"), ensemble_of("ptp", "kernel")
    fed(with_kernel, **UTC)
    fed(without, **UTC)

    assert reported == {"tai-offset", "kernel-leap"}
    assert with_kernel.accept(wrong).bound is None
    assert with_kernel.accept(nth(12, **UTC)) == without.accept(nth(12, **UTC))


@pytest.mark.parametrize(("leap", "by_ns"), [("inserted", -NS_PER_S), ("deleted", NS_PER_S)])
def test_a_leap_second_that_the_kernel_makes_is_a_step(leap: str, by_ns: int) -> None:
    """
    CLOCK_REALTIME steps at the end of the UTC day while CLOCK_BOOTTIME goes on: programs see it with the next call,
    the daemon with the
    next reading, and both know the clock again once the filter was renewed.
    """
    node = Node()
    node.synced()
    node.clocks.step(by_ns)
    at_once, reason = node.seen()
    node.second()
    assert node.published is not None
    read = node.published.gm_status, node.published.gm_hard.reason
    node.synced()
    again, _ = node.seen()

    assert (at_once.status, at_once.earliest, reason) == (ClockStatus.DISRUPTED, None, Reason.CLOCK_STEPPED.text)
    assert read == (ClockStatus.DISRUPTED, Reason.CLOCK_STEPPED)
    assert again.status is ClockStatus.SYNCHRONIZED
    assert again.earliest is not None and again.earliest < node.clocks.real_ns < (again.latest or 0)


def test_a_smeared_leap_second_is_an_offset() -> None:
    """
    A clock that smears (11.6 ppm) against a grandmaster that does not is off by 0.5 s at midnight, and looks steered,
    not
    wrong: the offset is measured and the bound holds it, with little to spare, at every reading from noon to then.
    """
    model, path_ns = Replay(), 10_000
    bounds = []
    for second in range(0, 43_201, 5):
        truth_ns = -SMEAR_PPB * second
        offset_ns = round(truth_ns) + second % 3
        row = TraceRow(second * NS_PER_S, offset_ns, path_ns, round(5_000 + SMEAR_PPB), PortState.SLAVE, True, 6, 0x21)
        bounds.append((-truth_ns, model.accept(row).gm_hard_ns))
    learnt = [(truth_ns, bound_ns or 0) for truth_ns, bound_ns in bounds if truth_ns > SMEAR_PPB * 100]

    assert learnt[-1][0] == pytest.approx(NS_PER_S / 2)
    assert [pair for pair in learnt if not pair[0] <= pair[1] <= pair[0] + 15 * path_ns] == []


@pytest.mark.parametrize(
    ("asleep_s", "status"), [(1, ClockStatus.SYNCHRONIZED), (600, ClockStatus.HOLDOVER), (1_001, ClockStatus.UNKNOWN)]
)
def test_time_in_suspend_is_age(asleep_s: int, status: ClockStatus) -> None:
    """
    CLOCK_BOOTTIME and CLOCK_REALTIME jump ahead together, only CLOCK_MONOTONIC stops: no step, and the bound
    is older by all of it,
    for the program that wakes first and for the daemon; the next Syncs make it young again.
    """
    node = Node()
    bound = node.synced()
    node.clocks.advance(asleep_s * NS_PER_S)
    interval, _ = node.seen()
    age_ns = node.clocks.boot_ns - bound.as_of_ns
    width_ns = node.width_ns()
    node.read()
    woken = node.reading
    node.synced()

    assert interval.status is status
    assert width_ns == (None if status is ClockStatus.UNKNOWN else bound.gm_hard.at(age_ns))
    assert not (isinstance(woken, NoSample) and woken.stepped)
    assert node.seen()[0].status is ClockStatus.SYNCHRONIZED


def test_a_migrated_machine_has_no_bound() -> None:
    """
    VMClock's marker changed: its clocks go on, on another host's oscillator, and were never compared with anything.
    """
    node = Node(ensemble=ensemble_of("ptp", "ntp", "kernel"))
    node.synced()
    node.take(node.ensemble.accept(ntp_sample(node.clocks.boot_ns)))
    markers: list[int | None] = [None, 7, 7]
    calm = [node.ensemble.accept(replace(KERNEL, vm_disruptions=marker)).bound for marker in markers]
    node.take(node.ensemble.accept(replace(KERNEL, vm_disruptions=8)))
    migrated = node.seen()
    forgotten = list(node.ensemble.bounded_sources)
    node.synced()

    assert calm == [None, None, None]
    assert (migrated[0].status, migrated[1]) == (ClockStatus.DISRUPTED, Reason.VM_MIGRATED.text)
    assert forgotten == []
    assert node.seen()[0].status is ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize(("steps_removed", "between"), [(1, 0), (2, 1), (4, 3)])
def test_a_boundary_clock_in_between_adds_its_error(steps_removed: int, between: int) -> None:
    """Without `boundary_clock_error_ns` nothing is known beyond the parent; with it each one counts."""
    silent = fed(ensemble_of("ptp"), steps_removed=steps_removed)
    known = fed(ensemble_of("ptp", boundary_clock_error_ns=200), steps_removed=steps_removed)

    assert silent.parent_hard.bound_ns is not None
    assert known.gm_hard == silent.parent_hard.plus(between * 200)
    if between:
        assert (silent.gm_hard.bound_ns, silent.gm_hard.reason) == (None, Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN)
        assert silent.gm_status is ClockStatus.UNKNOWN


def test_a_transparent_clock_that_removes_more_than_the_path_gives_no_sample() -> None:
    """The driver reports a negative path delay as such; the model makes no bound of it, and the last bound ages."""
    node = Node()
    node.synced()
    node.ptp4l.path_delay_ns = -1
    for _ in range(6):
        node.second()
    ensemble = ensemble_of("ptp")

    assert isinstance(node.reading, NoSample) and node.reading.reason == "the path delay is negative"
    assert node.seen()[0].status is ClockStatus.HOLDOVER
    assert [ensemble.accept(nth(index, path_delay_ns=-1)).bound for index in range(40)] == [None] * 40


def test_a_transparent_clock_that_over_corrects_by_less_shows_in_a_calibrated_minimum() -> None:
    """
    Nothing that ptp4l reports is odd, and the truth is outside. Only a known minimum of the path delay reveals a
    delay below that.
    """
    least_ns = 10_000
    rows = replay(Scenario("corrected by 40 us one way", path=PathSpec(least_ns - 40_000, 36_000)), 300)
    delays_ns = [instant.row.path_delay_ns or 0 for instant, row in rows if row.gm_hard_ns is not None]

    assert misses(rows) > 200
    assert 0 < min(delays_ns) and max(delays_ns) < least_ns


def test_a_transparent_clock_that_over_corrects_by_less_shows_in_a_second_source() -> None:
    """
    Two paths that cannot both be true are reported, and the bound covers either. With a third that is declared
    independent, the wrong one is named.
    """
    names = "ptp", "b", "c"
    two = ensemble_of("ptp", "b")
    three = Ensemble({name: EnsembleSettings(independent_of=frozenset(names) - {name}) for name in names})
    b, c = ({"grandmaster_identity": identity, "parent_identity": identity, **UTC} for identity in ("b", "c"))
    for index in range(13):
        for ensemble in (two, three):
            ensemble.accept(nth(index, source="b", offset_ns=-33_000, **b))
        three.accept(nth(index, source="c", offset_ns=-32_000, **c))
        either, named = (ensemble.accept(nth(index, path_delay_ns=1_000, **UTC)).bound for ensemble in (two, three))

    assert two.agreement is not None and two.agreement.contradiction
    assert three.agreement is not None and three.agreement.falsetickers == ("ptp",)
    assert either is not None and (either.utc_hard.bound_ns or 0) > 33_000
    assert named is not None and (named.utc_hard.bound_ns or 0) > 33_000
