"""The CPU time that this process spends on packing and compressing what it sends: for `timesyncd audit`."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from timesyncd.ipc.network_record import PackingPart, PackingTime


class Packing:
    """
    Counts the CPU time of the thread inside `with`, for so many octets. What it waits there for others costs no CPU
    time, so it does not count.
    """

    __slots__ = ("_began_ns", "_bytes", "_part")

    def __init__(self, part: PackingPart, bytes: int) -> None:
        self._part = part
        self._bytes = bytes

    def __enter__(self) -> None:
        self._began_ns = time.thread_time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cpu_ns = time.thread_time_ns() - self._began_ns
        with _lock:
            before = _times.get(self._part, PackingTime(0, 0))
            _times[self._part] = PackingTime(before.cpu_ns + cpu_ns, before.bytes + self._bytes)


_Method = Callable[..., Any]


def counts_packing(part: PackingPart, unpacks: bool = False) -> Callable[[_Method], _Method]:
    """
    For a method of an object with `nbytes`, the octets that it packs, and `sample`, a tensor of them or None: a device
    packs by itself. `unpacks`: the octets were counted when they were packed.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def counted(self: Any, *args: Any, **rest: Any) -> Any:
            if self.sample is None or self.sample.device.type != "cpu":
                return method(self, *args, **rest)
            with Packing(part, 0 if unpacks else self.nbytes):
                return method(self, *args, **rest)

        return counted

    return decorate


_times: dict[PackingPart, PackingTime] = {}
_lock = threading.RLock()


def packing_times() -> dict[PackingPart, PackingTime]:
    """Since the process started."""
    with _lock:
        return dict(_times)


def _reset_in_child() -> None:
    """The thread that held the lock does not exist there."""
    global _lock
    _lock = threading.RLock()
    _times.clear()


os.register_at_fork(after_in_child=_reset_in_child)
