"""
A hub under all of a site's load at once, on this machine's cores: states of its nodes, marks of its jobs' ranks,
browsers on its page, and a rank that floods the job socket. It finds the largest load that holds: all parts are
doubled together until a goal is missed; what is left of the time then judges the last load that held. Goals: from the
publication of a state until the API has it p99 under 1 s, no error of a browser, and memory that stays flat.

The whole load is 10,000 nodes that publish each 2 s, 1,000 jobs of 64 ranks that send a batch of four marks a second
each, and 200 browsers. The hub is a whole daemon with its store. Nodes and ranks are one process on a few connections
(`_whole_sender.py`), the browsers another one (`_whole_browsers.py`). The CPU of each is printed by itself, that of
the flood and the broker too. `make load MINUTES=` has the length.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from _fleet_load import name
from _grandmasters import cpu_s
from fleet import ask

from timesyncd.bound import ClockStatus
from timesyncd.ipc.job_datagram import _MARK as MARK
from timesyncd.ipc.job_datagram import MAX_MARKS, Header, encode_header
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, JOBS, RANKS, BROWSERS, EVERY_S = 10_000, 1_000, 64, 200, 2.0
#: The part of the load to begin with, and the time of one step without that until all nodes are known.
FIRST_PART, WARM_S, STEP_S = 1 / 64, 20.0, 40.0
SAMPLE_S = 2.0
MAX_LAG_S, MAX_LATE_S, MAX_GROWTH = 1.0, 1.0, 1.1


class Load(NamedTuple):
    nodes: int
    jobs: int
    browsers: int

    @classmethod
    def of_part(cls, part: float) -> Load:
        return cls(*(max(1, round(most * part)) for most in (NODES, JOBS, BROWSERS)))

    def __str__(self) -> str:
        return f"{self.nodes} nodes each {EVERY_S:g} s, {self.jobs} jobs of {RANKS} ranks, {self.browsers} browsers"


class Part:
    """A process of the load."""

    def __init__(self, script: str, *options: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), *options]
        self.process = subprocess.Popen(
            host.dying_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line().strip() != "ready":
            raise SystemExit(f"{script} ended")

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def next(self) -> None:
        print(file=self.process.stdin, flush=True)

    def report(self) -> dict[str, Any]:
        self.next()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        with self.process:
            self.process.kill()


class Result(NamedTuple):
    """`waited`: the part of the time in which the hub's main thread was ready to run, and other work had the cores."""

    sent: dict[str, Any]
    page: dict[str, Any]
    nodes: int
    cores: dict[str, float]
    waited: float
    memory_mib: list[float]

    def failures(self, load: Load) -> list[str]:
        found = [f"{count} x {error}" for error, count in self.page["errors"].items()]
        if self.nodes < load.nodes:
            found.append(f"the hub knows {self.nodes} nodes")
        if self.page["lag_p99_s"] is None or self.page["lag_p99_s"] > MAX_LAG_S:
            found.append("the lag")
        if self.sent["late_p99_s"] > MAX_LATE_S:
            found.append("the generator does not keep up")
        return found


def flood(path: Path, ended: threading.Event) -> None:
    """A rank of a job of its own: as many marks as fit into a datagram, as fast as the socket accepts them."""
    step = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1)
        sender.connect(str(path))
        while not ended.is_set():
            header = Header(
                job="flood", attempt=0, rank=step % 2, world_size=2, node="x", boot_id=5, time_namespace=6,
                real_minus_boot_ns=7, status=ClockStatus.SYNCHRONIZED, gm_bound_ns=8, utc_bound_ns=9,
                utc_seconds_removed=37, grandmaster_identity="00a069.fffe.0000a1", lost=0, joined_ns=2,
            )  # fmt: skip
            now = time.time_ns()
            marks = b"".join(MARK.pack(step + k, 0, 1, now, now + 1, now + 2, 4) for k in range(MAX_MARKS))
            step += MAX_MARKS
            with suppress(OSError):
                sender.send(encode_header(header, MAX_MARKS) + marks)


