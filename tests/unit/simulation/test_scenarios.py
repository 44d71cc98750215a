"""Scenarios from a file: each action at its time, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

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
