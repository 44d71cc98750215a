"""Raw samples -> minutes and hours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from postgresql import location, ready, rows_of
from samples import HEALTHY
from sqlalchemy import Engine

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import Rollup
from timesyncd.sample import KernelSample
from timesyncd.store.backlog import RowBatch
from timesyncd.store.engine import StoreLocation
from timesyncd.store.rollups import GRACE_NS, RollupBuilder, rollup_values, summary
from timesyncd.store.rows import ClockEntry, kernel_entry
from timesyncd.store.session import insert_batch, insert_values
from timesyncd.store.tables import rollup

__all__ = ["location"]

HOUR_NS, MINUTE_NS = 3_600 * NS_PER_S, 60 * NS_PER_S
#: A whole hour.
START_NS = 472_222 * HOUR_NS

BOUND = ErrorBound(
    as_of_ns=0, real_minus_boot_ns=0, parent_hard=Bound(5), gm_hard=Bound(70), utc_hard=unbounded(Reason.NOT_COMPUTED),
    gm_status=ClockStatus.SYNCHRONIZED, utc_status=ClockStatus.UNKNOWN,
)  # fmt: skip


class Lab:
    """A node's store, and what it makes of the samples that it is given."""

    def __init__(self, engine: Engine, location: StoreLocation) -> None:
        self.engine, self.location = engine, location
        self.rollups = RollupBuilder("n1")

    def put(self, at_ns: int, offset_ns: int, bound: ErrorBound | None = None) -> None:
        sample = replace(HEALTHY, as_of_ns=at_ns, real_minus_boot_ns=0, offset_ns=offset_ns)
        self.write(ClockEntry(sample, bound, 0))

    def write(self, *entries: object) -> None:
        with self.engine.begin() as connection:
            insert_batch(connection, RowBatch(list(entries), []))  # type: ignore[arg-type]

    def made(self, now_ns: int) -> list[Rollup]:
        """All that is due, stored."""
        every: list[Rollup] = []
        while self.rollups.are_due(now_ns):
            with self.engine.begin() as connection:
                for each in self.rollups.step(connection, now_ns) or ():
                    insert_values(connection, rollup, rollup_values("n1", each))
                    every.append(each)
        return every

    def minutes(self, now_ns: int) -> list[int]:
        """Which minutes after START_NS come of it."""
        return [(each.begins_realtime_ns - START_NS) // MINUTE_NS for each in self.made(now_ns) if each.span_s == 60]


@pytest.fixture
def lab(location: StoreLocation) -> Iterator[Lab]:
    with ready(location) as engine:
        yield Lab(engine, location)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1))
@example(list(range(100)))
def test_a_summary_is_exact(values: list[int]) -> None:
    """Extremes, the lower median, the nearest rank of 99 in 100, and a mean rounded to the nearest, of any values."""
    of = summary(values)
    at_most = [sum(value <= limit for value in values) for limit in (of.p50, of.p99)]
    less = [sum(value < limit for value in values) for limit in (of.p50, of.p99)]

    assert (of.count, of.minimum, of.maximum) == (len(values), min(values), max(values))
    assert of.p50 == statistics.median_low(values)
    assert (at_most[1] * 100 >= 99 * of.count, less[1] * 100 < 99 * of.count) == (True, True)
    assert abs(2 * (of.mean * of.count - sum(values))) <= of.count


def test_a_minute_that_is_over_is_rolled_up(lab: Lab) -> None:
    """Once the minute and its grace are over, and of every quantity what the samples had of it; a bound that none had is left out."""
    for second, offset_ns in enumerate((-5, 10, 7)):
        lab.put(START_NS + second * NS_PER_S, offset_ns, BOUND)
    early = lab.made(START_NS + MINUTE_NS + GRACE_NS - 1)
    [made] = lab.made(START_NS + MINUTE_NS + GRACE_NS)

    assert early == []
    assert (made.source, made.span_s, made.begins_realtime_ns) == ("ptp", 60, START_NS)
    assert sorted(made.quantities) == ["frequency_ppb", "gm_bound_ns", "offset_ns", "path_delay_ns"]
    assert made.quantities["offset_ns"].model_dump() == {
        "count": 3, "minimum": -5, "maximum": 10, "mean": 4, "p50": 7, "p99": 10,
    }  # fmt: skip
    assert rows_of(lab.location, "SELECT node, quantity, span_s, realtime_ns, count, maximum FROM rollup ORDER BY 2")[1] == (
        "n1", "gm_bound_ns", 60, START_NS, 3, 70,
    )  # fmt: skip


