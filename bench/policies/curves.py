"""
Time to DDP's loss with AdamW: loss curves of one process, and the alpha-beta model of three links.

    python -m policies.curves [--task gpt] [--ranks 2] [--seeds 1,2,3] [--minutes 13] [--results FILE]
    python -m policies.curves --table

Each run is kept as soon as it has ended, and runs that are there are not repeated. A fixed method's curve is the same on every link, so it is run once;
`auto` is run on each. The target is DDP's last loss on held-out data with the same seed, and NEAR more; a run that does not reach it within the
budget of steps counts as infinitely long.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from policies.adam_tasks import ADAM_TASKS, AdamTask
from policies.one_process import LinkModel, Training

FILE = Path(__file__).with_name("curves.json")

LINKS = (
    LinkModel("100 Mbit/s", 0.2, 100.0),
    LinkModel("1 Gbit/s", 0.1, 1_000.0),
    LinkModel("unshaped", 0.05, 10_000.0),
)

FIXED = (
    "bsp", "bsp + fp16", "local_sgd(h=16)", "des_loc(kx=4)", "des_loc(kx=16)", "diloco(h=16)", "diloco(h=64)",
)  # fmt: skip

#: A loss that is larger by this share counts as DDP's: the means of single seeds scatter by as much.
NEAR = 0.01

#: Evaluations whose median counts, and the last ones whose median makes the target.
SMOOTHED, LAST = 3, 5

Rows = dict[str, Any]


def key(task: AdamTask, ranks: int, seed: int, text: str, link: LinkModel | None) -> str:
    return "/".join((task.name, str(ranks), str(seed), text, "" if link is None else link.name))


def wanted(tasks: Sequence[AdamTask], ranks: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    for seed in seeds:
        for task in tasks:
            for count in ranks:
                for text in FIXED:
                    yield task, count, seed, text, None
                if task.name != "markov":
                    for link in LINKS:
                        for text in ("auto", "auto, validation"):
                            yield task, count, seed, text, link


def run(task: AdamTask, ranks: int, seed: int, text: str, link: LinkModel | None) -> Rows:
    """A fixed method's points have what a step sent and how; times come from `timed`."""
    training = Training(task, ranks, seed, text.partition(",")[0], link or LINKS[0], "validation" in text)
    curve = training.run()
    return {
        "points": [[step, round(ms, 1), round(value, 5)] for step, ms, value in curve.points],
        "changes": curve.changes,
        "nbytes": training.fleet.nbytes,
    }


def step_ms(task: AdamTask, ranks: int, text: str, link: LinkModel, nbytes: int) -> float:
    """The mean step of a fixed method by the model."""
    whole = link.transfer_ms(nbytes, ranks)
    if text.startswith("bsp"):
        return task.compute_ms + link.hidden_ms(nbytes * (0.5 if "fp16" in text else 1), ranks, task.compute_ms)
    interval = int(text.partition("=")[2].rstrip(")"))
    shares = 1 + 1 / 3 + 1 / 6 if text.startswith("des_loc") else 1
    return task.compute_ms + whole * shares / interval


