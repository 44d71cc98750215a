"""What becomes of a bound if no further sample comes: when it leaves a limit, and when nothing holds any more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.units import countdown_text, limit_text

LIMITS_NS = (1_000, 10_000, 100_000, 1_000_000)


class Leaving(NamedTuple):
    """The bound is within `limit_ns` for another `in_ns`."""

    limit_ns: int
    in_ns: int


class Forecast(NamedTuple):
    """`leaves`: the nearest limit first, only those that are left before the bound is void."""

    leaves: tuple[Leaving, ...]
    void_in_ns: int


def forecast(bound: Bound, age_ns: int, void_after_ns: int, limits_ns: Sequence[int] = LIMITS_NS) -> Forecast | None:
    """As of `age_ns` after the bound's as_of, if samples stop. None: nothing holds now."""
    now_ns, void_in_ns = bound.at(age_ns), void_after_ns - age_ns
    if bound.bound_ns is None or now_ns is None or void_in_ns <= 0:
        return None
    leaves = []
    for limit_ns in sorted(limits_ns):
        if limit_ns < now_ns or bound.growth_ppb == 0:
            continue
        in_ns = (limit_ns - bound.bound_ns) * NS_PER_S // bound.growth_ppb - age_ns
        if in_ns < void_in_ns:
            leaves.append(Leaving(limit_ns, in_ns))
    return Forecast(tuple(leaves), void_in_ns)


def forecast_text(expected: Forecast, limits: int = 1) -> str:
    """The next so many limits, and the end: "leaves 100 us in 4 min 10 s; void in 16 min"."""
    told = [f"{limit_text(each.limit_ns)} in {countdown_text(each.in_ns)}" for each in expected.leaves[:limits]]
    end = f"void in {countdown_text(expected.void_in_ns)}"
    return f"leaves {', '.join(told)}; {end}" if told else end
