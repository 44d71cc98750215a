"""
Which share of injected stragglers is named right, rank and bucket; named wrong; not named. A rank is made late by 5 ms or 1 ms in the middle of backward: hidden behind the transfer of the bucket before, or
exposed. In the same run, on the same marks:

- with clocks: the hub's verdict, nodes' clocks off by anything within bounds of 50 us
- window of ends: the same without any clock (offsets of up to 1 s, drift of up to 20 ppm)
- ends of each step: every step aligned on its own last collective's end, as trace viewers do it
- own step begin: no clock, each rank's stages since its own step began (as StageFrontier counts, arXiv 2606.06751)
- durations: no clock, each rank's backward from its first gradient to its last all-reduce's end (what per-rank timers show)

The peers get the hub's statistics; they have no error bar. "Leaves late": one rank always leaves a collective a fifth of its transfer after the others, and so comes late to the next step. The second table is of
single synchronizations: whether the rank that is named as the last was the last. With --real also two ranks over gloo, stamped in their hook, with 1 Gbit/s between them and without a limit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.recording_files import load
from timesyncd.jobs.stragglers import attribute

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "simulation"))

from simulated_job import MS, US, Late, SimulatedJob, clocks, untrusted

#: How long the transfer of one bucket takes, against 5 ms of computing a bucket.
HIDDEN, EXPOSED = 8 * MS, MS

#: Ranks leave a collective within this part of it after each other, evenly spread.
EXIT_PART = 0.2

Case = tuple[int, int, bool]
"""How late the rank is, how long a transfer takes, and whether it is one that always leaves late."""

Named = tuple[int, str | None] | None
"""The rank, and the place where the method knows one."""


def by_attribution(syncs: Sequence[Sync]) -> Named:
    sure = [each for each in attribute(syncs, {}).stragglers if each.verdict == "straggler"]
    return (sure[0].rank, sure[0].where) if sure else None


def on_own_end(syncs: Sequence[Sync]) -> list[Sync]:
    """Each step on the axis on which all ranks end it at 0."""
    moved = []
    for _, group in groupby(syncs, key=lambda sync: sync.step):
        step = list(group)
        moved += on_one_axis(step, {rank: arrival.end_ns for rank, arrival in step[-1].arrivals.items()})
    return moved


def on_own_begin(syncs: Sequence[Sync]) -> list[Sync]:
    """The same with the step's begin: as soon as the step before was over for the rank."""
    return [sync for step, began_ns in own_steps(syncs) for sync in on_one_axis(step, began_ns)]


def on_one_axis(step: Sequence[Sync], zeros_ns: Mapping[int, int]) -> list[Sync]:
    """Taken for exact."""
    moved = []
    for sync in step:
        arrivals = {rank: shifted(arrival, -zeros_ns[rank]) for rank, arrival in sync.arrivals.items()}
        moved.append(replace(sync, arrivals=arrivals, comparison=compare(arrivals)))
    return moved


def shifted(arrival: Arrival, by_ns: int) -> Arrival:
    times = {name: getattr(arrival, name) + by_ns for name in ("arrival_ns", "begin_ns", "end_ns")}
    return replace(arrival, clock="one", real_minus_boot_ns=0, **times)


def own_steps(syncs: Sequence[Sync]) -> list[tuple[list[Sync], dict[int, int]]]:
    """Each step but the first, and when each rank began it on its own clock."""
    steps = [list(group) for _, group in groupby(syncs, key=lambda sync: sync.step)]
    return [
        (step, {rank: max(sync.arrivals[rank].end_ns for sync in before) for rank in step[0].arrivals})
        for before, step in pairwise(steps)
    ]


def by_durations(syncs: Sequence[Sync]) -> Named:
    """Each rank's backward as one number a step, compared as arrivals at one place would be."""
    seen = []
    for step, began in own_steps(syncs):
        arrivals = {}
        for rank in began:
            lasted_ns = max(sync.arrivals[rank].end_ns for sync in step) - step[0].arrivals[rank].arrival_ns
            arrivals[rank] = Arrival("one", 0, lasted_ns, lasted_ns, lasted_ns, None)
        seen.append(Sync(step[0].step, 0, 0, arrivals, compare(arrivals)))
    named = by_attribution(seen)
    return None if named is None else (named[0], None)


METHODS: dict[str, Callable[[Sequence[Sync]], Named]] = {
    "with clocks": by_attribution,
    "window of ends": by_attribution,
    "ends of each step": lambda syncs: by_attribution(on_own_end(syncs)),
    "own step begin": lambda syncs: by_attribution(on_own_begin(syncs)),
    "durations": by_durations,
}


def truth(job: SimulatedJob) -> tuple[int, str] | None:
    for late in job.late:
        return late.rank, f"bucket {late.bucket}"
    return next(((rank, "bucket 0") for rank in job.leaves_late), None)


def judged(named: Named, true: tuple[int, str] | None) -> str:
    if true is None:
        return "right" if named is None else "wrong"
    if named is None:
        return "unnamed"
    return "right" if named[0] == true[0] and named[1] in (true[1], None) else "wrong"


