"""
Two nodes and two grandmasters on one network, and a hub on this machine: how far apart the hub says that the nodes' clocks may be,
beside how far apart they are; which rank of a job it names; and when the ranks are really released.

Three virtual machines: both grandmasters are cards of one, each with a clock of its own. A part fails where the clocks were further apart
than the hub said, or where a wrong rank was named. tests/vm/vm_soak.py runs it, as the scenario two-nodes.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vm_cache import Cache
from vm_fleet_judging import (
    Answer,
    HostLog,
    Line,
    judged_alignment,
    parse_lines,
    releases,
    skew_summary,
    summary,
)
from vm_lab import Lab
from vm_machine import Machine, MachineError, MachineSpec
from vm_pair import (
    ALLOWED_GAP_TICKS,
    CONFIG,
    DOMAIN,
    FOLDER,
    FOREVER,
    GRANDMASTER,
    LOG_PERIOD_MS,
    NIC,
    NODE,
    START_LIMIT_S,
    TRACEABLE,
    unit,
)
from vm_truth import CounterOffset, MachineLog, Piece, Verdict

from timesyncd.client.api import fetch_part
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NAME = "two-nodes"
NODES = ("node-a", "node-b")
#: The first grandmaster is better (priority1), so the second one leads after the first one's end.
PRIORITIES = (10, 20)

#: QEMU's own network, in which this machine's loopback has the first address and the guest the second one.
UPLINK, HUB_FROM_GUEST, GUEST = "user", "10.0.2.2", "10.0.2.15"
ADDRESSES = {"node-a": "10.9.0.1", "node-b": "10.9.0.2"}
ASK_PERIOD_S = 0.1
SETTLE_S = 40


@dataclass
class Fleet:
    """The machines, the broker and the hub, with everything running."""

    lab: Lab
    broker: Mosquitto
    hub: DaemonProcess
    machines: dict[str, Machine] = field(default_factory=dict)

    def start(self) -> None:
        """The nodes' daemons start at once, since a machine takes half a minute for it."""
        ends, self.network = self.lab.hub("hub", 4)
        self.grandmasters = self.lab.machine(MachineSpec("grandmasters", tuple(ends[:2])))
        for name, end in zip(NODES, ends[2:], strict=True):
            self.machines[name] = self.lab.machine(MachineSpec(name, (end, UPLINK), memory_mib=768))
        for machine in self.lab.machines:
            machine.wait_until_ready()
            machine.run(f"mkdir -p {FOLDER}; for i in /sys/class/net/eth*; do ip link set $(basename $i) up; done")
        for index, priority in enumerate(PRIORITIES):
            self._start_grandmaster(index, priority)
        for name, machine in self.machines.items():
            self._start_node(name, machine)
        for machine in self.machines.values():
            machine.wait_for("systemctl -q is-active timesyncd", START_LIMIT_S)

    def _start_grandmaster(self, index: int, priority: int) -> None:
        machine, path = self.grandmasters, f"/run/vm/gm{index}"
        sockets = f"uds_address {path}\nuds_ro_address {path}.ro\n"
        better = GRANDMASTER.replace("priority1 10", f"priority1 {priority}")
        machine.write(f"/etc/linuxptp/gm{index}.conf", better + sockets)
        if not index:
            # The hub ages what the nodes say by its own clock too, so theirs must not be a second behind it, as a machine's at its boot.
            machine.run(f"date --set=@{time.time():.3f}")
        machine.run(f"phc_ctl -q /dev/ptp{index} set adj 37")
        if index:
            # The two differ by some microseconds then, as two receivers do.
            machine.run(
                f"timeout 5 phc2sys -s /dev/ptp0 -c /dev/ptp{index} -O 0 -m; phc_ctl -q /dev/ptp{index} -- freq 0"
            )
        unit(machine, f"gm{index}", f"ptp4l -i eth{index} -f /etc/linuxptp/gm{index}.conf -m")
        machine.run(f"sleep 3; pmc -u -b 0 -d {DOMAIN} -s {path} '{TRACEABLE}'")

    def _start_node(self, name: str, machine: Machine) -> None:
        machine.write("/etc/linuxptp/ptp4l.conf", NODE)
        mqtt = f'[mqtt]\nhost = "{HUB_FROM_GUEST}"\nport = {self.broker.port}\n'
        text = CONFIG.replace('name = "node"', f'name = "{name}"') + NIC.format(clock='interface = "eth0"') + mqtt
        machine.write("/etc/timesyncd/timesyncd.toml", text)
        machine.run(f"ip address add {ADDRESSES[name]}/24 dev eth0; ip address add {GUEST}/24 dev eth1")
        machine.run(
            "systemd-tmpfiles --create timesyncd.conf; sysctl -q --system; timesyncd check-config; "
            "systemctl restart ptp4l@eth0"
        )
        self.steer(name)
        machine.run("systemctl enable --now --no-block timesyncd")

    def steer(self, name: str) -> None:
        unit(self.machines[name], "steering", f"phc2sys -w -s /dev/ptp0 -n {DOMAIN} -m --step_threshold 0.02")

    def settle(self, seconds: float) -> None:
        with self.lab.measuring():
            time.sleep(seconds)

    def ask(self, path: str) -> Any:
        return fetch_part(self.hub.page, path)


