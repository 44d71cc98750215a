"""A regular series of readings, and the difference of two nodes' ones."""

from __future__ import annotations

import pytest

from timesyncd.stability.readings import Pair, Placing, Reading, ReadingPlace, sampling_interval_ns


def series(*times: int, reference: str | None = "gm", te_ns: int = 0) -> list[Reading]:
    return [Reading(at, te_ns, reference) for at in times]


def test_the_sampling_interval_is_the_median() -> None:
    """Neither a gap nor two readings of one time move it; fewer than two times have none."""
    assert sampling_interval_ns(series(0, 100, 201, 201, 300, 9_000)) == 100
    assert sampling_interval_ns(series(5)) is None
    assert sampling_interval_ns(series(5, 5)) is None


@pytest.mark.parametrize(
    ("median_ns", "nominal_ns"),
    [(124_999_870, 125_000_000), (1_000_012_345, 10**9), (10_000_312_999, 10**10), (31_250_100, 31_250_000), (7, 7)],
)
def test_the_sampling_interval_is_the_nominal_one(median_ns: int, nominal_ns: int) -> None:
    """The jitter of a median would otherwise put 1,000 s beyond the end of a mask."""
    assert sampling_interval_ns(series(0, median_ns, 2 * median_ns)) == nominal_ns


def test_a_reading_s_place_follows_from_the_time_since_the_last_one() -> None:
    """Half an interval of jitter is none, one that is missing is a gap, and one too many is not used."""
    placing = Placing(100)
    places = [placing.place(reading) for reading in series(0, 100, 160, 175, 324, 474, 50)]
    assert places == [
        ReadingPlace.AFTER_GAP, ReadingPlace.NEXT, ReadingPlace.NEXT, ReadingPlace.EARLY, ReadingPlace.AFTER_GAP, ReadingPlace.AFTER_GAP, ReadingPlace.EARLY,
    ]  # fmt: skip


def test_a_change_of_the_reference_begins_the_series_anew() -> None:
    """The time errors before and after are against two clocks."""
    placing = Placing(100)
    placing.place(Reading(0, 1, "gm-a"))
    assert placing.place(Reading(100, 1, "gm-b")) is ReadingPlace.OTHER_REFERENCE
    assert placing.place(Reading(200, 1, "gm-b")) is ReadingPlace.NEXT


def test_a_pair_s_difference_is_first_minus_second_at_equal_times() -> None:
    """The nearest reading of the second node counts, where it is near enough."""
    pair = Pair(within_ns=40)
    first = [Reading(0, 500, "gm"), Reading(100, 510, "gm"), Reading(200, 520, "gm")]
    second = [Reading(5, 100, "gm"), Reading(90, 90, "gm"), Reading(135, 0, "gm"), Reading(300, 0, "gm")]
    assert list(pair.differences(first, second)) == [Reading(0, 400, "gm"), Reading(100, 420, "gm")]
    assert (pair.counts.compared, pair.counts.unmatched, pair.counts.references) == (2, 1, ["gm"])
    assert pair.counts.problem() is None


def test_nodes_that_follow_different_references_have_no_known_difference() -> None:
    """Where the references differ, or one is unknown, there is no difference but a reason with its count."""
    for reference, reason in (("other", "different references at 2"), (None, "reference of a node is unknown at 2")):
        pair = Pair(within_ns=40)
        assert list(pair.differences(series(0, 100), series(0, 100, reference=reference))) == []
        assert reason in (pair.counts.problem() or "")


def test_a_node_without_readings_is_named_as_the_reason() -> None:
    """No reading at all, and none at equal times, are two reasons."""
    pair = Pair(within_ns=40)
    assert list(pair.differences([], series(0))) == []
    assert pair.counts.problem() == "a node has no reading in this span"
    apart = Pair(within_ns=40)
    assert list(apart.differences(series(0), series(500))) == []
    assert "1 readings of the first node" in (apart.counts.problem() or "")
