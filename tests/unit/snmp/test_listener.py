"""Traps and informs: their content, the responses, and what is rejected."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snmp_scripted import pdu, v2c

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Unreachable
from timesyncd.sample import Trap
from timesyncd.snmp import Community, Listener, Oid, User, ber, security
from timesyncd.snmp import listener as snmp_listener
from timesyncd.snmp.listener import BURST, DatagramResult, Notification, NotificationReceiver
from timesyncd.snmp.messages import PduType, decode_pdu
from timesyncd.snmp.security import MasterKeys

S = NS_PER_S
OURS = bytes.fromhex("80001f880305060708")
EVA = User("eva", "sha256", "a pass phrase", "aes128", "another phrase")
ENGINE = security.SnmpEngine(b"agent engine", 3, 1_000)
COMMUNITY = Community("fifth-floor")

UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
TRAP_OID: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0)
ALARM: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 4, 1, 2, 97)
SEVERITY: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 4, 1, 1, 3, 0)
NOTIFICATION = Notification(ALARM, 4_200, ((SEVERITY, 2),))
VALUES = [(UPTIME, ber.encode_integer(4_200, 0x43)), (TRAP_OID, ber.encode_oid(ALARM)), (SEVERITY, b"\x02\x01\x02")]


def receiver() -> NotificationReceiver:
    return NotificationReceiver([COMMUNITY], [EVA], OURS, 7, 0)


def received(datagram: bytes, now_ns: int = 0) -> DatagramResult:
    return receiver().receive(datagram, now_ns)


def sealed(
    engine: security.SnmpEngine = ENGINE,
    kind: PduType = PduType.TRAP,
    user: User = EVA,
    reportable: bool = False,
    number: int = 9,
) -> bytes:
    scoped = security.scoped_pdu(engine.engine_id, b"", pdu(kind, 5, VALUES))
    return security.seal(number, reportable, engine, user.name.encode(), MasterKeys(user).at(engine.engine_id), scoped)


def inform(engine: security.SnmpEngine, user: User = EVA) -> bytes:
    return sealed(engine, PduType.INFORM, user, reportable=True)


def v1(enterprise: Oid, generic: int, specific: int) -> bytes:
    head = ber.encode_oid(enterprise) + b"\x40\x04\x0a\x00\x00\x01"
    numbers = ber.encode_integer(generic) + ber.encode_integer(specific) + ber.encode_integer(4_200, 0x43)
    variables = ber.encode(ber.SEQUENCE, ber.encode(ber.SEQUENCE, ber.encode_oid(SEVERITY) + b"\x02\x01\x02"))
    body = ber.encode(PduType.TRAP_V1, head + numbers + variables)
    return ber.encode(ber.SEQUENCE, b"\x02\x01\x00" + ber.encode(ber.OCTETS, b"fifth-floor") + body)


class TestOpen:
    """SNMPv1 and v2c."""

    def test_a_trap_has_its_oid_uptime_and_variables(self) -> None:
        """In the order in which it came, and it wants no answer."""
        assert received(v2c(pdu(PduType.TRAP, 5, VALUES))) == DatagramResult(NOTIFICATION)

    def test_an_inform_is_answered_with_itself_as_a_response(self) -> None:
        """RFC 3416 section 4.2.7."""
        assert received(v2c(pdu(PduType.INFORM, 5, VALUES))) == DatagramResult(
            NOTIFICATION, v2c(pdu(PduType.RESPONSE, 5, VALUES))
        )

    def test_a_trap_without_uptime(self) -> None:
        """Absent is None."""
        reported = received(v2c(pdu(PduType.TRAP, 5, VALUES[1:]))).notification

        assert reported == replace(NOTIFICATION, uptime_ticks=None)

    def test_the_community_that_a_forwarder_added_is_dropped(self) -> None:
        """It is a secret (RFC 3584 section 3.1)."""
        added = ((1, 3, 6, 1, 6, 3, 18, 1, 4, 0), ber.encode(ber.OCTETS, b"fifth-floor"))

        assert received(v2c(pdu(PduType.TRAP, 5, [*VALUES, added]))) == DatagramResult(NOTIFICATION)

    @pytest.mark.parametrize(
        ("datagram", "reason"),
        [
            (v2c(pdu(PduType.TRAP, 5, VALUES), b"public"), "wrong community"),
            (v2c(pdu(PduType.INFORM, 5, VALUES), b"public"), "wrong community"),
            (v2c(pdu(PduType.TRAP, 5, VALUES[2:])), "notification without snmpTrapOID"),
            (v2c(pdu(PduType.TRAP, 5, [(TRAP_OID, b"\x02\x01\x05")])), "notification without snmpTrapOID"),
            (v2c(pdu(PduType.GET, 5, VALUES)), "not a trap or inform"),
            (v2c(pdu(PduType.RESPONSE, 5, VALUES)), "not a trap or inform"),
            (v2c(pdu(PduType.TRAP, 5, VALUES))[:-1], "malformed message"),
            (v2c(b"\xa4\x00"), "malformed message"),
            (b"", "malformed message"),
        ],
    )
    def test_what_is_refused_is_named_and_not_answered(self, datagram: bytes, reason: str) -> None:
        """A rejected trap is counted by its reason and gets no response."""
        assert received(datagram) == DatagramResult(rejected=reason)

    @pytest.mark.parametrize(
        ("generic", "specific", "oid"),
        [
            (0, 0, (1, 3, 6, 1, 6, 3, 1, 1, 5, 1)),
            (3, 9, (1, 3, 6, 1, 6, 3, 1, 1, 5, 4)),
            (6, 97, (1, 3, 6, 1, 4, 1, 7, 0, 97)),
        ],
    )
    def test_a_v1_trap_is_translated(self, generic: int, specific: int, oid: Oid) -> None:
        """RFC 3584 section 3.1: a generic one, or the enterprise's own with a 0 between."""
        reported = received(v1((1, 3, 6, 1, 4, 1, 7), generic, specific)).notification

        assert reported == replace(NOTIFICATION, oid=oid)

    def test_a_v1_trap_of_no_generic_kind(self) -> None:
        """There are seven."""
        assert received(v1((1, 3, 6, 1, 4, 1, 7), 7, 0)) == DatagramResult(rejected="malformed message")


