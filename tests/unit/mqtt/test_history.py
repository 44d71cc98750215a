"""The transfer of history to the hubs: rows sent, repeated and deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from history_rows import STREAM, event, row, rows_of

from timesyncd.clocks import NS_PER_S
from timesyncd.config import MqttSettings
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.messages.node import Message
from timesyncd.mqtt import history as mqtt_history
from timesyncd.mqtt.history import HistoryConfirmer, HistoryPacing, HistorySender, HistoryWindow, RowRequest
from timesyncd.mqtt.topics import MAX_MESSAGE_BYTES, encode
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.outbox import OutboxPage

AGAIN_NS = 30 * NS_PER_S
#: Without random delay and rate limit.
PROMPT = HistoryPacing(spread_ns=0, rows_per_s=10**12)


class Outbox:
    """`rows` rows, numbered from `floor`."""

    def __init__(self, rows: int, floor: int = 1, stream: int = STREAM) -> None:
        self.stream = stream
        self.floor = floor
        self.rows = rows_of(floor, floor + rows - 1)
        self.problem = False
        self.tries = 0
        self.unreadable: list[int] = []

    def page(self, ask: RowRequest) -> OutboxPage:
        rows = [row for row in self.rows if row.sequence not in self.unreadable]
        above = [row for row in rows if row.sequence > ask.after][: ask.limit]
        floor = rows[0].sequence if rows else self.floor
        return OutboxPage(self.stream, floor, self.floor + len(self.rows), above, self.unreadable)

    def outbox_page(self, after: int, limit: int) -> OutboxPage:
        self.tries += 1
        if self.problem:
            raise StoreError("disk")
        return self.page(RowRequest(after, limit))

    def cut_outbox(self, stream: int, up_to: int) -> None:
        assert stream == self.stream
        self.rows = [row for row in self.rows if row.sequence > up_to]
        self.floor = up_to + 1


def window(*hubs: str, is_hub: bool = False, pace: HistoryPacing = PROMPT) -> HistoryWindow:
    return HistoryWindow("n1", hubs, is_hub, pace)


def send(of: HistoryWindow, source: Outbox, now_ns: int = 0, tries: int = 1_000) -> list[int]:
    """What goes out now, in as many batches as the window wants."""
    sent: list[int] = []
    while tries and (ask := of.next_request(now_ns)):
        sent += [row.sequence for row in of.batch(ask, source.page(ask), now_ns)]
        tries -= 1
    return sent


def stored(up_to: int, hub: str = "hub-a", stream: int = STREAM, of: str = "n1") -> Stored:
    return Stored(node=hub, incarnation=1, sequence=1, of=of, stream=stream, stored_up_to=up_to, lost=0)


def grown(*hubs: str, rows: int = 2_000, pace: HistoryPacing = PROMPT) -> tuple[HistoryWindow, Outbox, int]:
    """
    A window whose hubs have confirmed all that was sent so often that it is as wide as it gets; and up to where they
    have.
    """
    of, source, up_to = window(*hubs, pace=pace), Outbox(rows), 0
    for _ in range(10):
        up_to = max(send(of, source, tries=1), default=up_to)
        for hub in hubs or ("hub-a",):
            of.confirmed(stored(up_to, hub), 0)
    return of, source, up_to


def test_a_hub_first_gets_one_row() -> None:
    """Whether it is there; then twice as many with each confirmation."""
    of, source = window(), Outbox(100)
    first, nothing = send(of, source), send(of, source)
    of.confirmed(stored(1), 0)

    assert (first, nothing, send(of, source)) == ([1], [], [2, 3])


def test_so_many_are_unconfirmed_at_most() -> None:
    """However many wait, in whatever steps they go out."""
    of, source, up_to = grown()
    sent = send(of, source)

    assert (sent[0], sent[-1]) == (up_to + 1, up_to + PROMPT.max_unconfirmed)


def test_what_is_unconfirmed_for_long_goes_out_again() -> None:
    """After 30 s, from the lowest that is unconfirmed, and with one row."""
    of, source, up_to = grown()
    send(of, source)

    assert of.next_check_ns() == AGAIN_NS
    assert send(of, source, AGAIN_NS - 1) == []
    assert send(of, source, AGAIN_NS) == [up_to + 1]
    assert (of.sent, of.resent) == (up_to + PROMPT.max_unconfirmed, 1)


def test_a_confirmation_puts_off_the_next_try() -> None:
    """A slow hub gets no rows again while its confirmations advance."""
    of, source, up_to = grown()
    send(of, source)
    of.confirmed(stored(up_to + 1), 20 * NS_PER_S)

    assert send(of, source, 20 * NS_PER_S) == [up_to + PROMPT.max_unconfirmed + 1]
    assert of.next_check_ns() == 20 * NS_PER_S + AGAIN_NS


def test_batches_are_small() -> None:
    """In rows, and in bytes well below what a hub reads."""
    of, source, _ = grown()
    source.rows = [row(each.sequence, event(data={"text": "x" * 100_000})) for each in source.rows]
    ask = of.next_request(0)
    assert ask is not None
    rows = of.batch(ask, source.page(ask), 0)
    message = HistoryBatch(node="n1", incarnation=1, sequence=1, stream=STREAM, floor=1, rows=rows)

    assert ask.limit == PROMPT.batch_rows
    assert 1 < len(rows) < 10
    assert len(encode(message)) < MAX_MESSAGE_BYTES / 2


def test_a_node_sends_at_a_pace() -> None:
    """A thousand rows a second, so that a broker that is back is not flooded."""
    of, source = window(pace=HistoryPacing(spread_ns=0)), Outbox(2_000)
    sent_at: list[tuple[int, int]] = []
    for ms in range(3_000):
        if rows := send(of, source, ms * 1_000_000):
            sent_at.append((ms, len(rows)))
            of.confirmed(stored(rows[-1]), ms * 1_000_000)

    assert max(len_ for _, len_ in sent_at) == 100
    assert all(later - ms == rows for (ms, rows), (later, _) in pairwise(sent_at))


def test_nodes_do_not_begin_in_the_same_instant() -> None:
    """After a reconnection, and when a minute is over for all of them, each waits its own part of ten seconds."""
    of, source = window(pace=HistoryPacing()), Outbox(1)
    of.connected(0, draw=0.5)
    early, first = send(of, source, 5 * NS_PER_S - 1), send(of, source, 5 * NS_PER_S)
    of.confirmed(stored(1), 6 * NS_PER_S)
    source.rows += [row(2)]
    of.rows_added(60 * NS_PER_S, draw=0.25)
    of.rows_added(61 * NS_PER_S, draw=0.9)

    assert (early, first) == ([], [1])
    assert send(of, source, 62 * NS_PER_S) == []
    assert send(of, source, 62 * NS_PER_S + NS_PER_S // 2) == [2]


def test_a_new_connection_begins_at_the_lowest_unconfirmed() -> None:
    """The broker may have lost unconfirmed rows: the node sends them again at once, starting with one row."""
    of, source, up_to = grown()
    send(of, source)
    of.connected(1, draw=0)

    assert send(of, source, 1) == [up_to + 1]


@pytest.mark.parametrize(
    ("hubs", "confirmations", "cut"),
    [
        ((), {"hub-a": 3}, 3),
        ((), {"hub-a": 3, "hub-b": 5}, 5),
        ((), {"hub-b": 5, "hub-a": 3}, 5),
        (("hub-a",), {"hub-a": 4, "hub-z": 9}, 4),
        (("hub-a",), {"hub-z": 9}, 0),
        (("hub-a", "hub-b"), {"hub-a": 9, "hub-b": 2}, 2),
        (("hub-a", "hub-b"), {"hub-a": 9}, 0),
    ],
)
def test_the_outbox_is_cut_where_all_named_hubs_have_it(
    hubs: tuple[str, ...], confirmations: dict[str, int], cut: int
) -> None:
    """The lowest of those named; the highest of any where none is. The numbers count from what all have."""
    of, source, all_have = grown(*hubs)
    of.cut()
    send(of, source)
    for hub, up_to in confirmations.items():
        of.confirmed(stored(all_have + up_to, hub), 0)

    assert of.cut() == ((STREAM, all_have + cut) if cut else None)
    assert {hub: of.confirmed_by[hub] - all_have for hub in confirmations} == confirmations


def test_what_is_cut_is_cut_once() -> None:
    """Until more is confirmed."""
    of, _, up_to = grown()

    assert of.cut() == (STREAM, up_to)
    assert of.cut() is None
    assert of.waiting == 2_000 - up_to


@pytest.mark.parametrize(
    "lie", [stored(3, stream=STREAM + 1), stored(3, stream=STREAM - 1), stored(11), stored(2**62), stored(1, of="n2")]
)
def test_an_impossible_confirmation_is_rejected(lie: Stored) -> None:
    """Another stream, rows that were never made, another node: nothing is cut, and it is counted."""
    of = window()
    send(of, Outbox(10))
    of.confirmed(lie, 0)

    assert (of.cut(), of.invalid_confirmations, of.confirmed_by) == (None, 1, {})


def test_what_was_never_sent_is_never_cut() -> None:
    """
    A hub that claims more than it was sent, as after our restart, has that confirmed which was sent, and is sent the
    rest.
    """
    of, source = window(), Outbox(10)
    send(of, source)
    of.confirmed(stored(10), 0)

    assert of.cut() == (STREAM, 1)
    assert send(of, source) == [2, 3]


def test_a_silent_hub_holds_up_no_other() -> None:
    """It gets one row each 30 s, and the other hub gets every row."""
    of, source = window("hub-a", "hub-b"), Outbox(300)
    sent: set[int] = set()
    at_s = 0
    while max(sent, default=0) < 300:
        sent |= set(send(of, source, at_s * NS_PER_S))
        of.confirmed(stored(max(sent)), at_s * NS_PER_S)
        at_s += 1
    before = of.sent + of.resent
    later = [send(of, source, (at_s + 30 * n) * NS_PER_S) for n in range(1, 11)]

    assert at_s < 20
    assert later == [[1]] * 10
    assert (of.cut(), of.sent + of.resent - before) == (None, 10)


def test_a_hub_that_is_back_gets_everything() -> None:
    """While the other hub, which has it all, is not waited for."""
    of, source = window("hub-a", "hub-b"), Outbox(300)
    first = 0
    for at_s in range(60):
        first = max([first, *send(of, source, at_s * NS_PER_S)])
        of.confirmed(stored(first, "hub-a"), at_s * NS_PER_S)
    cut_without = of.cut()
    second = 0
    for at_s in range(60, 120):
        source.rows += [row(source.rows[-1].sequence + 1)]
        of.rows_added(at_s * NS_PER_S, 0)
        for sequence in send(of, source, at_s * NS_PER_S):
            first += sequence == first + 1
            second += sequence == second + 1
        of.confirmed(stored(first, "hub-a"), at_s * NS_PER_S)
        of.confirmed(stored(second, "hub-b"), at_s * NS_PER_S)

    assert cut_without is None
    assert (first, second, of.cut()) == (360, 360, (STREAM, 360))


def test_a_hub_whose_store_was_put_back_gets_again_what_there_is() -> None:
    """It confirms less than before: the node sends it again the rows that the outbox still has."""
    of, source, _ = grown("hub-a", "hub-b")
    of.confirmed(stored(5, "hub-b"), 0)

    assert of.cut() == (STREAM, 5)
    assert send(of, source, 1, tries=1) == [6]


def test_what_is_trimmed_is_lost_and_not_waited_for() -> None:
    """The count is of rows that went without having been cut; sending goes on at the floor."""
    of, source, up_to = grown()
    of.cut()
    send(of, source)
    trimmed = Outbox(20, floor=1_981)

    assert send(of, trimmed, AGAIN_NS, tries=1) == [1_981]
    assert (of.lost, of.waiting, of.cut()) == (1_980 - up_to, 20, None)


def test_a_gap_at_the_floor_takes_no_room() -> None:
    """Trimmed rows are not unconfirmed: the node sends as many as without them."""
    of, _, _ = grown()

    assert send(of, Outbox(700, floor=1_301)) == list(range(1_301, 1_801))


def test_what_was_cut_before_our_start_is_not_lost() -> None:
    """The first floor that is seen is where the outbox begins."""
    of = window()

    assert send(of, Outbox(5, floor=1_000)) == [1_000]
    assert (of.lost, of.waiting) == (0, 5)


def test_a_new_stream_starts_over() -> None:
    """The node's store was replaced while it ran: what was confirmed of the old one does not count for the new."""
    of, _, _ = grown()
    of.rows_added(0, 0)
    replaced = Outbox(5, stream=STREAM + 1)
    send(of, replaced, 0, tries=1)
    send(of, replaced, AGAIN_NS)

    assert (of.cut(), of.lost, of.confirmed_by) == (None, 0, {})
    assert send(of, replaced, 2 * AGAIN_NS) == [1]


