"""A session with agents that respond wrongly or not at all."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snmp_scripted import (
    DESCRIPTION,
    SYSTEM,
    TEXT,
    outcome_of,
    pdu,
    running_agent,
    session_with,
    texts,
    v2c,
    v2c_request,
)

from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.snmp import Community, Oid, Session, adaptive, ber, transport
from timesyncd.snmp.messages import Pdu, PduType
from timesyncd.snmp.transport import number_of

COMMUNITY = Community("fifth-floor")
TABLE: Oid = (1, 3, 6, 1, 2, 1, 2, 2, 1)
END = b"\x82\x00"


def responses(body: Callable[[Pdu], bytes]) -> Callable[[bytes], Iterable[bytes]]:
    return lambda datagram: [v2c(body(v2c_request(datagram)))]


def after(step: Callable[[Oid], Oid]) -> Callable[[bytes], Iterable[bytes]]:
    """An agent whose next object after any is `step` of it, in one row for each column asked."""
    return responses(
        lambda request: pdu(
            PduType.RESPONSE, request.number, [(step(varbind.oid), TEXT) for varbind in request.varbinds]
        )
    )


async def test_requested_objects_are_returned() -> None:
    """Scalars by their OID without the 0, with index (0,)."""
    async with session_with(COMMUNITY, responses(texts)) as (session, _):
        rows = await session.get([DESCRIPTION])

    assert rows == {DESCRIPTION: {(0,): b"device"}}


@pytest.mark.parametrize("absent", [b"\x80\x00", b"\x81\x00"])
async def test_what_the_agent_does_not_have_is_left_out(absent: bytes) -> None:
    """noSuchObject and noSuchInstance are no faults."""
    body = responses(lambda request: pdu(PduType.RESPONSE, request.number, [((*DESCRIPTION, 0), absent)]))
    async with session_with(COMMUNITY, body) as (session, _):
        rows = await session.get([DESCRIPTION])

    assert rows == {}


async def test_silence_names_what_it_may_be() -> None:
    """v2c cannot distinguish a wrong community from an agent that is down, and the error states both."""
    async with session_with(COMMUNITY, lambda _: []) as (session, _):
        with pytest.raises(Unreachable, match=r"^127\.0\.0\.1:\d+: no SNMP response.*community is wrong"):
            await session.get([DESCRIPTION])


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda _: b"HTTP/1.1 400 Bad Request", Malformed, "not SNMP .*: 24 octets that begin 48 54 54 50"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number ^ 1, [])), Malformed, "response to no pending request"),
        (lambda r: v2c(texts(r))[:-3], Malformed, "beyond the message"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [((*DESCRIPTION, 0), b"\x04\x05unit")])), Malformed, "beyond"),
        (lambda r: v2c(pdu(PduType.TRAP, r.number, [])), Malformed, "TRAP arrived instead of a RESPONSE"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [])), Malformed, "other objects"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [((*SYSTEM, 2, 0), TEXT)])), Malformed, "other objects"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [], 99)), Malformed, "error status 99"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [], 1)), Refused, "tooBig"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [], 5, 1)), Refused, r"genErr for 1\.3\.6\.1\.2\.1\.1\.1\.0"),
        (lambda r: v2c(pdu(PduType.RESPONSE, r.number, [], 16, 7)), Refused, "authorizationError$"),
    ],
)
async def test_each_bad_answer_has_its_name(
    reply: Callable[[Pdu], bytes], error: type[SourceError], message: str
) -> None:
    """And the text begins with the device."""
    async with session_with(COMMUNITY, lambda datagram: [reply(v2c_request(datagram))]) as (session, _):
        with pytest.raises(error, match=message) as raised:
            await session.get([DESCRIPTION])

    assert str(raised.value).startswith("127.0.0.1:")


#: A value that SNMP does not define or does not permit, with its name.
ODD_VALUES = {
    "empty OID": "0600",
    "NULL": "0500",
    "BIT STRING": "030101",
    "NsapAddress": "450101",
    "UInteger32": "470101",
    "INTEGER 2^31": "02050080000000",
    "Gauge32 2^32": "42050100000000",
    "noSuchInstance with a body": "810100",
    "IpAddress of 16 octets": "4010" + "00" * 16,
}


@pytest.mark.parametrize("odd", ODD_VALUES.values(), ids=ODD_VALUES)
async def test_an_odd_value_costs_no_other(odd: str) -> None:
    """It is kept as opaque octets, the whole element, between good ones; so it is in a table."""
    element = bytes.fromhex(odd)

    def body(request: Pdu) -> bytes:
        if request.kind is PduType.GET:
            values = [TEXT, element, TEXT]
            return pdu(PduType.RESPONSE, request.number, zip([v.oid for v in request.varbinds], values, strict=True))
        (asked,) = (varbind.oid for varbind in request.varbinds)
        rows = [((*TABLE, 1, 1), TEXT), ((*TABLE, 1, 2), element), ((*TABLE, 1, 3), TEXT), ((*TABLE, 2, 1), TEXT)]
        return pdu(PduType.RESPONSE, request.number, [row for row in rows if row[0] > asked])

    scalars = [(*SYSTEM, arc) for arc in (1, 2, 5)]
    async with session_with(COMMUNITY, responses(body)) as (session, _):
        rows = await outcome_of(session.get(scalars))
        walked = await outcome_of(session.walk([(*TABLE, 1)], 10))

    assert rows == {oid: {(0,): raw} for oid, raw in zip(scalars, (b"device", element, b"device"), strict=True)}
    assert walked == ({(*TABLE, 1): {(1,): b"device", (2,): element, (3,): b"device"}}, [])
    assert [type(rows[oid][0,]) is bytes for oid in scalars] == [True, False, True]


async def test_octets_after_the_message_cost_nothing() -> None:
    """Some agents pad their datagrams; the message itself is whole."""
    async with session_with(COMMUNITY, lambda d: [v2c(texts(v2c_request(d))) + bytes(9)]) as (session, _):
        rows = await outcome_of(session.get([DESCRIPTION]))

    assert rows == {DESCRIPTION: {(0,): b"device"}}


async def test_a_response_from_another_address_is_an_error() -> None:
    """An agent with several addresses answers from the wrong one: the request fails, and the reason is named."""
    asking: list[Session] = []

    def answer(datagram: bytes) -> list[bytes]:
        port = asking[0]._socket._socket.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
            elsewhere.sendto(v2c(texts(v2c_request(datagram))), ("127.0.0.1", port))
        return []

    async with session_with(COMMUNITY, answer) as (session, _):
        asking.append(session)
        with pytest.raises(Malformed, match=r"the response arrived from another address, 127\.0\.0\.1:\d+"):
            await session.get([DESCRIPTION])


async def test_another_hosts_datagrams_do_not_change_the_error() -> None:
    """Only what the device itself sends is held against it."""
    asking: list[Session] = []

    def answer(_: bytes) -> list[bytes]:
        port = asking[0]._socket._socket.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"HTTP/1.1 400 Bad Request", ("127.0.0.1", port))
        return []

    async with session_with(COMMUNITY, answer) as (session, _):
        asking.append(session)
        with pytest.raises(Unreachable, match="no SNMP response"):
            await session.get([DESCRIPTION])


async def test_a_late_answer_to_another_request_does_not_spoil_this_one() -> None:
    """What fits no request is remembered only for the text of a failure."""
    async with session_with(
        COMMUNITY, lambda d: [v2c(pdu(PduType.RESPONSE, 5, [])), b"\x30", v2c(texts(v2c_request(d)))]
    ) as (session, _):
        rows = await session.get([DESCRIPTION])

    assert rows == {DESCRIPTION: {(0,): b"device"}}


async def test_a_duplicate_response() -> None:
    """The network may double it: the second one is nothing."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with session_with(COMMUNITY, lambda d: [v2c(texts(v2c_request(d)))] * 3) as (session, _):
        rows = [await session.get([DESCRIPTION]) for _ in range(3)]

    assert rows == [{DESCRIPTION: {(0,): b"device"}}] * 3
    assert faults == []


