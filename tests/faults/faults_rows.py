"""The faults: each is done to a running system, lasts for a while, and ends."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker_relay import BrokerFault
from faults_more import (
    disk_hangs,
    disk_slow,
    disk_vanished,
    grandmaster_sends_garbage,
    no_names,
    other_version,
    out_of_memory,
    postgresql_fails_over,
)
from faults_system import LASTS_S, NODE, Options, System

from timesyncd.ipc.clock_segment import NAME
from timesyncd.simulation.bed.host import run

KILLS = int(os.environ.get("TIMESYNCD_FAULTS_KILLS", "100"))

#: What is true whenever the broker, or the way to it, is gone for longer than a reconnect.
BROKER_LOST = "broker-lost"


@dataclass(frozen=True)
class Fault:
    """
    `act` does it and returns once it is over. `must_report` are the findings that it has to raise, `may_report` those
    that are true besides. One that must not be done to this machine is a `scenario` of tests/vm/vm_scenarios.py, in a virtual
    one. A fault without either cannot be tried yet, for the reason `not_run`.
    """

    group: str
    name: str
    act: Callable[[System], None] | None = None
    must_report: tuple[str, ...] = ()
    may_report: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    not_run: str = ""
    scenario: str = ""


def relayed(fault: BrokerFault, system: System) -> None:
    system.begin()
    system.set_relay(fault)
    time.sleep(LASTS_S)
    system.set_relay(BrokerFault.NONE)
    system.end()


def broker_killed(system: System) -> None:
    system.begin()
    system.broker.stop()
    time.sleep(LASTS_S)
    system.broker.start()
    system.end()


def hub_killed(system: System) -> None:
    system.begin()
    system.hub.kill()
    time.sleep(LASTS_S)
    system.end()
    system.hub.launch()


def killed_at_any_instant(system: System) -> None:
    """The daemon, KILLS times: each start is killed at another moment after it stored its first sample."""
    system.begin()
    for _ in range(KILLS):
        time.sleep(random.uniform(0.0, 1.5))
        system.node.kill()
        system.start_again(time.time_ns())


def stopped(system: System) -> None:
    """SIGSTOP: the clock's bound grows on, and its clients apply that."""
    system.begin()
    system.node.pause()
    stopped_ns = time.time_ns()
    time.sleep(LASTS_S)
    system.node.resume()
    system.end()
    system.absent.append((stopped_ns, system.ended_ns + 10**9))


def starved(system: System) -> None:
    """The daemon runs a twentieth of the time, in turns of 5 ms."""
    system.begin()
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        system.node.pause()
        time.sleep(0.095)
        system.node.resume()
        time.sleep(0.005)
    system.end()


def ptp4l_replaced(system: System) -> None:
    system.begin()
    system.stop_ptp4l()
    stopped_ns = time.time_ns()
    time.sleep(LASTS_S)
    system.start_ptp4l()
    system.end()
    system.wait_until(lambda: any(system.stored(system.ended_ns)))
    system.absent.append((stopped_ns, min(system.stored(system.ended_ns), default=system.ended_ns)))


def no_descriptors(system: System) -> None:
    """EMFILE: the daemon may open nothing, and has to connect again."""
    pid = system.node.process.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    system.begin()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), usual[1]))
    system.set_relay(BrokerFault.DROPPING)
    system.set_relay(BrokerFault.NONE)
    time.sleep(LASTS_S)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    system.end()


def disk_full(system: System) -> None:
    system.begin()
    filler = system.disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
    time.sleep(LASTS_S)
    filler.unlink()
    system.end()


def disk_read_only(system: System) -> None:
    """The daemon starts on it; what it measures meanwhile it cannot store."""
    system.begin()
    system.node.kill()
    killed_ns = time.time_ns()
    run(["mount", "-o", "remount,ro", str(system.disk)])
    system.node.start()
    time.sleep(LASTS_S)
    run(["mount", "-o", "remount,rw", str(system.disk)])
    system.end()
    system.absent.append((killed_ns, system.ended_ns))


def store_removed(system: System) -> None:
    """What was stored before is removed, which is the fault itself; nothing measured since may be lost."""
    system.begin()
    system.absent.append((0, system.began_ns))
    shutil.rmtree(system.disk)
    time.sleep(LASTS_S)
    system.disk.mkdir(exist_ok=True)  # the daemon may have made it again
    system.end()


def runtime_files_removed(system: System) -> None:
    system.begin()
    for name in (NAME, "job.sock"):
        (system.folder / NODE / name).unlink()
    time.sleep(LASTS_S)
    system.end()


def postgresql_killed(system: System) -> None:
    assert system.postgresql is not None
    system.begin()
    system.postgresql.kill()
    time.sleep(LASTS_S)
    system.postgresql.start()
    system.end()


