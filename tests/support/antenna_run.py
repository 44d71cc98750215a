"""
The antenna of two grandmasters is cut, holdover lasts as long as its budget, the antenna comes back: played once with real parts,
and all that was seen of it.

"oven", a TimeProvider 5000E, is read over SNMP v2c by the hub; a real ptp4l on node-a follows "it". "rack", a TimeProvider 4100, is
read over SNMP v3, HTTPS, traps and syslog; the hub's own clock follows it by a simulated ptp4l.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandmaster_lab import (
    Facts,
    Listener,
    Viewer,
    Workshop,
    free_udp_port,
    grandmaster,
    page,
    place,
    screen,
    secret,
    section,
    simulated,
    stored_alarms,
)
from lab import Watch, ask, eventually

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.clock import Clock
from timesyncd.sample import format_identity
from timesyncd.simulation.bed import host as bed_host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.simulated_ptp4l import GRANDMASTER_IDENTITY, SimulatedPtp4l

TAI_NS = 37_000_000_000
GRANDMASTER_OF = {"node-a": "oven", "hub": "rack"}

#: The antenna is away from and to a time, in real seconds; the speed makes the recovery, 330 simulated s, short.
CUT_S, BACK_S, SPEED = 25, 80, 60

#: An oscillator that a test can see leave its budget.
BUDGET_S, GROWTH_PPB, FIRST_NS = 20, 5_000, 200
OSCILLATOR = {"holdover": [[0, FIRST_NS], [BUDGET_S, FIRST_NS + BUDGET_S * GROWTH_PPB]]}

SCENARIO = f"""
[[action]]
do = "bridging"
value = 0

[[action]]
at_s = {CUT_S * SPEED}
do = "antenna"
value = "open"

[[action]]
at_s = {BACK_S * SPEED}
do = "antenna"
value = "ok"
"""


@dataclass(frozen=True)
class Utc:
    """A node's interval against UTC, why it is so, and CLOCK_REALTIME, which is the truth here, before and after."""

    interval: Interval
    reason: str
    realtime_ns: tuple[int, int]

    @classmethod
    def of(cls, clock: Clock) -> Utc:
        before_ns = time.time_ns()
        interval, _, reason = clock.read(Reference.UTC)
        return cls(interval, reason, (before_ns, time.time_ns()))


@dataclass(frozen=True)
class Phase:
    """What the hub's HTTP side answers at a moment, and what clients of both nodes read."""

    grandmasters: dict[str, dict[str, Any]]
    nodes: dict[str, dict[str, Any]]
    findings: list[dict[str, Any]]
    utc: dict[str, Utc]

    def on(self, grandmaster: str) -> list[dict[str, Any]]:
        """The active findings of a grandmaster."""
        return [finding for finding in self.findings if grandmaster in finding["subject"]]


@dataclass
class AntennaRun:
    """
    The phases in order. `screens` and `page` are of the holdover, `watches` and `listener` of all the time; `kept` are the topics
    that a later subscriber received, `alarms` what the hub stored of rack's own reports.
    """

    locked: Phase
    cut: Phase
    spent: Phase
    back: Phase
    screens: dict[str, str]
    page: str
    watches: dict[str, Watch]
    listener: Listener
    viewer: Viewer
    kept: dict[str, dict[str, Any]]
    alarms: list[dict[str, Any]]


