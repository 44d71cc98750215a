"""
Which of several hubs owns a job, a rack or a node: rendezvous hashing over the hubs that share the fleet. Pure; times are
CLOCK_BOOTTIME.

Each hub subscribes to the marks of its own jobs alone. It receives every node's state, and decodes those of its share. A key
goes to the hub with the highest hash of both, so a hub that leaves moves its own keys alone, and one that joins takes its
part of each other hub's (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import JOB_PARTS, job_part
from timesyncd.messages.fleet import HubState

#: A hub that shares publishes its state at this interval.
STATE_EVERY_NS = NS_PER_S

#: A sharing hub without a new state for this long is gone: three states are missing.
GONE_AFTER_NS = 4 * NS_PER_S

#: A hub that connects first receives for this long: three states of every other hub.
LISTEN_NS = 3 * STATE_EVERY_NS

#: A hub whose rounds paused for this long leaves, before the others count it as gone, and joins again.
PAUSED_AFTER_NS = GONE_AFTER_NS - STATE_EVERY_NS

#: A new owner publishes only after this time, in which the former one learns of it. So no two hubs publish one job.
SETTLED_AFTER_NS = NS_PER_S


#: A topology that is read from a state without decoding it.
TOPOLOGY_PATTERN = "[A-Za-z0-9._/-]+"
_TOPOLOGY = re.compile(TOPOLOGY_PATTERN)


def share_key(topology: str, node: str) -> str:
    """What a node belongs to: its rack, so that one hub compares the nodes of a rack; without a topology, itself."""
    return topology if _TOPOLOGY.fullmatch(topology) else node


def job_key(job_id: str) -> str:
    """What a job belongs to: its part, since a hub subscribes to the marks of whole parts."""
    return _part_key(job_part(job_id))


def _part_key(part: str) -> str:
    return f"jobs/{part}"


def owner(key: str, hubs: Sequence[str]) -> str | None:
    """The hub that owns the key; None: there is no hub."""
    return max(hubs, key=lambda hub: (_weight(hub, key), hub), default=None)


def _weight(hub: str, key: str) -> bytes:
    return blake2b(f"{hub}\n{key}".encode(), digest_size=8).digest()


@lru_cache(maxsize=262_144)
def _owner_of(key: str, hubs: tuple[str, ...]) -> str | None:
    return owner(key, hubs)


class Ownership:
    """
    The hubs that share the fleet, as the daemon `name` sees them. A hub joins after it has listened, and leaves when its
    rounds paused or its connection was lost for so long that the others count it as gone.

    `members` are the sharing hubs by name, this one included once it has joined.
    """

    def __init__(self, name: str) -> None:
        self.members: tuple[str, ...] = ()
        self._name = name
        self._former: tuple[str, ...] = ()
        self._changed_ns = 0
        self._received_ns: dict[str, int] = {}
        self._joins_at_ns: int | None = None
        self._round_ns: int | None = None
        self._has_joined = False

    def accept(self, state: HubState, received_ns: int, live: bool) -> None:
        """The state of another hub. A retained copy is ignored: it may be of any age."""
        if not live or state.node == self._name:
            return
        if state.shares:
            self._received_ns[state.node] = received_ns
        else:
            self._received_ns.pop(state.node, None)

    def observe(self, now_ns: int) -> bool:
        """The members as a daemon sees them that is no sharing hub itself. Whether they changed."""
        alive = {name: ns for name, ns in self._received_ns.items() if now_ns - ns < GONE_AFTER_NS}
        self._received_ns = alive
        members = tuple(sorted([*alive, self._name] if self._has_joined else alive))
        if members == self.members:
            if now_ns - self._changed_ns >= SETTLED_AFTER_NS:
                self._former = members
            return False
        self._former, self.members, self._changed_ns = self.members, members, now_ns
        return True

    def advance(self, now_ns: int, connected: bool) -> bool:
        """A round of a sharing hub, about once a second. Whether the members changed."""
        paused = self._round_ns is not None and now_ns - self._round_ns >= PAUSED_AFTER_NS
        if connected:
            self._round_ns = now_ns
        if paused or not connected and self._round_ns is None:
            self._has_joined, self._joins_at_ns = False, None
        if connected and self._joins_at_ns is None:
            self._joins_at_ns = now_ns + LISTEN_NS
        self._has_joined = self._has_joined or (connected and now_ns >= (self._joins_at_ns or 0))
        return self.observe(now_ns)

    @property
    def has_joined(self) -> bool:
        return self._has_joined

    def owner(self, key: str) -> str | None:
        """The owner among the members; None: no hub shares."""
        return _owner_of(key, self.members)

    def owns(self, key: str) -> bool:
        """Whether this hub receives what belongs to the key."""
        return self.owner(key) == self._name

    def owned_parts(self) -> frozenset[str]:
        """The parts of the jobs that this hub owns, as the topics of marks name them."""
        return frozenset(part for part in JOB_PARTS if self.owns(_part_key(part)))

    def claims(self, key: str) -> bool:
        """Whether this hub publishes for the key: it owned it before the last change, too, or that is settled."""
        return self.owns(key) and _owner_of(key, self._former) == self._name
