"""Three of the training scripts of tests/scripts, of which `make job-soak` tries all: run-audit changes no bit and names the late rank's place."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from script_cases import CASES, Ran, difference, judgement, run

from timesyncd.ipc.job_datagram import SOCKET_NAME, decode
from timesyncd.jobs.joining import STEP_CLOSED_AFTER_NS, Jobs
from timesyncd.jobs.ranks import node_name
from timesyncd.jobs.state import analyse, job_figures, rank_states
from timesyncd.messages.jobs import MarkBatch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: The scripts of meshes have no DataLoader: their data are where a hub knows no more.
BEFORE_BACKWARD = "data, the forward pass and the rest of the loop"

BY_NAME = {case.name: case for case in CASES}


def audited(name: str, place: str, folder: Path) -> tuple[Ran, str]:
    """The script with rank 1 late at that place, and the judgement; of three runs, as load of this machine can make rank 0 late too."""
    case = BY_NAME[name]
    for attempt in ("first", "second", "third"):
        ran = run(case, folder / attempt, True, late_rank=1, place=place)
        found = judgement(case, ran.report, 1, place)
        if found == "right" or ran.status != case.status:
            break
    return ran, found


def test_a_gan_s_late_module_is_named_and_no_bit_changes(tmp_path: Path) -> None:
    """Rank 1 is 30 ms late in the generator's pass: that is bucket 1 of 70 steps, and weights and status are those of the script alone."""
    late, found = audited("GAN", "generator", tmp_path)
    alone = run(BY_NAME["GAN"], tmp_path / "alone", audit=False)

    assert difference(alone, late) == ""
    assert (alone.status, len(alone.bits)) == (0, 2)
    assert found == "right", late.report["headline"]
    assert late.report["steps"] == 70


@pytest.mark.parametrize(
    ("name", "place"), [("accumulation by no_sync", "backward"), ("two optimizers of one module", "update")]
)
def test_the_late_rank_s_place_is_stated(tmp_path: Path, name: str, place: str) -> None:
    """Rank 1 is 30 ms late in the middle of a backward pass that reduces, or in its first optimizer."""
    late, found = audited(name, place, tmp_path)

    assert (late.status, found) == (0, "right"), late.report["headline"]


class ListeningDaemon:
    """Receives the ranks' datagrams in a thread, as a daemon does, and joins them as a hub does."""

    def __init__(self, folder: Path) -> None:
        self.datagrams: list[bytes] = []
        self._path = str(folder / SOCKET_NAME)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while data := self._socket.recv(1 << 16):
            self.datagrams.append(data)

    def figures(self) -> tuple[dict[str, object], dict[int, int | None]]:
        """At the end, of the newest run of the job; and by rank, its waiting in a step in the median."""
        self._socket.sendto(b"", self._path)  # after all others
        self._thread.join()
        self._socket.close()
        jobs = Jobs(window_steps=100)
        for number, data in enumerate(self.datagrams):
            datagram = decode(data)
            node = node_name(datagram.header.node)
            jobs.accept(
                MarkBatch.of(datagram.header, datagram.marks, node=node, incarnation=1, sequence=number, uid=1, pid=0),
                0,
            )
        while any(job.pending for job in jobs):
            jobs.advance(STEP_CLOSED_AFTER_NS)
        job = max(jobs, key=lambda each: each.batches)
        analysis = analyse(job, {})
        return job_figures(job, analysis), {each.rank: each.exposed_p50_ns for each in rank_states(job, analysis)}


@pytest.mark.parametrize("name", ["HSDP 2 x 2", "DP x PP 2 x 2, GPipe"])
def test_the_late_rank_of_a_mesh_is_named_with_its_group(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """
    Rank 1 of 2 x 2 is 30 ms late before each step: the others wait for it in several groups, and it alone is named, with one of its groups.
    A hub states for how long the others wait in the running job, and names no other rank, at no other place. The parts of a step have the delay, too. Without the late rank the job would take less time, or the report has a reason. Weights and status are those of the script alone.
    """
    monkeypatch.setenv("TIMESYNCD_RUNTIME_DIR", str(folder))
    daemon = ListeningDaemon(folder)
    late, found = audited(name, "data", tmp_path)
    live, waited = daemon.figures()
    alone = run(BY_NAME[name], tmp_path / "alone", audit=False)
    (one,) = late.report["stragglers"]
    (remedy,) = (each for each in late.report["remedies"] if each["name"] == "no_straggler")

    assert difference(alone, late) == ""
    assert (alone.status, len(alone.bits)) == (0, 4)
    assert (remedy["gain"] or 0) > 0 or remedy["reason"]
    assert (late.status, found) == (0, "right"), late.report["headline"]
    assert 1 in one["group"]
    assert len(one["group"]) == 2
    assert one["dimension"] in ("shard", "replicate", "dp", "pp")
    assert one["exposed_ns"] > 0
    assert sum(each["calls"] for each in late.report["unmetered"]) <= 0.01 * late.report["metered_calls"]
    stages = {(each["stage"], each["where"]): each["cost_ns"] for each in late.report["stages"]}
    assert {stage for stage, _ in stages} == {"compute", "synchronize", "update"}
    assert stages["compute", BEFORE_BACKWARD] > 30_000_000 / 4  # the mean of four ranks
    # A hub names none where load makes another rank slow, too.
    assert live["straggler_rank"] in (1, None)
    assert live["step"] is not None
    assert isinstance(live["stragglers"], list)
    assert {each.place for each in live["stragglers"]} <= {f"in {BEFORE_BACKWARD}", None}
    assert all((exposed_ns or 0) > 10_000_000 for rank, exposed_ns in waited.items() if rank != 1)
