"""What a daemon reports of its own cost, and how it keeps to its budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.daemon.own_cost import (
    MAX_FACTOR,
    READ_EVERY_NS,
    RELAXED,
    WINDOW_NS,
    Budget,
    CostControl,
    CostReading,
    allowed_factor,
    next_factor,
)

BUDGET = Budget(cpu_share=0.1, memory_bytes=70 * 1_048_576)


def run(control: CostControl, shares: Sequence[float], memory: int | None = 1) -> list[int]:
    """The factors while the daemon uses these shares of a core, each for ten seconds."""
    cpu_ns, factors, newest = 0, [], control.newest
    at_ns = 0 if newest is None else newest.boottime_ns
    cpu_ns = 0 if newest is None else newest.cpu_ns
    for share in shares:
        at_ns += READ_EVERY_NS
        cpu_ns += int(share * READ_EVERY_NS)
        control.update(CostReading(at_ns, cpu_ns, memory, {"ptp": at_ns * 8 // NS_PER_S, "gm-a": at_ns // NS_PER_S}))
        factors.append(control.factor)
    return factors


def test_over_its_budget_it_polls_less_often_and_says_so() -> None:
    """Twice as seldom after each whole minute, and the finding names the sources that are polled most."""
    control = CostControl(BUDGET)
    factors = run(control, [0.5] * 40)

    assert factors[:6] == [1] * 6 and factors[6] == 2
    assert factors[-1] == MAX_FACTOR and factors == sorted(factors)
    assert control.evidence == (
        "the daemon used 50.0% of a core in the last minute, its budget is 10.0%, and polls 16 times less often than configured"
        "; polls a second: ptp 8.0, gm-a 1.0"
    )


def test_back_within_its_budget_it_polls_as_configured() -> None:
    """Not before the cost is so low that denser polls fit; then the finding ends."""
    control = CostControl(BUDGET)
    run(control, [0.5] * 7)
    kept = run(control, [0.08] * 30)
    held = control.evidence
    freed = run(control, [0.01] * 30)

    assert kept[-1] > 1 and len(set(kept)) == 1 and held is not None
    assert freed[-1] == 1 and control.evidence is None


def test_a_busy_start_is_no_news() -> None:
    """Imports and the first polls cost more than the rest: a whole minute counts."""
    control = CostControl(BUDGET)
    factors = run(control, [0.4, *[0.02] * 5])

    assert (factors, control.evidence) == ([1] * 6, None)


def test_without_a_budget_the_cost_is_reported_and_not_judged() -> None:
    """As each of [limits]."""
    control = CostControl(Budget())
    factors = run(control, [0.9] * 20, memory=10**12)

    assert set(factors) == {1} and control.evidence is None
    assert control.cpu_share is not None and abs(control.cpu_share - 0.9) < 1e-6
    assert control.window_ns == WINDOW_NS


def test_too_much_memory_is_a_finding_and_changes_no_poll() -> None:
    """Seldom polls free none."""
    control = CostControl(BUDGET)
    factors = run(control, [0.01] * 10, memory=100 * 1_048_576)

    assert set(factors) == {1}
    assert control.evidence == "the daemon holds 100 MiB, its budget is 70 MiB"


def test_an_unreadable_memory_is_unknown_and_no_excess() -> None:
    """Without a file descriptor it cannot be read."""
    control = CostControl(BUDGET)
    run(control, [0.01] * 10, memory=None)

    assert control.evidence is None


@given(st.floats(0, 10), st.floats(0.001, 10), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_next_factor_is_a_step_in_the_direction_of_the_budget(share: float, budget: float, factor: int) -> None:
    """At most twice or half of it, between 1 and the largest one."""
    following = next_factor(share, budget, factor)

    assert 1 <= following <= MAX_FACTOR and factor / 2 <= following <= 2 * factor or factor == following == 1
    assert following >= factor or share < RELAXED * budget
    assert following <= factor or share > budget


@given(st.integers(1, 16), st.floats(0.01, 60), st.integers(10**9, 10**12))
def test_a_slower_clock_source_still_fits_twice_into_its_holdover(
    factor: int, interval_s: float, holdover_ns: int
) -> None:
    """A daemon that saves CPU does not make the clock's bound expire; a grandmaster has no such limit."""
    allowed = allowed_factor(factor, interval_s, holdover_ns)

    assert 1 <= allowed <= factor
    assert allowed == 1 or 2 * allowed * interval_s * NS_PER_S <= holdover_ns * (1 + 1e-9)
    assert allowed_factor(factor, interval_s, None) == factor


@pytest.mark.parametrize("holdover_ns", [None, 4 * NS_PER_S])
def test_a_source_that_waits_for_messages_is_not_spread(holdover_ns: int | None) -> None:
    """ptp4l's slave_event_monitor: the interval is 0, and the daemon neither divides by it nor ends."""
    assert allowed_factor(4, 0.0, holdover_ns) == 1


def test_readings_are_kept_for_a_window_alone() -> None:
    """A daemon runs for years."""
    control = CostControl(BUDGET)
    run(control, [0.01] * 1_000)

    assert control.window_ns <= WINDOW_NS + READ_EVERY_NS
    assert all(one.boottime_ns < other.boottime_ns for one, other in pairwise(control._readings))
