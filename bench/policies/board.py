"""What the ranks of one run share besides the network, since they are on one machine: no evaluation touches the link that is measured."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn


def replica(network: nn.Module) -> list[Tensor]:
    """The parameters, and the buffers that are no counts."""
    return [*network.parameters(), *(each for each in network.buffers() if each.is_floating_point())]


def write_replica(network: nn.Module, values: Tensor) -> None:
    tensors = replica(network)
    with torch.no_grad():
        for each, part in zip(tensors, torch.split(values, [each.numel() for each in tensors]), strict=True):
            each.copy_(part.view_as(each))


class Board:
    """The parameters and floating-point buffers of every rank, for an evaluation, and the processes' numbers."""

    def __init__(self, folder: Path, network: nn.Module, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._network = network
        count = sum(each.numel() for each in replica(network))
        shared = torch.from_file(str(folder / "parameters"), shared=True, size=ranks * count)
        self._parameters = shared.view(ranks, count)
        pids = torch.from_file(str(folder / "pids"), shared=True, size=ranks, dtype=torch.int64)
        pids[rank] = os.getpid()
        self._pids = pids

    def put(self) -> None:
        """This rank's parameters, as they are now."""
        self._parameters[self._rank] = torch.cat([each.detach().flatten() for each in replica(self._network)])

    def mean(self) -> Tensor:
        return self._parameters.mean(0)

    def own(self) -> Tensor:
        return self._parameters[self._rank]

    def signal_others(self, number: signal.Signals) -> None:
        for rank, pid in enumerate(self._pids.tolist()):
            if rank != self._rank:
                os.kill(pid, number)