async def test_an_answer_that_is_too_big_is_asked_for_in_halves() -> None:
    """Agents that send no more than 484 octets can be read too."""

    def small(request: Pdu) -> bytes:
        return texts(request) if len(request.varbinds) <= 2 else pdu(PduType.RESPONSE, request.number, [], 1)

    scalars = [(*SYSTEM, arc) for arc in range(1, 8)]
    async with session_with(COMMUNITY, responses(small)) as (session, _):
        rows = await session.get(scalars)

    assert list(rows) == scalars


def table(rows: int, most: int, silent: bool) -> Callable[[bytes], Iterable[bytes]]:
    """An agent with a table that gives at most `most` variables at once, and says tooBig or nothing to a larger request."""

    def answer(datagram: bytes) -> list[bytes]:
        request = v2c_request(datagram)
        if request.kind is PduType.GET:
            return [v2c(texts(request))]
        if request.position * len(request.varbinds) > most:
            return [] if silent else [v2c(pdu(PduType.RESPONSE, request.number, [], 1))]
        columns = [varbind.oid for varbind in request.varbinds]
        found = [following(oid, step) for step in range(1, request.position + 1) for oid in columns]
        return [v2c(pdu(PduType.RESPONSE, request.number, found))]

    def following(oid: Oid, step: int) -> tuple[Oid, bytes]:
        column, row = oid[: len(TABLE) + 1], (*oid, 0)[len(TABLE) + 1]
        return ((*column, row + step), TEXT) if row + step <= rows else ((*TABLE, 99, row + step), TEXT)

    return answer


