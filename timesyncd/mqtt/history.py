"""
Transfer of a node's history: from the outbox in its store to the hubs that store it, and their confirmations.

`HistoryWindow` and `HistoryConfirmer` decide and are pure; `HistorySender` reads the outbox and publishes.
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

#: The least time between two confirmations of a hub to one node.
CONFIRM_INTERVAL_NS = NS_PER_S
#: How soon the sender retries after the outbox could not be read, or checks whether the link is connected again.
RETRY_S = 1.0
_ANY_HUB = ""


@dataclass(frozen=True, slots=True)
class HistoryPacing:
    """
    The limits that keep nodes from flooding a broker and its hubs.

    `spread_ns`: a node that starts to send waits a random part of it, since all nodes have new rows in the same minute
    and see the same broker return. `retry_ns`: how long the node waits for a confirmation before it sends rows again.
    """

    spread_ns: int = 10 * NS_PER_S
    retry_ns: int = 30 * NS_PER_S
    max_unconfirmed: int = 500
    batch_rows: int = 100
    batch_bytes: int = 262_144
    rows_per_s: int = 1_000


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The next rows to send: at most `limit`, with numbers above `after`."""

    after: int
    limit: int


@dataclass(slots=True)
class _HubProgress:
    """
    The transfer to one hub: rows above `confirmed`, up to `sent`, are unconfirmed. `since_ns` is when the first of them
    was sent, or, if later, the last confirmation. At most `allowed` may be unconfirmed: one until the hub confirms,
    then twice as many with each confirmation.
    """

    confirmed: int = 0
    sent: int = 0
    since_ns: int = 0
    allowed: int = 1

    @property
    def room(self) -> int:
        return self.allowed - (self.sent - self.confirmed)

    def restart_from(self, to: int) -> None:
        self.confirmed = self.sent = to
        self.allowed = 1

    def skip_gap(self, after: int, first: int, now_ns: int) -> None:
        """
        The outbox has no readable row between the two: counts the gap as sent, so that it is not requested again at
        once.
        """
        if self.sent == after and first > after + 1:
            self.sent, self.since_ns = first - 1, now_ns

    def mark_sent(self, rows: Sequence[HistoryRow], now_ns: int) -> None:
        """Ignores rows that do not follow those sent before: they are for another hub."""
        if rows[0].sequence > self.sent + 1:
            return
        if self.sent == self.confirmed:
            self.since_ns = now_ns
        self.sent = max(self.sent, rows[-1].sequence)

    def confirm(self, up_to: int, now_ns: int, max_allowed: int) -> None:
        if up_to < self.confirmed:
            # The hub's store was restored to an earlier state.
            self.restart_from(up_to)
        elif up_to > self.confirmed:
            self.confirmed, self.sent = up_to, max(self.sent, up_to)
            self.allowed = min(2 * self.allowed, max_allowed)
            self.since_ns = now_ns

    def skip_to(self, to: int) -> None:
        """The outbox has no rows up to here any more."""
        self.confirmed = max(self.confirmed, to)
        self.sent = max(self.sent, to)


