"""
A hub's request for the states of all daemons, and a daemon's answer to it. Pure: times are CLOCK_BOOTTIME.

A broker that keeps no retained messages, or gives them to no wildcard subscription, has no state for a hub that starts late.
The hub would know a node only after its next periodic state.
"""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S

#: A daemon answers at most one request in this time, whatever is requested by whichever hub.
ANSWER_EVERY_NS = 10 * NS_PER_S
#: The answers of a fleet are spread over this time, besides the second in which a daemon publishes what is due.
ANSWER_WITHIN_NS = 1 * NS_PER_S
#: A hub whose connection comes and goes requests no more often.
REQUEST_EVERY_NS = 10 * NS_PER_S


class RequestedStates:
    """
    When a daemon publishes its states because a hub requested them. A request that comes too soon after an answer is not
    refused: it is answered when the next answer is allowed.
    """

    def __init__(self) -> None:
        self._due_ns: int | None = None
        self._allowed_ns = 0

    def request(self, now_ns: int, jitter: float) -> None:
        """A hub requested them. `jitter`: 0 to 1, by which this daemon answers later than the first."""
        if self._due_ns is None:
            self._due_ns = max(now_ns + int(jitter * ANSWER_WITHIN_NS), self._allowed_ns)

    def is_due(self, now_ns: int) -> bool:
        return self._due_ns is not None and now_ns >= self._due_ns

    def published(self, now_ns: int) -> None:
        """The states were published, for whatever reason: that answers what was requested until now."""
        if self._due_ns is not None:
            self._due_ns, self._allowed_ns = None, now_ns + ANSWER_EVERY_NS


class RequestLimit:
    """How often a hub requests states."""

    def __init__(self) -> None:
        self._allowed_ns = 0

    def allows(self, now_ns: int) -> bool:
        """Whether to request them now, which counts as done."""
        if now_ns < self._allowed_ns:
            return False
        self._allowed_ns = now_ns + REQUEST_EVERY_NS
        return True