class TestTraps:
    """SNMPv3 traps, whose sender is authoritative."""

    def test_an_unknown_sender_is_authenticated_by_its_key(self) -> None:
        """Its engine ID need not be configured."""
        assert received(sealed()) == DatagramResult(NOTIFICATION)

    @pytest.mark.parametrize(
        ("datagram", "reason"),
        [
            (sealed(user=replace(EVA, name="max")), "unknown user name"),
            (sealed(user=replace(EVA, auth_pass="somebody else")), "wrong digest"),
            (sealed(user=replace(EVA, auth="sha1")), "wrong digest"),
            (sealed(user=replace(EVA, priv_pass="somebody else")), "decryption error"),
            (sealed(engine=security.SnmpEngine(b"", 0, 0)), "unknown engine ID"),
            (sealed(engine=security.SnmpEngine(bytes(33), 0, 0)), "unknown engine ID"),
            (security.plain(9, False, ENGINE, b"eva", b"\x30\x00"), "unsupported security level"),
            (sealed(kind=PduType.INFORM), "inform without the reportable flag"),
            (sealed(kind=PduType.GET), "not a trap or inform"),
        ],
    )
    def test_what_is_refused_is_named_and_not_answered(self, datagram: bytes, reason: str) -> None:
        """A rejected trap is counted by its reason and gets no response."""
        assert received(datagram) == DatagramResult(rejected=reason)

    @pytest.mark.parametrize(
        ("engine", "taken"),
        [
            (replace(ENGINE, time=1_100), True),
            (replace(ENGINE, time=949), False),
            (replace(ENGINE, time=950), True),
            (replace(ENGINE, boots=4, time=0), True),
            (replace(ENGINE, boots=2, time=5_000), False),
        ],
    )
    def test_a_recorded_trap_is_not_taken_again(self, engine: security.SnmpEngine, taken: bool) -> None:
        """Hundred seconds after the first one, a second may be 150 s old, and of a later start."""
        listening = receiver()
        listening.receive(sealed(), 0)
        outcome = listening.receive(sealed(engine), 100 * S)

        assert outcome == (DatagramResult(NOTIFICATION) if taken else DatagramResult(rejected="not in time window"))

    def test_a_trap_of_a_latched_engine_is_refused(self) -> None:
        """Otherwise a recorded one would be accepted for ever."""
        assert received(sealed(replace(ENGINE, boots=2**31 - 1))) == DatagramResult(rejected="not in time window")

    def test_a_sender_whose_engine_id_has_four_octets(self) -> None:
        """Its traps are read as its answers are."""
        assert received(sealed(replace(ENGINE, engine_id=bytes.fromhex("80002342")))) == DatagramResult(NOTIFICATION)

    def test_a_forged_trap_does_not_set_the_clock(self) -> None:
        """Only a sender with the key sets it."""
        listening = receiver()
        listening.receive(sealed(replace(ENGINE, boots=99), user=replace(EVA, auth_pass="somebody else")), 0)

        assert listening.receive(sealed(), 0) == DatagramResult(NOTIFICATION)

    def test_a_bounded_number_of_senders_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even authenticated senders: the least recent one is evicted."""
        monkeypatch.setattr(snmp_listener, "MAX_SENDERS", 2)
        listening = receiver()
        for engine_id in (b"agent 1", b"agent 2", b"agent 1", b"agent 3"):
            listening.receive(sealed(replace(ENGINE, engine_id=engine_id)), 0)

        assert [engine_id for engine_id, _ in listening._senders] == [b"agent 1", b"agent 3"]

    def test_a_salt_of_another_length(self) -> None:
        """The cipher cannot use it, even if the message is signed."""
        keys = MasterKeys(EVA).at(ENGINE.engine_id)
        data = ber.encode(ber.OCTETS, b"encrypted")
        blank = security._message(9, security.AUTH | security.PRIV, ENGINE, b"eva", keys.digest_size, b"short", data)

        assert received(security._sign(blank, keys, 2 + len(b"short") + len(data))) == DatagramResult(
            rejected="decryption error"
        )


class TestInforms:
    """SNMPv3 informs, for which we are authoritative."""

    def test_discovery_reports_our_engine(self) -> None:
        """It is no fault, so it is not counted."""
        outcome = received(security.plain(9, True, security.SnmpEngine(b"", 0, 0), b"", b"\x30\x00"), 12 * S)

        assert outcome.rejected is None
        assert outcome.reply is not None
        assert security.parse(outcome.reply).engine == security.SnmpEngine(OURS, 7, 12)
        assert report_in(outcome) == security.UNKNOWN_ENGINE_ID

    def test_an_inform_is_answered_under_its_senders_user(self) -> None:
        """With the same number, signed and encrypted, and wants no report."""
        outcome = received(inform(security.SnmpEngine(OURS, 7, 0)), 12 * S)
        reply = security.parse(outcome.reply or b"")
        keys = MasterKeys(EVA).at(OURS)

        assert outcome.notification == NOTIFICATION
        assert (reply.number, reply.flags, reply.engine) == (
            9,
            security.AUTH | security.PRIV,
            security.SnmpEngine(OURS, 7, 12),
        )
        assert reply.verify(keys)
        response = decode_pdu(security.open_scoped(reply.scoped(keys)))
        assert (response.kind, response.number, len(response.varbinds)) == (PduType.RESPONSE, 5, 3)

    @pytest.mark.parametrize(
        ("datagram", "counter", "reason"),
        [
            (
                inform(security.SnmpEngine(OURS, 7, 0), replace(EVA, name="max")),
                security.UNKNOWN_USER,
                "unknown user name",
            ),
            (inform(security.SnmpEngine(OURS, 7, 0), replace(EVA, auth="sha1")), security.WRONG_DIGEST, "wrong digest"),
            (
                inform(security.SnmpEngine(OURS, 7, 0), replace(EVA, priv_pass="other words")),
                security.DECRYPTION_ERROR,
                "decryption error",
            ),
            (inform(security.SnmpEngine(b"another", 7, 0)), security.UNKNOWN_ENGINE_ID, "unknown engine ID"),
            (
                security.plain(9, True, security.SnmpEngine(OURS, 7, 0), b"eva", b"\x30\x00"),
                security.UNSUPPORTED_LEVEL,
                "unsupported security level",
            ),
        ],
    )
    def test_what_is_refused_is_reported_unsigned(self, datagram: bytes, counter: Oid, reason: str) -> None:
        """So that the sender's own log names it too."""
        outcome = received(datagram)

        assert (outcome.notification, outcome.rejected) == (None, reason)
        assert security.parse(outcome.reply or b"").flags == 0
        assert report_in(outcome) == counter

    @pytest.mark.parametrize(
        "engine", [security.SnmpEngine(OURS, 6, 0), security.SnmpEngine(OURS, 7, 500), security.SnmpEngine(OURS, 0, 0)]
    )
    def test_a_wrong_idea_of_our_clock_is_corrected_by_a_signed_report(self, engine: security.SnmpEngine) -> None:
        """The sender believes no other."""
        outcome = received(inform(engine), 12 * S)
        reply = security.parse(outcome.reply or b"")

        assert outcome.rejected == "not in time window"
        assert reply.verify(MasterKeys(EVA).at(OURS))
        assert reply.engine == security.SnmpEngine(OURS, 7, 12)
        assert report_in(outcome) == security.NOT_IN_TIME_WINDOW


