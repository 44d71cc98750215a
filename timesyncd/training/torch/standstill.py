"""
Where the ranks are while a job stands still, and which of them wait for each other for good.

A rank that waits for rows cannot see why they do not come. So a thread of each rank that stands still publishes in the
job's store where its rank is, and the thread of rank 0 compares: without it the ranks would wait for their group's
time-out, half an hour on gloo.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from timesyncd.client.torch.peer_loss import peer_loss_text
from timesyncd.errors import SyncError

_log = logging.getLogger(__name__)

#: How often a thread looks, and after how many looks without a change its rank stands still.
LOOK_S, LOOKS_UNTIL_STILL = 0.1, 3

#: For how many looks of rank 0 two ranks wait for each other before it is reported: where one of them has ended, and
#: where both are in a collective, of which a slow link may bring the end to one of them later.
LOOKS_ENDED, LOOKS_WAITING = 3, 10

#: A rank that goes on publishes nothing for at least this many looks.
MAX_AGE = LOOKS_UNTIL_STILL

#: For how many looks of rank 0 it waits until the other ranks know why the job ends. A rank that is lost never knows.
LOOKS_UNTIL_KNOWN = 50

#: With more ranks than this the looks are rarer in proportion: all of them go to one store.
RANKS_PER_LOOK = 128

#: Collectives that end for no rank before all ranks have called them.
COMPLETE = {
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "reduce_scatter", "reduce_scatter_tensor",
}  # fmt: skip

_TRAINING = str(Path(__file__).parents[1])
_TORCH = str(Path(dist.__file__).parents[1])
_CLIENT = str(Path(__file__).parents[2] / "client")


class Place(StrEnum):
    """Where a rank stands still. EXCHANGE: it waits for the other ranks' rows."""

    ELSEWHERE = "elsewhere"
    EXCHANGE = "exchange"
    COLLECTIVE = "collective"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class RankPosition:
    """
    Where one rank stands still. `looks`: number of looks that found it still, over all. `step`: number of its updates.
    `left_out`: as in `Row`. `exchanges`: number of exchanges of rows that it has begun; where it waits for rows, the number
    of that exchange. `reductions`: as `reduced_passes`. `has_ended`: it takes no more steps. `where`: the script's line.
    `needs`: the ranks without which it cannot go on.
    """

    rank: int
    looks: int = 0
    step: int = 0
    left_out: int | None = None
    exchanges: int = 0
    reductions: int | None = None
    has_ended: bool = False
    place: Place = Place.ELSEWHERE
    where: str = ""
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Deadlock:
    """`rank` waits elsewhere for a rank that waits for its rows or gradients. `looks`: as in LOOKS_WAITING."""

    rank: int
    text: str
    looks: int


def find_deadlocks(positions: Sequence[RankPosition]) -> Iterator[Deadlock]:
    """One for each rank that waits elsewhere. None: each rank may still go on."""
    waiting = {each.rank: each for each in positions if each.place in (Place.EXCHANGE, Place.BACKWARD)}
    for other in positions:
        found = (_deadlock(waiting[rank], other) for rank in other.needs if rank in waiting)
        yield from itertools.islice((each for each in found if each is not None), 1)


def _deadlock(waiting: RankPosition, other: RankPosition) -> Deadlock | None:
    if waiting.place is Place.BACKWARD:
        return _deadlock_of_gradients(waiting, other)
    if waiting.has_ended and other.step >= waiting.step:
        text = (
            f"the ranks are out of step: rank {waiting.rank} ended after {waiting.step} steps and rank {other.rank} is "
            f"in step {other.step}, in {other.where}; every rank must make the same number of optimizer steps"
        )
        return Deadlock(other.rank, text, LOOKS_ENDED)
    if other.place is Place.COLLECTIVE and other.exchanges < waiting.exchanges and not waiting.has_ended:
        return Deadlock(other.rank, _waiting_text(waiting, other), LOOKS_WAITING)
    return None


