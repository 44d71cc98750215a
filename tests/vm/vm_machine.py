"""
One virtual machine: QEMU without hardware virtualization (TCG), commands in the guest, and QEMU's own control (QMP).

A command runs in the guest by `run`, the only way. It goes over a virtio serial port, so it needs no network.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vm_cache import KERNEL, Cache

BOOT_LIMIT_S = 400
DEVICES_LIMIT_S = 90
COMMAND_LIMIT_S = 60
TRANSFER_S = 15
QMP_LIMIT_S = 30
STOP_LIMIT_S = 10
SLEEP_LIMIT_S = 60
CONNECT_LIMIT_S = 15
PING_PERIOD_S = 0.5

REALTIME_PRIORITY = 10

#: Without hardware virtualization Linux would distrust the counter and use a slow clock: clocksource, tsc.
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet loglevel=4 rw clocksource=tsc tsc=reliable hpet=disable mitigations=off random.trust_cpu=on net.ifnames=0 "
    "systemd.show_status=0"
)


class MachineError(Exception):
    """The virtual machine did not do what it should; the text has its name, what was asked, and what it replied."""


class Answer(NamedTuple):
    """What a command in the guest ended with; its standard output and errors together. 124: it ran past its limit."""

    status: int
    output: str


@dataclass(frozen=True)
class MachineSpec:
    """
    `networks` are QEMU's -netdev without its id, one for each network card. `own_disk` copies the disk, so that
    a second QEMU can go on with it; else nothing that the guest writes is kept. `kernel_arguments` and `qemu_arguments` are added.
    """

    name: str
    networks: tuple[str, ...] = ()
    memory_mib: int = 512
    kernel: str = KERNEL
    own_disk: bool = False
    kernel_arguments: str = ""
    qemu_arguments: tuple[str, ...] = ()


def qemu_command(spec: MachineSpec, cache: Cache, folder: Path, slot: int, disk: Path, shared: Path) -> list[str]:
    """`slot` numbers the machines of a lab: it makes the network cards' addresses differ."""
    snapshot = "off" if spec.own_disk else "on"
    command = [
        str(cache.qemu), "-name", spec.name, "-accel", "tcg", "-machine", "q35", "-cpu", "Nehalem", "-m", str(spec.memory_mib),
        "-global", "ICH9-LPC.disable_s3=0",
        "-smp", "1", "-nographic", "-nodefaults", "-no-user-config", "-rtc", "base=utc",
        "-kernel", str(cache.kernel(spec.kernel)), "-initrd", str(cache.initrd(spec.kernel)),
        "-append", f"{KERNEL_ARGUMENTS} {spec.kernel_arguments}",
        "-drive", f"file={disk},if=virtio,format=raw,snapshot={snapshot},cache=unsafe",
        "-chardev", f"file,id=console,path={folder}/console.log,append=on", "-serial", "chardev:console",
        "-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={folder}/agent.sock,server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=timesyncd.0", "-qmp", f"unix:{folder}/qmp.sock,server=on,wait=off",
        "-device", "virtio-rng-pci", "-object", f"memory-backend-file,id=shared,size=1M,share=on,mem-path={shared}",
        "-device", "ivshmem-plain,memdev=shared,master=on",
    ]  # fmt: skip
    for index, network in enumerate(spec.networks):
        # Each card's virtual functions take places on its bus, so the second one needs another bus.
        card = f"igb,netdev=net{index},bus=port{index},mac=52:54:00:00:{index:02x}:{slot + 1:02x}"
        command += ["-netdev", f"{network},id=net{index}"]
        command += ["-device", f"pcie-root-port,id=port{index},chassis={index + 1}", "-device", card]
    return [*command, *spec.qemu_arguments]


@dataclass
class _Replies:
    """What the guest's agent sent, by the number of the request; guarded by `changed`."""

    by_id: dict[int, Answer] = field(default_factory=dict)
    boot_id: str | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)


