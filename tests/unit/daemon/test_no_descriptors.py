"""A daemon without a free file descriptor goes on: what it does each second needs none, or does without."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, resource
from timesyncd.daemon.daemon import notify
from timesyncd.daemon.memory import HeapTrimmer
heap = HeapTrimmer()
notify("READY=1")
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
try:
    open("/dev/null")
except OSError as error:
    print(error.strerror)
heap.tick(10**18)
notify("WATCHDOG=1")
print("goes on")
"""


def test_without_a_file_descriptor_the_heap_waits_and_the_watchdog_does_not(tmp_path: Path) -> None:
    """To look at its own memory can wait, and the service manager is still told that the daemon lives."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"NOTIFY_SOCKET": str(address)},
            capture_output=True,
            text=True,
            check=False,
        )
        received = [manager.recv(100), manager.recv(100)] if done.returncode == 0 else []

    assert (done.stdout.splitlines(), done.stderr) == (["Too many open files", "goes on"], "")
    assert received == [b"READY=1", b"WATCHDOG=1"]
