"""SNMPv3 keys against the standard's example; signed and encrypted messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import Malformed, Refused
from timesyncd.snmp import User, security
from timesyncd.snmp.security import MasterKeys

ENGINE = security.SnmpEngine(bytes.fromhex("80001f880401020304"), 3, 1_000)
USER = User("eva", "sha256", "a pass phrase", "aes128", "another phrase")


def sealed(scoped: bytes) -> tuple[security.UsmMessage, Any]:
    keys = MasterKeys(USER).at(ENGINE.engine_id)
    return security.parse(security.seal(7, True, ENGINE, b"eva", keys, scoped)), keys


def test_the_standards_own_example() -> None:
    """RFC 3414 A.3.2: the key of "maplesyrup" with SHA-1 at engine 2."""
    master = MasterKeys(User("eva", "sha1", "maplesyrup", "aes128", "maplesyrup"))

    assert master.auth.hex() == "9fb5cc0381497b3793528939ff788d5d79145211"
    assert master.localized(master.auth, bytes(11) + b"\x02").hex() == "6695febc9288e36282235fc7151f128497b38f3f"


def test_a_sealed_message_opens() -> None:
    """Everything comes back as it went in."""
    message, keys = sealed(b"\x30\x00")

    assert message.verify(keys)
    assert (message.number, message.engine, message.user) == (7, ENGINE, b"eva")
    assert message.flags == security.AUTH | security.PRIV | security.REPORTABLE
    assert message.scoped(keys).data == b"\x30\x00"


def test_a_salt_never_repeats() -> None:
    """One key and one salt would make one stream for two texts."""
    keys = MasterKeys(USER).at(ENGINE.engine_id)

    assert len({keys.encrypt(3, 1_000, b"text") for _ in range(100)}) == 100


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_octet_breaks_the_signature(position: int, change: int) -> None:
    """Wherever it is: the message is malformed, or is not believed."""
    message, keys = sealed(b"\x30\x0a" + bytes(10))
    octets = bytearray(message.datagram)
    octets[position % len(octets)] ^= change
    try:
        damaged = security.parse(bytes(octets))
    except (Malformed, Refused):
        return

    assert not damaged.verify(keys)


@given(st.binary(max_size=200))
def test_whatever_a_key_holder_encrypts(scoped: bytes) -> None:
    """What is not a scoped PDU is Malformed, and nothing else is raised."""
    message, keys = sealed(scoped)
    try:
        security.open_scoped(message.scoped(keys))
    except Malformed as error:
        assert str(error) != ""


@pytest.mark.parametrize("flags", [security.PRIV, security.PRIV | security.REPORTABLE])
def test_privacy_without_authentication_does_not_exist(flags: int) -> None:
    """RFC 3412 section 6.4."""
    octets = bytearray(sealed(b"\x30\x00")[0].datagram)
    at = octets.index(bytes((0x04, 0x01, security.AUTH | security.PRIV | security.REPORTABLE)))
    octets[at + 2] = flags

    with pytest.raises(Malformed, match="msgFlags"):
        security.parse(bytes(octets))


class TestEngineClock:
    """Another engine's clock, counted on by ours."""

    S = 1_000_000_000

    def clock(self) -> security.EngineClock:
        return security.EngineClock(ENGINE, 50 * self.S)

    def received(self, boots: int, time: int) -> security.SnmpEngine:
        return security.SnmpEngine(ENGINE.engine_id, boots, time)

    def test_it_runs_on(self) -> None:
        """A second of ours is a second of its."""
        assert self.clock().at(60 * self.S) == self.received(3, 1_010)

    @pytest.mark.parametrize(
        ("boots", "time", "accepted"),
        [(3, 1_010, True), (3, 860, True), (3, 859, False), (2, 5_000, False), (4, 0, True), (3, 99_999, True)],
    )
    def test_the_time_window(self, boots: int, time: int, accepted: bool) -> None:
        """A message may be 150 s old, of this start of the engine or a later one."""
        assert self.clock().follow(self.received(boots, time), 60 * self.S) is accepted

    def test_a_latched_clock_agrees_with_nothing(self) -> None:
        """RFC 3414 section 3.2, 7: snmpEngineBoots of 2,147,483,647 is outside of every time window."""
        latched = self.received(2**31 - 1, 1_010)
        ours = security.EngineClock(latched, 60 * self.S)

        assert not self.clock().follow(latched, 60 * self.S)
        assert not ours.follow(latched, 60 * self.S)
        assert not ours.agrees(latched, 60 * self.S)

    def test_old_messages_do_not_set_it_back(self) -> None:
        """Else recorded ones, each a little older, would all be taken again."""
        clock = self.clock()
        clock.follow(self.received(3, 900), 50 * self.S)

        assert clock.at(50 * self.S) == ENGINE

    @pytest.mark.parametrize(
        ("boots", "time", "agrees"),
        [(3, 1_010, True), (3, 1_160, True), (3, 1_161, False), (3, 859, False), (4, 1_010, False)],
    )
    def test_whether_another_knows_our_clock(self, boots: int, time: int, agrees: bool) -> None:
        """To 150 s either way, and of this start."""
        assert self.clock().agrees(self.received(boots, time), 60 * self.S) is agrees
