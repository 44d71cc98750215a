"""What a test bed left behind: its processes carry a marker in their environment."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

VARIABLE = "TIMESYNCD_TESTBED"


def new_marker() -> str:
    """A marker that no other test bed has."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def marked_environment(marker: str) -> dict[str, str]:
    """Our environment for a child process that `leftovers` shall find, and its children too."""
    return os.environ | {VARIABLE: marker}


def leftovers(marker: str) -> list[str]:
    """
    The processes that carry the marker, and the network namespaces that they keep alive; empty is what it should be.

    Namespaces of the test bed have no name, so none outlives its last process.
    """
    own_network = os.readlink("/proc/self/ns/net")
    processes: list[str] = []
    networks: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{VARIABLE}={marker}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            networks.add(os.readlink(folder / "ns" / "net"))
        except OSError:  # it ended meanwhile, or is another user's
            continue
        processes.append(f"process {folder.name}: {command}")
    return sorted(processes) + [f"namespace {network}" for network in sorted(networks - {own_network})]
