"""
What `auto` does with an adaptive optimizer, as AdamW: which way to send reaches the same loss first, by the measured
link. Pure.

`DecisionInputs` has the measurements, `candidates` what each way to send would cost, and `choose` decides;
`AdaptiveChoice` keeps what was measured. All durations are in multiples of the computing of a step of BSP.

A replica's own update divides by the noise of one rank's gradient, which N ranks' mean has sqrt(N) times less of. So
under Adam averagings cost steps however often they are (LOCAL_ADAM_EXPONENT). While nothing shows that the loss keeps
up, gradients are averaged in every step, in half precision where that pays. The course of a validation loss shows it, and
DES-LOC, DiLoCo and Streaming DiLoCo are candidates then. Without one, trials between steps of BSP show it
(`loss_probe`), of the one way that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from timesyncd.training.policy.constants import (
    BARRED_UNTIL,
    CHANGE_GAIN,
    DES_LOC_PER_STEP,
    DIFFERENT_DATA_FROM,
    DILOCO_PER_STEP,
    HALF_PRECISION_COST,
    HALF_PRECISION_FROM,
    LOCAL_ADAM_EXPONENT,
    NEGLIGIBLE_WAIT,
    RANKS_EXPONENT,
    SAME_DATA_BELOW,
    SEND_LESS_FROM,
    UNTIMED_BSP_FACTOR,
)
from timesyncd.training.policy.learning import LearningVerdict
from timesyncd.training.policy.loss_probe import LossProbe, trial_steps
from timesyncd.training.policy.policies import ChangeReason

#: The intervals that are compared, in steps.
INTERVALS = (4, 8, 16, 32, 64)

#: Fragments of Streaming DiLoCo.
FRAGMENTS = 4


@dataclass(frozen=True, slots=True)
class LinkCost:
    """
    The alpha-beta model of a transfer (Hockney, 1994): `latency` + `transfer` times the size, in steps.

    The size is a multiple of all parameters in full precision.
    """

    latency: float
    transfer: float

    def time(self, size: float) -> float:
        return self.latency + self.transfer * size


def fitted_link(full_wait: float, half_wait: float | None, timed: tuple[float, float] | None) -> LinkCost:
    """
    `full_wait`, `half_wait`: what ranks wait for under BSP in each precision. `timed`: size and duration of a transfer
    that a step waits for as a whole. None: not measured.

    Half precision saves half of what goes by the size: twice the saving is its share of the waiting, and the rest is
    latency. With one size all goes by the size.
    """
    size, whole = timed if timed is not None else (1.0, UNTIMED_BSP_FACTOR * full_wait)
    share = 1.0
    if half_wait is not None and full_wait > 0:
        share = min(1.0, max(0.0, (full_wait - half_wait) / (1 - HALF_PRECISION_COST) / full_wait))
    full = whole / (1 - share + share * size)
    return LinkCost((1 - share) * full, share * full)


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """
    What `choose` goes by. `full_wait`, `half_wait`: ranks' waiting under BSP in each precision; None: not measured.
    `is_proven`: the course of a validation loss shows whether it keeps up. `sees_same_data`: the gradients show the same kind
    of data on all ranks, beyond doubt. `may_average`: no loss rose or lagged behind under averagings. `blocks`: blocks of
    layers in the module, at most so many fragments. `barred`: texts that proved slower or worse.
    """

    full_wait: float
    half_wait: float | None
    link: LinkCost
    ranks: int
    is_warming_up: bool = False
    is_proven: bool = False
    sees_same_data: bool = False
    may_average: bool = True
    blocks: int = 1
    barred: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class MethodCandidate:
    """
    A way to send. `step`: predicted duration of a step. `steps`: of how many, as a multiple of BSP's. `interval`:
    between averagings; 0: none.
    """

    text: str
    step: float
    steps: float = 1.0
    interval: int = 0

    @property
    def time(self) -> float:
        """To the same loss, as a multiple of BSP's without communication."""
        return self.step * self.steps


