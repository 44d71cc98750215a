"""One shard of a parameter server: its part of the parameters, each rank's clock, and who waits for whom. No network in it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from timesyncd.training.policy.decision import Decision, Policy, Seen
from timesyncd.training.policy.stale import SSP
from timesyncd.training.torch.flat import Tensors
from timesyncd.training.torch.pushes import Part, plus

_Value = TypeVar("_Value")

#: The clock of a rank that takes no more steps, and holds nobody up.
DONE = sys.maxsize


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters after so many updates of all ranks together. The tensors are never written to."""

    version: int
    parameters: Tensors


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What all ranks of a job say alike. `model`: each type's name and number of elements."""

    protocol: int
    job: str
    attempt: int
    ranks: int
    model: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        model = ", ".join(f"{elements} {kind}" for kind, elements in self.model)
        return f"job {self.job!r}, attempt {self.attempt}, {self.ranks} ranks, {model}, protocol {self.protocol}"


Answer: TypeAlias = "torch.futures.Future[Held | Refused]"


@dataclass(frozen=True, slots=True)
class _Waiting:
    rank: int
    may_go: Callable[[], bool]
    answer: Answer
    since_ns: int


class Shard:
    """
    A rank's clock is the number of updates that it pushed. A rank is answered when the policy says no WAIT any more: what it gets then
    holds every update up to the clock of the slowest rank. Where the policy lets nobody ahead (`ssp(s=0)`), updates of one clock are
    added together, in the order of the ranks, when all are there; else each as it comes.

    All may be called in any thread. `over` is set when all ranks are done, and when it failed.
    """

    def __init__(self, ranks: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.failed = ""
        self.over = threading.Event()
        self._ranks = ranks
        self._now_ns = now_ns
        self._lock = threading.RLock()  # who is answered may ask the next thing
        self._identity: Identity | None = None
        self._policy: Policy = SSP(0)
        self._held = Held(0, [])
        self._clocks = [0] * ranks
        self._heard_ns = [now_ns()] * ranks
        self._kept: dict[tuple[int, int], Sequence[Part]] = {}
        self._waiting: list[_Waiting] = []
        self._entered: set[int] = set()
        self._entries = 0

    def enter(self, rank: int, identity: Identity, clock: int, start: Held | None) -> Answer:
        """Begin at this clock. Answered when all ranks have; one of them brings the parameters."""
        with self._lock:
            self._identity = self._identity or identity
            if identity != self._identity:
                self.failed = self.failed or f"rank {rank} is of {identity}; others of {self._identity}"
            elif rank in self._entered:
                self.failed = self.failed or f"there are two of rank {rank} in {identity}"
            self._clocks[rank] = clock
            self._held = start or self._held
            mine = self._entries
            self._entered.add(rank)
            if len(self._entered) == self._ranks:
                self._entered.clear()
                self._entries += 1
            return self._wait(rank, lambda: self._entries > mine)

    def push(self, rank: int, clock: int, difference: Sequence[Part]) -> torch.futures.Future[int | Refused]:
        """Add this rank's next update. Answered at once, with the version as it came: what it was computed from may be older."""
        with self._lock:
            version = self._held.version
            expected = self._clocks[rank] + 1
            if not self.failed and clock != expected:
                self.failed = f"rank {rank} pushed update {clock} where {expected} was due: its ranks are out of step"
            self._heard_ns[rank] = self._now_ns()
            if not self.failed:
                self._clocks[rank] = clock
                self._kept[clock, rank] = difference
            self._turn()
            return _answered(Refused(self.failed) if self.failed else version)

    def pull(self, rank: int, clock: int) -> Answer:
        """Answered when this rank's update of that clock is in, and the policy lets it go on."""
        with self._lock:
            self._heard_ns[rank] = self._now_ns()
            return self._wait(rank, lambda: self._clocks[rank] >= clock and not self._waits(clock))

    def read(self, rank: int) -> Answer:
        """What is there now."""
        with self._lock:
            return self._wait(rank, lambda: True)

    def finish(self, rank: int) -> Answer:
        """This rank takes no more steps. Answered when none does."""
        with self._lock:
            self._clocks[rank] = DONE
            return self._wait(rank, lambda: self._slowest() == DONE)

    def follow(self, policy: Policy) -> torch.futures.Future[None | Refused]:
        """From now on, for those who wait as well."""
        with self._lock:
            self._policy = policy
            self._turn()
        return _answered(None)

    def fail(self, reason: str) -> torch.futures.Future[None | Refused]:
        """All who wait and all who come are refused; the first reason counts."""
        with self._lock:
            self.failed = self.failed or reason
            self._turn()
        return _answered(None)

    def overdue(self, patience_ns: int) -> str:
        """Who was silent for longer while somebody waited for it, or that all wait for each other; empty: neither."""
        with self._lock:
            if not self._waiting:
                return ""
            first, now_ns = self._waiting[0], self._now_ns()
            absent = set(range(self._ranks)) - {waiting.rank for waiting in self._waiting}
            if not absent and now_ns - self._waiting[-1].since_ns > patience_ns:
                return "all ranks wait for each other: they are out of step"
            for rank in sorted(absent):
                silent_ns = now_ns - max(first.since_ns, self._heard_ns[rank])
                if silent_ns > patience_ns:
                    return f"rank {rank} pushed no update for {silent_ns / 1e9:.0f} s, while rank {first.rank} waited"
            return ""

    def _slowest(self) -> int:
        return min(self._clocks)

    def _waits(self, clock: int) -> bool:
        """Whether the policy holds a rank that has pushed so many updates."""
        seen = Seen(step=clock - 1, since=1, ranks=self._ranks, rounds=clock - 1, ahead=clock - self._slowest())
        return self._policy.decide(seen) is Decision.WAIT

    def _wait(self, rank: int, may_go: Callable[[], bool]) -> Answer:
        answer: Answer = torch.futures.Future()
        self._waiting.append(_Waiting(rank, may_go, answer, self._now_ns()))
        self._turn()
        return answer

    def _turn(self) -> None:
        """Add what may be added, answer who may go."""
        self._add()
        going: list[_Waiting] = []
        staying: list[_Waiting] = []
        for waiting in self._waiting:
            (going if self.failed or waiting.may_go() else staying).append(waiting)
        self._waiting = staying
        if self.failed or self._slowest() == DONE:
            self.over.set()
        for waiting in going:
            waiting.answer.set_result(Refused(self.failed) if self.failed else self._held)

    def _add(self) -> None:
        slowest = self._slowest()
        together = self._waits(slowest + 1)
        for clock, rank in sorted(self._kept):
            if together and clock > slowest:
                return
            self._held = Held(self._held.version + 1, plus(self._held.parameters, self._kept.pop((clock, rank))))


def _answered(value: _Value) -> torch.futures.Future[_Value]:
    answer: torch.futures.Future[_Value] = torch.futures.Future()
    answer.set_result(value)
    return answer
