"""A grandmaster and a node with timesyncd, each a virtual machine, on a cable; and what the node's client claims, beside the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vm_cache import KERNEL
from vm_judging import Disturbance
from vm_lab import Lab
from vm_machine import Machine, MachineError, MachineSpec
from vm_relay import Relay
from vm_truth import (
    ClockError,
    CounterOffset,
    MachineLog,
    Moment,
    Piece,
    Range,
    errors_of,
    judge,
    parse_claims,
    ranges_beyond,
)

DOMAIN = 24
SYNC_INTERVAL_S = 0.125
LOG_PERIOD_MS = 20
CLAIM_PERIOD_S = 0.04

#: What the guest's programs may need to start and to write their last line.
MARGIN_S = 4
START_LIMIT_S = 240
FOLDER = "/run/vm"

FOREVER = 1 << 63

#: The processors' counters differ by some 100 ns, so two measurements of one constant may miss each other by that.
ALLOWED_GAP_TICKS = 2_000

#: From one row of the log to the next: a smaller step of the grandmaster's PHC is not told from the error of reading it, and a servo
#: moves the node's system clock by less, while a slew at the tick's limit moves it by 2 ms.
SMALLEST_JUMP_NS = {"phc": 8_000, "realtime": 300_000}

PTP4L = f"""[global]
network_transport L2
time_stamping hardware
domainNumber {DOMAIN}
logSyncInterval -3
logMinDelayReqInterval -3
logAnnounceInterval 0
tx_timestamp_timeout 200
summary_interval 0
# The limit of an i210. Beyond it the emulated card's arithmetic overflows.
max_frequency 62499999
"""

#: A boundary clock of two cards, each with a clock of its own: ptp4l steers the one of the port that follows, phc2sys the other one by it.
BOUNDARY = PTP4L + "boundary_clock_jbod 1\n"

GRANDMASTER = PTP4L + "serverOnly 1\nclockClass 6\nclockAccuracy 0x21\npriority1 10\n"
NODE = PTP4L + "clientOnly 1\n"

TRACEABLE = (
    "SET GRANDMASTER_SETTINGS_NP clockClass 6 clockAccuracy 0x21 offsetScaledLogVariance 0x4e5d currentUtcOffset 37 leap61 0 leap59 0 "
    "currentUtcOffsetValid 1 ptpTimescale 1 timeTraceable 1 frequencyTraceable 1 timeSource 0x20"
)

EVENTS = 'slave_event_monitor = "/run/timesyncd/ptp4l.events"\n'
CONFIG = f"""[node]
name = "node"
[web]
[store]
[[source]]
name = "ptp"
driver = "ptp4l"
domain = {DOMAIN}
{EVENTS}[[source]]
name = "kernel"
driver = "kernel"
"""
NIC = '[[source]]\nname = "nic"\ndriver = "phc"\n{clock}\n'
CHRONY_SOURCE = '[[source]]\nname = "utc"\ndriver = "chrony"\n'

CHRONY = """refclock PHC /dev/ptp0 offset -37 poll 0 refid PHC0
driftfile /var/lib/chrony/drift
rtcsync
bindcmdaddress 127.0.0.1
cmdport 323
"""


@dataclass(frozen=True)
class Setup:
    """
    How a pair differs from the usual one. `relayed`: the cable has delays and losses. `chronyd` steers the system clock by the PHC,
    instead of phc2sys. `vclocks`: so many virtual clocks on the node's card, of which ptp4l disciplines the first. `movable`: the
    node has a disk of its own and a VMClock, so that it can migrate. `boundary_clock_error_ns`: a boundary clock is between the two,
    which the node is told to be within this; the relay is between it and the grandmaster.
    """

    kernel: str = KERNEL
    relayed: bool = False
    chronyd: bool = False
    vclocks: int = 0
    movable: bool = False
    nic: str = 'interface = "eth0"'
    boundary_clock_error_ns: int | None = None


def configuration(setup: Setup) -> str:
    """The node's timesyncd.toml."""
    told = setup.boundary_clock_error_ns
    bounds = "" if told is None else f"[source.bounds]\nboundary_clock_error_ns = {told}\n"
    nic, chrony = NIC.format(clock=setup.nic), CHRONY_SOURCE if setup.chronyd else ""
    return CONFIG.replace(EVENTS, EVENTS + bounds) + nic + chrony


