"""How a command reaches a grandmaster, and that no secret gets where another user could read it."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import get_args

import pytest

from timesyncd.__main__ import main
from timesyncd.cli._access import AUTH, PRIV, access_of, add_access_arguments
from timesyncd.cli.record import MAX_OBJECTS
from timesyncd.errors import ConfigError
from timesyncd.probe.access import ProbeAccess
from timesyncd.snmp import AuthProtocol, Community, PrivProtocol, User

FINGERPRINT = "ab" * 32


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("GM_C", "hush-hush"), ("GM_A", "auth phrase"), ("GM_P", "priv phrase"), ("GM_W", "web word")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A user who types the first secret for every prompt; the prompts are kept."""
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        return "typed secret"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", typed)
    return asked


def access(*options: str) -> ProbeAccess:
    parser = ArgumentParser()
    add_access_arguments(parser)
    return access_of(parser.parse_args(["192.0.2.1", *options]))


def test_the_choices_are_what_snmp_speaks() -> None:
    """The command line names every protocol."""
    assert (AUTH, PRIV) == (get_args(AuthProtocol), get_args(PrivProtocol))


def test_a_community(tmp_path: Path) -> None:
    """From the environment or from a file, and where it was is remembered."""
    file = tmp_path / "community"
    file.write_text("of a file\n")
    by_env, by_file = access("--community-env", "GM_C").snmp, access("--community-file", str(file)).snmp

    assert by_env is not None and by_file is not None
    assert (by_env.credentials, by_file.credentials) == (Community("hush-hush"), Community("of a file"))
    assert (by_env.secrets["community"].env, by_file.secrets["community"].file) == ("GM_C", file)


def test_a_user() -> None:
    """SNMP v3, with its two pass phrases."""
    found = access("--user", "eva", "--auth-pass-env", "GM_A", "--priv", "aes256", "--priv-pass-env", "GM_P")

    assert found.snmp is not None
    assert found.snmp.credentials == User("eva", "sha256", "auth phrase", "aes256", "priv phrase")
    assert found.known_secrets() == {"auth phrase", "priv phrase"}


def test_an_account_of_the_web_interface() -> None:
    """Without any SNMP option HTTPS alone is asked."""
    found = access("--https-username", "eva", "--https-password-env", "GM_W", "--fingerprint", FINGERPRINT)

    assert found.snmp is None and found.web is not None
    assert (found.web.options.username, found.web.options.fingerprint) == ("eva", FINGERPRINT)
    assert found.known_secrets() == {"web word"}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ([], ["community of 192.0.2.1: "]),
        (["--user", "eva"], ["authentication pass phrase of eva: ", "privacy pass phrase of eva: "]),
        (["--https-username", "eva", "--insecure"], ["password of eva at 192.0.2.1: "]),
    ],
)
def test_what_is_not_given_is_asked_for(terminal: list[str], options: list[str], asked: list[str]) -> None:
    """On a terminal, without showing it."""
    found = access(*options)

    assert terminal == asked
    assert found.known_secrets() == {"typed secret"}


REFUSED = {
    "no terminal": ([], "no terminal to ask"),
    "a variable that is not set": (["--community-env", "GM_NONE"], "GM_NONE is not set"),
    "a file that is not there": (["--community-file", "/nonexistent/c"], "/nonexistent/c cannot be read"),
    "both kinds": (["--user", "eva", "--community-env", "GM_C"], "give one of them"),
    "a short pass phrase": (["--user", "eva", "--auth-pass-env", "SHORT"], "at least 8 characters"),
    "no proof": (["--https-username", "eva", "--https-password-env", "GM_W"], "exactly one of ca, fingerprint"),
    "two proofs": (
        ["--https-username", "eva", "--https-password-env", "GM_W", "--insecure", "--fingerprint", FINGERPRINT],
        "exactly one of ca, fingerprint",
    ),
    "no fingerprint": (["--https-username", "eva", "--https-password-env", "GM_W", "--fingerprint", "ab"], "64 hex"),
    "no user": (["--https-username", "", "--https-password-env", "GM_W", "--insecure"], "https.username"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_access_options_that_are_refused(monkeypatch: pytest.MonkeyPatch, options: list[str], message: str) -> None:
    """One line states what is expected, and it contains no secret."""
    monkeypatch.setenv("SHORT", "hush")
    with pytest.raises(ConfigError) as refused:
        access(*options)

    assert message in str(refused.value)
    assert not any(secret in str(refused.value) for secret in ("hush", "auth phrase", "web word", "\n"))


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "0"], ["--port", "x"], ["--timeout", "0"], ["--timeout", "x"], ["--auth", "md5"], ["--priv", "des"],
        ["--community-env", "A", "--community-file", "B"], ["--community", "public"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("command", ["probe", "record"])
def test_a_wrong_option_is_2(capsys: pytest.CaptureFixture[str], command: str, options: list[str]) -> None:
    """No secret can be given on the command line, and no weak protocol be asked for."""
    with pytest.raises(SystemExit) as ended:
        main([command, "192.0.2.1", *(["/tmp/none"] if command == "record" else []), *options])

    assert ended.value.code == 2


@pytest.mark.parametrize("options", [["--mask", "serials,nonsense"], ["--mask", ""], ["--rows", "0"], ["--rows", "x"]])
def test_a_recording_that_cannot_be_taken_so(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    """--mask allows a few kinds only, and --rows at least one row."""
    with pytest.raises(SystemExit) as ended:
        main(["record", "192.0.2.1", "/tmp/none", *options])

    assert ended.value.code == 2
    assert MAX_OBJECTS > 1


def test_a_folder_that_holds_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is overwritten, and the grandmaster is not even polled."""
    (tmp_path / "walk.snmprec").write_text("older")
    status = main(["record", "192.0.2.1", str(tmp_path), "--community-env", "GM_C"])

    assert (status, (tmp_path / "walk.snmprec").read_text()) == (2, "older")
    assert capsys.readouterr().err == f"timesyncd: {tmp_path}: exists and is not an empty folder\n"


def test_no_secret_shows_in_what_is_printed_of_an_access() -> None:
    """A traceback or a log line holds none."""
    web = ["--https-username", "eva", "--https-password-env", "GM_W", "--insecure"]
    snmp = ["--user", "eva", "--auth-pass-env", "GM_A", "--priv-pass-env", "GM_P"]

    for found in (access("--community-env", "GM_C"), access(*snmp, *web)):
        assert not any(secret in repr(found) for secret in found.known_secrets())


@pytest.mark.parametrize("host", ["", "a b", "a" * 300])
def test_a_host_that_is_none_is_2(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be asked for, and no name server can be."""
    with pytest.raises(SystemExit) as ended:
        main(["probe", host, "--community-env", "GM_C"])

    assert ended.value.code == 2
    assert "is no address or name of a host" in capsys.readouterr().err
