"""
The controller: chooses how often to average, whether to wait for it, and in which precision, by what the ranks measured. Pure; every rank has
one of its own, sees the same rows, and says the same.

It begins as BSP, whose gradients tell whether ranks see different data: then they differ from their mean in the same way in each step. Where
BSP makes ranks wait, replicas that see alike data are averaged seldom, and behind the scenes where even the longest interval would cost much.
Replicas that see different data drift apart: then each averaging is waited for, and there are as many as that drift and the link suggest; or it
is BSP, where that is faster, since its steps teach more, with as little sent as pays (sending.py). Where gradients leave it in doubt, or no longer tell,
two averagings are tried: the loss of replicas that drift jumps. What makes the loss rise all the same is taken back, in the end to BSP.

What averaging every so many steps costs in steps, and which interval takes the least time. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from timesyncd.training.policy.policies import Combine, Decision, PolicyContext
from timesyncd.training.policy.sending import FULL_PRECISION, HALF_PRECISION, GradientEncoding, estimated_step

#: Replicas of two ranks with alike data that are averaged every h steps need 1 + this * h times as many steps as BSP; of N ranks (N/2)^1.5 times as
#: much more, so that the best interval falls with N^(-3/4), as the longest one does with which N ranks still learn N times as fast (Yu, Yang and
#: Zhu, arXiv 1807.06629). On digits and text (bench/policies) it was 0.001 to 0.002 with two ranks, 0.004 to 0.005 with four.
SCATTER_PER_STEP, RANKS_EXPONENT = 0.0018, 1.5

#: Of different data it is more by this times the dissimilarity squared: on sorted digits 0.02 with two ranks (dissimilarity 4 to 7), 0.08 with three
#: (12 to 19), 0.4 with four (24 to 32).
DRIFT_PER_DISSIMILARITY = 0.0006

#: And this much more whatever the interval, from such a dissimilarity on: with two ranks.
FIXED_DRIFT, FIXED_DRIFT_FROM = 0.75, 4.0


@dataclass(frozen=True, slots=True)
class ReplicaDrift:
    """
    How far replicas drift apart between two averagings.

    `dissimilarity`: the squared distance of a rank's expected gradient from the mean of all ranks', as a multiple of the mean's square, with
    parameters that are the same on all ranks (zeta^2 / |grad f|^2 of Koloskova et al., ICML 2020). 0: alike data.
    """

    ranks: int
    dissimilarity: float = 0.0

    def steps(self, h: float) -> float:
        """How many times as many as BSP."""
        return self._at_least + self._each * h

    def time(self, h: float, ratio: float) -> float:
        """As a multiple of BSP's where communication costs nothing; an averaging takes `ratio` steps."""
        return self.steps(h) * (1 + ratio / h)

    def best(self, ratio: float) -> float:
        """The interval with the least time."""
        return math.sqrt(self._at_least * ratio / self._each)

    @property
    def _at_least(self) -> float:
        return 1 + FIXED_DRIFT * min(1.0, self.dissimilarity / FIXED_DRIFT_FROM)

    @property
    def _each(self) -> float:
        scatter: float = SCATTER_PER_STEP * (self.ranks / 2) ** RANKS_EXPONENT
        return (
            scatter + DRIFT_PER_DISSIMILARITY * self.dissimilarity * self.dissimilarity
        )  # which ** would find too large


#: Where ranks wait for less than this part of their computing, BSP costs nothing worth a change.
NEGLIGIBLE_WAIT = 0.04

#: Ranks whose gradients are less dissimilar than the former see alike data beyond doubt, from the latter on different data. In the first four
#: steps they were -0.6 to 0.6 with alike data, 4.0 to 6.7 with half of the classes on each of two ranks, 24 to 32 with a quarter on each of four.
SAME_DATA_BELOW, DIFFERENT_DATA_FROM = 0.25, 1.0

#: BSP waits for less than a transfer takes: its computing hides a part, and shares processor and memory with the rest. Until averagings are timed,
#: BSP counts as slower by this factor than by its waiting.
UNTIMED_BSP_FACTOR = 1.5

#: Averagings of different data have to be faster than BSP by this factor when they are timed first, and slower by it later on: transfers scatter.
MIN_SPEEDUP = 1.1

