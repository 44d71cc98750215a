"""
The step that `timesyncd audit --from` predicts without a cause, against the same job run without it: four real gloo ranks.

    python bench/what_if.py [--runs 3] [--steps 80] [--json]

For each kind of cause three jobs run under `run-audit`: without the cause, with it, and without it again. The ratio is the predicted step over the
mean step of the two jobs without the cause, by the wall time of their ranks. The goal is 1 within 2 %. Processes that only spin, under SCHED_IDLE, keep the
cores awake: without them the host of a virtual machine returns a core late, and the two jobs differ by more than the goal. It takes half an hour.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RANKS = 4
SCRIPT = Path(__file__).with_name("_what_if_rank.py")


@dataclass(frozen=True)
class Kind:
    """`healthy` are the options of the run without the cause, `cause` those that add it; `named` is what the audit must name."""

    text: str
    healthy: tuple[str, ...]
    cause: tuple[str, ...]
    named: tuple[str, int | None]


KINDS = (
    Kind("rank 2 of 4, 30 % longer", ("ddp",), ("--slow-rank", "2", "--factor", "1.3"), ("rank", 2)),
    Kind("rank 3 of 2 stages, 40 % longer", ("pipeline",), ("--slow-rank", "3", "--factor", "1.4"), ("rank", 3)),
    Kind("last of 2 stages, 50 % longer", ("pipeline",), ("--slow-stage", "1", "--factor", "1.5"), ("stage", 1)),
    Kind("unequal micro-batches", ("pipeline",), ("--unequal",), ("sequences", None)),
)


def ended(command: list[str], folder: str) -> str:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, check=False, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[:3000]}")
    return done.stdout


def run(options: tuple[str, ...], steps: int, folder: str, recorded: str) -> float:
    """The ranks' mean step in ms; `recorded` is the name of the recording in the folder."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    audited = [sys.executable, "-m", "timesyncd", "run-audit", "--out", recorded, "--"]
    command = [*audited, *torchrun, str(SCRIPT), *options, "--steps", str(steps)]
    lines = [line for line in ended(command, folder).splitlines() if line.startswith('{"rank"')]
    return 1e3 * statistics.fmean(json.loads(line)["step_s"] for line in lines)


@contextmanager
def awake_cores() -> Iterator[None]:
    spinners = [multiprocessing.Process(target=spin, daemon=True) for _ in os.sched_getaffinity(0)]
    for spinner in spinners:
        spinner.start()
    yield
    for spinner in spinners:
        spinner.kill()


def spin() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


def measured(kind: Kind, steps: int, folder: str) -> dict[str, object]:
    before_ms = run(kind.healthy, steps, folder, "before")
    with_cause_ms = run((*kind.healthy, *kind.cause), steps, folder, "recorded")
    after_ms = run(kind.healthy, steps, folder, "after")
    report = json.loads(
        ended([sys.executable, "-m", "timesyncd", "audit", "--from", "recorded", "--out", "blamed", "--json"], folder)
    )
    healthy_ms = (before_ms + after_ms) / 2
    predicted_ns = report["without_causes_ns"]
    causes = [
        (each["kind"], each.get("rank") if each["kind"] == "rank" else each.get("stage")) for each in report["causes"]
    ]
    return {
        "kind": kind.text,
        "healthy_ms": healthy_ms,
        "healthy_apart": abs(after_ms - before_ms) / healthy_ms,
        "with_cause_ms": with_cause_ms,
        "predicted_ms": None if predicted_ns is None else predicted_ns / 1e6,
        "ratio": None if predicted_ns is None or not causes else predicted_ns / 1e6 / healthy_ms,
        "is_named": causes == [kind.named],
        "headline": report["headline"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with awake_cores():
        for kind in KINDS * options.runs:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(kind, options.steps, folder)
            print(json.dumps(row) if options.json else line(row), flush=True)


def line(row: dict[str, object]) -> str:
    ratio = row["ratio"]
    predicted = (
        "nothing is predicted" if ratio is None else f"predicted {row['predicted_ms']:.1f} ms, ratio {ratio:.4f}"
    )
    return (
        f"{row['kind']}: {row['with_cause_ms']:.1f} ms; without it {row['healthy_ms']:.1f} ms "
        f"(two runs {100 * float(str(row['healthy_apart'])):.1f} % apart), {predicted}; "
        f"{'named' if row['is_named'] else 'not named: ' + str(row['headline'])}"
    )


if __name__ == "__main__":
    main()
