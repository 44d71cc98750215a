"""How many datagrams of one address are looked at: the rest is counted, unread."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S

#: A unit that restarts sends its standing alarms at once: some dozens.
BURST = 50
#: Decoding so many a second costs below 1 % of a core, and no person reads faster.
PER_S = 20
#: Units are a few dozen; sender addresses can be forged.
MAX_ADDRESSES = 1024

_INTERVAL_NS = NS_PER_S // PER_S


@dataclass(slots=True)
class _Sender:
    full_again_ns: int = 0
    suppressed: int = 0


class StormLimit:
    """A token bucket for each address, as the time at which it is full again. The address silent longest is forgotten first."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    @property
    def suppressed(self) -> dict[str, int]:
        """How many were not looked at, of each address that sent too many."""
        return {address: sender.suppressed for address, sender in self._senders.items() if sender.suppressed}

    def allows(self, address: str, now_ns: int) -> bool:
        sender = self._senders.setdefault(address, _Sender())
        self._senders.move_to_end(address)
        if len(self._senders) > MAX_ADDRESSES:
            self._senders.popitem(last=False)
        full_again_ns = max(sender.full_again_ns, now_ns)
        if full_again_ns - now_ns > (BURST - 1) * _INTERVAL_NS:
            sender.suppressed += 1
            return False
        sender.full_again_ns = full_again_ns + _INTERVAL_NS
        return True
