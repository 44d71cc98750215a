"""The command line: finding the command, errors, and exit statuses."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from timesyncd import __main__ as program
from timesyncd.cli import now, simulate
from timesyncd.errors import ConfigError, Malformed, StoreError, TimesyncdError, Unreachable


def fails_with(error: BaseException) -> Callable[[Namespace], int]:
    def run(_: Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_command_s_status_is_the_program_s(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """The command's return value is the exit status."""
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
    """2 for a usage or configuration error, 1 for a failure; the line is on stderr."""
    monkeypatch.setattr(now, "run", fails_with(error))
    ended = program.main(["now"])
    printed = capsys.readouterr()

    assert ended == status
    assert (printed.out, printed.err) == ("", f"timesyncd: {error}\n")


@pytest.mark.parametrize("module", ["pydantic", "cryptography.hazmat", "sqlalchemy", "rich.console"])
def test_a_missing_dependency_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    """Whichever package of the extra is missing, the line names the extra."""
    monkeypatch.setattr(now, "run", fails_with(ModuleNotFoundError(f"No module named {module!r}", name=module)))
    ended = program.main(["now"])

    assert ended == 2
    assert (
        capsys.readouterr().err
        == f"timesyncd now: the package {module} is missing: in timesyncd's source folder, pip install '.[daemon]'\n"
    )


#: Runs the command in a Python that has every package but one.
WITHOUT = """
import sys, timesyncd.__main__ as program
class Missing:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.exit(program.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["demo", "simulate"])
@pytest.mark.parametrize("package", ["pyasn1", "pysnmp"])
def test_the_demo_extra_is_named_by_its_commands(command: str, package: str) -> None:
    """With the daemon's packages and without the simulator's, one line installs both extras, and nothing is started."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, command], capture_output=True, text=True, check=False
    )

    line = f"timesyncd {command}: the package {package} is missing: in timesyncd's source folder, pip install '.[daemon,demo]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", line)


def test_commands_work_without_docstrings() -> None:
    """PYTHONOPTIMIZE=2 in a job's environment strips them: no command fails for that."""
    ended = subprocess.run(
        [sys.executable, "-OO", "-m", "timesyncd", "drivers"], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("chrony: ")


@pytest.mark.parametrize("module", ["timesyncd.daemon.daemon", "numpy", None])
def test_another_missing_module_is_a_bug(monkeypatch: pytest.MonkeyPatch, module: str | None) -> None:
    """A module that no extra provides keeps its traceback."""
    monkeypatch.setattr(now, "run", fails_with(ModuleNotFoundError("No module", name=module)))

    with pytest.raises(ModuleNotFoundError):
        program.main(["now"])


OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def test_every_command_has_its_exit_status_documented() -> None:
    """The table of docs/operations.md names every command and no other."""
    table = OPERATIONS.partition("## Exit status")[2].partition("\n## ")[0]
    printed = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall("`([a-z-]+)`", row)
    ]

    assert sorted(printed) == sorted(program.COMMANDS)


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
        ("profile-from-mib /proc/version", 1), ("profile-from-mib /dev/null", 2), ("simulate --scenario nonexistent", 2), ("simulate --host 192.0.2.1", 1),
        ("drivers", 0),
    ],
)  # fmt: skip
def test_a_command_has_the_documented_status(words: str, status: int) -> None:
    """The statuses that need no daemon, grandmaster or waiting."""
    assert program.main(words.split()) == status


def test_an_unexpected_failure_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug keeps its traceback."""
    monkeypatch.setattr(now, "run", fails_with(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        program.main(["now"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_an_interruption_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """Ctrl-C and a closed pipe end the program without a message."""
    monkeypatch.setattr(now, "run", fails_with(error))
    ended = program.main(["now"])

    assert (ended, *capsys.readouterr()) == (130, "", "")


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As pip names it."""
    with pytest.raises(SystemExit) as ended:
        program.main(["--version"])

    assert ended.value.code == 0
    assert re.fullmatch(
        rf"timesyncd {version('timesyncd')} \((commit [0-9a-f]{{12}}|unknown commit), Python 3\.\d+\.\d+\S*\)\n",
        capsys.readouterr().out,
    )


@pytest.mark.parametrize("arguments", [["nonsense"], ["now", "--nonsense"], ["history"]])
def test_a_wrong_command_line_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """The usage is printed."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)

    assert ended.value.code == 2
    assert "usage: timesyncd" in capsys.readouterr().err


@pytest.mark.parametrize("command", program.COMMANDS)
def test_every_command_is_described(command: str) -> None:
    """`timesyncd --help` has the first line of each command's module."""
    module = import_module(f"timesyncd.cli.{command.replace('-', '_')}")
    first_line = str(module.__doc__).splitlines()[0]

    assert f"{command} {first_line}" in " ".join(program.parser().format_help().split())


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command stands under one title."""
    assert program.main([]) == 0
    printed = capsys.readouterr().out
    for title, names in program.GROUPS.items():
        listed = printed.partition(f"{title}:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  (\S+)", listed, re.MULTILINE)) == names


@pytest.mark.parametrize("command", program.COMMANDS)
def test_the_examples_of_a_command_are_complete_command_lines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of each command, which its parser accepts and its help prints."""
    examples = import_module(f"timesyncd.cli.{command.replace('-', '_')}").EXAMPLES
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example.partition("| ")[2] or example.partition(" && ")[0])
        assert words[:2] == ["timesyncd", command]
        assert program.parser().parse_args(words[1:]).command == command
    with pytest.raises(SystemExit):
        program.main([command, "--help"])
    assert all(f"  {example}\n" in capsys.readouterr().out for example in examples[:1])


