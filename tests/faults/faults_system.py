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
from grandmaster_lab import Workshop, grandmaster
from lab import Watch, ask
from name_server import NameServer
from postgresql import Server, own_server

from timesyncd.bound import ClockStatus
from timesyncd.client.clock import Clock
from timesyncd.errors import StoreError
from timesyncd.sample import format_identity
from timesyncd.simulation.bed.broker import CertificateFiles, Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker, run
from timesyncd.simulation.bed.simulated_ptp4l import GRANDMASTER_IDENTITY, SimulatedPtp4l
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

NODE, HUB, SOURCE = "n1", "hub", "ptp-n1"
BROKER_NAME = "broker.timesyncd.test"
#: The node's clock minus the grandmaster's time.
TRUE_OFFSET_NS = 300_000
#: A fault lasts so long, unless its own nature says otherwise: longer than what the daemon takes for a reconnect.
LASTS_S = 12.0
#: Before a fault, so that what is usual is known.
SETTLES_S = 8.0
#: What does not work again after so long is counted as never.
GIVEN_UP_S = 60.0
LOOK_EVERY_S = 0.1
#: Samples are stored each second, a second after they were taken.
STORED_AFTER_S = 3.0


class NotReady(Exception):
    """The system never worked, or a fault could not be done to it: nothing was judged."""


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
    """What a fault needs that the usual system does not have. `standby`: of PostgreSQL."""

    small_disk: bool = False
    own_disk: bool = False
    postgresql: bool = False
    standby: bool = False
    tls: bool = False
    dns: bool = False
    grandmaster: bool = False


@dataclass
class System:
    """
    `with System(options) as system:` runs it until node and hub agree that all is well. A fault calls `begin`, does its
    work, and calls `end`; `absent` are the spans in which the node's daemon did not run, `others` the intervals of each other client
    and how many of them were wrong.
    """

    options: Options = field(default_factory=Options)
    absent: list[Span] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)
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
        self.hub.more = f"{self._mqtt(Mosquitto.host, self.broker.port)}{self._polled(stack)}"
        self.node = DaemonProcess(NODE, self.folder / NODE, str(self.folder / "ptp4l"), marker, None, has_store=False)
        self.node.enter = self._resolving(stack)
        broker = BROKER_NAME if self.options.dns else Mosquitto.host
        self.node.more = f"{self._mqtt(broker, self.relay.port)}{more}"
        self.clock = Clock(self.folder / NODE)
        stack.enter_context(self.hub)
        stack.enter_context(self.node)
        self.watch = stack.enter_context(Watch(self.clock))
        parts = self.parts(time.time_ns())
        if self.wait_until(lambda: all(works() for works in parts.values())) is None:
            raise NotReady(
                f"not ready within {GIVEN_UP_S:g} s: {', '.join(n for n, works in parts.items() if not answers(works))}"
            )
        time.sleep(SETTLES_S)

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

    def _mqtt(self, host: str, port: int) -> str:
        tls = f'tls = true\nca = "{self.authority.ca}"\n' if self.options.tls else ""
        return f'\n[mqtt]\nhost = "{host}"\nport = {port}\n{tls}'

    def _more(self, stack: ExitStack) -> str:
        """The node's store."""
        self.postgresql: Server | None = None
        self.standby: Server | None = None
        if self.options.postgresql:
            self.postgresql = stack.enter_context(own_server())
            self.location = self.postgresql.database()
            if self.options.standby:
                self.standby = stack.enter_context(own_server(self.postgresql))
                both = f"{self.location.url}&host={self.standby.folder}&target_session_attrs=read-write"
                self.location = StoreLocation(url=both)
            return f'\n[store]\nurl = "{self.location.url}"\n'
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        if self.options.small_disk:
            run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.disk)])
            stack.callback(run, ["umount", "-l", str(self.disk)])
        if self.options.own_disk:
            run(["truncate", "-s", "64M", str(self.image)])
            run(["mkfs.ext4", "-q", str(self.image)])
            self.mount()
            stack.callback(run, ["umount", "-l", str(self.disk)])
        self.location = StoreLocation(path=self.disk / "history.sqlite")
        return f'\n[store]\npath = "{self.location.path}"\n'

    @property
    def image(self) -> Path:
        """What the own disk is on."""
        return self.folder / "disk.ext4"

    def mount(self) -> None:
        run(["mount", "-o", "loop", str(self.image), str(self.disk)])

    def _polled(self, stack: ExitStack) -> str:
        """The node's grandmaster, which the hub polls."""
        if not self.options.grandmaster:
            return ""
        self.workshop = stack.enter_context(Workshop())
        (self.grandmaster,) = self.workshop.grandmasters(model="tp5000e")
        identities = [format_identity(GRANDMASTER_IDENTITY)]
        return grandmaster("gm", self.grandmaster.facts(), self.folder / "secrets", identities=identities)

    def _resolving(self, stack: ExitStack) -> tuple[str, ...]:
        """What makes the node ask our name server."""
        if not self.options.dns:
            return ()
        self.names = stack.enter_context(NameServer(BROKER_NAME))
        (resolv_conf := self.folder / "resolv.conf").write_text(f"nameserver {self.names.host}\n")
        bound = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", bound, str(resolv_conf))

    def start_ptp4l(self) -> None:
        """A new process, as the daemon sees it: with an identity of its own."""
        self._ptp4l = SimulatedPtp4l(self.folder / "ptp4l", TRUE_OFFSET_NS, self.options.grandmaster)
        self.loop.do(self._ptp4l.__aenter__())

    def stop_ptp4l(self) -> None:
        self.loop.do(self._ptp4l.__aexit__())

    def set_relay(self, fault: BrokerFault) -> None:
        self.loop.do(self.relay.set_fault(fault))

    def expired_certificate(self, is_expired: bool) -> CertificateFiles:
        """Replaces the broker's certificate, which it reads when it starts."""
        return self.authority.identity("broker", host=Mosquitto.host, is_expired=is_expired)

    def begin(self) -> None:
        self.stored_before = self.stored(time.time_ns() - 30 * NS_PER_S)
        self.began_ns = time.time_ns()

    def end(self) -> None:
        self.ended_ns = time.time_ns()

    def start_again(self, ended_ns: int) -> None:
        """As a service manager does it: what was done is over, and the recovery begins."""
        self.end()
        self.node.launch()
        self.absent.append((ended_ns, self.first_stored_ns(ended_ns)))

    def first_stored_ns(self, since_ns: int) -> int:
        """The first sample after this; a daemon that stores none is absent until then."""
        self.wait_until(lambda: any(self.stored(since_ns)))
        return min(self.stored(since_ns), default=time.time_ns())

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
        samples = self.stored(min(self.stored_before, default=self.began_ns))
        gone = set(self.stored_before).difference(samples)
        return Record(
            intervals=len(seen) + sum(intervals for intervals, _ in self.others),
            wrong=sum(not each.holds_truth(-TRUE_OFFSET_NS) for each in bounded)
            + sum(wrong for _, wrong in self.others),
            lost_s=lost_s(samples, min(gone, default=self.began_ns), self.ended_ns, self.absent),
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
