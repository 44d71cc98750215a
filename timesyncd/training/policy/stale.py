"""Policies of a parameter server: how far a rank may run ahead of the slowest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from timesyncd.training.policy.decision import Combine, Decision, Seen, at_least


@dataclass(frozen=True, slots=True)
class SSP:
    """
    Stale-synchronous parallel (Ho et al., NIPS 2013): a rank waits while it is more than `s` updates ahead of the slowest one.

    `s` = 0 is BSP by a parameter server.
    """

    s: int
    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        at_least("s", self.s, 0)

    def decide(self, seen: Seen) -> Decision:
        return Decision.WAIT if seen.ahead > self.s else Decision.SYNC


@dataclass(frozen=True, slots=True)
class ASP:
    """Fully asynchronous: nobody waits for anybody."""

    combines: ClassVar[Combine] = Combine.SERVER
    late: ClassVar[int | None] = None

    def decide(self, seen: Seen) -> Decision:
        return Decision.SYNC
