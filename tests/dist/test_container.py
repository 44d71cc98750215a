"""
docs/install-container.md, word for word, by buildah: the image from what `make dist` built, and its daemon.

`make dist-test` runs it after `make dist`. The base is the root of Debian 12 that `make dist` built in. It needs root.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import operations_manual
import pytest
from debian_roots import default_cache

from timesyncd.simulation.bed.broker import free_port

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs/install-container.md").read_text()
USER = 64319

#: For what takes seconds on an idle machine.
PATIENCE_S = 120.0

CONFIG = """
[node]
name = "node-a"
[web]
port = {port}
[store]
path = "/var/lib/timesyncd/history.sqlite"
[[source]]
name = "nic"
driver = "phc"
index = 0
"""

#: As the page's probe asks: prints the health, then what the daemon says of its PTP hardware clock.
LOOK = """
import json, urllib.request
get = lambda path: urllib.request.urlopen("http://127.0.0.1:{port}/" + path, timeout=10).read()
print(get("healthz").decode().strip())
print(json.loads(get("api/v1/node"))["sources"][0]["reason"])
"""


def block(begin: str) -> operations_manual.Block:
    [found] = [each for each in operations_manual.parse(PAGE) if each.text.startswith(begin)]
    return found


class Builder:
    """buildah with a storage of its own, and the images in it."""

    def __init__(self, folder: Path) -> None:
        storage = folder / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n')
        self._environ = os.environ | {"CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}

    def start(self, script: str) -> subprocess.Popen[str]:
        command = ["sh", "-euc", script]
        return subprocess.Popen(
            command, cwd=PROJECT, env=self._environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, script: str) -> str:
        process = self.start(script)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output[-3000:]
        return output


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """With the image that the page builds; debian:12 is the root in which `make dist` built the package."""
    folder = tmp_path_factory.mktemp("buildah")
    builder = Builder(folder)
    root = default_cache() / "root-bookworm"
    builder.run(
        f"""
        base=$(buildah from scratch)
        tar --one-file-system --exclude=./opt/* --exclude=./dev/* -C {root} -c . | tar -C "$(buildah mount $base)" -x
        buildah umount $base
        buildah commit --quiet --rm $base debian:12
        """
    )
    lines = block("make dist").commands.splitlines()
    assert lines[0] == "make dist"  # done before
    builder.run("\n".join(lines[1:]))
    yield builder
    builder.run("buildah rm --all; buildah rmi --all --force")


def test_the_image_runs_as_the_page_tries_it(builder: Builder) -> None:
    """It names the commit, and it is not root."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout.strip()
    lines = builder.run(f'{block("container=").commands}\nbuildah run "$container" id -u').splitlines()

    assert re.match(rf"timesyncd \d+\.\d+\.\d+ \(commit {commit}, Python 3\.11\.\d+\)$", lines[-2])
    assert lines[-1] == str(USER)


def test_the_image_holds_no_tools_of_its_build(builder: Builder) -> None:
    """Neither pip nor the wheels are in it, and no file of the environment is the user's to change."""
    found = builder.run(
        f"""
        container=$(buildah from timesyncd:0.1.0)
        buildah run "$container" sh -c 'ls -d /wheels /pip /opt/timesyncd/bin/pip; find /opt/timesyncd -user {USER}' 2>&1 || true
        """
    )
    assert "No such file" in found
    assert [line for line in found.splitlines()[1:] if "No such file" not in line] == []


def test_the_daemon_is_healthy_and_says_that_the_clock_is_not_there(builder: Builder, tmp_path: Path) -> None:
    """By the page's commands, with folders of the test's: it serves its segments and store there; without a device the reason is the page's."""
    port = free_port()
    (tmp_path / "etc/timesyncd").mkdir(parents=True)
    (tmp_path / "etc/timesyncd/timesyncd.toml").write_text(CONFIG.format(port=port))
    (tmp_path / "etc/timesyncd/look.py").write_text(LOOK.format(port=port))
    for folder in (tmp_path, *tmp_path.rglob("*/")):
        folder.chmod(0o755)
    container = builder.run("buildah from timesyncd:0.1.0").strip()
    commands = re.sub(r"(?<= )(?=/(?:etc|run|var)/)", str(tmp_path), block("install --directory").commands)
    daemon = builder.start(f"container={container}\n" + commands.replace("buildah run", "exec buildah run"))
    look = f"buildah run --volume {tmp_path}/etc/timesyncd:/etc/timesyncd:ro {container} python3 /etc/timesyncd/look.py"
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            seen = builder.run(f"{look} 2>&1 || true").splitlines()
            if seen[0] == "ok" and seen[1]:
                break
            assert daemon.poll() is None and time.monotonic() < deadline_s, seen
            time.sleep(0.5)
        made = {path.name for folder in ("run", "var/lib") for path in (tmp_path / folder / "timesyncd").iterdir()}
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)

    shown = block("nic  phc").text.split()
    assert seen[1] == " ".join(shown[2:])
    assert {"job.sock", "history.sqlite"} <= made


def instructions(keyword: str) -> list[str]:
    """Those of the Dockerfile with this keyword, each on one line."""
    text = (PROJECT / "deploy/container/Dockerfile").read_text().replace("\\\n", "")
    return [line.removeprefix(f"{keyword} ") for line in text.splitlines() if line.startswith(f"{keyword} ")]


@pytest.mark.parametrize(("number", "needed"), [(0, "import ensurepip, venv"), (1, "import sqlite3, ssl")])
def test_a_base_without_python_gets_it_from_debian(tmp_path: Path, number: int, needed: str) -> None:
    """The two RUN lines with apt-get, word for word, in a Debian 12 that has no Python, as docker.io's debian:12."""
    run = [each for each in instructions("RUN") if "apt-get" in each][number]
    resolver = Path("/etc/resolv.conf")
    (tmp_path / "resolv.conf").write_bytes(resolver.read_bytes() if resolver.exists() else b"")
    script = f"""
    cp /build/resolv.conf /etc/resolv.conf
    apt-get remove --yes --purge 'python3*' >/dev/null 2>&1
    if command -v python3; then exit 3; fi
    {{ {run}; }} >/build/log 2>&1
    python3 -c '{needed}' && echo has Python
    """
    # As in_root.sh does it, but with this machine's network.
    command: list[str | Path] = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh"]
    command += [PROJECT / "deploy/debian/in_root.sh", "--inside", default_cache() / "root-bookworm", tmp_path]
    command += ["sh", "-euc", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)

    log = tmp_path / "log"
    assert done.returncode == 0, done.stderr[-1000:] + (log.read_text()[-2000:] if log.exists() else "")
    assert done.stdout == "has Python\n"
