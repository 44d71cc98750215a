"""Two ptp4l of the row's version on one link, of which the node has its default sockets and the options that a test gives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from timesyncd.driver import Driver
from timesyncd.drivers.ptp4l._management import ManagementRequester
from timesyncd.sample import ClockSample, Reading
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import End, Namespace, join
from timesyncd.simulation.bed.ptp4l import DOMAIN, Ptp4lProcess, configuration

NOBODY = 65534
WITHIN_S = 60.0


def as_nobody(command: Sequence[str]) -> list[str]:
    """May read everything, since the interpreter may lie in root's home; a socket wants the right to write."""
    reading = [
        "--bounding-set=-all,+dac_read_search",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", *reading]
    return [host.find("setpriv"), "--pdeathsig", "KILL", *identity, *command]


#: argv: driver's module and class, its options as JSON, folder. Prints what it read first, or the error.
READ_ONCE = """
import asyncio, importlib, json, sys
from pathlib import Path
from timesyncd.errors import SourceError
from timesyncd.sample import NoSample
async def main(module, name, options, folder):
    kind = getattr(importlib.import_module(module), name)
    driver = kind("a", kind.Options.model_validate(json.loads(options)), Path(folder))
    try:
        await driver.open()
        while True:
            for reading in await driver.poll():
                if not isinstance(reading, NoSample):
                    return f"{type(reading).__name__} {getattr(driver, '_server', None) or getattr(driver, '_address', '')}"
            await asyncio.sleep(max(0.05, driver.poll_interval_s))
    except SourceError as error:
        return str(error)
    finally:
        await driver.close()
print(asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60)))
"""


def answer_of_nobody(kind: type[Driver], options: dict[str, object], folder: Path) -> str:
    """The class of the first sample that a user without rights gets and the address that it is from, or the driver's error."""
    command = [sys.executable, "-c", READ_ONCE, kind.__module__, kind.__name__, json.dumps(options), str(folder)]
    done = subprocess.run(as_nobody(command), capture_output=True, text=True, check=False, timeout=90, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Node:
    """A ptp4l that follows the grandmaster beside it."""

    grandmaster: Ptp4lProcess
    namespace: Namespace
    folder: Path
    command: list[str]
    output: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                self.namespace.enter(host.dying_with_parent(self.command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.output.read_text()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def pmc(self, server: Path | str, question: str) -> str:
        """What linuxptp's own client of the same version prints."""
        command = [
            host.find("pmc"),
            "-u",
            "-b",
            "0",
            "-d",
            str(DOMAIN),
            "-s",
            str(server),
            "-i",
            str(self.folder / "pmc"),
            question,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def pair(
    folder: Path, options: dict[str, object] | None = None, transport: str = "UDPv4", before: Sequence[str] = ()
) -> Iterator[Node]:
    """
    Both run; the node's sockets are where ptp4l puts them by default, unless the options state another place. `before` is put before
    the node's command.
    """
    with contextlib.ExitStack() as stack:
        namespaces = [Namespace(), Namespace()]
        for namespace in namespaces:
            stack.callback(namespace.close)
        # IPv6 waits about two seconds for an address that nothing else has.
        for namespace in namespaces:
            namespace.run(["sysctl", "-q", "-w", "net.ipv6.conf.default.accept_dad=0"])
        join(End("node0", "10.199.0.1/24", namespaces[0]), End("ptp0", "10.199.0.2/24", namespaces[1]))
        config = folder / "node.cfg"
        config.write_text(node_configuration({"network_transport": transport} | (options or {})))
        grandmaster = _Grandmaster(folder, namespaces[0], transport)
        stack.callback(grandmaster.kill)
        node = Node(
            grandmaster,
            namespaces[1],
            folder,
            [*before, host.find("ptp4l"), "-f", str(config), "-m", "-q"],
            folder / "node.log",
        )
        node.start()
        stack.callback(node.end)
        yield node


class _Grandmaster(Ptp4lProcess):
    """Over the transport that is wanted; its sockets are in the folder."""

    def __init__(self, folder: Path, namespace: Namespace, transport: str) -> None:
        self.transport = transport
        super().__init__("gm", folder, namespace, ["node0"], is_grandmaster=True)

    def _start(self) -> subprocess.Popen[bytes]:
        text = self._configuration.read_text()
        if "network_transport" not in text:
            self._configuration.write_text(text.replace("[global]", f"[global]\nnetwork_transport {self.transport}", 1))
        return super()._start()


def node_configuration(options: dict[str, object]) -> str:
    """The test bed's, without the addresses of the sockets."""
    text = configuration(Path("unused"), ["ptp0"], is_grandmaster=False, has_read_only_socket=False)
    lines = [line for line in text.splitlines() if line.split()[0] not in ("uds_address", *options)]
    return "\n".join([lines[0], *(f"{key} {value}" for key, value in options.items()), *lines[1:], ""])


async def until(driver: Driver, holds: Callable[[Reading], bool], within_s: float = WITHIN_S) -> Reading:
    """The first reading of which it holds."""
    deadline = time.monotonic() + within_s
    seen: list[Reading] = []
    while time.monotonic() < deadline:
        for reading in await driver.poll():
            if holds(reading):
                return reading
            seen.append(reading)
        await asyncio.sleep(driver.poll_interval_s)
    raise AssertionError(f"never came: {seen[-3:]}")


async def first_sample(driver: Driver) -> ClockSample:
    """The first with a path delay."""
    found = await until(driver, lambda reading: isinstance(reading, ClockSample) and reading.path_delay_ns > 0)
    assert isinstance(found, ClockSample)
    return found


PORT_STATE, TIME_SYNC, PARENT_DATA_SET = 0, 1, 2
_EVENTS_AT = 56  # in a subscription: behind header, target, TLV and duration


def raw_pushes(server: Path, own: Path, provoke: Callable[[], None], seconds: float) -> Counter[int]:
    """How often each management id is pushed to a subscriber of all events, while something is done."""
    requester = ManagementRequester(DOMAIN, 0, 0x12345677)
    request = bytearray(requester.subscribe(60, 1))
    request[_EVENTS_AT] = 1 << PORT_STATE | 1 << TIME_SYNC | 1 << PARENT_DATA_SET
    found: Counter[int] = Counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(own))
        own.chmod(0o666)
        end.settimeout(0.2)
        end.sendto(request, str(server))
        provoke()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                datagram = end.recv(2048)
                found[int.from_bytes(datagram[52:54])] += 1
        end.sendto(requester.subscribe(0, 2), str(server))
    own.unlink()
    return found
