"""Faults that need a machine's own means: a memory cgroup, a disk of their own, a package of an earlier commit, a standby, a name server."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from broker_relay import BrokerFault
from faults_system import GIVEN_UP_S, LASTS_S, NODE, TRUE_OFFSET_NS, NotReady, System

from timesyncd.simulation.grandmaster.lies import LIES, ProtocolLie

ROOT = Path(__file__).parents[2]

MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 64 * 2**20
#: Takes more than there is, and is not what the kernel chooses.
HOG = """
open("/proc/self/oom_score_adj", "w").write("-1000")
taken = []
while True:
    taken.append(bytearray(b"x" * 2**20))
"""


@contextmanager
def memory_cgroup(*pids: int) -> Iterator[Path]:
    """These processes in a group that may take LIMIT_BYTES more (cgroup v1)."""
    group = MEMORY_CGROUP / f"timesyncd-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotReady(f"needs a memory cgroup: {error}") from error
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (MEMORY_CGROUP / "cgroup.procs").write_text(left)
        group.rmdir()


def out_of_memory(system: System) -> None:
    """Beside the daemon something fills its memory cgroup; the kernel kills the daemon, and it is started again outside."""
    with memory_cgroup(system.node.process.pid) as group:
        system.begin()
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)\n" + HOG]) as hog:
            (group / "cgroup.procs").write_text(str(hog.pid))
            try:
                status = system.node.process.wait(GIVEN_UP_S)
            finally:
                hog.kill()
    killed_ns = time.time_ns()
    if status != -signal.SIGKILL:
        raise NotReady(f"the kernel did not kill the daemon: exit status {status}")
    system.start_again(killed_ns)


#: FIFREEZE, FITHAW (linux/fs.h) and EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h).
_FREEZE, _THAW, _SHUT_DOWN, _WITHOUT_THE_LOG = 0xC0045877, 0xC0045878, 0x8004587D, 2


def _ask_disk(system: System, request: int, argument: bytes | int = 0) -> None:
    descriptor = os.open(system.disk, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)


def disk_hangs(system: System) -> None:
    """Each write waits until the end."""
    system.begin()
    _ask_disk(system, _FREEZE)
    try:
        time.sleep(LASTS_S)
    finally:
        _ask_disk(system, _THAW)
    system.end()


def disk_slow(system: System) -> None:
    """Each write waits for up to a second: there are 20 ms for writes in each."""
    system.begin()
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        _ask_disk(system, _FREEZE)
        try:
            time.sleep(0.98)
        finally:
            _ask_disk(system, _THAW)
        time.sleep(0.02)
    system.end()


def disk_vanished(system: System) -> None:
    """Everything on it fails (EIO), what the kernel had not written yet is lost, and then it is there again."""
    system.begin()
    _ask_disk(system, _SHUT_DOWN, struct.pack("I", _WITHOUT_THE_LOG))
    time.sleep(LASTS_S)
    if system.wait_until(partial(is_unmounted, system)) is None:
        raise NotReady("the daemon keeps files of the vanished disk open")
    system.mount()
    system.end()


def is_unmounted(system: System) -> bool:
    """For good: a file that is still open would bring the broken file system back with the next mount."""
    return subprocess.run(["umount", str(system.disk)], capture_output=True, check=False).returncode == 0


#: The last commit with the former layout of the clock segment: its clients cannot read what today's daemon writes, nor ours its.
EARLIER = "b06fe01"
#: A client for as long as its standard input is open; prints how many intervals it had and how many lacked the true time.
CLIENT = """
import sys, threading, time
from timesyncd.client.clock import Clock
clock, true_ns, over = Clock(sys.argv[1]), int(sys.argv[2]), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
intervals = wrong = 0
while not over.wait(0.02):
    before = time.time_ns()
    interval = clock.gm_now()
    after = time.time_ns()
    intervals += 1
    if interval.earliest is not None:
        wrong += not (interval.earliest <= after + true_ns and before + true_ns <= interval.latest)
print(f"[{intervals}, {wrong}]")
"""


def package_of(commit: str, folder: Path) -> Path:
    """Where the wheel built at this commit is unpacked. Raises NotReady."""
    source, wheels, unpacked = folder / "source", folder / "wheels", folder / "package"
    source.mkdir()
    try:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
        subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise NotReady(f"no wheel of {commit}: {error.stderr.decode(errors='replace').strip()[-200:]}") from error
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as content:
        content.extractall(unpacked)
    return unpacked


@contextmanager
def client(system: System, python_path: Path) -> Iterator[None]:
    """A running client of this package; its intervals count."""
    command = [sys.executable, "-P", "-c", CLIENT, str(system.folder / NODE), str(-TRUE_OFFSET_NS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(python_path)}
    ) as process:
        yield
        output, _ = process.communicate(timeout=60)
    intervals, wrong = json.loads(output)
    system.others.append((intervals, wrong))


def other_version(system: System) -> None:
    """A downgrade of the node to an earlier commit, and the upgrade back, while clients of both versions run."""
    earlier = package_of(EARLIER, system.folder)
    with ExitStack() as stack:
        stack.enter_context(client(system, earlier))
        system.begin()
        stopped_ns = time.time_ns()
        system.node.stop()
        system.node.enter = ("env", f"PYTHONPATH={earlier}")
        system.node.start()
        system.absent.append((stopped_ns, system.first_stored_ns(stopped_ns)))
        time.sleep(LASTS_S)
        stopped_ns = time.time_ns()
        system.node.stop()
        system.node.enter = ()
        system.start_again(stopped_ns)
        system.wait_until(lambda: any(system.stored(system.ended_ns)))


def postgresql_fails_over(system: System) -> None:
    """The primary is killed, and its standby is promoted."""
    assert system.postgresql is not None and system.standby is not None
    system.begin()
    system.postgresql.kill()
    time.sleep(LASTS_S)
    system.standby.promote()
    system.end()


def no_names(system: System) -> None:
    """The name server answers nothing, and the daemon has to connect again."""
    system.begin()
    system.names.is_silent = True
    system.set_relay(BrokerFault.DROPPING)
    system.set_relay(BrokerFault.NONE)
    time.sleep(LASTS_S)
    system.names.is_silent = False
    system.end()


class Noise(ProtocolLie):
    """Each answer is random bytes."""

    def datagrams(self, octets: bytes) -> list[bytes]:
        return [os.urandom(len(octets))]


GARBAGE: dict[str, Callable[[], ProtocolLie]] = {
    name: LIES[name] for name in ("truncated", "lying-length", "other-request", "not-advancing", "wrong-types")
} | {"noise": Noise}


def grandmaster_sends_garbage(system: System) -> None:
    """Each kind of wrong answer for three seconds, over SNMP."""
    system.begin()
    for lie in GARBAGE.values():
        system.workshop.do(partial(setattr, system.grandmaster.agent, "lie", lie()))
        time.sleep(LASTS_S / 4)
    system.workshop.do(partial(setattr, system.grandmaster.agent, "lie", LIES["none"]()))
    system.end()
