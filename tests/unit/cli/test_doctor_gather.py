"""What the doctor sees when it looks at files, a service, a daemon's page; and the whole command on this machine."""

from __future__ import annotations

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
from doctor_lab import finding, node
from fake_hub import FakeHub, hub_state, page, serving
from sqlalchemy import create_engine, insert
from web_units import certificate

from timesyncd import __main__ as program
from timesyncd.cli.doctor import facts as gather
from timesyncd.cli.doctor.facts import (
    DaemonFacts,
    PlaceFacts,
    ServiceFacts,
    StoreFacts,
    Unanswered,
    Unseen,
    certificate_facts,
    store_facts,
)
from timesyncd.config import Config, parse
from timesyncd.driver import options_of
from timesyncd.simulation.bed.authority import Authority
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


def test_a_file_is_seen_with_its_mode(tmp_path: Path) -> None:
    """What is not there has none; a file is no socket that answers."""
    path = tmp_path / "clock"
    absent = gather.place_facts(path)
    path.touch()
    path.chmod(0o640)

    assert (absent, gather.place_facts(path)) == (PlaceFacts(path, None), PlaceFacts(path, 0o640))


def test_a_socket_tells_whether_somebody_listens(tmp_path: Path) -> None:
    """A daemon that was killed leaves the file behind."""
    path = tmp_path / "job.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(path))
        alive = gather.place_facts(path).answers

    assert (alive, gather.place_facts(path).answers) == (True, False)


def test_the_service_as_systemctl_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Property by property; what it does not tell is unknown."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nprintf 'ActiveState=failed\\nLoadState=loaded\\nResult=exit-code\\n'\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gather, "SYSTEMD_RUNS", tmp_path)

    assert gather.service_facts() == ServiceFacts("loaded", "failed", "exit-code", "unknown")


def test_without_systemd_no_service_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container."""
    monkeypatch.setattr(gather, "SYSTEMD_RUNS", tmp_path / "none")

    assert gather.service_facts() == Unseen("systemd does not run here")


@pytest.mark.parametrize(("text", "length"), [("512\n", 512), ("odd", None), (None, None)])
def test_the_datagram_limit(tmp_path: Path, text: str | None, length: int | None) -> None:
    """A kernel without it, or with another text, is none that has it."""
    if text is not None:
        (tmp_path / "limit").write_text(text)

    assert gather.max_dgram_qlen(tmp_path / "limit") == length


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A daemon that is well, and guarded."""
    with serving() as hub:
        findings = [finding("broker-lost"), finding("kernel-leap", until_realtime_ns=1)]
        hub.answers |= {
            "/api/v1/node": (200, node().model_dump(mode="json")),
            "/api/v1/findings": (200, page(*(each.model_dump(mode="json") for each in findings))),
            "/api/v1/hubs": (200, page(hub_state("h1", None))),
            "/healthz": (200, b"ok\n"),
        }
        yield hub


