"""The units and their neighbours, asked of systemd itself and of a real ptp4l."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import operations_manual
import pytest

from timesyncd.config import SyslogSettings, TrapSettings
from timesyncd.simulation.bed import host

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "systemd"
OPERATIONS = ROOT / "docs" / "operations.md"
HOST_UNITS = Path("/lib/systemd/system")
SOCKETS = ("timesyncd-traps.socket", "timesyncd-syslog.socket")
NOBODY_UID = 65534
GROUP = 54321


def output_of(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([host.find(str(command[0])), *command[1:]], check=False, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root folder as an installation leaves it: the host's own units, ours, and what they run."""
    (tmp_path / "etc").mkdir()
    units = tmp_path / "usr/lib/systemd/system"
    shutil.copytree(HOST_UNITS, units, symlinks=True)
    for unit in ("timesyncd.service", *SOCKETS):
        shutil.copy(SYSTEMD / unit, units)
    for program in ("opt/timesyncd/bin/timesyncd", "usr/sbin/ptp4l"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(host.find("true"), tmp_path / program)
    for kind in ("sysusers", "tmpfiles"):
        target = tmp_path / f"usr/lib/{kind}.d/timesyncd.conf"
        target.parent.mkdir(parents=True)
        shutil.copy(SYSTEMD / f"timesyncd.{kind}", target)
    return tmp_path


def test_the_unit_verifies(tree: Path) -> None:
    """systemd accepts the unit in a tree that holds its ExecStart, and reports the missing program when that is gone."""
    verified = output_of("systemd-analyze", "verify", f"--root={tree}", "timesyncd.service")
    (tree / "opt/timesyncd/bin/timesyncd").unlink()
    broken = output_of("systemd-analyze", "verify", f"--root={tree}", "timesyncd.service")

    assert (verified.returncode, verified.stderr) == (0, "")
    assert "is not executable" in broken.stderr


@pytest.mark.parametrize("unit", SOCKETS)
def test_the_sockets_verify(tree: Path, unit: str) -> None:
    """systemd accepts a socket's unit, and reports the missing service when that is gone."""
    verified = output_of("systemd-analyze", "verify", f"--root={tree}", unit)
    (tree / "usr/lib/systemd/system/timesyncd.service").unlink()
    broken = output_of("systemd-analyze", "verify", f"--root={tree}", unit)

    assert (verified.returncode, verified.stderr) == (0, "")
    assert "timesyncd.service" in broken.stderr


@pytest.mark.parametrize(("unit", "name", "port"), [(SOCKETS[0], "traps", 162), (SOCKETS[1], "syslog", 514)])
def test_the_sockets_are_those_that_the_daemon_asks_for(unit: str, name: str, port: int) -> None:
    """Each is UDP on the standard's port, which is the configuration's default, under the name that the daemon looks for."""
    parser = ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / unit)
    defaults = {"traps": TrapSettings().port, "syslog": SyslogSettings().port}

    assert dict(parser["Socket"]) == {
        "ListenDatagram": str(port),
        "FileDescriptorName": name,
        "ReceiveBuffer": "1M",
        "Service": "timesyncd.service",
    }
    assert parser["Install"]["WantedBy"] == "sockets.target"
    assert defaults[name] == port


@pytest.mark.parametrize(
    ("folder", "unit", "instance"),
    [
        ("ptp4l@.service.d", "ptp4l@.service", "ptp4l@eth0.service"),
        ("ptp4l.service.d", "ptp4l.service", "ptp4l.service"),
    ],
)
def test_the_drop_ins_verify(tree: Path, folder: str, unit: str, instance: str) -> None:
    """ptp4l's unit with our drop-in has one ExecStart, and systemd accepts it."""
    (tree / "usr/lib/systemd/system" / unit).write_text("[Unit]\nDescription=x\n[Service]\nExecStart=/usr/sbin/ptp4l\n")
    shutil.copytree(SYSTEMD / folder, tree / "etc/systemd/system" / folder)
    verified = output_of("systemd-analyze", "verify", f"--root={tree}", instance)

    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_steering_phc2sys_needs_the_ptp4l_of_its_interface(tree: Path) -> None:
    """
    Debian's unit requires a ptp4l.service that Debian does not have, and knows no domain; ours requires the instance, and reads
    ptp4l's configuration.
    """
    shutil.copy(SYSTEMD / "phc2sys@.service", tree / "usr/lib/systemd/system/")
    shutil.copy(host.find("true"), tree / "usr/sbin/phc2sys")
    (tree / "usr/lib/systemd/system/ptp4l@.service").write_text("[Service]\nExecStart=/usr/sbin/ptp4l\n")
    verified = output_of("systemd-analyze", "verify", f"--root={tree}", "phc2sys@eth0.service")
    (tree / "usr/lib/systemd/system/ptp4l@.service").unlink()
    without = output_of("systemd-analyze", "verify", f"--root={tree}", "phc2sys@eth0.service")
    unit = (SYSTEMD / "phc2sys@.service").read_text()

    assert (verified.returncode, verified.stderr) == (0, "")
    assert "ptp4l@eth0.service" in without.stderr
    assert re.findall("^(?:Requires|After)=(.*)", unit, re.MULTILINE) == ["ptp4l@%i.service"] * 2
    # Without an address: ptp4l's socket is found under its usual name with timesyncd and after its removal.
    assert "ExecStart=/usr/sbin/phc2sys -f /etc/linuxptp/ptp4l.conf -w -s %I\n" in unit


