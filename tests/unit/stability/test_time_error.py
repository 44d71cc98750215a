"""The filter of 0.1 Hz, and constant time error by blocks of 1,000 s."""

from __future__ import annotations

import math

import pytest

from timesyncd.stability.time_error import BlockSums, LowPass

NS_PER_S = 1_000_000_000


def settled(values: list[int], interval_ns: int) -> list[float]:
    low_pass = LowPass(interval_ns)
    return [low for value in values if (low := low_pass.add(value)) is not None]


def test_a_constant_passes_the_filter() -> None:
    """The low-passed part of a constant is the constant, from the first settled sample on."""
    assert settled([70] * 200, NS_PER_S // 8)[0] == pytest.approx(70)


@pytest.mark.parametrize(("hz", "gain"), [(0.01, 0.995), (0.1, 1 / math.sqrt(2)), (1.0, 0.0995)])
def test_the_filter_has_the_gain_of_first_order_with_its_corner_at_0_1_hz(hz: float, gain: float) -> None:
    """A sine at the corner is 3 dB lower, at a tenth of it the same, and at ten times it a tenth."""
    rate = 64
    sine = [round(1_000_000 * math.sin(2 * math.pi * hz * index / rate)) for index in range(rate * 200)]
    peak = max(settled(sine, NS_PER_S // rate)[rate * 60 :])
    assert peak / 1_000_000 == pytest.approx(gain, rel=0.03)


def test_the_filter_reports_nothing_until_it_has_settled() -> None:
    """The first 8 s after a start and after a gap yield no value: the start's error would count as wander."""
    low_pass = LowPass(NS_PER_S)
    found = [low_pass.add(1) for _ in range(20)]
    low_pass.gap()
    found += [low_pass.add(1) for _ in range(20)]
    assert [index for index, low in enumerate(found) if low is None] == [*range(8), *range(20, 28)]


def test_a_block_that_a_gap_interrupts_is_no_block() -> None:
    """Only 1,000 s without a gap make a constant time error; the worst block is the one farthest from 0, with its sign."""
    blocks = BlockSums(100 * NS_PER_S)
    for value in [5] * 10 + [-80] * 9:
        blocks.add(value)
    blocks.gap()
    assert (blocks.result().count, blocks.result().worst_mean) == (1, 5)
    for value in [-20] * 5 + [-30] * 5 + [1] * 10:
        blocks.add(value)
    found = blocks.result()
    assert (found.count, found.newest_mean, found.worst_mean, found.largest_range) == (3, 1, -25, 10)
