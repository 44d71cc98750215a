"""ptp4l's push notifications (linuxptp 4.0 and later): TIME_STATUS_NP at every Sync. A push only triggers a reading."""

from __future__ import annotations

import asyncio
from pathlib import Path

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.drivers.ptp4l._event_monitor import queue_length
from timesyncd.drivers.ptp4l._management import ManagementRequester, TimeStatus, parse
from timesyncd.drivers.ptp4l._socket import Ptp4lSocket
from timesyncd.errors import Malformed, Refused, Unreachable

_WAIT_S = 0.5
_MAX_DURATION_S = 60
_MIN_DURATION_S = 3
_SYNCS_UNTIL_POLLING = 3


class PushSubscription:
    """
    A subscription with its own socket and identity, because pushes have their own sequence numbers. A granted subscription proves
    nothing (3.1.1 grants it and pushes nothing): `active` is True from the first push until none came for three Sync intervals.
    """

    def __init__(self, own: Path, server: Path, requester: ManagementRequester, clocks: Clocks) -> None:
        """Raises Unreachable."""
        self.active = False
        self._requester = requester
        self._clocks = clocks
        self._socket = Ptp4lSocket(own, server, self._receive)
        self._arrived = asyncio.Event()
        self._latest_ns = 0
        self._renew_at_ns = 0

    async def next(self, sync_interval_ns: int) -> bool:
        """Wait for a push; False if none came within _WAIT_S, which may end `active`."""
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._arrived.wait()
        except TimeoutError:
            self.active = self._clocks.boottime_ns() - self._latest_ns <= _SYNCS_UNTIL_POLLING * sync_interval_ns
            return False
        self._arrived.clear()
        return True

    def renew(self, sync_interval_ns: int) -> None:
        """Subscribe, or renew the subscription after a third of its duration. Raises Unreachable."""
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._renew_at_ns:
            return
        duration_s = subscription_s(queue_length(), sync_interval_ns)
        if duration_s:
            self._socket.send(self._requester.subscribe(duration_s, 0))
        self._renew_at_ns = now_ns + (duration_s or _MAX_DURATION_S) * NS_PER_S // 3

    def close(self) -> None:
        try:
            self._socket.send(self._requester.subscribe(0, 0))
        except Unreachable:
            pass  # then no ptp4l is left that could push
        self._socket.close()

    def _receive(self, datagram: bytes) -> bool:
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
    The longest subscription, in seconds, whose pushes all fit into our queue even if this process is stopped: ptp4l blocks, and
    does not discipline its clock, while a subscriber's queue is full. 0: too short to be useful.
    """
    longest_s = min(_MAX_DURATION_S, (queue - 2) * sync_interval_ns // NS_PER_S)
    return longest_s if longest_s >= _MIN_DURATION_S else 0
