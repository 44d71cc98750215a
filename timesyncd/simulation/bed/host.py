"""
Network namespaces without names, joined by veth pairs.

Where the programs of the test bed are, and which Debian package brings each.

What a test bed left behind: its processes carry a marker in their environment.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from timesyncd.errors import TimesyncdError

PACKAGES = {
    "ptp4l": "linuxptp",
    "pmc": "linuxptp",
    "mosquitto": "mosquitto",
    "mosquitto_passwd": "mosquitto",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def find(tool: str) -> str:
    """The tool's path, looked for in /usr/sbin too (not everybody's PATH has it). Raises TimesyncdError."""
    path = _which(tool)
    if path is None:
        raise TimesyncdError(f"{tool} is not installed: Debian package {PACKAGES[tool]}")
    return path


def missing_packages() -> list[str]:
    """The Debian packages without which the whole test bed cannot run."""
    return sorted({package for tool, package in PACKAGES.items() if _which(tool) is None})


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def dying_with_parent(command: list[str]) -> list[str]:
    """The command, killed by the kernel when the thread that started it ends."""
    return [find("setpriv"), "--pdeathsig", "KILL", *command]


class Namespace:
    """
    A network namespace held by a process of its own. That process ends when its standard input closes, hence with us,
    and the namespace with it. Raises TimesyncdError when we may not make one.
    """

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            [find("unshare"), "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._wait_until_inside()
        self.run(["ip", "link", "set", "lo", "up"])

    def _wait_until_inside(self) -> None:
        assert self._holder.stdin and self._holder.stdout and self._holder.stderr
        try:
            self._holder.stdin.write(b"inside\n")
            self._holder.stdin.flush()
        except BrokenPipeError:
            pass  # the empty answer shows it
        if self._holder.stdout.readline() != b"inside\n":
            raise TimesyncdError(f"no network namespace: {self._holder.stderr.read().decode().strip()}")

    @property
    def pid(self) -> int:
        """A process inside, by which `ip link` and `nsenter` name this namespace."""
        return self._holder.pid

    def enter(self, command: list[str]) -> list[str]:
        """The command, run inside."""
        return [find("nsenter"), f"--net=/proc/{self.pid}/ns/net", *command]

    def run(self, command: list[str]) -> None:
        run(self.enter([find(command[0]), *command[1:]]))

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@dataclass(frozen=True, slots=True)
class End:
    """One end of a veth pair; `namespace` None = the namespace that we are in."""

    interface: str
    address: str
    namespace: Namespace | None = None


def join(one: End, other: End) -> None:
    """A veth pair between two namespaces, both ends up and with an address. Raises TimesyncdError."""
    run(
        [find("ip"), "link", "add", one.interface, *_netns(one)]
        + ["type", "veth", "peer", "name", other.interface, *_netns(other)]
    )
    for end in (one, other):
        enter = end.namespace.enter if end.namespace else list[str]
        run(enter([find("ip"), "address", "add", end.address, "dev", end.interface]))
        run(enter([find("ip"), "link", "set", end.interface, "up"]))


def _netns(end: End) -> list[str]:
    return ["netns", str(end.namespace.pid)] if end.namespace else []


def run(command: list[str]) -> None:
    """Run to its end. Raises TimesyncdError with what it wrote."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise TimesyncdError(f"{' '.join(command)}: {done.stderr.strip()}")


VARIABLE = "TIMESYNCD_TESTBED"


def new_marker() -> str:
    """A marker that no other test bed has."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def marked_environment(marker: str) -> dict[str, str]:
    """Our environment for a child process that `leftovers` shall find, and its children too."""
    return os.environ | {VARIABLE: marker}


def leftovers(marker: str) -> list[str]:
    """
    The processes that carry the marker, and the network namespaces that they keep alive; empty is what it should be.

    Namespaces of the test bed have no name, so none outlives its last process.
    """
    own_network = os.readlink("/proc/self/ns/net")
    processes: list[str] = []
    networks: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{VARIABLE}={marker}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            networks.add(os.readlink(folder / "ns" / "net"))
        except OSError:  # it ended meanwhile, or is another user's
            continue
        processes.append(f"process {folder.name}: {command}")
    return sorted(processes) + [f"namespace {network}" for network in sorted(networks - {own_network})]