COLUMNS = [(*TABLE, column) for column in range(1, 5)]


@pytest.mark.parametrize("most", [12, 10, 4, 1])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
async def test_a_table_that_is_too_big_is_read_in_smaller_parts(most: int, silent: bool, columns: int) -> None:
    """Whether the agent says tooBig or nothing: fewer rows at once, at last one, and at the very last fewer columns."""
    async with session_with(COMMUNITY, table(30, most, silent)) as (session, received):
        read = await outcome_of(session.walk(COLUMNS[:columns], 100))
        before = len(received)
        again = await outcome_of(session.walk(COLUMNS[:columns], 100))

    assert read == ({column: {(row,): b"device" for row in range(1, 31)} for column in COLUMNS[:columns]}, [])
    assert again == read
    assert len(received) - before <= before


@pytest.mark.parametrize("silent", [False, True])
async def test_a_subtree_that_is_too_big_is_read_in_smaller_parts(silent: bool) -> None:
    """A recording walks whole subtrees."""
    async with session_with(COMMUNITY, table(30, 9, silent)) as (session, _):
        found = await outcome_of(collected(session, (*TABLE, 1)))

    assert found == [(*TABLE, 1, row) for row in range(1, 31)]


async def collected(session: Session, root: Oid) -> list[Oid]:
    return [oid async for oid, _, _ in session.walk_subtree(root, 1_000)]


def faulty(faults: dict[Oid, int], positioned: bool = True) -> Callable[[bytes], Iterable[bytes]]:
    """An agent with seven scalars and a table of five rows; a request that comes upon one of `faults` reports its error status."""
    served = [(*SYSTEM, arc, 0) for arc in range(1, 8)] + [(*column, row) for column in COLUMNS for row in range(1, 6)]

    def answer(datagram: bytes) -> list[bytes]:
        request = v2c_request(datagram)
        found = list(reached(request))
        for place, (oid, _) in enumerate(found):
            if oid in faults:
                position = place % len(request.varbinds) + 1 if positioned else 0
                echoed = [(varbind.oid, b"\x05\x00") for varbind in request.varbinds]
                return [v2c(pdu(PduType.RESPONSE, request.number, echoed, faults[oid], position))]
        return [v2c(pdu(PduType.RESPONSE, request.number, found))]

    def reached(request: Pdu) -> Iterable[tuple[Oid, bytes]]:
        if request.kind is PduType.GET:
            yield from ((varbind.oid, TEXT) for varbind in request.varbinds)
            return
        cursors = [varbind.oid for varbind in request.varbinds]
        for _ in range(request.position or 1):
            cursors = [min((oid for oid in (*served, *faults) if oid > cursor), default=BEYOND) for cursor in cursors]
            yield from ((oid, TEXT) for oid in cursors)

    return answer