def test_a_hub_that_is_a_node_too_has_its_own_rows() -> None:
    """They go out once, for other hubs; where none is named there is nothing to wait for."""
    of, source = window(is_hub=True), Outbox(300)
    alone, both = send(of, source), window("n1", "hub-b", is_hub=True)
    first = send(both, source)

    assert (alone, of.cut()) == (list(range(1, 301)), (STREAM, 300))
    assert (first, both.cut()) == ([1], None)
    both.confirmed(stored(1, "hub-b"), 0)
    assert both.cut() == (STREAM, 1)


class Link:
    """Notes what is published."""

    def __init__(self) -> None:
        self.connected = True
        self.batches: list[HistoryBatch] = []

    def publish(self, message: Message) -> None:
        assert isinstance(message, HistoryBatch)
        self.batches.append(message)

    @property
    def rows(self) -> list[int]:
        return [row.sequence for batch in self.batches for row in batch.rows]


def in_order() -> Callable[[], dict[str, Any]]:
    counter = iter(range(1, 10**9))
    return lambda: {"node": "n1", "incarnation": STREAM, "sequence": next(counter)}


@asynccontextmanager
async def sending(link: Link, source: Outbox, is_hub: bool = False) -> AsyncIterator[HistorySender]:
    sender = HistorySender(link, source, MqttSettings(host="broker"), "n1", in_order(), is_hub, PROMPT)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_the_sender_sends_and_cuts() -> None:
    """What is in the outbox goes out in order, and goes from it when it is confirmed."""
    link, source = Link(), Outbox(10)
    async with sending(link, source) as sender:
        while source.rows:
            await asyncio.sleep(0.01)
            if link.rows:
                sender.confirmed(stored(link.rows[-1]))

    assert link.rows == list(range(1, 11))
    assert [batch.floor for batch in link.batches] == [batch.rows[0].sequence for batch in link.batches]
    assert [batch.sequence for batch in link.batches] == list(range(1, len(link.batches) + 1))


