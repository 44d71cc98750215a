"""Scenarios from a file: each action at its time, and what is wrong in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.errors import ConfigError
from timesyncd.simulation.grandmaster import Device
from timesyncd.simulation.grandmaster.actions import load_scenario


def written(folder: Path, text: str) -> Path:
    file = folder / "scenario.toml"
    file.write_text(text)
    return file


def test_a_scenario_from_a_file(tmp_path: Path) -> None:
    """Each action of a file happens at its time."""
    file = written(tmp_path, """
        [[action]]
        at_s = 10
        do = "antenna"
        value = "short"

        [[action]]
        at_s = 100
        do = "raise"
        value = "fan"
        index = 2
    """)  # fmt: skip
    device = Device()
    load_scenario(file)(device)
    names = []
    for seconds in (9, 1, 90):
        device.advance(seconds)
        names.append([alarm.name for alarm in device.alarms])

    assert names == [
        [],
        ["gnss-not-tracking", "antenna-short", "bridging"],
        ["gnss-not-tracking", "antenna-short", "bridging", "fan"],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[action]]\ndo = "dance"', "action[0] = {'do': 'dance'}: Input tag 'dance'"),
        (
            '[[action]]\ndo = "antenna"\nvalue = "gone"',
            "action[0].antenna.value = 'gone': Input should be 'ok', 'open' or 'short'",
        ),
        ('[[action]]\ndo = "raise"\nvalue = "normal-track"', "action[0].raise.value = 'normal-track': is none of"),
        ('[[action]]\nat_s = -1\ndo = "reboot"', "action[0].reboot.at_s = -1: Input should be greater"),
        ("[[action", "Expected"),
        ("other = 1", "action: missing"),
        ("a = " + "[" * 50_000, "not valid TOML: maximum recursion depth"),
        ("a = " + "9" * 5_000, "not valid TOML: Exceeds the limit"),
    ],
)
def test_a_wrong_file_is_reported_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the key's path and what is allowed."""
    with pytest.raises(ConfigError) as error:
        load_scenario(written(tmp_path, text))

    assert message in str(error.value)
    assert str(error.value).startswith(f"scenario {tmp_path}/scenario.toml: ")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    """The error is the same as for a wrong file."""
    with pytest.raises(ConfigError, match="No such file"):
        load_scenario(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["fifo", "x" * 300])
def test_what_cannot_be_read_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, and at once: also of the folder of a recording."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "recording").mkdir()
    os.mkfifo(tmp_path / "recording" / "walk.snmprec")

    assert main(["simulate", "--scenario", str(tmp_path / name)]) == 2
    assert main(["simulate", "--scenario", str(tmp_path / "recording")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
