"""ptp4l's pushes (linuxptp 4.0 and later): TIME_STATUS_NP at every Sync. A push only says when to ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.drivers.ptp4l._event_monitor import queue_length
from timesyncd.drivers.ptp4l._management import ManagementRequester, TimeStatus, parse
from timesyncd.drivers.ptp4l._socket import Ptp4lSocket
from timesyncd.errors import Malformed, Refused, Unreachable

_WAIT_S = 0.5
_LONGEST_S = 60
_SHORTEST_S = 3
_SYNCS_UNTIL_POLLING = 3


class PushSubscription:
    """
    A subscription on a socket and an identity of its own, because pushes count their own sequence. That it is granted
    proves nothing (3.1.1 grants it and pushes nothing): `active` from a push that really came until three Syncs long none did.
    """

    def __init__(self, own: Path, server: Path, asker: ManagementRequester, clocks: Clocks) -> None:
        """Raises Unreachable."""
        self.active = False
        self._asker = asker
        self._clocks = clocks
        self._channel = Ptp4lSocket(own, server, self._take)
        self._arrived = asyncio.Event()
        self._latest_ns = 0
        self._renew_at_ns = 0

    async def next(self, sync_interval_ns: int) -> bool:
        """Wait for a push; False when none came for a while, after which `active` may be over."""
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._arrived.wait()
        except TimeoutError:
            self.active = self._clocks.boottime_ns() - self._latest_ns <= _SYNCS_UNTIL_POLLING * sync_interval_ns
            return False
        self._arrived.clear()
        return True

    def renew(self, sync_interval_ns: int) -> None:
        """Subscribe, or prolong the subscription when a third of it has passed. Raises Unreachable."""
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._renew_at_ns:
            return
        duration_s = subscription_s(queue_length(), sync_interval_ns)
        if duration_s:
            self._channel.send(self._asker.subscribe(duration_s, 0))
        self._renew_at_ns = now_ns + (duration_s or _LONGEST_S) * NS_PER_S // 3

    def close(self) -> None:
        try:
            self._channel.send(self._asker.subscribe(0, 0))
        except Unreachable:
            pass  # then nobody is there who could push
        self._channel.close()

    def _take(self, datagram: bytes) -> bool:
        try:
            content = parse(datagram).content()
        except (Malformed, Refused):
            return False
        if isinstance(content, TimeStatus):
            self.active = True
            self._latest_ns = self._clocks.boottime_ns()
            self._arrived.set()
        return False


def subscription_s(queue: int, sync_interval_ns: int) -> int:
    """
    How long a subscription may last so that all its pushes fit into our queue though nobody reads it: ptp4l blocks, and
    keeps no time, while the queue of a stopped subscriber is full. 0: too short to be of use.
    """
    longest_s = min(_LONGEST_S, (queue - 2) * sync_interval_ns // NS_PER_S)
    return longest_s if longest_s >= _SHORTEST_S else 0
