"""SNMP with net-snmp's own agent and commands."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from timesyncd.errors import Refused, SourceError, Unreachable
from timesyncd.sample import Trap
from timesyncd.simulation.bed.broker import free_port
from timesyncd.snmp import AuthProtocol, Community, Credentials, Listener, Oid, PrivProtocol, Session, User
from timesyncd.snmp import format_oid as text

pytestmark = pytest.mark.integration

SYSTEM: Oid = (1, 3, 6, 1, 2, 1, 1)
DESCRIPTION, OBJECT_ID, UPTIME = ((*SYSTEM, arc) for arc in (1, 2, 3))
IF_INDEX: Oid = (1, 3, 6, 1, 2, 1, 2, 2, 1, 1)
IF_NAME: Oid = (1, 3, 6, 1, 2, 1, 2, 2, 1, 2)
BOOTS: Oid = (1, 3, 6, 1, 6, 3, 10, 2, 1, 2)

COMMUNITY = Community("fifth-floor")
EVA = User("eva", "sha256", "a pass phrase", "aes128", "another phrase")
PAIRS: list[tuple[AuthProtocol, PrivProtocol]] = [
    ("sha1", "aes128"),
    ("sha224", "aes128"),
    ("sha256", "aes256"),
    ("sha384", "aes192"),
    ("sha512", "aes256"),
    ("sha1", "aes256"),
    ("sha1", "aes192-c"),
    ("sha256", "aes256-c"),
]
NET_SNMP = {"aes128": "AES", "aes192": "AES-192", "aes256": "AES-256", "aes192-c": "AES-192-C", "aes256-c": "AES-256-C"}


def hashed(auth: AuthProtocol) -> str:
    return f"SHA-{auth.removeprefix('sha')}"


def options(user: User) -> list[str]:
    protected = ["-a", hashed(user.auth), "-A", user.auth_pass, "-x", NET_SNMP[user.priv], "-X", user.priv_pass]
    return ["-v3", "-l", "authPriv", "-u", user.name, *protected]


def environment(folder: Path) -> dict[str, str]:
    state = folder / "state"
    return os.environ | {"SNMP_PERSISTENT_DIR": str(state), "SNMPCONFPATH": f"{folder}:{state}", "MIBS": ""}


@asynccontextmanager
async def snmpd(folder: Path, port: int, *users: User, more: Sequence[str] = ()) -> AsyncIterator[None]:
    """With the same folder again it is the same engine, one boot later."""
    config = folder / "snmpd.conf"
    lines = [f"agentaddress udp:127.0.0.1:{port}", f"rocommunity {COMMUNITY.name}", *more]
    for user in users:
        secret = f'{hashed(user.auth)} "{user.auth_pass}" {NET_SNMP[user.priv]} "{user.priv_pass}"'
        lines += [f"createUser {user.name} {secret}", f"rouser {user.name} priv"]
    config.write_text("\n".join(lines) + "\n")
    process = await asyncio.create_subprocess_exec("snmpd", "-f", "-Ln", "-I", "-smux", env=environment(folder))
    try:
        await answering(port)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def answering(port: int) -> None:
    session = await Session.open("127.0.0.1", port, COMMUNITY, 0.2)
    try:
        for _ in range(50):
            try:
                await session.get([DESCRIPTION])
                return
            except SourceError:
                await asyncio.sleep(0.05)
    finally:
        session.close()
    raise AssertionError("snmpd does not answer")


@asynccontextmanager
async def opened(port: int, credentials: Credentials, retries: int = 9) -> AsyncIterator[Session]:
    session = await Session.open("127.0.0.1", port, credentials, 0.5, retries=retries)
    try:
        yield session
    finally:
        session.close()


async def command(folder: Path, program: str, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        env=environment(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.parametrize("credentials", [COMMUNITY, EVA], ids=["v2c", "v3"])
async def test_an_agent_is_read(credentials: Credentials, tmp_path: Path) -> None:
    """Scalars of each kind, a table, what lies below, and a subtree in the order that snmpbulkwalk prints."""
    port = free_port()
    async with snmpd(tmp_path, port, EVA), opened(port, credentials) as session:
        scalars = await session.get([DESCRIPTION, OBJECT_ID, UPTIME, (*SYSTEM, 99)])
        rows, cut = await session.walk([IF_INDEX, IF_NAME], 100)
        below = await session.next_below([SYSTEM, (1, 3, 6, 1, 4, 1, 9070)])
        recorded = [oid async for oid, _, _ in session.walk_subtree(SYSTEM, 1_000)]
        _, printed = await command(
            tmp_path, "snmpbulkwalk", "-v2c", "-c", COMMUNITY.name, "-On", f"127.0.0.1:{port}", text(SYSTEM)
        )

    assert list(scalars) == [DESCRIPTION, OBJECT_ID, UPTIME]
    assert isinstance(scalars[DESCRIPTION][(0,)], bytes)
    assert str(scalars[OBJECT_ID][(0,)]).startswith("1.3.6.1.4.1.8072.")
    assert isinstance(scalars[UPTIME][(0,)], int)
    assert rows[IF_NAME][(1,)] == b"lo"
    assert list(rows[IF_INDEX].values()) == [index for (index,) in rows[IF_NAME]]
    assert cut == []
    assert below == {SYSTEM: (*DESCRIPTION, 0), (1, 3, 6, 1, 4, 1, 9070): None}
    assert [f".{text(oid)}" for oid in recorded] == [line.split()[0] for line in printed.splitlines()]


async def test_every_pair_of_protocols(tmp_path: Path) -> None:
    """As net-snmp has them: SHA-1 and SHA-2, AES-128, -192 and -256, both ways to stretch a key."""
    users = [
        User(f"user{n}", auth, secrets.token_hex(8), priv, secrets.token_hex(8)) for n, (auth, priv) in enumerate(PAIRS)
    ]
    port = free_port()
    read = []
    async with snmpd(tmp_path, port, *users):
        for user in users:
            async with opened(port, user) as session:
                read.append(list(await session.get([DESCRIPTION])))

    assert read == [[DESCRIPTION]] * len(PAIRS)


@pytest.mark.parametrize(
    ("credentials", "error", "message"),
    [
        (Community("wrong"), Unreachable, "community is wrong"),
        (replace(EVA, name="unknown"), Refused, "unknown user name"),
        (
            replace(EVA, auth_pass="not this one"),
            Refused,
            "wrong digest: the authentication pass phrase or protocol is wrong",
        ),
        (replace(EVA, auth="sha512"), Refused, "wrong digest"),
        (replace(EVA, priv_pass="not this one"), Refused, "the privacy pass phrase or protocol is wrong"),
        (replace(EVA, priv="aes256"), Refused, "the privacy pass phrase or protocol is wrong"),
    ],
)
async def test_wrong_credentials_are_distinguished(
    credentials: Credentials, error: type[SourceError], message: str, tmp_path: Path
) -> None:
    """As far as the protocol lets us."""
    port = free_port()
    async with snmpd(tmp_path, port, EVA), opened(port, credentials, retries=3) as session:
        with pytest.raises(error, match=message):
            await session.get([DESCRIPTION])


async def test_an_agent_that_reboots_and_one_that_is_replaced(tmp_path: Path) -> None:
    """The session goes on by itself: with the boots one higher, and with another engine ID."""
    (tmp_path / "replaced").mkdir()
    port = free_port()
    boots = []
    async with snmpd(tmp_path, port, EVA), opened(port, EVA) as session:
        boots.append((await session.get([BOOTS]))[BOOTS][(0,)])
    async with opened(port, EVA) as session:
        for folder in (tmp_path, tmp_path, tmp_path / "replaced"):
            async with snmpd(folder, port, EVA):
                boots.append((await session.get([BOOTS]))[BOOTS][(0,)])

    assert boots == [boots[0], *(boots[0] + n for n in (1, 2)), boots[0]]  # type: ignore[operator]


async def test_two_agents_with_one_user_name(tmp_path: Path) -> None:
    """And different pass phrases, asked at the same time."""
    other = replace(EVA, auth_pass="quite another", priv_pass="and this as well")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    ports = [free_port(), free_port()]
    async with (
        snmpd(folders[0], ports[0], EVA),
        snmpd(folders[1], ports[1], other),
        opened(ports[0], EVA) as one,
        opened(ports[1], other) as two,
    ):
        found = await asyncio.gather(*(session.get([DESCRIPTION]) for session in (one, two) * 5))

    assert [list(rows) for rows in found] == [[DESCRIPTION]] * 10


ALARM: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 4, 1, 2, 97)
TEXT: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 4, 1, 1, 6, 0)
WHAT = ["", text(ALARM), text(TEXT), "s", "GNSS antenna open"]


@asynccontextmanager
async def listener(*users: User, boots: int = 1) -> AsyncIterator[tuple[Listener, str, list[Trap]]]:
    traps: list[Trap] = []
    received = Listener([COMMUNITY], users, traps.append, bytes.fromhex("80001f880405060708"), boots)
    port = await received.start(("127.0.0.1", 0))
    try:
        yield received, f"127.0.0.1:{port}", traps
    finally:
        await received.stop()


@pytest.mark.parametrize("program", ["snmptrap", "snmpinform"])
async def test_v2c_notifications(program: str, tmp_path: Path) -> None:
    """An inform's sender is content."""
    async with listener() as (received, address, traps):
        code, output = await command(tmp_path, program, "-v2c", "-c", COMMUNITY.name, address, *WHAT)
        await asyncio.sleep(0.05)

    assert code == 0, output
    assert [(trap.address, trap.oid, trap.variables) for trap in traps] == [
        ("127.0.0.1", ALARM, ((TEXT, b"GNSS antenna open"),))
    ]
    assert received.rejected == {}


