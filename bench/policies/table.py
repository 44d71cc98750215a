"""
docs/policies-bench.md and its picture from the rows of results.json and curves.json.

    python -m policies.table [--results FILE] [--curves FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from policies import curves, run
from policies.plan import AUTO, CELLS, LATE_SELSYNC, REFERENCE, SEEDS, VERSION, Cell, Method, Row, seed_times_s, times_s

PAGE = Path(__file__).parents[2] / "docs" / "policies-bench.md"
PICTURE = "pictures/policies-bench.svg"

#: The goals: of late SelSync against DDP, and of `auto` against the best fixed method.
SELSYNC_TIMES, NEAR_BEST = 3.0, 1.10

HEAD = f"""\
# What each policy costs and gains, measured

This page is for you if you choose a [policy](policies.md), and want to see what each one cost and gained in training.
You learn how long each policy took to reach a target, how sure that is, and which goals were missed.
[policies.md](policies.md) explains each policy, and the [glossary](glossary.md#jobs) the terms.

## How it is measured

`make bench-policies` repeats the measurement in about 20 minutes.
It needs no root, and it resumes where it was interrupted.
It trains with gloo on two ranks of one machine.
Each rank has a network namespace of its own, and the link between the two is limited to a known rate.

- A **cell** is one task on one link.
- A **run** trains the task of a cell with one method and one random seed, until it reaches the target.
- The **target** is an accuracy or a loss on held-out data, the same for every method of a cell.
- **DDP** is PyTorch's `DistributedDataParallel` without timesyncd. Every method is compared with it.
- **BSP** is the policy `bsp`, which exchanges gradients in every step as DDP does.
- A **claim** needs {len(SEEDS)} seeds for each method that it compares. With fewer, the page gives the figures and claims nothing.

`bench/policies/plan.py` fixes cells, methods, learning rates, targets and seeds beforehand; nothing is searched.
The *slow* links are made so slow that BSP communicates 7 times as long as it computes, as in the paper on SelSync.
The first table shows what they did.
"""

EARLIER = """\
## An earlier, longer measurement

An earlier suite trained four tasks on an idle machine, and searched for the best learning rate of each method.

| comparison | result |
| --- | --- |
| `selsync(quantile=0.9)`, begun late, against DDP on the slow link | 3.6 times as fast (digits, MLP), 3.7 times (digits, CNN), 4.7 times (characters); 5 seeds each |
| the same on digits sorted by label | 1.5 times as fast: the goal of 3 times was **missed** |
| SSP against DDP, one rank always three times as slow | no faster in three of four tasks, and 4 % faster in one; 5 seeds each |
| `auto` against the best fixed method, 17 cells, SGD | it took 0.88 to 1.10 times as long; the constants of `auto` are fitted to these tasks |

With four ranks each cell had one seed, so nothing is claimed of them.
"""


def median(values: Sequence[float]) -> float:
    return statistics.median_high(values) if values else math.inf


def ratios(cell: Cell, method: Method, base: Method, rows: Mapping[str, Row]) -> dict[int, float]:
    """
    By seed, the method's time over the other's: seeds differ in how many steps they need, so each is compared with
    itself. Infinite: the method failed; 0: the other one alone did.
    """
    times, others = seed_times_s(cell, method, rows), seed_times_s(cell, base, rows)
    return {
        seed: time_s / others[seed] if time_s < math.inf else math.inf
        for seed, time_s in times.items()
        if seed in others
    }


def is_claimed(found: Mapping[int, float]) -> bool:
    return len(found) == len(SEEDS) and median(list(found.values())) < math.inf


def against_best(cell: Cell, rows: Mapping[str, Row]) -> dict[int, tuple[float, Method]]:
    """
    `auto`'s time over that of the best fixed method, and that method. Of a seed it is the one that was fastest in the
    others, of those that have all seeds.
    """
    fixed = {
        method: found
        for method in cell.methods
        if method.is_fixed and not method.pauses and len(found := ratios(cell, method, REFERENCE, rows)) == len(SEEDS)
    }
    if not fixed or len(seed_times_s(cell, AUTO, rows)) < len(SEEDS):
        return {}
    result = {}
    for seed in SEEDS:
        best = min(fixed, key=lambda method: median([fixed[method][each] for each in SEEDS if each != seed]))
        result[seed] = ratios(cell, AUTO, best, rows)[seed], best
    return result


def _name(method: Method) -> str:
    return f"`{method.name}`" if method.policy == method.name else method.name


def claims(rows: Mapping[str, Row]) -> Iterator[str]:
    for cell in CELLS.values():
        selsync = ratios(cell, LATE_SELSYNC, REFERENCE, rows)
        if is_claimed(selsync):
            times = 1 / median(list(selsync.values()))
            held = "held" if times >= SELSYNC_TIMES else "**missed**"
            yield f"| late SelSync at least 3 times as fast as DDP | {cell.name} | {held} | {times:.2f} times |"
        compared = against_best(cell, rows)
        if compared:
            ratio = median([each for each, _ in compared.values()])
            held = "held" if ratio <= NEAR_BEST else "**missed**"
            best = " or ".join(dict.fromkeys(_name(method) for _, method in compared.values()))
            figure = "failed" if ratio == math.inf else f"{ratio:.2f} times {best}"
            yield f"| `auto` at most a tenth slower than the best fixed method | {cell.name} | {held} | {figure} |"


def all_runs(rows: Mapping[str, Row]) -> str:
    """`auto` over all cells and seeds."""
    found = sorted(ratio for cell in CELLS.values() for ratio, _ in against_best(cell, rows).values())
    if not found:
        return ""
    most = found[math.ceil(0.95 * len(found)) - 1]
    return (
        f"`auto` against the best fixed method, {len(found)} runs: median {median(found):.2f}, "
        f"95th percentile {most:.2f} (goals 1.10 and 1.25)."
    )


def claim_lines(rows: Mapping[str, Row]) -> list[str]:
    found = list(claims(rows))
    if not found:
        return ["No cell has five seeds yet, so nothing is claimed here."]
    return ["| claim | cell | | |", "| --- | --- | --- | --- |", *found, "", all_runs(rows)]


def links(rows: Mapping[str, Row]) -> str:
    found = []
    for cell in CELLS.values():
        link = rows.get(f"{VERSION}/{cell.name}/link")
        if link is not None:
            rate = "unshaped" if link["mbit"] is None else f"{link['mbit']:.0f} Mbit/s"
            found.append(
                f"| {cell.name} | {cell.task.title} | {rate} | {link['communication_ms']:.1f} | {link['compute_ms']:.1f} |"
            )
    head = "| cell | task | link | a BSP step communicates, ms | and computes, ms |\n| --- | --- | --- | --- | --- |\n"
    return head + "\n".join(found) + "\n" if found else ""


def failures(rows: Mapping[str, Row]) -> str:
    """The methods most of whose seeds did not reach the target."""
    found = []
    for cell in CELLS.values():
        for method in cell.methods:
            times = times_s(cell, method, rows)
            if times and median(times) == math.inf:
                reached = sum(each < math.inf for each in times)
                found.append(f"{_name(method)} in {cell.name} ({reached} of {len(times)} seeds)")
    return f"These did not reach the target, or not in time: {', '.join(found)}." if found else ""


def stragglers(rows: Mapping[str, Row]) -> str:
    """What a parameter server that waits less gains with a transient straggler, against DDP with the same one."""
    cell = CELLS["digits-pauses"]
    plain, *others = (method for method in cell.methods if method.pauses)
    found = []
    for method in others:
        compared = list(ratios(cell, method, plain, rows).values())
        if 0 < median(compared) < math.inf:
            found.append(
                f"`{method.policy}` was {1 / median(compared):.2f} times as fast as DDP ({len(compared)} of {len(SEEDS)} seeds)"
            )
    if not found:
        return ""
    return (
        "In `digits-pauses`, one rank pauses now and then, and under DDP all ranks wait for it.\n"
        f"A parameter server lets the others go on: {', '.join(found)}."
    )


@dataclass(frozen=True)
class Bar:
    cell: str
    method: str
    ratio: float
    seeds: str


def bars(rows: Mapping[str, Row]) -> Iterator[Bar]:
    for cell in CELLS.values():
        for method in cell.methods:
            found = list(ratios(cell, method, REFERENCE, rows).values())
            if method != REFERENCE and 0 < median(found) < math.inf:
                reached = sum(each < math.inf for each in found)
                yield Bar(cell.name, method.name, 1 / median(found), f"{reached}/{len(found)}")


def picture(rows: Mapping[str, Row]) -> str:
    """A bar for each method of each cell: how many times as fast as DDP."""
    found = list(bars(rows))
    scale = 300 / max((bar.ratio for bar in found), default=1.0)
    lines, y, former = [], 18, ""
    for bar in found:
        if bar.cell != former:
            y, former = y + 8, bar.cell
            lines.append(f'<text x="12" y="{y}" font-weight="bold">{bar.cell}</text>')
        color = "#3949ab" if bar.method == AUTO.name else "#9fa8da"
        lines.append(f'<text x="290" y="{y}" text-anchor="end">{bar.method}</text>')
        lines.append(f'<rect x="298" y="{y - 10}" width="{bar.ratio * scale:.0f}" height="11" fill="{color}"/>')
        lines.append(f'<text x="{304 + bar.ratio * scale:.0f}" y="{y}">{bar.ratio:.2f} ({bar.seeds})</text>')
        y += 16
    x = 298 + scale
    lines.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="10" y2="{y - 8}" stroke="#b71c1c" stroke-dasharray="3 3"/>')
    lines.append(f'<text x="{x - 20:.0f}" y="{y + 4}" fill="#b71c1c">DDP = 1</text>')
    return _SVG.format(height=y + 16, body="\n".join(lines))


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-family="sans-serif" font-size="12" role="img"
 aria-label="Times as fast as DDP, by cell and method">
<rect width="720" height="{height}" rx="8" fill="#ffffff"/>
<g fill="#222">
{body}
</g>
</svg>
"""


def page(rows: Mapping[str, Row], curve_rows: curves.Rows) -> str:
    parts = [HEAD]
    if rows:
        parts += [BARS, *filter(None, (links(rows), stragglers(rows), failures(rows))), "", *claim_lines(rows), ""]
    if curve_rows:
        parts += [CURVES, curves.table(curve_rows), ""]
    return "\n".join([*parts, EARLIER]).rstrip() + "\n"


BARS = f"""\
## The time to the target, against DDP

![Times as fast as DDP, by cell]({PICTURE})

Each bar is DDP's time to the target divided by the method's, of the same seed; the median over the seeds: 2 means twice as fast.
Behind each bar is how many of the seeds that ran reached the target.
The *best fixed method* of a seed is the one that was fastest in the other seeds.
The machine had two cores; seeds 2 to 5 ran alone on 2026-11-27, and seed 1 beside other work.
"""

CURVES = """\
## With AdamW

`make bench-policies PART=curves` trains the replicas of all ranks in one process, so no link is involved.
It computes the time of each step from a model of the link: a latency for each message, and a time for each byte.
The tasks are a byte-level GPT and a CNN with batch normalization.
The constants of `auto` are fitted to neither.

The target of a seed is 1 % above the loss that DDP has after 240 steps of the same seed.
The *best fixed method* of a seed is the one that was fastest in the other seeds.
BSP and half precision reach the target.
DES-LOC, DiLoCo and local SGD mostly do not, whatever their interval is.
The targets of `gpt-100` and `cnn-100` above are reached earlier, in 100 to 170 steps, and there DES-LOC was the fastest.
Without a validation loss `auto` cannot tell the two apart, and sends half precision.

Each ratio is a median of times to the target: 0.65 means 65 % of the other's time, so smaller is better.
In the last two columns `auto` also gets a validation loss.
A row of fewer than 5 seeds gives figures and no claim.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=run.FILE)
    parser.add_argument("--curves", type=Path, default=curves.FILE)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    rows = run.read(options.results)
    options.page.write_text(page(rows, run.read(options.curves)))
    if rows:
        (options.page.parent / PICTURE).write_text(picture(rows))


if __name__ == "__main__":
    main()
