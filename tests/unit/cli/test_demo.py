"""The arguments of `timesyncd demo`."""

from __future__ import annotations

import pytest

from timesyncd import __main__ as program


@pytest.mark.parametrize("seconds", ["-5", "nan", "inf", "soon"])
def test_seconds_that_are_no_duration_are_a_usage_error(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, with the option's name, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        program.parser().parse_args(["demo", f"--seconds={seconds}", "--json"])

    assert ended.value.code == 2
    assert "argument --seconds: " in capsys.readouterr().err