class Machine:
    """A running virtual machine. `close` ends it; the lab calls that."""

    def __init__(self, spec: MachineSpec, cache: Cache, folder: Path, slot: int, shared: Path) -> None:
        self.spec, self.name, self.slot, self.folder = spec, spec.name, slot, folder
        self._cache, self._shared = cache, shared
        folder.mkdir()
        self._disk = cache.disk
        if spec.own_disk:
            self._disk = folder / "disk"
            subprocess.run(["cp", "--sparse=always", cache.disk, self._disk], check=True, timeout=120)
        self._requests = 0
        self._policy, self._priority = os.SCHED_OTHER, 0
        self._start(())

    # QEMU

    def _start(self, more: tuple[str, ...]) -> None:
        command = qemu_command(self.spec, self._cache, self.folder, self.slot, self._disk, self._shared)
        self._replies = _Replies()
        with (self.folder / "qemu.log").open("a") as log:
            # QEMU must not outlive a test that is killed.
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._agent = self._connect("agent.sock")
            self._control = self._connect("qmp.sock")
            self._control.settimeout(QMP_LIMIT_S)
            self._control_file = self._control.makefile("rw")
            self._control_file.readline()
            self.qmp("qmp_capabilities")
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._receive, args=(self._agent, self._replies), daemon=True).start()

    def _connect(self, name: str) -> socket.socket:
        end_s = time.monotonic() + CONNECT_LIMIT_S
        connection = socket.socket(socket.AF_UNIX)
        while time.monotonic() < end_s:
            try:
                connection.connect(str(self.folder / name))
                return connection
            except OSError:
                self._require_running()
                time.sleep(0.05)
        raise MachineError(f"{self.name}: QEMU made no socket {name} in {CONNECT_LIMIT_S} s")

    def _require_running(self) -> None:
        if self.process.poll() is not None:
            raise MachineError(f"{self.name}: QEMU ended with {self.process.returncode}: {self._log()}")

    def _log(self) -> str:
        return (self.folder / "qemu.log").read_text(errors="replace")[-1000:]

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Its result. Raises MachineError for an error of QEMU, and where it replies nothing in time."""
        try:
            return self._qmp(command, arguments)
        except TimeoutError as error:
            raise MachineError(f"{self.name}: QMP {command}: no reply in {QMP_LIMIT_S} s") from error
        except OSError as error:
            raise MachineError(f"{self.name}: QMP {command}: QEMU is gone ({error}): {self._log()}") from error

    def _qmp(self, command: str, arguments: dict[str, Any]) -> Any:
        self._control_file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._control_file.flush()
        while True:
            line = self._control_file.readline()
            if not line:
                raise MachineError(f"{self.name}: QMP {command}: QEMU closed the connection: {self._log()}")
            message = json.loads(line)
            if "error" in message:
                raise MachineError(f"{self.name}: QMP {command}: {message['error']}")
            if "return" in message:
                return message["return"]

    def save(self, path: Path, limit_s: float = 120) -> None:
        """Migrate to a file: the guest stands still from the end of it on. End QEMU."""
        self.qmp("migrate-set-parameters", **{"max-bandwidth": 1 << 34, "downtime-limit": 60_000})
        self.qmp("migrate", uri=f"file:{path}")
        end_s = time.monotonic() + limit_s
        while (status := self.qmp("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > end_s:
                raise MachineError(f"{self.name}: migration to a file: {status}")
            time.sleep(0.05)
        self.close()

    def restore(self, path: Path) -> None:
        """Go on from the file with another QEMU. The guest's boot is the same one."""
        self._start(("-incoming", f"file:{path}"))
        self._schedule()
        end_s = time.monotonic() + BOOT_LIMIT_S
        while self.qmp("query-status")["status"] != "running":
            self._require_running()
            if time.monotonic() > end_s:
                raise MachineError(f"{self.name}: not running after a migration from a file")
            time.sleep(0.05)

    @contextmanager
    def realtime(self) -> Iterator[None]:
        """
        QEMU runs before everything else on this machine (SCHED_FIFO), so that it stamps within microseconds.

        Only while a test measures: a virtual machine that computes would leave no processor to others.
        """
        with self._scheduled(os.SCHED_FIFO, REALTIME_PRIORITY):
            yield

    @contextmanager
    def _scheduled(self, policy: int, priority: int) -> Iterator[None]:
        before = self._policy, self._priority
        self._policy, self._priority = policy, priority
        self._schedule()
        try:
            yield
        finally:
            self._policy, self._priority = before
            self._schedule()

    def _schedule(self) -> None:
        for task in Path(f"/proc/{self.process.pid}/task").glob("*"):
            try:
                os.sched_setscheduler(int(task.name), self._policy, os.sched_param(self._priority))
            except ProcessLookupError:
                pass

    def sleep(self, seconds: float, has_stopped: Callable[[], None]) -> None:
        """
        Suspend to memory (S3) and wake up after so long; `has_stopped` is called as soon as the machine surely sleeps.

        Not under SCHED_FIFO: the emulated processor spins while it wakes up, and QEMU's main loop would never run.
        """
        with self._scheduled(os.SCHED_OTHER, 0):
            request = self.begin("echo mem > /sys/power/state", SLEEP_LIMIT_S)
            end_s = time.monotonic() + SLEEP_LIMIT_S
            while self.qmp("query-status")["status"] != "suspended":
                if time.monotonic() > end_s:
                    raise MachineError(f"{self.name}: not asleep after {SLEEP_LIMIT_S} s")
                time.sleep(0.01)
            has_stopped()
            time.sleep(seconds)
            self.qmp("system_wakeup")
            if (answer := self.answer(request, SLEEP_LIMIT_S)).status != 0:
                raise MachineError(f"{self.name}: it did not sleep: {answer.output}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for name in ("_agent", "_control"):
            if (connection := getattr(self, name, None)) is not None:
                connection.close()

    # The guest

    def _receive(self, agent: socket.socket, replies: _Replies) -> None:
        pending = b""
        while True:
            try:
                received = agent.recv(1 << 16)
            except OSError:
                return
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            with replies.changed:
                for line in lines:
                    self._keep(replies, line)
                replies.changed.notify_all()

    def _keep(self, replies: _Replies, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # the rest of a line that was cut off when the guest restarted
        if "boot" in message:
            replies.boot_id = message["boot"]
        else:
            replies.by_id[message["id"]] = Answer(message["status"], message["output"])

    def _send(self, message: dict[str, Any]) -> None:
        self._agent.sendall(json.dumps(message).encode() + b"\n")

    def wait_for_boot(self, limit_s: float = BOOT_LIMIT_S, other_than: str | None = None) -> str:
        """The boot id, once the guest's agent replies in a boot other than the given one."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            self._require_running()
            self._send({"ping": True})
            with self._replies.changed:
                self._replies.changed.wait(PING_PERIOD_S)
                if self._replies.boot_id not in (None, other_than):
                    return str(self._replies.boot_id)
        console = (self.folder / "console.log").read_text(errors="replace")[-2000:]
        raise MachineError(f"{self.name}: not up after {limit_s} s:\n{console}")

    def wait_until_ready(self, limit_s: float = BOOT_LIMIT_S) -> None:
        """Until the guest runs commands and has its network cards, with their clocks."""
        self.wait_for_boot(limit_s)
        for index in range(len(self.spec.networks)):
            self.wait_for(f"[ -e /sys/class/net/eth{index} ] && [ -e /dev/ptp{index} ]", DEVICES_LIMIT_S)

    def ask(self, command: str, limit_s: float = COMMAND_LIMIT_S) -> Answer:
        """What a bash command in the guest ends with. Raises MachineError where nothing comes back in time."""
        return self.answer(self.begin(command, limit_s), limit_s)

    def run(self, command: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """The output of a bash command in the guest. Raises MachineError where its status is not 0."""
        answer = self.ask(command, limit_s)
        if answer.status != 0:
            raise MachineError(f"{self.name}: {command!r} ended with {answer.status}:\n{answer.output}")
        return answer.output

    def begin(self, command: str, limit_s: float = COMMAND_LIMIT_S) -> int:
        """Send the command; `answer` waits for its end."""
        self._requests += 1
        self._send({"id": self._requests, "run": command, "timeout_s": limit_s})
        return self._requests

    def answer(self, request: int, limit_s: float = COMMAND_LIMIT_S) -> Answer:
        with self._replies.changed:
            if not self._replies.changed.wait_for(lambda: request in self._replies.by_id, limit_s + TRANSFER_S):
                raise MachineError(f"{self.name}: no reply to request {request} in {limit_s + TRANSFER_S} s")
            return self._replies.by_id.pop(request)

    def wait_for(self, condition: str, limit_s: float) -> None:
        """Until the bash condition holds in the guest."""
        self.run(
            f"for i in $(seq {round(limit_s * 5)}); do {condition} && exit 0; sleep 0.2; done; exit 1", limit_s * 3
        )

    def write(self, path: str, text: str) -> None:
        quoted = shlex.quote(path)
        self.run(f"mkdir -p \"$(dirname {quoted})\" && cat > {quoted} <<'END-OF-FILE'\n{text}END-OF-FILE")

    def read(self, path: str) -> str:
        return self.run(f"cat {shlex.quote(path)}")

    def reboot(self, limit_s: float = BOOT_LIMIT_S) -> None:
        boot_id = self.wait_for_boot()
        self.ask("systemctl --no-block reboot")
        self.wait_for_boot(limit_s, other_than=boot_id)
        self.wait_until_ready(limit_s)

    def usage(self) -> tuple[float, int]:
        """CPU seconds and resident MiB of QEMU."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        resident_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), resident_kib // 1024
