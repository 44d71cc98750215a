"""
A machine on which timesyncd is installed and started by docs/operations.md, whose blocks run word for word.

What differs from a reader's machine is listed here, and nothing else does:

- The block `install` runs in the disk's own Debian before the machine boots, since pip takes minutes in a virtual machine.
- pip finds its packages in a folder (PIP_FIND_LINKS), since the machine has no internet.
- `editor` is a program that writes the manual's own example of a configuration.
- The grandmaster is a ptp4l of the same machine, on a second network card.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import operations_manual
from vm_build import DISK_SIZE, INSTALLED, PROJECT, SOURCE_FILES, SOURCE_FOLDERS, digest, locked
from vm_cache import Cache
from vm_lab import Lab
from vm_machine import Machine, MachineSpec
from vm_pair import DOMAIN, GRANDMASTER, NODE, TRACEABLE

SOURCE = "/root/unpacked"
WHEELS = "/root/wheels"
INSTALL_LIMIT_S = 900
BLOCK_LIMIT_S = 300
START_LIMIT_S = 240
#: Each question costs the machine's one slow processor a tenth of a second.
ASK_PERIOD_S = 2

#: pip as on a machine that reaches a package index. Wheels of another machine's cache would be none of the manual's.
PIP = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={WHEELS} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1\n"

#: Fewer messages than the usual pair's: the machine has one slow processor, which both ptp4l and the daemon share.
SLOWLY = {"logSyncInterval -3": "logSyncInterval -1", "logMinDelayReqInterval -3": "logMinDelayReqInterval -1"}

NETWORK = "[Match]\nName=eth*\n[Network]\nLinkLocalAddressing=no\n"

GRANDMASTER_UNIT = f"""[Unit]
After=systemd-networkd.service
[Service]
ExecStartPre=sh -c 'until grep -q 1 /sys/class/net/eth1/carrier; do sleep 0.2; done 2>/dev/null'
ExecStartPre=phc_ctl -q /dev/ptp1 set adj 37
ExecStart=/usr/sbin/ptp4l -i eth1 -f /root/grandmaster.conf
ExecStartPost=sh -c 'sleep 2; pmc -u -b 0 -d {DOMAIN} -s /run/grandmaster "{TRACEABLE}"'
[Install]
WantedBy=multi-user.target
"""

#: What an installation may leave traces in.
WATCHED = "/etc /opt /usr/lib /usr/local /var/lib /run /tmp"


def slowly(configuration: str) -> str:
    for usual, slow in SLOWLY.items():
        configuration = configuration.replace(usual, slow)
    return configuration


def make_service_cache(cache: Cache) -> Cache:
    """
    A cache whose disk has Debian, the unpacked source, and what the manual's first two blocks install. It is made again where the
    product, the manual or what installs it has changed.
    """
    new = Cache(cache.folder / "service")
    stamp = new.folder / "disk.sha256"
    with locked(cache.folder / "lock"):
        manual = (operations_manual.PATH, Path(operations_manual.__file__), Path(__file__))
        wanted = digest([cache.folder / stamp.name, *manual])
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(new.folder, ignore_errors=True)
            new.folder.mkdir()
            for path in (cache.qemu, *cache.folder.glob("vmlinuz-*"), *cache.folder.glob("initrd-*")):
                (new.folder / path.name).symlink_to(path)
            _make_disk(cache, new)
            stamp.write_text(wanted)
    return new


def _make_disk(cache: Cache, new: Cache) -> None:
    _run("cp", "-a", cache.root, new.root)
    _uninstall(new.root)
    _unpack(cache, new.root)
    (new.root / "root/before").write_text(listed(new.root))
    blocks = operations_manual.blocks()
    # Root's umask is what a hardened machine has, so that the manual must set its own.
    script = f"umask 077\nset -e\ncd {SOURCE}\n{PIP}" + blocks["install"].text + blocks["install for Debian"].text
    _run("chroot", new.root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "bash", "-c", script)
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", new.root, new.disk, DISK_SIZE)
    shutil.rmtree(new.root)
    new.root.symlink_to(cache.root)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def _uninstall(root: Path) -> None:
    """What the build of the usual disk installed in another way."""
    shutil.rmtree(root / "opt/timesyncd", ignore_errors=True)
    for path in ("usr/local/bin/timesyncd", *INSTALLED.values()):
        (root / path).unlink(missing_ok=True)
    (root / "etc/systemd/system/ptp4l@.service.d").rmdir()
    for table in ("passwd", "shadow", "group", "gshadow"):
        accounts = root / "etc" / table
        accounts.write_text(re.sub("^timesyncd:.*\n", "", accounts.read_text(), flags=re.MULTILINE))


def _unpack(cache: Cache, root: Path) -> None:
    source = root / SOURCE.lstrip("/")
    source.mkdir()
    for name in SOURCE_FOLDERS:
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCE_FILES:
        shutil.copy(PROJECT / name, source / name)
    shutil.copytree(cache.folder / "wheels", root / WHEELS.lstrip("/"))
    (root / "etc/systemd/network/test.network").write_text(NETWORK)
    networkd = root / "etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
    networkd.unlink(missing_ok=True)
    networkd.symlink_to("/usr/lib/systemd/system/systemd-networkd.service")


def listed(root: Path) -> str:
    """The paths of the disk that an installation may add to, one a line."""
    folders = [root / folder.lstrip("/") for folder in WATCHED.split() if folder not in ("/run", "/tmp")]
    return "".join(f"/{path.relative_to(root)}\n" for folder in folders for path in sorted(folder.rglob("*")))


class Service:
    """The machine, and the manual's blocks on it."""

    def __init__(self, lab: Lab) -> None:
        spec = MachineSpec("service", ("hubport,hubid=1", "hubport,hubid=1"), memory_mib=768)
        self.machine: Machine = lab.machine(spec)
        self._blocks = operations_manual.blocks()

    def prepare(self) -> None:
        """A network, a grandmaster, and a ptp4l.conf, which the manual takes for granted."""
        machine = self.machine
        machine.wait_until_ready()
        sockets = "uds_address /run/grandmaster\nuds_ro_address /run/grandmaster.ro\n"
        machine.write("/root/grandmaster.conf", slowly(GRANDMASTER) + sockets)
        machine.write("/etc/linuxptp/ptp4l.conf", slowly(NODE))
        machine.write("/etc/systemd/system/grandmaster.service", GRANDMASTER_UNIT)
        machine.write("/root/answer.toml", self._blocks["configuration"].text)
        machine.write("/usr/local/sbin/editor", '#!/bin/sh\ncp /root/answer.toml "$1"\n')
        machine.run(
            "chmod 755 /usr/local/sbin/editor; systemctl daemon-reload; systemctl enable --now grandmaster", 120
        )

    def block(self, name: str, limit_s: float = BLOCK_LIMIT_S) -> str:
        """What the block prints. Raises MachineError where one of its lines fails."""
        return self.machine.run(f"set -e\ncd {SOURCE}\n{PIP}{self._blocks[name].commands}", limit_s)

    def text(self, name: str) -> str:
        return self._blocks[name].text

    def install(self) -> None:
        for name in ("apply", "enable ptp4l"):
            self.block(name)
        # Status 1 is the answer "not synchronized yet": the daemon has just started.
        self.machine.ask(f"cd {SOURCE}\n{self._blocks['start'].commands}", BLOCK_LIMIT_S)
        self.wait_until_synchronized()

    def wait_until_synchronized(self, limit_s: float = START_LIMIT_S) -> None:
        end_s = time.monotonic() + limit_s
        while (answer := self.machine.ask("timesyncd now", 60)).status != 0 or "SYNCHRONIZED" not in answer.output:
            log = self.machine.run("journalctl --no-pager -n 20 -u ptp4l@eth0 -u phc2sys@eth0 -u timesyncd")
            assert time.monotonic() < end_s, answer.output + log
            time.sleep(ASK_PERIOD_S)

    def show(self, name: str, unit: str = "timesyncd") -> str:
        """One property of a unit."""
        return self.machine.run(f"systemctl show {unit} --value -p {name}").strip()

    def journal(self, *options: str) -> str:
        return self.machine.run(f"journalctl --no-pager -u timesyncd {' '.join(options)}")

    def wait_for_another(self, pid: str, limit_s: float = START_LIMIT_S) -> None:
        """Until systemd runs another process that reported that it is ready."""
        end_s = time.monotonic() + limit_s
        while self.show("ActiveState") != "active" or self.show("MainPID") == pid:
            assert time.monotonic() < end_s, self.journal()
            time.sleep(ASK_PERIOD_S)
