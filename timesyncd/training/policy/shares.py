"""
Shares of the global batch by the ranks' measured speeds: which they are, when they change, and the weights of the losses
that keep the gradient that of the whole batch. Pure; the same on every rank.

Adaptive batches by a proportional controller are OmniLearn's (Tyagi and Sharma, IEEE TPDS 2025, arXiv 2503.17469).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: The shares follow this part of the way to those of the newest measurements, so that one odd median moves them little.
FOLLOWED = 0.5

#: A change is made where the slowest rank would compute shorter by this share; less is within what medians scatter.
MIN_GAIN = 0.02

#: A rank keeps this part of an equal share at least: with less its speed could not be measured any more.
LEAST_PART = 0.1


def batch_shares(compute_ns: Sequence[float]) -> tuple[float, ...]:
    """
    By rank, the share of the global batch with which all ranks compute equally long; their sum is 1.

    `compute_ns`: by rank, what it computes of an equal batch.
    """
    speeds = [1 / max(1.0, each) for each in compute_ns]
    return tuple(speed / sum(speeds) for speed in speeds)


def batch_sizes(shares: Sequence[float], batch: int) -> tuple[int, ...]:
    """
    By rank, how many of the `batch` samples it computes: by largest remainders, so that the sum is `batch`, and one at
    least. Raises ValueError for fewer samples than ranks.
    """
    ranks = len(shares)
    if batch < ranks:
        raise ValueError(f"the batch has {batch} samples for {ranks} ranks; each rank needs one at least")
    exact = [share * (batch - ranks) for share in shares]
    sizes = [int(each) for each in exact]
    by_remainder = sorted(range(ranks), key=lambda rank: (sizes[rank] - exact[rank], rank))
    for rank in by_remainder[: batch - ranks - sum(sizes)]:
        sizes[rank] += 1
    return tuple(size + 1 for size in sizes)


def loss_weight(sizes: Sequence[int], rank: int) -> float:
    """
    What the mean loss of the rank's samples is multiplied by, so that the mean of the ranks' gradients is the gradient
    of the mean loss of all samples: n b_r / B, with n ranks, b_r samples of this rank and B of all.
    """
    return len(sizes) * sizes[rank] / sum(sizes)


@dataclass(slots=True)
class Balancer:
    """
    The shares in force. All ranks get the same measurements in the same step, so all have the same shares.

    `changes`: number of changes so far. `changed_in`: the step of the newest one, after which the shares count.
    `measured_in`: the step in which the newest measurements were made.
    """

    ranks: int
    shares: tuple[float, ...] = field(default=())
    changes: int = 0
    changed_in: int = -1
    measured_in: int = -1

    def __post_init__(self) -> None:
        self.shares = self.shares or (1 / self.ranks,) * self.ranks

    def measure(self, compute_ns: Sequence[int], measured_in: int, step: int) -> bool:
        """
        `compute_ns`: by rank, the median of what it computed of its share in the steps up to `measured_in`, since the
        measurements before; 0: unknown. `step`: the present one. Returns whether the shares change.
        """
        begun, self.measured_in = self.measured_in, measured_in
        if begun <= self.changed_in or not all(each > 0 for each in compute_ns):
            return False  # some of these steps had the shares of before the change
        per_share = [each / share for each, share in zip(compute_ns, self.shares, strict=True)]
        wanted = batch_shares(per_share)
        gain = 1 - max(each * share for each, share in zip(per_share, wanted, strict=True)) / max(compute_ns)
        if gain < MIN_GAIN:
            return False
        followed = [own + FOLLOWED * (new - own) for own, new in zip(self.shares, wanted, strict=True)]
        least = [max(each, LEAST_PART / self.ranks) for each in followed]
        self.shares = tuple(each / sum(least) for each in least)
        self.changes, self.changed_in = self.changes + 1, step
        return True

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shares, self.changes = tuple(state["shares"]), state["changes"]
        self.changed_in, self.measured_in = state["changed_in"], state["measured_in"]