class Recorder:
    """While it runs: the logs of all clocks, and the hub's answers about the alignment, each with this machine's clock around it."""

    def __init__(self, fleet: Fleet, folder: Path, seconds: int) -> None:
        self._fleet, self._folder, self._seconds = fleet, folder, seconds
        self.answers: list[Answer] = []
        self._stop = threading.Event()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """SCHED_FIFO as long as it lasts."""
        fleet, lab = self._fleet, self._fleet.lab
        with lab.measuring():
            self._offsets = {name: lab.counter_offset(machine) for name, machine in fleet.machines.items()}
            for machine in fleet.machines.values():
                machine.run("systemctl stop clocklog 2>/dev/null; true")
                unit(machine, "clocklog", f"clocktruth log {FOLDER}/log {LOG_PERIOD_MS} {self._seconds} /dev/ptp0")
            command = [
                str(part)
                for part in (lab.cache.clocktruth, "log", self._folder / "host.log", LOG_PERIOD_MS, self._seconds)
            ]
            host = subprocess.Popen(command)
            asking = threading.Thread(target=self._ask, daemon=True)
            asking.start()
            try:
                yield
            finally:
                self._stop.set()
                asking.join()
                host.kill()
                host.wait()

    def _ask(self) -> None:
        while not self._stop.wait(ASK_PERIOD_S):
            before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            state = self._fleet.ask(f"alignment?nodes={','.join(NODES)}")
            after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            self.answers.append(Answer(before_ns, after_ns, state["alignment_ns"], state["reason_code"]))

    def host(self) -> HostLog:
        return HostLog((self._folder / "host.log").read_text().splitlines())

    def logs(self) -> dict[str, MachineLog]:
        """Raises MachineError where a constant moved: then there is no truth."""
        found = {}
        for name, machine in self._fleet.machines.items():
            old, new = self._offsets[name], self._fleet.lab.counter_offset(machine)
            both = CounterOffset(max(old.lowest, new.lowest), min(old.highest, new.highest))
            if both.lowest > both.highest + ALLOWED_GAP_TICKS:
                raise MachineError(f"{name}: the counter's constant moved from {old} to {new}: no truth")
            text = machine.read(f"{FOLDER}/log")
            (self._folder / f"{name}.log").write_text(text)
            found[name] = MachineLog(text.splitlines(), [Piece(0, FOREVER, CounterOffset(min(both), max(both)))])
        return found


Part = Callable[[Fleet], None]


def steady(fleet: Fleet) -> None:
    time.sleep(25)


def holdover(fleet: Fleet) -> None:
    """Nothing comes from the grandmasters for longer than holdover begins."""
    for direction in fleet.network.directions[:2]:
        direction.dropped = frozenset(range(16))
    time.sleep(15)
    for direction in fleet.network.directions[:2]:
        direction.dropped = frozenset()
    time.sleep(10)


def failover(fleet: Fleet) -> None:
    """The first grandmaster ends; the nodes follow the second one."""
    fleet.grandmasters.run("systemctl kill --signal=KILL gm0")
    time.sleep(30)


@dataclass(frozen=True)
class JobPart:
    """
    A job of two ranks for so long. `work_s` of each rank; rank 1's system clock is `ahead_ms` of rank 0's and nothing steers it. `slow`: the
    rank that is slow in truth.
    """

    name: str
    work_s: tuple[float, float]
    ahead_ms: int
    slow: int
    seconds: int = 40


