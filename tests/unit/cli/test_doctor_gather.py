"""What the doctor gathers of files, service, daemon, store and certificates; and the whole command on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from authority import Authority
from doctor_lab import finding, node
from fake_hub import FakeHub, hub_state, page, serving
from sqlalchemy import create_engine, insert
from web_interface import certificate

from timesyncd import __main__ as program
from timesyncd.cli.doctor import facts as gather
from timesyncd.cli.doctor.facts import (
    DaemonFacts,
    FileFacts,
    NoReply,
    NotChecked,
    ServiceFacts,
    StoreFacts,
    certificate_facts,
    store_facts,
)
from timesyncd.config import Config, parse
from timesyncd.driver import options_of
from timesyncd.store import tables

SECRET = "0123456789abcdef-not-to-be-shown"


def config(**sections: Any) -> Config:
    return parse(sections, options_of, "t.toml")


def args(path: Path, **changes: Any) -> Namespace:
    return Namespace(**{"config": path, "url": None, "json": True} | changes)


def written(folder: Path, text: str) -> Path:
    path = folder / "timesyncd.toml"
    path.write_text(text)
    return path


def test_a_file_has_its_mode(tmp_path: Path) -> None:
    """A missing file has no mode, and a regular file does not listen."""
    path = tmp_path / "clock"
    absent = gather.file_facts(path)
    path.touch()
    path.chmod(0o640)

    assert (absent, gather.file_facts(path)) == (FileFacts(path, None), FileFacts(path, 0o640))


def test_a_socket_listens_while_its_process_lives(tmp_path: Path) -> None:
    """A killed daemon leaves a socket file on which no process listens."""
    path = tmp_path / "job.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(path))
        alive = gather.file_facts(path).listens

    assert (alive, gather.file_facts(path).listens) == (True, False)


def test_the_service_has_systemctl_s_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that systemctl does not print is unknown."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nprintf 'ActiveState=failed\\nLoadState=loaded\\nResult=exit-code\\n'\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gather, "SYSTEMD_FOLDER", tmp_path)

    assert gather.service_facts() == ServiceFacts("loaded", "failed", "exit-code", "unknown")


def test_without_systemd_the_service_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, for example, systemd does not run."""
    monkeypatch.setattr(gather, "SYSTEMD_FOLDER", tmp_path / "none")

    assert gather.service_facts() == NotChecked("systemd does not run here")


@pytest.mark.parametrize(("text", "length"), [("512\n", 512), ("odd", None), (None, None)])
def test_the_datagram_limit(tmp_path: Path, text: str | None, length: int | None) -> None:
    """A kernel without the setting, or with unreadable text in it, has no limit."""
    if text is not None:
        (tmp_path / "limit").write_text(text)

    assert gather.max_dgram_qlen(tmp_path / "limit") == length


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A healthy daemon whose page needs a token."""
    with serving() as hub:
        findings = [finding("broker-lost"), finding("kernel-leap", until_realtime_ns=1)]
        hub.answers |= {
            "/api/v1/node": (200, node().model_dump(mode="json")),
            "/api/v1/findings": (200, page(*(each.model_dump(mode="json") for each in findings))),
            "/api/v1/hubs": (200, page(hub_state("h1", None))),
            "/healthz": (200, b"ok\n"),
        }
        yield hub


def test_a_daemon_replies_with_all_its_facts(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor uses a configured token of the role reader, and keeps active findings only."""
    monkeypatch.setenv("READER", SECRET)
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    tokens = [{"name": "j", "role": "job", "secret": {"env": "JOB"}}, {"name": "r", "secret": {"env": "READER"}}]
    monkeypatch.setattr(gather, "page_url", lambda _: hub.url)
    seen = gather.daemon_facts(args(tmp_path), config(web={"token": tokens}))

    assert isinstance(seen, DaemonFacts)
    assert [each.id for each in seen.findings] == ["broker-lost"]
    assert (seen.node.node, [each.node for each in seen.hubs or ()], seen.health) == ("n1", ["h1"], None)
    assert {shown for _, shown in hub.asked} == {f"Bearer {SECRET}"}


