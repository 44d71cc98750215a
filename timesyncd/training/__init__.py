"""
When to synchronize: policies, the controller that chooses one, averaging, compression and the parameter server.

The names below need torch and are imported when they are first used, so that a daemon can read a policy without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timesyncd.training.torch.synchronizer import Change, Report, Synchronizer, synchronized
    from timesyncd.training.torch.topology_groups import near_ranks

__all__ = ["Change", "Report", "Synchronizer", "near_ranks", "synchronized"]

_MODULES = dict.fromkeys(
    ("Change", "Report", "Synchronizer", "synchronized"), "timesyncd.training.torch.synchronizer"
) | {"near_ranks": "timesyncd.training.torch.topology_groups"}


def __getattr__(name: str) -> Any:
    """PEP 562. Raises AttributeError, and ModuleNotFoundError where torch is not installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
