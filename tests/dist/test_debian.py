"""
What `make dist` built, in a root of each Debian release: installed, upgraded under a running client, removed, purged.

`make dist-test` runs it after `make dist`. It needs root and mmdebstrap.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from debian_roots import default_cache

PROJECT = Path(__file__).resolve().parents[2]

DIST = Path(os.environ.get("TIMESYNCD_DIST", PROJECT / "dist"))
RELEASES = {"bookworm": "deb12", "trixie": "deb13"}

#: Of the new package's version in the test of an upgrade.
NEWER = "9.0+test"

#: The package with another version: what differs between two builds is of no interest here, how dpkg goes from one to the other is.
REPACKED = f"""
mkdir /tmp/newer && dpkg-deb --raw-extract /build/timesyncd.deb /tmp/newer
sed -i 's/^Version: .*/Version: {NEWER}/' /tmp/newer/DEBIAN/control
dpkg-deb --root-owner-group -Znone --build /tmp/newer /tmp/newer.deb >/dev/null
"""

INSTALLED = "dpkg -i /build/timesyncd.deb 2>&1"
QUIETLY_INSTALLED = "dpkg -i /build/timesyncd.deb >/dev/null 2>&1"

#: A daemon as the unit runs it, and a client that reads the clock from a process of its own all the time.
RUNNING = """
install -d -o timesyncd -g timesyncd /run/timesyncd /var/lib/timesyncd
daemon() { setpriv --reuid=timesyncd --regid=timesyncd --clear-groups timesyncd run >>/tmp/daemon.log 2>&1 & pid=$!; }
daemon
until [ -e /run/timesyncd/clock ]; do sleep 0.1; done
/opt/timesyncd/bin/python -u -c '
import time
from timesyncd.client import Clock
clock = Clock()
while True:
    print(clock.gm_now().status.name, flush=True)
    time.sleep(0.05)
' >/tmp/client.log 2>&1 & client=$!
sleep 1
"""


def in_release(release: str, script: str, tmp_path: Path) -> list[str]:
    """The lines that the script prints in a root of the release, where the package is /build/timesyncd.deb."""
    [package] = DIST.glob(f"timesyncd_*+{RELEASES[release]}_*.deb")
    shutil.copy(package, tmp_path / "timesyncd.deb")
    root = default_cache() / f"root-{release}"
    command: list[str | Path] = ["sh", PROJECT / "deploy/debian/in_root.sh", root, tmp_path, "sh", "-euc", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout).splitlines()


@pytest.mark.parametrize("release", RELEASES)
def test_it_is_installed_and_works_at_once(release: str, tmp_path: Path) -> None:
    """It names its commit, its configuration is valid, and its manual page and completion are there."""
    script = f"""
    {INSTALLED} | grep "^timesyncd: edit"
    timesyncd --version
    timesyncd check-config | tail -1
    /opt/timesyncd/bin/python -c 'import sys; print(sys.prefix)'
    stat -c '%U %a %n' /opt/timesyncd/bin/timesyncd /etc/timesyncd/timesyncd.toml
    getent passwd timesyncd | cut -d: -f1
    dpkg-deb --fsys-tarfile /build/timesyncd.deb | tar -xO ./usr/share/man/man1/timesyncd.1.gz | zcat | grep -c "timesyncd run"
    bash -nc 'source /usr/share/bash-completion/completions/timesyncd'
    systemd-analyze verify --man=no /usr/lib/systemd/system/timesyncd.service 2>&1 | grep timesyncd || echo verified
    """
    lines = in_release(release, script, tmp_path)

    assert lines[0].startswith("timesyncd: edit /etc/timesyncd/timesyncd.toml")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert re.match(rf"timesyncd \d+\.\d+\.\d+ \(commit {commit}, Python 3\.\d+\.\d+\)$", lines[1])
    assert lines[2:7] == [
        "/etc/timesyncd/timesyncd.toml: valid",
        "/opt/timesyncd",
        "root 755 /opt/timesyncd/bin/timesyncd",
        "root 644 /etc/timesyncd/timesyncd.toml",
        "timesyncd",
    ]
    assert int(lines[7]) > 0
    assert lines[8] == "verified"


@pytest.mark.parametrize("release", RELEASES)
def test_an_upgrade_leaves_clients_and_the_configuration_alone(release: str, tmp_path: Path) -> None:
    """The client reads on while files are replaced, and the new daemon writes the segment that it has open."""
    script = f"""
    {QUIETLY_INSTALLED}
    echo '# mine' >>/etc/timesyncd/timesyncd.toml
    {REPACKED}
    {RUNNING}
    dpkg -i /tmp/newer.deb >/dev/null 2>&1
    dpkg-query -W -f '${{Version}}\\n' timesyncd
    kill $pid; wait $pid || true
    : >/tmp/client.log
    daemon
    sleep 5
    kill -0 $client && echo client runs
    grep -c . /tmp/client.log
    grep -c Error /tmp/client.log || true
    grep -c '# mine' /etc/timesyncd/timesyncd.toml
    grep -c Traceback /tmp/daemon.log || true
    kill $pid $client
    """
    lines = in_release(release, script, tmp_path)

    assert lines[:2] == [NEWER, "client runs"]
    assert int(lines[2]) > 20
    assert lines[3:] == ["0", "1", "0"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_removal_keeps_what_is_the_operator_s_and_a_purge_does_not(release: str, tmp_path: Path) -> None:
    """Nothing of the package is left after a purge but the user."""
    script = f"""
    find / -xdev ! -path '/proc/*' ! -path '/tmp/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/etc/.pwd*' | sort >/tmp/before
    {QUIETLY_INSTALLED}
    timesyncd check-config >/dev/null
    install -d /var/lib/timesyncd; echo history >/var/lib/timesyncd/history.sqlite
    dpkg -r timesyncd >/dev/null 2>&1
    ls -d /etc/timesyncd/timesyncd.toml /var/lib/timesyncd/history.sqlite
    ls -d /opt/timesyncd /usr/bin/timesyncd 2>/dev/null | grep . && exit 1
    dpkg -P timesyncd >/dev/null 2>&1
    find / -xdev ! -path '/proc/*' ! -path '/tmp/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/etc/.pwd*' | sort >/tmp/after
    echo left:
    comm -13 /tmp/before /tmp/after
    """
    lines = in_release(release, script, tmp_path)

    assert lines[:3] == ["/etc/timesyncd/timesyncd.toml", "/var/lib/timesyncd/history.sqlite", "left:"]
    left = [line for line in lines[3:] if not re.match(r"/etc/(passwd|group|g?shadow)-$", line)]
    assert left == []


def test_the_checksums_are_right() -> None:
    """As `sha256sum --check` reads them, and of every file."""
    lines = [line.split("  ") for line in (DIST / "SHA256SUMS").read_text().splitlines()]
    files = {str(path.relative_to(DIST)) for path in DIST.rglob("*") if path.is_file()} - {"SHA256SUMS"}

    assert {name for _, name in lines} == files
    for digest, name in lines:
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest


def test_the_bill_names_every_package_with_its_version() -> None:
    """CycloneDX, of what the lock file pins without the installers."""
    [bill] = DIST.glob("*.cdx.json")
    named = {(each["name"].lower(), each["version"]) for each in json.loads(bill.read_text())["components"]}
    locked = re.findall(r"^([a-z0-9.-]+)==([^ ]+) \\$", (PROJECT / "requirements/run.lock").read_text(), re.MULTILINE)

    assert {each for each in locked if each[0] not in ("pip", "setuptools")} <= named
