"""
When to synchronize: policies, the controller that chooses one, averaging, compression and the parameter server.

The names below need torch (two of them also the trainer that they name) and are imported when they are first used, so
that a daemon can read a policy without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timesyncd.training.torch.entry import synchronized
    from timesyncd.training.torch.lightning import LightningPolicy
    from timesyncd.training.torch.quorum_averaging import QuorumAveraging
    from timesyncd.training.torch.report import Change, Report
    from timesyncd.training.torch.synchronizer import Synchronizer
    from timesyncd.training.torch.topology_groups import near_ranks
    from timesyncd.training.torch.transformers import TransformersPolicy

__all__ = [
    "Change",
    "LightningPolicy",
    "QuorumAveraging",
    "Report",
    "Synchronizer",
    "TransformersPolicy",
    "near_ranks",
    "synchronized",
]

_MODULES = {
    "Change": "timesyncd.training.torch.report",
    "LightningPolicy": "timesyncd.training.torch.lightning",
    "QuorumAveraging": "timesyncd.training.torch.quorum_averaging",
    "Report": "timesyncd.training.torch.report",
    "Synchronizer": "timesyncd.training.torch.synchronizer",
    "TransformersPolicy": "timesyncd.training.torch.transformers",
    "near_ranks": "timesyncd.training.torch.topology_groups",
    "synchronized": "timesyncd.training.torch.entry",
}


def __getattr__(name: str) -> Any:
    """PEP 562. Raises AttributeError, and ModuleNotFoundError where torch is not installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
