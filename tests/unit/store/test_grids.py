"""The past on a grid of equal steps: nothing invented, no peak lost, holes shown as holes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from postgresql import location, ready
from sqlalchemy import Table

from timesyncd.clocks import NS_PER_S
from timesyncd.store import grids
from timesyncd.store.engine import StoreLocation
from timesyncd.store.grids import NOT_POLLED, Grid, envelope, state_spans
from timesyncd.store.tables import grandmaster_sample, rollup

__all__ = ["location"]

START_NS = 1_700_000_000 * NS_PER_S
LOCKED, HOLDOVER = ("locked", "ok", "ok"), ("holdover", "none", "open")


def record(at_s: int, span_s: int, low: int, middle: int, high: int, count: int = 1) -> dict[str, Any]:
    at_ns = START_NS + at_s * NS_PER_S
    return {"realtime_ns": at_ns, "span_s": span_s, "minimum": low, "p50": middle, "maximum": high, "count": count}


def grid(step_s: int, steps: int) -> Grid:
    return Grid(START_NS, step_s * NS_PER_S, steps)


def test_a_step_has_the_extremes_of_its_records() -> None:
    """Minimum and maximum are of all records of the step; the median counts each record's samples."""
    made = envelope([record(0, 1, 1, 2, 3), record(5, 1, -4, 9, 40, count=10)], grid(10, 2))

    assert (made.minimum, made.median, made.maximum) == ([-4, None], [9, None], [40, None])
    assert made.newest_ns == START_NS + 6 * NS_PER_S


def test_a_step_without_a_record_is_a_hole() -> None:
    """Between two records nothing is known, and no line may be drawn across it."""
    made = envelope([record(0, 0, 1, 1, 1), record(40, 0, 2, 2, 2)], grid(10, 5))

    assert made.maximum == [1, None, None, None, 2]


def test_a_record_longer_than_a_step_fills_all_that_it_covers() -> None:
    """An hour's roll-up on a grid of minutes holds in each of its minutes, and in no other."""
    made = envelope([record(60, 120, 1, 2, 3)], grid(60, 5))

    assert made.median == [None, 2, 2, None, None]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(2, 5_000))
def test_a_grid_covers_the_span_with_at_most_so_many_steps(since_s: int, length_s: int, points: int) -> None:
    """Every moment of the span lies in a step, and steps begin at multiples of their length."""
    since_ns, until_ns = since_s * NS_PER_S, (since_s + length_s) * NS_PER_S
    made = Grid.of(since_ns, until_ns, points)

    assert made.begin_ns <= since_ns and made.end_ns >= until_ns
    assert made.steps <= points
    assert made.begin_ns % made.step_ns == 0


def at(second: int, state: grids.State) -> tuple[int, grids.State]:
    return START_NS + second * NS_PER_S, state


