"""What the bound rests on, broken: docs/error-bound.md names these tests."""

from __future__ import annotations

from chain import Chain
from local_clock import NS_PER_S
from network_path import PathSpec, Reroute
from samples import nth
from scenarios import Scenario

from timesyncd.bound import ClockStatus, Reason, Term, unbounded
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay
from timesyncd.model.selection import Agreement, Claim, agree
from timesyncd.model.source import SourceMemory

SUDDENLY_LONGER = PathSpec(reroutes=(Reroute(300 * NS_PER_S, 300 * NS_PER_S, 310_000, 10_000),))


def misses(read_interval_s: float) -> int:
    """
    Readings whose truth is outside, of a path that gets longer one way while the servo answers each Sync of a second.
    """
    scenario = Scenario("chase", path=SUDDENLY_LONGER, read_interval_s=read_interval_s)
    model = Replay()
    replayed = [(i, model.accept(i.row)) for i in Chain(scenario, 1, 400.0).instants() if i.is_reading]
    return sum(abs(i.gm_error_ns) > (row.gm_hard_ns or 1e18) for i, row in replayed if not i.blind)


def test_a_correction_between_two_readings_is_not_observable() -> None:
    """A servo that corrected for a changed path between two readings leaves no trace; a reader of each Sync sees it."""
    assert misses(read_interval_s=6.0) > 0
    assert misses(read_interval_s=1.0) == 0


def test_a_delay_measured_between_sync_and_reading_counts_both_ways() -> None:
    """The offset was computed with the former delay or with the new one: the bound holds for either."""
    memory = SourceMemory(SourceSettings())
    for index in range(12):
        memory.accept(nth(index))
    renewed = memory.accept(nth(12, path_delay_ns=1_700))
    after = memory.accept(nth(13, path_delay_ns=1_700))

    assert renewed is not None and after is not None
    assert renewed.terms[Term.PATH_DELAY] == 2_000
    assert after.terms[Term.PATH_DELAY] == 1_700


def test_two_that_contradict_each_other_leave_the_hull() -> None:
    """One of the two is wrong, and it is not known which, so only the interval of both holds."""
    ptp, ntp = Claim(0, -1_000, 2_000, 10), Claim(0, 5_000_000, 6_000_000, 30)

    assert agree({"ptp": ptp, "ntp": ntp}, 0) == Agreement(
        -1_000, 6_000_000, 30, contradicting=("ptp", "ntp"), sources=("ptp", "ntp"), ends=("ptp", "ntp")
    )


def test_a_suspend_invalidates_all() -> None:
    """The kernel may have set the time from a coarse clock, and no step is detected."""
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    for index in range(13):
        ensemble.accept(nth(index, source="ptp"))
    withdrawn = ensemble.invalidate_after_suspend().bound

    assert withdrawn is not None
    assert (withdrawn.gm_hard, withdrawn.gm_status) == (unbounded(Reason.SUSPENDED), ClockStatus.DISRUPTED)
    assert ensemble.deciding_bound(nth(13).as_of_ns) is None


def test_a_host_that_pauses_the_virtual_machine_shows_with_the_next_sync_alone() -> None:
    """
    The pause lasts 3 s, and all of the machine's clocks stand still. Until the next Sync the bound excludes the truth; that
    Sync moves the offset at once, and its bound covers the truth again.
    """
    pause_ns = 3_000_000_000
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    for index in range(100):
        before = ensemble.accept(nth(index, source="ptp")).bound
    resumed = ensemble.accept(nth(100, source="ptp", offset_ns=-pause_ns))

    assert before is not None and resumed.bound is not None
    assert (before.gm_hard.at(pause_ns) or 0) < pause_ns
    assert resumed.phase_jump_ns == -pause_ns - 100
    assert (resumed.bound.gm_hard.bound_ns or 0) >= pause_ns


class NoDelays(Chain):
    """From 270 s to 340 s no delay measurement succeeds, while Syncs come."""

    def _delay_request(self, now_ns: float) -> float:
        if not 270e9 < now_ns < 340e9:
            return super()._delay_request(now_ns)
        return now_ns + 1e9


def test_a_frozen_delay_is_not_measured() -> None:
    """The filter remembers the former path for as long, whatever time has passed: so does the memory."""
    longer = PathSpec(reroutes=(Reroute(302 * NS_PER_S, 302 * NS_PER_S, 210_000, 10_000),))
    model = Replay()
    replayed = [
        (i, model.accept(i.row))
        for i in NoDelays(Scenario("no delays", path=longer), 1, 400.0).instants()
        if i.is_reading
    ]
    seen = [(abs(i.gm_error_ns), row.gm_hard_ns) for i, row in replayed if not i.blind and row.gm_hard_ns is not None]

    assert [pair for pair in seen if pair[0] > pair[1]] == []
    assert max(error_ns for error_ns, _ in seen) > 150_000
    assert replayed[-1][1].gm_hard_ns is not None
