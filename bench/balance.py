"""
Batch shares by speed (`synchronized(..., balance=True)`) against equal batches: 4 gloo ranks, each with a CPU quota of
40 % of a core, of which one has 20 % all the time, in the middle third, or less and less. Blocks with equal and with
balanced batches take turns in the same processes.

Printed, first with no rank slow: the time of a step with both, and its spread over the rounds. Then the share of the
lost time that the shares recover, and for the rank that is slow all the time the gain that `timesyncd advise` predicts
by the marks of the equal batches, beside the one that is measured. Needs root and the kernel's cpu controller
(version 1); takes four minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _balance_rank import CASES, QUOTA, SLOW_QUOTA

from timesyncd.audit.build import advice_for
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AdviceKind
from timesyncd.jobs.recording_files import load

RANKS = 4

#: The goals: the least share of the lost time that is recovered, the most by which a step is longer with no rank slow, and
#: by how much the predicted gain may differ from the measured one.
RECOVERED, LONGER, OFF = 0.5, 0.02, 0.1

#: The first steps of a block are left out: the shares settle.
SETTLING = 40


def step_ms(block: dict[str, list[int]]) -> float:
    ends = block["ends_ns"][SETTLING:]
    return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e6


def run(folder: Path, cgroup: Path, rounds: int, steps: int) -> list[dict[str, object]]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    rank = [str(Path(__file__).with_name("_balance_rank.py")), str(folder), str(cgroup)]
    size = ["--rounds", str(rounds), "--steps", str(steps)]
    subprocess.run([sys.executable, *launch, *rank, *size], check=True)
    found: list[dict[str, object]] = json.loads((folder / "found.json").read_text())
    return found


def predicted(folder: Path, rounds: int) -> list[float]:
    """The gain of batch shares by the advice, of each round in which it has a price."""
    gains = []
    for turn in range(rounds):
        advice = advice_for(measured(load(folder / f"marks-{turn}" / "constant"))).advice
        gains += [one.gain.value for one in advice if one.kind is AdviceKind.BATCH_SHARES and one.gain is not None]
    return gains


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rounds", type=int, default=2)
    given.add_argument("--steps", type=int, default=160)
    given.add_argument("--cgroup", type=Path, default=Path("/sys/fs/cgroup/cpu"))
    arguments = given.parse_args()
    if not (arguments.cgroup / "cpu.shares").exists():
        raise SystemExit(
            f"{arguments.cgroup}: not the kernel's cpu controller of version 1; the quotas need it, and root"
        )
    with tempfile.TemporaryDirectory(prefix="balance-") as name:
        blocks = run(Path(name), arguments.cgroup, arguments.rounds, arguments.steps)
        gains = predicted(Path(name), arguments.rounds)
    times: dict[tuple[str, bool], list[float]] = {}
    for block in blocks:
        times.setdefault((str(block["case"]), bool(block["balance"])), []).append(step_ms(block))  # type: ignore[arg-type]
    median = {key: statistics.median(values) for key, values in times.items()}
    print(
        f"quota {QUOTA:.0%} of a core, the slow rank {SLOW_QUOTA:.0%}; medians of {arguments.rounds} rounds, and their range"
    )
    for case in CASES:
        for balance in (False, True):
            of = times[case, balance]
            print(
                f"{case:10} {'balanced' if balance else 'equal':8} {median[case, balance]:7.2f} ms ({min(of):.2f} to {max(of):.2f})"
            )
    longer = median["none", True] / median["none", False] - 1
    print(f"no rank slow: {longer:+.1%} with shares (goal: at most {LONGER:.0%})")
    for case in CASES[1:]:
        lost = median[case, False] - median["none", False]
        recovered = (median[case, False] - median[case, True]) / lost
        print(f"{case}: {recovered:.0%} of the {lost:.1f} ms lost in a step are recovered (goal: {RECOVERED:.0%})")
    gain = 1 - median["constant", True] / median["constant", False]
    if not gains:
        print(f"constant: measured gain {gain:.1%}; no predicted one has a price")
        return
    off = statistics.median(gains) / gain - 1
    print(
        f"constant: predicted gain {statistics.median(gains):.1%}, measured {gain:.1%}: off by {off:+.0%} (goal: {OFF:.0%})"
    )


if __name__ == "__main__":
    main()