def candidates(measured: DecisionInputs) -> Iterator[MethodCandidate]:
    """BSP first; those that are barred are left out."""
    for each in _candidates(measured):
        if each.text not in measured.barred:
            yield each


def _candidates(measured: DecisionInputs) -> Iterator[MethodCandidate]:
    yield MethodCandidate("bsp", 1 + measured.full_wait)
    if measured.full_wait <= SEND_LESS_FROM:
        return
    half_wait = HALF_PRECISION_COST * measured.full_wait if measured.half_wait is None else measured.half_wait
    yield MethodCandidate("bsp + fp16", 1 + half_wait)
    if measured.is_warming_up or not (measured.sees_same_data and measured.is_proven and measured.may_average):
        return
    scatter, fixed = (measured.ranks / 2) ** RANKS_EXPONENT, measured.ranks**LOCAL_ADAM_EXPONENT
    for interval in INTERVALS:
        yield _des_loc(measured.link, interval, fixed * (1 + DES_LOC_PER_STEP * scatter * interval))
        steps = fixed * (1 + DILOCO_PER_STEP * scatter * interval)
        yield _diloco(measured.link, interval, steps)
        yield from _streaming(measured, interval, steps)


def _half(link: LinkCost) -> tuple[str, float]:
    """What follows a policy's text, and the size of its transfers."""
    return (" + fp16", HALF_PRECISION_COST) if link.time(1.0) > HALF_PRECISION_FROM else ("", 1.0)


def _des_loc(link: LinkCost, kx: int, steps: float) -> MethodCandidate:
    """Parameters every kx steps, and in full precision the first moment every 3 kx, the second every 6 kx."""
    half, size = _half(link)
    step = 1 + link.time(size) / kx + link.time(1.0) / (3 * kx) + link.time(1.0) / (6 * kx)
    return MethodCandidate(f"des_loc(kx={kx}){half}", step, steps, kx)


def _diloco(link: LinkCost, h: int, steps: float) -> MethodCandidate:
    half, size = _half(link)
    return MethodCandidate(f"diloco(h={h}){half}", 1 + link.time(size) / h, steps, h)


def _streaming(measured: DecisionInputs, h: int, steps: float) -> Iterator[MethodCandidate]:
    """A delay that covers a fragment's transfer, and a quarter more; none if the next one would begin before."""
    fragments = min(FRAGMENTS, measured.blocks)
    half, size = _half(measured.link)
    transfer = measured.link.time(size / fragments)
    delay = math.ceil(1.25 * transfer)
    if fragments > 1 and delay < h // fragments:
        text = f"streaming_diloco(h={h}, fragments={fragments}, delay={delay}){half}"
        yield MethodCandidate(text, 1.0, steps * (1 + delay / h), h)


def choose(measured: DecisionInputs, present: str) -> MethodCandidate:
    """
    The candidate that reaches the same loss first; the present one, unless that is faster by CHANGE_GAIN.

    BSP where communication is free: then nothing else is a candidate.
    """
    return _first_to_the_loss(list(candidates(measured)), measured, present)


def _first_to_the_loss(found: Sequence[MethodCandidate], measured: DecisionInputs, present: str) -> MethodCandidate:
    if measured.full_wait <= NEGLIGIBLE_WAIT:
        return found[0]
    best = min(found, key=lambda each: each.time)
    for each in found:
        if each.text == present and each.time < CHANGE_GAIN * best.time:
            return each
    return best


def describe(measured: DecisionInputs) -> str:
    """What the decision goes by, in one line for people."""
    link = measured.link
    text = f"under BSP the ranks wait for {measured.full_wait:.2g} times their computing time"
    if measured.half_wait is not None:
        text += f", in half precision for {measured.half_wait:.2g} times"
    if link.latency > 0:
        text += f"; a transfer takes {link.latency:.2g} steps and {link.transfer:.2g} times its size"
    if measured.is_warming_up:
        text += "; the learning rate rises"
    elif not measured.sees_same_data:
        text += "; the gradients do not show the same kind of data"
    elif not measured.is_proven and measured.may_average and measured.full_wait > SEND_LESS_FROM:
        text += (
            "; with an adaptive optimizer and no course of a validation loss nothing shows yet that averagings keep the "
            "loss: call record_validation(loss)"
        )
    return text


