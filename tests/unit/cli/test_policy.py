"""`timesyncd policy`: what it prints, what it sends, and its errors."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, page, serving

from timesyncd import __main__ as program
from timesyncd.cli import policy as command
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import SOCKET_NAME, decode_request, job_id
from timesyncd.ipc.job_segment import JobWriter, Plan, Signals, segment_path

ME = 1000
TRAIN = job_id(ME, "train", 0)


class Cluster:
    """A daemon's page and its job socket. `respond` gives the hub's plan after each request; None: unchanged."""

    def __init__(self, hub: FakeHub, folder: Path) -> None:
        self.requests: list[tuple[str, str]] = []
        self.respond: Callable[[str], tuple[str, int] | None] = lambda policy: (policy, 1)
        self._hub = hub
        self._folder = folder
        self._jobs: dict[str, dict[str, Any]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / SOCKET_NAME))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def job(self, name: str = "train", uid: int = ME, attempt: int = 0, policy: str = "", version: int = 0) -> str:
        id = job_id(uid, name, attempt)
        known = {"job_id": id, "job": name, "uid": uid, "attempt": attempt}
        self._jobs[id] = known | {"plan": {"policy": policy, "policy_version": version}}
        self._publish()
        return id

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", str(self._folder / SOCKET_NAME))
        self._thread.join()
        self._socket.close()

    def run(self, *words: str) -> int:
        return program.main(["policy", *words, "--url", self._hub.url, "--runtime-dir", str(self._folder)])

    def _publish(self) -> None:
        self._hub.answers["/api/v1/jobs"] = (200, page(*self._jobs.values()))
        for id, job in self._jobs.items():
            self._hub.answers[f"/api/v1/jobs/{id}"] = (200, job)

    def _serve(self) -> None:
        while data := self._socket.recv(4096):
            id, policy = decode_request(data)
            self.requests.append((id, policy))
            plan = self.respond(policy)
            if plan is not None:
                self._jobs[id]["plan"] = {"policy": plan[0], "policy_version": plan[1]}
                self._publish()


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster, with the command run by user 1000."""
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: ME)
    monkeypatch.setattr(command, "RETRY_AFTER_S", 0.0)
    with serving() as hub:
        cluster = Cluster(hub, folder)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.mark.parametrize(
    ("planned", "line"),
    [
        (("local_sgd(h=8)", 4), f"train {TRAIN}: local_sgd(h=8) (change 4)"),
        (("", 0), f"train {TRAIN}: no policy planned; the ranks follow their script"),
    ],
)
def test_the_plan_s_policy_is_shown(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], planned: tuple[str, int], line: str
) -> None:
    """The job is found by name or id, and nothing is sent."""
    cluster.job(policy=planned[0], version=planned[1])
    codes = [cluster.run("train"), cluster.run(TRAIN), cluster.run("train", "--json")]
    *lines, as_json = capsys.readouterr().out.splitlines()

    assert (codes, lines) == ([0, 0, 0], [line, line])
    assert json.loads(as_json) == {
        "job": "train", "job_id": TRAIN, "uid": ME, "policy": planned[0], "policy_version": planned[1],
    }  # fmt: skip
    assert cluster.requests == []


def test_a_policy_is_requested(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy is sent in its normal form, and the plan's policy is printed."""
    cluster.job()
    code = cluster.run("train", " selsync( quantile=0.9 )+topk")

    assert (code, capsys.readouterr().out) == (0, f"train {TRAIN}: selsync(quantile=0.9) + topk (change 1)\n")
    assert set(cluster.requests) == {(TRAIN, "selsync(quantile=0.9) + topk")}


def test_a_planned_policy_is_not_requested(cluster: Cluster) -> None:
    """A request without a change is not sent."""
    cluster.job(policy="bsp", version=3)

    assert (cluster.run("train", "bsp"), cluster.requests) == (0, [])


def test_a_request_that_is_lost_is_sent_again(cluster: Cluster) -> None:
    """A request can be lost on its way, or while another hub takes over."""
    cluster.job()
    cluster.respond = lambda policy: (policy, 1) if len(cluster.requests) == 3 else None

    assert cluster.run("train", "bsp") == 0
    assert len(cluster.requests) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "no_such()"), "policy 'no_such()': 'no_such()' is unknown; allowed: auto, bsp,"),
        (
            ("train", "local_sgd(h=0)"),
            "policy 'local_sgd(h=0)': local_sgd(h, delay, across): h is 0; it must be at least 1",
        ),
        (("other", "bsp"), "no job 'other'; known jobs: 'train'"),
        (("0" * 16, "bsp"), "no job '0000000000000000'; known jobs: 'train'"),
    ],
)
def test_an_invalid_request_is_not_sent(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, str], message: str
) -> None:
    """An invalid policy or an unknown job is one line, and nothing is sent."""
    cluster.job()
    code = cluster.run(*words)

    assert (code, capsys.readouterr().err.startswith(f"timesyncd: {message}")) == (2, True)
    assert cluster.requests == []


