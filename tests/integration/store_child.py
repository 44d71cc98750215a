"""
A process that stores, for tests that kill it or fill its disk: `store_child.py PATH write|series|fill [UNTIL_NS]`.

Each line that it prints is one JSON object.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import Queue

from timesyncd.clocks import NS_PER_S, SystemClocks, real_minus_boot_ns
from timesyncd.config import StoreSettings
from timesyncd.model.observation import Observation
from timesyncd.sample import ClockSample, PortState, TimeErrorSeries
from timesyncd.store.writer import Store

CLOCKS = SystemClocks()
SAMPLE = ClockSample(
    source="ptp",
    clock="realtime",
    as_of_ns=0,
    read_ns=2,
    real_minus_boot_ns=0,
    offset_ns=0,
    path_delay_ns=2_000,
    granularity_ns=1,
    ingress_time_ns=0,
    port_state=PortState.SLAVE,
    grandmaster_identity="001122.fffe.334455",
    parent_identity="001122.fffe.334455",
    steps_removed=1,
    clock_class=6,
    clock_accuracy=0x21,
    ptp_timescale=False,
    time_traceable=False,
    current_utc_offset_s=None,
    time_source=0xA0,
    sync_interval_ns=125_000_000,
    delay_interval_ns=125_000_000,
)


def report(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def put(store: Store, number: int) -> None:
    now_ns = CLOCKS.boottime_ns()
    sample = replace(SAMPLE, as_of_ns=now_ns, real_minus_boot_ns=real_minus_boot_ns(CLOCKS), offset_ns=number)
    store.put(Observation(sample, None))


def write_for_ever(path: Path) -> None:
    """A hundred samples a second, numbered, each reported with its moment."""
    store = Store(StoreSettings(path=path), CLOCKS, print)
    store.start()
    store.next_incarnation("n1")
    for number in count():
        put(store, number)
        report(number=number, boottime_ns=CLOCKS.boottime_ns())
        time.sleep(0.01)


def put_a_day(path: Path) -> None:
    """A day of a channel, a point a second, ending at the third argument; reported when a part of it is stored, and when all is."""
    store = Store(StoreSettings(path=path), CLOCKS, print)
    store.start()
    store.next_incarnation("n1")
    until_ns = int(sys.argv[3])
    points = tuple((until_ns - second * NS_PER_S, second) for second in range(86_400))
    store.put(Observation(TimeErrorSeries("gm", "gnss-1", "te", points), None))
    while not store.stored:
        time.sleep(0.001)
    report(stored=store.stored)
    store.stop()
    report(stored=store.stored)


def fill_the_disk(path: Path) -> None:
    """On a file system of half a MiB, mounted in our own namespace: fill it, put until the store reports it, free it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", path.parent], check=True)
    reported: Queue[str | None] = Queue()
    store = Store(StoreSettings(path=path), CLOCKS, reported.put)
    store.start()
    store.next_incarnation("n1")
    fill(path.with_name("ballast"))
    numbers = count()
    while reported.empty():
        put(store, next(numbers))
        time.sleep(0.01)
    problem = reported.get()
    path.with_name("ballast").unlink()
    over = reported.get(timeout=60)
    store.stop()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT count(*) FROM clock_sample").fetchone()[0]
    report(problem=problem, over=over, lost=next(numbers) - rows, reported_again=reported.qsize())


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 512):
            pass


if __name__ == "__main__":
    {"write": write_for_ever, "series": put_a_day, "fill": fill_the_disk}[sys.argv[2]](Path(sys.argv[1]))