@dataclass(frozen=True, slots=True)
class NewestStep:
    """
    The newest measurements, of a step: its computing, its waiting, and a transfer that it waits for; None: none was
    timed. `is_settled`: they are enough, and all of what is in force. `loss`: the ranks' mean since the row before, of steps
    that began with common parameters; NaN: unknown.
    """

    compute_ns: float
    wait_ns: float
    transfer_ns: float | None
    ranks: int
    is_rising: bool
    is_proven: bool
    dissimilarity: float
    is_settled: bool
    step: int = 0
    loss: float = math.nan


@dataclass(frozen=True, slots=True)
class Changed:
    text: str
    code: ChangeReason
    reason: str


def _code(chosen: MethodCandidate, now: NewestStep) -> ChangeReason:
    if chosen.interval:
        return ChangeReason.SAME_DATA
    if chosen.text == "bsp":
        return ChangeReason.BSP_FASTER
    return ChangeReason.ENCODING_TRIED if now.is_proven else ChangeReason.LOSS_UNPROVEN


#: Why a trial begins or ends, or what all of them have shown.
_Event = tuple[ChangeReason, str]

_CODES = {LearningVerdict.KEEPS_UP: ChangeReason.SAME_DATA, LearningVerdict.WORSE: ChangeReason.LOSS_ROSE}


def _method(text: str) -> str:
    """Without how it is sent."""
    return text.partition(" + ")[0]


