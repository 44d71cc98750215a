"""Which of several hubs speaks: the first by name among those that are heard. Pure: time is an argument."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import HubState

#: A hub publishes its state so often, and at once when it becomes primary or ceases to be.
STATE_EVERY_NS = 2 * NS_PER_S

#: Who was not heard for so long is gone.
GONE_AFTER_NS = 15 * NS_PER_S

#: Long enough to hear three states of every hub that is there.
LISTENS_NS = 3 * STATE_EVERY_NS


class Primary:
    """
    Whether the hub `name` is the primary one. It listens first, whenever it was away for as long as makes it gone for the others. A
    primary stays so until another one that comes before it says that it is: then for the way of one message both speak.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard: dict[str, tuple[HubState, int]] = {}
        self._connected_ns: int | None = None
        self._listens_until_ns = 0
        self._is_primary = False

    def hear(self, state: HubState, received_boottime_ns: int, live: bool) -> None:
        """What another hub published. A retained copy says nothing: it may be of any age."""
        if live and state.node != self._name:
            self._heard[state.node] = (state, received_boottime_ns)

    def advance(self, now_boottime_ns: int, connected: bool = True) -> bool:
        """
        Whether it is primary from now on; to be asked about once a second. Cut off for so long that it is gone for the others it is not: what
        it would say first when it is back must be that.
        """
        if not connected:
            is_gone = self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS
            self._is_primary = self._is_primary and not is_gone
            return self._is_primary
        if self._connected_ns is None or now_boottime_ns - self._connected_ns >= GONE_AFTER_NS:
            self._is_primary, self._listens_until_ns = False, now_boottime_ns + LISTENS_NS
        self._connected_ns = now_boottime_ns
        first = [state for state in self.alive(now_boottime_ns) if state.node < self._name]
        if self._is_primary:
            self._is_primary = not any(state.primary for state in first)
        else:
            self._is_primary = not first and now_boottime_ns >= self._listens_until_ns
        return self._is_primary

    def alive(self, now_boottime_ns: int) -> list[HubState]:
        """The other hubs that are heard, by name."""
        self._heard = {
            name: (state, received_ns)
            for name, (state, received_ns) in sorted(self._heard.items())
            if now_boottime_ns - received_ns < GONE_AFTER_NS
        }
        return [state for state, _ in self._heard.values()]