BEYOND: Oid = (1, 3, 9)
NO_SUCH_NAME, GEN_ERR = 2, 5


@pytest.mark.parametrize("positioned", [True, False])
@pytest.mark.parametrize("failing", [(3,), (1, 7), (2, 3, 4)])
async def test_an_error_for_one_object_costs_that_object_alone(positioned: bool, failing: tuple[int, ...]) -> None:
    """Whether the agent names the object or not; the object has its reason."""
    faults = {(*SYSTEM, arc, 0): GEN_ERR for arc in failing}
    async with session_with(COMMUNITY, faulty(faults, positioned)) as (session, _):
        rows = await outcome_of(session.get([(*SYSTEM, arc) for arc in range(1, 8)]))

    assert rows == {(*SYSTEM, arc): {(0,): b"device"} for arc in range(1, 8) if arc not in failing}
    assert session.problems == {(*SYSTEM, arc): "the agent reports genErr" for arc in failing}


async def test_an_object_that_can_be_read_again_has_no_problem() -> None:
    """The reason goes with the fault."""
    faults = {(*SYSTEM, 3, 0): GEN_ERR}
    async with session_with(COMMUNITY, faulty(faults)) as (session, _):
        await outcome_of(session.get([(*SYSTEM, arc) for arc in (1, 3)]))
        faults.clear()
        await session.get([(*SYSTEM, arc) for arc in (1, 3)])

    assert session.problems == {}


async def test_no_such_name_is_no_fault() -> None:
    """Agents of SNMPv1's kind say so where SNMPv2 has noSuchObject."""
    faults = {(*SYSTEM, arc, 0): NO_SUCH_NAME for arc in (2, 6)}
    async with session_with(COMMUNITY, faulty(faults)) as (session, _):
        rows = await outcome_of(session.get([(*SYSTEM, arc) for arc in range(1, 8)]))
        alone = await outcome_of(session.get([(*SYSTEM, 2)]))

    assert rows == {(*SYSTEM, arc): {(0,): b"device"} for arc in (1, 3, 4, 5, 7)}
    assert (alone, session.problems) == ({}, {})


async def test_no_such_name_after_the_last_object_ends_a_probe() -> None:
    """There is nothing below that subtree; the others are known."""
    async with session_with(COMMUNITY, faulty({BEYOND: NO_SUCH_NAME})) as (session, _):
        below = await outcome_of(session.next_below([SYSTEM, (1, 3, 8), TABLE]))

    assert below == {SYSTEM: (*SYSTEM, 1, 0), (1, 3, 8): None, TABLE: (*TABLE, 1, 1)}


@pytest.mark.parametrize("positioned", [True, False])
@pytest.mark.parametrize("columns", [1, 4])
async def test_no_such_name_at_the_end_of_a_walk_ends_it(positioned: bool, columns: int) -> None:
    """Also where one row more than there are was requested: the rows before the end are read."""
    faults = {BEYOND: NO_SUCH_NAME}
    wanted = COLUMNS[4 - columns :]
    async with session_with(COMMUNITY, faulty(faults, positioned)) as (session, _):
        walked = await outcome_of(session.walk(wanted, 100))
        subtree = await outcome_of(collected(session, COLUMNS[-1]))

    assert walked == ({column: {(row,): b"device" for row in range(1, 6)} for column in wanted}, [])
    assert (subtree, session.problems) == ([(*COLUMNS[-1], row) for row in range(1, 6)], {})


@pytest.mark.parametrize("positioned", [True, False])
@pytest.mark.parametrize("row", [1, 3, 5])
async def test_an_error_for_one_cell_costs_that_cell_alone(positioned: bool, row: int) -> None:
    """The rows behind it are read, and so are the other columns; the column has its reason."""
    faults = {(*COLUMNS[1], row): GEN_ERR}
    async with session_with(COMMUNITY, faulty(faults, positioned)) as (session, _):
        walked = await outcome_of(session.walk(COLUMNS, 100))

    rows = walked[0] if isinstance(walked, tuple) else walked
    assert rows == {
        column: {(each,): b"device" for each in range(1, 6) if (*column, each) not in faults} for column in COLUMNS
    }
    assert list(session.problems) == [COLUMNS[1]]
    assert session.problems[COLUMNS[1]].startswith("the agent reports genErr after 1.3.6.1.2.1.2.2.1.2")


