"""Floods a daemon, and judges its memory and whether an honest client is served meanwhile."""

from __future__ import annotations

import os
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from timesyncd.simulation.bed.daemon import DaemonProcess

FLOOD_S = float(os.environ.get("TIMESYNCD_FLOOD_S", "3"))

#: From so long a flood on, it is judged whether the memory returns.
LONG_S = 60.0
MAX_GROWTH_KIB = 64 * 1_024
SETTLED_KIB = 256
#: What Python keeps of arenas in which a few small objects live.
ARENAS_KIB = 8 * 1_024


def until(is_so: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def rss_kib(daemon: DaemonProcess) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def is_served(daemon: DaemonProcess) -> bool:
    """By a new connection, as a probe makes it."""
    context = ssl._create_unverified_context() if daemon.page.startswith("https") else None
    try:
        with urllib.request.urlopen(daemon.page + "healthz", timeout=60, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def flooding(*senders: Callable[[Event], None]) -> Iterator[None]:
    ended = Event()
    threads = [Thread(target=sender, args=(ended,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def judge(daemon: DaemonProcess, *senders: Callable[[Event], None], max_growth_kib: int = MAX_GROWTH_KIB) -> None:
    """
    Flood it twice, and assert what it promises. The first flood, of a second, also loads what its code needs; the second one
    must leave nothing. Whether memory returns to within 10 % is judged by `make floods`: after a short flood of TLS that takes
    minutes at times.
    """
    until(lambda: is_served(daemon))
    idle = rss_kib(daemon)
    peak, served = flooded(daemon, 1, *senders)
    settled = settled_kib(daemon) if FLOOD_S >= LONG_S else idle
    peak_again, served_again = flooded(daemon, FLOOD_S, *senders)
    daemon.check()

    growth_kib = max(peak, peak_again) - idle
    print(
        f"idle {idle} KiB, grew by {growth_kib} KiB, then {settled} KiB; {len(served + served_again)} honest requests"
    )
    assert all(served + served_again)
    assert growth_kib <= max_growth_kib
    if FLOOD_S >= LONG_S:
        until(lambda: rss_kib(daemon) <= settled * 1.1 + ARENAS_KIB)
    print(f"afterwards {rss_kib(daemon)} KiB")


def flooded(daemon: DaemonProcess, seconds: float, *senders: Callable[[Event], None]) -> tuple[int, list[bool]]:
    """The most memory meanwhile, and whether each honest request was served."""
    peak, served = 0, list[bool]()
    with flooding(*senders):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(served) < 5:
            served.append(is_served(daemon))
            peak = max(peak, rss_kib(daemon))
            time.sleep(0.05)
    return peak, served


def settled_kib(daemon: DaemonProcess) -> int:
    """Its memory when that no longer changes."""
    last = 0
    while abs(last - (now := rss_kib(daemon))) > SETTLED_KIB:
        last = now
        time.sleep(11)  # longer than between two trims of the heap
    return now