def _deadlock_of_gradients(waiting: RankPosition, other: RankPosition) -> Deadlock | None:
    """
    The backward pass reduces, and ends only when the other rank has begun it too. That rank has not: its collective ends
    only when this rank has called it.
    """
    if other.place is not Place.COLLECTIVE or other.rank not in waiting.needs:
        return None
    if waiting.reductions is None or other.reductions is None or other.reductions >= waiting.reductions:
        return None
    text = (
        f"the ranks wait for each other: rank {other.rank} for rank {waiting.rank} in {other.where} of step {other.step}, and "
        f"rank {waiting.rank} for it in {waiting.where} of step {waiting.step}; all ranks must call the same collectives"
    )
    return Deadlock(other.rank, text, LOOKS_WAITING)


def _waiting_text(waiting: RankPosition, other: RankPosition) -> str:
    if other.left_out is not None and other.left_out != waiting.left_out:
        fault = f"left out an optimizer step in step {other.left_out}"
    else:
        fault = f"has made no update in step {other.step}"
    return (
        f"rank {other.rank} {fault}: it waits for rank {waiting.rank} in {other.where}, and rank {waiting.rank} waits for it "
        f"in optimizer.step() of step {waiting.step}; all ranks must make the same updates, or call skip_update() where "
        "the policy lets a rank leave one out"
    )


def place_of(thread: int, replicas: Sequence[int]) -> tuple[Place, str, tuple[int, ...]]:
    """
    Where that thread is in the script, and which ranks it needs there. `replicas`: the ranks that DDP reduces with now.
    """
    frames = list(_frames(sys._current_frames().get(thread)))
    callers = (frame for frame in frames if not frame.f_code.co_filename.startswith((_TORCH, _CLIENT)))
    line = _line_text(next(callers, None))
    if any(frame.f_code.co_name == "_engine_run_backward" for frame in frames):
        return Place.BACKWARD, f"the backward pass{_line_text(_script(frames))}", tuple(replicas)
    for frame in itertools.takewhile(lambda frame: frame.f_code.co_filename.startswith((_TORCH, _CLIENT)), frames):
        code = frame.f_code
        is_async = frame.f_locals.get("async_op", False)
        if code.co_filename == distributed_c10d.__file__ and code.co_name in COMPLETE and not is_async and line:
            return Place.COLLECTIVE, f"{code.co_name}{line}", _members(frame.f_locals.get("group"))
    return Place.ELSEWHERE, "", ()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost one outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _script(frames: Sequence[FrameType]) -> FrameType | None:
    own = (_TORCH, _CLIENT, _TRAINING)
    return next((frame for frame in frames if not frame.f_code.co_filename.startswith(own)), None)


def _line_text(frame: FrameType | None) -> str:
    """Empty for a line of this package."""
    if frame is None or frame.f_code.co_filename.startswith(_TRAINING):
        return ""
    return f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"


def _members(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """The ranks of the group. A rank that is not in it does not wait there."""
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):
        return ()


