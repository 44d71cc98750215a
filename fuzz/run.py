"""
Coverage-guided fuzzing of every parser and of a whole hub: `make fuzz MINUTES=60`.

Each target gets its share of the time in a process of its own. What it has learnt stays in the state folder, so the next run
goes on from there. A fault's input is kept, and the run ends with status 1 and how to see it again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from targets import Target

HERE = Path(__file__).parent
STATE = HERE.parent / ".fuzz"

#: libFuzzer's progress: the number of executions, and the edges that were reached so far.
_PROGRESS = re.compile(r"^#(\d+)\s+(?:INITED|NEW|REDUCE|pulse|DONE|RELOAD)\s+cov: (\d+)", re.MULTILINE)

_MOST_OCTETS = 4_096


class Run(NamedTuple):
    """One run of a target, a line of the state folder's runs.tsv. `late_edges` came in the last quarter of its executions."""

    target: str
    executions: int
    seconds: float
    edges: int
    late_edges: int
    faults: int

    def __str__(self) -> str:
        return "\t".join(map(str, self))

    @classmethod
    def parse(cls, line: str) -> Run:
        target, executions, seconds, edges, late_edges, faults = line.split("\t")
        return cls(target, int(executions), float(seconds), int(edges), int(late_edges), int(faults))


def measured(target: str, output: str, seconds: float, faults: int) -> Run:
    """A run by libFuzzer's own output."""
    progress = [(int(number), int(edges)) for number, edges in _PROGRESS.findall(output)]
    if not progress:
        return Run(target, 0, round(seconds, 1), 0, 0, faults)
    executions, edges = progress[-1]
    early = [edges for number, edges in progress if number <= 0.75 * executions]
    return Run(target, executions, round(seconds, 1), edges, edges - (early[-1] if early else 0), faults)


def table(runs: Sequence[Run]) -> list[str]:
    """Of each target: all executions so far, and the newest run's rate and edges."""
    lines = [f"{'target':<24}{'executions':>14}{'a second':>10}{'edges':>8}{'in the last quarter':>21}{'faults':>8}"]
    for target in dict.fromkeys(run.target for run in runs):
        of_it = [run for run in runs if run.target == target]
        newest = of_it[-1]
        rate = newest.executions / newest.seconds if newest.seconds else 0
        total, faults = sum(run.executions for run in of_it), sum(run.faults for run in of_it)
        lines.append(f"{target:<24}{total:>14,}{rate:>10,.0f}{newest.edges:>8}{newest.late_edges:>21}{faults:>8}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=30.0, help="of all targets together")
    options.add_argument("--target", action="append", default=[], help="only this one; may be repeated")
    options.add_argument("--state", type=Path, default=STATE)
    options.add_argument("--show", type=Path, metavar="FILE", help="run --target on this input alone")
    options.add_argument("--child", help=argparse.SUPPRESS)
    args, rest = options.parse_known_args(argv)
    if args.child:
        fuzz(args.child, rest)
    names = args.target or [target.name for target in all_targets()]
    if unknown := set(names) - {target.name for target in all_targets()}:
        options.error(f"no such target: {', '.join(sorted(unknown))}")
    if args.show:
        return show(names[0], args.show)
    return run_all(names, args.minutes * 60 / len(names), args.state)


def run_all(names: Sequence[str], seconds: float, state: Path) -> int:
    log, faulty = state / "runs.tsv", []
    state.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, start=1):
        print(f"fuzz: {number} of {len(names)}, {name}, for {seconds:.0f} s", flush=True)
        run = fuzzed(name, seconds, state)
        with log.open("a") as file:
            file.write(f"{run}\n")
        if run.faults or not run.executions:
            faulty.append(name)
    print("\n".join(table([Run.parse(line) for line in log.read_text().splitlines()])))
    for name in faulty:
        found = sorted((state / "faults").glob(f"{_slug(name)}-*"))
        see = (
            f"{sys.executable} fuzz/run.py --target '{name}' --show {found[-1]}"
            if found
            else f"{state}/{_slug(name)}.log"
        )
        print(f"fuzz: {name} failed: {see}", file=sys.stderr)
    return 1 if faulty else 0


def fuzzed(name: str, seconds: float, state: Path) -> Run:
    corpus, faults = state / "corpus" / _slug(name), state / "faults"
    for folder in (corpus, faults):
        folder.mkdir(parents=True, exist_ok=True)
    known = set(faults.iterdir())
    for number, seed in enumerate(next(target for target in all_targets() if target.name == name).seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    begun_s = time.monotonic()
    command = [
        sys.executable, __file__, "--child", name, str(corpus), f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={_MOST_OCTETS}", f"-artifact_prefix={faults / _slug(name)}-", "-timeout=20", "-rss_limit_mb=2048",
    ]  # fmt: skip
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    (state / f"{_slug(name)}.log").write_text(done.stdout)
    new = len(set(faults.iterdir()) - known)
    return measured(name, done.stdout, time.monotonic() - begun_s, max(new, int(done.returncode != 0)))


def fuzz(name: str, options: list[str]) -> None:
    """In a process of its own: libFuzzer does not return."""
    import atheris

    with atheris.instrument_imports(include=["timesyncd"]):
        target = next(target for target in all_targets() if target.name == name)
    atheris.Setup([sys.argv[0], *options], lambda data: target(bytes(data)) and None)
    atheris.Fuzz()


def show(name: str, file: Path) -> int:
    target = next(target for target in all_targets() if target.name == name)
    print(f"{name}: {'taken' if target(file.read_bytes()) else 'reported as bad'}")
    return 0


def all_targets() -> list[Target]:
    """Imported late: a child instruments what it imports."""
    sys.path.append(str(HERE))
    from targets import TARGETS

    return TARGETS


def _slug(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    raise SystemExit(main())