async def test_a_v1_trap(tmp_path: Path) -> None:
    """It has the OID that RFC 3584 gives it."""
    specific = [text(ALARM[:-1]), "10.0.0.9", "6", "97", ""]
    async with listener() as (_, address, traps):
        await command(tmp_path, "snmptrap", "-v1", "-c", COMMUNITY.name, address, *specific, *WHAT[2:])
        await asyncio.sleep(0.05)

    assert [trap.oid for trap in traps] == [(*ALARM[:-1], 0, 97)]


@pytest.mark.parametrize(("auth", "priv"), PAIRS)
async def test_v3_traps_of_unknown_engines(auth: AuthProtocol, priv: PrivProtocol, tmp_path: Path) -> None:
    """Two senders with one user, each with its own engine ID and keys made from it."""
    user = User("eva", auth, "a pass phrase", priv, "another phrase")
    async with listener(user) as (received, address, traps):
        for engine_id in ("0x8000000001020304", "0x80000000050607080a"):
            await command(tmp_path, "snmptrap", "-e", engine_id, *options(user), address, *WHAT)
        await asyncio.sleep(0.05)

    assert [trap.oid for trap in traps] == [ALARM] * 2
    assert received.rejected == {}


@pytest.mark.parametrize(("auth", "priv"), PAIRS)
async def test_v3_informs_are_answered(auth: AuthProtocol, priv: PrivProtocol, tmp_path: Path) -> None:
    """net-snmp finds our engine, sends, and is content."""
    user = User("eva", auth, "a pass phrase", priv, "another phrase")
    async with listener(user) as (received, address, traps):
        code, output = await command(tmp_path, "snmpinform", "-t", "60", *options(user), address, *WHAT)

    assert code == 0, output
    assert [trap.oid for trap in traps] == [ALARM]
    assert received.rejected == {}


