"""
The history on its way: from a node's outbox to the hubs that are to store it, and their word that they did.

`HistoryWindow` and `HistoryConfirmer` decide and are pure; `HistorySender` fetches and publishes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.config import MqttSettings
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import HistoryBatch, HistoryRow, Stored
from timesyncd.messages.node import Message
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.outbox import OutboxPage

log = logging.getLogger(__name__)

#: How often, at most, a hub confirms one node.
CONFIRM_INTERVAL_NS = NS_PER_S
#: How soon the outbox or the link is looked at again when it could not be used.
RETRY_S = 1.0
_ANY_HUB = ""


@dataclass(frozen=True, slots=True)
class HistoryPacing:
    """
    What keeps nodes from flooding a broker and its hubs. `spread_ns`: whoever begins to send waits a random part of it, since
    all nodes have the same minute, and see the same broker come back. `again_ns`: how long rows wait for a confirmation.
    """

    spread_ns: int = 10 * NS_PER_S
    again_ns: int = 30 * NS_PER_S
    most_unconfirmed: int = 500
    batch_rows: int = 100
    batch_bytes: int = 262_144
    rows_per_s: int = 1_000


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Which rows of the outbox to send next."""

    after: int
    limit: int


@dataclass(slots=True)
class _HubProgress:
    """
    Rows on their way to one hub: those above `confirmed`, up to `sent`. `since_ns` is when the first of them went out, or, if
    later, the last confirmation. At most `allowed` of them: one until the hub shows that it is there, then twice as many with
    each confirmation.
    """

    confirmed: int = 0
    sent: int = 0
    since_ns: int = 0
    allowed: int = 1

    @property
    def room(self) -> int:
        return self.allowed - (self.sent - self.confirmed)

    def go_back(self, to: int) -> None:
        self.confirmed = self.sent = to
        self.allowed = 1

    def pass_over(self, after: int, first: int, now_ns: int) -> None:
        """Between the two the outbox holds nothing, though it should: that is not asked for again at once."""
        if self.sent == after and first > after + 1:
            self.sent, self.since_ns = first - 1, now_ns

    def send(self, rows: Sequence[HistoryRow], now_ns: int) -> None:
        """Rows that do not follow on those sent before are for another hub."""
        if rows[0].sequence > self.sent + 1:
            return
        if self.sent == self.confirmed:
            self.since_ns = now_ns
        self.sent = max(self.sent, rows[-1].sequence)

    def confirm(self, up_to: int, now_ns: int, most: int) -> None:
        if up_to < self.confirmed:
            # Its store was put back to an earlier state.
            self.go_back(up_to)
        elif up_to > self.confirmed:
            self.confirmed, self.sent = up_to, max(self.sent, up_to)
            self.allowed = min(2 * self.allowed, most)
            self.since_ns = now_ns

    def skip(self, to: int) -> None:
        """What lies below is held no longer."""
        self.confirmed = max(self.confirmed, to)
        self.sent = max(self.sent, to)


