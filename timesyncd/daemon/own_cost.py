"""
What the daemon costs its node, and how it keeps to its budget of CPU: it polls less often. The decision is pure; `OwnCost` reads
the process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.config import Config
from timesyncd.daemon.memory import resident_bytes
from timesyncd.driver import Runner, Traffic
from timesyncd.messages.cost import DaemonCost, SourceCost

#: The share of a core is judged over this time, and a change of the polls is given as long to show.
WINDOW_NS = 60 * NS_PER_S
READ_EVERY_NS = 10 * NS_PER_S

#: Polls are at most so many times as far apart.
MAX_FACTOR = 16

#: Below this part of the budget the polls get twice as dense again; denser ones may cost twice as much.
RELAXED = 0.4

_MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class Budget:
    """`cpu_share` is of one core; None: the cost is reported and not judged."""

    cpu_share: float | None = None
    memory_bytes: int | None = None


class CostReading(NamedTuple):
    """At one moment: processor time and polls since the start, by source, and the memory; None: it cannot be read now."""

    boottime_ns: int
    cpu_ns: int
    memory_bytes: int | None
    polls: Mapping[str, int]


def next_factor(cpu_share: float, budget: float, factor: int) -> int:
    """By how much the polls are to be spread from now on, after a whole window with `factor`."""
    if cpu_share > budget:
        return min(MAX_FACTOR, 2 * factor)
    return max(1, factor // 2) if cpu_share < RELAXED * budget else factor


class CostControl:
    """The readings of the last minute, and what follows from them. Pure: time is in the readings."""

    def __init__(self, budget: Budget) -> None:
        self.factor = 1
        self._budget = budget
        self._readings: deque[CostReading] = deque()
        self._changed_ns: int | None = None

    def update(self, reading: CostReading) -> None:
        """Takes in a reading, and decides once a window is over."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and reading.boottime_ns - readings[1].boottime_ns >= WINDOW_NS:
            readings.popleft()
        if self._changed_ns is None:
            self._changed_ns = reading.boottime_ns
        share = self.cpu_share
        if share is None or self._budget.cpu_share is None or reading.boottime_ns - self._changed_ns < WINDOW_NS:
            return
        factor = next_factor(share, self._budget.cpu_share, self.factor)
        if factor != self.factor:
            self.factor, self._changed_ns = factor, reading.boottime_ns

    @property
    def newest(self) -> CostReading | None:
        return self._readings[-1] if self._readings else None

    @property
    def window_ns(self) -> int:
        """The time that the shares are of; 0: there is no earlier reading."""
        return self._readings[-1].boottime_ns - self._readings[0].boottime_ns if self._readings else 0

    @property
    def cpu_share(self) -> float | None:
        """Of one core; None before the second reading."""
        window_ns = self.window_ns
        return (self._readings[-1].cpu_ns - self._readings[0].cpu_ns) / window_ns if window_ns else None

    def polls_per_s(self, source: str) -> float | None:
        window_ns = self.window_ns
        if not window_ns:
            return None
        count = self._readings[-1].polls.get(source, 0) - self._readings[0].polls.get(source, 0)
        return count * NS_PER_S / window_ns

    @property
    def evidence(self) -> str | None:
        """Why the finding holds; None: the daemon keeps to its budget."""
        share, newest = self.cpu_share, self.newest
        if share is None or newest is None:
            return None
        parts = [each for each in (self._cpu_evidence(share), self._memory_evidence(newest)) if each]
        return "; ".join(parts) or None

    def _cpu_evidence(self, share: float) -> str | None:
        budget = self._budget.cpu_share
        is_over = budget is not None and share > budget and self.window_ns >= WINDOW_NS
        if budget is None or not (is_over or self.factor > 1):
            return None
        rates = {source: rate for source in self._readings[-1].polls if (rate := self.polls_per_s(source)) is not None}
        most = sorted(rates.items(), key=lambda each: -each[1])[:3]
        spread = f", and polls {self.factor} times less often than configured" if self.factor > 1 else ""
        polled = ", ".join(f"{source} {rate:.1f}" for source, rate in most)
        return (
            f"the daemon used {share:.1%} of a core in the last minute, its budget is {budget:.1%}{spread}"
            f"; polls a second: {polled or 'none'}"
        )

    def _memory_evidence(self, newest: CostReading) -> str | None:
        budget = self._budget.memory_bytes
        if budget is None or newest.memory_bytes is None or newest.memory_bytes <= budget:
            return None
        return f"the daemon holds {newest.memory_bytes / _MIB:.0f} MiB, its budget is {budget / _MIB:.0f} MiB"


def allowed_factor(factor: int, poll_interval_s: float, holdover_after_ns: int | None) -> int:
    """
    As much of it as leaves two polls within `holdover_after_ns`, so that a clock does not age to HOLDOVER between them.
    A source that waits for its peer's messages has the interval 0, and keeps it.
    """
    if poll_interval_s == 0:
        return 1
    if holdover_after_ns is None:
        return factor
    return max(1, min(factor, int(holdover_after_ns / 2 / (poll_interval_s * NS_PER_S))))


class OwnCost:
    """Reads the process's cost each ten seconds, and spreads the polls of its runners."""

    def __init__(
        self,
        config: Config,
        runners: Sequence[Runner],
        clocks: Clocks,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.broker: Traffic | None = None
        limits = config.limits
        cpu = limits.daemon_cpu_percent
        memory = limits.daemon_memory_mib
        self.budget = Budget(None if cpu is None else cpu / 100, None if memory is None else memory * _MIB)
        self._control = CostControl(self.budget)
        self._node = config.node.name
        self._holdover_ns = {each.name: each.bounds.holdover_after_ns for each in config.source}
        self._runners = runners
        self._clocks = clocks
        self._cpu_ns = cpu_ns
        self._next_ns = 0

    def tick(self) -> str | None:
        """To be called each second or so. Returns the finding's evidence; None: it does not hold."""
        now_ns = self._clocks.boottime_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + READ_EVERY_NS
            polls = {runner.name: runner.polls for runner in self._runners}
            self._control.update(CostReading(now_ns, self._cpu_ns(), resident_bytes(), polls))
            for runner in self._runners:
                holdover_ns = self._holdover_ns.get(runner.name)
                runner.slowdown = allowed_factor(self._control.factor, runner.driver.poll_interval_s, holdover_ns)
        return self._control.evidence

    def message(self) -> DaemonCost:
        control = self._control
        sources = [self._source(each.name, each.polls, each.traffic) for each in self._runners]
        if self.broker is not None:
            sources.append(self._source("broker", 0, self.broker))
        return DaemonCost(
            node=self._node,
            as_of_realtime_ns=self._clocks.realtime_ns(),
            cpu_ns=self._cpu_ns(),
            cpu_share=control.cpu_share,
            window_ns=control.window_ns,
            memory_bytes=resident_bytes(),
            cpu_budget_share=self.budget.cpu_share,
            memory_budget_bytes=self.budget.memory_bytes,
            poll_factor=control.factor,
            sources=sources,
        )

    def _source(self, name: str, polls: int, traffic: Traffic) -> SourceCost:
        return SourceCost(
            source=name,
            polls=polls,
            polls_per_s=self._control.polls_per_s(name),
            packets_sent=traffic.packets_sent,
            packets_received=traffic.packets_received,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
        )
