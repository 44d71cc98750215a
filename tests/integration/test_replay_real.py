"""`timesyncd replay` on the log of a real ptp4l, as each of the ways in which it reaches a file."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.simulation.bed import host

pytestmark = pytest.mark.integration

SECONDS = 60


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the log of one ptp4l, by `-m` and by the system log."""
    folder = tmp_path_factory.mktemp("log")
    own = [host.find("unshare"), "--net", "--mount"]
    if os.geteuid() != 0:
        own += ["--user", "--map-root-user"]
    recorder = Path(__file__).with_name("ptp4l_recorder.py")
    subprocess.run([*own, sys.executable, str(recorder), str(folder), str(SECONDS)], check=True, timeout=300)
    yield folder


def replayed(capsys: pytest.CaptureFixture[str], path: Path, text: str) -> list[dict[str, str]]:
    path.write_text(text)
    status = main(["replay", str(path)])
    printed = capsys.readouterr()

    assert status == 0, printed.err
    return list(csv.DictReader(io.StringIO(printed.out)))


def test_each_sync_of_a_real_log_is_a_row(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With ptp4l's own time; and it is in holdover five seconds after the last one."""
    text = (recorded / "stdout.log").read_text()
    rows = replayed(capsys, recorded / "m.log", text)
    syncs = re.findall(r"ptp4l\[(\d+\.\d{3})\]: master offset", text)
    left = re.search(r"ptp4l\[(\d+\.\d{3})\]: port 1.*: (?:UNCALIBRATED|SLAVE) to LISTENING", text)

    assert len(syncs) > 30
    assert set(syncs) <= {row["t_s"] for row in rows}
    assert left is not None
    assert float(rows[-1]["t_s"]) > float(syncs[-1]) + 5
    assert rows[-1]["status"] in ("HOLDOVER", "UNKNOWN")


def test_the_journal_in_each_form_gives_the_same_rows(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Syslog's datagrams as a file, plain, as JSON, `-o cat`, and with the lines of `-m` beside them."""
    pid, datagrams = (recorded / "pid").read_text(), (recorded / "syslog.log").read_text().splitlines()
    rows = replayed(capsys, recorded / "m.log", (recorded / "stdout.log").read_text())
    parts = [re.fullmatch(r"<\d+>(\w+ +\d+ [\d:]+) ptp4l: (.*)", line) for line in datagrams]
    dated = [(part[1], part[2]) for part in parts if part is not None]
    plain = [f"{date} node1 ptp4l[{pid}]: {text}" for date, text in dated]
    forms = {
        "syslog": datagrams,
        "plain": plain,
        "cat": [text for _, text in dated],
        "json": [json.dumps({"MESSAGE": t, "_PID": pid, "SYSLOG_IDENTIFIER": "ptp4l"}) for _, t in dated],
        "both": [
            line
            for (date, text), entry in zip(dated, plain, strict=True)
            for line in (entry, f"{date} node1 ptp4l[{pid}]: ptp4l{text.replace('] ', ']: ', 1)}")
        ],
    }

    assert len(dated) == len(datagrams) > 30
    for form, lines in forms.items():
        assert replayed(capsys, recorded / f"{form}.log", "".join(f"{line}\n" for line in lines)) == rows, form


def test_two_real_logs_in_one_are_refused(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines once more, as of a second ptp4l."""
    lines = [
        line.replace(" ptp4l:", f" node1 ptp4l[{pid}]:").partition(">")[2]
        for line in (recorded / "syslog.log").read_text().splitlines()
        for pid in (383, 991)
    ]
    path = recorded / "two.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    status = main(["replay", str(path)])

    assert status == 2
    assert "'node1 ptp4l[383]', 'node1 ptp4l[991]'" in capsys.readouterr().err
