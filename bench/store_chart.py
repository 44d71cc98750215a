"""
How long a chart of a day takes out of a store of ten million samples: `series.series`, as the page asks for it, beside the smallest and the
largest value of the day's raw rows by the standard library alone. Goal: under 50 ms.

The store is made once, in a temporary folder: 8 samples a second up to now, and roll-ups as the store makes them.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from store_write import SAMPLE

from timesyncd.clocks import NS_PER_S
from timesyncd.store import series as store_series
from timesyncd.store.engine import StoreLocation, migrate
from timesyncd.store.rows import CLOCK_COLUMNS, clock_values

RATE_HZ, DAY_NS = 8, 86_400 * NS_PER_S
ROUNDS, CHUNK_ROWS = 7, 50_000

#: Extremes, mean and count are those of the rows; the chart's time does not hang on what the percentiles are.
ROLL_UP = """
INSERT INTO rollup SELECT 'n1', source, 'offset_ns', {span_s}, realtime_ns / {span_ns} * {span_ns} AS begins, count(*), min(offset_ns),
  max(offset_ns), CAST(avg(offset_ns) AS INTEGER), min(offset_ns), max(offset_ns)
FROM clock_sample GROUP BY source, begins HAVING begins + {span_ns} <= {until_ns}
"""
EXTREMES = "SELECT min(offset_ns), max(offset_ns) FROM clock_sample WHERE source = 'ptp' AND realtime_ns >= ? AND realtime_ns < ?"


def fill(connection: sqlite3.Connection, number: int, until_ns: int) -> None:
    """As fast as SQLite takes them."""
    connection.execute("PRAGMA synchronous=OFF")
    values = clock_values(SAMPLE, None)
    time_at, offset_at = CLOCK_COLUMNS.index("realtime_ns"), CLOCK_COLUMNS.index("offset_ns")
    named = ["?1" if at == time_at else "?2" if at == offset_at else f"?{at + 3}" for at in range(len(values))]
    insert = f"INSERT INTO clock_sample ({', '.join(CLOCK_COLUMNS)}) VALUES ({', '.join(named)})"
    begins_ns = until_ns - number * NS_PER_S // RATE_HZ
    for start in range(0, number, CHUNK_ROWS):
        numbers = range(start, min(start + CHUNK_ROWS, number))
        rows = ((begins_ns + index * NS_PER_S // RATE_HZ, index * 7_919 % 2_003, *values) for index in numbers)
        connection.executemany(insert, rows)
        connection.commit()
    for span_s in (60, 3_600):
        connection.execute(ROLL_UP.format(span_s=span_s, span_ns=span_s * NS_PER_S, until_ns=until_ns))
    connection.execute("INSERT INTO incarnation VALUES ('n1', 1, 1)")
    connection.commit()


def median_ms(question: Callable[[], object]) -> float:
    """The first, which fills the caches, is left out."""
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        question()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000, metavar="N", help="in the store (%(default)s)")
    number = parser.parse_args().samples
    until_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        location = StoreLocation(path=Path(folder) / "store.sqlite")
        migrate(location)
        with closing(sqlite3.connect(str(location))) as connection:
            began = time.perf_counter()
            fill(connection, number, until_ns)
            print(f"{number:,} samples stored in {time.perf_counter() - began:.0f} s")
            span = (until_ns - DAY_NS, until_ns)
            chart = store_series.series(location, "n1", "ptp", "offset_ns", *span)
            chart_ms = median_ms(lambda: store_series.series(location, "n1", "ptp", "offset_ns", *span))
            base_ms = median_ms(lambda: connection.execute(EXTREMES, span).fetchone())
            print(f"a day's chart, {len(chart):,} records: {chart_ms:.1f} ms")
            print(f"  min and max over the day's raw rows: {base_ms:.1f} ms; ratio {chart_ms / base_ms:.3f}")


if __name__ == "__main__":
    main()