@pytest.mark.parametrize("example", simulate.EXAMPLES)
def test_the_examples_of_simulate_name_scenarios(example: str) -> None:
    """The parser accepts any name, since it may be that of a file."""
    assert program.parser().parse_args(shlex.split(example)[1:]).scenario in simulate.SCENARIO_NAMES


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["staus"], "timesyncd: no such command: staus; did you mean status?"),
        (["xyzzy"], "timesyncd: no such command: xyzzy; timesyncd --help lists the commands"),
        (["status", "--josn"], "timesyncd status: error: unrecognized arguments: --josn; did you mean --json?"),
        (
            ["preflight", "--nodes", "a", "--max-aligment=1us"],
            (
                "timesyncd preflight: error: the following arguments are required: --max-alignment; "
                "did you mean --max-alignment?"
            ),
        ),
        (["now", "--xyzzy"], "timesyncd now: error: unrecognized arguments: --xyzzy"),
    ],
)
def test_a_typing_error_gets_a_suggestion(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    """Of commands and options; nothing is suggested where nothing is near."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_finding_the_command_imports_no_dependency() -> None:
    """`timesyncd --help` and `timesyncd now` import no dependency of the daemon."""
    code = "import sys, timesyncd.__main__ as m; m.parser(); print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert set(loaded) & program.NEEDS_EXTRA == set()


@pytest.mark.parametrize("words", ["export ptp -o unused --since=--", "wait --within=--", "preflight --nodes=--"])
def test_two_dashes_are_no_value(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse of Python 3.11 makes an empty list of them, which no command expects."""
    with pytest.raises(SystemExit) as ended:
        program.main(words.split())

    assert ended.value.code == 2
    assert "expected one argument" in capsys.readouterr().err


NO_TEXT = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--host", NO_TEXT], ["simulate", "--syslog-to", f"{NO_TEXT}:5"], ["history", NO_TEXT],
        ["export", "k", "-o", "unused", "--node", NO_TEXT], ["broker-config", "n1", "--out", "unused", "--broker-folder", NO_TEXT],
        ["policy", NO_TEXT], ["status", f"--url=http://{NO_TEXT}/"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_bytes_that_are_no_text_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No socket, store or file takes them."""
    with pytest.raises(SystemExit) as ended:
        program.main(words)

    assert ended.value.code == 2
    assert re.search(r"is not text in utf-8|is no address of a page", capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [
        ["history", "k", "--store", NO_TEXT], ["store", "backup", NO_TEXT, "--store", NO_TEXT], ["replay", NO_TEXT],
        ["stability", "k", "--store", "unused", "--against", NO_TEXT], ["simulate", "--scenario", NO_TEXT],
        ["probe", "127.0.0.1", "--community-env", "HOME", "--profile", NO_TEXT], ["run-audit", "--", NO_TEXT],
        ["check-config", "--config", NO_TEXT], ["audit", "--record", NO_TEXT],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_file_s_name_may_be_no_text(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked for, and here there is none."""
    monkeypatch.chdir(tmp_path)

    assert program.main(words) in (1, 2, 127)
    assert capsys.readouterr().err.startswith("timesyncd")


def test_a_file_s_name_that_is_no_text_is_printed(tmp_path: Path) -> None:
    """As on standard error, with its bytes written out."""
    words = [sys.executable, "-m", "timesyncd", "broker-config", "n1", "--out", str(tmp_path / NO_TEXT)]
    done = subprocess.run(words, capture_output=True, check=True, env=os.environ | {"LC_ALL": "C.UTF-8"})

    assert done.stdout.startswith(os.fsencode(tmp_path) + b"/\\udcff: 2 users")


@pytest.mark.parametrize("words", ["now --json", "drivers --json", "--version", "status --help"])
def test_a_full_disk_is_reported_in_one_line(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the output is short enough to be written at the very end: then Python would print a traceback, and exit with 120."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status = program.main(words.split())

    assert status == 1
    assert capsys.readouterr().err.endswith(
        "timesyncd: the output cannot be written: No space left on device; free space there, or name another place\n"
    )


def test_a_reader_that_has_gone_before_the_end_of_a_short_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `| head -1` where the output fits into Python's buffer."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)

        assert program.main(["drivers"]) == 130
