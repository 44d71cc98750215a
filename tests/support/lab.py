"""
The whole system for the acceptance tests, of real parts: a PTP bed, a broker, two nodes with a daemon each, and a job of two
ranks that runs in the nodes' network namespaces and keeps a record.

node-a receives its grandmaster directly: its true offset is 0. node-b receives it through a relay that makes the grandmaster look
ahead by X_NS, so there the truth can refute an interval.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.request import urlopen

import aiomqtt

from timesyncd.bound import ClockStatus, Interval
from timesyncd.client.clock import Clock
from timesyncd.config import TOPIC_PREFIX
from timesyncd.ipc.job_datagram import job_id
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import leftovers, marked_environment, new_marker

X_NS = {"node-a": 0, "node-b": 300_000}
HUB = "node-a"
JOB = job_id(os.getuid(), "lab", 0)
HOLDOVER_AFTER_NS = 2_000_000_000
VOID_AFTER_NS = 8_000_000_000

RANK = Path(__file__).parents[1] / "acceptance" / "rank_child.py"
WATCH_EVERY_S = 0.02

T = TypeVar("T")


def eventually(ask: Callable[[], T], holds: Callable[[T], object], within_s: float = 60.0) -> T:
    """The first answer of which it holds; fails with the last one when none came in time."""
    deadline = time.monotonic() + within_s
    while not holds(answer := ask()):
        assert time.monotonic() < deadline, f"after {within_s:g} s still {answer!r}"
        time.sleep(0.05)
    return answer


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One reading of a clock. Each pair of clock readings, one before and one after, encloses the moment of it; `as_of_ns` is
    of the newest sample that the bound rests on, as its end shows (None: there was none, or it was just replaced).
    """

    interval: Interval
    reason: str
    as_of_ns: int | None
    realtime_ns: tuple[int, int]
    boottime_ns: tuple[int, int]

    @classmethod
    def of(cls, clock: Clock) -> Seen:
        bound = clock.snapshot()
        before_ns = time.time_ns(), boottime_ns()
        interval, reason = clock.gm_now(), ""
        if interval.status is not ClockStatus.SYNCHRONIZED:
            interval, _, reason = clock.read()
        after_ns = time.time_ns(), boottime_ns()
        same = bound is not None and clock.snapshot() == bound
        return cls(
            interval,
            reason,
            bound.as_of_ns + bound.void_after_ns - VOID_AFTER_NS if bound is not None and same else None,
            (before_ns[0], after_ns[0]),
            (before_ns[1], after_ns[1]),
        )

    @classmethod
    def recorded(cls, record: dict[str, Any]) -> Seen:
        """By a rank."""
        realtime_ns, boottime_ns = zip(record["before"], record["after"], strict=True)
        return cls(Interval(*record["interval"]), record["reason"], None, realtime_ns, boottime_ns)

    @property
    def width_ns(self) -> int | None:
        earliest, latest = self.interval.earliest, self.interval.latest
        return None if earliest is None or latest is None else latest - earliest

    def holds_truth(self, x_ns: int) -> bool:
        """The grandmaster's time, CLOCK_REALTIME + x, was within the interval at some moment of the call, or there was no interval."""
        earliest, latest = self.interval.earliest, self.interval.latest
        if earliest is None or latest is None:
            return True
        return earliest <= self.realtime_ns[1] + x_ns and self.realtime_ns[0] + x_ns <= latest

    def status_is_due(self) -> bool:
        """The status is what the age of the bound asks for, by the configured limits and to the nanosecond."""
        assert self.as_of_ns is not None
        due = [_due(moment_ns - self.as_of_ns) for moment_ns in self.boottime_ns]
        return due[0] <= _ORDER.index(self.interval.status) <= due[1]


_ORDER = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER, ClockStatus.UNKNOWN)


def _due(age_ns: int) -> int:
    return (age_ns >= HOLDOVER_AFTER_NS) + (age_ns >= VOID_AFTER_NS)


class Watch:
    """`with Watch(clock) as watch:` reads it fifty times a second in a thread; `seen` is all of it, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self.seen: list[Seen] = []
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self.seen.append(Seen.of(self._clock))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(WATCH_EVERY_S):
            self.seen.append(Seen.of(self._clock))

    def statuses(self) -> list[ClockStatus]:
        """In the order of their coming, each once a stretch."""
        statuses = [seen.interval.status for seen in list(self.seen)]
        return [status for index, status in enumerate(statuses) if index == 0 or status is not statuses[index - 1]]


def ask(node: DaemonProcess, what: str) -> Any:
    """What the daemon's HTTP side answers; of a list its items."""
    with urlopen(f"{node.page}api/v1/{what}", timeout=60) as response:
        answer = json.load(response)
    return answer.get("items", answer)


