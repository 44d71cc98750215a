"""
What MTIE, TDEV and ADEV cost while samples arrive at 8 Hz: the share of a core, beside allantools that recomputes them each minute over the
same day. Goal: below 1 % of a core.

With `--sets FOLDER`, the unpacked source of allantools (`pip download --no-deps --no-binary :all: allantools`), it also prints how far the
numbers are from allantools' on its own test sets. Goal: 1e-9.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import allantools
import numpy as np
from numpy.typing import NDArray

from timesyncd.stability.readings import Reading
from timesyncd.stability.report import StabilityMeter, observation_intervals
from timesyncd.stability.streaming import StabilitySums

RATE_HZ = 8
INTERVAL_NS = 1_000_000_000 // RATE_HZ
LONGEST_NS = 10_000 * 1_000_000_000
DAY = 86_400 * RATE_HZ
ROUNDS = 3
#: Of a test set, in parts of its largest value: as fine as a double and the 64-bit ring allow.
RESOLUTION = 1 << 40
#: The sets that allantools' own tests read: file, and whether it holds frequencies.
SETS = (
    ("phasedat/PHASE.DAT", False),
    ("ocxo/ocxo_frequency.txt", True),
    ("gps/gps_1pps_phase_data.txt.gz", False),
    ("Cs5071A/5071A_phase.txt.gz", False),
    ("Keysight53230A_ti_noise_floor/tic_phase.txt", False),
)
Numbers = NDArray[np.float64]
DEVIATIONS: dict[str, Callable[..., tuple[Numbers, ...]]] = {
    "ADEV": allantools.oadev,
    "TDEV": allantools.tdev,
    "MTIE": allantools.mtie,
}


def samples(number: int) -> list[int]:
    """White phase noise on a random walk, in ns."""
    noise, walk, made = random.Random(1), 0.0, []
    for _ in range(number):
        walk += noise.gauss(0, 0.2)
        made.append(round(walk + noise.gauss(0, 8)))
    return made


def streamed_s(values: list[int]) -> float:
    """The processor time of all numbers of a report, filter and blocks too, for each sample; of the windows that are full."""
    meter = StabilityMeter(INTERVAL_NS, LONGEST_NS)
    half = len(values) // 2
    for index, value in enumerate(values[:half]):
        meter.add(Reading(index * INTERVAL_NS, value))
    began = time.process_time()
    for index, value in enumerate(values[half:], half):
        meter.add(Reading(index * INTERVAL_NS, value))
    return (time.process_time() - began) / (len(values) - half)


def recomputed_s(values: list[int]) -> float:
    """The processor time of allantools' three numbers over a day of samples, at the same octaves."""
    series = np.array(values, float)
    taus = [each / RATE_HZ for each in observation_intervals(INTERVAL_NS, LONGEST_NS)]
    began = time.process_time()
    allantools.oadev(series, rate=RATE_HZ, taus=taus)
    allantools.tdev(series, rate=RATE_HZ, taus=taus)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        allantools.mtie_phase_fast(series, rate=RATE_HZ)
    return time.process_time() - began


def print_cost(streamed_samples: int, day_samples: int) -> None:
    streamed, recomputed = [], []
    values = samples(max(streamed_samples, day_samples))
    for _ in range(ROUNDS):
        streamed.append(streamed_s(values[:streamed_samples]) * RATE_HZ)
        recomputed.append(recomputed_s(values[:day_samples]) / 60)
    ours, theirs = min(streamed), min(recomputed)
    print(f"timesyncd, each sample at {RATE_HZ} Hz: {ours:.3%} of a core (goal below 1 %)")
    print(f"allantools, each minute over {day_samples} samples: {theirs:.3%} of a core")
    print(f"ratio: {ours / theirs:.4f}")


def read_set(folder: Path, name: str) -> Numbers:
    [path] = folder.rglob(f"tests/{name}")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return np.array(list(numbers(data.decode())))


def numbers(text: str) -> Iterator[float]:
    """The first column of each line that begins with a number."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield float(line.split()[0])


def print_differences(folder: Path, limit: int) -> None:
    for name, frequencies in SETS:
        values = read_set(folder, name)[:limit]
        phases = np.concatenate(([0.0], np.cumsum(values - values.mean()))) if frequencies else values
        phases = phases - phases[0]
        step = float(np.max(np.abs(phases))) / RESOLUTION
        whole = [round(value / step) for value in phases.tolist()]
        print(f"{name}, {len(whole)} samples: {differences(whole)}")


def differences(whole: list[int]) -> str:
    """The largest relative difference of each number at any octave; both sides get the same integers."""
    octaves = [1 << power for power in range((len(whole) // 4).bit_length())]
    sums = StabilitySums(octaves)
    for value in whole:
        sums.add(value)
    series, found = np.array(whole, float), sums.results()
    ours: dict[str, list[float | None]] = {
        "ADEV": [each.adev(each.interval_samples) for each in found],
        "TDEV": [each.tdev for each in found],
        "MTIE": [each.mtie for each in found],
    }
    texts = []
    for name, computed in DEVIATIONS.items():
        worst = max(
            abs(mine / computed(series, taus=[octave])[1][0] - 1)
            for octave, mine in zip(octaves, ours[name], strict=True)
            if mine
        )
        texts.append(f"{name} {worst:.1e}")
    return ", ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400_000, help="streamed; the second half is timed")
    parser.add_argument("--day", type=int, default=DAY, help="samples that allantools recomputes (default: a day)")
    parser.add_argument("--sets", type=Path, metavar="FOLDER", help="unpacked source of allantools")
    parser.add_argument("--limit", type=int, default=100_000, help="samples of each set (default: %(default)s)")
    args = parser.parse_args()
    print_cost(args.samples, args.day)
    if args.sets is not None:
        print_differences(args.sets, args.limit)


if __name__ == "__main__":
    main()
