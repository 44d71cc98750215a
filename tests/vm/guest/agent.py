"""Runs the commands that the host sends over a virtio serial port, one JSON object a line, and replies with status and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

PORT = Path("/dev/virtio-ports/timesyncd.0")
PORT_WAIT_S = 0.1
NO_HOST_WAIT_S = 0.2
TIMED_OUT = 124

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


def main() -> None:
    while not PORT.exists():
        time.sleep(PORT_WAIT_S)
    port = Port(os.open(PORT, os.O_RDWR))
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    port.send({"boot": boot_id})
    pending = b""
    while True:
        *lines, pending = (pending + port.receive()).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "run" in request:
                threading.Thread(target=reply_to, args=(port, request), daemon=True).start()
            else:
                port.send({"boot": boot_id})


class Port:
    """The serial port; several threads may send."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        rest = json.dumps(message).encode() + b"\n"
        with self._lock:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def receive(self) -> bytes:
        """Empty while the host has the other end closed."""
        try:
            received = os.read(self._descriptor, 1 << 16)
        except OSError:
            received = b""
        if not received:
            time.sleep(NO_HOST_WAIT_S)
        return received


def reply_to(port: Port, request: dict[str, Any]) -> None:
    status, output = run(request["run"], request["timeout_s"])
    port.send({"id": request["id"], "status": status, "output": output.decode(errors="replace")})


def run(command: str, timeout_s: float) -> tuple[int, bytes]:
    """What the command started ends with it at the timeout; what it put into a session or unit of its own goes on."""
    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd="/root",
        env=ENVIRONMENT,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return TIMED_OUT, output
    return process.returncode, output


if __name__ == "__main__":
    main()
