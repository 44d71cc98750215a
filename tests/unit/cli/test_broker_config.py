"""The files that `broker-config` writes: whole, for the owner alone, and with the secrets that were there."""

from __future__ import annotations

import base64
import hashlib
import stat
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.mqtt.broker_files import BrokerUsers, acl, password_line, settings


def test_secrets_that_are_there_are_kept(tmp_path: Path) -> None:
    """A new node gets one of its own; the others' daemons go on."""
    folder = tmp_path / "broker"
    assert main(["broker-config", "n1", "--hub", "hub-a", "--out", str(folder)]) == 0
    before = {path.name: path.read_text() for path in (folder / "secrets").iterdir()}
    (tmp_path / "nodes").write_text("# the first rack\nn1\nn2  # new\n\n")
    nodes = ["--nodes-file", str(tmp_path / "nodes")]
    assert main(["broker-config", *nodes, "--hub", "hub-a", "--out", str(folder)]) == 0
    after = {path.name: path.read_text() for path in (folder / "secrets").iterdir()}

    assert sorted(before) == ["hub-a", "hub-a-cli", "n1", "n1-cli"]
    assert after == before | {name: after[name] for name in ("n2", "n2-cli")}
    assert len(set(after.values())) == 6
    users = [line.partition(":")[0] for line in (folder / "passwords").read_text().splitlines()]
    assert users == ["hub-a", "n1", "n2", "hub-a-cli", "n1-cli", "n2-cli"]


def test_no_other_user_can_read_what_is_secret(tmp_path: Path) -> None:
    """Whatever the umask."""
    assert main(["broker-config", "n1", "--out", str(tmp_path / "broker")]) == 0
    files = [path for path in (tmp_path / "broker").rglob("*") if path.is_file()]

    assert len(files) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "broker" / "secrets").stat().st_mode) == 0o700


def test_with_certificates_there_are_no_passwords(tmp_path: Path) -> None:
    """The common name is the user, and the user is the identifier."""
    assert main(["broker-config", "n1", "--certificates", "--out", str(tmp_path)]) == 0

    assert sorted(path.name for path in tmp_path.iterdir()) == ["timesyncd.acl", "timesyncd.conf"]
    written = (tmp_path / "timesyncd.conf").read_text()
    assert "use_identity_as_username true\n" in written
    assert "use_username_as_clientid true\n" in written
    assert "password_file" not in written


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name the nodes"),
        (["a b"], "'a b' is not a valid name"),
        (["n1", "n1-cli"], "'n1-cli' would be two users"),
        (["n1", "--reader", "n1"], "'n1' would be two users"),
        (["--nodes-file", "/nonexistent"], "/nonexistent: cannot be read"),
    ],
)
def test_a_name_that_cannot_be_a_user_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    """And nothing is written."""
    assert main(["broker-config", *arguments, "--out", str(tmp_path / "broker")]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "broker").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the path."""
    (tmp_path / "file").write_text("")
    assert main(["broker-config", "n1", "--out", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'}: File exists" in capsys.readouterr().err


def test_a_secret_that_is_no_text_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the file and what to do."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "n1").write_bytes(b"\xff")

    assert main(["broker-config", "n1", "--out", str(tmp_path)]) == 2
    where = f"timesyncd: {tmp_path / 'secrets' / 'n1'}: the secret cannot be read"
    assert capsys.readouterr().err == f"{where}: not text in UTF-8; remove it for a new one\n"


def test_a_password_s_line_is_what_mosquitto_computes() -> None:
    """PBKDF2 with SHA-512 over the salt, as in its documentation of $7$."""
    user, _, entry = password_line("n1", "secret", b"0123456789ab").partition(":")
    kind, iterations, salt, digest = entry[1:].split("$")

    assert (user, kind, base64.b64decode(salt)) == ("n1", "7", b"0123456789ab")
    assert base64.b64decode(digest) == hashlib.pbkdf2_hmac("sha512", b"secret", b"0123456789ab", int(iterations))


def test_a_prefix_and_a_port_of_one_s_own() -> None:
    """Two fleets share a broker by their prefixes."""
    assert "topic write site-a/node/n1/#\n" in acl(BrokerUsers(["n1"], []), "site-a")
    assert "timesyncd/v1" not in acl(BrokerUsers(["n1"], ["hub-a"]), "site-a")
    assert settings("/etc/m", has_certificates=False, port=1234).splitlines()[1] == "listener 1234"
