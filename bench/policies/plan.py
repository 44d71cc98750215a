"""
What there is to run: tasks, links, methods, all of it data; and which run comes next, by the rows that are there. Pure.

A cell is a task, a number of ranks and a link. In its full cell each method's learning rate is searched with `SEARCH_SEED`, and it takes `SEEDS`; in the other
cells one seed with the learning rate that the full cell found.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Of the tasks, the clock, the baselines: a change of what they do needs the next number. LIBRARY: of the policies.
HARNESS, LIBRARY = 1, 1

#: The makers that use the library.
OURS = ("policy", "served")

SEARCH_SEED, SEEDS, ONE_SEED = 0, (1, 2, 3, 4, 5), (1,)

#: In a cell of one seed, of the fixed methods the fastest so many have all seeds in the end, as DDP and `auto` do.
FINALISTS = 3

#: In these cells they have so many: with five, in one with eleven yet, it was open whether `auto` takes at most a tenth longer than the best of them.
CLOSE = {"t2-4-even": 11, "t3-2-free": 31, "t3-4-even": 11, "t4-4-paper": 11}

#: A method may take so many times as long as DDP's median in the cell; more is a failure.
PATIENCE = 1.5

#: A learning rate has to be so many times as fast as the middle one, with the one seed of the search, to be taken instead.
TELLING = 1.1

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """`steps`: BSP's budget, at whose end the learning rate is a third. `error`: the measure is one that should fall."""

    name: str
    title: str
    batch: int
    steps: int
    eval_every: int
    learning_rates: tuple[float, ...]
    error: bool = False
    by_label: bool = False

    def target(self, bests: Sequence[float]) -> float:
        """From what BSP reached: 0.5 points below the median; a perplexity 2 % above it."""
        median = statistics.median(bests)
        return median * 1.02 if self.error else median - 0.5

    def is_reached(self, value: float, target: float) -> bool:
        return value <= target if self.error else value >= target

    def best(self, values: Sequence[float]) -> float:
        return min(values) if self.error else max(values)


#: With the middle one DDP does best, as tried with large batches on one process.
MLP_RATES, CNN_RATES, TEXT_RATES = (0.1, 0.2, 0.4), (0.05, 0.1, 0.2), (0.1, 0.2, 0.4)

TASKS = {
    task.name: task
    for task in (
        Task("t1", "digits, MLP of 1.13 M parameters", 32, 600, 25, MLP_RATES),
        Task("t2", "digits, CNN with a wide head, 1.06 M parameters", 32, 600, 25, CNN_RATES),
        Task("t3", "characters, transformer of 0.27 M parameters", 8, 800, 25, TEXT_RATES, error=True),
        Task("t4", "digits sorted by label, MLP of 1.13 M parameters", 32, 600, 25, MLP_RATES, by_label=True),
    )
}


@dataclass(frozen=True)
class Method:
    """
    One line of data. `maker` names the function in makers.py; `partition`: how the data is divided among the ranks, where the task does not define it.

    `servers`: parameter servers in a place of their own; 0: each rank keeps a shard. `slowed`: how many times its computing the last rank
    sleeps in each step.
    """

    name: str
    maker: str = "policy"
    policy: str = ""
    partition: str = "sel"
    injected: tuple[float, float] | None = None
    servers: int = 0
    slowed: float = 0.0

    @property
    def version(self) -> str:
        return f"{HARNESS}.{LIBRARY}" if self.maker in OURS or self.injected else f"{HARNESS}"

    @property
    def is_served(self) -> bool:
        """By a parameter server: then ranks are not in step, so an evaluation freezes the others."""
        return self.maker == "served"

    @property
    def is_fixed(self) -> bool:
        """Whether it is one of those that `auto` is compared with."""
        return self.policy != "auto" and not self.slowed and not self.injected


def _policies(*texts: str, partition: str = "sel") -> tuple[Method, ...]:
    return tuple(Method(text, policy=text, partition=partition) for text in texts)


#: What speed-ups are compared with, and what sets the target.
REFERENCE = Method("DDP", "ddp", partition="def")
AUTO = Method("auto", policy="auto")
SERVER_BSP = Method("BSP, parameter server", "served", "ssp(s=0)", partition="def", servers=1)
INJECTED = (0.5, 0.5)
LOCAL_H = (4, 8, 16, 32, 64)

