"""What the simulated agent makes of datagrams: answers, refusals, reports, silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.simulation.grandmaster import mib as grandmaster_mib
from timesyncd.simulation.grandmaster.agent import SnmpAgent, respond
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.mib import RecordedMib
from timesyncd.simulation.grandmaster.wire import NOT_WRITABLE, NULL, PduKind, UsmUser, WirePdu
from timesyncd.snmp import ber, messages, security
from timesyncd.snmp.messages import Pdu, PduType, Varbind, decode_pdu, encode_request
from timesyncd.snmp.security import LocalizedKeys, MasterKeys
from timesyncd.snmp.values import Oid, User

AT_S = 1_772_600_767.0
USER = User("watcher", "sha256", "green-window", "aes128", "yellow-door", context="lab")
SYS_NAME: Oid = (1, 3, 6, 1, 2, 1, 1, 5, 0)
#: The same user, as the agent has it.
KNOWN = UsmUser("watcher", "sha256", "green-window", "aes128", "yellow-door", context="lab")
AGENT = SnmpAgent(Device(clock=lambda: AT_S), user=KNOWN)
ENGINE = security.SnmpEngine(AGENT.engine.engine_id, AGENT.engine.boots, AGENT.engine.time)
QUESTION = encode_request(PduType.GET, 4711, [SYS_NAME])


def bulk(after: Sequence[Oid], non_repeaters: int = 0) -> WirePdu:
    return WirePdu(PduKind.GET_BULK, 1, non_repeaters, 10, [(oid, NULL) for oid in after])


@pytest.mark.parametrize(
    ("after", "non_repeaters", "found"),
    [([0, 4, 9], 1, [1]), ([0, 4], 0, [1, 5]), ([0], 0, [1, 2])],
)
def test_getbulk_fills_one_datagram(after: list[int], non_repeaters: int, found: list[int]) -> None:
    """Repetitions stop where a datagram is full, but one is always answered; non-repeaters come first and once."""
    mib = RecordedMib(((1, 3, 6, n), grandmaster_mib.octets(bytes(500))) for n in range(1, 20))
    answer = respond(bulk([(1, 3, 6, n) for n in after], non_repeaters), mib)

    assert answer is not None
    assert [oid[-1] for oid, _ in answer.varbinds] == found


def test_getbulk_answers_once_whatever_the_size() -> None:
    """One object that is larger than a datagram on Ethernet is sent all the same."""
    mib = RecordedMib([((1, 3, 6, 1), grandmaster_mib.octets(bytes(2_000)))])
    answer = respond(bulk([(1, 3, 6)]), mib)

    assert answer is not None
    assert [oid for oid, _ in answer.varbinds] == [(1, 3, 6, 1)]


@given(st.integers(0, 60), st.integers(0, 2**64 - 1))
def test_getbulk_never_fills_more_than_a_datagram(length: int, number: int) -> None:
    """Whatever the values are, an answer of several fits into Ethernet's 1 500 octets."""
    values = [
        grandmaster_mib.octets(bytes(length)),
        grandmaster_mib.counter64(number),
        grandmaster_mib.object_id((1, 3, *range(length))),
    ]
    mib = RecordedMib(((1, 3, 6, *range(100), n), values[n % 3]) for n in range(50))
    agent = SnmpAgent(Device(clock=lambda: AT_S), mib=mib)
    answer = agent.answer(messages.message(b"public", encode_request(PduType.GET_BULK, 1, [(1, 3)], 50)))

    assert answer is not None
    assert len(answer) <= 1_472


def keys_at(user: User, engine_id: bytes) -> LocalizedKeys:
    return MasterKeys(user).at(engine_id)


def test_getbulk_leaves_room_for_the_longest_header() -> None:
    """With the longest digest, user name and context an answer still fits into Ethernet's 1 500 octets."""
    user = User("n" * 32, "sha512", "green-window", "aes256", "yellow-door", "c" * 32)
    known = UsmUser(user.name, user.auth, user.auth_pass, user.priv, user.priv_pass, user.context)
    mib = RecordedMib(((1, 3, 6, n), grandmaster_mib.text("")) for n in range(500))
    agent = SnmpAgent(Device(clock=lambda: AT_S), user=known, mib=mib)
    asked = encode_request(PduType.GET_BULK, 1, [(1, 3)], 500)
    answer = agent.answer(sealed(asked, user, keys_of=user))

    assert answer is not None
    assert 1_400 < len(answer) <= 1_472