@pytest.mark.parametrize(
    ("wrong", "reason", "theirs"),
    [
        (replace(EVA, name="unknown"), "unknown user name", "Unknown user name"),
        (replace(EVA, auth_pass="not this one"), "wrong digest", "Authentication failure"),
        (replace(EVA, priv_pass="not this one"), "decryption error", "Decryption error"),
    ],
)
async def test_a_wrong_inform_is_named_at_both_ends(wrong: User, reason: str, theirs: str, tmp_path: Path) -> None:
    """We count it, and its sender prints it."""
    async with listener(EVA) as (received, address, traps):
        _, output = await command(tmp_path, "snmpinform", "-r", "0", "-t", "60", *options(wrong), address, *WHAT)

    assert received.rejected == {reason: 1}
    assert theirs in output
    assert traps == []


async def test_snmpds_own_notifications(tmp_path: Path) -> None:
    """A real agent reports its start and its end by itself: by a v2c trap, a v3 trap and a v3 inform."""
    max_ = User("max", "sha256", "a-pass-phrase", "aes128", "another-phrase")
    async with listener(max_) as (received, address, traps):
        session = " ".join(options(max_))
        sinks = [
            f"trap2sink {address} {COMMUNITY.name}",
            f"trapsess {session} {address}",
            f"trapsess -Ci -t 60 {session} {address}",
        ]
        async with snmpd(tmp_path, free_port(), max_, more=sinks):
            pass
        await asyncio.sleep(0.05)

    cold_start: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 5, 1)
    shut_down: Oid = (1, 3, 6, 1, 4, 1, 8072, 4, 0, 2)
    assert [trap.oid for trap in traps] == [cold_start] * 3 + [shut_down] * 3
    assert received.rejected == {}
