"""
Pitfalls of the model: what a real ptp4l reported while its true error was known. Each test shows first what a
naive reader would conclude.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest
from chain import Instant
from local_clock import NS_PER_S as NS_PER_S_FLOAT
from local_clock import OscillatorSpec
from network_path import PathSpec, Reroute
from pitfall_lab import misses, naive_ns, replay
from samples import nth
from scenarios import Scenario

from timesyncd.bound import ClockStatus, ErrorBound, Rate, Term
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.clock_segment import Epoch, decode, encode
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, ReplayedRow, TraceRow
from timesyncd.sample import KernelSample, PortState

FAST = OscillatorSpec(offset_ppb=20_000, wander_ppb=0)
STILL = PathSpec(jitter_ns=0)

#: As phc2sys, ptp4l and systemd-timesyncd leave it, whatever the error is.
MAXERROR_ZERO = KernelSample("kernel", 0, 0, 0, 0, True, "none", 37, disciplines=("phc2sys",))


def fed(ensemble: Ensemble, **changes: object) -> ErrorBound:
    """A minute of eight Syncs a second, each with an offset of its own."""
    for index in range(480):
        bound = ensemble.accept(nth(index, **{"offset_ns": 100 + index % 3, **changes})).bound
    assert bound is not None
    return bound


def settled(rows: list[tuple[Instant, ReplayedRow]], after_s: float) -> list[tuple[Instant, ReplayedRow]]:
    return [(instant, row) for instant, row in rows if instant.row.t_ns > after_s * NS_PER_S]


@pytest.mark.parametrize("offset_sign", [1, -1])
def test_pitfall_05_a_negative_rate_is_a_rate(offset_sign: int) -> None:
    """
    A clock that is slowed is as well known as one that is hurried, an offset below 0 as one above, and no growth is
    negative.
    """
    bounds, rates = [], []
    for sign in (-1, 1):
        ensemble = Ensemble({"ptp": EnsembleSettings()})
        fed(ensemble, offset_ns=offset_sign, frequency_ppb=sign * 20_000)
        bounds.append(ensemble.accept(nth(480, offset_ns=offset_sign, frequency_ppb=sign * 22_000)).bound)
        drift = ensemble.drift("ptp")
        rates.append(drift and round(drift.rate_ppb))

    assert rates == [20_000, -20_000]
    assert bounds[0] is not None and bounds[1] is not None
    assert bounds[0].frequency_ppb == -22_000
    assert replace(bounds[0], frequency_ppb=22_000) == bounds[1]
    assert bounds[0].rates[Rate.FREQUENCY_OFFSET] == pytest.approx(2_000, abs=1)


def test_the_change_since_a_sample_may_be_negative() -> None:
    """A term below 0 goes through the segment's words as it is: read unsigned it would be 18 billion seconds."""
    bound = replace(fed(Ensemble({"ptp": EnsembleSettings()})), terms={Term.OFFSET: 7, Term.SINCE_SAMPLE: -5}, rates={})

    assert decode(encode(bound, Epoch(1, 2)))[0].terms == {Term.OFFSET: 7, Term.SINCE_SAMPLE: -5}


def test_pitfall_18_maxerror_under_phc2sys_is_ignored() -> None:
    """The kernel's 0 makes no bound, and none narrower."""
    ensemble = Ensemble({"ptp": EnsembleSettings(), "kernel": EnsembleSettings()})
    before = fed(ensemble)
    update = ensemble.accept(MAXERROR_ZERO)
    alone = Ensemble({"kernel": EnsembleSettings()})

    assert update.bound is None
    assert ensemble.deciding_bound(before.as_of_ns) is before
    assert alone.accept(MAXERROR_ZERO).bound is None and list(alone.bounded_sources) == []


