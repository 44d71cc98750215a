"""
Two jobs on one link, shaped by `tc` between two network namespaces, with and without phases. Needs root.

Each job's two ranks compute (sleep) and then exchange as much as the link takes the same time for, so alone each sends for half of the time. They
start in phase (where 1.5 is what can be gained at most), at random, or with periods of 10 : 7, which do not fit. Runs with and without
phases take turns; the ratios are of the mean steps, with phases over the second half of a run, which is after the plan.

The link gives each job that sends the same (`htb`, a class a job), as fair queues do: there what is in phase stays so. Last, in phase on a link with one
queue (`tbf`): there it does not last, since the job that begins a little earlier gets a little more, which puts the jobs apart; so without phases both the first
steps and the last part of a run are reported. Prints medians and all values; quiet neighbours, or `chrt -f 10`, matter: a scheduler that lets a rank wait
puts jobs apart as well.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import End, Namespace, join, new_marker

RATE = "100mbit"

#: Of the jobs, on the fair link: minors of the class 1:, in hexadecimal.
QUEUES = (10, 11)
BYTES = 2_000_000
LEAD_S = 4
RANK = Path(__file__).with_name("_phase_rank.py")

#: What a rank prints: when its steps began, in ns, how long each sent, and for how long it was held in all.
RankResult = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A job: its compute time, how much it sends, and how much later than the other it starts."""

    compute_ms: float
    bytes: int = BYTES
    behind_s: float = 0.0


def one_queue(device: str) -> list[str]:
    return [f"qdisc add dev {device} root tbf rate {RATE} burst 4kb latency 50ms"]


def fair(device: str) -> list[str]:
    """A class a job, by the priority of what it sends; what one does not need the other gets."""
    shape = f"ceil {RATE} burst 4kb cburst 4kb"
    return [
        f"qdisc add dev {device} root handle 1: htb default {QUEUES[0]}",
        f"class add dev {device} parent 1: classid 1:1 htb rate {RATE} {shape}",
        *(f"class add dev {device} parent 1:1 classid 1:{q} htb rate 50mbit {shape} quantum 1514" for q in QUEUES),
    ]


@contextmanager
def link(shaping: Callable[[str], list[str]]) -> Iterator[list[Namespace]]:
    """Two namespaces joined by one shaped link."""
    with ExitStack() as stack:
        spaces = [Namespace(), Namespace()]
        for space in spaces:
            stack.callback(space.close)
        join(End("p0", "192.0.2.1/24", spaces[0]), End("p1", "192.0.2.2/24", spaces[1]))
        for number, space in enumerate(spaces):
            space.run(["ip", "link", "set", f"p{number}", "gso_max_size", "1500", "gso_max_segs", "1"])
            space.run(["sh", "-c", "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"])
            for command in shaping(f"p{number}"):
                space.run(["tc", *command.split()])
        yield spaces


@contextmanager
def daemon(folder: Path) -> Iterator[DaemonProcess]:
    """A hub for the one machine, whose ranks share a link, and a clock."""
    node = DaemonProcess("bench", folder, "", new_marker(), hub=True, has_store=False)
    node.configure()
    node.config.write_text(node.config.read_text().replace("[node]\n", '[node]\nlink = "bench"\n'))
    node.start()
    try:
        yield node
    finally:
        node.stop()


