"""Charts of any span, and events by pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from postgresql import location, ready
from sqlalchemy import Engine

from timesyncd.clocks import NS_PER_S
from timesyncd.store import history
from timesyncd.store import series as store_series
from timesyncd.store.engine import StoreLocation
from timesyncd.store.tables import event, incarnation, phc_sample, rollup

__all__ = ["location"]

MINUTE_NS, HOUR_NS = 60 * NS_PER_S, 3_600 * NS_PER_S
START_NS = 472_222 * HOUR_NS


class Lab:
    def __init__(self, engine: Engine, location: StoreLocation) -> None:
        self._engine, self.location = engine, location
        self.insert(incarnation, [{"node": "n1", "incarnation": 1, "started_realtime_ns": 1}])

    def samples(self, *at_and_offset: tuple[int, int]) -> None:
        same = {
            "source": "nic",
            "clock": "phc:0",
            "as_of_ns": 0,
            "real_minus_boot_ns": 0,
            "width_ns": 1,
            "method": "basic",
        }
        self.insert(
            phc_sample, [same | {"realtime_ns": START_NS + at, "offset_ns": offset} for at, offset in at_and_offset]
        )

    def rolled(self, span_s: int, first: int, last: int, node: str = "n1", source: str = "nic") -> None:
        """Spans first to last - 1 after START_NS; the number of each is its largest value."""
        same = {"node": node, "source": source, "quantity": "offset_ns", "span_s": span_s, "count": 10}
        values = dict.fromkeys(("minimum", "mean", "p50"), -1)
        at = [(START_NS + index * span_s * NS_PER_S, index) for index in range(first, last)]
        rows = [same | values | {"realtime_ns": at_ns, "maximum": index, "p99": index} for at_ns, index in at]
        self.insert(rollup, rows)

    def events(self, *rows: tuple[str, int, int]) -> None:
        same = {"stream": 1, "type": "t", "subject": None, "time": "", "data": {"a": [1]}}
        numbered = [
            (node, {"sequence": number, "event_id": str(number), "realtime_ns": at}) for node, number, at in rows
        ]
        self.insert(event, [same | {"node": node} | numbers for node, numbers in numbered])

    def insert(self, table: Any, rows: list[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            connection.execute(sqlalchemy.insert(table), rows)

    def series(self, since_ns: int, until_ns: int, max_rows: int = 100, node: str = "n1") -> list[tuple[int, int, int]]:
        """Of each record where it begins after START_NS in s, its span in s, and its largest value."""
        found = store_series.series(
            self.location, node, "nic", "offset_ns", START_NS + since_ns, START_NS + until_ns, max_rows
        )
        return [((one["realtime_ns"] - START_NS) // NS_PER_S, one["span_s"], one["maximum"]) for one in found]


@pytest.fixture
def lab(location: StoreLocation) -> Iterator[Lab]:
    with ready(location) as engine:
        yield Lab(engine, location)


def test_few_samples_are_drawn_as_they_are(lab: Lab) -> None:
    """Within the span, oldest first, each a record of its own."""
    lab.samples((0, 5), (NS_PER_S, -7), (2 * NS_PER_S, 9))
    [first, *_] = store_series.series(lab.location, "n1", "nic", "offset_ns", START_NS, START_NS + HOUR_NS)

    assert lab.series(0, 2 * NS_PER_S) == [(0, 0, 5), (1, 0, -7)]
    assert first == {"realtime_ns": START_NS, "span_s": 0, "count": 1} | dict.fromkeys(
        ("minimum", "maximum", "mean", "p50", "p99"), 5
    )


def test_many_samples_are_drawn_by_minutes_without_a_hole_at_the_end(lab: Lab) -> None:
    """What is rolled up comes as it is; the samples after it by minutes, too, as far as they have come."""
    lab.rolled(60, 0, 2)
    lab.samples(*((second * NS_PER_S, second) for second in range(200)))

    assert lab.series(0, HOUR_NS) == [(0, 60, 0), (60, 60, 1), (120, 60, 179), (180, 60, 199)]


def test_a_long_span_is_drawn_by_hours_and_ends_in_minutes(lab: Lab) -> None:
    """Hours where minutes would be too many; after the last whole hour minutes, and after the last whole minute the samples."""
    lab.rolled(3_600, 0, 2)
    lab.rolled(60, 0, 123)
    lab.samples((123 * MINUTE_NS, 7))

    assert lab.series(0, 100 * HOUR_NS) == [
        (0, 3_600, 0), (3_600, 3_600, 1), (7_200, 60, 120), (7_260, 60, 121), (7_320, 60, 122), (7_380, 60, 7),
    ]  # fmt: skip


def test_where_minutes_are_gone_hours_stand(lab: Lab) -> None:
    """Minutes are kept less long: what is older is drawn by hours."""
    lab.rolled(3_600, 0, 3)
    lab.rolled(60, 60, 62)

    assert lab.series(0, 90 * MINUTE_NS) == [(0, 3_600, 0), (3_600, 60, 60), (3_660, 60, 61)]


def test_old_samples_that_are_gone_are_drawn_by_what_is_left(lab: Lab) -> None:
    """A few samples at the end of the span are not all that is known of it."""
    lab.rolled(3_600, 0, 3)
    lab.samples((3 * HOUR_NS, 5))

    assert lab.series(0, 4 * HOUR_NS) == [(0, 3_600, 0), (3_600, 3_600, 1), (7_200, 3_600, 2), (10_800, 60, 5)]


def test_another_nodes_series_is_none_of_our_samples(lab: Lab) -> None:
    """A hub holds its own samples and others' roll-ups of sources that have the same name."""
    lab.samples((0, 5))
    lab.rolled(60, 0, 1, node="n2")

    assert (lab.series(0, HOUR_NS, node="n2"), lab.series(0, HOUR_NS, node="n3")) == ([(0, 60, 0)], [])