class Standstill:
    """
    The thread of one rank. `position`: what the rank itself knows of its position; called by the thread. `replicas`: as
    in `place_of`. A store that cannot be used by two threads has no thread.

    `note` each time that the rank goes on. `text`: why the ranks wait for each other for good; None: they do not.
    """

    _numbers = itertools.count()

    def __init__(self, position: Callable[[], RankPosition], replicas: Callable[[], Sequence[int]]) -> None:
        self.text: str | None = None
        self._position, self._replicas = position, replicas
        self._moves = self._looks = 0
        self._script_thread = threading.get_ident()
        self._key = f"timesyncd/standstill/{next(self._numbers)}"
        self._counts: dict[int, int] = {}  #: by rank that waits elsewhere: number of comparisons in a row
        self._known: dict[int, tuple[int, int]] = {}  #: by rank: its looks, and number of comparisons without a new one
        self._stop = threading.Event()
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._store: Any = _own_store() if self._ranks > 1 else None
        if self._store is not None:
            self._publish(RankPosition(self._rank))
            self._thread = threading.Thread(target=self._run, name="standstill", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def note(self) -> None:
        self._moves += 1
        self._script_thread = threading.get_ident()

    def interrupt(self) -> None:
        """Raises SyncError where the ranks wait for each other for good."""
        if self.text is not None:
            raise SyncError(self.text)

    def find_cause(self) -> None:
        """As `interrupt`, for a rank whose collective failed: another rank may have ended because it knew earlier."""
        self.interrupt()
        if self._store is not None and self._read_found():
            self.interrupt()

    def _read_found(self) -> bool:
        """Whether it was found that the ranks wait for each other for good."""
        if self.text is None and self._store.check([f"{self._key}/found"]):
            text = self._store.get(f"{self._key}/found").decode()
            self._store.set(f"{self._key}/knows/{self._rank}", "")
            if self._rank == 0:
                self._wait_until_known()
            self.text = text
        return self.text is not None

    def _wait_until_known(self) -> None:
        """Until all ranks have read why the job ends: rank 0's process may hold the store, and the first end fails their collectives."""
        keys = [f"{self._key}/knows/{rank}" for rank in range(self._ranks)]
        for _ in range(LOOKS_UNTIL_KNOWN):
            if self._store.check(keys) or self._stop.wait(LOOK_S):
                return

    def close(self) -> None:
        """At the latest when the process ends: the thread must not be in the store then."""
        if self._store is not None and not self._stop.is_set():
            self._stop.set()
            self._thread.join(1)
            atexit.unregister(self.close)

    def _run(self) -> None:
        seen, still = self._moves, 0
        while not self._stop.wait(LOOK_S * max(1, self._ranks / RANKS_PER_LOOK)):
            still = still + 1 if seen == self._moves else 0
            seen = self._moves
            if still >= LOOKS_UNTIL_STILL:
                try:
                    self._look()
                except RuntimeError:  # the store has ended
                    return
                if self.text is not None:
                    return

    def _look(self) -> None:
        self._looks += 1
        here = self._here()
        self._publish(here)
        if self._rank == 0:
            self._compare()
        if self._read_found() and here.place is not Place.EXCHANGE:  # its script does not come to an error of ours
            _log.error("%s", self.text)

    def _here(self) -> RankPosition:
        known = replace(self._position(), rank=self._rank, looks=self._looks)
        if known.place is Place.EXCHANGE:
            return known
        place, where, needs = place_of(self._script_thread, self._replicas())
        return replace(known, place=place, where=where, needs=needs)

    def _publish(self, position: RankPosition) -> None:
        self._store.set(f"{self._key}/{self._rank}", json.dumps(asdict(position)))

    def _compare(self) -> None:
        keys = [f"{self._key}/{rank}" for rank in range(self._ranks)]
        found = list(find_deadlocks([each for each in map(_read, self._store.multi_get(keys)) if self._is_still(each)]))
        self._counts = {each.rank: self._counts.get(each.rank, 0) + 1 for each in found}
        for each in found:
            if self._counts[each.rank] >= each.looks:
                self._store.set(f"{self._key}/found", each.text)
                return

    def _is_still(self, position: RankPosition) -> bool:
        """Whether that rank stood still since this rank's last look. Each looks at times of its own."""
        looks, age = self._known.get(position.rank, (position.looks, MAX_AGE))
        age = 0 if position.looks > looks else age + 1
        self._known[position.rank] = position.looks, age
        return age < MAX_AGE


def _read(text: bytes) -> RankPosition:
    read = json.loads(text)
    return RankPosition(**read | {"place": Place(read["place"]), "needs": tuple(read["needs"])})


def _own_store() -> Any:
    """A connection of its own to the job's store: on the job's, a thread would wait for calls of the script. Or None."""
    store: Any = distributed_c10d._get_default_store()
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


class SyncErrors:
    """
    What a synchronization raises as RuntimeError becomes a SyncError, which names what was done, and the cause where one
    is found.

    `where`: the job, the rank and the step, for people. `checks`: what finds the cause.
    """

    def __init__(self, where: Callable[[], str], *checks: Callable[[], None]) -> None:
        self._where, self._checks = where, checks

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.raise_cause(error)
            raise SyncError(f"{self._where()}: {peer_loss_text(what, error)}") from error

    def raise_cause(self, error: RuntimeError) -> None:
        raise_cause(error, *self._checks)


def raise_cause(error: RuntimeError, *checks: Callable[[], None]) -> None:
    """Raises SyncError where a check finds why a collective failed. A check whose group has failed too finds nothing."""
    for check in checks:
        try:
            check()
        except SyncError as cause:
            raise cause from error
        except RuntimeError:
            continue