class Pair:
    """The two machines, with everything running."""

    def __init__(self, lab: Lab, setup: Setup) -> None:
        self.lab, self.setup = lab, setup
        self.relay: Relay | None = None
        self.boundary: Machine | None = None
        if setup.relayed or setup.boundary_clock_error_ns is not None:
            first, second, self.relay = lab.relayed_cable("cable")
        else:
            first, second = lab.cable("cable")
        if setup.boundary_clock_error_ns is not None:
            upper, (lower, second) = second, lab.cable("lower")
            self.boundary = lab.machine(MachineSpec("boundary", (upper, lower), kernel=setup.kernel))
        vmclock = ("-device", "vmclock") if setup.movable else ()
        self.grandmaster = lab.machine(MachineSpec("grandmaster", (first,), kernel=setup.kernel))
        self.node = lab.machine(
            MachineSpec(
                "node", (second,), memory_mib=768, kernel=setup.kernel, own_disk=setup.movable, qemu_arguments=vmclock
            )
        )

    @property
    def phc(self) -> str:
        """The PHC of the node that ptp4l disciplines."""
        return f"/dev/ptp{1 if self.setup.vclocks else 0}"

    @property
    def phcs(self) -> dict[str, tuple[Machine, str]]:
        """By the machine's name: the PHC whose truth counts. The boundary clock's is that of the port that the node follows."""
        found = {"grandmaster": (self.grandmaster, "/dev/ptp0"), "node": (self.node, self.phc)}
        return found if self.boundary is None else found | {"boundary": (self.boundary, "/dev/ptp1")}

    def start(self) -> None:
        for machine, _ in self.phcs.values():
            machine.wait_until_ready()
            machine.run(f"mkdir -p {FOLDER}; ip link set eth0 up")
        self._start_grandmaster()
        if self.boundary is not None:
            self._start_boundary(self.boundary)
        self._configure_node()
        self.start_ptp4l()
        self.start_steering()
        self.node.run("systemctl enable --now timesyncd", START_LIMIT_S)

    def _start_grandmaster(self) -> None:
        self.grandmaster.write("/etc/linuxptp/ptp4l.conf", GRANDMASTER)
        self.grandmaster.run("phc_ctl -q /dev/ptp0 set adj 37")
        unit(self.grandmaster, "grandmaster", "ptp4l -i eth0 -f /etc/linuxptp/ptp4l.conf -m")
        self.grandmaster.run(f"sleep 3; pmc -u -b 0 -d {DOMAIN} '{TRACEABLE}'")

    def _start_boundary(self, machine: Machine) -> None:
        machine.run("ip link set eth1 up")
        machine.write("/etc/linuxptp/ptp4l.conf", BOUNDARY)
        unit(machine, "boundary", "ptp4l -i eth0 -i eth1 -f /etc/linuxptp/ptp4l.conf -m")
        unit(machine, "across", f"phc2sys -a -n {DOMAIN} -R 4 -m")
        self.settle(10)

    def _configure_node(self) -> None:
        setup, node = self.setup, self.node
        if setup.vclocks:
            node.run(f"echo {setup.vclocks} > /sys/class/ptp/ptp0/n_vclocks")
        index = "phc_index 1\n" if setup.vclocks else ""
        node.write("/etc/linuxptp/ptp4l.conf", NODE + index)
        node.write("/etc/timesyncd/timesyncd.toml", configuration(setup))
        node.write("/etc/chrony/chrony.conf", CHRONY)
        node.run("systemd-tmpfiles --create timesyncd.conf; sysctl -q --system; timesyncd check-config")

    def settle(self, seconds: float) -> None:
        """Let the servos and the daemon work on timestamps as good as those that are measured."""
        with self.lab.measuring():
            time.sleep(seconds)

    def start_ptp4l(self) -> None:
        self.node.run("systemctl restart ptp4l@eth0")

    def start_steering(self) -> None:
        if self.setup.chronyd:
            self.node.run("install -d -o _chrony -g _chrony -m 700 /run/chrony")
            unit(self.node, "steering", "chronyd -F 0 -d -f /etc/chrony/chrony.conf")
        else:
            unit(self.node, "steering", f"phc2sys -w -s {self.phc} -n {DOMAIN} -m --step_threshold 0.02")


def unit(machine: Machine, name: str, command: str) -> None:
    """Run a program of the guest in a unit of its own, so that it can be stopped and killed by name."""
    machine.run(f"systemctl reset-failed {name} 2>/dev/null; systemd-run --quiet --unit={name} {command}")


