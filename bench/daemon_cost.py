"""
What the daemon costs a node: CPU and memory at 8 polls a second and one grandmaster, against prometheus-node-exporter that is
scraped once a second in the same run. Goals: no more CPU than it, at most 90 MiB, and neither Alembic nor rich imported.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from _units import cpu_s, section, simulated

from timesyncd.terminal import fetch
from timesyncd.testbed.bed import PtpBed
from timesyncd.testbed.broker import Mosquitto, free_port
from timesyncd.testbed.daemon import DaemonProcess
from timesyncd.testbed.leftovers import new_marker

SECONDS, ROUNDS = 20, 5


def resident_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def exporter(stack: ExitStack) -> tuple[int, str]:
    path = shutil.which("prometheus-node-exporter")
    if path is None:
        raise SystemExit("prometheus-node-exporter is not installed: make bench-packages")
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([path, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process.pid, f"http://{address}/metrics"


def wait_until_synchronized(daemon: DaemonProcess) -> None:
    for _ in range(90):
        if fetch(daemon.page)["node"]["status"] == "SYNCHRONIZED":
            return
        time.sleep(1)
    raise SystemExit("the daemon got no valid sample within 90 s")


def measure(pids: tuple[int, int], url: str) -> tuple[float, float]:
    """CPU of the daemon and of the exporter over one round, as shares of a core."""
    before = [cpu_s(pid) for pid in pids]
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        with urlopen(url, timeout=5) as answer:
            answer.read()
        time.sleep(1 - (time.monotonic() - began) % 1)
    elapsed = time.monotonic() - began
    ours, theirs = ((cpu_s(pid) - was) / elapsed for pid, was in zip(pids, before, strict=True))
    return ours, theirs


def imported_by_run() -> list[str]:
    """Which of the packages that `run` must do without it imports all the same."""
    code = "import sys, timesyncd.daemon; print(*{'alembic', 'rich'} & set(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        marker = new_marker()
        bed = stack.enter_context(PtpBed(direct=("node",), marker=marker))
        broker = stack.enter_context(Mosquitto(marker=marker))
        (unit,) = stack.enter_context(simulated("--model", "tp5000e"))
        told = "\n" + section(unit, folder)
        daemon = DaemonProcess("node", folder, bed.nodes["node"].uds_address, marker, broker, more=told)
        stack.enter_context(daemon)
        wait_until_synchronized(daemon)
        pid, (peer, url) = daemon.process.pid, exporter(stack)
        time.sleep(5)
        rounds = [measure((pid, peer), url) for _ in range(ROUNDS)]
        memory = resident_mib(pid), resident_mib(peer)
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print(
        f"CPU: timesyncd {ours:.2%} of a core, node-exporter {theirs:.2%} (medians of {ROUNDS} rounds of {SECONDS} s)"
    )
    print(f"of alembic and rich, run imports: {', '.join(imported_by_run()) or 'none'}")
    print(f"CPU ratio {ratio:.2f} (goal <= 1)")
    print(
        f"memory: timesyncd {memory[0]:.0f} MiB (goal <= 90), node-exporter {memory[1]:.0f} MiB, ratio {memory[0] / memory[1]:.1f}"
    )


if __name__ == "__main__":
    main()
