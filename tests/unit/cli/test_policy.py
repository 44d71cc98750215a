"""`timesyncd policy` on the command line: what it shows, what it sends, and what it says when nothing comes of it."""

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
    """A daemon's page and its job socket. `takes` is what the hub makes of each request; None: nothing."""

    def __init__(self, hub: FakeHub, folder: Path) -> None:
        self.asked: list[tuple[str, str]] = []
        self.takes: Callable[[str], tuple[str, int] | None] = lambda policy: (policy, 1)
        self._hub = hub
        self._folder = folder
        self._jobs: dict[str, dict[str, Any]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / SOCKET_NAME))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def job(self, name: str = "train", uid: int = ME, attempt: int = 0, policy: str = "", version: int = 0) -> str:
        id = job_id(uid, name, attempt)
        told = {"job_id": id, "job": name, "uid": uid, "attempt": attempt}
        self._jobs[id] = told | {"plan": {"policy": policy, "policy_version": version}}
        self._tell()
        return id

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", str(self._folder / SOCKET_NAME))
        self._thread.join()
        self._socket.close()

    def run(self, *words: str) -> int:
        return program.main(["policy", *words, "--url", self._hub.url, "--runtime-dir", str(self._folder)])

    def _tell(self) -> None:
        self._hub.answers["/api/v1/jobs"] = (200, page(*self._jobs.values()))
        for id, job in self._jobs.items():
            self._hub.answers[f"/api/v1/jobs/{id}"] = (200, job)

    def _serve(self) -> None:
        while data := self._socket.recv(4096):
            id, policy = decode_request(data)
            self.asked.append((id, policy))
            taken = self.takes(policy)
            if taken is not None:
                self._jobs[id]["plan"] = {"policy": taken[0], "policy_version": taken[1]}
                self._tell()


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The command is run by user 1000."""
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
        (("", 0), f"train {TRAIN}: none planned: its ranks go by their script"),
    ],
)
def test_the_plan_s_policy_is_shown(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], planned: tuple[str, int], line: str
) -> None:
    """By the job's name or by its id, and nothing is sent."""
    cluster.job(policy=planned[0], version=planned[1])
    codes = [cluster.run("train"), cluster.run(TRAIN), cluster.run("train", "--json")]
    *lines, as_json = capsys.readouterr().out.splitlines()

    assert (codes, lines) == ([0, 0, 0], [line, line])
    assert json.loads(as_json) == {
        "job": "train", "job_id": TRAIN, "uid": ME, "policy": planned[0], "policy_version": planned[1],
    }  # fmt: skip
    assert cluster.asked == []


