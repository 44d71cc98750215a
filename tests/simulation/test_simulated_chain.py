"""The simulation itself: what it is made of, and that it shows what was seen on real ptp4l under simulated clocks."""

from __future__ import annotations

import itertools
import statistics
from random import Random

import pytest
from chain import Chain, Instant
from emulated_ptp4l import DelayFilter, PiServo, ServoState
from local_clock import NS_PER_S, LocalClock, OscillatorSpec
from network_path import NetworkPath, PathSpec, Reroute
from scenarios import BY_NAME, Scenario

from timesyncd.sample import PortState

STILL = OscillatorSpec(offset_ppb=20_000, wander_ppb=0)


def readings(scenario: Scenario, seconds: float, seed: int = 1) -> list[Instant]:
    return [instant for instant in Chain(scenario, seed, seconds).instants() if instant.is_reading]


def test_the_filter_is_a_median_of_the_last_ten() -> None:
    """Of an odd number the middle one, of an even number the mean of the middle two, and the eleventh displaces the first."""
    delays = DelayFilter()
    medians = [delays.add(delay) for delay in (3, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11)]

    assert medians == [3, 2, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6.5]


@pytest.mark.parametrize(
    ("interval_s", "software", "kp", "ki"),
    [(1.0, False, 0.7, 0.3), (0.125, False, 1.306, 0.1306), (4.0, False, 0.175, 0.075), (1.0, True, 0.1, 0.001)],
)
def test_the_servo_s_gains_scale_with_the_interval(interval_s: float, software: bool, kp: float, ki: float) -> None:
    """0.7 interval^-0.3 and 0.3 interval^0.4, at most 0.7 and 0.3 / interval; software stamps have fixed ones."""
    servo = PiServo(interval_s, software)
    states = [servo.sample(0, 0), servo.sample(0, 100 * NS_PER_S), servo.sample(1_000, 101 * NS_PER_S)]

    assert states == [ServoState.UNLOCKED, ServoState.LOCKED, ServoState.LOCKED]
    assert servo.ppb == pytest.approx(1_000 * (kp + ki), rel=1e-3)


def test_the_servo_s_first_two_samples_give_the_frequency_and_a_step() -> None:
    """2 000 ns in 1 s are 2 000 ppb, and an offset above 20 us is stepped away, once."""
    servo = PiServo(1.0, software=False)
    states = [servo.sample(50_000, 0), servo.sample(52_000, NS_PER_S)]

    assert (states, servo.ppb) == ([ServoState.UNLOCKED, ServoState.JUMP], 2_000)
    assert servo.sample(50_000, 2 * NS_PER_S) is ServoState.LOCKED


@pytest.mark.parametrize(("forward_ns", "reverse_ns"), [(10_000, 10_000), (10_000, 30_000), (40_000, 0)])
def test_without_noise_the_servo_settles_at_half_the_asymmetry(forward_ns: float, reverse_ns: float) -> None:
    """offset 0, path delay the mean, and the truth (reverse - forward) / 2, at what the oscillator runs fast by."""
    scenario = Scenario("still", oscillator=STILL, path=PathSpec(forward_ns, reverse_ns, jitter_ns=0))
    last = readings(scenario, 120)[-1]

    assert abs(last.row.offset_ns or 0) <= 2
    assert last.row.path_delay_ns == pytest.approx((forward_ns + reverse_ns) / 2, abs=2)
    assert last.gm_error_ns == pytest.approx((reverse_ns - forward_ns) / 2, abs=3)


def test_a_clock_far_off_is_stepped_at_the_start() -> None:
    """The first offset, of up to 1 ms, is gone when the port is in state SLAVE, but for what the path delay is wrong by."""
    scenario = Scenario("far off", oscillator=STILL)
    first_ns = [abs(readings(scenario, 5, seed)[0].gm_error_ns) for seed in range(20)]
    slave_ns = [
        next(abs(each.gm_error_ns) for each in readings(scenario, 60, seed) if each.row.port_state is PortState.SLAVE)
        for seed in range(20)
    ]

    assert max(first_ns) > 500_000
    assert max(slave_ns) < 50_000


def test_a_seed_gives_one_chain() -> None:
    """The same seed gives the same, to the nanosecond, however long the run; another one does not."""
    scenario = BY_NAME["outages and reroutes"]

    assert readings(scenario, 600, seed=7)[:300] == readings(scenario, 300, seed=7)
    assert readings(scenario, 300, seed=7) != readings(scenario, 300, seed=8)


def test_the_frequency_wanders_as_the_root_of_time() -> None:
    """A random walk: its deviation after 100 s is ten times that after 1 s."""
    spec = OscillatorSpec(offset_ppb=0, wander_ppb=2)
    clocks = [LocalClock(spec, Random(seed), error_ns=0) for seed in range(400)]
    for clock, second in itertools.product(clocks, range(1, 101)):
        clock.advance(second * NS_PER_S)

    assert statistics.stdev(clock.oscillator_ppb() for clock in clocks) == pytest.approx(20, rel=0.15)


