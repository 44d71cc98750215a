"""
How long an alarm takes from its trap to the MQTT message: a whole daemon that watches fifty other grandmasters too, against net-snmp's
snmptrapd whose log is piped into mosquitto_pub, for the same traps through the same Mosquitto. Goal: p99 below 100 ms.

The peer passes lines on and knows nothing; the daemon separates alarms from events, repetitions and losses, and polls the grandmaster.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiomqtt
from _grandmasters import Facts, cpu_s, need, section, simulated

from timesyncd.config import TOPIC_PREFIX
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import HOST, Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.simulation.grandmaster import Device, SnmpAgent
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, alarm
from timesyncd.simulation.grandmaster.traps import TrapSender

GRANDMASTERS, TRAPS = 50, 400
#: 15 a second on average, below what one sender is allowed, and at no fixed place within a second.
PAUSE_S = (0.03, 0.1)
SETTLE_S = 15
NAP_S = 0.02


@dataclass
class Way:
    """From a trap's port to a topic: when each trap was sent, and when its message came."""

    name: str
    port: int
    topic: str
    number: re.Pattern[bytes]
    sent_s: dict[int, float] = field(default_factory=dict)
    arrived_s: dict[int, float] = field(default_factory=dict)

    def receive(self, payload: bytes) -> None:
        found = self.number.search(payload)
        if found:
            self.arrived_s.setdefault(int(found[1]), time.monotonic())

    @property
    def delays_ms(self) -> list[float]:
        if len(self.arrived_s) != TRAPS:
            raise SystemExit(f"{self.name}: {TRAPS - len(self.arrived_s)} of {TRAPS} traps came to nothing")
        return sorted((self.arrived_s[number] - self.sent_s[number]) * 1_000 for number in self.sent_s)


def both_ways() -> tuple[Way, Way]:
    published, logged = re.compile(rb'"alarm_sequence":(\d+)'), re.compile(rb"\.11\.1\.9\.0 = INTEGER: (\d+)")
    return (
        Way("timesyncd", free_udp_port(), f"{TOPIC_PREFIX}/node/watcher/event", published),
        Way("snmptrapd | mosquitto_pub", free_udp_port(), "peer", logged),
    )


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def piped_trapd(folder: Path, way: Way, community: str, broker: Mosquitto) -> Iterator[None]:
    config = folder / "snmptrapd.conf"
    config.write_text(f"authCommunity log {community}\n")
    form = ["-Lo", "-On", "-F", "%v\n"]
    receive = ["snmptrapd", "-f", "-n", "-m", "", "-C", "-c", str(config), *form, f"udp:{HOST}:{way.port}"]
    publish = ["mosquitto_pub", "-h", HOST, "-p", str(broker.port), "--nodelay", "-t", way.topic, "-l"]
    with (
        subprocess.Popen(host.dying_with_parent(receive), stdout=subprocess.PIPE) as trapd,
        subprocess.Popen(host.dying_with_parent(publish), stdin=trapd.stdout) as publisher,
    ):
        try:
            yield
        finally:
            trapd.terminate()
            publisher.terminate()


def event(number: int) -> DeviceEvent:
    """A fan fails, and runs again, and so on."""
    now_s = time.time()
    return DeviceEvent("raise" if number % 2 else "clear", now_s, alarm("fan", 1, now_s))


async def send(community: str, ways: tuple[Way, Way]) -> None:
    """Each trap both ways, in turns first."""
    agent = SnmpAgent(Device(kind="tp5000e"), community=community)
    async with TrapSender(agent, HOST, ways[0].port) as ours, TrapSender(agent, HOST, ways[1].port) as theirs:
        pairs = list(zip(ways, (ours, theirs), strict=True))
        for number in range(1, TRAPS + 1):
            for way, sender in pairs[:: 1 if number % 2 else -1]:
                way.sent_s[number] = time.monotonic()
                sender.report(event(number))
                await asyncio.sleep(random.uniform(*PAUSE_S) / 2)


async def receive_all(broker: Mosquitto, way: Way) -> None:
    """On a connection of its own, so that no way's messages wait for the other's to be acknowledged."""
    async with aiomqtt.Client(broker.host, broker.port) as client:
        await client.subscribe(way.topic, 1)
        async for message in client.messages:
            way.receive(bytes(message.payload))


async def nap(late_ms: list[float]) -> None:
    """How late a process that wants next to nothing gets the machine: the noise in what is measured."""
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(NAP_S)
        late_ms.append((time.monotonic() - began_s - NAP_S) * 1_000)


async def exchange(broker: Mosquitto, community: str, ways: tuple[Way, Way]) -> list[float]:
    """How late this process itself was, in ms."""
    late_ms: list[float] = []
    beside = [asyncio.create_task(each) for each in (*(receive_all(broker, way) for way in ways), nap(late_ms))]
    await asyncio.sleep(1)
    await send(community, ways)
    await asyncio.wait(beside, timeout=2)
    for task in beside:
        task.cancel()
    await asyncio.wait(beside)
    return late_ms


def configuration(folder: Path, facts: Facts, others: list[Facts], port: int) -> str:
    """The grandmaster that reports has an address of its own; by it a daemon knows the sender of a trap."""
    community = folder / "traps.community"
    community.write_text(facts["community"])
    traps = f'\n[traps]\nhost = "{HOST}"\nport = {port}\ncommunities = [{{ file = "{community}" }}]\n\n'
    return traps + "".join(section(each, folder) for each in (facts, *others))


def measure() -> tuple[tuple[Way, Way], float, list[float]]:
    """Both ways, the daemon's share of a core, and how late this process itself was."""
    with ExitStack() as stack:
        folder, marker, ways = Path(stack.enter_context(tempfile.TemporaryDirectory())), new_marker(), both_ways()
        broker = stack.enter_context(Mosquitto(marker=marker))
        (facts,) = stack.enter_context(simulated("--model", "tp5000e", "--host", HOST))
        others = stack.enter_context(
            simulated("--model", "tp5000e", "--host", "127.0.0.2", "--count", str(GRANDMASTERS))
        )
        more = configuration(folder, facts, others, ways[0].port)
        daemon = stack.enter_context(DaemonProcess("watcher", folder / "watcher", "", marker, broker, more=more))
        stack.enter_context(piped_trapd(folder, ways[1], facts["community"], broker))
        time.sleep(SETTLE_S)
        began, before = time.monotonic(), cpu_s(daemon.process.pid)
        late_ms = asyncio.run(exchange(broker, facts["community"], ways))
        return ways, (cpu_s(daemon.process.pid) - before) / (time.monotonic() - began), late_ms


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    need("snmptrapd", "mosquitto_pub")
    ways, share, late_ms = measure()
    p99s = []
    for way in ways:
        delays_ms = way.delays_ms
        hundredths = statistics.quantiles(delays_ms, n=100, method="inclusive")
        p99s.append(hundredths[98])
        quartiles = f"quartiles {hundredths[24]:.1f} to {hundredths[74]:.1f}"
        print(
            f"{way.name}: p50 {hundredths[49]:.1f} ms ({quartiles}), p99 {p99s[-1]:.1f} ms, longest {delays_ms[-1]:.1f} ms"
        )
    noise_ms = statistics.quantiles(late_ms, n=100)[98]
    print(
        f"{TRAPS} traps at 15 a second, {GRANDMASTERS} other grandmasters: {share:.1%} of a core; noise: a nap was {noise_ms:.1f} ms late at p99"
    )
    print(f"p99 {p99s[0]:.0f} ms (goal < 100 ms), {p99s[0] / p99s[1]:.1f}x that of the peer")


if __name__ == "__main__":
    main()
