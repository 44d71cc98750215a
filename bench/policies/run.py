"""
One part of the suite: all runs of one cell that are not there yet, until the time is over. Needs root.

    python -m policies.run --part t1-2-paper [--minutes 55] [--results FILE]

Without a part it prints how much of each is left.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies import results
from policies.link import Measured, first_mbit, fitted_mbit
from policies.plan import (
    CELLS,
    HARNESS,
    REFERENCE,
    SEARCH_SEED,
    SEEDS,
    Cell,
    Method,
    Row,
    Run,
    crossing_s,
    is_searched,
    most_left,
    pending,
    rows_of,
)  # fmt: skip
from policies.ranks import Ranks, RanksLost

FLAT = Method("flat", "flat", partition="def")

#: DDP's own limit, in times of its budget.
FIRST_LIMIT = 3

#: Seeds that the target is made of, besides the one that finds the learning rate.
TARGET_SEEDS = SEEDS[:2]

#: Rates that are tried at most, and the factor within which the ratio is good enough.
TRIES, NEAR = 4, 1.1

#: A link whose ratio is another one by more than this is not the one that the rows are of.
DRIFT = 1.25


@dataclass
class Part:
    cell: Cell
    path: Path
    until: float

    @property
    def rows(self) -> list[Row]:
        return results.read(self.path)

    @property
    def place(self) -> Row:
        return {"task": self.cell.task.name, "ranks": self.cell.ranks, "link": self.cell.link.name}

    def keep(self, kind: str, **values: Any) -> Row:
        row = {"kind": kind, **self.place, "version": f"{HARNESS}", **values}
        results.append(self.path, row)
        return row

    def open(self, rate_mbit: float | None) -> Ranks:
        return Ranks(self.cell.task.name, self.cell.ranks, rate_mbit)


def measured(ranks: Ranks) -> tuple[Measured, int]:
    """And the gradients' bytes."""
    result = ranks.run("measure", FLAT, learning_rate=0.01, seed=0, target=None, limit_s=None, compute_ms=0.0)
    if "error" in result:
        raise RuntimeError(f"the link cannot be measured: {result['error']}")
    return Measured(ranks.rate_mbit, result["compute_ms"], result["communication_ms"]), result["bytes"]


def calibrated(part: Part) -> Measured:
    """The nearest of some tries; unshaped where that has the wanted ratio already, or is near it."""
    ratio = part.cell.link.ratio
    with part.open(None) as ranks:
        free, nbytes = measured(ranks)
    if ratio is None or free.ratio * NEAR > ratio:
        return free
    tried: list[Measured] = []
    rate_mbit: float | None = first_mbit(ratio, free, nbytes, part.cell.ranks)
    while rate_mbit is not None and len(tried) < TRIES:
        with part.open(rate_mbit) as ranks:
            tried.append(measured(ranks)[0])
        print(f"{part.cell.name}: {rate_mbit:.0f} Mbit/s has the ratio {tried[-1].ratio:.1f}", flush=True)
        if 1 / NEAR < tried[-1].ratio / ratio < NEAR:
            break
        rate_mbit = fitted_mbit(ratio, free, tried[-1])
    return min(tried, key=lambda one: abs(math.log(one.ratio / ratio)))


def describe(link: Row) -> str:
    rate = "unshaped" if link["rate_mbit"] is None else f"{link['rate_mbit']:.0f} Mbit/s"
    computing = f"{link['communication_ms']:.1f} ms communication : {link['compute_ms']:.1f} ms computing"
    return f"{rate}, {computing} = {link['ratio']:.1f}"


def link_of(part: Part) -> Row:
    """As the first rows of the cell have it. The machine may have changed since: a line reports that."""
    found = results.link_row(part.cell, part.rows)
    if found is None:
        now = calibrated(part)
        found = part.keep(
            "link", rate_mbit=now.rate_mbit, compute_ms=now.compute_ms, communication_ms=now.communication_ms, ratio=now.ratio
        )  # fmt: skip
    else:
        with part.open(found["rate_mbit"]) as ranks:
            now, _ = measured(ranks)
        if not 1 / DRIFT < now.ratio / found["ratio"] < DRIFT:
            print(f"careful: the ratio is {now.ratio:.1f} now and was {found['ratio']:.1f}", flush=True)
    print(f"{part.cell.name}: {describe(found)}", flush=True)
    return found


def target_of(part: Part) -> float:
    """From DDP's best over its whole budget on an unshaped link, where its steps are the same."""
    known = results.target_of(part.cell, part.rows)
    if known is not None:
        return known
    task = part.cell.task
    with part.open(None) as ranks:

        def best(rate: float, seed: int) -> float:
            result = ranks.run(
                "train", REFERENCE, learning_rate=rate, seed=seed, target=None, limit_s=None, compute_ms=0.0
            )
            value = task.best([value for _, value in result["curve"]])
            print(f"{part.cell.name}: DDP's best at learning rate {rate}, seed {seed}: {value:.2f}", flush=True)
            return value

        searched = {rate: best(rate, SEARCH_SEED) for rate in task.learning_rates}
        found = task.best(list(searched.values()))
        rate = next(rate for rate, value in searched.items() if value == found)
        bests = [found, *(best(rate, seed) for seed in TARGET_SEEDS)]
    part.keep("target", target=task.target(bests), learning_rate=rate, bests=bests, median=statistics.median(bests))
    return task.target(bests)