#: Averagings are tried every so many steps, until so many looks told what they do. The further apart replicas are the clearer it shows.
TRIAL_INTERVAL, TRIAL_AVERAGINGS = 16, 2

#: Replicas drift apart where averaging multiplies the loss by e to the power of this. The mean of two tries was, with alike data, -0.3 in the median
#: and more than this in one case of 15; with half of the classes on each rank 0.8, and less in one case of 60.
DRIFT_JUMP = 0.1

#: The dissimilarity of replicas whose loss two averagings multiply by e^j is this times j^2, as gradients and tries told of the same data.
DISSIMILARITY_PER_JUMP = 17.0

#: Above this it is beyond doubt: no jump was above 0.2 with alike data, and with a half or a quarter of the classes on each rank none of the first
#: two tries was below 0.4.
CERTAIN_DISSIMILARITY = DISSIMILARITY_PER_JUMP * 0.3**2

#: A loss that averaging took to nothing.
MIN_JUMP = -0.99

#: Ranks in BSP wait for one another too, not for transfers alone: how much of it is the link's beyond doubt.
MIN_LINK_SHARE = 0.5

#: An averaging of alike data is made within so many steps, and so seldom that it costs at most this part of the time.
MIN_INTERVAL, MAX_INTERVAL, MAX_BLOCKING_COST = 4, 64, 0.25

#: It is made behind the scenes where it would cost more than this part of the time even so.
OVERLAP_FROM_COST = 0.125

#: Transfers that take longer than so many steps are sent in half precision.
HALF_PRECISION_FROM = 2.0

#: Steps without a loss, or without what averaging does to it, after which none is told.
MAX_STEPS_WITHOUT_LOSS = 192

#: The geometric mean of the loss of common parameters over so many looks may rise above the lowest such mean by the logarithm of this part, and by so
#: many standard errors.
LOSS_WINDOW, MAX_LOSS_RISE, MAX_LOSS_ERRORS = 8, math.log1p(0.25), 5.0

#: Averagings that lower the loss, so many in the mean, are of data that is alike by now.
SAME_DATA_AVERAGINGS = 4

#: An averaging costs about as much within this factor.
COST_HYSTERESIS = 1.25

#: Looks whose median is what ranks wait for in BSP, and what its steps take.
RECENT_ROWS = 3

#: Looks whose median is what computing and transfers take.
KEPT_ROWS = 9

#: An interval is changed when another one is better by this factor and by two steps, and not within so many steps.
INTERVAL_HYSTERESIS, MIN_STEPS_BETWEEN_CHANGES = 1.5, 32

#: After so many steps averagings are tried anew, and after twice as many again, and so on: replicas that drift show it better later, and two
#: averagings may have misled. Two that were beyond doubt did not: there BSP stays until the link has become slow.
RETRIAL_STEPS = 384


_Local = Literal["tried", "behind", "waited"]


@dataclass(frozen=True, slots=True)
class Auto:
    """What to do is chosen, and chosen anew, by the controller; until it knows more, BSP."""

    combines: ClassVar[Combine] = Combine.GRADIENTS
    late: ClassVar[int | None] = None

    def decide(self, seen: PolicyContext) -> Decision:
        return Decision.SYNC


