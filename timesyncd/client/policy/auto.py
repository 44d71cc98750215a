"""
The controller: chooses how often to average, whether to wait for it, and in which precision, by what the ranks measured. Pure; every rank has
one of its own, sees the same rows, and says the same.

It begins as BSP. Where that makes ranks wait it tries some averagings and looks what they do to the loss. Replicas of ranks that see alike data
are better averaged than alone: then they are averaged seldom, so that it costs little, and behind the scenes where even the longest interval would
cost much. Replicas of ranks that see different data drift apart, and the loss jumps when they are averaged: then each averaging is
waited for, and there are as many as the height of that jump and the link suggest; or it is BSP, where that is faster, since its steps teach more.
What makes the loss rise all the same is taken back, in the end to BSP.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from timesyncd.client.policy.decision import Combine, Decision, Seen

#: Where ranks wait for less than this part of their computing, BSP costs nothing worth a change.
HIDDEN = 0.04

#: Averagings are tried every so many steps, until so many looks told what they do. The further apart replicas are the clearer it shows.
TRIED_EVERY, TRIED_LOOKS = 16, 2

#: Replicas drift apart where averaging multiplies the loss by e to the power of this. The mean of two tries was, with alike data, -0.3 in the median
#: and more than this in one case of 15; with half of the classes on each rank 0.8, and less in one case of 60.
JUMP = 0.1

#: Above this it is beyond doubt: no mean was above 0.2 with alike data, and with a half or a quarter of the classes on each rank none of the first
#: two tries was below 0.4.
JUMP_SURE = 0.3

#: A loss that averaging took to nothing.
LEAST_JUMP = -0.99

#: Drifting replicas that are averaged every h steps need 1 + this * j^3 * h times as many as BSP, where two averagings 16 steps apart multiplied the
#: loss by e^j. Simulated on sorted digits: 2 ranks (j 0.6) 1.8 and 2.5 times as many with h of 8 and 32, 3 ranks (0.8) 1.9 and 3.6, 4 ranks (1.2)
#: 1.4, 1.7, 3.4 and 6.5 with 2, 4, 8 and 16.
STEPS_APART = 0.125

#: Where a transfer takes fewer steps than this BSP is as good at worst, and teaches more.
DRIFT_WORTH = 2.0

#: Ranks in BSP wait for one another too, not for transfers alone: how much of it is the link's beyond doubt.
LINKS_PART = 0.5

#: An averaging of alike data is waited for, so seldom that it costs this part of the time with two ranks; within so many steps.
COSTS, LEAST, LONGEST = 0.05, 4, 64

#: With more ranks it is more often, by their number to this power: the longest interval with which N ranks still learn N times as fast (Yu, Yang and
#: Zhu, arXiv 1807.06629). Digits took as many steps with an interval of 32 as with one of 16 on two ranks, and a sixth more on four.
#: Up to this part of the time.
MORE_RANKS, COSTS_MANY = 0.75, 0.25

#: It is made behind the scenes where it would cost more than this part of the time even so.
COSTS_MOST = 0.125

#: Transfers that take longer than so many steps are sent in half precision.
HALF_FROM = 2.0

#: Looks in a row without a loss, or without what averaging does to it, after which none is told.
SILENT_LOOKS = 24

#: The mean loss of common parameters over so many looks may rise above the lowest such mean by this part, and by so many standard errors.
MEAN_OF, RISE, ERRORS = 8, 0.25, 5.0

#: An averaging costs about as much within this factor.
ABOUT = 1.25

#: Looks whose median is what computing and transfers take.
REMEMBERED = 9

#: An interval is changed when another one is better by this factor and by two steps, and not within so many looks.
CHANGE_BY, LOOKS_BETWEEN = 1.5, 4

#: After so many looks averagings are tried anew, and after twice as many again, and so on: replicas that drift show it better later, and two
#: averagings may have misled. Two that were beyond doubt did not: there BSP stays until the link has become slow.
TRY_ANEW = 48


_Local = Literal["tried", "behind", "waited"]


@dataclass(frozen=True, slots=True)
class Auto:
    """What to do is chosen, and chosen anew, by the controller; until it knows more, BSP."""

    combines: ClassVar[Combine] = Combine.GRADIENTS
    late: ClassVar[int | None] = None

    def decide(self, seen: Seen) -> Decision:
        return Decision.SYNC


class Measured(Protocol):
    """What of a rank's row the controller looks at."""

    @property
    def compute_ns(self) -> int: ...
    @property
    def wait_ns(self) -> int: ...
    @property
    def transfer_ns(self) -> int | None: ...
    @property
    def loss(self) -> float: ...
    @property
    def jump(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Policy and compression as text, and why, in one line."""

    text: str
    why: str


class Controller:
    """`look` is called with the rows of all ranks, at the same steps on all of them."""

    def __init__(self) -> None:
        self._stage: _Local | Literal["bsp", "apart", "back"] = "bsp"
        self._h, self._delay = 1, 0
        self._half = False
        self._longest = LONGEST
        self._apart_by = 0.0
        self._ranks = 2
        self._may_be_late = True
        self._looks = self._silent = self._since_tried = 0
        self._try_anew = TRY_ANEW
        self._losses: deque[float] = deque(maxlen=MEAN_OF)
        self._lowest = math.inf, 0.0
        self._computing: deque[int] = deque(maxlen=REMEMBERED)
        self._transfers: deque[int] = deque(maxlen=REMEMBERED)
        self._waited: deque[float] = deque(maxlen=REMEMBERED)
        self._jumps: deque[float] = deque(maxlen=REMEMBERED)

    def look(self, rows: Sequence[Measured]) -> Choice | None:
        """None: go on as it is."""
        if self._stage == "back":
            return None
        self._looks += 1
        self._since_tried += 1
        self._measure(rows)
        return self._guarded([row.loss for row in rows if not math.isnan(row.loss)]) or self._chosen()

    def _measure(self, rows: Sequence[Measured]) -> None:
        self._ranks = len(rows)
        self._computing.append(max(1, statistics.median_low(row.compute_ns for row in rows)))
        self._waited.append(statistics.fmean(row.wait_ns for row in rows) / self._computing[-1])
        known = [row.transfer_ns for row in rows if row.transfer_ns is not None]
        if len(known) == len(rows):
            self._transfers.append(min(known))  # the last to come waited for nobody
        jumps = [row.jump for row in rows if not math.isnan(row.jump)]
        # Behind the scenes replicas are never averaged as they are; on the way to BSP they are after a few steps, which tells less.
        if jumps and self._stage not in ("behind", "apart"):
            # In logarithms what is but noise cancels out.
            self._jumps.append(statistics.fmean(math.log1p(max(jump, LEAST_JUMP)) for jump in jumps))

    def _guarded(self, losses: Sequence[float]) -> Choice | None:
        self._silent = 0 if losses else self._silent + 1
        is_local = self._stage not in ("bsp", "apart")
        if not is_local and not losses:
            return None
        if self._silent >= SILENT_LOOKS:
            return self._back("no loss is told any more: call saw(loss) in each step")
        if not losses:
            return None
        loss = statistics.fmean(losses)
        if math.isinf(loss):
            return self._back("the loss is infinite")
        self._losses.append(loss)
        if len(self._losses) < MEAN_OF:
            return None
        mean, error = statistics.fmean(self._losses), statistics.stdev(self._losses) / math.sqrt(MEAN_OF)
        lowest, its_error = self._lowest = min(self._lowest, (mean, error))
        if not is_local or mean - lowest <= max(RISE * lowest, ERRORS * math.hypot(error, its_error)):
            return None
        return self._restrained(f"the loss rose from {lowest:.3g} to {mean:.3g}")

    def _restrained(self, why: str) -> Choice:
        self._losses.clear()
        self._lowest = math.inf, 0.0
        self._longest = self._h // 2
        if self._longest < 2:
            return self._back(why)
        self._may_be_late = False
        return self._local("waited", self._longest, why)

    def _chosen(self) -> Choice | None:
        if self._stage == "bsp":
            return self._tried(self._waited[-1])
        if self._stage == "tried":
            return self._settled()
        if self._since_tried >= self._try_anew and self._may_be_wrong():
            return self._anew()
        is_due = self._stage != "apart" and self._looks >= LOOKS_BETWEEN and self._transfers
        return self._adjusted() if is_due else None

    def _tried(self, waited: float) -> Choice | None:
        """From BSP, whose waiting is at most what an averaging takes."""
        if not self._losses or waited <= HIDDEN:
            return None
        self._half = waited > HALF_FROM
        return self._local("tried", TRIED_EVERY, f"in BSP ranks wait for {waited:.2g} times their computing")

    def _settled(self) -> Choice | None:
        if len(self._jumps) < TRIED_LOOKS or not self._transfers:
            silent = "what averaging does to the loss is not told: call saw(loss) in each step, with a loss above zero"
            return self._back(silent) if self._looks >= SILENT_LOOKS else None
        self._half |= self._ratio() > HALF_FROM
        self._apart_by = self._jump()
        if self._is_slower_than_bsp():
            return self._apart()
        return self._local(*self._wanted(), self._told())

    def _anew(self) -> Choice:
        self._jumps.clear()
        self._since_tried, self._try_anew = 0, 2 * self._try_anew
        return self._local("tried", min(self._longest, TRIED_EVERY), "to see anew what averagings do to the loss")

    def _may_be_wrong(self) -> bool:
        """What replicas do is not seen where they are averaged behind the scenes or not at all."""
        if self._stage != "apart":
            return self._stage == "behind"
        return self._apart_by < JUMP_SURE or not self._teaches_more(LINKS_PART * statistics.median(self._waited))

    def _adjusted(self) -> Choice | None:
        if self._drifts() and self._apart_by <= JUMP:
            return self._anew()
        if self._is_slower_than_bsp():
            return self._apart()
        stage, h = self._wanted()
        wanted, now = (self._hidden(), self._delay) if stage == "behind" else (h, self._h)
        is_near = 1 / CHANGE_BY < wanted / max(1, now) < CHANGE_BY or abs(wanted - now) < 2
        if stage == self._stage and is_near:
            return None
        return self._local(stage, h, self._told())

    def _wanted(self) -> tuple[_Local, int]:
        if self._drifts():
            return "waited", self._sparing(self._ratio())
        if not self._may_be_late:
            return "waited", self._seldom()
        most = COSTS_MOST * {"behind": 1 / ABOUT, "waited": ABOUT}.get(self._stage, 1)
        return ("behind", LONGEST) if self._ratio() / LONGEST > most else ("waited", self._seldom())

    def _told(self) -> str:
        data = "ranks see different data: " if self._drifts() else ""
        changed = math.expm1(self._jump())
        return f"{data}averaging changes the loss by {changed:+.0%} and takes {self._ratio():.2g} steps"

    def _drifts(self) -> bool:
        return self._jump() > JUMP

    def _jump(self) -> float:
        """The logarithm of what averagings multiply the loss by; while none told, nothing."""
        return statistics.fmean(self._jumps) if self._jumps else 0.0

    def _is_slower_than_bsp(self) -> bool:
        return self._drifts() and self._teaches_more(self._ratio())

    def _teaches_more(self, ratio: float) -> bool:
        """BSP in a second than drifting replicas, where a transfer takes so many steps."""
        h = self._sparing(ratio)
        return ratio < DRIFT_WORTH or 1 + ratio < (1 + self._steps_apart() * h) * (1 + ratio / h)

    def _steps_apart(self) -> float:
        return STEPS_APART * self._apart_by**3

    def _ratio(self) -> float:
        """How many steps a transfer takes."""
        return statistics.median(self._transfers) / statistics.median(self._computing)

    def _hidden(self) -> int:
        """In how many steps a transfer is over, and some to spare."""
        return min(LONGEST - 1, math.ceil(1.1 * self._ratio()))

    def _sparing(self, ratio: float) -> int:
        """The interval with which drifting replicas take the least time: as many steps as they need times what a step takes."""
        return max(2, min(self._longest, round(math.sqrt(ratio / self._steps_apart()))))

    def _seldom(self) -> int:
        costs: float = min(COSTS_MANY, COSTS * (self._ranks / 2) ** MORE_RANKS)
        return min(self._longest, max(LEAST, math.ceil(self._ratio() / costs)))

    def _local(self, stage: _Local, h: int, why: str) -> Choice:
        self._delay = self._hidden() if stage == "behind" else 0
        if stage != self._stage:
            self._transfers.clear()
        self._stage, self._h, self._looks = stage, h, 0
        half = " + fp16" if self._half else ""
        delay = f", delay={self._delay}" if self._delay else ""
        return Choice(f"local_sgd(h={h}{delay}){half}", why)

    def _apart(self) -> Choice:
        """BSP until averagings are tried anew."""
        why = f"{self._told()}; BSP learns faster"
        self._stage, self._since_tried = "apart", 0
        return Choice("bsp + fp16" if self._half else "bsp", why)

    def _back(self, why: str) -> Choice:
        self._stage = "back"
        return Choice("bsp", why)

    def state_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, deque) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            former = getattr(self, name)
            setattr(self, name, deque(value, maxlen=former.maxlen) if isinstance(former, deque) else value)