async def test_a_column_that_only_reports_errors_is_given_up() -> None:
    """It is asked a few times, not for ever."""
    faults = {(*COLUMNS[1], row): GEN_ERR for row in range(100)}
    async with session_with(COMMUNITY, faulty(faults)) as (session, received):
        walked = await outcome_of(session.walk(COLUMNS, 100))

    rows = walked[0] if isinstance(walked, tuple) else walked
    assert rows == {column: {(row,): b"device" for row in range(1, 6)} for column in (COLUMNS[0], *COLUMNS[2:])}
    assert len(received) < 40


async def test_an_error_for_one_object_costs_a_recording_that_object_alone() -> None:
    """A recorded subtree has all other objects."""
    async with session_with(COMMUNITY, faulty({(*COLUMNS[1], 3): GEN_ERR})) as (session, _):
        found = await outcome_of(collected(session, TABLE))

    assert found == [(*column, row) for column in COLUMNS for row in range(1, 6) if (column, row) != (COLUMNS[1], 3)]


def ignoring(*oids: Oid) -> Callable[[bytes], Iterable[bytes]]:
    """An agent that never responds to a request that names one of these objects, or one below them."""
    serving, ignored = faulty({}), [ber.encode_oid(oid)[2:] for oid in oids]
    return lambda datagram: [] if any(octets in datagram for octets in ignored) else serving(datagram)


@pytest.mark.parametrize("silent", [(2,), (1, 7), (4, 5, 6)])
async def test_an_object_to_which_the_agent_is_silent_is_not_provided(silent: tuple[int, ...]) -> None:
    """The others are read at once, in parts; asked alone once more, the object is known not to be provided, and is left out."""
    scalars = [(*SYSTEM, arc) for arc in range(1, 8)]
    async with session_with(COMMUNITY, ignoring(*((*SYSTEM, arc) for arc in silent))) as (session, received):
        reads = [await outcome_of(session.get(scalars)) for _ in range(2)]
        before = len(received)
        reads.append(await outcome_of(session.get(scalars)))

    assert reads == [{(*SYSTEM, arc): {(0,): b"device"} for arc in range(1, 8) if arc not in silent}] * 3
    assert session.problems == {
        (*SYSTEM, arc): "not provided: the agent does not respond to a request that names it" for arc in silent
    }
    assert len(received) == before + 1


async def test_a_subtree_to_which_the_agent_is_silent_is_not_served() -> None:
    """The others are found by the same probe."""
    async with session_with(COMMUNITY, ignoring((1, 3, 8))) as (session, _):
        below = await outcome_of(session.next_below([SYSTEM, (1, 3, 8), TABLE]))

    assert below == {SYSTEM: (*SYSTEM, 1, 0), (1, 3, 8): None, TABLE: (*TABLE, 1, 1)}


@pytest.mark.parametrize("silent", [(1,), (2, 4)])
async def test_a_column_to_which_the_agent_is_silent_is_not_provided(silent: tuple[int, ...]) -> None:
    """The other columns are read whole, and the third walk does not name it."""
    ignored = [(*TABLE, column) for column in silent]
    async with session_with(COMMUNITY, ignoring(*ignored)) as (session, received):
        walks = [await outcome_of(session.walk(COLUMNS, 100)) for _ in range(2)]
        before = len(received)
        walks.append(await outcome_of(session.walk(COLUMNS, 100)))

    whole = {(row,): b"device" for row in range(1, 6)}
    assert walks == [({column: whole for column in COLUMNS if column not in ignored}, [])] * 3
    assert session.problems == dict.fromkeys(
        ignored, "not provided: the agent does not respond to a request that names it"
    )
    assert not any(ber.encode_oid(column)[2:] in datagram for column in ignored for datagram in received[before:])


