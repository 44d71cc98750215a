"""What the ranks of one run share besides the network, since they are on one machine: no evaluation touches the link that is measured."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn


class Board:
    """The parameters of every rank, for an evaluation, and the processes' numbers."""

    def __init__(self, folder: Path, network: nn.Module, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._network = network
        count = sum(parameter.numel() for parameter in network.parameters())
        shared = torch.from_file(str(folder / "parameters"), shared=True, size=ranks * count)
        self._parameters = shared.view(ranks, count)
        pids = torch.from_file(str(folder / "pids"), shared=True, size=ranks, dtype=torch.int64)
        pids[rank] = os.getpid()
        self._pids = pids

    def put(self) -> None:
        """This rank's parameters, as they are now."""
        self._parameters[self._rank] = nn.utils.parameters_to_vector(self._network.parameters()).detach()

    def mean(self) -> Tensor:
        return self._parameters.mean(0)

    def own(self) -> Tensor:
        return self._parameters[self._rank]

    def signal_others(self, number: signal.Signals) -> None:
        for rank, pid in enumerate(self._pids.tolist()):
            if rank != self._rank:
                os.kill(pid, number)
