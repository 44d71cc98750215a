"""SNMPv3 sessions with an agent that reboots, is replaced, refuses, or lies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fake_clocks import FakeClocks
from hypothesis import given
from hypothesis import strategies as st
from snmp_scripted import DESCRIPTION, ScriptedAgent, outcome_of, pdu, running_agent, session_with, texts

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import Session, User, ber, security
from timesyncd.snmp.messages import Pdu, PduType
from timesyncd.snmp.security import MasterKeys
from timesyncd.snmp.transport import AgentTransport, SharedSocket, UserAgent, _Peer

EVA = User("eva", "sha256", "a pass phrase", "aes128", "another phrase")
MASTER = MasterKeys(EVA)
OBJECT_ID = (*DESCRIPTION[:-1], 2)
WANTED = {DESCRIPTION: {(0,): b"device"}}


async def read(session: Session) -> bool:
    return await session.get([DESCRIPTION]) == WANTED


@asynccontextmanager
async def agent_with_clocks(agent: ScriptedAgent) -> AsyncIterator[tuple[Session, list[bytes], FakeClocks]]:
    clocks = FakeClocks()
    async with running_agent(agent.answer) as (port, received):
        endpoint = SharedSocket.acquire(2)
        line = AgentTransport(endpoint, ("127.0.0.1", port), 0.1, 1)
        session = Session(UserAgent(line, EVA, clocks), endpoint, "device")
        try:
            yield session, received, clocks
        finally:
            session.close()


async def test_three_exchanges_and_then_one() -> None:
    """Discovery, the agent's clock, the answer; after that an answer a request."""
    async with session_with(EVA, ScriptedAgent(EVA).answer) as (session, received):
        assert await read(session)
        assert len(received) == 3
        assert await read(session)
        assert len(received) == 4


async def test_nothing_readable_is_sent() -> None:
    """No request is unencrypted, and none contains a pass phrase."""
    async with session_with(EVA, ScriptedAgent(EVA).answer) as (session, received):
        await read(session)

    flags = [security.parse(datagram).flags for datagram in received]
    assert flags == [security.REPORTABLE, *[security.REPORTABLE | security.AUTH | security.PRIV] * 2]


async def test_the_announced_size_is_that_of_one_frame() -> None:
    """1,472 octets: an agent that may answer more sends fragments, which many networks drop."""
    async with session_with(EVA, ScriptedAgent(EVA).answer) as (session, received):
        await read(session)

    sizes = [octets_of_header(datagram) for datagram in received]
    assert sizes == [1_472] * 3


def octets_of_header(datagram: bytes) -> int:
    message = ber.Reader(datagram).enter(ber.SEQUENCE, "a message")
    message.integer("the version", 3, 3)
    header = message.enter(ber.SEQUENCE, "the v3 header")
    header.integer("msgID", 0, 2**31 - 1)
    return header.integer("msgMaxSize", 0, 2**31 - 1)


async def test_an_agent_that_rebooted_is_read_at_once() -> None:
    """Its boots went up and its time restarted."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, agent.answer) as (session, received):
        await read(session)
        agent.engine = replace(agent.engine, boots=4, time=0)

        assert await read(session)
        assert len(received) == 5


async def test_an_agent_reset_in_the_factory_is_read_at_once() -> None:
    """Its boots counter went back, which only a signed, current report can prove."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, agent.answer) as (session, _):
        assert session.verified_engine() is None
        await read(session)
        agent.engine = replace(agent.engine, boots=1, time=0)

        assert await read(session)
        assert session.verified_engine() == (agent.engine.engine_id, 1, 0)


async def test_another_agent_at_the_same_address_is_read_at_once() -> None:
    """Its engine ID is another, and so are the keys."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, agent.answer) as (session, received):
        await read(session)
        agent.engine = security.SnmpEngine(b"another engine", 1, 5)

        assert await read(session)
        assert len(received) == 7


@pytest.mark.parametrize("jump_s", [-900, 900])
async def test_a_jump_of_the_agents_clock(jump_s: int) -> None:
    """Forth or back, it costs one exchange."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, agent.answer) as (session, received):
        await read(session)
        agent.engine = replace(agent.engine, time=agent.engine.time + jump_s)

        assert await read(session)
        assert len(received) == 5


