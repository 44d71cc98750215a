"""
The newest states of the nodes of other hubs' shares, as they were received. They are decoded when somebody asks for them,
and when this hub takes over their share. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError

from timesyncd.fleet.ownership import TOPOLOGY_PATTERN, share_key
from timesyncd.messages.decoding import FastDecoder
from timesyncd.messages.node import NodeState

#: Within so many bytes a state has its topology.
_HEAD_BYTES = 1_024
_TOPOLOGY = re.compile(b'"topology":"(%b)"' % TOPOLOGY_PATTERN.encode())

_DECODER = FastDecoder(NodeState)


def key_of(node: str, payload: bytes) -> str:
    """The key of a node's state to which its share belongs; decoding it takes fifty times as long."""
    found = _TOPOLOGY.search(payload, 0, _HEAD_BYTES)
    return share_key(found[1].decode() if found else "", node)


class UndecodedState(NamedTuple):
    """`live` False: a retained copy."""

    key: str
    payload: bytes
    received_ns: int
    live: bool

    def decode(self, node: str) -> NodeState | None:
        """None: it is no valid state of this node."""
        try:
            state = _DECODER.decode(self.payload)
        except ValidationError:
            return None
        return state if state.node == node else None


class UndecodedStates:
    """By node. A retained copy replaces no live state, which ages by itself."""

    def __init__(self) -> None:
        self._states: dict[str, UndecodedState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[tuple[str, UndecodedState]]:
        return iter(self._states.items())

    def put(self, node: str, payload: bytes, received_ns: int, live: bool) -> None:
        if live or node not in self._states:
            self._states[node] = UndecodedState(key_of(node, payload), payload, received_ns, live)

    def get(self, node: str) -> UndecodedState | None:
        return self._states.get(node)

    def remove(self, node: str) -> UndecodedState | None:
        return self._states.pop(node, None)

    def forget_silent(self, now_ns: int, after_ns: int) -> list[str]:
        """Returns the names that are removed."""
        gone = [node for node, state in self if now_ns - state.received_ns > after_ns]
        for node in gone:
            del self._states[node]
        return gone
