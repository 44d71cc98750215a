"""
The low-communication methods for adaptive optimizers, as data: DiLoCo, Streaming DiLoCo, DES-LOC, and the outer
optimizer that any policy can have that averages parameters.

Each names the equations that it follows. `timesyncd.training.torch` carries them out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from timesyncd.training.policy.policies import Combine, Decision, PolicyContext, Scheduled, check_at_least, sync_if


@dataclass(frozen=True, slots=True)
class Outer:
    """
    The outer optimizer: SGD with Nesterov momentum over the common parameters θ, once each averaging.

    With the outer gradient Δ = θ - mean of the ranks' parameters (DiLoCo, Douillard et al., arXiv 2311.08105, Alg. 1,
    lines 12 and 14): b <- momentum b + Δ; θ <- θ - lr (Δ + momentum b). `lr` = 1 and `momentum` = 0 is the plain mean
    (FedAvg); the defaults are those of DiLoCo's Sec. 3.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr is {self.lr}; it must be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class DiLoCo(Scheduled):
    """
    DiLoCo (Douillard et al., arXiv 2311.08105, Alg. 1): `h` inner updates on each rank alone, by the script's own
    optimizer (the paper's is AdamW), then one step of the outer optimizer with the mean of the ranks' differences.

    The inner optimizer's state stays on its rank, as in the paper.
    """

    h: int
    lr: float = 0.7
    momentum: float = 0.9
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("h", self.h, 1)
        Outer(self.lr, self.momentum)  # raises

    @property
    def outer(self) -> Outer:
        return Outer(self.lr, self.momentum)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(context.steps_since_sync >= self.h)


@dataclass(frozen=True, slots=True)
class StreamingDiLoCo(Scheduled):
    """
    Streaming DiLoCo (Douillard et al., arXiv 2501.18512, Alg. 2): the parameters are in `fragments`, each of which has
    an outer step every `h` updates, at an offset of its own, so that the peak of the traffic is that of one fragment.

    `delay`: the paper's tau, number of updates during which a fragment's outer gradient is on its way. `alpha`: with
    the new common parameters θ of a fragment each rank goes on with alpha (its own) + (1 - alpha) θ. Fragment p begins
    after `t` updates where (t - t_p) mod h = 0, with t_p = floor(h (p + 1) / fragments). Its outer gradient is the
    difference to the fragment's former common parameters.
    """

    h: int
    fragments: int = 4
    delay: int = 0
    alpha: float = 0.5
    lr: float = 0.7
    momentum: float = 0.9
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        check_at_least("h", self.h, 1)
        check_at_least("fragments", self.fragments, 1)
        check_at_least("delay", self.delay, 0)
        Outer(self.lr, self.momentum)  # raises
        if self.fragments > self.h:
            raise ValueError(f"fragments is {self.fragments}; it must be at most h={self.h}: one begins in a step")
        if self.delay >= self.h // self.fragments:
            raise ValueError(
                f"delay is {self.delay}; it must be below h / fragments = {self.h // self.fragments}, so that a "
                "fragment arrives before the next one begins"
            )
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; it must be at least 0 and below 1")

    @property
    def outer(self) -> Outer:
        return Outer(self.lr, self.momentum)

    def fragment_in(self, step: int) -> int | None:
        """The fragment that begins after the update of `step`, counted from 0; None: none."""
        updates = step + 1
        for fragment in range(self.fragments):
            if (updates - self.h * (fragment + 1) // self.fragments) % self.h == 0:
                return fragment
        return None

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(self.fragment_in(context.step) is not None)


class AdamState(StrEnum):
    """What DES-LOC averages, each at a period of its own."""

    PARAMETERS = "parameters"
    FIRST_MOMENT = "first_moment"
    SECOND_MOMENT = "second_moment"


@dataclass(frozen=True, slots=True)
class DESLOC(Scheduled):
    """
    DES-LOC (Iacob et al., ICLR 2026, arXiv 2505.22549, Alg. 1): parameters are averaged every `kx` updates, Adam's
    first moment every `ku`, its second moment every `kv`. Equal periods are Local Adam.

    The paper averages a state at the begin of an update, and this at the end of the update before; so the next
    gradient is that at the mean. The defaults of `ku` and `kv` are the paper's 3 and 6 times `kx`.
    """

    kx: int
    ku: int | None = None
    kv: int | None = None
    combines: ClassVar[Combine] = Combine.PARAMETERS

    def __post_init__(self) -> None:
        for name, period in (("kx", self.kx), ("ku", self.ku), ("kv", self.kv)):
            if period is not None:
                check_at_least(name, period, 1)

    def due_in(self, step: int) -> frozenset[AdamState]:
        """What is averaged after the update of `step`, counted from 0."""
        periods = {
            AdamState.PARAMETERS: self.kx,
            AdamState.FIRST_MOMENT: 3 * self.kx if self.ku is None else self.ku,
            AdamState.SECOND_MOMENT: 6 * self.kx if self.kv is None else self.kv,
        }
        return frozenset(state for state, period in periods.items() if (step + 1) % period == 0)

    def decide(self, context: PolicyContext) -> Decision:
        return sync_if(bool(self.due_in(context.step)))


#: The block of a parameter: its name up to the first number, as in `layers.3.attention.weight`; else its module.
_BLOCK = re.compile(r"(?P<numbered>(?:[^.]+\.)*?\d+)\.|(?P<module>.*)\.[^.]*")


def _block_of(name: str) -> str:
    match = _BLOCK.match(name)
    return name if match is None else match["numbered"] or match["module"]


def block_count(names: Sequence[str]) -> int:
    """Number of blocks of layers that the parameters belong to, by their names in the module."""
    return len(set(map(_block_of, names)))


def fragments_of(names: Sequence[str], fragments: int) -> list[int]:
    """
    The fragment of each parameter, by its name in the module: blocks in turn (the paper's strided pattern, Sec. 2.1).

    Raises ValueError where there are fewer blocks than fragments.
    """
    blocks: dict[str, int] = {}
    found = []
    for name in names:
        found.append(blocks.setdefault(_block_of(name), len(blocks)) % fragments)
    if len(blocks) < fragments:
        raise ValueError(f"the model has {len(blocks)} blocks of layers, fewer than {fragments} fragments")
    return found