def run(
    spaces: Sequence[Namespace],
    folder: Path,
    shapes: Sequence[Shape],
    phases: bool,
    seconds: float,
) -> list[RankResult]:
    """The result of rank 0 of each job."""
    start, port = time.time() + LEAD_S, 20_000 + random.randrange(20_000)
    processes = []
    for job, shape in enumerate(shapes):
        for rank, space in enumerate(spaces):
            command = [sys.executable, str(RANK), f"job-{port}-{job}", str(rank), "192.0.2.1", str(port + job)]
            command += [f"--runtime-dir={folder}", f"--start-at={start + shape.behind_s}", f"--until={start + seconds}"]
            command += [
                f"--compute-ms={shape.compute_ms}",
                f"--bytes={shape.bytes}",
                f"--priority={0x10000 + int(str(QUEUES[job]), 16)}",
                *(["--phases"] if phases else []),
            ]
            processes.append(
                subprocess.Popen(host.dying_with_parent(space.enter(command)), stdout=subprocess.PIPE, text=True)
            )
    try:
        outputs = [process.communicate(timeout=seconds + 60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [json.loads(each) for each in outputs[::2]]


def mean_ms(result: RankResult, first: float, last: float = 1.0) -> float:
    """The mean step over a part of a run."""
    starts = result["starts"]
    starts = starts[int(len(starts) * first) : int(len(starts) * last)]
    return float(starts[-1] - starts[0]) / (len(starts) - 1) / 1e6


def reasons(node: DaemonProcess) -> str:
    """The hub's reason for the plan of the newest job's link."""
    with urllib.request.urlopen(f"{node.page}api/v1/jobs", timeout=30) as answer:
        newest = max(json.load(answer)["items"], key=lambda job: int(job["published_realtime_ns"]))
    return str(newest["phase_reason"])


def alone_ms(spaces: Sequence[Namespace], folder: Path) -> float:
    """How long the link takes for one job's exchange when no other job sends."""
    (results,) = run(spaces, folder, [Shape(30)], False, 5)
    return float(statistics.median(results["sent"])) / 1e6


def compare(spaces: Sequence[Namespace], name: str, rounds: Sequence[Sequence[Shape]], seconds: float) -> None:
    """Each run with a hub of its own, which has not seen the former one's jobs come and go."""
    ratios: dict[str, list[float]] = {"the first fifth": [], "the last three fifths": []}
    for shapes in rounds:
        with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)):
            without = run(spaces, Path(folder), shapes, False, seconds * 0.6)
        with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)) as node:
            results = run(spaces, Path(folder), shapes, True, seconds)
            reason = reasons(node)
        with_ms = [mean_ms(each, 0.5) for each in results]
        for part, (first, last) in zip(ratios, ((0, 0.2), (0.4, 1)), strict=True):
            without_ms = [mean_ms(each, first, last) for each in without]
            ratios[part].append(sum(without_ms) / sum(with_ms))
            print(
                f"  {name}: {part} without {_text(without_ms)} ms a step, with phases {_text(with_ms)} ms", flush=True
            )
        print(f"  {name}: held {_text([each['held_ns'] / 1e6 for each in results])} ms in all; {reason}", flush=True)
    for part, found in ratios.items():
        print(
            f"{name}: {statistics.median(found):.3f}x against {part} of runs without phases"
            f" (median of {len(found)}: {min(found):.3f} to {max(found):.3f})",
            flush=True,
        )


def _text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    source = random.Random(1)
    with link(fair) as spaces:
        with tempfile.TemporaryDirectory() as folder:
            half_ms = alone_ms(spaces, Path(folder))
        print(
            f"one job alone: {half_ms:.1f} ms for {BYTES} bytes at {RATE}; so each job computes {half_ms:.1f} ms",
            flush=True,
        )
        equal = Shape(half_ms)
        cases = {
            "started in phase": [[equal, equal]] * options.runs,
            "started at random": [
                [equal, Shape(half_ms, behind_s=source.uniform(0, 2 * half_ms / 1000))] for _ in range(options.runs)
            ],
            "periods of 10 : 7": [[equal, Shape(half_ms * 0.7, int(BYTES * 0.7))]] * options.runs,
        }
        for name, rounds in cases.items():
            if options.only in name:
                compare(spaces, name, rounds, options.seconds)
    if options.only in (name := "in phase, one queue"):
        with link(one_queue) as spaces:
            compare(spaces, name, [[equal, equal]] * options.runs, options.seconds)


if __name__ == "__main__":
    main()