def job_of(
    seed: int, late_ns: int, transfer_ns: int, leaves_late: bool, method: str, options: argparse.Namespace
) -> SimulatedJob:
    """The same job for each method, but for the clocks where it has none."""
    chance = random.Random(seed)
    late = Late(chance.randrange(options.ranks), chance.randrange(1, 4), late_ns)
    has_none = method == "window of ends"
    return SimulatedJob(
        untrusted(options.ranks, chance) if has_none else clocks(options.ranks, 50 * US, chance),
        transfer_ns=transfer_ns,
        exit_part=EXIT_PART,
        late=[late] if late_ns else [],
        leaves_late={late.rank: EXIT_PART} if leaves_late else {},
    )


def simulated(case: Case, options: argparse.Namespace) -> dict[str, Counter[str]]:
    late_ns, transfer_ns, leaves_late = case
    found: dict[str, Counter[str]] = {method: Counter() for method in METHODS}
    for seed in range(options.seeds):
        for method, name in METHODS.items():
            job = job_of(seed, late_ns, transfer_ns, leaves_late, method, options)
            syncs = job.syncs(options.steps, random.Random(seed))
            found[method][judged(name(syncs), truth(job))] += 1
    return found


def single_syncs(case: Case, options: argparse.Namespace) -> dict[str, Counter[str]]:
    """Against the rank that was last in truth."""
    late_ns, transfer_ns, leaves_late = case
    axes: dict[str, Callable[[Sequence[Sync]], Sequence[Sync]]] = {
        "with clocks": lambda syncs: syncs,
        "ends of each step": on_own_end,
        "own step begin": on_own_begin,
    }
    found: dict[str, Counter[str]] = {method: Counter() for method in axes}
    for seed in range(options.seeds):
        job = job_of(seed, late_ns, transfer_ns, leaves_late, "", options)
        true: dict[tuple[int, int], int] = {}
        syncs = job.syncs(options.steps, random.Random(seed), true)
        for method, axis in axes.items():
            for sync in axis(syncs):
                last = sync.comparison.last_rank if sync.comparison is not None else None
                is_right = last == true[sync.step, sync.sync]
                found[method]["unnamed" if last is None else "right" if is_right else "wrong"] += 1
    return found


def real(late_ns: int, limit: str | None, steps: int) -> Sequence[Sync]:
    """The marks of two ranks in a network namespace of their own."""
    with tempfile.TemporaryDirectory() as folder:
        setup = "ip link set lo up" + (
            f" && tc qdisc add dev lo root tbf rate {limit} burst 256kb latency 100ms" if limit else ""
        )
        ranks = []
        for rank in range(2):
            own_ns = late_ns if rank == 1 else 0
            ranks.append(
                f"RANK={rank} {sys.executable} {ROOT}/bench/_straggler_rank.py --steps {steps} --late-ns {own_ns} & "
            )
        command = f"{setup} && {{ {''.join(ranks)} wait; }}"
        environ = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "WORLD_SIZE": "2"}
        environ |= {"TIMESYNCD_RECORD": folder, "TIMESYNCD_RUNTIME_DIR": folder, "PYTHONPATH": str(ROOT)}
        subprocess.run(["unshare", "--net", "bash", "-c", command], env=environ, check=True, timeout=180)
        return load(Path(folder)).syncs


def print_real(steps: int) -> None:
    print(f"\nreal: 2 ranks, DDP over gloo, {steps} steps, rank 1 late by 5 ms before bucket 2")
    for label, limit in (("1 Gbit/s", "1gbit"), ("no limit", None)):
        for late_ns in (5 * MS, 0):
            syncs = [sync for sync in real(late_ns, limit, steps) if sync.step >= 5]
            seen = attribute(syncs, {})
            stragglers = "; ".join(
                f"rank {s.rank} at {s.where}, {s.lateness_p50_ns / MS:.2f} ms late, {s.exposed_ns / MS / steps:.2f} ms exposed a step ({s.verdict})"
                for s in seen.stragglers
            )
            peers = {
                name: method(syncs) for name, method in METHODS.items() if name not in ("with clocks", "window of ends")
            }
            print(f"  {label:>9}, late {late_ns // MS} ms: {stragglers or 'no rank'}")
            print(f"             peers: {', '.join(f'{name}: {found}' for name, found in peers.items())}")


def table(title: str, found: Mapping[str, Mapping[str, Counter[str]]]) -> None:
    print(f"\n{title}; right / wrong / not named, in %")
    print(f"{'':20}" + "".join(f"{method:>20}" for method in next(iter(found.values()))))
    for case, by_method in found.items():
        cells = [
            " / ".join(f"{100 * counts[what] / counts.total():.0f}" for what in ("right", "wrong", "unnamed"))
            for counts in by_method.values()
        ]
        print(f"{case:20}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--real", action="store_true", help="also two real ranks; needs root, tc and torch")
    options = parser.parse_args()
    late = {
        f"{late_ns // MS} ms, {label}": (late_ns, transfer_ns, False)
        for late_ns in (5 * MS, MS)
        for label, transfer_ns in (("hidden", HIDDEN), ("exposed", EXPOSED))
    }
    others = {"leaves late": (0, HIDDEN, True), "none": (0, HIDDEN, False)}
    print(f"{options.seeds} simulated jobs each, {options.ranks} ranks, 4 buckets, {options.steps} steps")
    table("the straggler of a window", {label: simulated(case, options) for label, case in (late | others).items()})
    table(
        "the last of one synchronization",
        {label: single_syncs(case, options) for label, case in (late | others).items()},
    )
    if options.real:
        if os.geteuid() or not shutil.which("tc"):
            sys.exit("--real needs root, and tc")
        print_real(options.steps)


if __name__ == "__main__":
    main()