class HistoryWindow:
    """
    Which rows to send next, and which to forget. Times are CLOCK_BOOTTIME; `draw` is a random number from 0 to 1.

    `hubs` must each have confirmed a row before it is cut; none: any one of them. A hub that is silent is asked with one row at
    a time and holds up no other hub. If this node `is_hub` itself, its store has every row already: it `keeps_itself`, and waits for
    nobody, where no other hub is named.

    `sent`, `resent` and `lost` count rows, `disbelieved` confirmations of what was never here; `confirmed_by` is the last word
    of each hub.
    """

    def __init__(self, node: str, hubs: Sequence[str], is_hub: bool, pace: HistoryPacing) -> None:
        self.sent = self.resent = self.lost = self.disbelieved = 0
        self.confirmed_by: dict[str, int] = {}
        self._node = node
        self._others = [hub for hub in hubs if not (is_hub and hub == node)]
        self.keeps_itself = is_hub and not self._others
        self._pace = pace
        self._stream: int | None = None
        self._floor = self._next = 1
        self._highest_sent = 0
        self._not_before_ns = 0
        self._must_look = True
        self._ways = self._new_ways()

    def _new_ways(self) -> dict[str, _HubProgress]:
        return {hub: _HubProgress() for hub in self._others or [_ANY_HUB]}

    @property
    def waiting(self) -> int:
        """Rows in the outbox, as last seen."""
        return self._next - self._floor

    def connected(self, now_ns: int, draw: float) -> None:
        """To a broker that may have forgotten what was on its way."""
        for way in self._ways.values():
            way.go_back(way.confirmed)
        self._begin(now_ns, draw)

    def woke(self, now_ns: int, draw: float) -> None:
        """There are new rows. Whoever is sending already goes on."""
        is_sending = self._must_look or max(way.sent for way in self._ways.values()) + 1 < self._next
        if not is_sending:
            self._begin(now_ns, draw)
        self._must_look = True

    def _begin(self, now_ns: int, draw: float) -> None:
        self._must_look = True
        self._not_before_ns = max(self._not_before_ns, now_ns + int(draw * self._pace.spread_ns))

    def ask(self, now_ns: int) -> RowRequest | None:
        """What the hub that is the furthest behind lacks, if there is anything and it is time."""
        for way in self._ways.values():
            if way.sent > way.confirmed and now_ns >= way.since_ns + self._pace.again_ns:
                way.go_back(way.confirmed)
        ways = self._wanting()
        if not ways or now_ns < self._not_before_ns:
            return None
        last = min(ways, key=lambda way: way.sent)
        return RowRequest(last.sent, min(last.room, self._pace.batch_rows))

    def _wanting(self) -> list[_HubProgress]:
        return [way for way in self._ways.values() if way.room > 0 and (self._must_look or way.sent + 1 < self._next)]

    def look_again_ns(self) -> int | None:
        """When `ask` may have another answer although nothing happens; None = never."""
        times = [way.since_ns + self._pace.again_ns for way in self._ways.values() if way.sent > way.confirmed]
        if self._wanting():
            times.append(self._not_before_ns)
        return min(times, default=None)

    def take(self, ask: RowRequest, page: OutboxPage, now_ns: int) -> list[HistoryRow]:
        """The rows of the page that was asked for which are to go out now, in one batch."""
        self._learn(page)
        rows = self._one_batch(page.rows)
        for way in self._ways.values():
            way.pass_over(ask.after, rows[0].sequence if rows else page.next_sequence, now_ns)
        if rows:
            self._sending(rows, now_ns)
        return rows

    def _sending(self, rows: Sequence[HistoryRow], now_ns: int) -> None:
        again = sum(row.sequence <= self._highest_sent for row in rows)
        self.sent, self.resent = self.sent + len(rows) - again, self.resent + again
        self._highest_sent = max(self._highest_sent, rows[-1].sequence)
        self._not_before_ns = now_ns + len(rows) * NS_PER_S // self._pace.rows_per_s
        for way in self._ways.values():
            way.send(rows, now_ns)
            if self.keeps_itself:
                way.confirm(way.sent, now_ns, self._pace.most_unconfirmed)

    def _learn(self, page: OutboxPage) -> None:
        if page.stream != self._stream:
            self._stream, self._floor, self._highest_sent = page.stream, page.floor, 0
            self._ways, self.confirmed_by = self._new_ways(), {}
        self.lost += max(0, page.floor - self._floor)
        self._floor, self._next, self._must_look = max(page.floor, self._floor), page.next_sequence, False
        for way in self._ways.values():
            way.skip(self._floor - 1)

    def _one_batch(self, rows: Sequence[HistoryRow]) -> list[HistoryRow]:
        """As many as follow each other and fit, and at least one."""
        chosen, size = list(rows[:1]), 0
        for before, row in pairwise(rows):
            size += len(before.model_dump_json())
            if row.sequence != before.sequence + 1 or size >= self._pace.batch_bytes:
                break
            chosen.append(row)
        return chosen

    def confirmed(self, stored: Stored, now_ns: int) -> None:
        """A hub may know more rows than were sent since our start, but none that we never made."""
        if stored.of != self._node or stored.stream != self._stream or stored.stored_up_to >= self._next:
            self.disbelieved += 1
            return
        self.confirmed_by[stored.node] = stored.stored_up_to
        way = self._ways.get(stored.node if self._others else _ANY_HUB)
        if way is None:
            return
        up_to = min(stored.stored_up_to, self._highest_sent)
        if self._others or up_to > way.confirmed:
            way.confirm(max(up_to, self._floor - 1), now_ns, self._pace.most_unconfirmed)

    def cut(self) -> tuple[int, int] | None:
        """Of which stream and up to which row the outbox is to be cut now; None when there is nothing more to cut."""
        up_to = min(way.confirmed for way in self._ways.values())
        if self._stream is None or up_to < self._floor:
            return None
        self._floor = up_to + 1
        return self._stream, up_to


class HistoryLink(Protocol):
    """What MqttLink is."""

    @property
    def connected(self) -> bool: ...

    def publish(self, message: Message) -> None: ...


