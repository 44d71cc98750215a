"""
How tight the bound is, and whether it holds: ours against what fbclock, chrony and ClockBound would give on the same traces.

All are judged against UTC, where the grandmaster's announced accuracy is in each, at every reading and between the readings, where
they age; not at instants at which nothing on the node could know (a path or a grandmaster that changed since the last reading). Widths
are half of the interval, and compared only at the instants at which all give one.

Two ways: simulated chains of clocks (tests/simulation: every scenario that keeps the assumptions), or, with --traces, recorded ones: pairs
NAME.csv, as `timesyncd replay` takes it, and NAME.truth.csv with the columns t_s,true_offset_ns of the same rows. A recorded truth
is one against the grandmaster, which is taken for UTC; what cannot be known there is the first row after a step of a clock.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from _peer_bounds import PEERS, PeerBounds

from timesyncd.clocks import NS_PER_S
from timesyncd.model.replay import Replay, ReplayedRow, TraceRow, read_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulation"))
from judging import LOCKED_AFTER_NS, replayed
from scenarios import BY_NAME, KEEPING

SEEDS, SECONDS = 5, 1_200

#: What an oscillator errs by at most; a recorded truth that moves faster than this and the servo was stepped.
OSCILLATOR_PPB = 50_000

OURS = ("hard", "statistical")
FORMULAS = (*OURS, *PEERS)


class Moment(NamedTuple):
    """A reading (`is_reading`) or a time between two, our bounds, the true offset against UTC then, and whether the node cannot know it."""

    row: TraceRow
    is_reading: bool
    ours: ReplayedRow
    error_ns: float
    blind: bool


@dataclass(slots=True)
class Score:
    """
    One formula on one trace. `asked`, `given` and `missed_locked` count instants after the servo has locked, `judged` and `missed` all;
    `worst` is the largest |truth| / bound. `width_ns` is the median where all formulas give one; None: nowhere.
    """

    asked: int = 0
    given: int = 0
    judged: int = 0
    missed: int = 0
    missed_locked: int = 0
    worst: float = 0.0
    width_ns: float | None = None

    def count(self, error_ns: float, bound_ns: float | None, locked: bool) -> None:
        self.asked += locked
        if bound_ns is None:
            return
        self.given += locked
        self.judged += 1
        missed = abs(error_ns) > bound_ns
        self.missed += missed
        self.missed_locked += missed and locked
        self.worst = max(self.worst, abs(error_ns) / bound_ns)


def scores_of(moments: Iterable[Moment]) -> list[Score]:
    """By `FORMULAS`."""
    peers = PeerBounds()
    scores = [Score() for _ in FORMULAS]
    widths: list[list[float]] = []
    for row, is_reading, ours, error_ns, blind in moments:
        if is_reading:
            peers.take(row)
        bounds = [ours.utc_hard_ns, ours.utc_stat_ns, *peers.at(row.t_ns)]
        if blind:
            continue
        for score, bound_ns in zip(scores, bounds, strict=True):
            score.count(error_ns, bound_ns, row.t_ns >= LOCKED_AFTER_NS)
        given = [bound_ns for bound_ns in bounds if bound_ns is not None]
        if len(given) == len(bounds):
            widths.append(given)
    for score, column in zip(scores, zip(*widths, strict=True), strict=False):
        score.width_ns = statistics.median(column)
    return scores


def simulated(job: tuple[str, int]) -> list[Score]:
    name, seed = job
    return scores_of(
        Moment(each.row, each.is_reading, ours, each.utc_error_ns, each.blind)
        for each, ours in replayed(BY_NAME[name], seed, SECONDS)
    )


def recorded(path: Path) -> list[Score]:
    return scores_of(moments_of(path))


def moments_of(path: Path) -> Iterator[Moment]:
    model, last = Replay(), None
    with path.open() as trace, path.with_suffix(".truth.csv").open() as truth:
        for (_, row), true in zip(read_trace(trace, path.name), csv.DictReader(truth), strict=True):
            error_ns = float(true["true_offset_ns"])
            blind = last is not None and stepped(*last, row, error_ns)
            yield Moment(row, True, model.accept(row), error_ns, blind)
            last = row, error_ns


def stepped(old: TraceRow, old_error_ns: float, new: TraceRow, new_error_ns: float) -> bool:
    """A clock was stepped between two rows: the error moved by more than an oscillator and what a servo applied make it move."""
    rate_ppb = OSCILLATOR_PPB + max(abs(old.freq_ppb or 0), abs(new.freq_ppb or 0))
    return abs(new_error_ns - old_error_ns) * NS_PER_S > rate_ppb * (new.t_ns - old.t_ns)


@dataclass(slots=True)
class Result:
    """A formula over the seeds of a scenario; `width_ns` is the median over them."""

    scores: list[Score] = field(default_factory=list)

    def total(self, name: str) -> int:
        return sum(getattr(score, name) for score in self.scores)

    @property
    def worst(self) -> float:
        return max(score.worst for score in self.scores)

    @property
    def holds(self) -> bool:
        """It gave a bound, and never missed."""
        return self.total("judged") > 0 and not self.total("missed")

    @property
    def width_ns(self) -> float | None:
        widths = [score.width_ns for score in self.scores if score.width_ns is not None]
        return statistics.median(widths) if widths else None


Table = dict[str, list[Result]]
"""By scenario, then by `FORMULAS`."""


def table_of(found: Iterable[tuple[str, list[Score]]]) -> Table:
    table: Table = {}
    for name, scores in found:
        results = table.setdefault(name, [Result() for _ in FORMULAS])
        for result, score in zip(results, scores, strict=True):
            result.scores.append(score)
    return table


def width_cell(result: Result, narrowest: bool) -> str:
    width = "-" if result.width_ns is None else f"{result.width_ns / 1e3:.2f}"
    return ("*" if narrowest else "") + width + (" !" if result.total("missed") else "  ")


def miss_cell(result: Result) -> str:
    if not result.total("judged"):
        return "-"
    missed = result.total("missed")
    return f"{missed / result.total('judged'):.2%} x{result.worst:.3g}" if missed else f"0 x{result.worst:.2f}"


def narrowest_that_holds(results: list[Result], among: Iterable[int]) -> int | None:
    widths = {
        index: results[index].width_ns or 0 for index in among if results[index].holds and results[index].width_ns
    }
    return min(widths, key=lambda index: widths[index], default=None)


def row_of(name: str, cells: Iterable[str]) -> str:
    return f"{name:<29}" + "".join(f"{cell:>18}" for cell in cells)


def print_scenarios(table: Table) -> None:
    print(row_of("median half-width, us", FORMULAS))
    for name, results in table.items():
        best = narrowest_that_holds(results, range(len(FORMULAS)))
        print(row_of(name, (width_cell(each, index == best) for index, each in enumerate(results))))
    print("! = misses here; * = the narrowest of those that never miss here\n")
    print(row_of("truth outside, worst ratio", FORMULAS))
    for name, results in table.items():
        print(row_of(name, map(miss_cell, results)))
    print("share of the instants with the truth outside, and the largest |truth| / bound (above 1 = outside)\n")


def ratios(table: Table, ours: int, theirs: int) -> list[float]:
    """Our median width to theirs, of each scenario in which both give one."""
    pairs = ((results[ours].width_ns, results[theirs].width_ns) for results in table.values())
    return [our_ns / their_ns for our_ns, their_ns in pairs if our_ns and their_ns]


def print_overall(table: Table) -> None:
    columns = [
        Result([score for results in table.values() for score in results[index].scores])
        for index, _ in enumerate(FORMULAS)
    ]
    print(row_of(f"over all {len(table)}", FORMULAS))
    medians = [
        [width for results in table.values() if (width := results[index].width_ns)] for index, _ in enumerate(FORMULAS)
    ]
    print(row_of("median half-width, us", (f"{statistics.median(each) / 1e3:.2f}" for each in medians)))
    for ours, name in enumerate(OURS):
        print(
            row_of(
                f"our {name} is as wide",
                (f"x{statistics.median(ratios(table, ours, index)):.2f}" for index, _ in enumerate(FORMULAS)),
            )
        )
    print(row_of("truth outside", (f"{each.total('missed') / each.total('judged'):.4%}" for each in columns)))
    print(
        row_of(
            "and after two minutes",
            (f"{each.total('missed_locked') / max(1, each.total('given')):.4%}" for each in columns),
        )
    )
    print(
        row_of(
            "worst |truth| / bound",
            (f"{each.worst:.3f}" if each.worst < 10 else f"{each.worst:.3g}" for each in columns),
        )
    )
    print(row_of("gives a bound", (f"{each.total('given') / each.total('asked'):.1%}" for each in columns)))
    print(row_of("never misses", ("yes" if each.holds else "no" for each in columns)))
    print("widths and ratios are medians over the scenarios; a bound is asked for after the first two minutes\n")
    print_verdict(table, columns)


def print_verdict(table: Table, columns: list[Result]) -> None:
    """Whether our hard bound is the narrowest of those that never miss, over all, and where a peer that never misses there is narrower."""
    hard, peers = 0, range(len(OURS), len(FORMULAS))
    holding = [index for index, each in enumerate(columns) if each.holds]
    print(f"never miss anywhere: {', '.join(FORMULAS[index] for index in holding) or 'none'}")
    if holding == [hard]:
        print("our hard bound is the only one that never misses, and so the narrowest of those")
    elif narrowest_that_holds(columns, holding) == hard:
        print("our hard bound is the narrowest of those")
    else:
        print("our hard bound is NOT the narrowest of those")
    narrower: dict[int, list[str]] = {index: [] for index in peers}
    for name, results in table.items():
        best = narrowest_that_holds(results, (hard, *peers)) or hard
        if best in narrower:
            ratio = ratios({name: results}, hard, best)
            narrower[best].append(f"{name} (ours x{ratio[0]:.2f})" if ratio else name)
    count = sum(map(len, narrower.values()))
    print(f"a peer that never misses there is narrower than our hard bound in {count} of {len(table)}:")
    for index, names in narrower.items():
        print(f"  {FORMULAS[index]}: {', '.join(names) or 'none'}")
    print("fbclock has no term for a lopsided path, chrony and ClockBound none for a path that has just changed;")
    print("where neither happens they lose nothing by it, but no data that they read shows it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of each scenario ({SEEDS})")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="judge the recorded traces in this folder instead")
    arguments = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        if arguments.traces:
            paths = sorted(path for path in arguments.traces.glob("*.csv") if not path.name.endswith(".truth.csv"))
            names = [path.name.partition(".")[0] for path in paths]
            found = pool.map(recorded, paths)
        else:
            jobs = [(scenario.name, seed) for scenario in KEEPING for seed in range(arguments.seeds)]
            names = [name for name, _ in jobs]
            found = pool.map(simulated, jobs)
        table = table_of(zip(names, found, strict=True))
    print_scenarios(table)
    print_overall(table)


if __name__ == "__main__":
    main()