METHODS = (
    REFERENCE,
    Method("DDP + fp16", "ddp_fp16", partition="def"),
    Method("DDP + PowerSGD", "ddp_powersgd", partition="def"),
    Method("torch PeriodicModelAverager, H=16", "periodic"),
    SERVER_BSP,
    *_policies("bsp", "bsp + topk(ratio=0.01)", partition="def"),
    *_policies(*(f"local_sgd(h={h})" for h in LOCAL_H)),
    Method("local_sgd(h=16), DefDP", policy="local_sgd(h=16)", partition="def"),
    *_policies("qsr(h=4, alpha=0.2)"),
    *_policies("fedavg(c=1.0, e=0.25)", "fedavg(c=1.0, e=0.125)", "fedavg(c=0.5, e=0.25)", partition="def"),
    *_policies("selsync(delta=0.3, late=0)", "selsync(delta=0.5, late=0)", "selsync(quantile=0.9, late=0)"),
    *_policies("selsync(delta=0.3, late=0, smoothing=0.16)", "selsync(delta=0.3, late=1, smoothing=0.16)"),
    *_policies(*(f"selsync(quantile={quantile}, late=1)" for quantile in (0.9, 0.95, 0.98))),
    AUTO,
)

#: With one rank that computes three times as long, where staleness shows.
SLOWED = tuple(
    Method(f"{name}, slow rank", maker, policy, "def", slowed=2.0)
    for name, maker, policy in (
        ("DDP", "ddp", ""),
        *((f"ssp(s={s})", "served", f"ssp(s={s})") for s in (0, 2, 8, 100)),
    )
)

WITH_INJECTION = tuple(
    Method(f"{policy}, injection", policy=policy, injected=INJECTED)
    for policy in (
        "selsync(delta=0.3, late=1, smoothing=0.16)",
        "selsync(quantile=0.9, late=1)",
        "local_sgd(h=16)",
        "auto",
    )
)


@dataclass(frozen=True)
class Link:
    """`ratio`: of BSP's communication to computing, which the rate is made for; None: unshaped."""

    name: str
    ratio: float | None


LINKS = {link.name: link for link in (Link("paper", 7.0), Link("even", 1.0), Link("free", None))}


@dataclass(frozen=True)
class Cell:
    task: Task
    ranks: int
    link: Link

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.ranks}-{self.link.name}"

    @property
    def is_full(self) -> bool:
        """Of all methods but those with a slow rank."""
        return self == self.full(REFERENCE)

    def full(self, method: Method) -> Cell:
        """The method's full cell for the same task: with a slow rank it is on the link where that rank, and not the link, is what others wait for."""
        return Cell(self.task, 2, LINKS["even" if method.slowed else "paper"])

    @property
    def methods(self) -> tuple[Method, ...]:
        return METHODS + SLOWED + (WITH_INJECTION if self.task.by_label else ())

    def is_of(self, row: Row) -> bool:
        return (row["task"], row["ranks"], row["link"]) == (self.task.name, self.ranks, self.link.name)


CELLS = {
    cell.name: cell
    for cell in (Cell(task, n, link) for task in TASKS.values() for n in (2, 4) for link in LINKS.values())
}


@dataclass(frozen=True)
class Run:
    """`limit_s` None: to the end of BSP's budget, whatever it reaches."""

    method: Method
    learning_rate: float
    seed: int
    limit_s: float | None

    def key(self, cell: Cell) -> Row:
        return {
            "kind": "run", "task": cell.task.name, "ranks": cell.ranks, "link": cell.link.name, "method": self.method.name,
            "learning_rate": self.learning_rate, "seed": self.seed, "version": self.method.version,
        }  # fmt: skip


def rows_of(cell: Cell, method: Method, rows: Sequence[Row], kind: str = "run") -> list[Row]:
    """Of this version; older ones do not count."""
    wanted = (kind, method.name, method.version)
    return [row for row in rows if (row["kind"], row.get("method"), row["version"]) == wanted and cell.is_of(row)]


def found_rate(cell: Cell, method: Method, rows: Sequence[Row]) -> float | None:
    """
    The learning rate that reached the target first in the search of its full cell, where another than the middle one has to be `TELLING`
    times as fast: one seed shows no less. None: none reached it, or the search is not over.
    """
    tried = [row for row in rows_of(cell.full(method), method, rows) if row["seed"] == SEARCH_SEED]
    reached = {float(row["learning_rate"]): float(row["time_s"]) for row in tried if row["reached"]}
    if len(tried) < len(cell.task.learning_rates) or not reached:
        return None
    first, middle = min(reached, key=reached.__getitem__), cell.task.learning_rates[1]
    return middle if middle in reached and reached[middle] < TELLING * reached[first] else first


def is_searched(cell: Cell, method: Method, rows: Sequence[Row]) -> bool:
    tried = [row for row in rows_of(cell.full(method), method, rows) if row["seed"] == SEARCH_SEED]
    return len(tried) == len(cell.task.learning_rates)