def spans(*samples: tuple[int, grids.State], until_s: int = 1_000) -> list[tuple[int, int, grids.State]]:
    found = state_spans(samples, START_NS, START_NS + until_s * NS_PER_S)
    return [((begin - START_NS) // NS_PER_S, (end - START_NS) // NS_PER_S, state) for begin, end, state in found]


def test_equal_states_are_one_span() -> None:
    """A state lasts until another is read; the time before the first sample is not known."""
    polled = [at(second, LOCKED if second < 500 else HOLDOVER) for second in range(10, 1_000, 10)]

    assert spans(*polled) == [(0, 10, NOT_POLLED), (10, 500, LOCKED), (500, 1_000, HOLDOVER)]


def test_an_outage_is_not_filled_with_the_last_state() -> None:
    """Where a grandmaster gave no sample for several intervals, nothing is claimed."""
    polled = [at(second, LOCKED) for second in (*range(0, 100, 10), *range(700, 1_000, 10))]

    assert spans(*polled) == [(0, 150, LOCKED), (150, 700, NOT_POLLED), (700, 1_000, LOCKED)]
    assert spans() == [(0, 1_000, NOT_POLLED)]


@pytest.fixture
def stored(location: StoreLocation) -> Iterator[StoreLocation]:
    """Three polls of one grandmaster, two of them whole."""
    same: dict[str, Any] = {"source": "gm-a", "boottime_ns": 0, "clock_state": "locked"}
    ports = [
        [{"name": "eth1", "clients": 7}, {"name": "eth2", "clients": 5}, {"name": "eth3", "clients": None}],
        None,
        [],
    ]
    satellites = [[{"number": 5, "cn0_db_hz": 40, "healthy": True}], None, [{"number": 7, "cn0_db_hz": None}]]
    rows = [
        same | {"realtime_ns": START_NS + 10 * index * NS_PER_S, "whole": each is not None, "satellites": each, "ports": ports[index],
                "utc_bound_ns": None if index == 1 else 30 + index}
        for index, each in enumerate(satellites)
    ]  # fmt: skip
    with ready(location) as engine:
        insert(engine, grandmaster_sample, rows)
        yield location


def insert(engine: sqlalchemy.Engine, table: Table, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(sqlalchemy.insert(table), rows)


def test_a_grandmaster_s_values_are_read_on_both_databases(stored: StoreLocation) -> None:
    """An absent value is no point, the sky has the satellites with a level alone, and clients are the sum over the ports that state them."""
    values = grids.grandmaster_values(stored, "gm-a", ["utc_bound_ns"], grid(10, 3))
    levels, newest_ns = grids.satellite_levels(stored, "gm-a", grid(10, 3))

    assert [each["p50"] for each in values["utc_bound_ns"]] == [30, 32]
    assert (levels, newest_ns) == ({5: {0: 40}}, START_NS + 20 * NS_PER_S)
    clients = grids.client_counts(stored, "gm-a", grid(10, 3))
    assert [(each["realtime_ns"], each["p50"]) for each in clients] == [(START_NS, 12)]
    (first, *_) = grids.grandmaster_spans(stored, "gm-a", START_NS, START_NS + 30 * NS_PER_S)
    assert first[2] == ("locked", None, None)


@given(st.integers(0, 10**6), st.integers(1, 10**8), st.integers(2, 5_000))
def test_a_grid_of_racks_has_whole_minutes_or_hours(since_s: int, length_s: int, points: int) -> None:
    """So each roll-up lies in one step, and every moment of the span in one."""
    since_ns, until_ns = since_s * NS_PER_S, (since_s + length_s) * NS_PER_S
    made = grids.rack_grid(since_ns, until_ns, points)
    unit_ns = 60 * NS_PER_S if made.step_ns < 3_600 * NS_PER_S else 3_600 * NS_PER_S

    assert made.begin_ns <= since_ns and made.end_ns >= until_ns
    assert (made.step_ns % unit_ns, made.begin_ns % made.step_ns) == (0, 0)
    assert made.steps <= points


def test_the_largest_values_of_many_sources_are_read_on_both_databases(location: StoreLocation) -> None:
    """Of each step, of the sources and quantities that are asked for alone, and of the spans that the grid is made of."""
    minute_ns = 60 * NS_PER_S
    begin_ns = START_NS // minute_ns * minute_ns
    summed = {"node": "hub", "count": 6, "minimum": 1, "mean": 1, "p50": 1, "p99": 1}
    rows = [
        summed | {"source": source, "quantity": quantity, "span_s": span_s, "realtime_ns": begin_ns + minute * minute_ns, "maximum": value}
        for source, quantity, span_s, minute, value in (
            ("@rack/a", "widest", 60, 0, 5), ("@rack/a", "widest", 60, 1, 9), ("@rack/a", "widest", 60, 2, 7),
            ("@rack/b", "widest", 60, 3, 2), ("@rack/c", "widest", 60, 0, 99), ("@rack/a", "other", 60, 0, 99), ("@rack/a", "widest", 3_600, 0, 99),
        )
    ]  # fmt: skip
    with ready(location) as engine:
        insert(engine, rollup, rows)
        found, newest_ns = grids.largest_values(
            location, "hub", ["@rack/a", "@rack/b"], ["widest"], Grid(begin_ns, 2 * minute_ns, 2)
        )

    assert found == {("@rack/a", "widest"): {0: 9, 1: 7}, ("@rack/b", "widest"): {1: 2}}
    assert newest_ns == begin_ns + 4 * minute_ns
