"""Where the programs of the test bed are, and which Debian package brings each."""

from __future__ import annotations

import os
import shutil

from timesyncd.errors import TimesyncdError

PACKAGES = {
    "ptp4l": "linuxptp",
    "mosquitto": "mosquitto",
    "mosquitto_passwd": "mosquitto",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def find(tool: str) -> str:
    """The tool's path, looked for in /usr/sbin too (not everybody's PATH has it). Raises TimesyncdError."""
    path = _which(tool)
    if path is None:
        raise TimesyncdError(f"{tool} is not installed: Debian package {PACKAGES[tool]}")
    return path


def missing_packages() -> list[str]:
    """The Debian packages without which the whole test bed cannot run."""
    return sorted({package for tool, package in PACKAGES.items() if _which(tool) is None})


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def dying_with_parent(command: list[str]) -> list[str]:
    """The command, killed by the kernel when the thread that started it ends."""
    return [find("setpriv"), "--pdeathsig", "KILL", *command]