@pytest.mark.parametrize(
    "unit",
    ["ptp4l@.service.d/timesyncd.conf", "ptp4l.service.d/timesyncd.conf", "phc2sys@.service", "timesyncd.service"],
)
def test_what_fails_at_boot_is_started_again(unit: str) -> None:
    """ptp4l ends where the interface is not up yet, which is usual at boot: systemd goes on trying, without a limit."""
    lines = (SYSTEMD / unit).read_text().splitlines()

    assert {"Restart=on-failure", "StartLimitIntervalSec=0"} <= set(lines)
    assert any(line.startswith("RestartSec=") for line in lines)


def test_the_exposure_is_low() -> None:
    """systemd rates the service's exposure at 2.0 or less, of 10."""
    rated = output_of(
        "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", SYSTEMD / "timesyncd.service"
    )
    exposure = re.search(r"Overall exposure level for timesyncd.service: ([0-9.]+)", rated.stdout)

    assert exposure is not None, rated.stderr
    assert float(exposure[1]) <= 2.0
    assert f"gives {exposure[1]} of 10" in OPERATIONS.read_text()
    assert rated.returncode == 0


def test_each_point_of_exposure_has_its_reason_in_the_unit() -> None:
    """What systemd counts is what the unit's comments name, no more and no less."""
    rated = output_of("systemd-analyze", "security", "--offline=true", "--json=short", SYSTEMD / "timesyncd.service")
    counted = {each["name"] for each in json.loads(rated.stdout) if float(each["exposure"] or 0) > 0}
    comment = (SYSTEMD / "timesyncd.service").read_text().partition("still counts")[2]
    named = set(re.findall(r"[A-Z]\w+=(?:~(?:@\w+|AF_\w+|AF_\(INET\|INET6\)))?", comment.partition("[Install]")[0]))

    assert {name.removesuffix("/RootImage=") for name in counted} == named