async def test_the_sender_wakes_for_new_rows() -> None:
    """Also when everything was sent before."""
    link, source = Link(), Outbox(0)
    async with sending(link, source) as sender:
        await asyncio.sleep(0.05)
        source.rows += [row(1)]
        sender.wake()
        await eventually(lambda: link.rows == [1])


async def test_nothing_is_sent_without_a_connection() -> None:
    """A queue in memory is no place for it."""
    link, source = Link(), Outbox(3)
    link.connected = False
    async with sending(link, source):
        await asyncio.sleep(0.1)
        assert link.rows == []
        link.connected = True
        await eventually(lambda: link.rows == [1])


async def test_the_sender_outlives_a_store_in_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs the error once, retries, loses no row, and logs the recovery."""
    monkeypatch.setattr(mqtt_history, "RETRY_S", 0.01)
    link, source = Link(), Outbox(3)
    source.problem = True
    with caplog.at_level(logging.INFO):
        async with sending(link, source) as sender:
            await eventually(lambda: source.tries > 3)
            trouble = sender.problem
            source.problem = False
            await eventually(lambda: link.rows == [1])
            sender.confirmed(stored(1))
            await eventually(lambda: source.floor == 2)
            over = sender.problem

    assert (trouble, over) == ("disk", None)
    assert [record.getMessage() for record in caplog.records] == [
        "history: cannot read the outbox: disk",
        "history: the outbox can be read again",
    ]


async def test_an_unreadable_row_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is lost, whatever is sent again around it."""
    link, source = Link(), Outbox(4)
    source.unreadable = [2]
    async with sending(link, source) as sender:
        await eventually(lambda: 1 in link.rows)
        sender.confirmed(stored(1))
        await eventually(lambda: 3 in link.rows)
        sender.window.connected(0, 0)
        sender.wake()
        await eventually(lambda: link.rows.count(3) > 1)

    assert [record.getMessage() for record in caplog.records] == ["history: lost rows [2]: the outbox cannot read them"]
    assert 2 not in link.rows
    assert link.batches[-1].floor == 3