def outcome(part: Part, link: Row, target: float, result: dict[str, Any]) -> Row:
    """The part of a row that the run gave."""
    common = {"rate_mbit": link["rate_mbit"], "ratio": link["ratio"], "target": target}
    if "error" in result:
        return {**common, "reached": False, "why": result["error"], "time_s": None}
    time_s = crossing_s(part.cell.task, target, result["curve"])
    elapsed_s = result["curve"][-1][0]
    return {
        **common, "reached": result["why"] == "reached", "why": result["why"], "time_s": elapsed_s if time_s is None else time_s,
        "elapsed_s": elapsed_s, "steps": result["steps"], "lssr": 1 - result["synchronizations"] / result["steps"], "changes": result["changes"],
        "best": part.cell.task.best([value for _, value in result["curve"]]),
        "sent_mb": statistics.mean(result["sent_bytes"][:-1]) / 1e6, "most_sent_mb": max(result["sent_bytes"]) / 1e6,
        "overhead": 1 - result["steps"] * link["compute_ms"] / 1e3 / elapsed_s,
    }  # fmt: skip


def run_one(part: Part, ranks: Ranks, run: Run, link: Row, target: float) -> Row:
    order = {"learning_rate": run.learning_rate, "seed": run.seed, "target": target, "limit_s": run.limit_s}
    result = ranks.run("train", run.method, compute_ms=link["compute_ms"], **order)
    if result.get("error", "").startswith(("ImportError", "ModuleNotFoundError")):
        raise RuntimeError(f"{run.method.name}: {result['error']}")
    row = run.key(part.cell) | outcome(part, link, target, result)
    results.append(part.path, row)
    return row


def summary_of(row: Row) -> str:
    begin = f"{row['method']}, learning rate {row['learning_rate']}, seed {row['seed']}"
    if row["time_s"] is None:
        return f"{begin}: {row['why']}"
    return f"{begin}: {row['why']} at {row['time_s']:.1f} s, {row['steps']} steps, LSSR {row['lssr']:.3f}"


def work(part: Part) -> None:
    link, target = link_of(part), target_of(part)
    print(f"{part.cell.name}: the target is {target:.2f}", flush=True)
    budget_s = part.cell.task.steps * (link["compute_ms"] + link["communication_ms"]) / 1e3
    took_s: list[float] = []
    while left := pending(part.cell, part.rows, FIRST_LIMIT * budget_s):
        try:
            with part.open(link["rate_mbit"]) as ranks:
                while left and time.monotonic() < part.until:
                    began = time.monotonic()
                    row = run_one(part, ranks, left[0], link, target)
                    took_s.append(time.monotonic() - began)
                    left = pending(part.cell, part.rows, FIRST_LIMIT * budget_s)
                    runs = most_left(part.cell, part.rows)
                    minutes = statistics.mean(took_s) * runs / 60
                    print(f"{summary_of(row)}; about {minutes:.0f} min left ({runs} runs at most)", flush=True)
        except RanksLost as error:
            lost = {"reached": False, "why": "no end", "time_s": None, "ratio": link["ratio"], "target": target}
            results.append(part.path, left[0].key(part.cell) | lost)
            print(f"{left[0].method.name}: {error}", flush=True)
        if time.monotonic() >= part.until:
            print(f"{part.cell.name}: the time is over; run it again for what is left", flush=True)
            return
    print(f"{part.cell.name}: done", flush=True)


def overview(path: Path) -> None:
    rows = results.read(path)
    for cell in CELLS.values():
        if twin := results.twin(cell, rows):
            print(f"{cell.name:12} has the link of {twin.name}")
            continue
        away = [method for method in cell.methods if cell != cell.full(method) and not is_searched(cell, method, rows)]
        done = sum(len(rows_of(cell, method, rows)) for method in cell.methods)
        parts = ", ".join(sorted({cell.full(method).name for method in away}))
        behind = f", {len(away)} methods after part {parts}" if away else ""
        print(f"{cell.name:12} {done} runs done, {most_left(cell, rows)} left at most{behind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("", *CELLS), default="")
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--results", type=Path, default=results.FILE)
    options = parser.parse_args()
    if not options.part:
        overview(options.results)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that ranks and namespaces go as well
    part = Part(CELLS[options.part], options.results, time.monotonic() + 60 * options.minutes)
    if twin := results.twin(part.cell, part.rows):
        print(f"{part.cell.name} has the link of {twin.name}: run that")
        return
    work(part)


if __name__ == "__main__":
    main()