class Measurement:
    """What a scenario does while the clocks are logged, and what it must say about that."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.disturbances: list[Disturbance] = []
        self.pieces = {
            name: [Piece(0, FOREVER, pair.lab.counter_offset(machine))] for name, (machine, _) in pair.phcs.items()
        }

    @contextmanager
    def disturbing(self, what: str, log: tuple[str, str] | None = None) -> Iterator[None]:
        """Something that the node cannot know before the next Sync happens within this block. `log`: as in Disturbance."""
        earliest = self.pair.lab.host_counter()
        yield
        self.disturbances.append(Disturbance(what, earliest, self.pair.lab.host_counter(), log))

    @contextmanager
    def pausing(self, what: str) -> Iterator[Pause]:
        """
        The node's virtual machine stands still within this block, which marks `stopped` and `resuming`. Its counter stands still too, and goes
        on with another constant. The node knows nothing of the pause before the next Sync.
        """
        lab = self.pair.lab
        pause = Pause(lab)
        pieces = self.pieces["node"]
        old = pieces[-1]
        with self.disturbing(what):
            yield pause
        resumed = lab.host_counter()
        new = lab.counter_offset(self.pair.node)
        last_surely_before = pause.begun - old.offset.highest
        first_surely_after = min(pause.stopped - old.offset.lowest, resumed - new.lowest)
        pieces[-1:] = [
            Piece(old.from_guest, last_surely_before, old.offset),
            Piece(first_surely_after, FOREVER, new),
        ]

    def confirm(self) -> None:
        """The constants are still what they were; narrower by now. Raises MachineError where one is not."""
        for name, (machine, _) in self.pair.phcs.items():
            pieces = self.pieces[name]
            old, new = pieces[-1].offset, self.pair.lab.counter_offset(machine)
            both = CounterOffset(max(old.lowest, new.lowest), min(old.highest, new.highest))
            if both.lowest > both.highest + ALLOWED_GAP_TICKS:
                raise MachineError(f"{machine.name}: the counter's constant moved from {old} to {new}: no truth")
            pieces[-1] = pieces[-1]._replace(offset=CounterOffset(min(both), max(both)))


class Pause:
    """The host's counter around a standstill of a machine."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.begun = self.stopped = lab.host_counter()

    def has_stopped(self) -> None:
        """Call it as soon as the machine surely stands still."""
        self.stopped = self._lab.host_counter()


Act = Callable[[Measurement], None]


@dataclass(frozen=True)
class Run:
    """
    The moments of a run, on the host's counter, with what was done to the clocks. `logs` are the files of it by name, `pieces` the
    constants of the machines: `evaluate` judges the run again with these. `boundary_errors` are those of the boundary clock's PHC against
    the grandmaster's; empty where there is none.
    """

    moments: list[Moment]
    disturbances: list[Disturbance]
    ticks_per_ns: float
    logs: dict[str, str]
    pieces: dict[str, Sequence[Piece]]
    boundary_errors: list[ClockError]


def measure(pair: Pair, seconds: int, act: Act) -> Run:
    """Log the clocks and what the client claims, for so long, while `act` does something to the pair."""
    with pair.lab.measuring():
        measurement = Measurement(pair)
        for machine, phc in pair.phcs.values():
            unit(machine, "clocklog", f"clocktruth log {FOLDER}/log {LOG_PERIOD_MS} {seconds} {phc}")
        claims = f"python3 /usr/local/lib/timesyncd-vm/claims.py {seconds} {CLAIM_PERIOD_S} > {FOLDER}/claims"
        unit(pair.node, "claims", f"bash -c '{claims}'")
        end_s = time.monotonic() + seconds + MARGIN_S
        act(measurement)
        time.sleep(max(0.0, end_s - time.monotonic()))
        measurement.confirm()
    logs = {f"{name}.log": machine.read(f"{FOLDER}/log") for name, (machine, _) in pair.phcs.items()}
    logs["claims"] = pair.node.read(f"{FOLDER}/claims")
    return evaluate(logs, measurement.pieces, measurement.disturbances, pair.setup.boundary_clock_error_ns)


def evaluate(
    logs: dict[str, str],
    pieces: Mapping[str, Sequence[Piece]],
    disturbances: Sequence[Disturbance],
    boundary_clock_error_ns: int | None = None,
) -> Run:
    """While the boundary clock is further away than the node is told, the node is told a wrong thing: that is a disturbance."""
    machines = {name: MachineLog(logs[f"{name}.log"].splitlines(), pieces[name]) for name in pieces}
    grandmaster, node = machines["grandmaster"], machines["node"]
    moments = judge(parse_claims(logs["claims"].splitlines()), grandmaster, node)
    exact = [narrowed(each, machines) for each in disturbances]
    errors: list[ClockError] = []
    if boundary_clock_error_ns is not None:
        errors = errors_of(machines["boundary"].series["phc"], grandmaster.series["phc"])
        what = f"boundary clock further than {boundary_clock_error_ns} ns"
        exact += [Disturbance(what, each.low, each.high) for each in ranges_beyond(errors, boundary_clock_error_ns)]
    return Run(moments, exact, node.ticks_per_ns, logs, dict(pieces), errors)


def narrowed(disturbance: Disturbance, logs: Mapping[str, MachineLog]) -> Disturbance:
    """Between the two rows of the log that show it; what no log shows stays as it is."""
    if disturbance.log is None:
        return disturbance
    machine, clock = disturbance.log
    series = logs[machine].series
    within = Range(disturbance.earliest, disturbance.latest)
    found = series[clock].first_jump(within, series["raw"], SMALLEST_JUMP_NS[clock])
    return disturbance if found is None else disturbance._replace(earliest=found.low, latest=found.high)
