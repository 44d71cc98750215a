"""The options of `timesyncd run-audit`, and why it has no report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from timesyncd.__main__ import main


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is a usage error that gives the value, and the script is not started."""
    with pytest.raises(SystemExit) as ended:
        main(["run-audit", f"--seconds={seconds}", "--", sys.executable, "-c", "print('started')"])
    printed = capsys.readouterr()

    assert ended.value.code == 2
    assert f"'{seconds}' is not a number of seconds above 0" in printed.err
    assert "started" not in printed.out


def test_a_command_that_does_not_exist_has_the_shell_s_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """127 and one line that names it, without a report."""
    status = main(["run-audit", "--out", str(tmp_path / "out"), "--", "no-such-command"])

    assert status == 127
    assert capsys.readouterr().err.startswith("timesyncd: no-such-command: No such file")
