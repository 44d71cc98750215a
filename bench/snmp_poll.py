"""
What it costs to poll grandmasters over SNMP: CPU per poll of this package, against forked net-snmp commands and against pysnmp, which
read the same from the same snmpd in the same run. Goals: no more CPU than they, and fifty grandmasters (state each 10 s, tables each 60 s) under 15 % of a core.

Runs itself again in a network namespace with thirty interfaces, whose table is what is read.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from pysnmp.hlapi.v3arch import asyncio as hlapi

from timesyncd.snmp import Community, Credentials, Oid, Session, User, format_oid
from timesyncd.snmp.adaptive import MAX_VARBINDS
from timesyncd.snmp.session import MAX_COLUMNS

ROUNDS, GRANDMASTERS, ROWS, PORT = 40, 50, 30, 16_161
MIB_2: Oid = (1, 3, 6, 1, 2, 1)
SCALARS: list[Oid] = [(*MIB_2, 1, arc) for arc in range(1, 8)] + [(*MIB_2, 11, arc) for arc in range(3, 21)]
SHORT: Oid = (*MIB_2, 1, 9, 1, 3)
IF_TABLE: Oid = (*MIB_2, 2, 2)
IF_X: list[Oid] = [(*MIB_2, 31, 1, 1, 1, arc) for arc in (1, 6, 10, 15)]
COLUMNS: list[Oid] = [(*IF_TABLE, 1, arc) for arc in range(1, 22)] + IF_X


def cpu_ms(processes: int) -> float:
    used = resource.getrusage(processes)
    return (used.ru_utime + used.ru_stime) * 1_000


async def state(session: Session) -> None:
    await session.get(SCALARS)
    await session.walk([SHORT], 200)


async def tables(session: Session) -> None:
    await session.walk(COLUMNS, 200)


async def ours(credentials: Credentials, poll: Callable[[Session], Awaitable[None]]) -> float:
    """Milliseconds of CPU a poll, with a session that is open already, as the daemon's are."""
    session = await Session.open("127.0.0.1", PORT, credentials, 5)
    await poll(session)
    before = cpu_ms(resource.RUSAGE_SELF)
    for _ in range(ROUNDS):
        await poll(session)
    session.close()
    return (cpu_ms(resource.RUSAGE_SELF) - before) / ROUNDS