def report_in(outcome: DatagramResult) -> Oid:
    reply = security.parse(outcome.reply or b"")
    report = decode_pdu(security.open_scoped(reply.scoped(MasterKeys(EVA).at(OURS))))
    assert report.kind is PduType.REPORT
    return report.varbinds[0].oid


VALID = [
    v2c(pdu(PduType.TRAP, 5, VALUES)),
    v2c(pdu(PduType.INFORM, 5, VALUES)),
    v1((1, 3, 6, 1, 4, 1, 7), 6, 97),
    sealed(),
    inform(security.SnmpEngine(OURS, 7, 0)),
    security.plain(9, True, security.SnmpEngine(b"", 0, 0), b"", b"\x30\x00"),
]
LISTENING = receiver()
MASTER = MasterKeys(EVA)


@given(st.binary(max_size=300))
def test_no_datagram_raises(datagram: bytes) -> None:
    """Whatever comes is refused under a fixed name, or it is a notification."""
    outcome = LISTENING.receive(datagram, 0)

    assert (outcome.rejected is None) or len(outcome.rejected) < 40


@given(
    st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 9)
)
def test_no_damaged_datagram_raises(valid: bytes, damage: list[tuple[int, int]], lost: int) -> None:
    """Nor what begins as a good one."""
    octets = bytearray(valid)
    for position, octet in damage:
        octets[position % len(octets)] = octet
    outcome = LISTENING.receive(bytes(octets[: len(octets) - lost]), 0)

    assert isinstance(outcome, DatagramResult)


