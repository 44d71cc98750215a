"""
How gradients are encoded: the share of elements that top-k sends, and full precision, half precision or top-k under
`auto`. Pure; the same on every rank.

`Gain` chooses top-k's share by the gain test of GraVAC (Tyagi and Swany, IEEE CLOUD 2023). `GradientEncoding` chooses
the encoding of BSP's gradients where replicas must stay identical: each is timed against the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.training.policy.constants import (
    HALF_PRECISION_COST,
    MIN_SPEEDUP,
    TOPK_RATIO,
    TOPK_STEPS_FACTOR,
    UNTIMED_TOPK_FACTOR,
)
from timesyncd.training.policy.policies import ChangeReason

#: Shares of the elements that may be sent, from mild to strong compression.
RATIOS = (0.25, 0.16, 0.1, 0.06, 0.04, 0.02, 0.01, 0.004, 0.001)

#: A compression is good enough while it keeps at least this share of the squared norm.
MIN_GAIN = 0.7

#: Number of steps between two decisions.
WINDOW = 50

#: A stronger rung must save at least this share of the uncompressed octets.
MIN_SAVING = 0.01

#: Number of windows, at most, during which a rung that failed repeatedly is not tried again.
MAX_COOLDOWN = 64


def cost(ratio: float, ranks: int) -> float:
    """
    Octets on the links, as a share of those of an uncompressed all-reduce.

    Each element goes to n - 1 other ranks as value and index, 8 octets; a ring all-reduce moves 2 (n - 1) / n times 4
    octets.
    """
    return ratio * ranks


def ladder(ranks: int) -> tuple[float | None, ...]:
    """
    The ratios worth trying: first None (uncompressed), then from mild to strong. With many ranks only None is left.
    """
    rungs: list[float | None] = [None]
    spent = 1.0
    for ratio in RATIOS:
        if spent - cost(ratio, ranks) >= MIN_SAVING:
            rungs.append(ratio)
            spent = cost(ratio, ranks)
    return tuple(rungs)


@dataclass(slots=True)
class Gain:
    """
    The job's rung on the ladder.

    `steps`: number of steps in this window. `sent` and `total`: weighted sums of squared norms since the job entered
    this rung. `cooldown`: number of windows until a stronger rung is tried. `failures`: how many times in a row the
    rung `failed` kept too little.
    """

    ranks: int
    rung: int = 1
    steps: int = 0
    sent: float = 0.0
    total: float = 0.0
    cooldown: int = 0
    failures: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.rung = min(self.rung, len(ladder(self.ranks)) - 1)

    @property
    def ratio(self) -> float | None:
        """None: uncompressed."""
        return ladder(self.ranks)[self.rung]

    @property
    def value(self) -> float | None:
        """
        E||sent||^2 / E||total||^2 on this rung; None: no step was added yet. Both averages began at 0, which cancels.
        """
        return self.sent / self.total if self.total > 0 else None

    def add_step(self, sent: float, total: float) -> None:
        """
        The squared norms of one step, over all ranks and buckets: of what was sent, and of what there was to send.

        They are equal where everything was sent. Both are zero for a step that carries no information, as one that was
        not finite.
        """
        factor = min(1.0, self.ranks / 100)
        self.sent += factor * (sent - self.sent)
        self.total += factor * (total - self.total)
        self.steps += 1
        if self.steps == WINDOW:
            self.steps = 0
            self._decide()

    def _decide(self) -> None:
        gain = self.value
        if gain is None:
            return
        if gain >= MIN_GAIN and self.rung >= self.failed:
            self.failures = 0
        if gain < MIN_GAIN and self.rung > 0:
            self.failures, self.failed = self.failures + 1, self.rung
            self.cooldown = min(2**self.failures, MAX_COOLDOWN)
            self._enter(self.rung - 1)
        elif self.cooldown > 0:
            self.cooldown -= 1
        elif gain >= MIN_GAIN and self.rung + 1 < len(ladder(self.ranks)):
            self._enter(self.rung + 1)

    def _enter(self, rung: int) -> None:
        self.rung = rung
        self.sent = self.total = 0.0


#: From most octets to fewest: name, text behind a policy, and by what factor its steps must be faster than those of the
#: encoding before.
ENCODINGS = (
    ("full precision", "", 1.0),
    ("half precision", " + fp16", MIN_SPEEDUP),
    ("top-k", f" + topk(ratio={TOPK_RATIO})", TOPK_STEPS_FACTOR / MIN_SPEEDUP),
)

FULL_PRECISION, HALF_PRECISION, TOPK = range(len(ENCODINGS))


@dataclass(slots=True)
class GradientEncoding:
    """
    The encoding in force. `index`: in ENCODINGS. `former_ns`: duration of a step with the encoding before; None: not
    measured. `settled`: no other encoding is tried any more.
    """

    index: int = FULL_PRECISION
    former_ns: float | None = None
    settled: bool = False

    @property
    def text(self) -> str:
        """What follows a policy in its text."""
        return ENCODINGS[self.index][1]

    @property
    def needs_more_steps(self) -> bool:
        """Whether a step learns less than one in full precision."""
        return self.index == TOPK

    def evaluate(self, step_ns: float, waited: float, ranks: int, is_sure: bool) -> tuple[ChangeReason, str] | None:
        """
        Time the encoding, and change to another one where that pays. Returns why it changed; None: no change.

        `step_ns`: duration of a step, waiting included. `waited`: the waiting in it, as a multiple of its computing.
        `is_sure`: the measurements are enough; with fewer of them the next encoding is tried only where this one is
        faster than the former beyond doubt.
        """
        name, _, speedup = ENCODINGS[self.index]
        is_beyond_doubt = self.former_ns is not None and step_ns * speedup * speedup < self.former_ns
        if self.settled or not (is_sure or is_beyond_doubt):
            return None
        if self.former_ns is not None and step_ns * speedup >= self.former_ns:
            self.revert()
            return ChangeReason.ENCODING_SLOWER, f"{name} makes a step {step_ns / self.former_ns:.2g} times as long"
        if (
            self.index != HALF_PRECISION
            or not self._may_gain(step_ns, waited)
            or cost(TOPK_RATIO, ranks) >= HALF_PRECISION_COST
        ):
            self.settled = is_sure
            return None
        self.index, self.former_ns = TOPK, step_ns
        return (
            ChangeReason.ENCODING_TRIED,
            f"in half precision the ranks wait for {waited:.2g} times their computing time",
        )

    def _may_gain(self, step_ns: float, waited: float) -> bool:
        """
        Whether top-k would be faster if it took no time at all: if what half precision saved were saved once more.
        """
        least_ns = step_ns / (1 + waited)
        if self.former_ns is not None:
            least_ns = max(least_ns, 2 * step_ns - self.former_ns)
        return least_ns * TOPK_STEPS_FACTOR < step_ns

    def revert(self) -> None:
        """To the encoding before, for good."""
        self.index, self.settled = self.index - 1, True


def estimated_step(ratio: float, ranks: int) -> float:
    """
    The duration of a step of BSP as a multiple of its computing, with the fastest encoding, before the encodings are
    timed.

    `ratio`: the waiting in half precision, as a multiple of the computing.
    """
    return min(1 + ratio, UNTIMED_TOPK_FACTOR * (1 + ratio * cost(TOPK_RATIO, ranks) / HALF_PRECISION_COST))