class RankMeasurements(Protocol):
    """What of a rank's row the controller looks at."""

    @property
    def step(self) -> int: ...
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
    @property
    def dissimilarity(self) -> float: ...


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
        self._sending = GradientEncoding()
        self._longest = MAX_INTERVAL
        self._drift = ReplicaDrift(ranks=2)
        self._bsp_ns: float | None = None
        self._waits = 1.0
        self._may_be_late = True
        self._step: int | None = None
        self._since_chosen = self._silent = self._since_tried = 0
        self._try_anew = RETRIAL_STEPS
        self._losses: deque[float] = deque(maxlen=LOSS_WINDOW)
        self._lowest = math.inf, 0.0
        self._computing: deque[int] = deque(maxlen=KEPT_ROWS)
        self._transfers: deque[int] = deque(maxlen=KEPT_ROWS)
        self._waited: deque[float] = deque(maxlen=KEPT_ROWS)
        self._jumps: deque[float] = deque(maxlen=KEPT_ROWS)

    def look(self, rows: Sequence[RankMeasurements]) -> Choice | None:
        """None: go on as it is."""
        if self._stage == "back":
            return None
        passed = 0 if self._step is None else rows[0].step - self._step
        self._step = rows[0].step
        self._since_chosen += passed
        self._since_tried += passed
        self._silent += passed
        self._measure(rows)
        dissimilarity = statistics.fmean(row.dissimilarity for row in rows)
        return self._guarded([row.loss for row in rows if row.loss > 0]) or self._chosen(dissimilarity)

    def _measure(self, rows: Sequence[RankMeasurements]) -> None:
        self._drift = ReplicaDrift(len(rows), self._drift.dissimilarity)
        self._computing.append(max(1, statistics.median_low(row.compute_ns for row in rows)))
        self._waited.append(statistics.fmean(row.wait_ns for row in rows) / self._computing[-1])
        known = [row.transfer_ns for row in rows if row.transfer_ns is not None]
        if len(known) == len(rows):
            self._transfers.append(max(1, min(known)))  # the last to come waited for nobody
        jumps = [row.jump for row in rows if not math.isnan(row.jump)]
        # Behind the scenes replicas are never averaged as they are; on the way to BSP they are after a few steps, which tells less.
        if jumps and self._stage not in ("behind", "apart"):
            # In logarithms what is but noise cancels out.
            self._jumps.append(statistics.fmean(math.log1p(max(jump, MIN_JUMP)) for jump in jumps))

    def _guarded(self, losses: Sequence[float]) -> Choice | None:
        if losses:
            self._silent = 0
        is_guarded = self._sending.learns_less if self._stage == "apart" else self._stage != "bsp"
        if not is_guarded and not losses:
            return None
        if self._silent >= MAX_STEPS_WITHOUT_LOSS:
            return self._back("no loss above zero is told any more: call saw(loss) in each step")
        if not losses:
            return None
        loss = statistics.fmean(losses)
        if math.isinf(loss):
            return self._back("the loss is infinite")
        # In logarithms a loss that multiplies rises steadily, and is not taken for one that scatters.
        self._losses.append(math.log(loss))
        if len(self._losses) < LOSS_WINDOW:
            return None
        mean, error = statistics.fmean(self._losses), statistics.stdev(self._losses) / math.sqrt(LOSS_WINDOW)
        lowest, its_error = self._lowest = min(self._lowest, (mean, error))
        if not is_guarded or mean - lowest <= max(MAX_LOSS_RISE, MAX_LOSS_ERRORS * math.hypot(error, its_error)):
            return None
        return self._restrained(f"the loss rose from {math.exp(lowest):.3g} to {math.exp(mean):.3g}")

    def _restrained(self, why: str) -> Choice:
        self._losses.clear()
        self._lowest = math.inf, 0.0
        if self._stage == "apart":
            return self._sent(self._sending.left(why))
        self._longest = self._h // 2
        if self._longest < 2:
            return self._back(why)
        self._may_be_late = False
        return self._local("waited", self._longest, why)

    def _chosen(self, dissimilarity: float) -> Choice | None:
        if self._stage == "bsp":
            return self._begun(statistics.median(list(self._waited)[-RECENT_ROWS:]), dissimilarity)
        if self._stage == "tried":
            return self._settled()
        if self._since_tried >= self._try_anew and self._may_be_wrong():
            return self._anew()
        if self._stage == "apart":
            return self._weighed()
        return self._adjusted() if self._since_chosen >= MIN_STEPS_BETWEEN_CHANGES and self._transfers else None

    def _begun(self, waited: float, dissimilarity: float) -> Choice | None:
        """From BSP, whose waiting is at most what an averaging takes."""
        if not self._losses or waited <= NEGLIGIBLE_WAIT:
            return None
        self._half = waited > HALF_PRECISION_FROM
        self._bsp_ns = self._step_ns()
        why = f"in BSP ranks wait for {waited:.2g} times their computing"
        if not (dissimilarity <= SAME_DATA_BELOW or dissimilarity >= DIFFERENT_DATA_FROM):
            return self._local("tried", TRIAL_INTERVAL, why)
        self._drift = ReplicaDrift(self._drift.ranks, dissimilarity if dissimilarity >= DIFFERENT_DATA_FROM else 0.0)
        why += f", and see {'different' if self._differs() else 'alike'} data (gradients {dissimilarity:.2g} apart)"
        ratio = waited / 2 if self._half else waited
        if self._differs() and MIN_SPEEDUP * self._time(ratio) > UNTIMED_BSP_FACTOR * self._bsp_time(ratio):
            return self._apart(why) if self._half else None
        return self._local(*self._wanted(ratio), why, ratio)

    def _weighed(self) -> Choice | None:
        """In BSP the next way to send gradients, or the former one."""
        waited = statistics.median(list(self._waited)[-RECENT_ROWS:])
        is_sure = len(self._computing) >= RECENT_ROWS
        why = self._sending.timed(self._step_ns(), waited, self._drift.ranks, is_sure)
        return None if why is None else self._sent(why)

    def _sent(self, why: str) -> Choice:
        self._half = self._sending.way != FULL_PRECISION
        self._forget_paces()
        return Choice(f"bsp{self._sending.text}", why)

    def _step_ns(self) -> float:
        """What a step took of late, waiting included."""
        looks = list(zip(self._computing, self._waited, strict=True))[-RECENT_ROWS:]
        return statistics.median(computing_ns * (1 + waited) for computing_ns, waited in looks)

    def _settled(self) -> Choice | None:
        if len(self._jumps) < TRIAL_AVERAGINGS or not self._transfers:
            silent = "what averaging does to the loss is not told: call saw(loss) in each step, with a loss above zero"
            return self._back(silent) if self._since_chosen >= MAX_STEPS_WITHOUT_LOSS else None
        ratio = self._halved(self._timed(), HALF_PRECISION_FROM)
        self._drift = ReplicaDrift(self._drift.ranks, self._tried_dissimilarity())
        if self._is_slower_than_bsp(ratio):
            return self._apart(f"{self._told(ratio)}; BSP learns faster")
        return self._local(*self._wanted(ratio), self._told(ratio), ratio)

    def _tried_dissimilarity(self) -> float:
        """Of what the first look said was different the jumps of later ones tell less: they grow as ranks learn."""
        if self._jump() <= DRIFT_JUMP:
            return 0.0
        return (
            self._drift.dissimilarity
            if self._differs()
            else max(DIFFERENT_DATA_FROM, DISSIMILARITY_PER_JUMP * self._jump() ** 2)
        )

    def _anew(self) -> Choice:
        self._jumps.clear()
        self._since_tried, self._try_anew = 0, 2 * self._try_anew
        return self._local("tried", min(self._longest, TRIAL_INTERVAL), "to see anew what averagings do to the loss")

    def _may_be_wrong(self) -> bool:
        """What replicas do is not seen where they are averaged behind the scenes or not at all."""
        if self._stage != "apart":
            return self._stage == "behind"
        links_ratio = MIN_LINK_SHARE * statistics.median(self._waited)
        return self._drift.dissimilarity < CERTAIN_DISSIMILARITY or self._time(links_ratio) <= 1 + links_ratio

    def _adjusted(self) -> Choice | None:
        worth = 1 / MIN_SPEEDUP if self._bsp_ns is None else MIN_SPEEDUP
        ratio = self._timed()
        if self._jump() > DRIFT_JUMP and not self._differs():
            return self._anew()
        if self._jump() < 0 and len(self._jumps) >= SAME_DATA_AVERAGINGS:
            self._drift = ReplicaDrift(self._drift.ranks)
        if self._is_slower_than_bsp(ratio, worth):
            return self._apart(f"{self._told(ratio)}; BSP learns faster")
        was_half, ratio = self._half, self._halved(ratio, COST_HYSTERESIS * HALF_PRECISION_FROM)
        stage, h = self._wanted(ratio)
        wanted, now = (self._hidden(ratio), self._delay) if stage == "behind" else (h, self._h)
        is_near = 1 / INTERVAL_HYSTERESIS < wanted / max(1, now) < INTERVAL_HYSTERESIS or abs(wanted - now) < 2
        if stage == self._stage and is_near and was_half == self._half:
            return None
        return self._local(stage, h, self._told(ratio), ratio)

    def _wanted(self, ratio: float) -> tuple[_Local, int]:
        if self._differs():
            return "waited", self._sparing(ratio)
        if not self._may_be_late:
            return "waited", self._seldom(ratio)
        most = OVERLAP_FROM_COST * {"behind": 1 / COST_HYSTERESIS, "waited": COST_HYSTERESIS}.get(self._stage, 1)
        return ("behind", MAX_INTERVAL) if ratio / MAX_INTERVAL > most else ("waited", self._seldom(ratio))

    def _told(self, ratio: float) -> str:
        data = "ranks see different data: " if self._differs() else ""
        changed = f"changes the loss by {math.expm1(self._jump()):+.0%} and " if self._jumps else ""
        return f"{data}averaging {changed}takes {ratio:.2g} steps"

    def _differs(self) -> bool:
        return self._drift.dissimilarity >= DIFFERENT_DATA_FROM

    def _jump(self) -> float:
        """The logarithm of what averagings multiply the loss by; while none told, nothing."""
        return statistics.fmean(self._jumps) if self._jumps else 0.0

    def _is_slower_than_bsp(self, ratio: float, worth: float = MIN_SPEEDUP) -> bool:
        return self._differs() and worth * self._time(ratio) > self._bsp_time(self._waits * ratio)

    def _bsp_time(self, ratio: float) -> float:
        """What its steps take, as a multiple of their computing."""
        return estimated_step(ratio, self._drift.ranks) if self._half else 1 + ratio

    def _time(self, ratio: float) -> float:
        """With the best interval for different data."""
        return self._drift.time(self._sparing(ratio), ratio)

    def _timed(self) -> float:
        """How many steps a transfer takes; the first time after BSP also how many such times a step of BSP waits for."""
        computing = statistics.median(self._computing)
        ratio = statistics.median(self._transfers) / computing
        if self._bsp_ns is not None:
            whole_ratio = 2 * ratio if self._half else ratio
            self._waits, self._bsp_ns = max(0.0, self._bsp_ns / computing - 1) / whole_ratio, None
        return ratio

    def _halved(self, ratio: float, limit: float) -> float:
        """What a transfer takes from now on: in half precision where it took more than the limit."""
        if self._half or ratio <= limit:
            return ratio
        self._half = True
        return ratio / 2

    def _hidden(self, ratio: float) -> int:
        """In how many steps a transfer is over, and some to spare."""
        return min(MAX_INTERVAL - 1, math.ceil(1.1 * ratio))

    def _sparing(self, ratio: float) -> int:
        return max(2, min(self._longest, round(self._drift.best(ratio))))

    def _seldom(self, ratio: float) -> int:
        return min(
            self._longest, max(MIN_INTERVAL, math.ceil(ratio / MAX_BLOCKING_COST), round(self._drift.best(ratio)))
        )

    def _local(self, stage: _Local, h: int, why: str, ratio: float = 0.0) -> Choice:
        self._delay = self._hidden(ratio) if stage == "behind" else 0
        if self._stage in ("bsp", "apart"):
            self._forget_paces()  # beside DDP's transfers computing takes longer
        if stage != self._stage:
            self._transfers.clear()
        self._stage, self._h, self._since_chosen = stage, h, 0
        half = " + fp16" if self._half else ""
        delay = f", delay={self._delay}" if self._delay else ""
        return Choice(f"local_sgd(h={h}{delay}){half}", why)

    def _apart(self, why: str) -> Choice:
        """BSP until averagings are tried anew."""
        self._stage, self._since_tried = "apart", 0
        self._sending = GradientEncoding(HALF_PRECISION, self._bsp_ns) if self._half else GradientEncoding(settled=True)
        self._bsp_ns = None
        return self._sent(why)

    def _forget_paces(self) -> None:
        self._computing.clear()
        self._waited.clear()

    def _back(self, why: str) -> Choice:
        self._stage = "back"
        return Choice("bsp", why)

    def state_dict(self) -> dict[str, Any]:
        plain = {name: list(value) if isinstance(value, deque) else value for name, value in vars(self).items()}
        return plain | {"_drift": dataclasses.astuple(self._drift), "_sending": dataclasses.astuple(self._sending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            former = getattr(self, name)
            setattr(self, name, deque(value, maxlen=former.maxlen) if isinstance(former, deque) else value)
        self._drift, self._sending = ReplicaDrift(*state["_drift"]), GradientEncoding(*state["_sending"])