def smoothed(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Each loss becomes the median of the newest SMOOTHED."""
    values = [point[2] for point in points]
    return [
        [step, ms, statistics.median(values[max(0, number + 1 - SMOOTHED) : number + 1])]
        for number, (step, ms, _) in enumerate(points)
    ]


def reached_ms(points: Sequence[Sequence[float]], target: float) -> float:
    """Infinite: never. Between two evaluations it lies on a straight line."""
    before: Sequence[float] | None = None
    for point in points:
        if point[2] <= target:
            if before is None or before[2] == point[2]:
                return point[1]
            return before[1] + (point[1] - before[1]) * (before[2] - target) / (before[2] - point[2])
        before = point
    return math.inf


def timed(task: AdamTask, ranks: int, text: str, link: LinkModel, row: Rows) -> list[list[float]]:
    if text.startswith("auto"):
        return list(row["points"])
    each_ms = step_ms(task, ranks, text, link, row["nbytes"])
    return [[step, step * each_ms, value] for step, _, value in row["points"]]


def target_of(rows: dict[str, Rows], task: AdamTask, ranks: int, seed: int) -> float:
    """What DDP with this seed has at its end, and NEAR more."""
    end = rows[key(task, ranks, seed, "bsp", None)]["points"][-LAST:]
    return float(statistics.median(point[2] for point in end)) * (1 + NEAR)


def ratios(
    rows: dict[str, Rows], task: AdamTask, ranks: int, link: LinkModel, auto: str
) -> Iterator[tuple[int, float, float]]:
    """By seed: `auto`'s time over the best fixed method's, and over DDP's. The best is the best by the other seeds."""
    seeds = [seed for seed in range(1, 100) if key(task, ranks, seed, auto, link) in rows]

    def ms(seed: int, text: str, of: LinkModel | None) -> float:
        target = target_of(rows, task, ranks, seed)
        return reached_ms(smoothed(timed(task, ranks, text, link, rows[key(task, ranks, seed, text, of)])), target)

    for seed in seeds:
        others = [other for other in seeds if other != seed] or seeds
        best = min(FIXED, key=lambda text: statistics.median(ms(other, text, None) for other in others))
        mine = ms(seed, auto, link)
        yield seed, mine / ms(seed, best, None) if math.isfinite(mine) else math.inf, mine / ms(seed, "bsp", None)


def table(rows: dict[str, Rows]) -> str:
    lines = [
        "| task | ranks | link | seeds | `auto` / best fixed | `auto` / DDP | validated `auto` / best fixed | validated `auto` / DDP |",
        "| --- " * 8 + "|",
    ]
    found: dict[str, list[float]] = {"auto": [], "auto, validation": []}
    for task in ADAM_TASKS.values():
        for ranks in (2, 4, 64):
            for link in LINKS:
                cells = [task.name, str(ranks), link.name, ""]
                for auto, kept in found.items():
                    each = list(ratios(rows, task, ranks, link, auto))
                    if not each:
                        break
                    kept += [ratio for _, ratio, _ in each]
                    cells[3] = str(len(each))
                    cells += [_median(ratio for _, ratio, _ in each), _median(ratio for *_, ratio in each)]
                if len(cells) > 4:
                    lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for auto, kept in found.items():
        if kept:
            most = sorted(kept)[math.ceil(0.95 * len(kept)) - 1]
            lines.append(
                f"`{auto}` against the best fixed method, {len(kept)} runs: median {statistics.median(kept):.2f}, "
                f"95th percentile {most:.2f} (goals 1.10 and 1.25)."
            )
    return "\n".join(lines)


def _median(values: Iterator[float]) -> str:
    return f"{statistics.median_high(list(values)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="gpt,cnn")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=13)
    parser.add_argument("--results", type=Path, default=FILE)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows: dict[str, Rows] = json.loads(options.results.read_text()) if options.results.exists() else {}
    if options.table:
        print(table(rows))
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    until = time.monotonic() + 60 * options.minutes
    tasks = [ADAM_TASKS[name] for name in options.task.split(",")]
    for task, ranks, seed, text, link in wanted(tasks, *(_numbers(each) for each in (options.ranks, options.seeds))):
        name = key(task, ranks, seed, text, link)
        if name in rows:
            continue
        if time.monotonic() > until:
            print("the time is over; run it again for what is left", flush=True)
            return
        began = time.monotonic()
        rows[name] = run(task, ranks, seed, text, link)
        partial = options.results.with_suffix(".partial")
        partial.write_text(
            "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in rows.items()) + "\n}\n"
        )
        partial.replace(options.results)
        last = rows[name]["points"][-1]
        print(f"{name}: loss {last[2]:.4f} after {last[0]} steps; took {time.monotonic() - began:.0f} s", flush=True)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