def sealed(asked: bytes, user: User = USER, engine: security.SnmpEngine = ENGINE, keys_of: User = USER) -> bytes:
    scoped = security.scoped_pdu(b"", user.context.encode(), asked)
    return security.seal(7, True, engine, user.name.encode(), keys_at(keys_of, engine.engine_id), scoped)


def opened(answer: bytes | None) -> Pdu:
    assert answer is not None
    message = security.parse(answer)
    return decode_pdu(security.open_scoped(message.scoped(keys_at(USER, AGENT.engine.engine_id))))


DISCOVERY = security.plain(7, True, security.SnmpEngine(b"", 0, 0), b"", security.scoped_pdu(b"", b"", QUESTION))


@pytest.mark.parametrize(
    ("question", "counter", "request_number"),
    [
        (sealed(QUESTION, engine=replace(ENGINE, engine_id=b"other")), security.UNKNOWN_ENGINE_ID, 0),
        (DISCOVERY, security.UNKNOWN_ENGINE_ID, 4711),
        (sealed(QUESTION, replace(USER, name="eva")), security.UNKNOWN_USER, 0),
        (sealed(QUESTION, keys_of=replace(USER, auth_pass="another-one")), security.WRONG_DIGEST, 0),
        (sealed(QUESTION, engine=replace(ENGINE, boots=1)), security.NOT_IN_TIME_WINDOW, 0),
        (sealed(QUESTION, keys_of=replace(USER, priv_pass="another-one")), security.DECRYPTION_ERROR, 0),
        (sealed(QUESTION, replace(USER, context="")), security.UNKNOWN_CONTEXT, 4711),
    ],
    ids=["other engine", "discovery", "user", "digest", "time window", "privacy key", "context"],
)
def test_each_fault_has_its_report(question: bytes, counter: Oid, request_number: int) -> None:
    """It counts the fault, and has the request's number wherever that can be read."""
    agent = SnmpAgent(Device(clock=lambda: AT_S), user=KNOWN)
    agent.answer(question)
    report = opened(agent.answer(question))

    assert (report.kind, report.number) == (PduType.REPORT, request_number)
    assert [(varbind.oid, varbind.raw) for varbind in report.varbinds] == [(counter, 2)]


def test_only_the_time_report_is_signed() -> None:
    """A client with the right key and the wrong time must be able to trust the report; no other client needs to."""
    late = AGENT.answer(sealed(QUESTION, engine=replace(ENGINE, boots=1)))
    unknown = AGENT.answer(sealed(QUESTION, replace(USER, name="eva")))

    assert late is not None and unknown is not None
    assert security.parse(late).verify(keys_at(USER, AGENT.engine.engine_id))
    assert security.parse(unknown).flags == 0


def test_a_set_is_refused_with_what_it_asked() -> None:
    """notWritable for the first variable, and the same variables back (RFC 3416 section 4.2.5)."""
    request = messages.message(b"public", bytes((PduKind.SET,)) + QUESTION[1:])
    answer = AGENT.answer(request)

    assert answer is not None
    assert decode_pdu(messages.parse(answer)[1]) == Pdu(
        PduType.RESPONSE, 4711, NOT_WRITABLE, 1, [Varbind(SYS_NAME, ber.NULL, None)]
    )


@pytest.mark.parametrize("kind", [PduType.RESPONSE, PduType.REPORT, PduType.TRAP, PduType.INFORM])
def test_what_is_no_request_gets_silence(kind: PduType) -> None:
    """Else two agents could answer each other for ever."""
    assert AGENT.answer(messages.message(b"public", bytes((kind,)) + QUESTION[1:])) is None


#: A good one of each version.
QUESTIONS = [messages.message(b"public", QUESTION), sealed(QUESTION)]


@pytest.mark.parametrize("question", QUESTIONS, ids=["v2c", "v3"])
def test_a_good_question_is_answered(question: bytes) -> None:
    """Otherwise the next test would prove nothing."""
    answer = SnmpAgent(Device(clock=lambda: AT_S), user=KNOWN).answer(question)

    assert answer is not None
    assert len(answer) > len(question)


@given(st.sampled_from(QUESTIONS), st.data())
def test_no_datagram_makes_the_agent_fail(question: bytes, data: st.DataObject) -> None:
    """A question with octets changed, left out or put in gets an answer, a Report or silence."""
    place = data.draw(st.integers(0, len(question)))
    octets = data.draw(st.binary(max_size=4))
    gone = data.draw(st.integers(0, 8))
    answer = AGENT.answer(question[:place] + octets + question[place + gone :])

    assert answer is None or answer[0] == ber.SEQUENCE
