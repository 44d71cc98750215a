"""Moments of three scales. Every `type: ignore` below is a mistake that mypy catches: an unneeded one fails the lint."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from timesyncd.client import Clock, GmNs, TaiNs, UtcNs
from timesyncd.client.scales import ScaledNs


@pytest.mark.parametrize("scale", [UtcNs, TaiNs, GmNs])
def test_a_moment_and_a_length_of_time_give_a_moment_of_the_same_scale(scale: type[ScaledNs]) -> None:
    """Moment +- int keeps the scale, and the difference of two moments is a plain int."""
    t = scale(100)

    assert [(type(x), int(x)) for x in (t + 5, 5 + t, t - 5)] == [(scale, 105), (scale, 105), (scale, 95)]
    assert [(type(x), x) for x in (t + 5 - t, t // 3)] == [(int, 5), (int, 33)]


ORDERS = [operator.lt, operator.le, operator.gt, operator.ge, operator.sub]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("other", [GmNs(1), TaiNs(1), 1])
def test_two_scales_and_plain_numbers_are_not_mixed(order: Callable[[object, object], object], other: int) -> None:
    """Comparing or subtracting raises, on either side, and the text states what to do."""
    advice = "read both timestamps" if isinstance(other, ScaledNs) else r"give UtcNs\(...\)"
    if order is not operator.sub or isinstance(other, ScaledNs):
        with pytest.raises(TypeError, match=f"UtcNs with {type(other).__name__}: .*{advice}"):
            order(UtcNs(1), other)
    with pytest.raises(TypeError, match="with"):
        order(other, UtcNs(1))


def test_two_timestamps_cannot_be_added() -> None:
    """The sum of two moments is none."""
    with pytest.raises(TypeError, match="cannot be added"):
        UtcNs(1) + UtcNs(1)


def test_moments_of_one_scale_are_ordered_as_numbers() -> None:
    """Sorting, the largest, and all four comparisons."""
    early, late = GmNs(1), GmNs(2)

    assert sorted([late, early]) == [early, late]
    assert (early < late, early <= late, early > late, early >= late) == (True, True, False, False)


def test_moments_of_two_scales_are_merely_unequal() -> None:
    """As with datetime, equality never raises, so that they may stand in one dictionary."""
    assert (UtcNs(1) == TaiNs(1), UtcNs(1) != TaiNs(1), UtcNs(1) == UtcNs(1), UtcNs(1) != UtcNs(2)) == (0, 1, 1, 1)
    assert len({UtcNs(1): 0, TaiNs(1): 0, GmNs(1): 0}) == 3


def test_a_moment_is_written_and_copied() -> None:
    """repr shows the scale; text and JSON are the number; a copy and a pickle keep the scale."""
    t = UtcNs(7)

    assert (repr(t), str(t), f"{t}", json.dumps([t])) == ("UtcNs(7)", "7", "7", "[7]")
    assert {type(x) for x in (copy.copy(t), pickle.loads(pickle.dumps(t)))} == {UtcNs}


def test_a_number_without_a_scale_is_refused_by_name(tmp_path: Path) -> None:
    """before, after and the waits take moments only, also at run time."""
    clock = Clock(tmp_path)
    with pytest.raises(TypeError, match=r"int has no scale: give UtcNs\(t\)"):
        clock.before(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no scale"):
        clock.after(UtcNs(5) - UtcNs(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no scale"):
        clock.wait_until(ScaledNs(5), timeout_s=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="UtcNs with GmNs"):
        assert UtcNs(5) < GmNs(5)  # type: ignore[operator]
