"""What a hub keeps of its nodes: every row once, in order; what is lost is counted; poison changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from history_rows import START_NS, STREAM, SUMMARY, batch, empty_store, engine, event, rollup, row, rows_of
from sqlalchemy import Connection, select

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.mqtt.topics import HISTORY, decode, encode
from timesyncd.store import archive, tables
from timesyncd.store.archive import MAX_AHEAD_S, MAX_DATA_BYTES, MAX_ROWS_PER_S, ArchiveProgress

__all__ = ["empty_store", "engine"]

#: An hour after the nodes' streams began.
NOW_NS = (STREAM + 3_600) * NS_PER_S
MOST_SEQUENCE = (3_600 + MAX_AHEAD_S) * MAX_ROWS_PER_S


@pytest.fixture
def store(empty_store: Connection) -> Connection:
    """A hub's, which knows no node yet."""
    return empty_store


def take(store: Connection, *batches: HistoryBatch) -> ArchiveProgress:
    """One after the other, as a hub named "hub" does."""
    for each in batches:
        known = archive.store(store, each, archive.progress(store).get(each.node), "hub", NOW_NS)
    return known


def stored(store: Connection) -> list[int]:
    """The numbers of the rows that are there, each as often as it is there."""
    events = store.scalars(select(tables.event.c.sequence))
    minutes = store.scalars(select(tables.rollup.c.realtime_ns).where(tables.rollup.c.quantity == "offset_ns"))
    return sorted([*events, *((begins - START_NS) // (60 * 10**9) for begins in minutes)])


def test_rows_are_stored_as_they_were_sent(store: Connection) -> None:
    """A quantity of a roll-up is a row of its table, an event one of its own, both under their node's name."""
    take(store, batch(row(1, rollup(1)), row(2, event(7, subject=None))))
    values = {"node": "n1", "source": "ptp", "span_s": 60, "realtime_ns": rollup(1).begins_realtime_ns}

    assert [each._asdict() for each in store.execute(select(tables.rollup))] == [
        values | {"quantity": quantity} | SUMMARY.model_dump() for quantity in ("offset_ns", "path_delay_ns")
    ]
    assert [each._asdict() for each in store.execute(select(tables.event))] == [
        {"node": "n1", "stream": STREAM, "sequence": 2, "realtime_ns": row(2).realtime_ns, "event_id": "1-7"}
        | {"type": "timesyncd.finding", "subject": None, "time": "2026-03-01T12:00:00Z", "data": {"number": 7}}
    ]


def test_what_follows_goes_on(store: Connection) -> None:
    """Two batches, one progress; it is what the store states too."""
    now = take(store, batch(*rows_of(1, 3)), batch(*rows_of(4, 6)))

    assert now == ArchiveProgress("n1", STREAM, 6, 0)
    assert archive.progress(store) == {"n1": now}
    assert stored(store) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("first", "last"), [(1, 4), (2, 3), (4, 4), (3, 6), (1, 6)])
def test_a_repeated_row_is_stored_once(store: Connection, first: int, last: int) -> None:
    """Duplicates change nothing, and what overlaps adds what is news in it."""
    now = take(store, batch(*rows_of(1, 4)), batch(*rows_of(first, last)))

    assert now == ArchiveProgress("n1", STREAM, max(4, last), 0)
    assert stored(store) == list(range(1, max(4, last) + 1))


def test_rows_after_a_hole_wait(store: Connection) -> None:
    """They are left, and come again when what is missing has come."""
    beyond = batch(*rows_of(4, 5))

    assert take(store, batch(*rows_of(1, 2)), beyond) == ArchiveProgress("n1", STREAM, 2, 0)
    assert stored(store) == [1, 2]
    assert take(store, batch(row(3)), beyond) == ArchiveProgress("n1", STREAM, 5, 0)


def test_the_first_word_of_a_node_may_come_after_a_hole(store: Connection) -> None:
    """Nothing of it is stored while the node still has what comes before."""
    assert take(store, batch(*rows_of(4, 5))) == ArchiveProgress("n1", STREAM, 0, 0)
    assert stored(store) == []


def test_what_a_node_no_longer_has_is_lost_and_counted(store: Connection) -> None:
    """Rows below the floor that never came; what follows on the floor is stored."""
    now = take(store, batch(*rows_of(1, 2)), batch(*rows_of(6, 7), floor=6), batch(*rows_of(10, 10), floor=10))

    assert now == ArchiveProgress("n1", STREAM, 10, lost=5)
    assert stored(store) == [1, 2, 6, 7, 10]


def test_a_floor_below_what_is_stored_loses_nothing(store: Connection) -> None:
    """It only states that the node has cut."""
    assert take(store, batch(*rows_of(1, 5)), batch(*rows_of(4, 6), floor=4)) == ArchiveProgress("n1", STREAM, 6, 0)


def test_a_floor_may_rise_into_a_hole(store: Connection) -> None:
    """What is lost counts at once, and the rest of the hole is waited for."""
    assert take(store, batch(row(1)), batch(row(9), floor=5)) == ArchiveProgress("n1", STREAM, 4, lost=3)
    assert stored(store) == [1]


def test_a_newer_stream_starts_again(store: Connection) -> None:
    """The node's store was created again: its numbers begin at 1 again, and what was stored of the old stays."""
    newer = batch(row(1, event(50)), row(2, event(51)), stream=STREAM + 9)
    now = take(store, batch(row(1, event(1)), row(2, event(2)), row(3, event(3))), newer)

    assert now == ArchiveProgress("n1", STREAM + 9, 2, 0)
    assert stored(store) == [1, 1, 2, 2, 3]


def test_an_older_stream_changes_nothing(store: Connection) -> None:
    """A message that was long under way does not put the hub back."""
    now = take(store, batch(*rows_of(1, 2)))

    assert take(store, batch(*rows_of(1, 9), stream=STREAM - 1)) == now
    assert stored(store) == [1, 2]


def test_a_rollup_that_is_there_is_not_doubled(store: Connection) -> None:
    """A node that began a new stream may send a minute again: the first word on it stays."""
    other = SUMMARY.model_copy(update={"count": 1})
    take(store, batch(row(1, rollup(1))), batch(row(1, rollup(1, summary=other)), stream=STREAM + 1))

    assert list(store.scalars(select(tables.rollup.c.count))) == [60, 60]


def test_nodes_do_not_touch_each_other(store: Connection) -> None:
    """Each has its own progress and rows."""
    take(store, batch(*rows_of(1, 3)), batch(*rows_of(1, 2), node="n2"))

    assert {node: each.stored_up_to for node, each in archive.progress(store).items()} == {"n1": 3, "n2": 2}
    assert stored(store) == [1, 1, 2, 2, 3]


def nasty(**changes: object) -> HistoryBatch:
    return batch(*rows_of(4, 6)).model_copy(update=changes)


def with_row(what: Any) -> HistoryBatch:
    return batch(row(4), row(5, what), row(6))


POISON = {
    "out of order": nasty(rows=[row(4), row(6), row(5)]),
    "twice the same": nasty(rows=[row(4), row(4)]),
    "a hole inside": nasty(rows=[row(4), row(6)]),
    "below its own floor": nasty(floor=5),
    "a number that no node reaches": batch(row(4).model_copy(update={"sequence": MOST_SEQUENCE + 1}), floor=4),
    "a floor that no node reaches": batch(
        row(4).model_copy(update={"sequence": MOST_SEQUENCE + 1}), floor=MOST_SEQUENCE + 1
    ),
    "a stream of the future": nasty(stream=STREAM + 3_600 + MAX_AHEAD_S + 1),
    "a future that is all its own": nasty(stream=2 * STREAM, incarnation=2 * STREAM),
    "this hub's own name": nasty(node="hub"),
    "before 1970": nasty(rows=[row(4).model_copy(update={"realtime_ns": -1})]),
    "begins inside a minute": with_row(rollup(5, offset_ns=1)),
    "without quantities": with_row(rollup(5).model_copy(update={"quantities": {}})),
    "with very many quantities": with_row(
        rollup(5).model_copy(update={"quantities": {f"q{n}": SUMMARY for n in range(1_000)}})
    ),
    "a source without a name": with_row(rollup(5, source="")),
    "a source with a very long name": with_row(rollup(5, source="x" * 3_000)),
    "a source with a NUL": with_row(rollup(5, source="a\0b")),
    "a median above all values": with_row(rollup(5, summary=SUMMARY.model_copy(update={"p50": 1_000}))),
    "a mean below all values": with_row(rollup(5, summary=SUMMARY.model_copy(update={"mean": -1_000}))),
    "an event with a NUL": with_row(event(5, type="a\0b")),
    "an event with data that are no JSON": with_row(event(5, data={"x": float("nan")})),
    "an event with very many data": with_row(event(5, data={"x": "y" * MAX_DATA_BYTES})),
}


@pytest.mark.parametrize("poisoned", POISON.values(), ids=POISON)
def test_poison_changes_nothing(store: Connection, poisoned: HistoryBatch) -> None:
    """One error and nothing of the batch; what the node sends next is stored as if it had not been."""
    before = take(store, batch(*rows_of(1, 3)))
    with pytest.raises(Malformed, match=f"^history of {poisoned.node}"):
        archive.store(store, poisoned, before, "hub", NOW_NS)

    assert archive.progress(store) == {"n1": before}
    assert stored(store) == [1, 2, 3]
    assert take(store, batch(*rows_of(4, 6))) == replace(before, stored_up_to=6)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"span_s":60', '"span_s":61'),
        ('"sequence":4,"realtime', '"sequence":9223372036854775808,"realtime'),
        ('"sequence":4,"realtime', '"sequence":0,"realtime'),
        ('"count":60', '"count":0'),
        ('"mean":3', '"mean":1e300'),
        ('"floor":1', '"floor":-1'),
    ],
)
def test_poison_is_no_message(was: str, becomes: str) -> None:
    """What is no such message at all does not come as far as the store."""
    payload = encode(batch(*rows_of(4, 5)))
    assert was.encode() in payload

    with pytest.raises(Malformed, match="not a history message"):
        decode(HISTORY, "n1", payload.replace(was.encode(), becomes.encode()))


def test_a_stream_may_be_a_little_ahead(store: Connection) -> None:
    """Clocks differ; and a number as high as a busy node's is no error."""
    assert take(store, batch(row(1), stream=NOW_NS // NS_PER_S + MAX_AHEAD_S - 60)).stored_up_to == 1
    assert take(store, batch(row(MOST_SEQUENCE), floor=MOST_SEQUENCE, node="n2")).lost == MOST_SEQUENCE - 1


def test_a_stream_from_the_future_is_not_waited_for(store: Connection) -> None:
    """It was accepted while this hub's clock was ahead too; now the node's rows are new again."""
    ahead = batch(*rows_of(1, 9), stream=2 * STREAM)
    then = archive.store(store, ahead, None, "hub", (2 * STREAM + 1) * NS_PER_S)

    assert then.stored_up_to == 9
    assert take(store, batch(row(1, event(70)))) == ArchiveProgress("n1", STREAM, 1, 0)