def certificate_expired(system: System) -> None:
    system.begin()
    system.broker.stop()
    system.expired_certificate(True)
    system.broker.start()
    time.sleep(LASTS_S)
    system.broker.stop()
    system.expired_certificate(False)
    system.broker.start()
    system.end()


#: A client whose CLOCK_BOOTTIME is another one: no interval of this daemon holds for it.
OTHER_TIME = """
import sys, time
from timesyncd.client.clock import Clock
clock = Clock(sys.argv[1])
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    interval = clock.gm_now()
    assert interval.earliest is None and interval.latest is None, interval
    time.sleep(0.02)
"""


def other_time_namespace(system: System) -> None:
    """A client in a time namespace gets no interval; one outside goes on."""
    system.begin()
    namespace = ["unshare", "--time", "--fork", "--boottime", "1000", "--monotonic", "1000"]
    child = [sys.executable, "-c", OTHER_TIME, str(system.folder / NODE), str(LASTS_S)]
    subprocess.run([*namespace, *child], check=True, timeout=LASTS_S + 60, cwd=Path(__file__).parents[2])
    system.end()


#: Without ptp4l no sample comes, and of a new one it is not known yet what it does to the clock.
PTP4L_GONE = ("clock-disrupted", "clock-holdover", "source-lost")

#: Six steps of the clock by 1.5 us to 0.5 s within half a minute.
STEPPED = ("clock-disrupted", "clock-holdover", "phase-jump")

_SILENT_BROKER = {
    BrokerFault.SILENT: (),
    BrokerFault.HALF_OPEN: (),
    BrokerFault.REFUSING: (BROKER_LOST,),
    BrokerFault.DROPPING: (BROKER_LOST,),
    BrokerFault.GARBAGE: (),
    BrokerFault.WRONG_ACKNOWLEDGEMENTS: (),
    BrokerFault.LATENCY: (),
}

FAULTS = (
    *(
        Fault("broker", fault.value, partial(relayed, fault), must, (BROKER_LOST,))
        for fault, must in _SILENT_BROKER.items()
    ),
    Fault("broker", "killed", broker_killed, (BROKER_LOST,)),
    Fault("process", "hub killed", hub_killed),
    # A daemon that has just started knows no clock, and one that was stopped for 12 s has no fresh sample.
    Fault("process", f"kill -9 of the daemon at {KILLS} instants", killed_at_any_instant, (), ("clock-unknown",)),
    Fault("process", "SIGSTOP", stopped, (), ("clock-holdover",)),
    Fault("process", "OOM", out_of_memory, (), ("clock-unknown",)),
    Fault("process", "CPU starved to a twentieth", starved, (), ("clock-holdover", "source-lost")),
    Fault("process", "ptp4l gone, then another one", ptp4l_replaced, (), PTP4L_GONE),
    Fault("process", "upgrade and downgrade under running clients", other_version, (), ("clock-unknown",)),
    Fault("files", "EMFILE", no_descriptors, (), (BROKER_LOST,)),
    Fault("files", "disk full", disk_full, ("store-failing",), options=Options(small_disk=True)),
    Fault(
        "files",
        "disk read-only at the start",
        disk_read_only,
        ("store-failing",),
        ("clock-unknown",),
        Options(small_disk=True),
    ),
    Fault("files", "folder of the store removed", store_removed, (), ("store-failing",)),
    Fault("files", "clock segment and job socket removed", runtime_files_removed, ("runtime-file-removed",)),
    Fault("files", "disk slow: writes wait for up to 1 s", disk_slow, options=Options(own_disk=True)),
    Fault("files", "disk hangs", disk_hangs, (), ("store-failing",), Options(own_disk=True)),
    Fault("files", "disk vanished", disk_vanished, ("store-failing",), options=Options(own_disk=True)),
    Fault("clock", "client in another time namespace", other_time_namespace),
    Fault("clock", "clock step", scenario="clock-set-by-hand", may_report=STEPPED),
    Fault(
        "clock",
        "grandmaster sends garbage",
        grandmaster_sends_garbage,
        ("grandmaster-lost",),
        options=Options(grandmaster=True),
    ),
    Fault("services", "PostgreSQL killed", postgresql_killed, ("store-failing",), options=Options(postgresql=True)),
    Fault(
        "services",
        "PostgreSQL fails over",
        postgresql_fails_over,
        ("store-failing",),
        options=Options(postgresql=True, standby=True),
    ),
    Fault(
        "services", "certificate expired and replaced", certificate_expired, (BROKER_LOST,), options=Options(tls=True)
    ),
    Fault("services", "DNS unavailable", no_names, (BROKER_LOST,), options=Options(dns=True)),
)