async def test_a_step_of_our_own_clock_costs_nothing() -> None:
    """The agent's clock is counted on by CLOCK_BOOTTIME; after a week's silence it is still known."""
    agent = ScriptedAgent(EVA)
    async with agent_with_clocks(agent) as (session, received, clocks):
        await read(session)
        clocks.step(-86_400 * NS_PER_S)
        clocks.advance(604_800 * NS_PER_S)
        agent.engine = replace(agent.engine, time=agent.engine.time + 604_800)

        assert await read(session)
        assert len(received) == 4


async def test_two_agents_with_one_user_name_and_different_phrases() -> None:
    """Keys belong to a session, and not to a name."""
    other = replace(EVA, auth_pass="quite other", priv_pass="words than those", auth="sha512", priv="aes256")
    async with (
        session_with(EVA, ScriptedAgent(EVA).answer) as (one, _),
        session_with(other, ScriptedAgent(other).answer) as (two, _),
    ):
        assert [await read(one), await read(two), await read(one)] == [True] * 3


async def test_no_answer_to_discovery() -> None:
    """Nothing is known then but that."""
    async with session_with(EVA, lambda _: []) as (session, _):
        with pytest.raises(Unreachable, match="no SNMPv3 response: the device is down"):
            await read(session)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "max"}, "unknown user name"),
        ({"auth_pass": "not this one"}, "wrong digest: the authentication pass phrase or protocol is wrong"),
        ({"auth": "sha512"}, "wrong digest"),
        (
            {"priv_pass": "not this one"},
            "does not respond to encrypted requests: the privacy pass phrase or protocol is wrong",
        ),
        ({"priv": "aes256"}, "does not respond to encrypted requests"),
    ],
)
async def test_each_wrong_credential_has_its_name(wrong: dict[str, str], message: str) -> None:
    """It is Refused, and the text holds no secret."""
    user = replace(EVA, **wrong)  # type: ignore[arg-type]
    async with session_with(user, ScriptedAgent(EVA).answer) as (session, _):
        with pytest.raises(Refused, match=message) as raised:
            await read(session)

    assert user.auth_pass not in str(raised.value) + repr(user)
    assert user.priv_pass not in str(raised.value) + repr(user)


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        (security.UNSUPPORTED_LEVEL, "unsupported security level: the agent does not permit authPriv"),
        (security.DECRYPTION_ERROR, "decryption error: the privacy pass phrase"),
        (security.UNKNOWN_ENGINE_ID, "unknown engine ID: the agent does not accept the engine ID that it reported"),
        ((1, 3, 6, 1, 6, 3, 11, 2, 1, 3, 0), "unknown PDU handler"),
        ((1, 3, 6, 1, 6, 3, 12, 1, 5, 0), "unknown context"),
        ((1, 3, 6, 1, 9, 0), "a report of 1.3.6.1.9.0, which SNMPv3 does not define"),
    ],
)
async def test_each_report_has_its_name(counter: tuple[int, ...], message: str) -> None:
    """As RFC 3414, RFC 3412 and RFC 3413 count them."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda message, _: agent.report(message, counter)
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Refused, match=message):
            await read(session)


async def test_an_agent_that_is_never_in_its_own_time_window() -> None:
    """The rounds end, and it is reported by name."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda message, _: agent.report(message, security.NOT_IN_TIME_WINDOW, signed=True)
    async with session_with(EVA, agent.answer) as (session, received):
        with pytest.raises(Refused, match="not in time window: repeatedly"):
            await read(session)

    assert len(received) == 5


async def test_silence_to_an_object_is_no_wrong_pass_phrase() -> None:
    """The agent decrypts a request for sysUpTime, and ignores those that name an object that it lacks."""
    agent, ignored = ScriptedAgent(EVA), []

    def response(message: security.UsmMessage, request: Pdu) -> bytes:
        ignored.append(any(varbind.oid == (*DESCRIPTION, 0) for varbind in request.varbinds))
        return agent.response(message, request)

    def answer(datagram: bytes) -> list[bytes]:
        ignored[:] = [False]
        replies = agent.answer(datagram)
        return [] if ignored[-1] else replies

    agent.reply = response
    async with session_with(EVA, answer) as (session, _):
        rows = await outcome_of(session.get([DESCRIPTION, OBJECT_ID]))

    assert rows == {OBJECT_ID: {(0,): b"device"}}