class HistoryWindow:
    """
    Decides which rows to send next and which to delete from the outbox. Times are CLOCK_BOOTTIME; `draw` is a random
    number from 0 to 1.

    Each of `hubs` must confirm a row before it is deleted; without named hubs any one hub. A silent hub gets one row at
    a time and does not delay the others. If this node `is_hub` and no other hub is named, its own store has every row:
    `is_own_hub`, and it waits for no confirmation.

    `sent`, `resent` and `lost` count rows, `invalid_confirmations` those of rows that this node never had.
    `confirmed_by` is the highest row that each hub confirmed last.
    """

    def __init__(self, node: str, hubs: Sequence[str], is_hub: bool, pace: HistoryPacing) -> None:
        self.sent = self.resent = self.lost = self.invalid_confirmations = 0
        self.confirmed_by: dict[str, int] = {}
        self._node = node
        self._others = [hub for hub in hubs if not (is_hub and hub == node)]
        self.is_own_hub = is_hub and not self._others
        self._pace = pace
        self._stream: int | None = None
        self._floor = self._next = 1
        self._highest_sent = 0
        self._not_before_ns = 0
        self._must_read = True
        self._progress = self._new_progress()

    def _new_progress(self) -> dict[str, _HubProgress]:
        return {hub: _HubProgress() for hub in self._others or [_ANY_HUB]}

    @property
    def waiting(self) -> int:
        """The number of rows in the outbox at the last reading."""
        return self._next - self._floor

    def connected(self, now_ns: int, draw: float) -> None:
        """Sends unconfirmed rows again: the broker of a new connection may have lost them."""
        for progress in self._progress.values():
            progress.restart_from(progress.confirmed)
        self._schedule(now_ns, draw)

    def rows_added(self, now_ns: int, draw: float) -> None:
        """The outbox has new rows. A transfer in progress continues without a new random delay."""
        is_sending = self._must_read or max(progress.sent for progress in self._progress.values()) + 1 < self._next
        if not is_sending:
            self._schedule(now_ns, draw)
        self._must_read = True

    def _schedule(self, now_ns: int, draw: float) -> None:
        self._must_read = True
        self._not_before_ns = max(self._not_before_ns, now_ns + int(draw * self._pace.spread_ns))

    def next_request(self, now_ns: int) -> RowRequest | None:
        """The rows that the hub furthest behind lacks; None: none, or not yet."""
        for progress in self._progress.values():
            if progress.sent > progress.confirmed and now_ns >= progress.since_ns + self._pace.retry_ns:
                progress.restart_from(progress.confirmed)
        behind = self._behind()
        if not behind or now_ns < self._not_before_ns:
            return None
        last = min(behind, key=lambda progress: progress.sent)
        return RowRequest(last.sent, min(last.room, self._pace.batch_rows))

    def _behind(self) -> list[_HubProgress]:
        return [
            progress
            for progress in self._progress.values()
            if progress.room > 0 and (self._must_read or progress.sent + 1 < self._next)
        ]

    def next_check_ns(self) -> int | None:
        """When `next_request` may change without an event; None: never."""
        times = [
            progress.since_ns + self._pace.retry_ns
            for progress in self._progress.values()
            if progress.sent > progress.confirmed
        ]
        if self._behind():
            times.append(self._not_before_ns)
        return min(times, default=None)

    def batch(self, request: RowRequest, page: OutboxPage, now_ns: int) -> list[HistoryRow]:
        """The rows of the requested page to send now, in one batch."""
        self._update_from(page)
        rows = self._one_batch(page.rows)
        for progress in self._progress.values():
            progress.skip_gap(request.after, rows[0].sequence if rows else page.next_sequence, now_ns)
        if rows:
            self._mark_sent(rows, now_ns)
        return rows

    def _mark_sent(self, rows: Sequence[HistoryRow], now_ns: int) -> None:
        repeated = sum(row.sequence <= self._highest_sent for row in rows)
        self.sent, self.resent = self.sent + len(rows) - repeated, self.resent + repeated
        self._highest_sent = max(self._highest_sent, rows[-1].sequence)
        self._not_before_ns = now_ns + len(rows) * NS_PER_S // self._pace.rows_per_s
        for progress in self._progress.values():
            progress.mark_sent(rows, now_ns)
            if self.is_own_hub:
                progress.confirm(progress.sent, now_ns, self._pace.max_unconfirmed)

    def _update_from(self, page: OutboxPage) -> None:
        if page.stream != self._stream:
            self._stream, self._floor, self._highest_sent = page.stream, page.floor, 0
            self._progress, self.confirmed_by = self._new_progress(), {}
        self.lost += max(0, page.floor - self._floor)
        self._floor, self._next, self._must_read = max(page.floor, self._floor), page.next_sequence, False
        for progress in self._progress.values():
            progress.skip_to(self._floor - 1)

    def _one_batch(self, rows: Sequence[HistoryRow]) -> list[HistoryRow]:
        """The first rows with consecutive numbers that fit one batch, at least one."""
        chosen, size = list(rows[:1]), 0
        for before, row in pairwise(rows):
            size += len(before.model_dump_json())
            if row.sequence != before.sequence + 1 or size >= self._pace.batch_bytes:
                break
            chosen.append(row)
        return chosen

    def confirmed(self, stored: Stored, now_ns: int) -> None:
        """
        Applies a hub's confirmation. It may include rows sent before this start, but none that this node never had.
        """
        if stored.of != self._node or stored.stream != self._stream or stored.stored_up_to >= self._next:
            self.invalid_confirmations += 1
            return
        self.confirmed_by[stored.node] = stored.stored_up_to
        progress = self._progress.get(stored.node if self._others else _ANY_HUB)
        if progress is None:
            return
        up_to = min(stored.stored_up_to, self._highest_sent)
        if self._others or up_to > progress.confirmed:
            progress.confirm(max(up_to, self._floor - 1), now_ns, self._pace.max_unconfirmed)

    def cut(self) -> tuple[int, int] | None:
        """The stream and the highest row that may now be deleted from the outbox; None: no further row."""
        up_to = min(progress.confirmed for progress in self._progress.values())
        if self._stream is None or up_to < self._floor:
            return None
        self._floor = up_to + 1
        return self._stream, up_to