class PySnmp:
    """The same reads by pysnmp's high-level API, with one engine for all polls and without MIB look-ups, its fastest way."""

    def __init__(self, credentials: Credentials, target: hlapi.UdpTransportTarget) -> None:
        self._to = (hlapi.SnmpEngine(), pysnmp_credentials(credentials), target, hlapi.ContextData())

    async def state(self) -> None:
        await self._answer(hlapi.get_cmd(*self._to, *objects((*oid, 0) for oid in SCALARS), lookupMib=False))
        await self._walk([SHORT])

    async def tables(self) -> None:
        for first in range(0, len(COLUMNS), MAX_COLUMNS):
            await self._walk(COLUMNS[first : first + MAX_COLUMNS])

    async def _walk(self, columns: list[Oid]) -> None:
        last = dict(zip(columns, columns, strict=True))
        repetitions = 2
        while last:
            most = max(1, min(repetitions, MAX_VARBINDS // len(last)))
            request = hlapi.bulk_cmd(*self._to, 0, most, *objects(last.values()), lookupMib=False)
            walked = list(last)
            for position, (name, _) in enumerate(await self._answer(request)):
                column, oid = walked[position % len(walked)], tuple(name)
                if oid[: len(column)] != column or oid <= last.get(column, oid):
                    last.pop(column, None)
                elif column in last:
                    last[column] = oid
            repetitions *= 4

    async def _answer(self, request: Awaitable[Any]) -> Any:
        error, status, _, varbinds = await request
        if error or status:
            raise SystemExit(f"pysnmp: {error or status}")
        return varbinds


def objects(oids: Iterable[Oid]) -> list[Any]:
    return [hlapi.ObjectType(hlapi.ObjectIdentity(oid)) for oid in oids]


def pysnmp_credentials(credentials: Credentials) -> Any:
    if isinstance(credentials, Community):
        return hlapi.CommunityData(credentials.name)
    return hlapi.UsmUserData(
        credentials.name, credentials.auth_pass, credentials.priv_pass,
        authProtocol=hlapi.usmHMAC192SHA256AuthProtocol, privProtocol=hlapi.usmAesCfb128Protocol,
    )  # fmt: skip


async def by_pysnmp(credentials: Credentials) -> tuple[float, float]:
    """Milliseconds of CPU for a poll of the state and one of the tables."""
    target = await hlapi.UdpTransportTarget.create(("127.0.0.1", PORT), timeout=5, retries=0)
    library = PySnmp(credentials, target)
    taken = []
    for poll in (library.state, library.tables):
        await poll()
        before = cpu_ms(resource.RUSAGE_SELF)
        for _ in range(ROUNDS):
            await poll()
        taken.append((cpu_ms(resource.RUSAGE_SELF) - before) / ROUNDS)
    return taken[0], taken[1]


def forked(options: list[str], commands: list[list[str]]) -> float:
    """Milliseconds of CPU of the children alone: what forking costs the parent is not counted."""
    before = cpu_ms(resource.RUSAGE_CHILDREN)
    for _ in range(ROUNDS):
        for program, *oids in commands:
            command = [program, "-On", "-m", "", *options, f"127.0.0.1:{PORT}", *oids]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (cpu_ms(resource.RUSAGE_CHILDREN) - before) / ROUNDS


def compare(name: str, credentials: Credentials, options: list[str]) -> None:
    get = ["snmpget", *(format_oid((*oid, 0)) for oid in SCALARS)]
    walks = [["snmpbulkwalk", format_oid(oid)] for oid in (IF_TABLE, *IF_X)]
    ours_state, ours_tables = (asyncio.run(ours(credentials, poll)) for poll in (state, tables))
    others = {
        "net-snmp": (forked(options, [get, ["snmpbulkwalk", format_oid(SHORT)]]), forked(options, walks)),
        "pysnmp": asyncio.run(by_pysnmp(credentials)),
    }
    print(f"{name} ours: state {ours_state:.2f} ms, tables {ours_tables:.2f} ms, {share(ours_state, ours_tables)}")
    for other, (its_state, its_tables) in others.items():
        ratios = f"ratio {ours_state / its_state:.2f} and {ours_tables / its_tables:.2f}"
        print(
            f"{name} {other}: state {its_state:.2f} ms, tables {its_tables:.2f} ms, {share(its_state, its_tables)}, {ratios}"
        )


def share(state_ms: float, tables_ms: float) -> str:
    return f"{GRANDMASTERS} grandmasters {GRANDMASTERS * (state_ms / 10 + tables_ms / 60) / 1_000:.1%} of a core"


def snmpd(folder: Path, community: str, user: User) -> subprocess.Popen[bytes]:
    config = folder / "snmpd.conf"
    config.write_text(
        f"agentaddress udp:127.0.0.1:{PORT}\nrocommunity {community}\nrouser {user.name} priv\n"
        f'createUser {user.name} SHA-256 "{user.auth_pass}" AES "{user.priv_pass}"\n'
    )
    environment = os.environ | {"SNMP_PERSISTENT_DIR": str(folder / "state"), "MIBS": ""}
    return subprocess.Popen(["snmpd", "-f", "-Ln", "-C", "-c", str(config)], env=environment)


def in_namespace() -> None:
    for command in (
        ["link", "set", "lo", "up"],
        *(["link", "add", f"a{n}", "type", "veth", "peer", f"b{n}"] for n in range(ROWS // 2)),
    ):
        subprocess.run(["ip", *command], check=True)
    community = secrets.token_hex(8)
    user = User("bench", "sha256", secrets.token_hex(8), "aes128", secrets.token_hex(8))
    with tempfile.TemporaryDirectory() as folder:
        agent = snmpd(Path(folder), community, user)
        try:
            time.sleep(1)
            compare("v2c", Community(community), ["-v2c", "-c", community])
            protected = ["-a", "SHA-256", "-A", user.auth_pass, "-x", "AES", "-X", user.priv_pass]
            compare("v3 ", user, ["-v3", "-l", "authPriv", "-u", user.name, *protected])
        finally:
            agent.terminate()
            agent.wait()


def main() -> None:
    if missing := [tool for tool in ("snmpd", "snmpbulkwalk", "unshare", "ip") if shutil.which(tool) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}: make bench-packages")
    if sys.argv[1:] == ["--inside"]:
        in_namespace()
    else:
        again = ["unshare", "--map-root-user", "--net", sys.executable, __file__, "--inside"]
        raise SystemExit(subprocess.run(again, check=False).returncode)


if __name__ == "__main__":
    main()