def test_the_service_keeps_what_the_daemon_and_its_jobs_need() -> None:
    """What hardening must not take: the kept runtime folder, uids as they are, the boot id, the processes that steer the clock, adjtimex."""
    unit = (SYSTEMD / "timesyncd.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))

    assert (settings["Type"], settings["User"]) == ("notify", "timesyncd")
    assert settings["UMask"] == "0027"  # the group may read the history
    assert int(settings["WatchdogSec"]) > 0
    assert (settings["MemoryHigh"], settings["MemoryMax"]) == ("512M", "1G")
    assert (
        int(settings["TimeoutStartSec"]) >= 4 * 70
    )  # the longest start that was measured, at a load of 16 on two cores
    assert (settings["RuntimeDirectoryMode"], settings["RuntimeDirectoryPreserve"]) == ("0755", "yes")
    assert re.findall("^DeviceAllow=(.*)", unit, re.MULTILINE) == ["char-ptp r", "/dev/vmclock0 r"]
    assert "SystemCallFilter=adjtimex clock_adjtime" in unit
    left_out = {"PrivateUsers", "ProcSubset", "ProtectProc", "DynamicUser", "ProtectClock", "PrivateDevices"}
    assert not left_out & set(settings)


def test_user_and_folders_are_made(tree: Path) -> None:
    """sysusers and tmpfiles make the user, the folder whose set-group-id gives ptp4l's socket its group, and the old name."""
    users = output_of("systemd-sysusers", f"--root={tree}")
    made = output_of("systemd-tmpfiles", f"--root={tree}", "--create", "timesyncd.conf")
    group = re.search(r"^timesyncd:[^:]*:(\d+):", (tree / "etc/group").read_text(), re.MULTILINE)
    folder = (tree / "run/ptp").stat()

    assert (users.returncode, made.returncode) == (0, 0), users.stderr + made.stderr
    assert group is not None
    assert (stat.S_IMODE(folder.st_mode), folder.st_uid, folder.st_gid) == (0o2750, 0, int(group[1]))
    assert os.readlink(tree / "run/ptp4l") == "ptp/ptp4l"
    assert re.search(r"^timesyncd:.*:/var/lib/timesyncd:.*nologin$", (tree / "etc/passwd").read_text(), re.MULTILINE)


def test_every_file_is_in_the_manual() -> None:
    """docs/operations.md states for each file in systemd/ where it goes."""
    manual = OPERATIONS.read_text()
    files = [str(path.relative_to(SYSTEMD)) for path in SYSTEMD.rglob("*") if path.is_file()]

    assert [name for name in files if f"systemd/{name}" not in manual] == []


def test_every_block_of_the_manual_runs_in_a_virtual_machine_or_is_listed() -> None:
    """A block of docs/operations.md that tests/vm/test_service.py does not run needs a reason in `NOT_RUN`."""
    first_lines = [block.text for block in operations_manual.parse(OPERATIONS.read_text())]

    assert operations_manual.unlisted() == []
    assert set(operations_manual.blocks()) == set(operations_manual.RUN)
    for begin in operations_manual.NOT_RUN:
        assert sum(text.startswith(begin) for text in first_lines) == 1, begin


def test_what_is_removed_is_what_was_installed() -> None:
    """Each path that the manual's blocks install is in the block that removes, but phc2sys: it steers the system clock."""
    blocks = operations_manual.parse(OPERATIONS.read_text())
    installed = [
        path
        for block in blocks
        for path in re.findall(
            r"^(?:install -D -m 644 \S+\s+|ln -sf \S+ |\S+ -m venv )(/\S+)", block.text, re.MULTILINE
        )
    ]
    removed = "".join(block.text for block in blocks if block.heading == "Remove").split()

    assert len(installed) == len({*installed}) == 12
    assert [path for path in installed if path not in removed] == ["/etc/systemd/system/phc2sys@.service"]


@pytest.fixture
def ptp4l_socket() -> Iterator[Path]:
    """A real ptp4l with the drop-in's options, in a folder as tmpfiles makes it, in a network of its own."""
    run = Path(tempfile.mkdtemp(prefix="timesyncd-"))
    run.chmod(0o755)
    folder = run / "ptp"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2750)
    options = [option.replace("/run", str(run), 1) for option in drop_in_options()]
    command = [host.find("ptp4l"), "-f", "/dev/null", "-i", "lo", "-S", "-m", "--free_running=1", *options]
    in_own_network = [host.find("unshare"), "-n", "sh", "-c", f"ip link set lo up && exec {shlex.join(command)}"]
    ptp4l = subprocess.Popen(host.dying_with_parent(in_own_network), stdout=subprocess.DEVNULL)
    try:
        yield folder / "ptp4l"
    finally:
        ptp4l.terminate()
        ptp4l.wait(timeout=60)
        shutil.rmtree(run)


def drop_in_options() -> list[str]:
    parser = ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / "ptp4l.service.d" / "timesyncd.conf")
    return [word for word in parser["Service"]["ExecStart"].split() if word.startswith("--")]


def asked_as(group: int, address: Path) -> str:
    """What linuxptp's own client reads as a user in this group; its end lies in a folder of its own."""
    own = address.parent.parent / f"of-{group}"
    own.mkdir()
    os.chown(own, NOBODY_UID, group)
    identity = [f"--reuid={NOBODY_UID}", f"--regid={group}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    pmc: list[str | Path] = [
        host.find("pmc"),
        "-u",
        "-b",
        "0",
        "-s",
        address,
        "-i",
        own / "pmc",
        "GET DEFAULT_DATA_SET",
    ]
    return output_of("setpriv", *identity, *pmc).stdout


def test_the_group_reaches_ptp4l_without_root(ptp4l_socket: Path) -> None:
    """ptp4l 3.1.1 makes its socket 0660; in the set-group-id folder the group may ask it, and no other user."""
    deadline = time.monotonic() + 60
    while not ptp4l_socket.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    socket = ptp4l_socket.stat()

    assert (stat.S_IMODE(socket.st_mode), socket.st_uid, socket.st_gid) == (0o660, 0, GROUP)
    assert "RESPONSE MANAGEMENT DEFAULT_DATA_SET" in asked_as(GROUP, ptp4l_socket)
    assert "RESPONSE" not in asked_as(GROUP + 1, ptp4l_socket)
