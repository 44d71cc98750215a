"""The system clock against a PTP hardware clock: how fast what was read may become untrue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import HEALTHY

from timesyncd.bound import SYSTEM_CLOCK_LIMIT_PPB
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.phc import PhcLink, PhcMemory
from timesyncd.sample import PhcSample

SETTINGS = SourceSettings()
TAI_NS = -37 * NS_PER_S

#: What an Intel i210 reports.
MAX_ADJ_PPB = 62_499_999


def read(second: float, offset_ns: int = TAI_NS, **changes: Any) -> PhcSample:
    found: dict[str, Any] = {
        "source": "card",
        "clock": "phc:0",
        "as_of_ns": HEALTHY.as_of_ns + round(second * NS_PER_S),
        "real_minus_boot_ns": HEALTHY.real_minus_boot_ns,
        "offset_ns": offset_ns,
        "width_ns": 1_001,
        "method": "extended",
        "frequency_ppb": 0,
        "system_frequency_ppb": 0,
        "max_frequency_ppb": MAX_ADJ_PPB,
    }
    return PhcSample(**{**found, **changes})


def fed(memory: PhcMemory, seconds: int, rate_ppb: float, **changes: Any) -> PhcLink:
    """A system clock that runs away from the PHC by `rate_ppb`."""
    for second in range(seconds):
        link = memory.accept(read(second, TAI_NS + round(rate_ppb * second), **changes))
    return link


def test_a_reading_is_right_within_half_its_window() -> None:
    """
    Rounded up; seconds between UTC and TAI are part of what was read, and are not removed here.
    """
    link = PhcMemory(SETTINGS).accept(read(0))

    assert (link.as_of_ns, link.offset_ns, link.error_ns) == (HEALTHY.as_of_ns, TAI_NS, 501)


@pytest.mark.parametrize(
    ("frequencies", "expected"),
    [
        ((0, 0), 100_000),
        ((0, 20_000), 120_000),
        ((None, 0), 100_000 + MAX_ADJ_PPB + SYSTEM_CLOCK_LIMIT_PPB),
        ((0, None), 100_000 + MAX_ADJ_PPB + SYSTEM_CLOCK_LIMIT_PPB),
    ],
)
def test_before_learning_any_allowed_drift_counts(frequencies: tuple[int | None, int | None], expected: int) -> None:
    """
    Both oscillators' worst, the steering, and the limits of both clocks where a frequency is not reported.
    """
    link = PhcMemory(SETTINGS).accept(read(0, frequency_ppb=frequencies[0], system_frequency_ppb=frequencies[1]))

    assert link.growth_ppb == expected


@pytest.mark.parametrize("system_ppb", [-20_000, 0, 30_000])
@pytest.mark.parametrize("phc_ppb", [-5_000, 0, 80_000])
def test_clocks_that_are_kept_together_leave_the_floor(system_ppb: int, phc_ppb: int) -> None:
    """
    Both oscillators err and both are steered: only what is left counts, and the signs of the two frequencies are
    opposite.
    """
    memory = PhcMemory(SETTINGS)
    link = fed(memory, 65, 0, frequency_ppb=phc_ppb, system_frequency_ppb=system_ppb)

    assert link.growth_ppb == SETTINGS.drift_floor_ppb


@given(rate_ppb=st.integers(-50_000, 50_000))
def test_clocks_that_run_apart_are_known_to(rate_ppb: int) -> None:
    """
    No process steers: the error grows by as much as they were seen to run apart, and the floor. The truth stays inside.
    """
    link = fed(PhcMemory(SETTINGS), 65, rate_ppb)
    later_s = 300
    true_ns = TAI_NS + rate_ppb * (64 + later_s)

    assert link.growth_ppb is not None
    assert abs(rate_ppb) + 1_000 <= link.growth_ppb <= abs(rate_ppb) + 1_001
    assert abs(true_ns - link.offset_ns) <= link.error_ns + link.growth_ppb * later_s


@pytest.mark.parametrize(("which", "sign"), [("frequency_ppb", -1), ("system_frequency_ppb", 1)])
def test_a_change_of_either_frequency_counts_threefold_for_a_while(which: str, sign: int) -> None:
    """
    A steering process may steer again before the next reading. What remains is known: the clocks run apart by it.
    """
    memory = PhcMemory(SETTINGS)
    fed(memory, 65, 0)
    found = [
        memory.accept(read(65 + index, TAI_NS + sign * 2_000 * index, **{which: 2_000})).growth_ppb
        for index in range(25)
    ]

    assert found == [1_000 + 2_000 + 6_000] * 20 + [1_000 + 2_000] * 5


def test_the_drift_before_a_step_is_learned_and_the_step_is_not() -> None:
    """
    A step of either clock is no rate.
    """
    memory = PhcMemory(SETTINGS)
    before = fed(memory, 65, 1_000)
    memory.interrupt()
    for second in range(65, 130):
        link = memory.accept(read(second, 1_000 * second))

    assert link.growth_ppb == before.growth_ppb


def test_an_unreported_frequency_is_no_rate() -> None:
    """
    What was steered meanwhile is unknown, so what comes next is not compared with what came before.
    """
    memory = PhcMemory(SETTINGS)
    known = fed(memory, 65, 0, system_frequency_ppb=300_000)
    for second in range(65, 110):
        frequency_ppb = None if second < 75 else 300_000
        link = memory.accept(read(second, system_frequency_ppb=frequency_ppb))

    assert link.growth_ppb == known.growth_ppb == SETTINGS.drift_floor_ppb


@pytest.mark.parametrize("set_ns", [-60_000, 60_000, 37 * NS_PER_S])
def test_a_stepped_clock_is_reported_once(set_ns: int) -> None:
    """
    It moved by more than both readings and their growth explain; from then on it is where it is, and no rate is learned
    from that.
    """
    memory = PhcMemory(SETTINGS)
    before = fed(memory, 65, 0)
    later = [memory.accept(read(65 + index, TAI_NS + set_ns)) for index in range(30)]

    assert [link.stepped for link in later] == [True] + [False] * 29
    assert later[-1].growth_ppb == before.growth_ppb


def test_the_error_grows_from_the_reading_on() -> None:
    """
    Rounded up, and no smaller before it.
    """
    link = PhcLink(HEALTHY.as_of_ns, 0, 20, 3)

    assert [link.age_ns(HEALTHY.as_of_ns + ns) for ns in (-NS_PER_S, 0, 1, NS_PER_S, NS_PER_S + 1)] == [0, 0, 1, 3, 4]
