"""Newest wins, by (node, incarnation, sequence): clocks step, counters do not. Pure."""

from __future__ import annotations

from timesyncd.messages import Availability, Message, Ordered

Stamp = tuple[int, ...]
_BEFORE_ALL: Stamp = ()


class Newest:
    """What was last accepted, by channel and subject and, within these, by the node that published it."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, Stamp]] = {}

    def accept(self, channel: str, subject: str, message: Message, retained: bool) -> bool:
        """
        Whether this is news. An older message is not, nor is a second copy; but the live message is news after its own
        retained copy, which was only last known.

        Availability has no sequence: within one incarnation the later word counts. What has no order is always news.
        """
        match message:
            case Ordered():
                stamp: Stamp = (message.incarnation, message.sequence, int(not retained))
                return self._advance(channel, subject, message.node, stamp, again=False)
            case Availability():
                return self._advance(channel, subject, subject, (message.incarnation,), again=True)
            case _:
                return True

    def forget(self, channel: str, subject: str) -> None:
        """The subject is gone: what comes next of it begins anew."""
        self._last.pop((channel, subject), None)

    def _advance(self, channel: str, subject: str, node: str, stamp: Stamp, again: bool) -> bool:
        by_node = self._last.setdefault((channel, subject), {})
        last = by_node.get(node, _BEFORE_ALL)
        if stamp < last or (stamp == last and not again):
            return False
        by_node[node] = stamp
        return True