@dataclass
class World:
    """The parts, opened onto `stack` in the order in which they need each other."""

    stack: ExitStack
    folder: Path
    marker: str
    nodes: dict[str, DaemonProcess] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        enter = self.stack.enter_context
        self.bed = enter(PtpBed(relayed=("node-a",), marker=self.marker))
        # The relay makes the timestamps TAI, and from here on ptp4l announces that.
        self.bed.set_relay("node-a", x_ns=TAI_NS)
        workshop = self._workshop = enter(Workshop())
        self._ptp4l = workshop.open(SimulatedPtp4l(self.folder / "ptp4l", 0, is_traceable=True))
        identity = self.announce(6)
        self.broker = enter(Mosquitto(marker=self.marker))
        self.listener = enter(Listener(self.broker))
        self._start("node-a", self.bed.nodes["node-a"].uds_address, "")
        (self.folder / "course.toml").write_text(SCENARIO)
        trap_port, line_port = free_udp_port(), free_udp_port()
        oven = enter(self._simulated("tp5000e"))
        rack = enter(
            self._simulated("tp4100", f"--trap-to=127.0.0.1:{trap_port}", f"--syslog-to=127.0.0.1:{line_port}")
        )
        # A grandmaster that reports by itself needs an address of its own: oven has another one.
        more = [
            grandmaster("oven", oven, self.folder, identities=[identity], oscillator="quartz"),
            grandmaster("rack", rack, self.folder, v3=True, https=True, oscillator="quartz",
                        identities=[format_identity(GRANDMASTER_IDENTITY)]),
            section("[oscillator.quartz]", OSCILLATOR),
            section("[traps]", {"host": "127.0.0.1", "port": trap_port,
                                "communities": [secret(rack["community"], self.folder / "traps")]}),
            section("[syslog]", {"host": "127.0.0.1", "port": line_port}),
        ]  # fmt: skip
        self._start("hub", str(self.folder / "ptp4l"), "".join(more))

    @contextmanager
    def _simulated(self, model: str, *options: str) -> Iterator[Facts]:
        host = "127.0.0.1" if options else "127.0.0.2"
        scenario = ("--scenario", self.folder / "course.toml", "--speed", str(SPEED), "--host", host)
        with simulated(self.marker, "--model", model, *scenario, *options) as facts:
            yield facts

    def _start(self, name: str, uds_address: str, more: str) -> None:
        node = DaemonProcess(name, self.folder / name, uds_address, self.marker, self.broker, name == "hub", more=more)
        self.nodes[name] = self.stack.enter_context(node)
        self.clocks[name] = Clock(self.folder / name)

    def announce(self, clock_class: int) -> str:
        """Have the real and the simulated ptp4l announce what such a grandmaster would; the real one's identity."""
        self._workshop.do(lambda: self._ptp4l.announce(clock_class))
        settings = {
            "clockClass": clock_class, "clockAccuracy": "0x21", "offsetScaledLogVariance": "0x4e5d",
            "currentUtcOffset": 37, "leap61": 0, "leap59": 0, "currentUtcOffsetValid": 1, "ptpTimescale": 1,
            "timeTraceable": 1, "frequencyTraceable": 1, "timeSource": "0x20",
        }  # fmt: skip
        command = "SET GRANDMASTER_SETTINGS_NP " + " ".join(f"{key} {value}" for key, value in settings.items())
        pmc = [bed_host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", self.bed.grandmaster.uds_address]
        pmc += ["-i", str(self.folder / "pmc"), command]
        for _ in range(10):  # on a busy machine pmc may end before the answer comes
            answer = subprocess.run(pmc, check=True, capture_output=True, text=True).stdout
            found = re.search(rf"(\S+)-0 seq 0 RESPONSE MANAGEMENT .*\s+clockClass\s+{clock_class}\b", answer)
            if found:
                return found[1]
        raise AssertionError(answer)

    def phase(self) -> Phase:
        hub = self.nodes["hub"]
        return Phase(
            {grandmaster["name"]: grandmaster for grandmaster in ask(hub, "grandmasters")},
            {node["node"]: node for node in ask(hub, "nodes")},
            [finding for finding in ask(hub, "findings") if finding["until_realtime_ns"] is None],
            {name: Utc.of(clock) for name, clock in self.clocks.items()},
        )

    def kept(self) -> dict[str, dict[str, Any]]:
        """What the broker keeps for later subscribers, by topic."""
        with Listener(self.broker) as later:
            eventually(lambda: {topic for topic, _, _ in later.messages}, lambda seen: len(seen) >= 6)
            return {topic: content for topic, content, is_retained in list(later.messages) if is_retained}


def play() -> AntennaRun:
    with place() as (folder, marker), ExitStack() as stack:
        world = World(stack, folder, marker)
        hub = world.nodes["hub"]
        viewer = stack.enter_context(Viewer(hub))
        watches = {name: stack.enter_context(Watch(clock)) for name, clock in world.clocks.items()}
        locked = eventually(world.phase, is_locked)
        eventually(
            lambda: ask(hub, "grandmasters"),
            lambda grandmasters: all(u["clock_state"] == "holdover" for u in grandmasters),
        )
        world.announce(7)
        cut = eventually(world.phase, is_fully_reported)
        screens = {name: screen(node) for name, node in world.nodes.items()}
        kept = world.kept()
        spent = eventually(world.phase, is_spent)
        shown = page(
            hub,
            lambda text: all(
                text.count(each) == 2 for each in ("grandmaster-antenna · ", "the holdover budget is exhausted")
            ),
        )
        eventually(
            lambda: ask(hub, "grandmasters"),
            lambda grandmasters: all(u["clock_state"] == "locked" for u in grandmasters),
            60,
        )
        world.announce(6)
        back = eventually(world.phase, lambda phase: is_locked(phase) and not phase.on("oven") + phase.on("rack"))
        eventually(
            lambda: [watch.statuses()[-1] for watch in watches.values()],
            lambda last: set(last) == {ClockStatus.SYNCHRONIZED},
        )
        listener = len(world.listener.alarms("rack"))
        alarms = eventually(lambda: stored_alarms(hub, "rack"), lambda stored: len(stored) >= listener)
        return AntennaRun(locked, cut, spent, back, screens, shown, watches, world.listener, viewer, kept, alarms)


def is_locked(phase: Phase) -> bool:
    """
    Both grandmasters answer, and both nodes know UTC by what they measured since the grandmaster's last event. On a busy
    machine a poll may fail in between.
    """
    return set(phase.nodes) == set(GRANDMASTER_OF) and all(
        node["grandmaster_summary"] == f"{grandmaster['name']}: LOCKED"
        and grandmaster["clock_state"] == "locked"
        and node["utc_status"] == phase.utc[node["node"]].interval.status.name == "SYNCHRONIZED"
        and node["published_realtime_ns"] - node["age_ns"] >= (grandmaster["invalid_before_realtime_ns"] or 0)
        for node, grandmaster in (
            (phase.nodes[node], phase.grandmasters[grandmaster]) for node, grandmaster in GRANDMASTER_OF.items()
        )
    )


def is_fully_reported(phase: Phase) -> bool:
    """
    The chain of each grandmaster's finding leads to the node that follows it. A poll in whose midst the antenna was cut sees a grandmaster that
    is locked to nothing; the next one does not.
    """
    return all(
        any(
            step["text"].startswith(f"{node}: UTC bound grows")
            for finding in phase.on(grandmaster)
            for step in finding["chain"]
        )
        for node, grandmaster in GRANDMASTER_OF.items()
    )


def is_spent(phase: Phase) -> bool:
    """For the nodes, which count the time themselves, and in the grandmasters' own states, which are as old as their last poll."""
    lost = [
        phase.nodes[node]["utc"]["bound_ns"] is None and utc.interval.latest is None for node, utc in phase.utc.items()
    ]
    return all(lost) and all(grandmaster["holdover_left_ns"] == 0 for grandmaster in phase.grandmasters.values())