class OutboxSource(Protocol):
    """What the store is."""

    def outbox_page(self, after: int, limit: int) -> OutboxPage:
        """Blocks; raises StoreError."""

    def cut_outbox(self, stream: int, up_to: int) -> None:
        """Soon: the floor of the next page may still be the old one."""


class HistorySender:
    """
    Sends what waits in the outbox while the link is connected, and cuts what the hubs have stored. `order` gives a message's
    node, incarnation and sequence. It belongs to the event loop's thread. `problem` says why the outbox cannot be read.
    """

    def __init__(
        self,
        link: HistoryLink,
        source: OutboxSource,
        settings: MqttSettings,
        node: str,
        order: Callable[[], dict[str, Any]],
        is_hub: bool = False,
        pace: HistoryPacing | None = None,
    ) -> None:
        self.window = HistoryWindow(node, settings.hubs, is_hub, pace or HistoryPacing())
        self._link = link
        self._source = source
        self._order = order
        self._clocks = SystemClocks()
        self._changed = asyncio.Event()
        self._was_connected = False
        self._last_unreadable = 0
        self.problem: str | None = None

    def wake(self) -> None:
        """Rows were committed to the outbox."""
        self.window.woke(self._clocks.boottime_ns(), random.random())
        self._changed.set()

    def confirmed(self, stored: Stored) -> None:
        """A hub has said what it has stored of this node."""
        self.window.confirmed(stored, self._clocks.boottime_ns())
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. While the outbox cannot be read, what is in it waits."""
        while True:
            self._changed.clear()
            try:
                await self._round()
                pause_s = self._pause_s()
            except StoreError as error:
                self._tell_of(str(error))
                pause_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _round(self) -> None:
        if self._link.connected and not self._was_connected:
            self.window.connected(self._clocks.boottime_ns(), random.random())
        self._was_connected = self._link.connected
        if (cut := self.window.cut()) is not None:
            self._source.cut_outbox(*cut)
        while self._has_way and (ask := self.window.ask(self._clocks.boottime_ns())):
            page = await asyncio.to_thread(self._source.outbox_page, ask.after, ask.limit)
            self._tell_of(None)
            self._tell_of_unreadable(page)
            self._send(ask, page)

    @property
    def _has_way(self) -> bool:
        return self._link.connected or self.window.keeps_itself

    def _send(self, ask: RowRequest, page: OutboxPage) -> None:
        rows = self.window.take(ask, page, self._clocks.boottime_ns())
        if rows and self._link.connected:
            self._link.publish(HistoryBatch(**self._order(), stream=page.stream, floor=page.floor, rows=rows))

    def _tell_of(self, problem: str | None) -> None:
        """Once as it begins, and once as it is over."""
        if (problem is None) != (self.problem is None):
            log.info("history: %s", problem or "back")
        self.problem = problem

    def _tell_of_unreadable(self, page: OutboxPage) -> None:
        if new := [number for number in page.unreadable if number > self._last_unreadable]:
            self._last_unreadable = new[-1]
            log.warning("history: lost: what the outbox has as %s cannot be read", new)

    def _pause_s(self) -> float | None:
        """The link does not say when it is back."""
        if not self._link.connected:
            return RETRY_S
        at_ns = self.window.look_again_ns()
        return None if at_ns is None else max(0.0, (at_ns - self._clocks.boottime_ns()) / NS_PER_S)


class HistoryConfirmer:
    """What a hub says to the nodes of what it has stored. `order` gives a message's node, incarnation and sequence."""

    def __init__(self, order: Callable[[], dict[str, Any]]) -> None:
        self._order = order
        self._due: dict[str, ArchiveProgress] = {}
        self._told_ns: dict[str, int] = {}

    def note(self, progress: ArchiveProgress) -> None:
        """Is committed. Also of a batch that changed nothing: its node has missed that it is stored."""
        self._due[progress.node] = progress

    def take(self, now_ns: int) -> list[Stored]:
        """What to say now. Call it again within a second as long as batches come."""
        ripe = [
            progress
            for node, progress in self._due.items()
            if now_ns >= self._told_ns.get(node, -CONFIRM_INTERVAL_NS) + CONFIRM_INTERVAL_NS
        ]
        for progress in ripe:
            del self._due[progress.node]
            self._told_ns[progress.node] = now_ns
        return [self._stored(progress) for progress in ripe]

    def _stored(self, progress: ArchiveProgress) -> Stored:
        return Stored(
            **self._order(),
            of=progress.node,
            stream=progress.stream,
            stored_up_to=progress.stored_up_to,
            lost=progress.lost,
        )
