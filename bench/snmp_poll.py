"""
What it costs to poll grandmasters over SNMP: CPU per poll of this package, against forked net-snmp commands that read the same from
the same snmpd in the same run. Goals: no more CPU than they, and fifty grandmasters (state each 10 s, tables each 60 s) under 15 % of a core.

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
from collections.abc import Awaitable, Callable
from pathlib import Path

from timesyncd.snmp import Community, Credentials, Oid, Session, User, format_oid

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
    their_state = forked(options, [get, ["snmpbulkwalk", format_oid(SHORT)]])
    their_tables = forked(options, walks)
    for what, our_ms, their_ms in (("state", ours_state, their_state), ("tables", ours_tables, their_tables)):
        print(f"{name} {what:7} {our_ms:6.2f} ms, net-snmp {their_ms:6.2f} ms, ratio {our_ms / their_ms:.2f}")
    share, theirs = (
        GRANDMASTERS * (s / 10 + t / 60) / 1_000 for s, t in ((ours_state, ours_tables), (their_state, their_tables))
    )
    print(f"{name} {GRANDMASTERS} grandmasters: {share:.1%} of a core, net-snmp {theirs:.1%}")


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
