"""ADEV, TDEV and MTIE sample by sample, against closed forms, the direct formulas, NIST's published values and allantools."""

from __future__ import annotations

import math
import random
from itertools import accumulate, chain

import allantools
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.stability.readings import Pair, Reading
from timesyncd.stability.streaming import IntervalSums, StabilitySums

OCTAVES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def sums_of(*runs: list[int], intervals: tuple[int, ...] = OCTAVES) -> dict[int, IntervalSums]:
    """Of several runs with a gap between each two, by interval."""
    sums = StabilitySums(intervals)
    for number, run in enumerate(runs):
        if number:
            sums.gap()
        for value in run:
            sums.add(value)
    return {each.interval_samples: each for each in sums.results()}


def direct(runs: list[list[int]], interval: int) -> tuple[int, int, int, int, int, int]:
    """The sums by the formulas of ITU-T G.810, Annex II, with a loop for each term."""
    adev_terms = adev = tdev_terms = tdev = windows = largest = 0
    for run in runs:
        for start in range(len(run) - 2 * interval):
            adev_terms += 1
            adev += (run[start] - 2 * run[start + interval] + run[start + 2 * interval]) ** 2
        for start in range(len(run) - 3 * interval + 1):
            tdev_terms += 1
            seconds = (
                run[i] - 2 * run[i + interval] + run[i + 2 * interval] for i in range(start, start + interval)
            )  # fmt: skip
            tdev += sum(seconds) ** 2
        for start in range(len(run) - interval):
            windows += 1
            window = run[start : start + interval + 1]
            largest = max(largest, max(window) - min(window))
    return adev_terms, adev, tdev_terms, tdev, windows, largest


RUNS = st.lists(st.lists(st.integers(-(10**12), 10**12), max_size=40), min_size=1, max_size=4)


@given(RUNS)
def test_the_stream_equals_the_direct_formulas_whatever_the_gaps(runs: list[list[int]]) -> None:
    """Every sum and every count is exactly that of the definition, summed over the runs between the gaps."""
    for interval, found in sums_of(*runs, intervals=(1, 2, 3, 4, 7, 8, 16)).items():
        assert direct(runs, interval) == (
            found.adev_terms, found.adev_squares, found.tdev_terms, found.tdev_squares, found.windows, found.largest_range,
        )  # fmt: skip


@pytest.mark.parametrize("per_sample", [3, -250])
def test_a_constant_frequency_offset_is_no_instability_and_grows_the_time_error(per_sample: int) -> None:
    """ADEV and TDEV are 0, and MTIE is the frequency offset times the observation interval."""
    ramp = [5_000 + per_sample * index for index in range(1_000)]
    for interval, found in sums_of(ramp).items():
        assert found.adev(interval) == 0
        assert found.tdev == 0
        assert found.mtie == abs(per_sample) * interval


def test_white_phase_noise_has_its_slopes() -> None:
    """ADEV is sqrt(3) sigma / tau, and TDEV is sigma / sqrt(m): within the spread of 20,000 samples."""
    noise = random.Random(7)
    sigma = 1_000
    values = [round(noise.gauss(0, sigma)) for _ in range(20_000)]
    for interval, found in sums_of(values, intervals=(1, 2, 4, 8, 16, 32, 64)).items():
        assert found.adev(interval) == pytest.approx(math.sqrt(3) * sigma / interval, rel=0.05)
        assert found.tdev == pytest.approx(sigma / math.sqrt(interval), rel=0.2)


def test_a_gap_begins_the_windows_anew_and_keeps_what_was_summed() -> None:
    """A step during a gap is in no window, and an interval longer than each run stays unknown."""
    found = sums_of([0] * 10, [1_000_000] * 10, intervals=(1, 4, 16))
    assert found[4].mtie == 0
    assert found[4].windows == 2 * 6
    assert found[16].mtie is None
    assert found[16].tdev is None
    assert found[16].adev(16) is None


def test_the_queues_of_a_long_stream_are_bounded() -> None:
    """A ramp, of which every value is the newest extreme or still in the window, keeps few values more than the longest window."""
    sums = StabilitySums((1, 64))
    for index in range(20_000):
        sums.add(index)
        assert len(sums._lowest._values) <= 64 + 1 + 4_096 + 1
    assert sums.results()[-1].mtie == 64


