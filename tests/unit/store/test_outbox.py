"""What waits for the hubs: numbered without a hole, cut where it is stored, trimmed from below."""

from __future__ import annotations

import pytest
from history_rows import MINUTE_NS, START_NS, STREAM, empty_store, engine, event, rollup
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select, update

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import CloudEvent, HistoryRow
from timesyncd.store import outbox
from timesyncd.store.archive import MAX_DATA_BYTES, check, storable
from timesyncd.store.outbox import OutboxStream
from timesyncd.store.tables import outbox as table

__all__ = ["empty_store", "engine"]


@pytest.fixture
def store(empty_store: Connection) -> Connection:
    """An outbox whose stream is open."""
    outbox.open_stream(empty_store, STREAM * NS_PER_S + 5)
    return empty_store


def fill(store: Connection, rows: int) -> list[int]:
    """A roll-up a minute."""
    return outbox.append(store, [(START_NS + minute * MINUTE_NS, rollup(minute)) for minute in range(rows)])


def held(store: Connection) -> list[int]:
    return list(store.scalars(select(table.c.sequence).order_by(table.c.sequence)))


def test_a_stream_begins_once(empty_store: Connection) -> None:
    """It is called after the second in which it was opened first, whatever the clock states later."""
    first = outbox.open_stream(empty_store, 7 * NS_PER_S + 999)
    outbox.append(empty_store, [(START_NS, event())])
    later = outbox.open_stream(empty_store, 3 * NS_PER_S)

    assert (first, later) == (OutboxStream(7, 1), OutboxStream(7, 2))


def test_rows_are_numbered_without_a_hole(store: Connection) -> None:
    """From 1 on, over several appends, roll-ups and events alike."""
    first = outbox.append(store, [(START_NS, rollup()), (START_NS, event())])
    none = outbox.append(store, [])
    second = outbox.append(store, [(START_NS, event(1))])

    assert (first, none, second) == ([1, 2], [], [3])


def test_a_page_has_what_was_appended(store: Connection) -> None:
    """The same roll-up and the same event, in their order, with the bounds of what is held."""
    outbox.append(store, [(START_NS, rollup(4)), (START_NS + 1, event(9, subject=None))])
    page = outbox.page(store, 0, 10)

    assert (page.stream, page.floor, page.next_sequence) == (STREAM, 1, 3)
    assert [(row.sequence, row.realtime_ns, row.rollup, row.event) for row in page.rows] == [
        (1, START_NS, rollup(4), None),
        (2, START_NS + 1, None, event(9, subject=None)),
    ]


def test_a_page_goes_on_after_a_row(store: Connection) -> None:
    """At most `limit` rows, the lowest of those above."""
    fill(store, 10)

    assert [row.sequence for row in outbox.page(store, 3, 4).rows] == [4, 5, 6, 7]


def test_numbers_outlive_what_the_outbox_held(store: Connection) -> None:
    """The floor of an empty outbox is the number that comes next, and it comes next."""
    fill(store, 3)
    outbox.cut(store, 3)
    empty = outbox.page(store, 0, 10)

    assert (empty.floor, empty.next_sequence, empty.rows) == (4, 4, [])
    assert fill(store, 1) == [4]


def test_a_cut_takes_what_is_stored_elsewhere(store: Connection) -> None:
    """Everything up to the row, and nothing above it."""
    fill(store, 5)
    outbox.cut(store, 3)

    assert held(store) == [4, 5]
    assert outbox.page(store, 0, 10).floor == 4


@pytest.mark.parametrize(
    ("before_minute", "max_rows", "kept"),
    [(0, 100, 10), (4, 100, 6), (100, 100, 0), (0, 7, 7), (4, 3, 3), (8, 7, 2), (0, 10, 10)],
)
def test_the_oldest_are_lost(store: Connection, before_minute: int, max_rows: int, kept: int) -> None:
    """What is too old and what is too much goes from below, and is counted exactly."""
    fill(store, 10)
    lost = outbox.trim(store, START_NS + before_minute * MINUTE_NS, max_rows)

    assert (lost, held(store)) == (10 - kept, list(range(11 - kept, 11)))


def test_trimming_makes_no_hole(store: Connection) -> None:
    """An old row stays while a younger one is below it: a grandmaster may report late."""
    outbox.append(store, [(START_NS, event(0)), (1, event(1)), (START_NS, event(2))])

    assert outbox.trim(store, START_NS, 100) == 0
    assert held(store) == [1, 2, 3]


