"""Limits how many datagrams of one address are decoded; the others are counted and dropped."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S

#: A grandmaster that restarts sends all its active alarms at once: some dozens.
BURST = 50
#: Decoding so many datagrams a second costs below 1 % of a core.
PER_S = 20
#: A fleet has a few dozen grandmasters; sender addresses can be forged.
MAX_ADDRESSES = 1024

_INTERVAL_NS = NS_PER_S // PER_S


@dataclass(slots=True)
class _Sender:
    full_at_ns: int = 0
    suppressed: int = 0


class AddressRateLimit:
    """A token bucket for each address, stored as the time at which it is full again. The least recent address is evicted first."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    @property
    def suppressed(self) -> dict[str, int]:
        """The number of dropped datagrams of each address that sent too many."""
        return {address: sender.suppressed for address, sender in self._senders.items() if sender.suppressed}

    def allows(self, address: str, now_ns: int) -> bool:
        sender = self._senders.setdefault(address, _Sender())
        self._senders.move_to_end(address)
        if len(self._senders) > MAX_ADDRESSES:
            self._senders.popitem(last=False)
        full_at_ns = max(sender.full_at_ns, now_ns)
        if full_at_ns - now_ns > (BURST - 1) * _INTERVAL_NS:
            sender.suppressed += 1
            return False
        sender.full_at_ns = full_at_ns + _INTERVAL_NS
        return True
