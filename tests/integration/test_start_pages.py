"""The pages of docs/start/ and docs/backup.md, word for word: each command runs, and prints what the page shows."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_clocks import FakeClocks
from page_blocks import Ran, Step, run, steps
from postgresql import Server, own_server, rows_of, settings_of
from samples import nth
from store_bench import FOR_EVER_NS, Bench, wait_until

from timesyncd.model.observation import Observation
from timesyncd.simulation.bed.broker import free_port
from timesyncd.store.engine import StoreLocation
from timesyncd.store.session import OutboxLimits
from timesyncd.store.writer import Store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

#: Blocks that do not run here, by page and the beginning of their text, with the reason.
NOT_RUN = {
    "start/operator.md": {"python3 -m venv try": "test_wheel.py installs the wheel with its extras"},
    "start/ml-engineer.md": {"python3 -m venv audit": "test_wheel.py installs the wheel with its extras"},
    "start/contributor.md": {
        "git clone": "`make check` runs the tests in which this one is",
        "make schemas": "tests/unit/docs/test_reference.py compares what it writes",
    },
}


def ran(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, replaced: dict[str, str]) -> list[Ran]:
    monkeypatch.setenv("PATH", f"{BIN}:{ROOT}/.unpacked/usr/sbin:/usr/sbin", prepend=":")
    return run(steps(page, NOT_RUN.get(page, {})), folder, replaced)


def not_as_shown(done: list[Ran], names: dict[str, str] | None = None) -> list[str]:
    """What differs, readable; `names`: a name of the page, and the one of this machine."""
    for old, new in (names or {}).items():
        done = [Ran(Step(each.step.text, each.step.file, tuple(line.replace(old, new) for line in each.step.shown)), each.printed) for each in done]  # fmt: skip
    different = ["\n".join(["$ " + each.step.text, *each.printed]) for each in done if not each.is_as_shown()]
    print("\n\n".join(different))
    return different


def free_ports(*usual: str) -> dict[str, str]:
    return {port: str(free_port()) for port in usual}


def test_the_first_node_of_an_operator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node, a broker, a hub and a grandmaster that loses its antenna: the finding and its metric are as shown."""
    done = ran("start/operator.md", folder, monkeypatch, free_ports("8319", "8320", "1883", "16161", "18443"))

    assert not_as_shown(done) == []
    assert sum(bool(each.step.shown) for each in done) == 4


def test_the_audit_in_five_minutes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow rank is named with its place, and the comparison states what the change was worth."""
    done = ran("start/ml-engineer.md", folder, monkeypatch, {})

    assert not_as_shown(done, {"node-a": socket.gethostname().partition(".")[0]}) == []
    assert sum(bool(each.step.shown) for each in done) == 3


def test_the_first_change_of_a_contributor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the tree runs, and the check of the text names line, rule and sentence."""
    places = {".venv/bin/": f"{BIN}/", "tests/unit": f"{ROOT}/tests/unit", "docs/tools": f"{ROOT}/docs/tools"}
    done = ran("start/contributor.md", folder, monkeypatch, places)

    assert not_as_shown(done) == []
    assert sum(bool(each.step.shown) for each in done) == 2


@contextmanager
def command_in(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command of this name that is found first."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    yield
    path.unlink()


def backup_steps(about_postgresql: bool) -> list[Step]:
    return [step for step in steps("backup.md", {}) if ("URL" in step.text) == about_postgresql]


def test_a_store_is_backed_up_and_restored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/backup.md, while a daemon writes: both commands print what the page shows, and the configuration is in the archive."""
    (folder / "etc" / "timesyncd").mkdir(parents=True)
    (folder / "backup").mkdir()
    configuration = folder / "etc" / "timesyncd" / "timesyncd.toml"
    bench = Bench(folder / "history.sqlite")
    configuration.write_text(f'[store]\npath = "{bench.path}"\n')
    places = {"/backup/": f"{folder}/backup/", "tar -C / ": f"tar -C {folder} "}
    ours = f'command=$1; shift; exec {sys.executable} -m timesyncd "$command" --config {configuration} "$@"'
    with bench.running() as store, command_in(folder, "timesyncd", ours, monkeypatch):
        store.next_incarnation("n1")
        bench.fill(store, 10)
        done = run(backup_steps(about_postgresql=False), folder, places)

    assert not_as_shown(done, places | {"/var/lib/timesyncd/": f"{folder}/"}) == []
    assert (folder / "backup" / "node-a-etc.tar.gz").stat().st_size > 0
    assert len(done) == 5


def filled(server: Server) -> StoreLocation:
    location = server.database()
    store = Store(settings_of(location), FakeClocks(), print, node="n1", outbox=OutboxLimits(1_000, FOR_EVER_NS))
    store.start()
    store.next_incarnation("n1")
    for number in range(10):
        store.put(Observation(nth(number, offset_ns=number), None))
    wait_until(lambda: store.waiting == 0)
    store.stop()
    return location


def test_a_store_on_postgresql_is_backed_up_and_restored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/backup.md on a real server: the samples are there again, and the outbox is empty."""
    (folder / "backup").mkdir()
    with own_server() as server, command_in(folder, "systemctl", "true", monkeypatch):
        location = filled(server)
        monkeypatch.setenv("PATH", str(server.binaries), prepend=":")
        monkeypatch.setenv("URL", str(location.url))
        done = run(backup_steps(about_postgresql=True), folder, {"/backup/": f"{folder}/backup/"})
        samples = rows_of(location, "SELECT count(*) FROM clock_sample")
        waiting = rows_of(location, "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM outbox_counter)")

    assert [each.printed for each in done] == [(), ("DELETE 0", "DELETE 1")]
    assert (samples, waiting) == ([(10,)], [(0,)])