def test_a_packet_takes_at_least_its_direction_s_base() -> None:
    """Jitter and queues only add, and a share of the packets is lost."""
    spec = PathSpec(10_000, 20_000, jitter_ns=100, queue_share=0.5, queue_ns=5_000, loss=0.3)
    path = NetworkPath(spec, Random(1), 1_000)

    assert min(path.forward_ns(0) for _ in range(2_000)) == pytest.approx(10_000, abs=5)
    assert min(path.reverse_ns(0) for _ in range(2_000)) == pytest.approx(20_000, abs=5)
    assert statistics.mean(path.forward_ns(0) for _ in range(20_000)) == pytest.approx(12_580, abs=150)
    assert statistics.mean(path.loses(0) for _ in range(20_000)) == pytest.approx(0.3, abs=0.02)


def test_right_after_lock_the_path_delay_is_wrong() -> None:
    """It was measured while the clock still ran ppm off, between a Sync and a request of up to 2 s later."""
    scenario = Scenario("fast", oscillator=STILL, path=PathSpec(jitter_ns=0))
    locked = [
        next(each.row for each in readings(scenario, 60, seed) if each.row.port_state is PortState.SLAVE)
        for seed in range(20)
    ]
    wrong_ns = [abs((row.path_delay_ns or 0) - 10_000) for row in locked]

    assert max(wrong_ns) > 4_000


def test_a_fast_servo_follows_a_changed_path_before_the_median_does() -> None:
    """Offset near 0, path delay 10 us, truth -225 us: nothing in that one reading shows it."""
    reroute = Reroute(100 * NS_PER_S, 100 * NS_PER_S, 235_000, 10_000)
    path = PathSpec(jitter_ns=0, reroutes=(reroute,))
    scenario = Scenario("changed path", oscillator=STILL, path=path, sync_interval_s=0.125)
    calm = [
        each
        for each in readings(scenario, 110)
        if each.row.t_ns > 100 * NS_PER_S and abs(each.row.offset_ns or 0) < 3_000 and each.row.path_delay_ns == 10_000
    ]

    assert min(each.gm_error_ns for each in calm) == pytest.approx(-225_000, abs=5_000)


def test_without_syncs_the_path_delay_drifts_as_the_clock_does() -> None:
    """The port stays SLAVE with its old offset and grandmaster; t1 and t2 are old, so half the clock's gain is lost of the delay."""
    oscillator = OscillatorSpec(wander_ppb=0, sine_ppb=2_000, sine_period_s=2_000)
    scenario = Scenario("no Sync", oscillator=oscillator, path=PathSpec(jitter_ns=0, sync_ends_at_s=400))
    rows = readings(scenario, 900)
    before = next(each for each in rows if each.row.t_ns > 402 * NS_PER_S)
    last = rows[-1]

    assert last.gm_error_ns == pytest.approx(-148_900, rel=0.05)
    assert last.row.path_delay_ns == pytest.approx(10_000 - last.gm_error_ns / 2, rel=0.05)
    assert last.row._replace(t_ns=0, path_delay_ns=0) == before.row._replace(t_ns=0, path_delay_ns=0)


def test_a_lost_master_leaves_the_last_words_and_the_last_kick() -> None:
    """LISTENING with the old offset, path delay, class and frequency, for ever."""
    rows = readings(Scenario("lost", path=PathSpec(jitter_ns=5_000, ends_at_s=200)), 400)
    before = next(each.row for each in rows if each.row.t_ns > 202 * NS_PER_S)
    states = {each.row._replace(t_ns=0) for each in rows if each.row.t_ns > 210 * NS_PER_S}

    assert states == {before._replace(t_ns=0, port_state=PortState.LISTENING)}
    assert before.gm_present and before.clock_class == 6


def test_a_port_that_may_become_master_reports_itself() -> None:
    """MASTER, its own class 248, path delay 0, and the old offset."""
    rows = readings(Scenario("alone", path=PathSpec(ends_at_s=200), may_master=True), 400)
    before = next(each.row for each in rows if each.row.t_ns > 202 * NS_PER_S)
    last = rows[-1].row

    assert (last.port_state, last.clock_class, last.path_delay_ns) == (PortState.MASTER, 248, 0)
    assert last.offset_ns == before.offset_ns


def test_a_master_that_returns_is_followed_again() -> None:
    """UNCALIBRATED, then SLAVE, and the error is what it was before."""
    rows = readings(BY_NAME["nothing at times"], 900)
    states = [state for state, _ in itertools.groupby(each.row.port_state for each in rows)]
    slave, listening, uncalibrated = PortState.SLAVE, PortState.LISTENING, PortState.UNCALIBRATED

    assert states[:6] in (
        [listening, uncalibrated, slave, listening, uncalibrated, slave],
        [listening, uncalibrated, slave, listening, slave, listening],
    )