def test_values_whose_sum_leaves_the_ring_begin_the_windows_anew() -> None:
    """A prefix sum that 64 bits cannot hold costs the windows, and neither a value nor an exception."""
    values = [0] + [1 << 60] * 10
    found = sums_of(values, intervals=(1, 2))
    assert found[1].largest_range <= 1 << 60
    assert 0 < found[1].windows < len(values)


def test_an_interval_of_no_sample_is_refused() -> None:
    """An observation interval is at least one sampling interval."""
    with pytest.raises(ValueError, match="1 sample or more"):
        StabilitySums((0, 1))


def nbs14() -> list[int]:
    """
    NIST's 1,000-point test suite (NIST SP 1065, page 107) as phases: a generator's numbers are frequencies, in parts of its modulus.
    """
    numbers = [1_234_567_890]
    while len(numbers) < 1_000:
        numbers.append(16_807 * numbers[-1] % MODULUS)
    return list(accumulate(chain([0], numbers)))


MODULUS = 2_147_483_647


@pytest.mark.parametrize(
    ("interval", "adev", "tdev"),
    [(1, 2.922319e-01, 1.687202e-01), (10, 9.159953e-02, 3.563623e-01), (100, 3.241343e-02, 1.253382e00)],
)
def test_nist_s_test_suite_has_the_published_values(interval: int, adev: float, tdev: float) -> None:
    """Overlapping ADEV and TDEV of the 1,000 points, to all seven digits of NIST SP 1065, page 108."""
    found = sums_of(nbs14(), intervals=(interval,))[interval]
    assert f"{(found.adev(interval) or 0) / MODULUS:.6e}" == f"{adev:.6e}"
    assert f"{(found.tdev or 0) / MODULUS:.6e}" == f"{tdev:.6e}"


def noises() -> dict[str, list[int]]:
    """Series of 4,000 samples, of the kinds that allantools generates for its own tests, in integer ns."""
    state = np.random.get_state()
    np.random.seed(20_261_126)
    try:
        series = {
            "white": np.cumsum(allantools.noise.white(4_000)),
            "pink": np.cumsum(allantools.noise.pink(4_000)),
            "brown": np.cumsum(allantools.noise.brown(4_000)),
            "violet": allantools.noise.violet(4_000),
        }
    finally:
        np.random.set_state(state)
    return {name: [round(value * 1_000) for value in values.tolist()] for name, values in series.items()}


@pytest.mark.parametrize("name", ["white", "pink", "brown", "violet", "nbs14"])
def test_the_numbers_equal_those_of_allantools(name: str) -> None:
    """ADEV, TDEV and MTIE agree with allantools to 1e-9 of each value, on its noises and on NIST's test suite."""
    values = nbs14() if name == "nbs14" else noises()[name]
    series = np.array(values, float)
    for interval, found in sums_of(values).items():
        taus = [interval]
        assert found.adev(interval) == pytest.approx(allantools.oadev(series, taus=taus)[1][0], rel=1e-9)
        assert found.tdev == pytest.approx(allantools.tdev(series, taus=taus)[1][0], rel=1e-9)
        assert found.mtie == pytest.approx(allantools.mtie(series, taus=taus)[1][0], rel=1e-9)


def test_a_pair_s_numbers_equal_those_of_allantools() -> None:
    """Of two nodes with different noise against one grandmaster, read at equal times but for some jitter."""
    first, second = (noises()[name] for name in ("pink", "violet"))
    pair = Pair(within_ns=50)
    differences = pair.differences(
        (Reading(100 * index, value, "gm") for index, value in enumerate(first)),
        (Reading(100 * index + index % 40, value, "gm") for index, value in enumerate(second)),
    )
    found = sums_of([each.te_ns for each in differences])
    series = np.array(first, float) - np.array(second, float)

    assert (pair.counts.compared, pair.counts.references) == (4_000, ["gm"])
    for interval, sums in found.items():
        taus = [interval]
        assert sums.adev(interval) == pytest.approx(allantools.oadev(series, taus=taus)[1][0], rel=1e-9)
        assert sums.tdev == pytest.approx(allantools.tdev(series, taus=taus)[1][0], rel=1e-9)
        assert sums.mtie == pytest.approx(allantools.mtie(series, taus=taus)[1][0], rel=1e-9)