def test_pitfall_25_right_after_lock_the_path_delay_is_not_believed() -> None:
    """
    It was measured while the clock was ppm off, and may be negative: no bound rests on it, where offset and delay
    alone miss.
    """
    scenario = Scenario("locking", oscillator=OscillatorSpec(offset_ppb=50_000, wander_ppb=0), path=STILL)
    rows = [each for seed in range(30) for each in replay(scenario, 60, seed)]
    slave = [(instant, row) for instant, row in rows if instant.row.port_state is PortState.SLAVE]
    missed = [row.gm_hard_ns for instant, row in slave if abs(instant.gm_error_ns) > naive_ns(instant)]

    assert min(instant.row.path_delay_ns or 0 for instant, _ in slave) < 0
    assert len(missed) > 5 and set(missed) == {None}
    assert misses(slave) == 0
    assert len([row for _, row in slave if row.gm_hard_ns is not None]) > len(slave) / 2


def test_pitfall_26_a_fast_servo_follows_a_changed_path_before_the_median() -> None:
    """Offset near 0, path delay 10 us, truth -225 us: what the servo did is known, so the bound holds it."""
    reroute = Reroute(100 * NS_PER_S_FLOAT, 100 * NS_PER_S_FLOAT, 235_000, 10_000)
    scenario = Scenario(
        "changed path",
        oscillator=FAST,
        path=PathSpec(jitter_ns=0, reroutes=(reroute,)),
        sync_interval_s=0.125,
        read_interval_s=0.125,
    )
    rows = [each for seed in range(4) for each in settled(replay(scenario, 140, seed), 100)]
    calm = [(instant, row) for instant, row in rows if naive_ns(instant) < 12_000 and instant.gm_error_ns < -200_000]

    assert min(instant.gm_error_ns for instant, _ in calm) == pytest.approx(-228_000, abs=8_000)
    assert min(row.gm_hard_ns or 0 for _, row in calm) > 200_000
    assert misses(rows) == 0


def test_pitfall_27_without_sync_the_port_stays_slave_and_the_delay_drifts() -> None:
    """
    The frozen offset is no sample: the status becomes HOLDOVER and the bound grows with the clock. When Sync is back
    the servo slews by
    hundreds of ppm, from a path delay that is far off, and the bound holds all along.
    """
    scenario = Scenario(
        "no Sync for a while",
        oscillator=OscillatorSpec(wander_ppb=0, sine_ppb=4_000, sine_period_s=2_000),
        path=PathSpec(jitter_ns=20, sync_outage_every_s=500, sync_outage_s=150),
    )
    rows, slews_ppb = [], [0]
    for seed in range(4):
        of_one = settled(replay(scenario, 1_500, seed), 120)
        reported_ppb = [instant.row.freq_ppb or 0 for instant, _ in of_one]
        slews_ppb += [abs(new - old) for old, new in itertools.pairwise(reported_ppb)]
        rows += of_one
    held = [(instant, row) for instant, row in rows if row.status is ClockStatus.HOLDOVER]
    frozen = [instant.row for instant, _ in held]

    assert {instant.row.port_state for instant, _ in rows} == {PortState.SLAVE}
    assert {(row.gm_present, row.clock_class) for row in frozen} == {(True, 6)}
    assert min(row.path_delay_ns or 0 for row in frozen) < -50_000
    assert max(slews_ppb) > 100_000
    assert len(held) > 200
    assert max(abs(instant.gm_error_ns) / naive_ns(instant) for instant, _ in held if naive_ns(instant) > 0) > 5
    assert misses(rows) == 0


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_pitfall_28_a_frozen_kick_of_the_servo_goes_on(loss: float) -> None:
    """
    LISTENING with its last proportional kick a clock runs ppm off its own mean: the bound grows by that distance,
    too.
    """
    path = PathSpec(jitter_ns=5_000, loss=loss, ends_at_s=300)
    scenario = Scenario("frozen", oscillator=OscillatorSpec(wander_ppb=0), path=path)
    kicked = 0
    for seed in range(8):
        rows = settled(replay(scenario, 420, seed), 120)
        mean_ppb = statistics.mean(each.row.freq_ppb or 0 for each, _ in rows if each.row.t_ns < 300 * NS_PER_S)
        frozen = [(each, row) for each, row in rows if each.row.t_ns > 310 * NS_PER_S]
        aged_by_1_ppm = [naive_ns(each) + (each.row.t_ns - 300 * NS_PER_S) / 1e6 for each, _ in frozen]
        naive_misses = sum(abs(frozen[i][0].gm_error_ns) > ns for i, ns in enumerate(aged_by_1_ppm))
        kicked += abs((frozen[-1][0].row.freq_ppb or 0) - mean_ppb) > 2_000 and naive_misses > 90

        assert {each.row.port_state for each, _ in frozen} == {PortState.LISTENING}
        assert {row.gm_hard_ns is None for _, row in frozen} == {False}
        assert misses(rows) == 0
    assert kicked >= 2