@given(st.binary(max_size=120), st.booleans())
def test_nothing_raises_that_a_key_holder_sends(scoped: bytes, reportable: bool) -> None:
    """What is inside is as hostile as what is outside."""
    engine = security.SnmpEngine(OURS, 7, 0) if reportable else ENGINE
    inside = security.scoped_pdu(b"", b"", scoped)
    outcome = LISTENING.receive(security.seal(9, reportable, engine, b"eva", MASTER.at(engine.engine_id), inside), 0)

    assert isinstance(outcome, DatagramResult)


@asynccontextmanager
async def listening(where: tuple[str, int] | socket.socket) -> AsyncIterator[tuple[Listener, int, list[Trap]]]:
    traps: list[Trap] = []
    listener = Listener([COMMUNITY], [EVA], traps.append, OURS, 7)
    port = await listener.start(where)
    try:
        yield listener, port, traps
    finally:
        await listener.stop()


async def send(port: int, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, ("127.0.0.1", port))
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_a_trap_has_its_senders_address_and_our_clock() -> None:
    """On the port that was asked for or found."""
    async with listening(("127.0.0.1", 0)) as (_, port, traps):
        await send(port, v2c(pdu(PduType.TRAP, 5, VALUES)))

    (trap,) = traps
    assert (trap.address, trap.oid, trap.uptime_ticks, trap.variables) == ("127.0.0.1", ALARM, 4_200, ((SEVERITY, 2),))
    assert trap.boottime_ns > 0


async def test_a_socket_of_both_families_names_ipv4_as_such() -> None:
    """systemd binds [::], and the agent is configured as 10.0.0.1."""
    bound = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    bound.bind(("::", 0))
    async with listening(bound) as (_, port, traps):
        await send(port, v2c(pdu(PduType.TRAP, 5, VALUES)))

    assert [trap.address for trap in traps] == ["127.0.0.1"]
    assert bound.fileno() == -1


async def test_a_storm_is_counted_and_the_refused_are() -> None:
    """By address and by reason."""
    async with listening(("127.0.0.1", 0)) as (listener, port, traps):
        await send(port, *[b"storm"] * (BURST - 1), *[v2c(pdu(PduType.TRAP, 5, VALUES))] * 30)

        assert len(traps) + listener.rejected["malformed message"] + listener.suppressed["127.0.0.1"] == BURST + 29
        assert listener.rejected == {"malformed message": BURST - 1}
        assert 1 <= len(traps) < 30


async def test_a_port_that_is_taken() -> None:
    """The error names the port."""
    async with listening(("127.0.0.1", 0)) as (_, port, _traps):
        second = Listener([], [], lambda _: None, OURS, 7)
        with pytest.raises(Unreachable, match=rf"cannot receive traps on UDP 127\.0\.0\.1:{port}: .*in use"):
            await second.start(("127.0.0.1", port))
        await second.stop()
