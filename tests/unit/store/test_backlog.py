"""The backlog: bounded, and honest about what it lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.store import backlog, tables
from timesyncd.store.backlog import Backlog, Gap, GapReason, RowBatch
from timesyncd.store.rows import RowEntry, SeriesEntry


def entry(second: int, source: str = "ptp") -> RowEntry:
    return RowEntry(tables.gap, {}, source, realtime_ns=second, queued_ns=second * NS_PER_S)


def series(second: int, *points: int) -> SeriesEntry:
    at = tuple((point, 0) for point in points)
    return SeriesEntry(tables.time_error, {}, "gm", realtime_ns=second, queued_ns=second * NS_PER_S, points=at)


def filled(*entries: RowEntry) -> Backlog:
    waiting = Backlog()
    for one in entries:
        waiting.put(one)
    return waiting


def test_what_is_60_s_old_still_waits() -> None:
    """Up to 60 s behind, nothing is dropped."""
    waiting = filled(entry(0), entry(60))

    assert (len(waiting), waiting.dropped, waiting.take(9).gaps) == (2, 0, [])


def test_older_than_60_s_is_a_gap_a_source() -> None:
    """More than 60 s behind, the oldest rows go, counted, and each source's loss is one gap from first to last."""
    waiting = filled(entry(0), entry(1, "gm"), entry(2), entry(50), entry(63))
    batch = waiting.take(9)

    assert waiting.dropped == 3
    assert batch.gaps == [Gap("ptp", GapReason.STORE_BEHIND, 0, 2, 2), Gap("gm", GapReason.STORE_BEHIND, 1, 1, 1)]
    assert [one.realtime_ns for one in batch.entries] == [50, 63]


def test_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast they come, no more than the limit wait."""
    monkeypatch.setattr(backlog, "LIMIT_ENTRIES", 3)
    waiting = filled(*(entry(0) for _ in range(10)))

    assert (len(waiting), waiting.dropped) == (3, 7)


def test_a_batch_is_counted_in_rows() -> None:
    """An entry of many rows fills a batch as so many; it is never divided, and each of its rows is stored or lost."""
    waiting = filled(series(0, 1, 2, 3), entry(1), entry(2))
    batch = waiting.take(2)
    waiting.mark_stored(batch)
    lost = filled(series(0, 1, 2, 3), entry(100))

    assert ([len(one) for one in batch.entries], waiting.stored, len(waiting)) == ([3], 3, 2)
    assert (lost.dropped, lost.take(9).gaps) == (3, [Gap("gm", GapReason.STORE_BEHIND, 0, 0, 3)])


def test_a_batch_given_back_waits_as_the_oldest() -> None:
    """A batch that could not be stored comes again, in its order, before what came later."""
    waiting = filled(entry(1), entry(2), entry(3))
    waiting.requeue(waiting.take(2))

    assert [one.realtime_ns for one in waiting.take(9).entries] == [1, 2, 3]
    assert waiting.stored == 0


def test_a_batch_given_back_late_is_too_old() -> None:
    """What became more than 60 s old while it was being tried is lost like the rest, and in the same gap."""
    waiting = filled(entry(0))
    batch = waiting.take(9)
    for second in (1, 70):
        waiting.put(entry(second))
    waiting.requeue(batch)

    assert waiting.dropped == 2
    assert waiting.take(9) == RowBatch([entry(70)], [Gap("ptp", GapReason.STORE_BEHIND, 0, 1, 2)])


def test_gaps_given_back_grow() -> None:
    """A gap that could not be recorded is joined with what was lost meanwhile."""
    waiting = filled(entry(0), entry(100))
    batch = waiting.take(9)
    waiting.requeue(batch)
    waiting.put(entry(200))

    assert waiting.take(9).gaps == [Gap("ptp", GapReason.STORE_BEHIND, 0, 100, 2)]


def test_the_oldest_counts_until_it_is_stored() -> None:
    """A batch under way is not stored yet, so the store is as far behind as its oldest row."""
    waiting = filled(entry(7), entry(8))
    batch = waiting.take(9)
    under_way = waiting.oldest_ns()
    waiting.mark_stored(batch)

    assert (under_way, waiting.oldest_ns(), waiting.stored) == (7 * NS_PER_S, None, 2)


def test_an_unstorable_entry_is_dropped_with_a_gap() -> None:
    """A number beyond the columns costs its batch and no other, and its gap can be stored."""
    waiting = filled(entry(1), replace(entry(2), realtime_ns=2**70))
    waiting.discard(waiting.take(9))
    waiting.put(entry(3))

    assert waiting.dropped == 2
    assert waiting.take(9) == RowBatch([entry(3)], [Gap("ptp", GapReason.UNSTORABLE_VALUE, 1, 2**63 - 1, 2)])


def test_a_gap_of_an_unstorable_batch_waits_on() -> None:
    """A batch that is given up takes no record of an earlier loss along."""
    waiting = filled(entry(0), entry(100))
    waiting.discard(waiting.take(9))

    assert waiting.take(9).gaps == [
        Gap("ptp", GapReason.UNSTORABLE_VALUE, 100, 100, 1), Gap("ptp", GapReason.STORE_BEHIND, 0, 0, 1),
    ]  # fmt: skip
