"""
When to synchronize: policies, the controller that chooses one, averaging, compression and the parameter server.

The names below need torch and are imported when they are first used, so that a daemon can read a policy without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timesyncd.training.torch.report import Change, Report
    from timesyncd.training.torch.synchronizer import Synchronizer, synchronized
    from timesyncd.training.torch.topology_groups import near_ranks

__all__ = ["Change", "Report", "Synchronizer", "near_ranks", "synchronized"]

_MODULES = {
    "Change": "timesyncd.training.torch.report",
    "Report": "timesyncd.training.torch.report",
    "Synchronizer": "timesyncd.training.torch.synchronizer",
    "near_ranks": "timesyncd.training.torch.topology_groups",
    "synchronized": "timesyncd.training.torch.synchronizer",
}


def __getattr__(name: str) -> Any:
    """PEP 562. Raises AttributeError, and ModuleNotFoundError where torch is not installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