@contextmanager
def flooding(path: Path) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=flood, args=(path, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def waited_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def rss_mib(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def running(load: Load) -> Iterator[tuple[DaemonProcess, Part, Part, dict[str, int]]]:
    """The hub, the generator and the browsers, under load for WARM_S; and the process of each part by its name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whole-")))
        broker = stack.enter_context(Mosquitto())
        hub = stack.enter_context(DaemonProcess("hub", folder, "", new_marker(), broker, hub=True))
        options = (f"--nodes={load.nodes}", f"--jobs={load.jobs}", f"--ranks={RANKS}", f"--every-s={EVERY_S}")
        sender = Part("_whole_sender.py", f"--port={broker.port}", "--probe", *options)
        stack.callback(sender.close)
        time.sleep(WARM_S / 2)
        watched = f"--probe={name(load.nodes)}"
        page = Part("_whole_browsers.py", f"--url={hub.page}", f"--browsers={load.browsers}", watched)
        stack.callback(page.close)
        stack.enter_context(flooding(hub.folder / "job.sock"))
        time.sleep(WARM_S / 2)
        pids = {"hub": hub.process.pid, "broker": broker.pid or 0}
        pids |= {"generator": sender.process.pid, "browsers": page.process.pid, "flood": os.getpid()}
        yield hub, sender, page, pids


def measure(load: Load, seconds: float) -> Result:
    with running(load) as (hub, sender, page, pids):
        used, began_s, memory = {part: cpu_s(pid) for part, pid in pids.items()}, time.monotonic(), list[float]()
        waited_before_s = waited_s(hub.process.pid)
        page.next()
        while time.monotonic() - began_s < seconds:
            time.sleep(SAMPLE_S)
            memory.append(rss_mib(hub.process.pid))
        passed_s = time.monotonic() - began_s
        cores = {part: (cpu_s(pid) - used[part]) / passed_s for part, pid in pids.items()}
        waited = (waited_s(hub.process.pid) - waited_before_s) / passed_s
        of_page = page.report()
        nodes = ask(hub, "api/v1/fleet")["nodes"]
        return Result(sender.report(), of_page, nodes, cores, waited, memory)


def show(load: Load, result: Result) -> list[str]:
    """Prints the result. Returns what does not hold."""
    failed, page, sent = result.failures(load), result.page, result.sent
    cores = ", ".join(f"{part} {share:.2f}" for part, share in result.cores.items())
    lag = f"p50 {page['lag_p50_s']} s, p99 {page['lag_p99_s']} s, of {page['probes']} states"
    print(f"{load}, and a rank that floods: {'; '.join(failed) or 'held'}")
    print(f"  {sent['states']} states and {sent['batches']} batches on {sent['connections']} connections")
    print(f"  from publication until the API has it: {lag}; the generator late p99 {sent['late_p99_s']:.2f} s")
    print(f"  {page['requests']} requests of browsers: p50 {page['p50_s']} s, p99 {page['p99_s']} s")
    print(f"  {page['streams']} browsers hold /events open")
    print(f"  cores: {cores}; the hub waited for one {result.waited:.0%} of the time", flush=True)
    return failed


def largest(until_s: float) -> Load:
    """The last load that held; the first one where none did."""
    part, held = FIRST_PART, Load.of_part(FIRST_PART)
    while part <= 1 and time.monotonic() + WARM_S + STEP_S < until_s:
        load = Load.of_part(part)
        if show(load, measure(load, STEP_S)):
            break
        held, part = load, part * 2
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=7.5, help="in all; two fifths judge the largest load")
    parser.add_argument("--part", type=float, help="of the whole load; nothing is searched then")
    args = parser.parse_args()
    ends_s = time.monotonic() + args.minutes * 60
    load = Load.of_part(args.part) if args.part else largest(ends_s - args.minutes * 24)
    print("the largest load:" if not args.part else "this load:")
    result = measure(load, max(STEP_S, ends_s - time.monotonic() - WARM_S - 10))
    failed = show(load, result)
    quarter = max(1, len(result.memory_mib) // 4)
    first, last = max(result.memory_mib[:quarter]), max(result.memory_mib[-quarter:])
    print(f"  memory of the hub: {first:.0f} MiB in the first quarter, {last:.0f} in the last")
    if failed or last > first * MAX_GROWTH:
        raise SystemExit("it does not hold")


if __name__ == "__main__":
    main()