@dataclass(slots=True)
class AdaptiveChoice:
    """
    What is in force, and what was measured of what was in force before.

    `text`, `interval`, `steps`: of the candidate in force. `bsp_compute_ns`: of a step of BSP. `full_wait`,
    `half_wait`: the waiting under BSP in each precision, in multiples of it. `barred`: by text, the waiting under BSP
    with which it was slower than BSP. `probe`: the trials where no validation loss is recorded.
    """

    blocks: int = 1
    text: str = "bsp"
    interval: int = 0
    steps: float = 1.0
    full_wait: float | None = None
    half_wait: float | None = None
    bsp_compute_ns: float = 1.0
    may_average: bool = True
    dissimilarity: float = math.inf
    barred: dict[str, float] = field(default_factory=dict)
    probe: LossProbe = field(default_factory=LossProbe)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Raises KeyError for a state of another version."""
        return cls(**{**state, "probe": LossProbe.from_state(state["probe"])})

    @property
    def shows_loss(self) -> bool:
        """Whether some steps begin with equal replicas, so that their losses show what is learned."""
        return not self.text.startswith("streaming_diloco")

    def restrain(self) -> None:
        """The loss rose, or lagged behind: gradients are averaged in every step from now on."""
        self.may_average = False

    def change(self, now: NewestStep, is_forced: bool = False) -> Changed | None:
        """The way to send from now on; None: no change. `is_forced`: what is in force may not stay."""
        self._measure(now)
        is_due = now.is_settled or self.text == "bsp" or is_forced or self.probe.is_over(now.step)
        if self.full_wait is None or not is_due:
            return None
        code, measured, event = self._bar(now), self._measured(now), None
        if now.is_proven or not self.may_average:
            chosen = choose(measured, self.text)
        else:
            chosen, event = self._probed(measured, now)
        if chosen.text == self.text and event is None:
            return None
        self.text, self.interval, self.steps = chosen.text, chosen.interval, chosen.steps
        if event is not None:
            is_proven = self.probe.verdict is LearningVerdict.KEEPS_UP
            measured = replace(measured, is_proven=is_proven, may_average=self.may_average)
            return Changed(chosen.text, event[0], f"{event[1]}; {describe(measured)}")
        return Changed(chosen.text, code or _code(chosen, now), describe(measured))

    def _probed(self, measured: DecisionInputs, now: NewestStep) -> tuple[MethodCandidate, _Event | None]:
        """Without a validation loss: the choice, and why, where a trial begins or ends with it or its result is known."""
        plain = choose(measured, self.text)
        found = list(candidates(replace(measured, is_proven=True)))
        if self.probe.begun is not None:
            return self._in_trial(plain, found, now.step)
        judged, event = self.probe.evaluate(now.step), None
        if judged is not None and judged.verdict is not LearningVerdict.UNDECIDED:
            event = _CODES[judged.verdict], str(judged)
        if self.probe.verdict is LearningVerdict.WORSE:
            self.may_average = False
            return plain, event
        if self.probe.verdict is LearningVerdict.KEEPS_UP:
            shown = [each for each in found if not each.interval or _method(each.text) == _method(self.probe.text)]
            return _first_to_the_loss(shown, measured, self.text), event
        wanted = _first_to_the_loss(found, measured, self.text)
        if not wanted.interval or not self.probe.may_begin(now.step, wanted.interval):
            return plain, event
        self.probe.begin(now.step, wanted.text)
        reason = f"a trial of {trial_steps(now.step)} steps shows what averagings cost the loss"
        return wanted, (ChangeReason.TRIAL, f"{self.probe.result}; {reason}" if self.probe.result else reason)

    def _in_trial(
        self, plain: MethodCandidate, found: Sequence[MethodCandidate], step: int
    ) -> tuple[MethodCandidate, _Event | None]:
        present = next((each for each in found if each.text == self.text), None)
        if present is None:  # it is slower than BSP, or the data is not alike any more
            self.probe.abandon(step)
            return plain, None
        if not self.probe.is_over(step):
            return present, None
        self.probe.end(step)
        return plain, (ChangeReason.LOSS_UNPROVEN, "the trial has ended; BSP's loss shows what it has cost")

    def _measure(self, now: NewestStep) -> None:
        if now.is_rising:
            self.probe.restart(now.step)
        elif not self.interval:
            self.probe.add(now.step, now.loss)
        if not math.isnan(now.dissimilarity):
            self.dissimilarity = now.dissimilarity
        if self.text == "bsp":
            self.bsp_compute_ns = now.compute_ns
            self.full_wait = now.wait_ns / now.compute_ns
        elif self.text == "bsp + fp16" and now.is_settled:
            self.half_wait = now.wait_ns / self.bsp_compute_ns
            self.full_wait = max(self.full_wait or 0.0, self.half_wait)

    def _bar(self, now: NewestStep) -> ChangeReason | None:
        """What takes longer to the same loss than BSP did is no candidate while the link is as it is."""
        if self.text == "bsp" or not now.is_settled or self.full_wait is None:
            return None
        if (now.compute_ns + now.wait_ns) * self.steps < (1 + self.full_wait) * self.bsp_compute_ns:
            return None
        self.barred[self.text] = self.full_wait
        return ChangeReason.BSP_FASTER

    def _measured(self, now: NewestStep) -> DecisionInputs:
        full_wait = self.full_wait or 0.0
        timed = None
        if now.transfer_ns is not None and self.interval:
            size = HALF_PRECISION_COST if self.text.endswith("+ fp16") else 1.0
            timed = size, now.transfer_ns / self.bsp_compute_ns
        link = fitted_link(full_wait, self.half_wait, timed)
        return DecisionInputs(
            full_wait=full_wait if timed is None else min(full_wait, link.time(1.0)),
            half_wait=self.half_wait,
            link=link,
            ranks=now.ranks,
            is_warming_up=now.is_rising,
            is_proven=now.is_proven,
            # In doubt a validation loss shows it.
            sees_same_data=self.dissimilarity <= (DIFFERENT_DATA_FROM if now.is_proven else SAME_DATA_BELOW),
            may_average=self.may_average,
            blocks=self.blocks,
            barred=[text for text, wait in self.barred.items() if full_wait <= BARRED_UNTIL * wait],
        )
