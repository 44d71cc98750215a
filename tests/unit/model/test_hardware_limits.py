"""
Equipment that people have: servos that move a PHC by percents, frequencies that the daemon cannot read, oscillators beyond 50 ppm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from samples import HEALTHY

from timesyncd.clocks import NS_PER_S
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, TraceRow
from timesyncd.sample import DelayExchange, PhcSample, PortState


def row(second: float, offset_ns: int | None, frequency_ppb: int | None) -> TraceRow:
    delay_ns = None if offset_ns is None else 735
    return TraceRow(round(second * NS_PER_S), offset_ns, delay_ns, frequency_ppb, PortState.SLAVE, True, 6, 0x21)


def assert_never_below(rows: Iterable[TraceRow], truths: dict[int, float]) -> None:
    """Where a bound is given, it holds the truth (ns, by the row's time)."""
    replay, judged = Replay(), 0
    for each in rows:
        found = replay.accept(each).gm_hard_ns
        if each.t_ns in truths and found is not None:
            judged += 1
            assert abs(truths[each.t_ns]) <= found
    assert judged or not truths or found is None


@pytest.mark.parametrize("gain", [0.7, 1.0])
@pytest.mark.parametrize("syncs_per_s", [1, 8, 16])
@pytest.mark.parametrize("step_ns", [-10_000_000, 300_000, 10_000_000])
def test_a_servo_that_responds_to_a_step_unread_and_is_left_alone(gain: float, syncs_per_s: int, step_ns: int) -> None:
    """
    The frequency is not readable. The newest Sync shows the grandmaster's step, the servo responds with percents, and no
    Sync follows: the clock runs away at that rate. Only the servo's largest gains at the fastest Sync rate bound it.
    """
    quiet = [row(second, (-6, 91, -45, 42)[second % 4], None) for second in range(90)]
    rate_ppb = min(62_500_000, gain * abs(step_ns) * syncs_per_s) * (-1 if step_ns > 0 else 1)
    silent = [row(90 + later_s, None, None) for later_s in (0.5, 1, 2, 5, 10, 60)]
    truths = {each.t_ns: step_ns + rate_ppb * (each.t_ns / NS_PER_S - 90) for each in silent}

    assert_never_below([*quiet, row(90, step_ns, None), *silent], truths)


@pytest.mark.parametrize("rate_ppb", [-190_000, 75_869, 400_000])
@pytest.mark.parametrize("syncs", [22, 35])
@pytest.mark.parametrize("readable", [True, False])
def test_an_oscillator_beyond_50_ppm_before_its_rate_is_learned(rate_ppb: int, syncs: int, readable: bool) -> None:
    """
    It runs free for some Syncs, then nothing comes: the bound grows at least by the slope that the samples showed.
    """
    frequency_ppb = 0 if readable else None
    rows = [row(second, 5_000 + rate_ppb * second, frequency_ppb) for second in range(syncs)]
    silent = [row(syncs - 1 + later_s, None, frequency_ppb) for later_s in (1, 2, 5, 20, 60, 300)]
    truths = {each.t_ns: 5_000 + rate_ppb * each.t_ns / NS_PER_S for each in silent}

    assert_never_below([*rows, *silent], truths)


@pytest.mark.parametrize("slewed_ppb", [600_000, 15_000_000, 62_000_000])
def test_a_phc_that_is_slewed_between_two_of_its_readings(slewed_ppb: int) -> None:
    """
    The PHC follows a step of the grandmaster by percents. Each Sync shows its frequency and less of the offset, while the
    last reading of PHC against system clock is of before: the system clock is still off by all of it.
    """
    model = Ensemble({HEALTHY.source: EnsembleSettings()})
    sample = replace(HEALTHY, clock="phc:0", ptp_timescale=True)
    card = PhcSample(HEALTHY.source, "phc:0", 0, HEALTHY.real_minus_boot_ns, -37 * NS_PER_S, 1_000, "extended", 0, 0)
    off_ns, jumped, judged = 20_000_000, 480, 0
    for index in range(jumped + 8):
        later_ns = index * NS_PER_S // 8
        if index % 8 == 0:
            model.accept(replace(card, as_of_ns=card.as_of_ns + HEALTHY.as_of_ns + later_ns))
        left_ns = max(0, off_ns - slewed_ppb * (index - jumped) // 8) if index >= jumped else 0
        ingress_ns = HEALTHY.ingress_time_ns + later_ns
        bound = model.accept(
            replace(
                sample,
                as_of_ns=HEALTHY.as_of_ns + later_ns,
                read_ns=HEALTHY.as_of_ns + later_ns,
                ingress_time_ns=ingress_ns,
                offset_ns=left_ns,
                exchanges=(DelayExchange(ingress_ns, HEALTHY.path_delay_ns - left_ns),),
                frequency_ppb=-slewed_ppb if index >= jumped else 0,
                delay_requests_sent=index,
                delay_responses_received=index,
            )
        ).bound
        if index >= jumped and bound is not None and bound.gm_hard.bound_ns is not None:
            judged += 1
            assert off_ns <= bound.gm_hard.bound_ns
    assert judged == 8
