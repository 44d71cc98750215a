"""
Two ranks of a real job, each in a network namespace, joined by a relay: it hands IP packets on at a rate, after a delay, and
loses some of them. It needs root and /dev/net/tun, and no module of `tc`.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import math
import os
import select
import signal
import struct
import time
from pathlib import Path

import pytest
from rank_lab import INTERFACE, RankLab

from timesyncd.simulation.bed.host import find, run

_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MAX_PACKET = 65_536

#: A packet that would wait longer in the queue of its direction is dropped.
_MAX_QUEUE_S = 0.5

#: How soon the relay notices that its parent is gone.
_PATIENCE_S = 0.1

needs_tun = pytest.mark.skipif(
    os.geteuid() != 0 or not _TUN.exists(), reason="a relay between network namespaces needs root and /dev/net/tun"
)


class TunPair(RankLab):
    """
    `bytes_per_s`: of each direction; None: no limit. `delay_s`: one way. `outage`: after each so many packets
    of a direction, it loses all for so many seconds.
    """

    def __init__(
        self, bytes_per_s: float | None = None, delay_s: float = 0.0, outage: tuple[int, float] | None = None
    ) -> None:
        super().__init__(2)
        self._bytes_per_s, self._delay_s, self._outage = bytes_per_s, delay_s, outage
        self._ends: list[int] = []
        self._relay: int | None = None

    def _build(self) -> None:
        for rank, name in enumerate(self.namespaces):
            device = f"tsr{os.getpid() % 100_000}x{rank}"
            self._ends.append(_tun(device))
            run([find("ip"), "netns", "add", name])
            run([find("ip"), "link", "set", device, "netns", name, "name", INTERFACE])
            run([find("ip"), "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", INTERFACE])
            for interface in ("lo", INTERFACE):
                run([find("ip"), "-n", name, "link", "set", interface, "up"])
        self._relay = self._forked()

    def _forked(self) -> int:
        """The relay's process. Load of the machine would be a delay of the link, so it has a real-time priority."""
        parent = os.getpid()
        child = os.fork()
        if child:
            return child
        try:
            with contextlib.suppress(PermissionError):  # a container may not allow it
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            self._hand_on(parent)
        finally:
            os._exit(1)

    def close(self) -> None:
        if self._relay is not None:
            os.kill(self._relay, signal.SIGKILL)
            os.waitpid(self._relay, 0)
            self._relay = None
        super().close()
        for end in self._ends:
            os.close(end)
        self._ends.clear()

    def _hand_on(self, parent: int) -> None:
        """Until the parent is gone."""
        other = dict(zip(self._ends, reversed(self._ends), strict=True))
        free_s, lost_s, passed = (dict.fromkeys(self._ends, 0.0) for _ in range(3))
        due: list[tuple[float, int, int, bytes]] = []
        every, for_s = self._outage or (math.inf, 0.0)
        number = 0
        while os.getppid() == parent:
            wait_s = min(_PATIENCE_S, max(0.0, due[0][0] - time.monotonic())) if due else _PATIENCE_S
            for end in select.select(self._ends, (), (), wait_s)[0]:
                packet, now_s = os.read(end, _MAX_PACKET), time.monotonic()
                begins_s = max(now_s, free_s[end])
                if now_s < lost_s[end] or begins_s - now_s > _MAX_QUEUE_S:
                    continue
                passed[end] += 1
                if passed[end] % every == 0:
                    lost_s[end] = now_s + for_s
                free_s[end] = begins_s + (len(packet) / self._bytes_per_s if self._bytes_per_s else 0.0)
                number += 1
                heapq.heappush(due, (free_s[end] + self._delay_s, number, other[end], packet))
            while due and due[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(due)
                _write(end, packet)


def _tun(name: str) -> int:
    """A descriptor that reads and writes the packets of a new interface; it may move to another namespace."""
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(end)
        raise
    return end


def _write(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError:
        pass  # the interface is down: its namespace is going, or not up yet
