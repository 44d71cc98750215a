"""
The election of the primary hub: the first by name of the hubs that publish their state. Pure: time is an argument.
"""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import HubState

#: A hub publishes its state at this interval, and at once when it becomes primary or ceases to be.
STATE_EVERY_NS = 2 * NS_PER_S

#: A hub without a new state for this long is gone.
GONE_AFTER_NS = 15 * NS_PER_S

#: A hub that connects first receives for this long: three states of every other hub.
LISTEN_NS = 3 * STATE_EVERY_NS


class Primary:
    """
    Whether the hub `name` is primary. It first listens whenever it was disconnected so long that the other hubs count
    it as gone. A primary hub remains so until an earlier one by name publishes that it is primary; for the duration of
    one message both are.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._received: dict[str, tuple[HubState, int]] = {}
        self._connected_ns: int | None = None
        self._listen_until_ns = 0
        self._is_primary = False

    def accept(self, state: HubState, received_boottime_ns: int, live: bool) -> None:
        """The state of another hub. A retained copy is ignored: it may be of any age."""
        if live and state.node != self._name:
            self._received[state.node] = (state, received_boottime_ns)

    def advance(self, now_boottime_ns: int, connected: bool = True) -> bool:
        """
        Whether it is primary from now on; to be called about once a second. It is not primary once it was disconnected
        so long that the other hubs count it as gone, so the first state that it publishes after that says so.
        """
        if not connected:
            is_gone = self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS
            self._is_primary = self._is_primary and not is_gone
            return self._is_primary
        if self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS:
            self._is_primary, self._listen_until_ns = False, now_boottime_ns + LISTEN_NS
        self._connected_ns = now_boottime_ns
        first = [state for state in self.alive(now_boottime_ns) if state.node < self._name]
        if self._is_primary:
            self._is_primary = not any(state.primary for state in first)
        else:
            self._is_primary = not first and now_boottime_ns >= self._listen_until_ns
        return self._is_primary

    def alive(self, now_boottime_ns: int) -> list[HubState]:
        """The states of the other hubs that are not gone, by name."""
        self._received = {
            name: (state, received_ns)
            for name, (state, received_ns) in sorted(self._received.items())
            if now_boottime_ns - received_ns < GONE_AFTER_NS
        }
        return [state for state, _ in self._received.values()]
