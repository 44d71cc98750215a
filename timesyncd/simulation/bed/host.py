"""Network namespaces without names, joined by veth pairs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import tools


class Namespace:
    """
    A network namespace held by a process of its own. That process ends when its standard input closes, hence with us,
    and the namespace with it. Raises TimesyncdError when we may not make one.
    """

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            [tools.find("unshare"), "--net", "cat"],
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
            pass  # the empty answer tells
        if self._holder.stdout.readline() != b"inside\n":
            raise TimesyncdError(f"no network namespace: {self._holder.stderr.read().decode().strip()}")

    @property
    def pid(self) -> int:
        """A process inside, by which `ip link` and `nsenter` name this namespace."""
        return self._holder.pid

    def enter(self, command: list[str]) -> list[str]:
        """The command, run inside."""
        return [tools.find("nsenter"), f"--net=/proc/{self.pid}/ns/net", *command]

    def run(self, command: list[str]) -> None:
        run(self.enter([tools.find(command[0]), *command[1:]]))

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
        [tools.find("ip"), "link", "add", one.interface, *_netns(one)]
        + ["type", "veth", "peer", "name", other.interface, *_netns(other)]
    )
    for end in (one, other):
        enter = end.namespace.enter if end.namespace else list[str]
        run(enter([tools.find("ip"), "address", "add", end.address, "dev", end.interface]))
        run(enter([tools.find("ip"), "link", "set", end.interface, "up"]))


def _netns(end: End) -> list[str]:
    return ["netns", str(end.namespace.pid)] if end.namespace else []


def run(command: list[str]) -> None:
    """Run to its end. Raises TimesyncdError with what it wrote."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise TimesyncdError(f"{' '.join(command)}: {done.stderr.strip()}")