def test_another_user_s_job_cannot_be_changed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy may be read; root may change it."""
    id = cluster.job(uid=1001)
    codes = [cluster.run("train"), cluster.run("train", "bsp")]
    asked = list(cluster.requests)
    monkeypatch.setattr(os, "getuid", lambda: 0)

    assert (codes, asked) == ([0, 1], [])
    assert "job 'train' belongs to user 1001: only that user and root may change its policy" in capsys.readouterr().err
    assert (cluster.run("train", "bsp"), set(cluster.requests)) == (0, {(id, "bsp")})


def test_the_user_s_own_job_takes_precedence(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest attempt counts; root, without a job of that name, has to give the id."""
    ids = [cluster.job(uid=1001), cluster.job(attempt=1), cluster.job(attempt=0)]
    cluster.run("train")
    mine = capsys.readouterr().out
    monkeypatch.setattr(os, "getuid", lambda: 0)
    code = cluster.run("train", "bsp")
    printed = capsys.readouterr().err

    assert mine.startswith(f"train {ids[1]}: ")
    assert (code, all(id in printed for id in ids)) == (2, True)
    assert (cluster.run(ids[0], "bsp"), set(cluster.requests)) == (0, {(ids[0], "bsp")})


def test_a_request_has_a_timeout(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the plan does not change, the command gives the possible causes."""
    monkeypatch.setattr(command, "TIMEOUT_S", 0.0)
    cluster.job(policy="asp", version=2)
    cluster.respond = lambda policy: None

    assert cluster.run("train", "bsp") == 1
    assert "its plan does not have this policy after 0 s: no hub accepted the request" in capsys.readouterr().err


def test_two_requests_at_once_do_not_alternate(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that sees another change in the plan stops with an error."""
    cluster.job(policy="asp", version=2)
    cluster.respond = lambda policy: ("accumulate(k=2)", 3)

    assert cluster.run("train", "bsp") == 1
    assert "another request changed its policy meanwhile, to accumulate(k=2)" in capsys.readouterr().err


def test_without_a_daemon_the_socket_is_named(
    cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the socket and a command."""
    cluster.job()
    (folder / SOCKET_NAME).rename(folder / "away")
    code = cluster.run("train", "bsp")
    (folder / "away").rename(folder / SOCKET_NAME)
    printed = capsys.readouterr().err

    assert code == 1
    assert f"{folder / SOCKET_NAME}: No such file or directory: no daemon listens on this socket" in printed


@pytest.mark.parametrize("wanted", ["train", job_id(ME, "train", 3)], ids=["by name", "by id"])
def test_without_a_page_the_job_s_segment_is_read(
    wanted: str, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container with only the runtime folder, the newest attempt with ranks on this node is read."""
    monkeypatch.setattr("timesyncd.cli.policy.DEFAULT_URL", "http://127.0.0.1:9/")
    (folder / "jobs").mkdir()
    for attempt in (0, 3):
        writer = JobWriter(segment_path(folder, job_id(ME, "train", attempt)), Epoch(boot_id(), time_namespace()))
        plan = Plan(policy="bsp", policy_version=attempt)
        writer.write(time.clock_gettime_ns(time.CLOCK_BOOTTIME), Signals(1, 0, 0), plan)
        writer.close()
    absent = str(folder / "none.toml")
    code = program.main(["policy", wanted, "--json", "--runtime-dir", str(folder), "--config", absent])
    printed = json.loads(capsys.readouterr().out)
    unknown = program.main(["policy", "other", "--runtime-dir", str(folder), "--config", absent])
    too_long = program.main(["policy", "other", "--runtime-dir", "x" * 300, "--config", absent])

    assert (code, printed["job_id"], printed["policy_version"]) == (0, job_id(ME, "train", 3), 3)
    assert (unknown, too_long) == (2, 2)
    assert "no job 'other' of this user has ranks on this node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((403, {"error": "role job or admin required"}), "role job or admin required"),
        ((500, {}), "HTTP status 500"),
        ((502, "bad gateway"), "HTTP status 502"),
    ],
)
def test_a_page_that_refuses_is_an_error(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], reply: tuple[int, Any], message: str
) -> None:
    """The daemon's own words, or the status; a job that the page does not show is not taken for one that does not exist."""
    cluster.job()
    cluster._hub.answers["/api/v1/jobs"] = reply
    code = cluster.run("train", "bsp")

    assert (code, message in capsys.readouterr().err) == (1, True)
    assert cluster.requests == []
