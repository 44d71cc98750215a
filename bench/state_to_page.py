"""
How long a change of a grandmaster's state that no trap reported takes to the page's server-sent event, as a share of the poll period:
a whole daemon, against a script that forks snmpget for every grandmaster once a period, as cron would. Both read the same grandmasters and see
the same changes. By the poll alone it is half a period on average and one at most; what is above that is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from _grandmasters import credentials, need, section

from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.simulation.grandmaster import Servo
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster, SimulationPlan, running
from timesyncd.snmp import format_oid

GRANDMASTERS, ROUNDS, PERIOD_S = 20, 6, 3
#: tp5000eServoControlStatus, where a TimeProvider 5000E serves its only row, and its numbers.
CLOCK_STATE = format_oid((1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 1, 8, 1, 1, 1, 2, 2, 1))
STATES = {Servo.LOCKED: ("locked", "4"), Servo.HOLDOVER: ("holdover", "5")}


@dataclass
class Watch:
    """When each grandmaster changed, which change is not seen yet, and how long each took."""

    changed_s: dict[str, float] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    delays_s: list[float] = field(default_factory=list)

    def expect(self, name: str, state: str) -> None:
        self.changed_s[name], self.wanted[name] = time.monotonic(), state

    def record_change(self, name: str, state: str) -> None:
        if self.wanted.get(name) == state:
            del self.wanted[name]
            self.delays_s.append(time.monotonic() - self.changed_s[name])


async def look(page: str, watch: Watch) -> None:
    """As a browser with the page open does."""
    kind = ""
    async with aiohttp.ClientSession() as session, session.get(f"{page}events") as answer:
        async for line in answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind == "grandmaster":
                state = json.loads(value)
                watch.record_change(state["name"], state["clock_state"])


async def ask_each_period(grandmasters: list[SimulatedGrandmaster], watch: Watch) -> None:
    """All at the period's beginning, one after another."""
    while True:
        began_s = time.monotonic()
        for gm in grandmasters:
            facts = gm.facts()
            command = ["snmpget", "-Oqv", "-m", "", *credentials(facts, v3=False), facts["snmp"], CLOCK_STATE]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            answer, _ = await process.communicate()
            watch.record_change(facts["name"], answer.decode().strip())
        await asyncio.sleep(began_s + PERIOD_S - time.monotonic())


async def change(gm: SimulatedGrandmaster, servo: Servo, after_s: float, watches: tuple[Watch, Watch]) -> None:
    await asyncio.sleep(after_s)
    gm.device.set_state(servo)
    for watch, state in zip(watches, STATES[servo], strict=True):
        watch.expect(gm.device.name, state)


async def change_all(grandmasters: list[SimulatedGrandmaster], watches: tuple[Watch, Watch]) -> None:
    """Each changes once a round, over the rounds at moments spread evenly over the period; a round ends when all was seen."""
    epoch_s, draws = time.monotonic(), [random.random() for _ in grandmasters]
    for number in range(ROUNDS):
        await asyncio.sleep(PERIOD_S - (time.monotonic() - epoch_s) % PERIOD_S)
        servo = (Servo.HOLDOVER, Servo.LOCKED)[number % 2]
        moments_s = (PERIOD_S * (number + draw) / ROUNDS for draw in draws)
        await asyncio.gather(*(change(gm, servo, s, watches) for gm, s in zip(grandmasters, moments_s, strict=True)))
        async with asyncio.timeout(3 * PERIOD_S):
            while any(watch.wanted for watch in watches):
                await asyncio.sleep(0.05)


async def measure(folder: Path) -> tuple[Watch, Watch]:
    """The delays of the page's viewer, and those of the script."""
    watches = Watch(), Watch()
    async with running(SimulationPlan(model="tp5000e", count=GRANDMASTERS, speed=0)) as grandmasters:
        more = "\n" + "".join(section(gm.facts(), folder, state_interval_s=PERIOD_S) for gm in grandmasters)
        daemon = DaemonProcess("watcher", folder / "watcher", "", new_marker(), more=more)
        with ExitStack() as stack:
            stack.callback(daemon.stop)
            await asyncio.to_thread(daemon.__enter__)
            await asyncio.sleep(3 * PERIOD_S)
            watching = [look(daemon.page, watches[0]), ask_each_period(grandmasters, watches[1])]
            tasks = [asyncio.create_task(each) for each in watching]
            await change_all(grandmasters, watches)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    return watches


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    need("snmpget")
    with tempfile.TemporaryDirectory() as folder:
        watches = asyncio.run(measure(Path(folder)))
    medians = []
    for name, watch in zip(("timesyncd's page", "a loop of snmpget"), watches, strict=True):
        shares = sorted(delay_s / PERIOD_S for delay_s in watch.delays_s)
        first, median, third = statistics.quantiles(shares, n=4)
        medians.append(median)
        print(
            f"{name}: median {median:.2f} of a period (quartiles {first:.2f} to {third:.2f}), longest {shares[-1]:.2f}"
        )
    print(
        f"{len(watches[0].delays_s)} changes of {GRANDMASTERS} grandmasters polled each {PERIOD_S} s: ratio {medians[0] / medians[1]:.2f}"
    )


if __name__ == "__main__":
    main()