async def test_an_unsigned_clock_is_not_believed() -> None:
    """Anybody could send it."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda message, _: agent.report(message, security.NOT_IN_TIME_WINDOW)
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Malformed, match="the report 'not in time window' is unsigned"):
            await read(session)


async def test_an_unsigned_response_is_not_believed() -> None:
    """Nor is one that is signed and not encrypted."""
    agent = ScriptedAgent(EVA)

    async def refused(message: str) -> None:
        async with session_with(EVA, agent.answer) as (session, _):
            with pytest.raises(Malformed, match=message):
                await read(session)

    agent.reply = lambda message, request: security.plain(
        message.number, False, agent.engine, message.user, security.scoped_pdu(b"", b"", texts(request))
    )
    await refused("unencrypted RESPONSE")
    agent.reply = lambda message, request: security.signed(
        message.number, agent.engine, message.user, agent.keys, security.scoped_pdu(b"", b"", texts(request))
    )
    await refused("unencrypted RESPONSE")


async def test_a_response_signed_with_another_key() -> None:
    """The digest or engine ID is not the agent's."""
    agent = ScriptedAgent(EVA)
    keys = MasterKeys(replace(EVA, auth_pass="somebody else")).at(agent.engine.engine_id)
    agent.reply = lambda message, request: security.seal(
        message.number, False, agent.engine, message.user, keys, security.scoped_pdu(b"", b"", texts(request))
    )
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Malformed, match="digest or engine ID is not the agent's"):
            await read(session)


async def test_a_response_of_another_engine() -> None:
    """Though it is signed with this one's key."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda message, request: security.seal(
        message.number,
        False,
        replace(agent.engine, engine_id=b"another"),
        message.user,
        agent.keys,
        security.scoped_pdu(b"", b"", texts(request)),
    )
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Malformed, match="digest or engine ID is not the agent's"):
            await read(session)


async def test_octets_after_the_message_cost_nothing() -> None:
    """The digest covers the message and not what an agent pads its datagram with."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, lambda datagram: [reply + bytes(9) for reply in agent.answer(datagram)]) as (
        session,
        _,
    ):
        assert await outcome_of(read(session)) is True


async def test_a_response_to_another_request() -> None:
    """The message fits and what it carries does not."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda message, _: agent.seal(message.number, pdu(PduType.RESPONSE, 5, []))
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Malformed, match="request-id 5 instead of"):
            await read(session)


async def test_a_response_older_than_the_agents_clock() -> None:
    """RFC 3414 section 3.2, 7b."""
    agent = ScriptedAgent(EVA)
    old = replace(agent.engine, time=agent.engine.time - 500)
    agent.reply = lambda message, request: security.seal(
        message.number, False, old, message.user, agent.keys, security.scoped_pdu(b"", b"", texts(request))
    )
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Refused, match="not in time window"):
            await read(session)


async def test_the_next_request_after_a_failure_starts_with_discovery() -> None:
    """Whatever was wrong, it is not kept."""
    agent = ScriptedAgent(EVA)
    async with session_with(EVA, agent.answer) as (session, received):
        agent.reply = lambda message, _: agent.report(message, security.DECRYPTION_ERROR)
        with pytest.raises(Refused):
            await read(session)
        agent.reply = agent.response

        assert await read(session)
        assert len(received) == 6


async def test_an_engine_id_of_four_octets() -> None:
    """RFC 3411 wants 5 octets; agents with the enterprise's four alone exist, and their keys are as good."""
    agent = ScriptedAgent(EVA)
    agent.engine = security.SnmpEngine(bytes.fromhex("80002342"), 1, 1)
    async with session_with(EVA, agent.answer) as (session, _):
        assert await outcome_of(read(session)) is True