def test_another_daemon_does_not_receive_our_token(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured token is not sent to the server that --url names."""
    monkeypatch.setenv("READER", SECRET)
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    gather.daemon_facts(
        args(tmp_path, url=hub.url), config(web={"token": [{"name": "r", "secret": {"env": "READER"}}]})
    )

    assert {shown for _, shown in hub.asked} == {None}


def test_an_unhealthy_daemon_reports_it(hub: FakeHub, tmp_path: Path) -> None:
    """The first line of a 503 is its health; missing hubs are no error."""
    hub.answers |= {"/healthz": (503, b"the store fails\nmore\n"), "/api/v1/hubs": (404, {"error": "no"})}
    seen = gather.daemon_facts(args(tmp_path, url=hub.url), None)

    assert isinstance(seen, DaemonFacts)
    assert (seen.health, seen.hubs) == ("the store fails", None)


@pytest.mark.parametrize(
    ("answer", "reason"), [((401, {"error": "show who you are"}), "show who you are"), ((200, {"x": 1}), "not a timesyncd"), ((200, []), "not a timesyncd"), ((200, b"<"), "not from timesyncd")]
)  # fmt: skip
def test_a_foreign_server_gives_no_valid_reply(
    hub: FakeHub, tmp_path: Path, answer: tuple[int, Any], reason: str
) -> None:
    """The reason is one line."""
    hub.answers["/api/v1/node"] = answer
    seen = gather.daemon_facts(args(tmp_path, url=hub.url), None)

    assert isinstance(seen, NoReply)
    assert reason in seen.why and len(seen.why.splitlines()) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike tmp_path."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_world_readable_secret_is_a_warning(open_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A secret in a closed folder is none; a page that receives tokens in clear text is another warning."""
    for name, mode in (("open", 0o644), ("closed", 0o640)):
        (open_folder / name).write_text(SECRET + name)
        (open_folder / name).chmod(mode)
    secrets = [f'[[web.token]]\nname = "{n}"\nsecret = {{ file = "{open_folder / n}" }}\n' for n in ("open", "closed")]
    path = written(open_folder, '[web]\nhost = "0.0.0.0"\n' + "".join(secrets))
    code = program.main(["check-config", "--config", str(path)])
    printed, seen = capsys.readouterr().out, gather.config_facts(args(path))
    open_folder.chmod(0o750)
    shut = gather.config_facts(args(path))

    assert code == 0
    assert f"warning      web.token[0].secret: every user of this machine can read {open_folder}/open" in printed
    assert "warning      web: tokens cross the network unencrypted" in printed
    assert (seen.readable_secrets, shut.readable_secrets) == ((("web.token[0].secret", open_folder / "open"),), ())
    assert [line.partition(":")[0] for line in seen.web_warnings] == ["web"]


def test_every_missing_secret_is_reported(tmp_path: Path) -> None:
    """Every unreadable secret is reported, not only the first."""
    path = written(
        tmp_path,
        '[mqtt]\nhost = "b"\npassword = { file = "/nonexistent/a" }\n'
        '[[web.token]]\nname = "r"\nsecret = { env = "NOT_SET_ANYWHERE" }\n',
    )
    seen = gather.config_facts(args(path))

    assert [line.split(":")[0] for line in seen.unusable_files] == ["mqtt.password", "web.token[0].secret"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[mqtt]\nhost = "b"\ntls = true\nca = "/nonexistent/ca"\n', "mqtt.ca"),
        ('[web]\ncertificate = "/nonexistent/c"\nkey = "/nonexistent/k"\n', "web.certificate"),
        ('[[web.token]]\nname = "r"\nsecret = { env = "SHORT" }\n', "web.token[0].secret"),
    ],
)
def test_certificates_and_tokens_are_read_as_the_daemon_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    """What would stop the daemon at its start is reported by the doctor, and by check-config with exit status 2."""
    monkeypatch.setenv("SHORT", "short")
    path = written(tmp_path, text)
    seen = gather.config_facts(args(path))
    code = program.main(["check-config", "--config", str(path)])

    assert [named in line for line in seen.unusable_files] == [True]
    assert code == 2
    assert named in capsys.readouterr().err


