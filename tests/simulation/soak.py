"""
The bound against the truth of thousands of simulated chains: `make soak`.

Every seed judged is a line of the state file, so a run that was stopped goes on where it was. In the end the worst seed of each
scenario is printed, how to see it again, and the median width of its bounds.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "support"))

from boundary_clocks import KEEPING_BOUNDARY_CLOCKS, judged_boundary_clock, replayed_boundary_clock
from chain import Instant
from hardware_chain import BOOTTIME_EPOCH_NS
from hardware_judging import judged_hardware, replayed_hardware
from hardware_scenarios import HARDWARE_BY_NAME, KEEPING_HARDWARE
from judging import Judgement, judged, replayed
from leap_judging import judged_leap, leap_claims
from leap_world import LEAP_SCENARIOS, contains
from scenarios import BY_NAME, KEEPING
from second_sources import KEEPING_SECOND_SOURCES, judged_second_source, replayed_second_source

from timesyncd.model.replay import ReplayedRow

SECONDS = 1_800

#: How the name of a leap second's scenario begins.
LEAP = "leap: "

NAMES = [
    *(scenario.name for scenario in KEEPING),
    *(scenario.name for scenario in KEEPING_HARDWARE),
    *KEEPING_BOUNDARY_CLOCKS,
    *KEEPING_SECOND_SOURCES,
    *(f"{LEAP}{name}" for name in LEAP_SCENARIOS),
]


class Line(NamedTuple):
    """
    One seed: its rows whose truth was outside the hard bound, the largest |truth| / bound, the time of that row, and the
    median bound against the grandmaster, or else UTC (None: there was none).
    """

    scenario: str
    seed: int
    misses: int
    worst: float
    at_ns: int
    width_ns: float | None

    def __str__(self) -> str:
        return "\t".join("" if cell is None else str(cell) for cell in self)

    @classmethod
    def parse(cls, text: str) -> Line:
        scenario, seed, misses, worst, at_ns, width_ns = text.rstrip("\n").split("\t")
        width = float(width_ns) if width_ns else None
        return cls(scenario, int(seed), int(misses), float(worst), int(at_ns), width)


def soak(job: tuple[str, int]) -> Line:
    """Judge one seed, at the readings and between them."""
    name, seed = job
    judgement = _judged(name, seed)
    tallies = [judgement.gm_hard, judgement.utc_hard, judgement.between]
    worst = max(tallies, key=lambda tally: tally.worst)
    misses = sum(tally.misses for tally in tallies)
    return Line(name, seed, misses, round(worst.worst, 4), worst.at_ns, judgement.median_width_ns)


def _judged(name: str, seed: int) -> Judgement:
    if name in HARDWARE_BY_NAME:
        return judged_hardware(HARDWARE_BY_NAME[name], seed)
    if name.startswith(LEAP):
        return judged_leap(name.removeprefix(LEAP), seed)
    if name in KEEPING_BOUNDARY_CLOCKS:
        return judged_boundary_clock(name, seed)
    if name in KEEPING_SECOND_SOURCES:
        return judged_second_source(name, seed)
    return judged(BY_NAME[name], seed, SECONDS)


def done_lines(state: Path) -> list[Line]:
    """A last line that was cut off does not count."""
    if not state.exists():
        return []
    return [Line.parse(text) for text in state.read_text().splitlines(keepends=True) if text.endswith("\n")]


def remaining(done: list[Line], seeds: int) -> list[tuple[str, int]]:
    judged_already = {(line.scenario, line.seed) for line in done}
    jobs = [(name, seed) for seed in range(seeds) for name in NAMES]
    return [job for job in jobs if job not in judged_already]


def leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(state: Path, seeds: int) -> list[Line]:
    done = done_lines(state)
    state.write_text("".join(f"{line}\n" for line in done))
    jobs = remaining(done, seeds)
    with state.open("a", buffering=1) as file, Pool(initializer=leave_interrupts_to_the_parent) as pool:
        for count, line in enumerate(pool.imap_unordered(soak, jobs), start=1):
            file.write(f"{line}\n")
            done.append(line)
            if count % 500 == 0:
                print(f"soak: {count} of {len(jobs)} simulated seeds", flush=True)
    return done


def report(lines: list[Line]) -> Iterator[str]:
    for name in NAMES:
        of_it = [line for line in lines if line.scenario == name]
        widths_ns = [line.width_ns for line in of_it if line.width_ns is not None]
        width = f"{median(widths_ns) / 1e3:.1f} us" if widths_ns else "none"
        worst = max(of_it, key=lambda line: line.worst)
        missed = sum(line.misses > 0 for line in of_it)
        yield (
            f"{name}: {missed} of {len(of_it)} seeds missed; median bound {width}; worst |truth| / bound "
            f"{worst.worst:.3f} at {worst.at_ns / 1e9:.0f} s: "
            f"python tests/simulation/soak.py --show '{name}' {worst.seed}"
        )


def show(name: str, seed: int) -> None:
    """One seed row by row: what was read, the truth, the bounds; `!` marks a miss, `?` what could not be known."""
    if name in HARDWARE_BY_NAME:
        show_hardware(name, seed)
        return
    if name.startswith(LEAP):
        show_leap(name.removeprefix(LEAP), seed)
        return
    print(
        "t_s,offset_ns,path_delay_ns,freq_ppb,port_state,gm_error_ns,gm_hard_ns,gm_stat_ns,utc_error_ns,utc_hard_ns,mark"
    )
    for instant, row in _replayed(name, seed):
        row_in = instant.row
        missed = row.gm_hard_ns is not None and abs(instant.gm_error_ns) > row.gm_hard_ns
        cells = [
            f"{row_in.t_ns / 1e9:.3f}", row_in.offset_ns, row_in.path_delay_ns, row_in.freq_ppb,
            row_in.port_state.name if row_in.port_state else None, round(instant.gm_error_ns), row.gm_hard_ns, row.gm_stat_ns,
            round(instant.utc_error_ns), row.utc_hard_ns, ("!" if missed else "") + ("?" if instant.blind else ""),
        ]  # fmt: skip
        print(*("" if cell is None else cell for cell in cells), sep=",")


def _replayed(name: str, seed: int) -> Iterator[tuple[Instant, ReplayedRow]]:
    if name in KEEPING_BOUNDARY_CLOCKS:
        return replayed_boundary_clock(name, seed)
    if name in KEEPING_SECOND_SOURCES:
        return replayed_second_source(name, seed)
    return replayed(BY_NAME[name], seed, SECONDS)


def show_leap(name: str, seed: int) -> None:
    """Seconds from midnight; the errors of both ends in ns, which are unknown where the client claims nothing."""
    print("at_s,reference,ago_s,earliest_error_ns,latest_error_ns,mark")
    for claim in leap_claims(name, seed):
        truth, (earliest, latest, *_) = min(claim.truths), claim.interval
        ends = ("", "") if earliest is None or latest is None else (str(earliest - truth), str(latest - truth))
        mark = "" if contains(claim.interval, claim.truths) else "!"
        print(claim.at_s, claim.reference.name, claim.ago_s, *ends, mark, sep=",")


def show_hardware(name: str, seed: int) -> None:
    print("t_s,readings,gm_error_ns,gm_hard_ns,gm_stat_ns,utc_error_ns,utc_hard_ns,mark")
    for instant, row in replayed_hardware(HARDWARE_BY_NAME[name], seed):
        missed = row.gm_hard_ns is not None and abs(instant.gm_error_ns) > row.gm_hard_ns
        cells = [
            f"{(instant.boottime_ns - BOOTTIME_EPOCH_NS) / 1e9:.3f}",
            "+".join(type(reading).__name__ for reading in instant.readings),
            round(instant.gm_error_ns), row.gm_hard_ns, row.gm_stat_ns, round(instant.utc_error_ns), row.utc_hard_ns,
            ("!" if missed else "") + ("?" if instant.blind else ""),
        ]  # fmt: skip
        print(*("" if cell is None else cell for cell in cells), sep=",")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, help="where the seeds judged are kept")
    parser.add_argument("--seeds", type=int, default=2_000, help="of each scenario")
    parser.add_argument("--show", nargs=2, metavar=("SCENARIO", "SEED"), help="print one seed row by row instead")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.show[0], int(arguments.show[1]))
        return 0
    if arguments.state is None:
        parser.error("--state or --show is needed")
    try:
        lines = run(arguments.state, arguments.seeds)
    except KeyboardInterrupt:
        print("soak: stopped; the seeds judged so far are kept")
        return 130
    print(*report(lines), sep="\n")
    return any(line.misses for line in lines)


if __name__ == "__main__":
    sys.exit(main())
