"""
How `auto` encodes BSP's gradients where replicas must stay identical: full precision, half precision, or top-k.

Each encoding is timed against the one before it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.training.policy.encoding import cost
from timesyncd.training.policy.policies import ChangeReason

#: The share of the elements that top-k sends.
TOPK_RATIO = 0.01

#: With top-k BSP needed 1.05 to 1.46 times as many steps; this is the geometric mean over three networks with two and
#: four ranks each, one of them with different data too (bench/policies). Half precision learns as much in a step as
#: full precision.
TOPK_STEPS_FACTOR = 1.26

#: Half precision stays where its steps are faster by this factor. Top-k stays where it learns no slower than by this
#: factor, because leaving it loses what it had not sent yet.
MIN_SPEEDUP = 1.1

#: From most octets to fewest: name, text behind a policy, and by what factor its steps must be faster than those of the
#: encoding before.
ENCODINGS = (
    ("full precision", "", 1.0),
    ("half precision", " + fp16", MIN_SPEEDUP),
    ("top-k", f" + topk(ratio={TOPK_RATIO})", TOPK_STEPS_FACTOR / MIN_SPEEDUP),
)

FULL_PRECISION, HALF_PRECISION, TOPK = range(len(ENCODINGS))

#: Octets of half precision, as a share of those of full precision.
HALF_PRECISION_COST = 0.5

#: Before top-k is timed, its step counts as this many times the step's computing, its additional steps included: how
#: long it takes to choose the elements is not known yet.
UNTIMED_TOPK_FACTOR = 3.0


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