async def test_lost_requests_do_not_make_an_object_unprovided() -> None:
    """An object is asked for alone once more before it counts as not provided."""
    ignored = {(*SYSTEM, 2)}
    async with session_with(COMMUNITY, lambda datagram: ignoring(*ignored)(datagram)) as (session, _):
        first = await outcome_of(session.get([(*SYSTEM, arc) for arc in (1, 2)]))
        problems = dict(session.problems)
        ignored.clear()
        second = await outcome_of(session.get([(*SYSTEM, arc) for arc in (1, 2)]))

    assert first == {(*SYSTEM, 1): {(0,): b"device"}}
    assert problems == {(*SYSTEM, 2): "no response yet to a request that names it"}
    assert second == {(*SYSTEM, arc): {(0,): b"device"} for arc in (1, 2)}
    assert session.problems == {}


async def test_what_an_agent_did_not_manage_is_tried_again_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its firmware may have changed, or the network was bad."""
    ignored, later_s = {(*SYSTEM, 2)}, [0.0]
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr(adaptive, "_now_s", lambda: clock() + later_s[0])
    async with session_with(COMMUNITY, lambda datagram: ignoring(*ignored)(datagram)) as (session, _):
        for _ in range(2):
            await outcome_of(session.get([(*SYSTEM, arc) for arc in (1, 2)]))
        ignored.clear()
        later_s[0] = 3_601
        rows = await outcome_of(session.get([(*SYSTEM, arc) for arc in (1, 2)]))

    assert rows == {(*SYSTEM, arc): {(0,): b"device"} for arc in (1, 2)}


async def test_a_device_that_is_down_is_not_asked_for_less() -> None:
    """sysUpTime alone shows it: after that, nothing is sent."""
    async with session_with(COMMUNITY, lambda _: []) as (session, received):
        failed = await outcome_of(session.walk(COLUMNS, 100))

    assert isinstance(failed, Unreachable)
    assert len(received) == 2


async def test_a_slow_agent_has_another_error_than_one_that_is_down() -> None:
    """A late response shows that the agent responds: the error says so, and the next walk requests fewer rows at once."""
    asked: list[Pdu] = []

    def answer(datagram: bytes) -> list[bytes]:
        asked.append(v2c_request(datagram))
        late = [request for request in asked if request.kind is PduType.GET_BULK and request.position > 10]
        if asked[-1].kind is PduType.GET:
            return [v2c(texts(request)) for request in late[-1:]]
        return [v2c(rows_after(asked[-1]))] if asked[-1].position <= 10 else []

    def rows_after(request: Pdu) -> bytes:
        (at,) = (varbind.oid for varbind in request.varbinds)
        row = (*at, 0)[len(TABLE)]
        found = [((*TABLE, row + step), TEXT) for step in range(1, request.position + 1) if row + step <= 40]
        return pdu(PduType.RESPONSE, request.number, found or [((1, 3, 7), TEXT)])

    async with session_with(COMMUNITY, answer) as (session, _):
        first = await outcome_of(session.walk([TABLE], 100))
        rows, _ = await session.walk([TABLE], 100)

    assert isinstance(first, Unreachable)
    assert "a late response to an earlier request arrived, so timeout_s is too short" in str(first)
    assert len(rows[TABLE]) == 40


async def test_a_lost_datagram_is_sent_again() -> None:
    """The same one, so that an answer to the first does as well."""
    first = [True]

    def answer(datagram: bytes) -> list[bytes]:
        return [] if first and first.pop() else [v2c(texts(v2c_request(datagram)))]

    async with running_agent(answer) as (port, received):
        session = await Session.open("127.0.0.1", port, COMMUNITY, 0.1, retries=1)
        rows = await session.get([DESCRIPTION])
        session.close()

    assert rows == {DESCRIPTION: {(0,): b"device"}}
    assert len(received) == 2
    assert received[0] == received[1]


async def test_an_agent_that_does_not_advance_is_cut_off() -> None:
    """Whether it repeats an OID or goes back, in a table, a subtree or a probe."""
    async with session_with(COMMUNITY, after(lambda oid: oid)) as (session, _):
        with pytest.raises(Malformed, match="does not advance"):
            await session.walk([TABLE], 10)
        with pytest.raises(Malformed, match="does not advance"):
            await session.next_below([TABLE])
        with pytest.raises(Malformed, match="does not advance"):
            _ = [row async for row in session.walk_subtree(SYSTEM, 10)]


async def test_the_objects_of_a_response_may_have_another_order() -> None:
    """Each value belongs to the object beside it."""

    def body(request: Pdu) -> bytes:
        values = [(each.oid, ber.encode_integer(each.oid[-2])) for each in request.varbinds]
        return pdu(PduType.RESPONSE, request.number, values[::-1])

    async with session_with(COMMUNITY, responses(body)) as (session, _):
        rows = await session.get([(*TABLE, 1), (*TABLE, 2), (*TABLE, 3)])

    assert [rows[*TABLE, n] for n in (1, 2, 3)] == [{(0,): 1}, {(0,): 2}, {(0,): 3}]


async def test_an_endless_column_is_cut_at_the_cap() -> None:
    """It has as many rows as allowed, and is reported to be cut."""
    async with session_with(COMMUNITY, after(lambda oid: (*oid, 1))) as (session, _):
        rows, cut = await session.walk([TABLE], 5)

    assert len(rows[TABLE]) == 5
    assert cut == [TABLE]


@pytest.mark.parametrize(("length", "is_cut"), [(4, False), (5, False), (6, True)])
async def test_a_column_of_exactly_the_cap_is_whole(length: int, is_cut: bool) -> None:
    """Only a row beyond the cap shows that a column was cut off."""

    def following(oid: Oid) -> Oid:
        row = (*oid, 0)[len(TABLE)]
        return (*TABLE, row + 1) if row < length else (1, 3, 7)

    async with session_with(COMMUNITY, after(following)) as (session, _):
        rows, cut = await session.walk([TABLE], 5)

    assert (len(rows[TABLE]), cut) == (min(length, 5), [TABLE] if is_cut else [])


async def test_an_endless_subtree_ends_at_the_cap() -> None:
    """However much an agent invents."""
    async with session_with(COMMUNITY, after(lambda oid: (*oid, 1))) as (session, _):
        recorded = [row async for row in session.walk_subtree(SYSTEM, 5)]

    assert recorded == [((*SYSTEM, *[1] * depth), ber.OCTETS, b"device") for depth in range(1, 6)]


async def test_a_subtree_ends_at_the_cap_within_an_answer() -> None:
    """No row more, though the agent sent it."""

    def ten_rows(request: Pdu) -> bytes:
        (asked,) = (varbind.oid for varbind in request.varbinds)
        return pdu(PduType.RESPONSE, request.number, [((*asked, row), TEXT) for row in range(10)])

    async with session_with(COMMUNITY, responses(ten_rows)) as (session, _):
        recorded = [oid async for oid, _, _ in session.walk_subtree(SYSTEM, 5)]

    assert recorded == [(*SYSTEM, row) for row in range(5)]


async def test_an_empty_answer_to_getbulk() -> None:
    """It is Malformed and not asked for again for ever."""
    async with session_with(COMMUNITY, responses(lambda r: pdu(PduType.RESPONSE, r.number, []))) as (session, _):
        with pytest.raises(Malformed, match="response to GETBULK is empty"):
            await session.walk([TABLE], 10)


async def test_the_first_object_below_a_subtree() -> None:
    """The object itself; None where the next one lies elsewhere, or is the end."""

    def body(request: Pdu) -> bytes:
        first, _, last = (varbind.oid for varbind in request.varbinds)
        return pdu(PduType.RESPONSE, request.number, [((*first, 7), TEXT), ((1, 4), TEXT), (last, END)])

    elsewhere: Oid = (1, 3, 7)
    async with session_with(COMMUNITY, responses(body)) as (session, _):
        with pytest.raises(Malformed, match="does not advance"):
            await session.next_below([TABLE, (1, 4), SYSTEM])
        below = await session.next_below([TABLE, elsewhere, SYSTEM])
        has = await session.has_below([TABLE, elsewhere, SYSTEM])

    assert below == {TABLE: (*TABLE, 7), elsewhere: None, SYSTEM: None}
    assert has == {TABLE: True, elsewhere: False, SYSTEM: False}


async def test_rows_of_several_columns_are_kept_apart() -> None:
    """A column that ends early does not shift the others."""
    lengths = {(*TABLE, 1): 3, (*TABLE, 2): 7}

    def following(oid: Oid) -> tuple[Oid, bytes]:
        column, row = oid[: len(TABLE) + 1], (*oid, 0)[len(TABLE) + 1]
        return ((*column, row + 1), TEXT) if row < lengths[column] else ((*TABLE, 9, 1), TEXT)

    def body(request: Pdu) -> bytes:
        return pdu(PduType.RESPONSE, request.number, [following(varbind.oid) for varbind in request.varbinds])

    async with session_with(COMMUNITY, responses(body)) as (session, _):
        rows, cut = await session.walk(list(lengths), 100)

    assert {column: len(found) for column, found in rows.items()} == lengths
    assert cut == []


async def test_a_datagram_that_cannot_be_sent() -> None:
    """The error is the operating system's reason."""
    session = await Session.open("255.255.255.255", 161, COMMUNITY, 0.1)
    try:
        with pytest.raises(Unreachable, match=r"255\.255\.255\.255:161: cannot send: Permission denied"):
            await session.get([DESCRIPTION])
    finally:
        session.close()


