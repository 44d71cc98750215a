"""
What it costs to watch fifty grandmasters at the pace of the defaults (state each 10 s, tables each 60 s): CPU of whole daemons
that poll, judge, store and answer, against net-snmp's commands forked for the same reads of the same grandmasters at the same time.
Goals: no more CPU than they, and under 15 % of a core.

Nothing is sped up: the daemons also have work that comes each second, whatever the pace of the polls. The two with MQTT receive each
other's grandmasters, as a hub and its standby do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from _grandmasters import Facts, cpu_s, credentials, need, section, simulated

from timesyncd.client.api import fetch_all
from timesyncd.drivers.timeprovider._evidence import batches
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load_all
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.snmp import Community, Oid, Session, format_oid

GRANDMASTERS, STATE_S, TABLES_S = 50, 10, 60
#: After the first polls, which read everything at once, come this many rounds; two of them are the peer's minute.
SETTLE_S, ROUNDS, ROUND_S = 20, 4, 30

Command = list[str]


@dataclass(frozen=True, slots=True)
class Watcher:
    """A daemon that is measured."""

    name: str
    daemon: DaemonProcess

    @property
    def used_s(self) -> float:
        return cpu_s(self.daemon.process.pid)


async def reads(facts: Facts) -> tuple[list[Command], list[Command]]:
    """
    What the daemon reads of such a grandmaster each time, as commands: of the state, and of the tables. A table is walked at once
    where more than one of its columns is wanted, which spares the peer processes.
    """
    host, _, port = facts["snmp"].rpartition(":")
    profiles = load_all(DEFAULT)
    session = await Session.open(host, int(port), Community(facts["community"]), 5)
    below = await session.has_below([subtree for profile in profiles for subtree in profile.proved_by])
    session.close()
    served = [profile for profile in profiles if any(below[subtree] for subtree in profile.proved_by)]
    state: list[Command] = []
    tables: list[Command] = []
    for batch in batches(served):
        if batch.group != "inventory":
            scalars = ["snmpget", *(format_oid((*oid, 0)) for oid in batch.scalars)]
            walks = [["snmpbulkwalk", format_oid(root)] for root in _roots(batch.columns)]
            (state if batch.group == "state" else tables).extend([scalars, *walks] if batch.scalars else walks)
    return state, tables


def _roots(columns: Iterable[Oid]) -> list[Oid]:
    by_table: dict[Oid, list[Oid]] = {}
    for column in columns:
        by_table.setdefault(column[:-1], []).append(column)
    return [found[0] if len(found) == 1 else table for table, found in by_table.items()]


def schedule(
    all_facts: list[Facts], state: list[Command], tables: list[Command]
) -> Iterator[tuple[float, Facts, Command]]:
    """A minute of commands, spread evenly: (second, grandmaster, command) in no order."""
    for place, facts in enumerate(all_facts):
        for second in range(0, TABLES_S, STATE_S):
            yield from ((second + place * STATE_S / len(all_facts), facts, command) for command in state)
        for number, command in enumerate(tables):
            yield (place + number / len(tables)) * TABLES_S / len(all_facts), facts, command


def forked(all_facts: list[Facts], v3: bool, state: list[Command], tables: list[Command]) -> tuple[float, int]:
    """CPU seconds of the commands of a minute alone (what forking costs the script is not counted), and how many they were."""
    used = 0.0
    plan = sorted(schedule(all_facts, state, tables), key=lambda each: each[0])
    began = time.monotonic()
    for second, facts, (program, *oids) in plan:
        time.sleep(max(0.0, began + second - time.monotonic()))
        command = [program, "-On", "-m", "", *credentials(facts, v3), facts["snmp"], *oids]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
        used += usage.ru_utime + usage.ru_stime
    time.sleep(max(0.0, began + TABLES_S - time.monotonic()))
    return used, len(plan)


def look(page: str) -> None:
    """As a browser with the page open does, until the daemon ends."""
    with suppress(HTTPException), urlopen(f"{page}events") as answer:
        while answer.read1():
            pass


def start(stack: ExitStack, folder: Path, all_facts: list[Facts]) -> list[Watcher]:
    marker = new_marker()
    broker = stack.enter_context(Mosquitto(marker=marker))
    watchers = []
    for place, (name, v3, to) in enumerate(
        (
            ("v2c", False, None),
            ("v3", True, None),
            ("v2c, MQTT", False, broker),
            ("v2c, MQTT, a page open", False, broker),
        )
    ):
        home = folder / f"poller-{place}"
        home.mkdir()
        tables = "\n" + "".join(section(facts, home, v3=v3) for facts in all_facts)
        daemon = stack.enter_context(DaemonProcess(f"poller-{place}", home, "", marker, to, more=tables))
        watchers.append(Watcher(name, daemon))
    threading.Thread(target=look, args=(watchers[-1].daemon.page,), daemon=True).start()
    return watchers


def measure(watchers: list[Watcher], rounds: list[list[float]]) -> None:
    """Each watcher's share of a core, round by round."""
    for _ in range(ROUNDS):
        began, before = time.monotonic(), [watcher.used_s for watcher in watchers]
        time.sleep(ROUND_S)
        elapsed_s = time.monotonic() - began
        rounds.append([(watcher.used_s - was) / elapsed_s for watcher, was in zip(watchers, before, strict=True)])


def check(watcher: Watcher) -> None:
    """Nothing was saved by not reading."""
    states = fetch_all(watcher.daemon.page)["grandmasters"]
    well = [
        state for state in states if state["reachable"] and state["clock_state"] == "locked" and not state["unknown"]
    ]
    oldest_s = max(state["age_ns"] for state in states) / 1e9
    if len(well) != GRANDMASTERS or oldest_s > STATE_S + 2:
        raise SystemExit(
            f"{watcher.name}: {len(well)} of {GRANDMASTERS} grandmasters were read, the oldest {oldest_s:.0f} s ago"
        )


def report(watchers: list[Watcher], rounds: list[list[float]], peers: dict[bool, tuple[float, int]]) -> None:
    for watcher, shares in zip(watchers, zip(*rounds, strict=True), strict=True):
        peer_s, commands = peers[watcher.name == "v3"]
        share, peer = statistics.median(shares), peer_s / TABLES_S
        print(
            f"{watcher.name}: {share:.1%} of a core ({min(shares):.1%} to {max(shares):.1%}; goal < 15%), net-snmp {peer:.1%} "
            f"with {commands / TABLES_S:.0f} processes a second: ratio {share / peer:.2f} (goal <= 1)"
        )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    need("snmpget", "snmpbulkwalk")
    rounds: list[list[float]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        all_facts = stack.enter_context(simulated("--model", "tp5000e", "--count", str(GRANDMASTERS)))
        commands = asyncio.run(reads(all_facts[0]))
        watchers = start(stack, folder, all_facts)
        time.sleep(SETTLE_S)
        measuring = threading.Thread(target=measure, args=(watchers, rounds))
        measuring.start()
        peers = {v3: forked(all_facts, v3, *commands) for v3 in (False, True)}
        measuring.join()
        for watcher in watchers:
            check(watcher)
    print(
        f"{GRANDMASTERS} grandmasters, state each {STATE_S} s, tables each {TABLES_S} s, medians of {ROUNDS} rounds of {ROUND_S} s"
    )
    report(watchers, rounds, peers)


if __name__ == "__main__":
    main()
