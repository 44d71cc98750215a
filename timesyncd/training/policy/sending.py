"""How BSP's gradients are sent where replicas have to stay one: whole, in half precision, or the largest alone. Each way is timed against the one before. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.training.policy.gain import cost

#: Of the elements, what the last way sends.
TOPK_RATIO = 0.01

#: With the largest alone BSP needed 1.05 to 1.46 times its steps, this in the geometric mean: on three networks with two and four ranks each, on one of
#: them with different data too (bench/policies). Half precision teaches as much as whole gradients.
TOPK_STEPS_FACTOR = 1.26

#: Half precision stays where its steps are faster by this factor. The largest do where they learn no slower than by it: to leave them costs what was not
#: sent by then.
MIN_SPEEDUP = 1.1

#: From whole to least: what it is called, how it is written, and how many times as fast as the way before its steps have to be.
ENCODINGS = (
    ("whole gradients", "", 1.0),
    ("half precision", " + fp16", MIN_SPEEDUP),
    ("top-k", f" + topk(ratio={TOPK_RATIO})", TOPK_STEPS_FACTOR / MIN_SPEEDUP),
)

FULL_PRECISION, HALF_PRECISION, TOPK = range(len(ENCODINGS))

#: Of the octets of whole gradients, what half precision sends.
HALF_PRECISION_COST = 0.5

#: So many times as long as computing a step with the largest alone is reckoned to take before one is timed, what it costs in steps included: nobody knows
#: yet how long it takes to choose them.
UNTIMED_TOPK_FACTOR = 3.0


@dataclass(slots=True)
class GradientEncoding:
    """
    `way`: an index in WAYS; `former_ns`: what a step took with the one before, None where it was not measured; `settled`: it stays.
    """

    way: int = FULL_PRECISION
    former_ns: float | None = None
    settled: bool = False

    @property
    def text(self) -> str:
        """To be put behind a policy."""
        return ENCODINGS[self.way][1]

    @property
    def learns_less(self) -> bool:
        """Whether less is learned in a step."""
        return self.way == TOPK

    def timed(self, step_ns: float, waited: float, ranks: int, is_sure: bool) -> str | None:
        """
        Why it is another way from now on; None: it is the same.

        `step_ns`: what a step takes, waiting included; `waited`: the waiting in it, as a multiple of its computing. `is_sure`: by looks enough; by less
        the next way is tried where this one is faster than the former beyond doubt.
        """
        name, _, worth = ENCODINGS[self.way]
        is_beyond_doubt = self.former_ns is not None and step_ns * worth * worth < self.former_ns
        if self.settled or not (is_sure or is_beyond_doubt):
            return None
        if self.former_ns is not None and step_ns * worth >= self.former_ns:
            return self.left(f"{name} makes a step {step_ns / self.former_ns:.2g} times as long")
        if (
            self.way != HALF_PRECISION
            or not self._may_gain(step_ns, waited)
            or cost(TOPK_RATIO, ranks) >= HALF_PRECISION_COST
        ):
            self.settled = is_sure
            return None
        self.way, self.former_ns = TOPK, step_ns
        return f"in half precision ranks wait for {waited:.2g} times their computing"

    def _may_gain(self, step_ns: float, waited: float) -> bool:
        """Whether the largest would be the faster if they took no time at all: what half precision gained on whole gradients would be gained once more."""
        least_ns = step_ns / (1 + waited)
        if self.former_ns is not None:
            least_ns = max(least_ns, 2 * step_ns - self.former_ns)
        return least_ns * TOPK_STEPS_FACTOR < step_ns

    def left(self, why: str) -> str:
        """For the way before, for good."""
        self.way, self.settled = self.way - 1, True
        return why


def estimated_step(ratio: float, ranks: int) -> float:
    """
    How long a step of BSP takes as a multiple of computing, before the ways are timed, by the fastest of them.

    `ratio`: the same of waiting in half precision.
    """
    return min(1 + ratio, UNTIMED_TOPK_FACTOR * (1 + ratio * cost(TOPK_RATIO, ranks) / HALF_PRECISION_COST))
