"""
Virtual machines that belong together: one folder, one shared memory, cables and relays. Everything ends with the lab.

    with Lab(default_cache()) as lab:
        machine = lab.machine(MachineSpec("node"))
        machine.wait_until_ready()
        print(machine.run("uname -r"))
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from vm_cache import Cache
from vm_machine import Machine, MachineSpec
from vm_relay import Relay
from vm_truth import CounterOffset

SHARED_OCTETS = 1 << 20
HANDSHAKE_COUNT = 3_000
HANDSHAKE_LIMIT_S = 60
HANDSHAKE_TRIES = 3

#: The PCI identity of QEMU's shared memory (ivshmem).
FIND_SHARED_MEMORY = (
    "for d in /sys/bus/pci/devices/*; do "
    "[ $(cat $d/vendor)$(cat $d/device) = 0x1af40x1110 ] && echo 1 > $d/enable && echo $d/resource2; done; true"
)


class Lab:
    """Makes machines, and ends them, their relays and their folder."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.folder = Path(tempfile.mkdtemp(prefix="timesyncd-vm-"))
        self.machines: list[Machine] = []
        self._relays: list[Relay] = []
        self._shared = self.folder / "shared"
        self._shared.write_bytes(bytes(SHARED_OCTETS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.machines:
            machine.close()
        for relay in self._relays:
            relay.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def machine(self, spec: MachineSpec) -> Machine:
        slot = len(self.machines)
        machine = Machine(spec, self.cache, self.folder / spec.name, slot, self._shared)
        self.machines.append(machine)
        return machine

    def cable(self, name: str) -> tuple[str, str]:
        """The two ends of a cable, each a network of one machine."""
        return self._end(f"{name}.0", f"{name}.1"), self._end(f"{name}.1", f"{name}.0")

    def relayed_cable(self, name: str) -> tuple[str, str, Relay]:
        """A cable through a relay, which delays and drops frames in each direction."""
        (first, second), relay = self.hub(name, 2)
        return first, second, relay

    def hub(self, name: str, ends: int) -> tuple[list[str], Relay]:
        """A relay with so many ends, each a network of one machine: what one sends comes to all others."""
        relay = Relay(self.folder, name, ends)
        self._relays.append(relay)
        return [self._end(f"{name}.{end}", f"{name}.relay{end}") for end in range(ends)], relay

    def _end(self, mine: str, other: str) -> str:
        paths = f"local.type=unix,local.path={self.folder}/{mine},remote.type=unix,remote.path={self.folder}/{other}"
        return f"dgram,{paths}"

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """All machines and relays run before everything else on this machine; undone in any case."""
        with ExitStack() as stack:
            for machine in self.machines:
                stack.enter_context(machine.realtime())
            for relay in self._relays:
                stack.enter_context(relay.realtime())
            yield

    def host_counter(self) -> int:
        done = subprocess.run(
            [self.cache.clocktruth, "counter"], capture_output=True, text=True, check=True, timeout=10
        )
        return int(done.stdout)

    def counter_offset(self, machine: Machine) -> CounterOffset:
        """By handshakes over the shared memory: the narrowest of some tries."""
        resource = machine.run(FIND_SHARED_MEMORY).split()[0]
        found = [self._handshakes(machine, resource) for _ in range(HANDSHAKE_TRIES)]
        ends = max(each.lowest for each in found), min(each.highest for each in found)
        # The processors' counters differ by some 100 ns, so the ends may be the wrong way round by that.
        return CounterOffset(min(ends), max(ends))

    def _handshakes(self, machine: Machine, resource: str) -> CounterOffset:
        server = subprocess.Popen([self.cache.clocktruth, "serve", self._shared, str(HANDSHAKE_LIMIT_S)])
        try:
            command = f"clocktruth handshake {resource} {machine.slot} {HANDSHAKE_COUNT}"
            lowest, highest, _ = map(int, machine.run(command, HANDSHAKE_LIMIT_S).split())
        finally:
            server.kill()
            server.wait()
        return CounterOffset(lowest, highest)