def test_a_policy_is_put_into_the_plan(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said at the end is what the plan has; it goes out as it is written."""
    cluster.job()
    code = cluster.run("train", " selsync( quantile=0.9 )+topk")

    assert (code, capsys.readouterr().out) == (0, f"train {TRAIN}: selsync(quantile=0.9) + topk (change 1)\n")
    assert set(cluster.asked) == {(TRAIN, "selsync(quantile=0.9) + topk")}


def test_what_is_planned_already_is_not_asked_for(cluster: Cluster) -> None:
    """It would be no change."""
    cluster.job(policy="bsp", version=3)

    assert (cluster.run("train", "bsp"), cluster.asked) == (0, [])


def test_a_request_that_is_lost_is_sent_again(cluster: Cluster) -> None:
    """On its way to the hub, and while one hub takes over from another."""
    cluster.job()
    cluster.takes = lambda policy: (policy, 1) if len(cluster.asked) == 3 else None

    assert cluster.run("train", "bsp") == 0
    assert len(cluster.asked) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "no_such()"), "policy 'no_such()': 'no_such()' is unknown; allowed: auto, bsp,"),
        (
            ("train", "local_sgd(h=0)"),
            "policy 'local_sgd(h=0)': local_sgd(h, delay, across): h is 0; it must be at least 1",
        ),
        (("other", "bsp"), "there is no job 'other'; there are: 'train'"),
        (("0" * 16, "bsp"), "there is no job '0000000000000000'; there are: 'train'"),
    ],
)
def test_what_cannot_be_asked_is_not_sent(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, str], said: str
) -> None:
    """No policy, or no job: one line, and nobody hears of it."""
    cluster.job()
    code = cluster.run(*words)

    assert (code, capsys.readouterr().err.startswith(f"timesyncd: {said}")) == (2, True)
    assert cluster.asked == []


def test_another_user_s_job_is_his(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be looked at; root may change it."""
    id = cluster.job(uid=1001)
    codes = [cluster.run("train"), cluster.run("train", "bsp")]
    asked = list(cluster.asked)
    monkeypatch.setattr(os, "getuid", lambda: 0)

    assert (codes, asked) == ([0, 1], [])
    assert "job 'train' is user 1001's: that user may change its policy, and root" in capsys.readouterr().err
    assert (cluster.run("train", "bsp"), set(cluster.asked)) == (0, {(id, "bsp")})


def test_of_several_jobs_of_a_name_one_s_own_is_meant(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of these the last attempt; root, who has none, gives the id."""
    ids = [cluster.job(uid=1001), cluster.job(attempt=1), cluster.job(attempt=0)]
    cluster.run("train")
    mine = capsys.readouterr().out
    monkeypatch.setattr(os, "getuid", lambda: 0)
    code = cluster.run("train", "bsp")
    told = capsys.readouterr().err

    assert mine.startswith(f"train {ids[1]}: ")
    assert (code, all(id in told for id in ids)) == (2, True)
    assert (cluster.run(ids[0], "bsp"), set(cluster.asked)) == (0, {(ids[0], "bsp")})


def test_nobody_waits_for_ever(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that takes nothing answers nothing: then the command says what may be wrong."""
    monkeypatch.setattr(command, "TIMEOUT_S", 0.0)
    cluster.job(policy="asp", version=2)
    cluster.takes = lambda policy: None

    assert cluster.run("train", "bsp") == 1
    assert "its plan does not have this policy: no hub took it" in capsys.readouterr().err


def test_two_who_change_it_at_once_do_not_fight(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Who sees the other's word in the plan says so, and stops."""
    cluster.job(policy="asp", version=2)
    cluster.takes = lambda policy: ("accumulate(k=2)", 3)

    assert cluster.run("train", "bsp") == 1
    assert "somebody else changed its policy meanwhile, to accumulate(k=2)" in capsys.readouterr().err


def test_where_no_daemon_listens(cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the socket, and what to type."""
    cluster.job()
    (folder / SOCKET_NAME).rename(folder / "away")
    code = cluster.run("train", "bsp")
    (folder / "away").rename(folder / SOCKET_NAME)
    told = capsys.readouterr().err

    assert code == 1
    assert f"{folder / SOCKET_NAME}: No such file or directory: no daemon listens there" in told


@pytest.mark.parametrize("wanted", ["train", job_id(ME, "train", 3)], ids=["by name", "by id"])
def test_without_a_page_the_job_s_segment_is_read(
    wanted: str, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that has the runtime folder and nothing else; the newest attempt with ranks on this node."""
    monkeypatch.setattr("timesyncd.cli._policy_jobs.DEFAULT_URL", "http://127.0.0.1:9/")
    (folder / "jobs").mkdir()
    for attempt in (0, 3):
        writer = JobWriter(segment_path(folder, job_id(ME, "train", attempt)), Epoch(boot_id(), time_namespace()))
        plan = Plan(policy="bsp", policy_version=attempt)
        writer.write(time.clock_gettime_ns(time.CLOCK_BOOTTIME), Signals(1, 0, 0), plan)
        writer.close()
    absent = str(folder / "none.toml")
    code = program.main(["policy", wanted, "--json", "--runtime-dir", str(folder), "--config", absent])
    told = json.loads(capsys.readouterr().out)
    unknown = program.main(["policy", "other", "--runtime-dir", str(folder), "--config", absent])

    assert (code, told["job_id"], told["policy_version"]) == (0, job_id(ME, "train", 3), 3)
    assert unknown == 2
    assert "no job 'other' of yours has ranks on this node" in capsys.readouterr().err
