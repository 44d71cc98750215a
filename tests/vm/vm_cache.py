"""Where the parts of the virtual machines are kept between runs, and what this machine must have to make and run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Programs, by the Debian package that has them.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "gcc": "gcc",
    "dpkg-deb": "dpkg",
    "xz": "xz-utils",
    "setpriv": "util-linux",
    "apt-get": "apt",
}
QEMU = "qemu-system-x86_64"
OLDEST_QEMU = (8, 1)

KERNEL, NEWEST_KERNEL = "trixie", "backports"


class NeedNotMet(Exception):
    """This machine lacks something that the virtual machines need; the text is one line with what, and how to get it."""


@dataclass(frozen=True)
class Cache:
    """The folder of the parts."""

    folder: Path

    @property
    def qemu(self) -> Path:
        return self.folder / "qemu"

    @property
    def root(self) -> Path:
        """The folder that the disk is made of."""
        return self.folder / "root"

    @property
    def disk(self) -> Path:
        return self.folder / "root.ext4"

    @property
    def clocktruth(self) -> Path:
        return self.root / "usr/local/bin/clocktruth"

    def kernel(self, name: str) -> Path:
        return self.folder / f"vmlinuz-{name}"

    def initrd(self, name: str) -> Path:
        return self.folder / f"initrd-{name}"


def default_cache() -> Cache:
    """$TIMESYNCD_VM_CACHE, else ~/.cache/timesyncd-vm."""
    return Cache(Path(os.environ.get("TIMESYNCD_VM_CACHE") or Path.home() / ".cache" / "timesyncd-vm"))


def check_needs() -> None:
    """Raises NeedNotMet."""
    if os.geteuid() != 0:
        raise NeedNotMet(
            "the virtual machines need root (mmdebstrap, chroot, SCHED_FIFO): run make vm-test or vm-soak as root"
        )
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise NeedNotMet(f"{program} is missing: apt-get install {package}")
    if (qemu := shutil.which(QEMU)) is None:
        raise NeedNotMet(f"{QEMU} is missing: {_install_hint()}")
    text = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    require_version(text)


def require_version(text: str) -> None:
    """Of what `qemu --version` prints: older ones have no igb network card. Raises NeedNotMet."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_QEMU:
        version = found[0] if found else text[:60]
        raise NeedNotMet(f"QEMU {OLDEST_QEMU[0]}.{OLDEST_QEMU[1]} or newer is needed, not {version}: {_install_hint()}")


def _install_hint() -> str:
    return "apt-get install --no-install-recommends -t bookworm-backports qemu-system-x86 (on Debian 13 without -t)"
