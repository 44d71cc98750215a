"""
A policy and a compression that timesyncd finds by the entry points in pyproject.toml.

Both are frozen dataclasses: their fields are the parameters in a policy's text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from timesyncd.training.policy import Combine, Decision, PolicyContext


@dataclass(frozen=True, slots=True)
class Geometric:
    """Local SGD whose interval grows by `factor` with each averaging, from `h` to `most` steps."""

    h: int
    factor: float = 2.0
    most: int = 64
    #: What a synchronization averages, and that the policy needs no votes of the ranks.
    combines: ClassVar[Combine] = Combine.PARAMETERS
    late: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if self.h < 1 or self.factor < 1:
            raise ValueError(f"h is {self.h} and factor is {self.factor}; both must be at least 1")

    def decide(self, context: PolicyContext) -> Decision:
        """Pure: the context is the same on all ranks, so all decide alike."""
        interval = min(self.most, round(self.h * self.factor**context.rounds))
        return Decision.SYNC if context.steps_since_sync >= interval else Decision.LOCAL


@dataclass(frozen=True, slots=True)
class ScaledFp16:
    """Half precision of what is divided by its largest magnitude on any rank, so that small numbers do not become 0."""

    def compressor(self, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor]) -> ScaledHalf:
        return ScaledHalf(group)


class ScaledHalf:
    """Averages buckets: see `timesyncd.training.compression.Compressor`."""

    name = "scaled_fp16"

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.raw_bytes = self.sent_bytes = 0
        self._group = group

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer: torch.Tensor = bucket.buffer()
        scale = buffer.abs().max().float().reshape(1)
        dist.all_reduce(scale, op=dist.ReduceOp.MAX, group=self._group)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale)) * dist.get_world_size(self._group)
        halves = buffer.div(scale.to(buffer.dtype)).half()
        self.raw_bytes += buffer.nbytes
        self.sent_bytes += halves.nbytes + scale.nbytes
        work = dist.all_reduce(halves, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"

        def finish(reduced: torch.futures.Future[Any]) -> torch.Tensor:
            reduced.value()  # raises the error, if any
            return buffer.copy_(halves.to(buffer.dtype) * scale.to(buffer.dtype))

        return work.get_future().then(finish)

    dense = hook

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state."""
