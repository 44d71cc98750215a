"""What a policy asks of the optimizer, and the controller of `auto` that begins with it."""

from __future__ import annotations

import math

import torch

from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.low_communication import block_count


def learning_rate(optimizer: torch.optim.Optimizer) -> float | None:
    """Of the first parameter group; None: it has none."""
    rate = optimizer.param_groups[0].get("lr")
    return None if rate is None else float(rate)


def is_adaptive(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides by a second moment: its groups have two betas, as Adam's and its relatives' have."""
    betas = optimizer.defaults.get("betas")
    return isinstance(betas, tuple | list) and len(betas) >= 2


def known_rate(optimizer: torch.optim.Optimizer) -> float:
    """NaN: it has none."""
    rate = learning_rate(optimizer)
    return math.nan if rate is None else rate


def new_controller(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> Controller:
    """`module`: the one that is trained, not its wrapper."""
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return Controller(known_rate(optimizer), is_adaptive(optimizer), block_count(names))