def seeded(cell: Cell, method: Method, rows: Sequence[Row]) -> list[Row]:
    """The runs that count: not those of the search."""
    rate = found_rate(cell, method, rows)
    return [row for row in rows_of(cell, method, rows) if row["seed"] != SEARCH_SEED and row["learning_rate"] == rate]


def finalists(cell: Cell, rows: Sequence[Row]) -> list[Method]:
    """In a cell of one seed: DDP, `auto` and the fastest of the fixed ones, as soon as all have had it. Of one seed the fastest of many is a lucky one."""
    running = [method for method in cell.methods if not method.slowed]
    if not all(is_searched(cell, method, rows) for method in running):
        return []
    found = {method: seeded(cell, method, rows) for method in running if found_rate(cell, method, rows) is not None}
    if not all(found.values()):
        return []
    first_s = {method: each[0]["time_s"] for method, each in found.items() if method.is_fixed and each[0]["reached"]}
    fastest = sorted(first_s.keys() - {REFERENCE}, key=first_s.__getitem__)[:FINALISTS]
    return [method for method in running if method in (REFERENCE, AUTO, *fastest)]


def seeds_of(cell: Cell, method: Method, last: Sequence[Method]) -> tuple[int, ...]:
    """`last`: the cell's finalists."""
    if method in last:
        return final_seeds(cell)
    return SEEDS if cell == cell.full(method) else ONE_SEED


def final_seeds(cell: Cell) -> tuple[int, ...]:
    """Of finalists."""
    return tuple(range(1, CLOSE[cell.name] + 1)) if cell.name in CLOSE else SEEDS


def reference_s(cell: Cell, rows: Sequence[Row]) -> float | None:
    """DDP's median time in the cell; None: not known yet."""
    times = [row["time_s"] for row in seeded(cell, REFERENCE, rows) if row["reached"]]
    return statistics.median(times) if times else None


def searching(cell: Cell, method: Method, rows: Sequence[Row], limit_s: float) -> Iterator[Run]:
    """A rate is given up as soon as it is slower than the best one so far; the middle one comes first, since it sets that."""
    tried = [row for row in rows_of(cell, method, rows) if row["seed"] == SEARCH_SEED]
    best_s = min((row["time_s"] for row in tried if row["reached"]), default=limit_s)
    done = {row["learning_rate"] for row in tried}
    for rate in sorted(cell.task.learning_rates, key=lambda rate: rate != cell.task.learning_rates[1]):
        if rate not in done:
            yield Run(method, rate, SEARCH_SEED, best_s)


def pending(cell: Cell, rows: Sequence[Row], first_limit_s: float) -> list[Run]:
    """
    What is still to be run, the next one first; a search's limits are those of now. DDP comes first, since all others' limits are made of
    it; it has `first_limit_s`. Then seed after seed, all methods with each: an hour in which the machine is slow is everybody's. Those with a
    slow rank take longest, and are last. What the full cell did not find a learning rate for is left out, as failed or not yet known.
    """
    found: list[Run] = []
    known_s, last = reference_s(cell, rows), finalists(cell, rows)
    for method in cell.methods:
        limit_s = first_limit_s if method == REFERENCE or known_s is None else PATIENCE * known_s
        if method.slowed:
            limit_s *= 1 + method.slowed
        if cell == cell.full(method):
            found += searching(cell, method, rows, limit_s)
        rate = found_rate(cell, method, rows)
        done = {row["seed"] for row in seeded(cell, method, rows)}
        if rate is not None:
            found += [Run(method, rate, seed, limit_s) for seed in seeds_of(cell, method, last) if seed not in done]
    return sorted(found, key=lambda run: (run.method != REFERENCE, run.method.slowed, run.seed))


def most_left(cell: Cell, rows: Sequence[Row]) -> int:
    """How many runs are still to come, if every search finds a learning rate."""
    last = finalists(cell, rows)
    unknown = [method for method in cell.methods if not is_searched(cell, method, rows)]
    finals = 0 if cell.is_full or last else (FINALISTS + 2) * (len(final_seeds(cell)) - len(ONE_SEED))
    return len(pending(cell, rows, 0.0)) + sum(len(seeds_of(cell, method, last)) for method in unknown) + finals


def crossing_s(task: Task, target: float, curve: Sequence[Sequence[float]]) -> float | None:
    """When the target was reached, between the (seconds, value) before and the one there, on a straight line; None: never."""
    before: Sequence[float] | None = None
    for moment, value in curve:
        if task.is_reached(value, target):
            if before is None or before[1] == value:
                return moment
            return before[0] + (moment - before[0]) * (target - before[1]) / (value - before[1])
        before = (moment, value)
    return None