def test_an_hour_is_of_its_samples_and_not_of_its_minutes(lab: Lab) -> None:
    """Its median and its 99 in 100 are those of all its samples."""
    for index in range(120):
        lab.put(START_NS + index * MINUTE_NS // 2, index if index % 2 else 1_000)
    made = [each for each in lab.made(START_NS + HOUR_NS + GRACE_NS) if each.span_s == 3_600]

    assert [each.quantities["offset_ns"].count for each in made] == [120]
    assert (made[0].quantities["offset_ns"].p50, made[0].quantities["offset_ns"].p99) == (119, 1_000)


def test_minutes_without_samples_are_left_out(lab: Lab) -> None:
    """What was not measured has no row, however long."""
    for minute in (0, 1, 500):
        lab.put(START_NS + minute * MINUTE_NS, 1)

    assert lab.minutes(START_NS + 501 * MINUTE_NS + GRACE_NS) == [0, 1, 500]


def test_a_restart_goes_on_where_it_was(lab: Lab) -> None:
    """What is made is known from the table: nothing is made twice, and what came meanwhile is caught up on."""
    lab.put(START_NS, 1)
    before = lab.minutes(START_NS + MINUTE_NS + GRACE_NS)
    for minute in (1, 2):
        lab.put(START_NS + minute * MINUTE_NS, 1)
    lab.rollups = RollupBuilder("n1")

    assert (before, lab.minutes(START_NS + 3 * MINUTE_NS + GRACE_NS)) == ([0], [1, 2])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_steps_back_changes_nothing(lab: Lab, restarted: bool) -> None:
    """A minute that is rolled up is not done again by the samples of its second passing; the first new one is."""
    for minute in range(5):
        lab.put(START_NS + minute * MINUTE_NS, 1)
    lab.minutes(START_NS + 5 * MINUTE_NS + GRACE_NS)
    if restarted:
        lab.rollups = RollupBuilder("n1")
    found = []
    for minute in range(1, 6):
        lab.put(START_NS + minute * MINUTE_NS + 7, 99)
        found += lab.minutes(START_NS + (minute + 1) * MINUTE_NS + GRACE_NS)
    largest = "SELECT count(*), maximum FROM rollup WHERE quantity = 'offset_ns' AND span_s = 60 GROUP BY 2 ORDER BY 2"

    assert found == [5]
    assert rows_of(lab.location, largest) == [(5, 1), (1, 99)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_was_far_ahead_stops_nothing(lab: Lab, restarted: bool) -> None:
    """After an hour of next year's date the minutes of today are rolled up all the same, the one of the step among them."""
    year_ns = 365 * 24 * HOUR_NS
    lab.put(START_NS, 1)
    lab.put(START_NS + year_ns, 2)
    ahead = lab.minutes(START_NS + year_ns + MINUTE_NS + GRACE_NS)
    if restarted:
        lab.rollups = RollupBuilder("n1")
    lab.put(START_NS + 4 * MINUTE_NS, 3)

    assert ahead == [0, year_ns // MINUTE_NS]
    assert lab.minutes(START_NS + 5 * MINUTE_NS + GRACE_NS) == [4]


def test_every_kind_of_source_has_what_it_measures(lab: Lab) -> None:
    """A kernel's frequency is rolled up beside a clock's offset."""
    lab.put(START_NS, 1)
    lab.write(kernel_entry(KernelSample("kernel", START_NS, -7, 2, 3, True, "none", 37), 0, 1))
    made = {each.source: sorted(each.quantities) for each in lab.made(START_NS + MINUTE_NS + GRACE_NS)}

    assert made == {"ptp": ["frequency_ppb", "offset_ns", "path_delay_ns"], "kernel": ["frequency_ppb"]}


def test_a_step_makes_one(lab: Lab) -> None:
    """However much is to be caught up on, between two roll-ups the backlog can have its turn."""
    for minute in range(5):
        lab.put(START_NS + minute * MINUTE_NS, 1)
    with lab.engine.begin() as connection:
        steps = [lab.rollups.step(connection, START_NS + HOUR_NS) for _ in range(3)]

    assert [len(made or ()) for made in steps] == [1, 1, 1]