JOBS = (
    JobPart("rank 1 works 80 ms longer", (0.05, 0.13), 0, 1),
    JobPart("rank 0 works 20 ms longer, rank 1's clock is 40 ms ahead", (0.07, 0.05), 40, 0),
    JobPart("rank 0 works 150 ms longer, rank 1's clock is 40 ms ahead", (0.20, 0.05), 40, 0),
)


def run_alignment(fleet: Fleet, name: str, part: Part, folder: Path) -> dict[str, Any]:
    recorder = Recorder(fleet, folder, 60)
    with recorder.recording():
        part(fleet)
    logs = recorder.logs()
    series = [logs[name].series["realtime"] for name in NODES]
    found = judged_alignment(recorder.answers, recorder.host(), *series)
    result = asdict(summary(found))
    missed = [each for each in found if each.verdict is Verdict.MISSED]
    print(f"== alignment, {name}: {'FAILED' if missed else 'held'}: {result}", flush=True)
    for each in missed[:10]:
        print(f"  MISSED: {each}", flush=True)
    return result | {"name": name, "failed": bool(missed)}


def run_job(fleet: Fleet, part: JobPart, folder: Path) -> dict[str, Any]:
    _set_clocks(fleet, part)
    for rank, name in enumerate(NODES):
        fleet.machines[name].write("/run/vm/work_s", f"{part.work_s[rank]}\n")
    recorder = Recorder(fleet, folder, part.seconds + 20)
    with recorder.recording():
        for rank, name in enumerate(NODES):
            program = f"python3 /usr/local/lib/timesyncd-vm/rank.py {rank} {ADDRESSES[NODES[0]]} {part.seconds}"
            unit(fleet.machines[name], "rank", f"bash -c '{program} > {FOLDER}/rank 2>&1'")
        time.sleep(part.seconds)
        for name in NODES:
            fleet.machines[name].wait_for("! systemctl -q is-active rank", 30)
    logs = recorder.logs()
    texts = [fleet.machines[name].read(f"{FOLDER}/rank") for name in NODES]
    return _job_result(part, [parse_lines(text) for text in texts], [logs[name] for name in NODES], texts)


def _set_clocks(fleet: Fleet, part: JobPart) -> None:
    if part.ahead_ms and fleet.machines[NODES[1]].ask("systemctl is-active steering").status == 0:
        code = f"import time; time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + {part.ahead_ms}_000_000)"
        fleet.machines[NODES[1]].run(f"systemctl stop steering; python3 -c '{code}'")
        fleet.settle(30)


def _job_result(
    part: JobPart, ranks: Sequence[Sequence[Line]], logs: Sequence[MachineLog], texts: Sequence[str]
) -> dict[str, Any]:
    named = dict(Counter(str(line.straggler) for lines in ranks for line in lines))
    modes = dict(Counter(f"{line.mode} {line.reason}" for line in ranks[0]))
    wrong = set(named) - {"None", str(part.slow)}
    skew = skew_summary(releases(ranks, logs))
    result = {"name": part.name, "named": named, "barrier": modes, "skew": skew, "failed": bool(wrong or not ranks[0])}
    print(f"== job, {part.name}: {'FAILED' if result['failed'] else 'held'}: {result}", flush=True)
    if not ranks[0]:
        print("\n".join(texts), flush=True)
    return result


def run(cache: Cache, state: Path) -> None:
    """Every part on one fleet; what came of them is in `two-nodes.json`. Raises MachineError where a machine fails."""
    with ExitStack() as stack:
        lab, broker = stack.enter_context(Lab(cache)), stack.enter_context(Mosquitto())
        hub = stack.enter_context(DaemonProcess("hub", lab.folder / "hub", "", new_marker(), broker, hub=True))
        fleet = Fleet(lab, broker, hub)
        fleet.start()
        fleet.settle(SETTLE_S)
        parts = [run_alignment(fleet, part.__name__, part, lab.folder) for part in (steady, holdover, failover)]
        parts += [run_job(fleet, part, lab.folder) for part in JOBS]
    result = {"failed": any(part["failed"] for part in parts), "when": now(), "parts": parts}
    (state / f"{NAME}.json").write_text(json.dumps(result, indent=1))


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