def test_a_daemon_is_asked_for_all_it_knows(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token of its own that may read; what ended is no finding that stands."""
    monkeypatch.setenv("READER", SECRET)
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    tokens = [{"name": "j", "role": "job", "secret": {"env": "JOB"}}, {"name": "r", "secret": {"env": "READER"}}]
    monkeypatch.setattr(gather, "page_url", lambda _: hub.url)
    seen = gather.daemon_facts(args(tmp_path), config(web={"token": tokens}))

    assert isinstance(seen, DaemonFacts)
    assert [each.id for each in seen.findings] == ["broker-lost"]
    assert (seen.node.node, [each.node for each in seen.hubs or ()], seen.health) == ("n1", ["h1"], None)
    assert {shown for _, shown in hub.asked} == {f"Bearer {SECRET}"}


def test_another_daemon_is_not_told_our_token(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration holds is for its own daemon: --url may name anybody."""
    monkeypatch.setenv("READER", SECRET)
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    gather.daemon_facts(
        args(tmp_path, url=hub.url), config(web={"token": [{"name": "r", "secret": {"env": "READER"}}]})
    )

    assert {shown for _, shown in hub.asked} == {None}


def test_a_daemon_that_is_not_well_says_so(hub: FakeHub, tmp_path: Path) -> None:
    """503 and its first line; that it tells of no hubs is no error."""
    hub.answers |= {"/healthz": (503, b"the store fails\nmore\n"), "/api/v1/hubs": (404, {"error": "no"})}
    seen = gather.daemon_facts(args(tmp_path, url=hub.url), None)

    assert isinstance(seen, DaemonFacts)
    assert (seen.health, seen.hubs) == ("the store fails", None)


@pytest.mark.parametrize(
    ("answer", "why"), [((401, {"error": "show who you are"}), "show who you are"), ((200, {"x": 1}), "no timesyncd"), ((200, []), "no timesyncd"), ((200, b"<"), "no timesyncd")]
)  # fmt: skip
def test_who_is_no_daemon_gives_no_answer(hub: FakeHub, tmp_path: Path, answer: tuple[int, Any], why: str) -> None:
    """And the doctor says why, in one line."""
    hub.answers["/api/v1/node"] = answer
    seen = gather.daemon_facts(args(tmp_path, url=hub.url), None)

    assert isinstance(seen, Unanswered)
    assert why in seen.why and len(seen.why.splitlines()) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter, as tmp_path is not."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_everybody_can_read_is_told(open_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Secrets and private keys, but not where a folder above is closed; and a page that takes tokens in clear."""
    for name, mode in (("open", 0o644), ("closed", 0o640)):
        (open_folder / name).write_text(SECRET + name)
        (open_folder / name).chmod(mode)
    secrets = [f'[[web.token]]\nname = "{n}"\nsecret = {{ file = "{open_folder / n}" }}\n' for n in ("open", "closed")]
    path = written(open_folder, '[web]\nhost = "0.0.0.0"\n' + "".join(secrets))
    code = program.main(["check-config", "--config", str(path)])
    told, seen = capsys.readouterr().out, gather.config_facts(args(path))
    open_folder.chmod(0o750)
    shut = gather.config_facts(args(path))

    assert code == 0
    assert f"warning      web.token[0].secret: everybody on this machine can read {open_folder}/open" in told
    assert "warning      web: tokens go over the network in clear" in told
    assert (seen.exposed, shut.exposed) == ((("web.token[0].secret", open_folder / "open"),), ())
    assert [line.partition(":")[0] for line in seen.careless] == ["web"]


def test_what_the_configuration_names_and_is_not_there(tmp_path: Path) -> None:
    """Every secret and file, not the first alone."""
    path = written(
        tmp_path,
        '[mqtt]\nhost = "b"\npassword = { file = "/nonexistent/a" }\n'
        '[[web.token]]\nname = "r"\nsecret = { env = "NOT_SET_ANYWHERE" }\n',
    )
    seen = gather.config_facts(args(path))

    assert [line.split(":")[0] for line in seen.broken] == ["mqtt.password", "web.token[0].secret"]


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
    """What would end the daemon at its start is told by the doctor, and by check-config with exit 2."""
    monkeypatch.setenv("SHORT", "short")
    path = written(tmp_path, text)
    seen = gather.config_facts(args(path))
    code = program.main(["check-config", "--config", str(path)])

    assert [named in line for line in seen.broken] == [True]
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_configuration_that_is_none(tmp_path: Path) -> None:
    """One line."""
    seen = gather.config_facts(args(written(tmp_path, "[web]\nport = -1\n")))

    assert seen.config is None
    assert "web.port = -1" in seen.error


def test_a_bundle_serves_as_long_as_one_of_it_does(tmp_path: Path) -> None:
    """Of authorities an old one may stand beside its successor; one's own chain needs every part."""
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


def test_certificates_are_seen_with_their_end(tmp_path: Path) -> None:
    """Of every file that is named and can be read."""
    made = certificate(tmp_path, "hub")
    pem = next(path for path in tmp_path.iterdir() if b"BEGIN CERTIFICATE" in path.read_bytes())
    web = {"certificate": str(pem), "key": str(pem), "client_ca": str(tmp_path / "none")}
    [seen] = certificate_facts(config(web=web))

    assert made is not None
    assert (seen.key, seen.path) == ("web.certificate", pem)
    assert 0 < seen.until_realtime_ns - time.time_ns() < 2 * 86_400 * 10**9


def test_a_store_is_seen_with_its_newest_samples(tmp_path: Path) -> None:
    """Of the sources that are configured, not of those that once were; and with the room that is left on its disk."""
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


def test_a_store_that_is_none(tmp_path: Path) -> None:
    """Missing while a daemon runs, or damaged: an error. Before the first start: nothing to look at."""
    missing = config(store={"path": str(tmp_path / "none.sqlite")})
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database " * 1_000)
    seen = [store_facts(missing, runs=True), store_facts(config(store={"path": str(damaged)}), runs=False)]

    assert all(isinstance(each, StoreFacts) and each.error for each in seen)
    assert isinstance(store_facts(missing, runs=False), Unseen)


def test_the_whole_command_before_the_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every source is asked once, one that is not there is told, and nothing is left behind."""
    runtime_dir = tmp_path / "run"
    path = written(
        tmp_path,
        f'[node]\nname = "n1"\nruntime_dir = "{runtime_dir}"\n[web]\nport = 9\n'
        '[[source]]\nname = "k"\ndriver = "kernel"\n'
        f'[[source]]\nname = "ptp"\ndriver = "ptp4l"\nuds_address = "{tmp_path}/none"\n',
    )
    code = program.main(["doctor", "--json", "--config", str(path)])
    told = json.loads(capsys.readouterr().out)
    sources = {each["check"]: each["state"] for each in told["checks"] if each["group"] == "sources"}

    assert code == 1
    assert told["to_do"] == sum(each["state"] == "to do" for each in told["checks"])
    assert sources == {"k": "ok", "source lost": "to do"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_daemon_that_hangs_is_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel takes its datagrams and its connections, and nobody answers: exit 1."""
    monkeypatch.setattr(gather, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as page_end, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "job.sock"))
        port = page_end.getsockname()[1]
        path = written(tmp_path, f'[node]\nname = "n1"\nruntime_dir = "{tmp_path}"\n[web]\nport = {port}\n')
        code = program.main(["doctor", "--json", "--config", str(path)])
    told = json.loads(capsys.readouterr().out)
    pages = [each for each in told["checks"] if (each["group"], each["check"]) == ("daemon", "page")]

    assert code == 1
    assert [(each["state"], each["severity"]) for each in pages] == [("to do", "critical")]
    assert "no answer within 0.2 s" in pages[0]["what"]


def test_another_node_s_daemon_is_not_this_one(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That it answers at --url does not make one run here: what is here is looked at as it is."""
    path = written(
        tmp_path, f'[node]\nname = "n2"\nruntime_dir = "{tmp_path}"\n[[source]]\nname = "k"\ndriver = "kernel"\n'
    )
    program.main(["doctor", "--json", "--config", str(path), "--url", hub.url])
    told = json.loads(capsys.readouterr().out)

    assert [each["what"] for each in told["checks"] if each["group"] == "sources"] == ["kernel answers"]


def test_the_daemon_s_sources_are_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody listens for jobs: two who ask ptp4l under one name get each other's answers."""
    path = written(tmp_path, f'[node]\nruntime_dir = "{tmp_path}"\n[[source]]\nname = "k"\ndriver = "kernel"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "job.sock"))
        program.main(["doctor", "--json", "--config", str(path)])
    told = json.loads(capsys.readouterr().out)

    assert [each["what"] for each in told["checks"] if each["group"] == "sources"] == [
        "the daemon asks them; its findings tell"
    ]


def test_no_secret_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither on the screen nor in the JSON."""
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
