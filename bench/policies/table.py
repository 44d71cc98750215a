"""
docs/policies-bench.md from the rows of results.jsonl.

    python -m policies.table [--results FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from policies import results
from policies.plan import AUTO, CELLS, REFERENCE, Cell, Method, Row, found_rate, is_searched, most_left, seeded

PAGE = Path(__file__).parents[2] / "docs" / "policies-bench.md"

#: The goals: of SelSync against DDP, of `auto` against the best fixed policy and against DDP.
SELSYNC_TIMES, NEAR_BEST, NEVER_SLOWER = 3.0, 1.10, 1.05
SELSYNC = (
    "selsync(delta=0.3, late=1, smoothing=0.16)",
    "selsync(quantile=0.9, late=1)",
    "selsync(quantile=0.95, late=1)",
    "selsync(quantile=0.98, late=1)",
)

#: Slower than any.
FAILED_S = 1e9

#: How often seeds are drawn again to see what a ratio of medians is worth, and the part that is left out on each side.
DRAWN, OUTSIDE = 2000, 0.05

HEAD = """\
# When to synchronize: what each policy costs and gains

This page is for you if you choose a policy, and want to see what each one cost and gained in measured training.
You learn how long each policy took to a target accuracy, in how many steps, and with how many bytes sent.
If you ask which policy to begin with, read [Policies](policies.md) first; the [glossary](glossary.md#jobs) defines the terms.

## How to read the tables

- A cell is named by its task (`t1` to `t4`), its number of ranks, and its link.
- On the link `paper` plain BSP communicates 7 times as long as it computes, as in SelSync's paper.
  On `even` it communicates as long as it computes, and `free` is not shaped.
- Times are medians to the target, evaluations not counted, then the range over the seeds.
  A time in italics is of a single seed.
- *Times DDP* is DDP's median through the method's: above 1, the method is faster.
- *Failed* is a run that did not reach the target within its limit, mostly 1.5 times DDP's median.
- *LSSR* is the share of local steps, those without a synchronization.
- Seeds scatter.
  The range after each ratio of a goal is the middle nine tenths over seeds drawn again, with replacement.

`make bench-policies` measures each part until it reports that it is done.
Then `make bench-policies PART=table` writes this page from `bench/policies/results.jsonl`.
`bench/policies/README.md` describes the measurement.
"""

COLUMNS = ("method", "reached", "time to target, s", "times DDP", "steps", "LSSR", "sent, MB a rank", "not computing", "best", "learning rate")  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """`median_s` None: fewer than half of the seeds reached the target. `rows` are of seeds, not of the search."""

    method: Method
    rows: Sequence[Row]
    rate: float | None

    @property
    def reached(self) -> list[Row]:
        return [row for row in self.rows if row["reached"]]

    @property
    def median_s(self) -> float | None:
        return statistics.median_high(self.times) if 2 * len(self.reached) > len(self.rows) else None

    @property
    def times(self) -> list[float]:
        """By seed; one that failed counts as slower than all others."""
        return [float(row["time_s"]) if row["reached"] else FAILED_S for row in self.rows]

    def middle(self, name: str) -> float | None:
        found = [row[name] for row in self.rows if row.get(name) is not None]
        return statistics.median(found) if found else None


def summaries(cell: Cell, rows: Sequence[Row]) -> list[Summary]:
    """Of the methods that were run, or that the search found no learning rate for."""
    found = []
    for method in cell.methods:
        rate = found_rate(cell, method, rows)
        counted = seeded(cell, method, rows)
        if counted or (rate is None and is_searched(cell, method, rows)):
            found.append(Summary(method, counted, rate))
    return found


def reference_of(timed: Sequence[Summary]) -> float | None:
    return next((each.median_s for each in timed if each.method == REFERENCE), None)


def line(each: Summary, reference_s: float | None) -> str:
    return " | ".join(("", *_cells(each, reference_s), "")).strip()


def _cells(each: Summary, reference_s: float | None) -> Iterator[str]:
    yield f"`{each.method.name}`" if each.method.policy == each.method.name else each.method.name
    if not each.rows:
        yield from ("0, with any learning rate", "**failed**", *[""] * (len(COLUMNS) - 3))
        return
    yield f"{len(each.reached)} of {len(each.rows)}"
    yield _time(each)
    yield _ratio(reference_s, each.median_s)
    for name, form in (("steps", "{:.0f}"), ("lssr", "{:.3f}"), ("sent_mb", "{:.0f}"), ("overhead", "{:.0%}"), ("best", "{:.2f}")):  # fmt: skip
        value = each.middle(name)
        yield "" if value is None else form.format(value)
    yield f"{each.rate}"


def _time(each: Summary) -> str:
    if each.median_s is None:
        return f"**failed** ({', '.join(sorted({row['why'] for row in each.rows if not row['reached']}))})"
    if len(each.rows) == 1:
        return f"*{each.median_s:.1f}*"
    times = [row["time_s"] for row in each.reached]
    return f"{each.median_s:.1f} ({min(times):.1f} to {max(times):.1f})"


def _ratio(reference_s: float | None, median_s: float | None) -> str:
    return "" if reference_s is None or median_s is None else f"{reference_s / median_s:.2f}"


def section(cell: Cell, rows: list[Row]) -> str:
    """Empty where nothing was run, or only to find the target."""
    if twin := results.twin(cell, rows):
        return f"## {cell.name}\n\nThat is {twin.name}: its link needed no shaping.\n"
    timed = summaries(cell, rows)
    link, target = results.link_row(cell, rows), results.target_of(cell, rows)
    if not timed or link is None or target is None:
        return ""
    rate = "an unshaped link" if link["rate_mbit"] is None else f"links of {link['rate_mbit']:.0f} Mbit/s"
    unit = "perplexity" if cell.task.error else "% accuracy"
    lines = [
        f"## {cell.name}: {cell.task.title}; {cell.ranks} ranks, {rate}\n",
        f"Communication : computing of plain BSP {link['ratio']:.1f} = {link['communication_ms']:.1f} ms : {link['compute_ms']:.1f} ms.",
        f"Target {target:.2f} {unit}.{_unfinished(most_left(cell, rows))}\n",
        "| " + " | ".join(COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
        *(line(each, reference_of(timed)) for each in timed),
    ]
    return "\n".join(lines) + "\n"


def _unfinished(runs: int) -> str:
    return f" **Not complete**: up to {runs} runs are still to be made." if runs else ""


@dataclass(frozen=True)
class Verdict:
    """`held` None: not measured yet."""

    goal: str
    cell: Cell
    held: bool | None
    text: str


def fastest(timed: Sequence[Summary], wanted: Callable[[Method], bool], seeds: int = 0) -> Summary | None:
    """Of those methods that reached the target, and have so many seeds."""
    found = [each for each in timed if wanted(each.method) and len(each.rows) >= seeds and each.median_s is not None]
    return min(found, key=lambda each: each.median_s or 0.0, default=None)


def compared(goal: str, cell: Cell, ours: Summary | None, other: Summary | None, limit: float) -> Verdict:
    """Whether ours takes at most `limit` times as long. None: it did not reach the target."""
    if other is None or other.median_s is None:
        return Verdict(goal, cell, None, "nothing to compare with")
    if ours is None or ours.median_s is None:
        return Verdict(goal, cell, False, f"failed; {other.method.name} took {other.median_s:.1f} s")
    ratio, seeds = ours.median_s / other.median_s, min(len(ours.rows), len(other.rows))
    range_text = "of 1 seed" if seeds == 1 else "({:.2f} to {:.2f}), of {} seeds".format(*scatter(ours, other), seeds)
    text = f"{ours.median_s:.1f} s, {other.method.name} {other.median_s:.1f} s: {ratio:.2f} times {range_text}"
    return Verdict(goal, cell, ratio <= limit, text)


def scatter(ours: Summary, other: Summary) -> tuple[float, float]:
    """Of the ratio of their medians, by the bootstrap (Efron, 1979)."""
    drawn = random.Random(0)

    def median_s(each: Summary) -> float:
        return statistics.median_high(drawn.choices(each.times, k=len(each.times)))

    ratios = sorted(median_s(ours) / median_s(other) for _ in range(DRAWN))
    left_out = round(OUTSIDE * DRAWN)
    return ratios[left_out], ratios[-1 - left_out]


def verdicts(cell: Cell, rows: Sequence[Row]) -> Iterator[Verdict]:
    timed = summaries(cell, rows)
    names = {each.method.name for each in timed}
    by_ddp = fastest(timed, lambda method: method == REFERENCE)
    if by_ddp is None:
        return
    best = fastest(timed, lambda method: method.name in SELSYNC)
    if cell.link.name == "paper" and not cell.task.by_label and (best is not None or names >= set(SELSYNC)):
        goal = f"SelSync with late flags at least {SELSYNC_TIMES:.0f} times as fast as DDP"
        yield compared(goal, cell, best, by_ddp, 1 / SELSYNC_TIMES)
    if "auto" in names:
        auto = fastest(timed, lambda method: method == AUTO)
        fixed = fastest(timed, lambda method: method.is_fixed, seeds=len(auto.rows) if auto else 0)
        yield compared("`auto` within 10 % of the best fixed policy", cell, auto, fixed, NEAR_BEST)
        yield compared("`auto` never more than 5 % slower than DDP", cell, auto, by_ddp, NEVER_SLOWER)


def goals(rows: Sequence[Row]) -> str:
    found = [verdict for cell in CELLS.values() for verdict in verdicts(cell, rows)]
    if not found:
        return ""
    words = {True: "held", False: "**missed**", None: "unknown"}
    lines = ["## Goals\n", "| goal | cell | | |", "| --- | --- | --- | --- |"]
    lines += [f"| {each.goal} | {each.cell.name} | {words[each.held]} | {each.text} |" for each in sorted(found, key=lambda each: each.goal)]  # fmt: skip
    return "\n".join(lines) + "\n"


def page(rows: list[Row]) -> str:
    parts = [HEAD, goals(rows), *(section(cell, rows) for cell in CELLS.values())]
    return "\n".join(part for part in parts if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FILE)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page(results.read(options.results)))


if __name__ == "__main__":
    main()