def metric(node: DaemonProcess, name: str) -> float:
    with urlopen(f"{node.page}metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@dataclass
class RankProcess:
    """A rank; `records` are all that it printed so far."""

    process: subprocess.Popen[bytes]
    path: Path

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines()]

    def latest(self) -> dict[str, Any]:
        """Of before the first record: an empty one."""
        return json.loads(self._lines()[-1]) if self._lines() else {}

    def _lines(self) -> list[str]:
        """The whole ones."""
        return [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def rank_process(number: int, folder: Path, peer: Connection, marker: str, enter: list[str]) -> Iterator[RankProcess]:
    """A rank under the daemon of this folder; `peer` is its pipe's end, `enter` what is put before its command."""
    command = [*enter, *host.dying_with_parent([sys.executable, str(RANK), str(number), str(peer.fileno())])]
    path = folder / f"rank-{number}.json"
    with path.open("wb") as output, peer:
        process = subprocess.Popen(
            command,
            env=marked_environment(marker) | {"TIMESYNCD_RUNTIME_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            pass_fds=[peer.fileno()],
            start_new_session=True,
        )
    try:
        yield RankProcess(process, path)
    finally:
        process.kill()
        process.wait()


@dataclass
class Lab:
    """
    `with Lab() as lab:` runs everything, and fails at its end when anything is left of it. Nodes are called as in X_NS; rank 0
    is on node-a, rank 1, the slow one, on node-b.
    """

    marker: str = field(default_factory=new_marker)
    nodes: dict[str, DaemonProcess] = field(default_factory=dict)
    ranks: dict[str, RankProcess] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

        assert leftovers(self.marker) == []
        assert not self.folder.exists()

    def _open(self, stack: ExitStack) -> None:
        # A short path: a UNIX socket's address holds 107 octets.
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ts-")))
        self.bed = stack.enter_context(PtpBed(direct=("node-a",), relayed=("node-b",), marker=self.marker))
        self.bed.set_relay("node-b", x_ns=X_NS["node-b"])
        self.broker = stack.enter_context(Mosquitto(marker=self.marker))
        for number, (name, peer) in enumerate(zip(X_NS, Pipe(), strict=True)):
            # The clocks are opened before there is a daemon, and stay open through all that happens to it.
            self.clocks[name] = Clock(self.folder / name)
            self.nodes[name] = stack.enter_context(self._daemon(name, self.broker, name))
            enter = self.bed.nodes[name].enter()
            rank = rank_process(number, self.folder / name, peer, self.marker, enter)
            self.ranks[name] = stack.enter_context(rank)

    def solo(self) -> DaemonProcess:
        """One more daemon, on node-a's ptp4l, without broker and without a hub of its own making."""
        return self._daemon("solo", None, "node-a")

    def _daemon(self, name: str, broker: Mosquitto | None, ptp4l: str) -> DaemonProcess:
        uds_address = self.bed.nodes[ptp4l].uds_address
        limits = {"holdover_after_ns": HOLDOVER_AFTER_NS, "void_after_ns": VOID_AFTER_NS}
        return DaemonProcess(name, self.folder / name, uds_address, self.marker, broker, name == HUB, {}, limits)

    def settle(self, within_s: float = 60.0) -> None:
        """Wait until every node is in sync, and every rank knows how well the nodes agree."""
        in_sync = [ClockStatus.SYNCHRONIZED] * len(self.clocks)
        eventually(lambda: [clock.gm_now().status for clock in self.clocks.values()], in_sync.__eq__, within_s)
        eventually(lambda: [self.signals(name).get("alignment_ns") for name in self.ranks], all, within_s)

    def signals(self, name: str) -> dict[str, Any]:
        """As the rank on this node read them last; empty: it knew of none."""
        return self.ranks[name].latest().get("signals") or {}

    def retained(self, topic: str) -> dict[str, Any]:
        """What the broker keeps on a topic below the prefix; empty: nothing, or there is no broker."""
        return asyncio.run(_retained(self.broker, f"{TOPIC_PREFIX}/{topic}"))


async def _retained(broker: Mosquitto, topic: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(10), aiomqtt.Client(broker.host, broker.port) as client:
            await client.subscribe(topic)
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                if message.retain:
                    kept: dict[str, Any] = json.loads(message.payload)
                    return kept
    except (TimeoutError, aiomqtt.MqttError):
        pass
    return {}
