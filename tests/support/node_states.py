"""States of nodes as a hub receives them."""

from __future__ import annotations

from timesyncd.bound import Bound
from timesyncd.messages.node import BoundMessage, NodeState


def node_state(name: str, gm_bound_ns: int | None = 100_000, sequence: int = 1, incarnation: int = 1) -> NodeState:
    gm = BoundMessage.of(Bound(gm_bound_ns, 50_000))
    return NodeState(
        node=name,
        incarnation=incarnation,
        sequence=sequence,
        published_realtime_ns=7,
        age_ns=0,
        boot_id=f"boot of {name}",
        time_namespace=1,
        status="SYNCHRONIZED",
        utc_status="UNKNOWN",
        since_realtime_ns=None,
        parent=gm,
        gm=gm,
        grandmaster_identity="gm-1",
        parent_identity=f"port of {name}",
        utc_seconds_removed=0,
    )