async def test_a_host_that_has_no_address() -> None:
    """It is unreachable, whatever is wrong with its name."""
    with pytest.raises(Unreachable, match="161: "):
        await Session.open("a" * 64 + ".invalid", 161, COMMUNITY, 0.1)


async def test_sessions_share_one_socket() -> None:
    """It is opened by the first and closed by the last."""
    async with (
        session_with(COMMUNITY, responses(texts)) as (one, _),
        session_with(COMMUNITY, responses(texts)) as (two, _),
    ):
        shared = one._socket

        assert two._socket is shared

    assert shared._socket.fileno() == -1


async def test_no_secret_is_shown() -> None:
    """Neither by what holds it nor by what fails."""
    async with session_with(COMMUNITY, lambda _: []) as (session, _):
        with pytest.raises(Unreachable) as raised:
            await session.get([DESCRIPTION])

    assert "fifth-floor" not in str(raised.value) + repr(COMMUNITY) + repr(session)


@given(st.binary(max_size=100) | st.integers(0, 9).map(lambda lost: v2c(pdu(2, 7, [(TABLE, TEXT)]))[:-lost]))
def test_any_datagram_at_the_socket(datagram: bytes) -> None:
    """It has a number, or it is Malformed."""
    try:
        number = number_of(datagram)
    except Malformed:
        return

    assert isinstance(number, int)


