"""From the command line to the command, and from its end to an exit status that scripts can rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from timesyncd import __main__ as program
from timesyncd.cli import now
from timesyncd.errors import ConfigError, Malformed, StoreError, TimesyncdError, Unreachable


def fails_with(error: BaseException) -> Callable[[Namespace], int]:
    def run(_: Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_command_s_status_is_the_program_s(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """What the command returns is returned."""
    monkeypatch.setattr(now, "run", lambda _: status)

    assert program.main(["now"]) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("t.toml: web.port = 0"), 2),
        (TimesyncdError("it failed"), 1),
        (StoreError("/x: no such table"), 1),
        (Unreachable("no daemon answers"), 1),
        (Malformed("not JSON"), 1),
    ],
)
def test_an_expected_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: TimesyncdError, status: int
) -> None:
    """2 when it could not be asked so, 1 when the work failed; the line goes to stderr and stdout stays empty."""
    monkeypatch.setattr(now, "run", fails_with(error))
    ended = program.main(["now"])
    told = capsys.readouterr()

    assert ended == status
    assert (told.out, told.err) == ("", f"timesyncd: {error}\n")


@pytest.mark.parametrize("module", ["pydantic", "cryptography.hazmat", "sqlalchemy", "rich.console"])
def test_a_missing_dependency_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    """Whichever of the extra's packages is missed first, the line is the one that mends it."""
    monkeypatch.setattr(now, "run", fails_with(ModuleNotFoundError(f"No module named {module!r}", name=module)))
    ended = program.main(["now"])

    assert ended == 2
    assert capsys.readouterr().err == "timesyncd now needs the daemon extra: pip install 'timesyncd[daemon]'\n"


@pytest.mark.parametrize("module", ["timesyncd.daemon.daemon", "numpy", None])
def test_another_missing_module_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch, module: str | None) -> None:
    """What no extra brings is not blamed on one."""
    monkeypatch.setattr(now, "run", fails_with(ModuleNotFoundError("No module", name=module)))

    with pytest.raises(ModuleNotFoundError):
        program.main(["now"])


OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def test_every_command_has_its_exit_status_told() -> None:
    """In the one table, which names no other."""
    table = OPERATIONS.partition("## Exit status")[2].partition("\n## ")[0]
    told = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall("`([a-z-]+)`", row)
    ]

    assert sorted(told) == sorted(program.COMMANDS)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("run --config /nonexistent", 2), ("check-config --config /nonexistent", 2), ("doctor --config /nonexistent", 1),
        ("status --config /nonexistent", 2), ("status --url http://127.0.0.1:9/", 1),
        ("explain --url http://127.0.0.1:9/", 1), ("explain --runtime-dir /nonexistent", 1),
        ("now --runtime-dir /nonexistent", 1), ("preflight --nodes , --max-alignment 1us", 2),
        ("policy k no_such", 2), ("policy k --url http://127.0.0.1:9/", 1),
        ("policy k --runtime-dir /nonexistent --config /nonexistent", 2),
        ("history k --store /nonexistent", 1), ("history k --config /nonexistent", 2),
        ("export k --store /nonexistent -o /nonexistent/o", 1), ("replay /nonexistent", 2),
        ("audit --record /nonexistent", 2), ("audit --job k --url http://127.0.0.1:9/", 1), ("run-audit --", 2),
        ("replay --source k --store /nonexistent", 1), ("profile-from-mib /nonexistent", 2),
        ("profile-from-mib /dev/null", 1), ("simulate --scenario nonexistent", 2), ("simulate --host 192.0.2.1", 1),
        ("drivers", 0),
    ],
)  # fmt: skip
def test_a_command_ends_as_the_table_says(words: str, status: int) -> None:
    """Where it can be seen without a daemon, a unit, or a wait."""
    assert program.main(words.split()) == status


def test_an_unexpected_failure_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug keeps its traceback."""
    monkeypatch.setattr(now, "run", fails_with(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        program.main(["now"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_who_leaves_is_not_told_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """Ctrl-C and a reader that went away end the program without a word."""
    monkeypatch.setattr(now, "run", fails_with(error))
    ended = program.main(["now"])

    assert (ended, *capsys.readouterr()) == (130, "", "")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["now", "--nonsense"], ["history"]])
def test_a_wrong_command_line_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """And the usage is shown."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)

    assert ended.value.code == 2
    assert "usage: timesyncd" in capsys.readouterr().err


@pytest.mark.parametrize("command", program.COMMANDS)
def test_every_command_is_described(command: str) -> None:
    """`timesyncd --help` says of each command what the first line of its module says."""
    module = import_module(f"timesyncd.cli.{command.replace('-', '_')}")
    first_line = str(module.__doc__).splitlines()[0]

    assert f"{command} {first_line}" in " ".join(program.parser().format_help().split())


def test_finding_the_command_imports_nothing_that_costs() -> None:
    """Help, and `now` in a loop, need no dependency of the daemon and no event loop."""
    code = "import sys, timesyncd.__main__ as m; m.parser(); print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert set(loaded) & program.NEEDS_EXTRA == set()
