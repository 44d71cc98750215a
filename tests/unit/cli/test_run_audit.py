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


def test_a_folder_that_cannot_be_created_costs_the_audit_and_not_the_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line before the script begins names the folder and the reason; the status is the script's."""
    (tmp_path / "file").touch()
    script = "import os, sys; print(os.environ.get('TIMESYNCD_RECORD')); sys.exit(3)"
    status = main(["run-audit", "--out", str(tmp_path / "file" / "out"), "--", sys.executable, "-c", script])
    printed = capfd.readouterr()

    assert (status, printed.out) == (3, "None\n")
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"timesyncd run-audit: cannot create {tmp_path}/file/out/marks-")
    assert "Not a directory; the script runs without an audit" in printed.err


def test_an_empty_note_changes_no_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As a full disk leaves it: there is no report, and the status is the script's."""
    script = "import os, sys; open(os.environ['TIMESYNCD_RECORD'] + '/rank-0-1.note', 'w'); sys.exit(3)"
    status = main(["run-audit", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", script])

    assert status == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("timesyncd: no report: no rank was metered")


def test_nothing_is_left_where_no_rank_was_metered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an empty folder of marks, nor the folder of the report; one that was there stays."""
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        main(["run-audit", "--out", str(tmp_path / name), "--", sys.executable, "-c", ""])

    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    assert capsys.readouterr().err.count("no rank was metered") == 2
