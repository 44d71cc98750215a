"""
How fast `timesyncd replay` is: a day at 8 Hz, every row a fresh sample, against the simplest formula (|offset| + path delay + age x 1 ppm) over
the same file by csv.DictReader. Goal: under 30 s for the day. Measured is an hour, unless --day asks for all of it; what an empty trace takes,
the start of the program, counts once.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATE_HZ, DAY_S = 8, 86_400
HOUR_S, ROUNDS = 3_600, 5

PEER = "import sys; sys.path.insert(0, sys.argv[1]); import replay_speed; replay_speed.simple(sys.argv[2])"


def write_trace(path: Path, seconds: int) -> None:
    """A noisy path and a servo: no offset is that of the row before."""
    chance = random.Random(1)
    offset_ns, frequency_ppb = 0, 3_000.0
    with path.open("w") as file:
        file.write("t_s,offset_ns,path_delay_ns,freq_ppb,port_state,gm_present,clock_class,clock_accuracy\n")
        for row in range(seconds * RATE_HZ):
            before_ns, offset_ns = offset_ns, round(chance.gauss(0, 3_000))
            offset_ns += offset_ns == before_ns
            delay_ns = 50_000 + round(chance.expovariate(1 / 3_000))
            frequency_ppb += chance.gauss(0, 1)
            file.write(f"{1_000 + row / RATE_HZ},{offset_ns},{delay_ns},{round(frequency_ppb)},SLAVE,true,6,33\n")


def simple(path: str) -> None:
    """The peer: no memory but the last offset."""
    offset, fresh_s = "", 0.0
    with open(path) as file:
        for row in csv.DictReader(file):
            now_s = float(row["t_s"])
            if row["offset_ns"] != offset:
                offset, fresh_s = row["offset_ns"], now_s
            bound_ns = abs(int(offset)) + int(row["path_delay_ns"]) + 1_000 * (now_s - fresh_s)
            sys.stdout.write(f"{row['t_s']},{bound_ns:.0f}\n")


def seconds_of(command: list[str], trace: Path) -> float:
    began = time.perf_counter()
    subprocess.run([*command, str(trace)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def whole_day_s(command: list[str], trace: Path, empty: Path, seconds: int) -> float:
    start_s = seconds_of(command, empty)
    return start_s + (seconds_of(command, trace) - start_s) * DAY_S / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", action="store_true", help="replay the whole day, once")
    is_whole = parser.parse_args().day
    seconds, rounds = (DAY_S, 1) if is_whole else (HOUR_S, ROUNDS)
    ours = [sys.executable, "-m", "timesyncd", "replay"]
    theirs = [sys.executable, "-c", PEER, str(Path(__file__).parent)]
    with tempfile.TemporaryDirectory() as folder:
        trace, empty = Path(folder) / "trace.csv", Path(folder) / "empty.csv"
        write_trace(trace, seconds)
        write_trace(empty, 0)
        pairs = [tuple(whole_day_s(each, trace, empty, seconds) for each in (ours, theirs)) for _ in range(rounds)]
    ours_s, theirs_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    how = "all of it, once" if is_whole else f"from an hour, medians of {rounds} rounds"
    rows = DAY_S * RATE_HZ
    print(f"a day at {RATE_HZ} Hz, {rows:,} rows ({how}):")
    print(
        f"timesyncd replay {ours_s:.1f} s (goal < 30), {ours_s / rows * 1e6:.1f} us a row; simple formula {theirs_s:.1f} s"
    )
    print(f"ratio {statistics.median(a / b for a, b in pairs):.1f}")


if __name__ == "__main__":
    main()
