"""How much of one address's datagrams is looked at."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S as S
from timesyncd.snmp.listener import BURST, MAX_ADDRESSES, PER_S, AddressRateLimit


def test_a_burst_and_then_so_many_a_second() -> None:
    """The rest is counted."""
    limit = AddressRateLimit()
    at_once = sum(limit.allows("10.0.0.1", 0) for _ in range(200))
    next_second = sum(limit.allows("10.0.0.1", S * n // 100) for n in range(1, 101))

    assert at_once == BURST
    assert next_second == PER_S
    assert limit.suppressed == {"10.0.0.1": 300 - BURST - PER_S}


def test_one_address_takes_nothing_from_another() -> None:
    """An agent's traps are received during another agent's storm."""
    limit = AddressRateLimit()
    for _ in range(200):
        limit.allows("10.0.0.1", 0)

    assert limit.allows("10.0.0.2", 0)
    assert list(limit.suppressed) == ["10.0.0.1"]


def test_after_silence_the_burst_is_whole_again() -> None:
    """In burst / rate seconds."""
    limit = AddressRateLimit()
    for _ in range(200):
        limit.allows("10.0.0.1", 0)

    assert sum(limit.allows("10.0.0.1", 3 * S) for _ in range(200)) == BURST


def test_forged_addresses_do_not_grow_it() -> None:
    """The one that was silent longest is forgotten."""
    limit = AddressRateLimit()
    for number in range(3 * MAX_ADDRESSES):
        limit.allows(str(number), 0)

    assert len(limit._senders) == MAX_ADDRESSES


def test_a_continuing_sender_is_not_evicted() -> None:
    """However many forged addresses come between."""
    limit = AddressRateLimit()
    for number in range(3 * MAX_ADDRESSES):
        limit.allows(str(number), 0)
        limit.allows("10.0.0.1", 0)

    assert limit.suppressed["10.0.0.1"] == 3 * MAX_ADDRESSES - BURST