def test_an_invalid_configuration_is_an_error(tmp_path: Path) -> None:
    """The facts hold the error and no configuration."""
    seen = gather.config_facts(args(written(tmp_path, "[web]\nport = -1\n")))

    assert seen.config is None
    assert "web.port = -1" in seen.error


def test_a_bundle_is_valid_while_one_certificate_is(tmp_path: Path) -> None:
    """Trusted certificates are a union; the daemon's own chain needs every certificate."""
    authority = Authority(tmp_path)
    both = authority.identity("old", is_expired=True), authority.identity("new")
    (tmp_path / "both.pem").write_bytes(b"".join(each.certificate.read_bytes() for each in both))
    web = dict.fromkeys(("certificate", "key", "client_ca"), str(tmp_path / "both.pem"))
    seen = {each.key: each for each in certificate_facts(config(web=web))}
    now_s = time.time_ns() // 10**9
    spans = {
        key: [round((ns // 10**9 - now_s) / 86_400) for ns in (each.from_realtime_ns, each.until_realtime_ns)]
        for key, each in seen.items()
    }

    assert spans == {"web.certificate": [-1, -1], "web.client_ca": [-3, 1]}


def test_a_certificate_has_its_validity(tmp_path: Path) -> None:
    """Each readable certificate file is reported with its end."""
    made = certificate(tmp_path, "hub")
    pem = next(path for path in tmp_path.iterdir() if b"BEGIN CERTIFICATE" in path.read_bytes())
    web = {"certificate": str(pem), "key": str(pem), "client_ca": str(tmp_path / "fifo")}
    os.mkfifo(tmp_path / "fifo")
    [seen] = certificate_facts(config(web=web))

    assert made is not None
    assert (seen.key, seen.path) == ("web.certificate", pem)
    assert 0 < seen.until_realtime_ns - time.time_ns() < 2 * 86_400 * 10**9


def test_a_store_has_its_newest_samples(tmp_path: Path) -> None:
    """Only configured sources are included, and the free bytes of the disk."""
    path = tmp_path / "history.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    tables.metadata.create_all(engine)
    sample = {
        "source": "k", "boottime_ns": 1, "frequency_ppb": 1, "maxerror_ns": 1, "esterror_ns": 1, "synchronized": True,
        "leap": "none", "tai_offset_s": 37, "disciplines": [], "undecided_disciplines": [],
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(insert(tables.kernel_sample), [sample | {"realtime_ns": ns} for ns in (5, 9, 7)])
        connection.execute(insert(tables.kernel_sample), [sample | {"source": "gone", "realtime_ns": 11}])
    engine.dispose()
    source = {"name": "k", "driver": "kernel"}
    seen = store_facts(config(store={"path": str(path)}, source=[source]), runs=True)

    assert isinstance(seen, StoreFacts)
    assert (seen.place, seen.error, seen.newest) == (str(path), None, {"k": 9})
    assert seen.free_bytes is not None and seen.free_bytes > 0


def test_a_missing_or_damaged_store(tmp_path: Path) -> None:
    """It is an error while a daemon runs; before the first start it is not checked."""
    missing = config(store={"path": str(tmp_path / "none.sqlite")})
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database " * 1_000)
    seen = [store_facts(missing, runs=True), store_facts(config(store={"path": str(damaged)}), runs=False)]

    assert all(isinstance(each, StoreFacts) and each.error for each in seen)
    assert isinstance(store_facts(missing, runs=False), NotChecked)


def test_the_whole_command_before_the_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every source is polled once, a missing one is reported, and no file is left behind."""
    runtime_dir = tmp_path / "run"
    path = written(
        tmp_path,
        f'[node]\nname = "n1"\nruntime_dir = "{runtime_dir}"\n[web]\nport = 9\n'
        '[[source]]\nname = "k"\ndriver = "kernel"\n'
        f'[[source]]\nname = "ptp"\ndriver = "ptp4l"\nuds_address = "{tmp_path}/none"\n',
    )
    code = program.main(["doctor", "--json", "--config", str(path)])
    printed = json.loads(capsys.readouterr().out)
    sources = {each["check"]: each["state"] for each in printed["checks"] if each["group"] == "sources"}

    assert code == 1
    assert printed["to_do"] == sum(each["state"] == "to_do" for each in printed["checks"])
    assert sources == {"k": "ok", "source lost": "to_do"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_daemon_that_hangs_is_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel accepts datagrams and connections, no daemon replies, and the exit status is 1."""
    monkeypatch.setattr(gather, "REPLY_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as page_end, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "job.sock"))
        port = page_end.getsockname()[1]
        path = written(tmp_path, f'[node]\nname = "n1"\nruntime_dir = "{tmp_path}"\n[web]\nport = {port}\n')
        code = program.main(["doctor", "--json", "--config", str(path)])
    printed = json.loads(capsys.readouterr().out)
    pages = [each for each in printed["checks"] if (each["group"], each["check"]) == ("daemon", "page")]

    assert code == 1
    assert [(each["state"], each["severity"]) for each in pages] == [("to_do", "critical")]
    assert "no response within 0.2 s" in pages[0]["what"]


def test_another_node_s_daemon_is_not_this_one(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reply from --url does not mean that a daemon runs on this node, so the doctor polls the sources."""
    path = written(
        tmp_path, f'[node]\nname = "n2"\nruntime_dir = "{tmp_path}"\n[[source]]\nname = "k"\ndriver = "kernel"\n'
    )
    program.main(["doctor", "--json", "--config", str(path), "--url", hub.url])
    printed = json.loads(capsys.readouterr().out)

    assert [each["what"] for each in printed["checks"] if each["group"] == "sources"] == ["kernel replies"]


def test_a_running_daemon_s_sources_are_not_polled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pollers of ptp4l under one name would receive each other's replies."""
    path = written(tmp_path, f'[node]\nruntime_dir = "{tmp_path}"\n[[source]]\nname = "k"\ndriver = "kernel"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "job.sock"))
        program.main(["doctor", "--json", "--config", str(path)])
    printed = json.loads(capsys.readouterr().out)

    assert [each["what"] for each in printed["checks"] if each["group"] == "sources"] == [
        "the daemon polls them and reports its findings"
    ]


def test_a_source_that_a_running_daemon_lost_is_polled_again(tmp_path: Path) -> None:
    """Under a folder of its own, so that a reply reaches the poller that asked; the others are the daemon's alone."""
    sources = [{"name": "k", "driver": "kernel"}, {"name": "ptp", "driver": "ptp4l"}]
    found = asyncio.run(gather._source_facts(config(source=sources), tmp_path, True, frozenset({"ptp"})))

    assert isinstance(found, tuple)
    assert [(each.name, each.error is not None) for each in found] == [("ptp", True)]
    assert list(tmp_path.iterdir()) == []


def test_no_secret_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the screen nor the JSON contains one."""
    monkeypatch.setenv("PASSWORD", SECRET)
    path = written(
        tmp_path,
        '[mqtt]\nhost = "127.0.0.1"\nport = 9\nusername = "u"\npassword = { env = "PASSWORD" }\n'
        '[web]\nport = 9\n[[web.token]]\nname = "r"\nsecret = { env = "PASSWORD" }\n',
    )
    for words in (["--json"], []):
        program.main(["doctor", "--config", str(path), *words])
    program.main(["check-config", "--config", str(path)])

    assert SECRET not in "".join(capsys.readouterr())
