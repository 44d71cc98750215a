"""An oscillator whose rate changes just before the Syncs end: the growth is never below what the newest samples show."""

from __future__ import annotations

from random import Random

import pytest
from clock_lab import Lab
from samples import INTERVAL_NS, nth

from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.parent_bound import ParentBound
from timesyncd.model.source import SourceMemory

SETTINGS = SourceSettings()


def unmoved(offset_ns: int) -> int:
    """A servo that keeps its frequency."""
    return 0


def free_run(
    memory: SourceMemory, seconds: int, changed_s: float, rate_ppb: int, noise_ns: int
) -> tuple[ParentBound, float]:
    """The last bound and the true error then; nothing steers, and the rate changes `changed_s` before the end."""
    noise, bound, true_ns = Random(3), None, 0.0
    count = seconds * NS_PER_S // INTERVAL_NS
    for index in range(count):
        until_end_ns = (count - 1 - index) * INTERVAL_NS
        if until_end_ns < changed_s * NS_PER_S:
            true_ns += rate_ppb * INTERVAL_NS / NS_PER_S
        offset_ns = round(true_ns) + noise.randint(-noise_ns, noise_ns)
        bound = memory.accept(nth(index, offset_ns=offset_ns, frequency_ppb=0))
    assert bound is not None
    return bound, true_ns


@pytest.mark.parametrize("noise_ns", [20, 1_000])
@pytest.mark.parametrize(
    ("seconds", "changed_s", "rate_ppb"),
    [(30, 5, 80_000), (30, 5, -200_000), (100, 2, 80_000), (100, 5, -80_000), (700, 60, 80_000), (100, 3, 300_000)],
)
def test_growth_follows_a_rate_that_has_just_changed(
    seconds: int, changed_s: int, rate_ppb: int, noise_ns: int
) -> None:
    """Before the rate is learned, and after."""
    memory = SourceMemory(SETTINGS)
    bound, true_ns = free_run(memory, seconds, changed_s, rate_ppb, noise_ns)

    for silent_s in (0, 1, 60, 300):
        assert abs(true_ns + rate_ppb * silent_s) <= (bound.bound.at(silent_s * NS_PER_S) or 0)


def test_the_new_rate_counts_while_the_bound_coasts() -> None:
    """No Sync comes any more, and the frequency is still read."""
    memory = SourceMemory(SETTINGS)
    bound, true_ns = free_run(memory, 100, 5, 80_000, 20)
    for silent_s in range(1, 30):
        now_ns = bound.as_of_ns + silent_s * NS_PER_S
        coasting = memory.coast(now_ns, 0)
        claimed = bound.bound.at(silent_s * NS_PER_S) if coasting is None else coasting.bound.bound_ns
        assert abs(true_ns + 80_000 * silent_s) <= (claimed or 0)


def growth_ppb(slow_ns: int) -> int:
    """The growth after two minutes, with one packet that is slow by so much twenty seconds before their end."""
    lab, memory = Lab(5_000, unmoved), SourceMemory(SETTINGS)
    for second in range(120):
        lab.forward_ns = 10_000 + (slow_ns if second == 100 else 0) + second % 5
        bound = memory.accept(lab.sync())
    assert bound is not None
    return bound.bound.growth_ppb


def test_one_slow_packet_is_no_rate() -> None:
    """It does not widen the growth."""
    assert growth_ppb(5_000) <= growth_ppb(0) + 100
