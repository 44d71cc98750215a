"""
Records the log of a real ptp4l: `ptp4l_recorder.py FOLDER SECONDS`, in network and mount namespaces of its own.

FOLDER/stdout.log is what `-m` prints, FOLDER/syslog.log what the same process sends to /dev/log, FOLDER/pid its pid. The
grandmaster ends after three quarters of the time.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import End, Namespace, join
from timesyncd.simulation.bed.ptp4l import configuration, major_version

#: One line for each Sync. Without `free_running` the machine's clock would be steered.
OVERRIDES = ("logSyncInterval 0", "logMinDelayReqInterval 0", "summary_interval 0", "freq_est_interval 0")


def main(folder: Path, seconds: float) -> None:
    log_socket = own_dev(folder / "dev")
    with ExitStack() as stack:
        grandmaster, node = Namespace(), Namespace()
        stack.callback(grandmaster.close)
        stack.callback(node.close)
        join(End("node0", "10.199.0.1/24", grandmaster), End("ptp0", "10.199.0.2/24", node))
        master = ptp4l(folder, grandmaster, "node0", is_grandmaster=True)
        stack.callback(master.kill)
        slave = ptp4l(folder, node, "ptp0", is_grandmaster=False)
        stack.callback(slave.kill)
        (folder / "pid").write_text(str(slave.pid))
        record(log_socket, folder / "syslog.log", seconds * 3 / 4)
        master.kill()
        record(log_socket, folder / "syslog.log", seconds / 4)


def own_dev(dev: Path) -> socket.socket:
    """Replace /dev, for this process and its children, by one with a log socket that we read."""
    dev.mkdir()
    log_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log_socket.bind(str(dev / "log"))
    for name in ("null", "urandom"):
        (dev / name).touch()
        host.run(["mount", "--bind", f"/dev/{name}", str(dev / name)])
    host.run(["mount", "--rbind", str(dev), "/dev"])
    return log_socket


def ptp4l(folder: Path, namespace: Namespace, interface: str, is_grandmaster: bool) -> subprocess.Popen[bytes]:
    name = "gm" if is_grandmaster else "stdout"
    text = configuration(folder / f"{name}.socket", [interface], is_grandmaster, major_version() >= 4)
    replaced = {line.split()[0] for line in OVERRIDES}
    head, *lines = (line for line in text.splitlines() if line.split()[0] not in replaced)
    (folder / f"{name}.cfg").write_text("\n".join([head, *OVERRIDES, *lines, ""]))
    command = [host.find("ptp4l"), "-f", str(folder / f"{name}.cfg"), "-m", *(["-q"] if is_grandmaster else [])]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(namespace.enter(host.dying_with_parent(command)), stdout=log, stderr=log)


def record(log_socket: socket.socket, path: Path, seconds: float) -> None:
    """Write each datagram as a line."""
    deadline = time.monotonic() + seconds
    with path.open("ab") as log:
        while (left_s := deadline - time.monotonic()) > 0:
            log_socket.settimeout(left_s)
            try:
                log.write(log_socket.recv(1 << 16).rstrip(b"\0\n") + b"\n")
            except TimeoutError:
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
