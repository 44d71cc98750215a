"""The system that a fault meets: a node with a known true offset behind a relay to a real broker, and a hub."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from authority import Authority
from broker_relay import BrokerFault, BrokerRelay
from faults_judging import NS_PER_S, Record, Span, lost_s
from lab import Watch, ask
from postgresql import Server, own_server

from timesyncd.bound import ClockStatus
from timesyncd.client.clock import Clock
from timesyncd.errors import StoreError
from timesyncd.simulation.bed.broker import CertificateFiles, Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker, run
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

NODE, HUB, SOURCE = "n1", "hub", "ptp-n1"
#: The node's clock minus the grandmaster's time.
TRUE_OFFSET_NS = 300_000
#: A fault lasts so long, unless its own nature says otherwise: longer than what the daemon takes for a reconnect.
LASTS_S = 12.0
#: What does not work again after so long is counted as never.
GIVEN_UP_S = 60.0
LOOK_EVERY_S = 0.1
#: Samples are stored each second, a second after they were taken.
STORED_AFTER_S = 3.0


class Loop:
    """An event loop in a thread: the simulated ptp4l and the relay go on while a fault is made."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Options:
    """What a fault needs that the usual system does not have."""

    small_disk: bool = False
    postgresql: bool = False
    tls: bool = False


