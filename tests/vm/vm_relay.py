"""A cable that delays and drops Ethernet frames, differently in each direction."""

from __future__ import annotations

import heapq
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

PRIORITY = 11
LARGEST_FRAME = 1 << 16

#: IEEE 1588-2019, annex F (Ethernet) and table 36 (types of messages).
PTP_ETHERTYPE = b"\x88\xf7"
SYNC, DELAY_REQ, FOLLOW_UP, DELAY_RESP, ANNOUNCE = 0x0, 0x1, 0x8, 0x9, 0xB


def message_type(frame: bytes) -> int | None:
    """Of a PTP message in an Ethernet frame; None: another frame."""
    return frame[14] & 0xF if len(frame) > 14 and frame[12:14] == PTP_ETHERTYPE else None


@dataclass
class Direction:
    """What happens to the frames of one direction; changed at any time, it holds for frames that come later."""

    delay_s: float = 0.0
    dropped: frozenset[int] = field(default_factory=frozenset)
    passed: int = 0

    def takes(self, frame: bytes) -> bool:
        return message_type(frame) not in self.dropped


class Relay:
    """Between the ends of a cable, two or more: `directions[0]` are the frames that end 0 sends, to all others."""

    def __init__(self, folder: Path, name: str, ends: int = 2) -> None:
        self.directions = tuple(Direction() for _ in range(ends))
        self._ends = [str(folder / f"{name}.{end}") for end in range(ends)]
        self._sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in self._ends]
        for end, each in enumerate(self._sockets):
            each.bind(str(folder / f"{name}.relay{end}"))
            each.setblocking(False)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()
        self._closing, self._closed = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"relay {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.send(b"x")
        self._thread.join()
        for each in (*self._sockets, self._closing, self._closed):
            each.close()

    @contextmanager
    def realtime(self) -> Iterator[None]:
        """The relay's thread runs before everything else on this machine."""
        thread = self._thread.native_id
        assert thread is not None
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
        try:
            yield
        finally:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))

    def _run(self) -> None:
        while True:
            wait_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            readable, _, _ = select.select([*self._sockets, self._closed], [], [], wait_s)
            if self._closed in readable:
                return
            for end, each in enumerate(self._sockets):
                if each in readable:
                    self._receive(end)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(self._waiting)
                self._send(end, frame)

    def _receive(self, end: int) -> None:
        frame = self._sockets[end].recv(LARGEST_FRAME)
        direction = self.directions[end]
        if not direction.takes(frame):
            return
        direction.passed += 1
        heapq.heappush(self._waiting, (time.monotonic() + direction.delay_s, next(self._numbers), end, frame))

    def _send(self, end: int, frame: bytes) -> None:
        """To the other ends. A machine that is not up, or has no room, loses the frame, as a card would."""
        for other, each in enumerate(self._sockets):
            if other == end:
                continue
            try:
                each.sendto(frame, self._ends[other])
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                pass