@pytest.mark.parametrize("octets", [3, 33])
async def test_an_engine_id_that_is_none(octets: int) -> None:
    """It has 4 to 32 octets."""
    agent = ScriptedAgent(EVA)
    agent.engine = security.SnmpEngine(bytes(octets), 1, 1)
    async with session_with(EVA, agent.answer) as (session, _):
        with pytest.raises(Malformed, match=f"the engine ID has {octets} octets"):
            await read(session)


async def test_a_latched_boots_counter_is_refused() -> None:
    """RFC 3414 section 2.2.2: at 2,147,483,647 it no longer counts, so recorded messages would be accepted for ever."""
    agent = ScriptedAgent(EVA)
    agent.engine = replace(agent.engine, boots=2**31 - 1)
    async with session_with(EVA, agent.answer) as (session, _):
        failed = await outcome_of(read(session))

    assert isinstance(failed, Refused)
    assert "snmpEngineBoots has reached 2147483647" in str(failed)


async def test_a_response_that_latches_the_boots_counter_is_refused() -> None:
    """However it is signed."""
    agent = ScriptedAgent(EVA)
    latched = replace(agent.engine, boots=2**31 - 1)
    agent.reply = lambda message, request: security.seal(
        message.number, False, latched, message.user, agent.keys,
        security.scoped_pdu(agent.engine.engine_id, b"", texts(request)),
    )  # fmt: skip
    async with session_with(EVA, agent.answer) as (session, _):
        failed = await outcome_of(read(session))

    assert isinstance(failed, Refused)


@pytest.mark.parametrize(
    ("user", "engine_id", "context", "message"),
    [
        (b"max", None, b"", "the response names the user b'max' instead of b'eva'"),
        (b"eva", b"another", b"", "the response names another engine as its context"),
        (b"eva", None, b"other", "the response names the context b'other' instead of b''"),
    ],
)
async def test_a_response_that_names_another_user_engine_or_context(
    user: bytes, engine_id: bytes | None, context: bytes, message: str
) -> None:
    """It is no answer to the request, although its signature is right (RFC 3412 section 7.2.12)."""
    agent = ScriptedAgent(EVA)
    agent.reply = lambda received, request: security.seal(
        received.number, False, agent.engine, user, agent.keys,
        security.scoped_pdu(agent.engine.engine_id if engine_id is None else engine_id, context, texts(request)),
    )  # fmt: skip
    async with session_with(EVA, agent.answer) as (session, _):
        failed = await outcome_of(read(session))

    assert isinstance(failed, Malformed)
    assert message in str(failed)


async def test_a_signed_report_that_names_another_user() -> None:
    """It does not set the clock."""
    agent = ScriptedAgent(EVA)

    def answer(datagram: bytes) -> list[bytes]:
        message = security.parse(datagram)
        if not message.flags & security.AUTH:
            return agent.answer(datagram)
        other = replace(message, user=b"max")
        return [security.report(other, agent.engine, security.NOT_IN_TIME_WINDOW, 1, agent.keys)]

    async with session_with(EVA, answer) as (session, _):
        failed = await outcome_of(read(session))

    assert isinstance(failed, Malformed)
    assert "names the user b'max'" in str(failed)


@given(st.binary(max_size=120), st.booleans())
def test_any_message_with_the_right_key(scoped: bytes, wrapped: bool) -> None:
    """It is a Response, a Report, or a SourceError."""
    engine = security.SnmpEngine(b"agent engine", 3, 1_000)
    inside = security.scoped_pdu(b"", b"", scoped) if wrapped else scoped
    datagram = security.seal(7, False, engine, b"eva", MASTER.at(engine.engine_id), inside)
    peer = _Peer(engine.engine_id, MASTER.at(engine.engine_id), FakeClocks())
    try:
        found = peer.open(security.parse(datagram))
    except SourceError:
        return

    assert found.kind in (PduType.RESPONSE, PduType.REPORT)


@given(st.binary(max_size=200))
def test_any_octets_as_a_message(datagram: bytes) -> None:
    """It is parsed, or it is a SourceError."""
    try:
        message = security.parse(datagram)
    except SourceError:
        return

    assert message.datagram == datagram