def test_pitfall_29_a_lost_master_is_still_reported() -> None:
    """
    gm_present and class 6 stay for ever with the old offset: HOLDOVER at once that it is old, UNKNOWN after 1000 s.
    """
    rows = settled(replay(Scenario("lost", path=PathSpec(ends_at_s=200)), 1_300), 120)
    statuses = [(status, len(list(group))) for status, group in itertools.groupby(row.status for _, row in rows)]
    synchronized, holdover, unknown = ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER, ClockStatus.UNKNOWN

    assert {(each.row.gm_present, each.row.clock_class) for each, _ in rows} == {(True, 6)}
    assert [status for status, _ in statuses] == [synchronized, holdover, unknown]
    assert statuses[1][1] == pytest.approx(995, abs=2)
    assert rows[-1][1] == ReplayedRow(rows[-1][0].row.t_ns, unknown, None, None, None, None)
    assert misses(rows) == 0


def test_one_that_became_master_is_no_source() -> None:
    """
    MASTER, its own class 248, path delay 0 and the old offset: no sample, so the bound only grows; nor is another
    offset one.
    """
    rows = settled(replay(Scenario("alone", path=PathSpec(ends_at_s=200), may_master=True), 400), 120)
    master = [(instant, row) for instant, row in rows if instant.row.port_state is PortState.MASTER]
    bounds_ns = [row.gm_hard_ns or 0 for _, row in master]
    model = Replay()
    before = [model.accept(TraceRow(second * NS_PER_S, second % 7, 2_000, 0, PortState.SLAVE)) for second in range(60)][
        -1
    ]
    alone = [model.accept(TraceRow(second * NS_PER_S, second % 5, 0, 0, PortState.MASTER)) for second in range(60, 70)][
        -1
    ]

    assert (before.status, alone.status) == (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
    assert {(each.row.clock_class, each.row.path_delay_ns) for each, _ in master} == {(248, 0)}
    assert len(master) > 150
    assert bounds_ns == sorted(bounds_ns) and bounds_ns[0] > max(naive_ns(each) for each, _ in master)
    assert master[-1][1].status is ClockStatus.HOLDOVER
    assert misses(rows) == 0


def test_pitfall_30_a_window_without_asymmetry_never_holds_the_truth() -> None:
    """
    On 10 us forward and 30 us back the mean offset + 4 sigma holds 0 % of the instants, and the hard bound all of
    them.
    """
    rows = settled(replay(Scenario("lopsided", path=PathSpec(10_000, 30_000)), 600), 120)
    offsets_ns = [abs(instant.row.offset_ns or 0) for instant, _ in rows]
    windows_ns = [
        statistics.mean(offsets_ns[end - 100 : end]) + 4 * statistics.stdev(offsets_ns[end - 100 : end])
        for end in range(100, len(rows))
    ]
    truth_ns = [abs(instant.gm_error_ns) for instant, _ in rows[100:]]

    assert sum(truth <= window for truth, window in zip(truth_ns, windows_ns, strict=True)) == 0
    assert len(rows) > 450 and misses(rows) == 0
    assert {row.gm_hard_ns is None for _, row in rows} == {False}
