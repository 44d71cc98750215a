"""What is simulated: the file in which a simulator states it, and what a daemon answers of it beside its bounds."""

from __future__ import annotations

from collections.abc import Mapping

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.wire_types import Count64, Int64, RealtimeNs
from timesyncd.messages.node import Message


class StatedOffset(Message):
    """A node's clock minus its grandmaster's: `offset_ns` at `realtime_ns` (CLOCK_REALTIME), growing by `rate_ppb`."""

    realtime_ns: RealtimeNs
    offset_ns: Int64
    rate_ppb: Int64 = 0

    def at(self, realtime_ns: int) -> int:
        """In ns."""
        return self.offset_ns + self.rate_ppb * (realtime_ns - self.realtime_ns) // NS_PER_S


class TrueOffset(Message):
    """
    A node's true offset, known since a simulator made it, beside its main bound of the same moment. `is_inside`: the
    bound contains it; null: there is no bound.
    """

    node: str
    offset_ns: Int64
    bound_ns: Count64 | None
    is_inside: bool | None


class SimulationState(Message):
    """What is simulated of this fleet, the newest line of the simulator's story, and each node's true offset."""

    simulated: str
    story: str
    true_offsets: list[TrueOffset]


class SimulationFile(Message):
    """The file of `[simulation] state`, as JSON: a simulator replaces it, and the daemon reads it."""

    simulated: str
    story: str
    offsets: dict[str, StatedOffset]

    def state(self, bounds_ns: Mapping[str, int | None], realtime_ns: int) -> SimulationState:
        """At this moment, beside the nodes' main bounds of the same moment (None or absent: no bound)."""
        found = []
        for node, stated in sorted(self.offsets.items()):
            offset_ns, bound_ns = stated.at(realtime_ns), bounds_ns.get(node)
            is_inside = None if bound_ns is None else abs(offset_ns) <= bound_ns
            found.append(TrueOffset(node=node, offset_ns=offset_ns, bound_ns=bound_ns, is_inside=is_inside))
        return SimulationState(simulated=self.simulated, story=self.story, true_offsets=found)