async def test_a_hub_that_waits_for_no_other_hub_needs_no_broker() -> None:
    """Its rows are in its store: that they wait for a link, grow old and count as lost would be a false alarm."""
    link, source = Link(), Outbox(300)
    link.connected = False
    async with sending(link, source, is_hub=True):
        await eventually(lambda: source.floor == 301)

    assert link.rows == []


def progress(up_to: int, node: str = "n1") -> ArchiveProgress:
    return ArchiveProgress(node, STREAM, up_to, 0)


def test_a_hub_confirms_once_a_second_and_node() -> None:
    """The newest that it has, to each node by itself."""
    confirmer = HistoryConfirmer(in_order())
    confirmer.update(progress(1))
    first = confirmer.due(0)
    confirmer.update(progress(2))
    confirmer.update(progress(3))
    confirmer.update(progress(7, "n2"))
    early, later = confirmer.due(NS_PER_S - 1), confirmer.due(NS_PER_S)

    assert [
        [(each.of, each.stored_up_to) for each in stored_messages] for stored_messages in (first, early, later)
    ] == [
        [("n1", 1)],
        [("n2", 7)],
        [("n1", 3)],
    ]


def test_a_hub_repeats_a_confirmation_only_for_a_repeated_batch() -> None:
    """A node that sends what is stored already has missed the confirmation."""
    confirmer = HistoryConfirmer(in_order())
    confirmer.update(progress(3))
    confirmer.due(0)
    nothing = confirmer.due(5 * NS_PER_S)
    confirmer.update(progress(3))

    assert nothing == []
    assert [each.stored_up_to for each in confirmer.due(6 * NS_PER_S)] == [3]
