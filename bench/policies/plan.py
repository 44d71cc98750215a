"""
What there is to run: cells, methods and seeds, all of it data, fixed beforehand; and which run comes next, by the rows that are there. Pure.

A cell is a task, a number of ranks, a link and its methods. Nothing is searched: the learning rate and the target are the task's, the same for every
method. Every method of a cell has all seeds, and a claim is made of a method only if it has them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A change of what a run does needs the next number; rows of older ones do not count.
VERSION = 2

SEEDS = (1, 2, 3, 4, 5)

#: A run that takes so many times as long as DDP's median in the cell has failed.
PATIENCE = 4.0

#: The same for DDP itself, and for all until its median is known.
FIRST_LIMIT_S = 90.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """
    `target`: the held-out accuracy in percent, or the loss if `error`, that ends a run. `adam`: the task of `adam_tasks` with the network, the data and the
    schedule; else SGD with momentum, and a learning rate that falls as 1 / (1 + 2 step / `steps`).
    """

    name: str
    title: str
    target: float
    batch: int = 32
    steps: int = 600
    eval_every: int = 20
    learning_rate: float = 0.2
    error: bool = False
    by_label: bool = False
    adam: str = ""

    def is_reached(self, value: float) -> bool:
        return value <= self.target if self.error else value >= self.target


DIGITS = Task("digits", "digits, MLP of 0.3 M parameters", 93.0)
SORTED = Task("sorted", "the same, sorted by label", 93.0, by_label=True)
GPT = Task("gpt", "byte-level GPT, AdamW", 2.40, 8, 240, 12, error=True, adam="gpt")
CNN = Task("cnn", "CNN with batch normalization, AdamW", 1.35, 16, 240, 12, error=True, adam="cnn")
TASKS = {task.name: task for task in (DIGITS, SORTED, GPT, CNN)}


@dataclass(frozen=True)
class Method:
    """
    One line of data. `maker` names the function in makers.py; `partition`: how the data is divided among the ranks, if the task does not define it.

    `servers`: parameter servers in a place of their own; 0: each rank keeps a shard. `pauses`: the last rank sleeps for ten steps' computing in every
    twentieth step, a transient straggler.
    """

    name: str
    maker: str = "policy"
    policy: str = ""
    partition: str = "sel"
    servers: int = 0
    pauses: bool = False

    @property
    def is_served(self) -> bool:
        """By a parameter server: then ranks are not in step, so an evaluation freezes the others."""
        return self.maker == "served"

    @property
    def is_fixed(self) -> bool:
        """Whether it is one of those that `auto` is compared with."""
        return self.policy != "auto"


def _policy(text: str, partition: str = "sel") -> Method:
    return Method(text, policy=text, partition=partition)


#: What the times of the others are divided by.
REFERENCE = Method("DDP", "ddp", partition="def")
FP16 = Method("DDP + fp16", "ddp_fp16", partition="def")
AUTO = _policy("auto")

#: SelSync with late flags, one variant for all cells, fixed before they were run: its default.
LATE_SELSYNC = _policy("selsync(quantile=0.9)")

#: The paper's own baseline.
SERVER_BSP = Method("BSP, parameter server", "served", "ssp(s=0)", partition="def", servers=1)

SGD_METHODS = (REFERENCE, FP16, _policy("local_sgd(h=16)"), LATE_SELSYNC, AUTO, SERVER_BSP)
ADAM_METHODS = (REFERENCE, FP16, _policy("des_loc(kx=16)"), AUTO)
PAUSED = (
    Method("DDP, pauses", "ddp", partition="def", pauses=True),
    Method("ssp(s=8), pauses", "served", "ssp(s=8)", "def", pauses=True),
    Method("asp, pauses", "served", "asp", "def", pauses=True),
)


@dataclass(frozen=True)
class Cell:
    """`ratio`: of BSP's communication to its computing, that the link is made for; None: `mbit`, or unshaped."""

    name: str
    task: Task
    methods: Sequence[Method]
    ratio: float | None = None
    mbit: float | None = None
    ranks: int = 2


CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell("digits-slow", DIGITS, SGD_METHODS, ratio=7.0),
        Cell("sorted-slow", SORTED, SGD_METHODS, ratio=7.0),
        Cell("digits-pauses", DIGITS, (REFERENCE, *PAUSED)),
        Cell("gpt-100", GPT, ADAM_METHODS, mbit=100.0),
        Cell("cnn-100", CNN, ADAM_METHODS, mbit=100.0),
        Cell("gpt-free", GPT, (REFERENCE, AUTO)),
    )
}


@dataclass(frozen=True)
class Run:
    cell: Cell
    method: Method
    seed: int
    limit_s: float

    @property
    def key(self) -> str:
        return f"{VERSION}/{self.cell.name}/{self.method.name}/{self.seed}"


def seed_times_s(cell: Cell, method: Method, rows: Mapping[str, Row]) -> dict[int, float]:
    """By seed; infinite: failed."""
    found = {seed: rows.get(Run(cell, method, seed, 0).key) for seed in SEEDS}
    return {seed: row["time_s"] or float("inf") for seed, row in found.items() if row is not None}


def times_s(cell: Cell, method: Method, rows: Mapping[str, Row]) -> list[float]:
    return list(seed_times_s(cell, method, rows).values())


def reference_s(cell: Cell, rows: Mapping[str, Row]) -> float | None:
    """DDP's median so far; None: it has not reached the target yet."""
    times = [each for each in times_s(cell, REFERENCE, rows) if each < float("inf")]
    return statistics.median(times) if times else None


def pending(rows: Mapping[str, Row]) -> Iterator[Run]:
    """What is still to be run: seed after seed, in each all cells with all methods, so that a slow minute of the machine is everybody's."""
    for seed in SEEDS:
        for cell in CELLS.values():
            known_s = reference_s(cell, rows)
            limit_s = FIRST_LIMIT_S if known_s is None else PATIENCE * known_s
            for method in cell.methods:
                run = Run(cell, method, seed, FIRST_LIMIT_S if method.is_served else limit_s)
                if run.key not in rows:
                    yield run


def crossing_s(task: Task, curve: Sequence[Sequence[float]]) -> float | None:
    """When the target was reached, between the (seconds, value) before and the one there, on a straight line; None: never."""
    before: Sequence[float] | None = None
    for moment, value in curve:
        if task.is_reached(value):
            if before is None or before[1] == value:
                return moment
            return before[0] + (moment - before[0]) * (task.target - before[1]) / (value - before[1])
        before = (moment, value)
    return None
