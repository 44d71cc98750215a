"""
How many samples of a clock the store takes a second: from observations to committed rows of SQLite, by the way of the daemon's own writer, beside
the bare cost of the same columns (JSON decode, and sqlite3's executemany into a table alike). Goal: 100,000 a second.

Two kinds of observation: with the bound that followed from the sample and all that it is made of, as a daemon stores it, and the
sample alone.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Rate
from timesyncd.ipc.clock_segment import TERMS
from timesyncd.sample import ClockSample, PortState
from timesyncd.store import session
from timesyncd.store.backlog import RowBatch
from timesyncd.store.engine import StoreLocation, migrate, writer_engine
from timesyncd.store.rows import CLOCK_COLUMNS, ClockEntry, Entry, clock_values
from timesyncd.store.writer import BATCH_ROWS

ROUNDS = 5
SAMPLE = ClockSample(
    source="ptp", clock="realtime", as_of_ns=10**12, read_ns=10**12 + 900_000, real_minus_boot_ns=1_699_999_000_123_456_789, offset_ns=-312,
    path_delay_ns=2_417, granularity_ns=1, ingress_time_ns=1_700_000_000_123_456_789, port_state=PortState.SLAVE,
    grandmaster_identity="001122.fffe.334455", parent_identity="66778899.fffe.aabbcc", steps_removed=2, clock_class=6,
    clock_accuracy=0x21, ptp_timescale=True, time_traceable=True, current_utc_offset_s=37, time_source=0x20,
    sync_interval_ns=125_000_000, delay_interval_ns=1_000_000_000, delay_requests_sent=4_711, delay_responses_received=4_711,
    frequency_ppb=-12_345, domain=24,
)  # fmt: skip
BOUND = ErrorBound(
    as_of_ns=10**12, real_minus_boot_ns=SAMPLE.real_minus_boot_ns, parent_hard=Bound(5_911, 50_400), gm_hard=Bound(6_111, 50_500),
    utc_hard=Bound(6_361, 50_600), gm_status=ClockStatus.SYNCHRONIZED, utc_status=ClockStatus.SYNCHRONIZED, utc_seconds_removed=37,
    parent_stat=Bound(1_802, 1_210), gm_stat=Bound(2_002, 1_310), utc_stat=Bound(2_252, 1_410),
    terms=dict.fromkeys(TERMS, 591), stat_terms=dict.fromkeys(TERMS[:5], 360), rates={Rate.LOCAL_DRIFT: 1_000, Rate.STEERING: 49_300},
)  # fmt: skip


Observed = tuple[ClockSample, ErrorBound | None]


def observations(number: int, bound: ErrorBound | None) -> list[Observed]:
    return [(replace(SAMPLE, as_of_ns=SAMPLE.as_of_ns + index, offset_ns=index), bound) for index in range(number)]


def store_s(folder: Path, observed: list[Observed]) -> float:
    """As the daemon's writer does it: an entry for each, a transaction for each batch."""
    location = StoreLocation(path=folder / "store.sqlite")
    migrate(location)
    engine = writer_engine(location)
    with engine.begin():
        pass
    began = time.perf_counter()
    for start in range(0, len(observed), BATCH_ROWS):
        entries: list[Entry] = [ClockEntry(*each, queued_ns=0) for each in observed[start : start + BATCH_ROWS]]
        with engine.begin() as connection:
            session.insert_batch(connection, RowBatch(entries, []))
    took_s = time.perf_counter() - began
    engine.dispose()
    return took_s


def bare_s(folder: Path, lines: list[str]) -> float:
    """The standard library alone, with our adapters for flags and NULLs, into a table of the same columns and index."""
    names = ", ".join(CLOCK_COLUMNS)
    insert = f"INSERT INTO clock_sample ({names}) VALUES ({', '.join('?' * len(CLOCK_COLUMNS))})"
    location = StoreLocation(path=folder / "bare.sqlite")
    migrate(location)
    with closing(sqlite3.connect(str(location))) as connection:
        connection.execute("PRAGMA synchronous=NORMAL")
        began = time.perf_counter()
        for start in range(0, len(lines), BATCH_ROWS):
            rows = [json.loads(line) for line in lines[start : start + BATCH_ROWS]]
            connection.executemany(insert, rows)
            connection.commit()
        return time.perf_counter() - began


def measure(name: str, number: int, bound: ErrorBound | None) -> None:
    observed = observations(number, bound)
    lines = [json.dumps(clock_values(*each)) for each in observed]
    stored, bare = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            stored.append(store_s(Path(folder), observed))
            bare.append(bare_s(Path(folder), lines))
    ours, theirs = (number / statistics.median(times) for times in (stored, bare))
    print(f"{name}: {ours:,.0f} samples/s (best {number / min(stored):,.0f})")
    print(f"  bare JSON decode and executemany: {theirs:,.0f} rows/s; ratio {ours / theirs:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000, metavar="N", help="in each of the rounds (%(default)s)")
    number = parser.parse_args().samples
    measure("sample with its bound", number, BOUND)
    measure("sample alone", number, None)


if __name__ == "__main__":
    main()