@dataclass
class System:
    """
    `with System(options) as system:` runs it until node and hub agree that all is well. A fault calls `begin`, does its
    work, and calls `end`; `absent` are the spans in which the node's daemon did not run.
    """

    options: Options = field(default_factory=Options)
    absent: list[Span] = field(default_factory=list)
    began_ns: int = 0
    ended_ns: int = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _open(self, stack: ExitStack) -> None:
        # A short path: a UNIX socket's address holds 107 octets.
        self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="ts-")))
        self.loop = Loop()
        stack.callback(self.loop.close)
        self._serve(stack)
        marker, more = new_marker(), self._more(stack)
        self.hub = DaemonProcess(HUB, self.folder / HUB, "", marker, None, hub=True)
        self.hub.more = f"{self._mqtt(self.broker.port)}"
        self.node = DaemonProcess(NODE, self.folder / NODE, str(self.folder / "ptp4l"), marker, None, has_store=False)
        self.node.more = f"{self._mqtt(self.relay.port)}{more}"
        self.clock = Clock(self.folder / NODE)
        stack.enter_context(self.hub)
        stack.enter_context(self.node)
        self.watch = stack.enter_context(Watch(self.clock))
        self.wait_until(lambda: all(works() for works in self.parts(time.time_ns()).values()))

    def _serve(self, stack: ExitStack) -> None:
        self.certificates = self.folder / "pki"
        self.certificates.mkdir()
        self.authority = Authority(self.certificates)
        tls = self.authority.identity("broker", host=Mosquitto.host) if self.options.tls else None
        self.broker = stack.enter_context(Mosquitto(tls=tls))
        exits = AsyncExitStack()
        self.relay: BrokerRelay = self.loop.do(exits.enter_async_context(BrokerRelay(self.broker.port)))
        self.start_ptp4l()
        stack.callback(self.stop_ptp4l)
        stack.callback(lambda: self.loop.do(exits.aclose()))

    def _mqtt(self, port: int) -> str:
        tls = f'tls = true\nca = "{self.authority.ca}"\n' if self.options.tls else ""
        return f'\n[mqtt]\nhost = "{Mosquitto.host}"\nport = {port}\n{tls}'

    def _more(self, stack: ExitStack) -> str:
        """The node's store."""
        self.postgresql: Server | None = None
        if self.options.postgresql:
            self.postgresql = stack.enter_context(own_server())
            self.location = self.postgresql.database()
            return f'\n[store]\nurl = "{self.location.url}"\n'
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        if self.options.small_disk:
            run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.disk)])
            stack.callback(run, ["umount", "-l", str(self.disk)])
        self.location = StoreLocation(path=self.disk / "history.sqlite")
        return f'\n[store]\npath = "{self.location.path}"\n'

    def start_ptp4l(self) -> None:
        """A new process, as the daemon sees it: with an identity of its own."""
        self._ptp4l = SimulatedPtp4l(self.folder / "ptp4l", TRUE_OFFSET_NS)
        self.loop.do(self._ptp4l.__aenter__())

    def stop_ptp4l(self) -> None:
        self.loop.do(self._ptp4l.__aexit__())

    def set_relay(self, fault: BrokerFault) -> None:
        self.loop.do(self.relay.set_fault(fault))

    def expired_certificate(self, is_expired: bool) -> CertificateFiles:
        """Replaces the broker's certificate, which it reads when it starts."""
        return self.authority.identity("broker", host=Mosquitto.host, is_expired=is_expired)

    def begin(self) -> None:
        self.began_ns = time.time_ns()

    def end(self) -> None:
        self.ended_ns = time.time_ns()

    def stored(self, since_ns: int) -> list[int]:
        """When the stored samples were taken."""
        try:
            return [row["realtime_ns"] for row in history.samples(self.location, SOURCE, since_ns, 2**62)]
        except StoreError:
            return []

    def parts(self, since_ns: int) -> dict[str, Callable[[], bool]]:
        """What has to work again after `since_ns`, each as a question."""
        return {
            "clock": lambda: self.clock.gm_now().status is ClockStatus.SYNCHRONIZED,
            "page": lambda: ask(self.node, "node")["status"] == "SYNCHRONIZED",
            "hub": lambda: self._hub_knows(since_ns),
            "store": lambda: any(self.stored(since_ns)),
        }

    def _hub_knows(self, since_ns: int) -> bool:
        state = ask(self.hub, f"nodes/{NODE}")
        return bool(state["published_realtime_ns"] > since_ns and state["status"] == "SYNCHRONIZED")

    def wait_until(self, holds: Callable[[], bool], within_s: float = GIVEN_UP_S) -> float | None:
        """In how many seconds it held; None: not in time. A part that does not answer does not hold."""
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < within_s:
            if answers(holds):
                return passed_s
            time.sleep(LOOK_EVERY_S)
        return None

    def record(self) -> Record:
        """After the fault has ended: waits for every part, and gives what was measured."""
        waiting, recovered = self.parts(self.ended_ns), dict[str, float | None]()
        while waiting and time.time_ns() - self.ended_ns < GIVEN_UP_S * NS_PER_S:
            for part in [part for part, works in waiting.items() if answers(works)]:
                recovered[part] = (time.time_ns() - self.ended_ns) / NS_PER_S
                del waiting[part]
            time.sleep(LOOK_EVERY_S)
        recovered |= dict.fromkeys(waiting)
        time.sleep(STORED_AFTER_S)
        seen = [each for each in list(self.watch.seen) if each.realtime_ns[0] >= self.began_ns - 2 * NS_PER_S]
        bounded = [each for each in seen if each.width_ns is not None]
        samples = self.stored(self.began_ns - 30 * NS_PER_S)
        return Record(
            intervals=len(seen),
            wrong=sum(not each.holds_truth(-TRUE_OFFSET_NS) for each in bounded),
            lost_s=lost_s(samples, self.began_ns, self.ended_ns, self.absent),
            reported=self._reported(),
            recovered=recovered,
        )

    def _reported(self) -> frozenset[str]:
        """The findings of node and hub since the fault began."""
        found: set[str] = set()
        for daemon in (self.node, self.hub):
            try:
                findings = ask(daemon, "findings")
            except OSError:
                continue
            found |= {each["id"] for each in findings if (each["until_realtime_ns"] or 2**62) >= self.began_ns}
        return frozenset(found)


def answers(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except (OSError, KeyError, ValueError):
        return False