class HistoryLink(Protocol):
    """The part of MqttLink that the sender uses."""

    @property
    def connected(self) -> bool: ...

    def publish(self, message: Message) -> None: ...


class OutboxSource(Protocol):
    """The part of the store that the sender uses."""

    def outbox_page(self, after: int, limit: int) -> OutboxPage:
        """Blocks; raises StoreError."""

    def cut_outbox(self, stream: int, up_to: int) -> None:
        """Deletes rows later, in the writer's thread: the next page may still contain them."""


class HistorySender:
    """
    Sends the rows of the outbox while the link is connected, and deletes those that the hubs confirmed.

    `order` returns a message's node, incarnation and sequence. `problem` is why the outbox cannot be read, None while
    it can. Call it in the event loop's thread.
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
        """The store committed new rows to the outbox."""
        self.window.rows_added(self._clocks.boottime_ns(), random.random())
        self._changed.set()

    def confirmed(self, stored: Stored) -> None:
        """A hub confirmed rows of this node."""
        self.window.confirmed(stored, self._clocks.boottime_ns())
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled. While the outbox cannot be read, its rows wait."""
        while True:
            self._changed.clear()
            try:
                await self._round()
                pause_s = self._pause_s()
            except StoreError as error:
                self._log_problem(str(error))
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
        while self._can_send and (request := self.window.next_request(self._clocks.boottime_ns())):
            page = await asyncio.to_thread(self._source.outbox_page, request.after, request.limit)
            self._log_problem(None)
            self._log_unreadable(page)
            self._send(request, page)

    @property
    def _can_send(self) -> bool:
        return self._link.connected or self.window.is_own_hub

    def _send(self, request: RowRequest, page: OutboxPage) -> None:
        rows = self.window.batch(request, page, self._clocks.boottime_ns())
        if rows and self._link.connected:
            self._link.publish(HistoryBatch(**self._order(), stream=page.stream, floor=page.floor, rows=rows))

    def _log_problem(self, problem: str | None) -> None:
        """Logs once when the outbox becomes unreadable, and once when it can be read again."""
        if (problem is None) != (self.problem is None):
            log.info(
                "history: %s",
                "the outbox can be read again" if problem is None else f"cannot read the outbox: {problem}",
            )
        self.problem = problem

    def _log_unreadable(self, page: OutboxPage) -> None:
        if new := [number for number in page.unreadable if number > self._last_unreadable]:
            self._last_unreadable = new[-1]
            log.warning("history: lost rows %s: the outbox cannot read them", new)

    def _pause_s(self) -> float | None:
        """Seconds until the next round; None: until an event. The link sends no event when it connects, so poll it."""
        if not self._link.connected:
            return RETRY_S
        check_ns = self.window.next_check_ns()
        return None if check_ns is None else max(0.0, (check_ns - self._clocks.boottime_ns()) / NS_PER_S)


class HistoryConfirmer:
    """
    A hub's confirmations to the nodes whose history it stores. `order` returns a message's node, incarnation and
    sequence.
    """

    def __init__(self, order: Callable[[], dict[str, Any]]) -> None:
        self._order = order
        self._due: dict[str, ArchiveProgress] = {}
        self._confirmed_ns: dict[str, int] = {}

    def update(self, progress: ArchiveProgress) -> None:
        """The store committed rows of a node, or received a batch again, whose node missed the confirmation."""
        self._due[progress.node] = progress

    def due(self, now_ns: int) -> list[Stored]:
        """The confirmations to publish now. Call it at least once a second."""
        due = [
            progress
            for node, progress in self._due.items()
            if now_ns >= self._confirmed_ns.get(node, -CONFIRM_INTERVAL_NS) + CONFIRM_INTERVAL_NS
        ]
        for progress in due:
            del self._due[progress.node]
            self._confirmed_ns[progress.node] = now_ns
        return [self._stored(progress) for progress in due]

    def _stored(self, progress: ArchiveProgress) -> Stored:
        return Stored(
            **self._order(),
            of=progress.node,
            stream=progress.stream,
            stored_up_to=progress.stored_up_to,
            lost=progress.lost,
        )