def test_years_keep_their_peaks(lab: Lab) -> None:
    """More hours than can be drawn are joined: the extremes of each group are those of its hours."""
    lab.rolled(3_600, 0, 25)
    found = lab.series(0, 25 * HOUR_NS, max_rows=10)

    assert [maximum for _, _, maximum in found] == [1, 4, 7, 10, 13, 16, 19, 22, 24]
    assert found[-1] == (23 * 3_600, 7_200, 24)


def test_joined_hours_are_whole_records(lab: Lab) -> None:
    """Mean and median weigh by count, also where a sum is beyond 64 bits; neither leaves the extremes."""
    most, start_ns = 2**63 - 1, START_NS + 2 * HOUR_NS
    key = {"node": "n1", "source": "nic", "span_s": 3_600}
    names = ("quantity", "count", "minimum", "maximum", "mean", "p50", "p99")
    hours = [(0, "a", 1, -most, 0, 10, 1, 20), (1, "a", 3, -5, most, 20, 5, 30), (2, "a", 2, 5, 6, 5, 5, 6)]
    hours += [(0, "b", 2**40, most, most, most, most, most), (1, "b", 2**40, most, most, most, most, most)]
    at = [{"realtime_ns": start_ns + hour * HOUR_NS} for hour, *_ in hours]
    lab.insert(
        rollup, [key | dict(zip(names, of, strict=True)) | when for (_, *of), when in zip(hours, at, strict=True)]
    )
    span = (start_ns, start_ns + 3 * HOUR_NS, 1)
    found = [store_series.series(lab.location, "n1", "nic", quantity, *span) for quantity in ("a", "b")]

    assert found == [
        [
            {"realtime_ns": start_ns, "span_s": 10_800, "count": 6, "minimum": -most, "maximum": most}
            | {"mean": 13, "p50": 4, "p99": 30}
        ],
        [{"realtime_ns": start_ns, "span_s": 7_200, "count": 2**41} | dict.fromkeys(names[2:], most)],
    ]


@pytest.mark.parametrize("span_ns", [MINUTE_NS, HOUR_NS, 24 * HOUR_NS, 90 * 24 * HOUR_NS])
def test_no_chart_has_many_records(lab: Lab, span_ns: int) -> None:
    """Whatever the span, and however many samples are not rolled up yet."""
    lab.rolled(3_600, 0, 2_160)
    lab.rolled(60, 0, 5_000)
    lab.samples(*((second * NS_PER_S, second) for second in range(5_000)))

    assert 0 < len(store_series.series(lab.location, "n1", "nic", "offset_ns", START_NS, START_NS + span_ns)) <= 4_000


def test_what_is_rolled_up_is_known(lab: Lab) -> None:
    """Every source of a node with its quantities; of the store's own node unless one is named."""
    lab.rolled(60, 0, 2, node="n2")
    lab.rolled(3_600, 0, 2)
    lab.rolled(3_600, 0, 2, source="ptp")

    assert store_series.rollup_sources(lab.location) == {"nic": ["offset_ns"], "ptp": ["offset_ns"]}
    assert store_series.rollup_sources(lab.location, "n2") == {"nic": ["offset_ns"]}
    assert store_series.rollup_sources(lab.location, "n3") == {}


def test_events_come_newest_first_and_by_pages(lab: Lab) -> None:
    """A page begins after the last of the one before, also among events of one moment; each is whole."""
    lab.events(("a", 1, 10), ("b", 1, 20), ("a", 2, 20), ("b", 2, 20), ("a", 3, 30), ("a", 4, 40))
    pages: list[list[tuple[str, int]]] = []
    after = None
    while page := history.cloud_events(lab.location, None, 10, 40, after, limit=2):
        after = (page[-1]["realtime_ns"], page[-1]["sequence"], page[-1]["node"])
        pages.append([(row["node"], row["sequence"]) for row in page])
    of_b = history.cloud_events(lab.location, "b", 0, 100)

    assert pages == [[("a", 3), ("b", 2)], [("a", 2), ("b", 1)], [("a", 1)]]
    assert [(row["sequence"], row["data"]) for row in of_b] == [(2, {"a": [1]}), (1, {"a": [1]})]
