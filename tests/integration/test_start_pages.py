"""The pages of docs/start/ and docs/backup.md, word for word: each command runs, and prints what the page shows."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from page_blocks import Ran, Step, run, steps

from timesyncd.simulation.bed.broker import free_port

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
    return ["\n".join(["$ " + each.step.text, *each.printed]) for each in done if not each.is_as_shown()]


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
