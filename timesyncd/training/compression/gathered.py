"""The largest elements alone, with error feedback (Aji & Heafield, EMNLP 2017; Lin et al., ICLR 2018); the gain test may say how many."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict

import torch
import torch.distributed as dist

from timesyncd.training.compression.gathered_part import Gathered, Payload, packed, unpacked
from timesyncd.training.compression.interface import Bucket, Future, State
from timesyncd.training.policy.compression import chosen
from timesyncd.training.policy.gain import Gain

#: One element in so many is looked at first, to know about how large the largest are. A prime: layers have round widths.
_SAMPLED = 61


class Elements(Payload):
    """Two squared norms (of what is sent, and of all there was to send), values, and their places in the bucket."""

    def __init__(self, whole: torch.Tensor, count: int, dtype: torch.dtype) -> None:
        self._parts = (2, torch.float64), (count, dtype), (count, torch.int32)
        places = largest(whole, count)
        values = whole[places].to(dtype)
        norms = torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64) for part in (values, whole)])
        self.octets = packed(norms.square_(), values, places.int())

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        _, values, places = unpacked(octets, *self._parts)
        total.index_add_(0, places, values.to(total.dtype), alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> bool:
        return bool(norms_of(rows).isfinite().all())


def norms_of(rows: list[torch.Tensor]) -> torch.Tensor:
    """Of each rank's payload: what it sent, what it had to send."""
    return torch.stack([unpacked(row, (2, torch.float64))[0] for row in rows])


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """
    The places of so many of the largest magnitudes, in no order.

    A sample says what is surely not among them, so that fewer are sorted: several times faster than to sort all. It is the same sample each time.
    """
    magnitudes = values.abs()
    sample = magnitudes[::_SAMPLED]
    above = math.ceil(count / len(values) * len(sample) * 1.3) + 32  # so that the limit is nearly always low enough
    if above < len(sample):
        limit = torch.topk(sample, above, sorted=False).values.min()
        candidates = (~(magnitudes < limit)).nonzero().squeeze(1)  # with what is no number
        if len(candidates) >= count:
            return candidates[torch.topk(magnitudes[candidates], count, sorted=False).indices]
    return torch.topk(magnitudes, count, sorted=False).indices


class TopKFeedback(Gathered):
    """
    `ratio` None: the gain test chooses it anew at a step's begin, by what all ranks gathered in the steps before. It waits for the former step's buckets
    first, which by then are there anyhow.
    """

    def __init__(
        self, name: str, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor], ratio: float | None
    ) -> None:
        super().__init__(name, group, parameters)
        self.gain = Gain(group.size()) if ratio is None else None
        self._fixed = ratio
        #: Of the step under way, by bucket: each rank's two squared norms.
        self._norms: dict[int, torch.Tensor] = {}
        self._begun = False

    @property
    def ratio(self) -> float | None:
        """Of the elements, what is sent in this step; None: all."""
        return self._fixed if self.gain is None else self.gain.ratio

    def hook(self, bucket: Bucket) -> Future:
        future = super().hook(bucket)
        self._begun = True
        return future

    def _compressed(self, bucket: Bucket) -> Future:
        return self._dense(bucket) if self.ratio is None else super()._compressed(bucket)

    def _packed(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        assert self.ratio is not None, "else it is sent uncompressed"
        return Elements(whole, chosen(len(whole), self.ratio), dtype)

    def _heard(self, index: int, rows: list[torch.Tensor]) -> None:
        self._norms[index] = norms_of(rows)

    def _settle(self) -> None:
        """The gain test sees the former step: the same numbers in the same order on every rank."""
        super()._settle()
        norms, self._norms = self._norms, {}
        begun, self._begun = self._begun, False
        if self.gain is None or not begun:
            return
        if self.ratio is None:
            self.gain.saw(1.0, 1.0)
        elif norms:
            sent, whole = torch.cat([norms[index] for index in sorted(norms)]).sum(0).tolist()
            self.gain.saw(*((sent, whole) if math.isfinite(whole) else (0.0, 0.0)))

    def _deciding(self) -> object:
        return self.name, self.gain

    def state_dict(self) -> State:
        return super().state_dict() | {"gain": self.gain and asdict(self.gain)}

    def load_state_dict(self, state: State) -> None:
        """What the gain test found with another number of ranks says nothing of this one."""
        super().load_state_dict(state)
        if self.gain is not None:
            loaded = Gain(**state["gain"])
            self.gain = loaded if loaded.ranks == self._group.size() else Gain(self._group.size())