def test_what_was_cut_is_not_lost(store: Connection) -> None:
    """Only rows that were still there count."""
    fill(store, 10)
    outbox.cut(store, 6)

    assert outbox.trim(store, START_NS + 100 * MINUTE_NS, 100) == 4


def test_an_event_that_no_hub_could_take_goes_without_its_data(store: Connection) -> None:
    """It would hold up all that comes after it; that it happened is kept."""
    outbox.append(store, [(START_NS, event(1, data={"text": "x" * MAX_DATA_BYTES}))])
    (row,) = outbox.page(store, 0, 1).rows

    assert row.event is not None
    assert (row.event.id, row.event.data) == ("1-1", {"omitted_bytes": MAX_DATA_BYTES + 12})


def test_a_stream_must_be_open(empty_store: Connection) -> None:
    """Nothing is appended or read before: that is stated, and no number is made up."""
    with pytest.raises(StoreError, match="no stream is open"):
        outbox.append(empty_store, [(START_NS, event())])
    with pytest.raises(StoreError, match="no stream is open"):
        outbox.page(empty_store, 0, 1)


def spoil(store: Connection, *numbers: int) -> None:
    store.execute(update(table).where(table.c.sequence.in_(numbers)).values(row={"sequence": numbers[0]}))


def test_what_cannot_be_read_is_left_out(store: Connection) -> None:
    """The others are read, and its number is reported."""
    fill(store, 5)
    spoil(store, 3)
    page = outbox.page(store, 0, 10)

    assert (page.floor, page.next_sequence, page.unreadable) == (1, 6, [3])
    assert [row.sequence for row in page.rows] == [1, 2, 4, 5]


@pytest.mark.parametrize(("after", "limit"), [(1, 1), (1, 9), (2, 1), (3, 1)])
def test_the_floor_passes_over_what_cannot_be_read(store: Connection, after: int, limit: int) -> None:
    """No hub waits for it: the floor is the lowest row that can be had, wherever the page begins."""
    fill(store, 5)
    outbox.cut(store, 1)
    spoil(store, 2, 3)
    page = outbox.page(store, after, limit)

    assert (page.floor, page.rows[0].sequence) == (4, 4)


def test_an_outbox_of_which_nothing_can_be_read_is_empty(store: Connection) -> None:
    """However much it is; what comes next is sent."""
    fill(store, 250)
    spoil(store, *range(1, 251))
    page = outbox.page(store, 0, 10)

    assert (page.floor, page.next_sequence, page.rows) == (251, 251, [])


def test_what_is_no_json_cannot_be_read(store: Connection) -> None:
    """It raises nothing to the caller; a server cannot store it."""
    fill(store, 2)
    if store.dialect.name == "sqlite":
        store.exec_driver_sql("UPDATE outbox SET row = '{\"sequence\":' WHERE sequence = 2")

        assert outbox.page(store, 0, 5).unreadable == [2]


EVENTS = st.builds(
    event,
    number=st.just(1),
    id=st.text(),
    type=st.text(),
    subject=st.none() | st.text(max_size=2_000),
    time=st.text(),
    data=st.dictionaries(st.text(), st.recursive(st.none() | st.floats() | st.text(), st.lists), max_size=5),
)


@given(EVENTS, st.integers(-(2**63), 2**63 - 1))
def test_what_a_node_appends_a_hub_takes(what: CloudEvent, realtime_ns: int) -> None:
    """Whatever an event states: one that no hub takes would hold up all that comes after it."""
    shaped = storable(HistoryRow(sequence=1, realtime_ns=realtime_ns, event=what))
    check(shaped)

    assert HistoryRow.model_validate_json(shaped.model_dump_json()) == shaped


@pytest.mark.parametrize("text", ["x" * 5_000, "a\0b", "a\ud800b", ""])
def test_a_strange_text_is_made_fit(store: Connection, text: str) -> None:
    """A grandmaster may call its alarm anything: it is cut and kept."""
    outbox.append(store, [(START_NS, event(1, subject=text, data={"text": text}))])
    (row,) = outbox.page(store, 0, 1).rows
    check(row)

    assert row.event is not None and row.event.id == "1-1"


def test_what_is_fit_stays_as_it_is() -> None:
    """Of nearly all rows nothing is taken."""
    rows = [
        HistoryRow(sequence=1, realtime_ns=1, event=event(1)),
        HistoryRow(sequence=2, realtime_ns=1, rollup=rollup()),
    ]

    assert [storable(row) for row in rows] == rows
