"""
What the daemon costs a node with one grandmaster: CPU and memory at 1, 8, 64 and 128 samples a second, against prometheus-node-exporter
that is scraped once a second in the same run. Goals: at 8 a second no more CPU than it, and at most 70 MiB; neither Alembic nor rich imported.

A real ptp4l is polled at 8 Syncs a second; the rates are of a simulated one with twice as many Syncs as polls, so that each poll
brings a sample. One source is polled 100 times a second at most: 128 are two sources with 64 each.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from _grandmasters import cpu_s, section, simulated

from timesyncd.client.api import fetch_all
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto, free_port
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.simulation.bed.ptp4l import DOMAIN

SECONDS, ROUNDS = 12, 3
RATES = (1, 8, 64, 128)

#: Polls of the real one, and the most of one simulated one, a second.
POLLED, FASTEST = 8, 64

_SOURCE = """
[[source]]
name = "ptp-{index}"
driver = "ptp4l"
uds_address = "{address}"
domain = {domain}
poll_interval_s = {poll_s}
"""


class Round(NamedTuple):
    """Shares of a core, the daemon's samples a second, and MiB."""

    ours: float
    theirs: float
    rate: float
    our_mib: float
    their_mib: float


def resident_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def exporter() -> Iterator[tuple[int, str]]:
    """Its pid and where it is scraped."""
    path = shutil.which("prometheus-node-exporter")
    if path is None:
        raise SystemExit("prometheus-node-exporter is not installed: make bench-packages")
    address = f"127.0.0.1:{free_port()}"
    command = host.dying_with_parent([path, f"--web.listen-address={address}"])
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid, f"http://{address}/metrics"
        finally:
            process.terminate()


@contextmanager
def simulated_ptp4l(address: Path, syncs_per_s: int) -> Iterator[str]:
    """In a process of its own, with so many Syncs a second (a power of two); where it listens."""
    script = Path(__file__).with_name("_simulated_ptp4l.py")
    command = host.dying_with_parent([sys.executable, str(script), str(address), str(1 - syncs_per_s.bit_length())])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield str(address)
        finally:
            process.terminate()


@contextmanager
def simulated_ptp4ls(folder: Path, rate: int) -> Iterator[str]:
    """The daemon's sources that bring so many samples a second in all, as TOML."""
    count = -(-rate // FASTEST)
    with ExitStack() as stack:
        text = ""
        for index in range(count):
            address = stack.enter_context(simulated_ptp4l(folder / f"ptp4l{index}", 2 * rate // count))
            text += _SOURCE.format(index=index, address=address, domain=DOMAIN, poll_s=count / rate)
        yield text


@contextmanager
def real_ptp4l(marker: str) -> Iterator[str]:
    """The same of a real one."""
    with PtpBed(direct=("node",), marker=marker) as bed:
        yield _SOURCE.format(index=0, address=bed.nodes["node"].uds_address, domain=DOMAIN, poll_s=1 / POLLED)


def wait_until_synchronized(daemon: DaemonProcess) -> None:
    for _ in range(90):
        if fetch_all(daemon.page)["node"]["status"] == "SYNCHRONIZED":
            return
        time.sleep(1)
    raise SystemExit("the daemon got no valid sample within 90 s")


def samples(daemon: DaemonProcess) -> int:
    with urlopen(f"{daemon.page}metrics", timeout=5) as answer:
        found = re.search(r"^timesyncd_samples_total ([0-9.e+]+)$", answer.read().decode(), re.MULTILINE)
    assert found
    return int(float(found[1]))


def measure(daemon: DaemonProcess, peer: int, url: str) -> Round:
    pids = (daemon.process.pid, peer)
    count = samples(daemon)
    before = [cpu_s(pid) for pid in pids]
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        with urlopen(url, timeout=5) as answer:
            answer.read()
        time.sleep(1 - (time.monotonic() - began) % 1)
    elapsed = time.monotonic() - began
    ours, theirs = ((cpu_s(pid) - was) / elapsed for pid, was in zip(pids, before, strict=True))
    return Round(ours, theirs, (samples(daemon) - count) / elapsed, *map(resident_mib, pids))


def rounds(rate: int | None) -> list[Round]:
    """At so many samples a second; None: of the real ptp4l."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        marker = new_marker()
        sources = stack.enter_context(real_ptp4l(marker) if rate is None else simulated_ptp4ls(folder, rate))
        broker = stack.enter_context(Mosquitto(marker=marker))
        (facts,) = stack.enter_context(simulated("--model", "tp5000e"))
        more = f"{sources}\n{section(facts, folder)}"
        daemon = stack.enter_context(DaemonProcess("node", folder, "", marker, broker, more=more))
        wait_until_synchronized(daemon)
        peer, url = stack.enter_context(exporter())
        time.sleep(5)
        return [measure(daemon, peer, url) for _ in range(ROUNDS)]


def show(name: str, found: list[Round]) -> Round:
    ours, theirs, rate, our_mib, their_mib = middle = Round(*map(statistics.median, zip(*found, strict=True)))
    ratio = statistics.median(each.ours / each.theirs for each in found)
    print(
        f"{name:<18}{rate:7.1f}{ours:9.2%}{theirs:10.2%}{ratio:8.2f}{ours / rate * 1e3:11.2f} ms"
        f"{our_mib:8.0f} MiB{their_mib:8.0f} MiB",
        flush=True,
    )
    return middle


def imported_by_run() -> list[str]:
    """Which of the packages that `run` must do without it imports all the same."""
    code = "import sys, timesyncd.daemon.daemon; print(*{'alembic', 'rich'} & set(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"medians of {ROUNDS} rounds of {SECONDS} s; CPU in shares of a core")
    print(f"{'':<16}samples/s     CPU  exporter   ratio    CPU a sample  memory   exporter")
    real = show(f"ptp4l, {POLLED}/s", rounds(None))
    found = [show(f"simulated, {rate}/s", rounds(rate)) for rate in RATES]
    low, high = found[0], found[-1]
    each_s = (high.ours - low.ours) / (high.rate - low.rate)
    print(
        f"one more sample a second costs {each_s * 1e3:.2f} ms of CPU; what does not depend on them {low.ours - each_s * low.rate:.2%}"
    )
    print(f"of alembic and rich, run imports: {', '.join(imported_by_run()) or 'none'}")
    print(
        f"CPU ratio of ptp4l at {POLLED}/s {real.ours / real.theirs:.2f} (goal <= 1), memory {real.our_mib:.0f} MiB (goal <= 70)"
    )


if __name__ == "__main__":
    main()