async def test_a_name_that_no_resolver_knows() -> None:
    """The error states what failed: the name, not the agent."""
    with pytest.raises(Unreachable, match="cannot resolve the host name: "):
        await Session.open("no-such-host.invalid", 161, COMMUNITY, 0.1)


async def test_a_machine_without_ipv6_cannot_open_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's reason is the error's."""

    def without(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(transport, "socket", SimpleNamespace(**{**vars(socket), "socket": without}))
    with pytest.raises(Unreachable, match="cannot open a UDP socket: Address family not supported by protocol"):
        await Session.open("::1", 161, COMMUNITY, 0.1)


async def test_a_subtree_of_which_nothing_can_be_read_is_refused() -> None:
    """The error names the subtree: an agent that reports genErr at its root serves none of it."""

    def failing(request: Pdu) -> bytes:
        return pdu(PduType.RESPONSE, request.number, [(SYSTEM, b"\x05\x00")], status=5, position=1)

    async with session_with(COMMUNITY, responses(failing)) as (session, _):
        with pytest.raises(Refused, match=r"genErr after 1\.3\.6\.1\.2\.1\.1"):
            async for _ in session.walk_subtree(SYSTEM, 10):
                pass


async def test_unanswered_requests_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is silent for days fills no memory."""
    monkeypatch.setattr(transport, "MAX_EXPIRED", 2)
    async with session_with(COMMUNITY, lambda _: []) as (session, _):
        for _ in range(2):
            with pytest.raises(SourceError):
                await session.get([DESCRIPTION])

        assert len(session._socket._expired) == 2
