"""A parameter server with real processes: in each rank, in one process of its own, in two; and the errors when one of them dies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_processes import RankProcess, start
from torch_ranks import TIMEOUT_S, Marks, listening, run_ranks

from timesyncd.client import Kind
from timesyncd.ipc.job_datagram import Mark
from timesyncd.simulation.bed.broker import free_port

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("server_child.py")
SCENES = ("together", "ahead", "followed", "restarted", "compressed")


@dataclass
class Ran:
    """The observations of each rank in each scene, and the marks."""

    results: list[dict[str, Any]]
    marks: Marks

    def marked(self, job: str, rank: int, *kinds: Kind) -> list[Mark]:
        return [mark for mark in self.marks.of[job, rank] if mark.kind in kinds]


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["in the ranks", "one server", "two servers"])
def ran(request: pytest.FixtureRequest) -> Iterator[Ran]:
    scenes = [word for scene in SCENES for word in ("--scene", scene)]
    with listening() as (folder, marks):
        arguments = ["--folder", str(folder), "--servers", str(request.param), *scenes]
        results = run_ranks(CHILD, arguments, world_size=2 + request.param)
        marks.close()
        yield Ran(results[:2], marks)


def reference(steps: int) -> list[list[Fraction]]:
    """SGD with momentum 1/2 and rate 1/8 on the mean gradient of both ranks' squared errors, in exact fractions."""
    inputs = [[Fraction(1), Fraction(2), Fraction(-1)], [Fraction(1, 2), Fraction(-1), Fraction(2)]]
    targets = [2, -1]
    parameters = [Fraction(1), Fraction(-2), Fraction(4), Fraction(1, 2)]
    momentum = [Fraction(0)] * 4
    after = []
    for _ in range(steps):
        gradient = [Fraction(0)] * 4
        for x, target in zip(inputs, targets, strict=True):
            values = [*x, Fraction(1)]
            error = sum((a * b for a, b in zip(values, parameters, strict=True)), Fraction(0)) - target
            gradient = [sum_ + error * value / 2 for sum_, value in zip(gradient, values, strict=True)]
        momentum = [m / 2 + g for m, g in zip(momentum, gradient, strict=True)]
        parameters = [p - m / 8 for p, m in zip(parameters, momentum, strict=True)]
        after.append(parameters)
    return after


def test_no_staleness_is_one_process_with_the_mean_gradient(ran: Ran) -> None:
    """`s=0`, momentum, two types of parameters, from rank 0's parameters on both: three steps to the last bit."""
    first = [Fraction(text) for text in ("37/32", "-3/16", "63/32", "9/32")]  # by hand: errors -17/2 and 12
    expected = reference(3)
    assert expected[0] == first

    for result in ran.results:
        assert [[Fraction(number) for number in step] for step in result["together"]["after"]] == expected


def test_buffers_and_frozen_parameters_stay_local(ran: Ran) -> None:
    """Rank 1 keeps its initial values."""
    assert [result["together"]["own"] for result in ran.results] == [[0.0, 0.0], [1.0, 1.0]]


def test_the_meter_reports_response_times_and_no_staleness(ran: Ran) -> None:
    """Per step one push, one pull and a staleness of 0, with all octets, inside the step that the optimizer's meter marks."""
    for rank in (0, 1):
        steps = {mark.step: mark for mark in ran.marked("together", rank, Kind.STEP)}
        assert list(steps) == [0, 1, 2]
        marked = ran.marked("together", rank, Kind.PUSH, Kind.PULL, Kind.STALENESS)
        for step, marks in groupby(marked, key=lambda mark: mark.step):
            push, pull, stale = marks
            assert (push.kind, pull.kind, stale.kind) == (Kind.PUSH, Kind.PULL, Kind.STALENESS)
            assert (push.bytes, pull.bytes, stale.bytes) == (3 * 8 + 4, 3 * 8 + 4, 0)
            assert steps[step].arrival_ns <= push.arrival_ns < push.end_ns <= pull.end_ns <= steps[step].end_ns


def test_a_fast_rank_waits_at_the_bound(ran: Ran) -> None:
    """
    `s=2`: rank 0's fourth update is three ahead, so its reply contains rank 1's second (each of those is 50, its own 1/2).
    Rank 0's fifth may come before the reply to rank 1.
    """
    fast, slow = (result["ahead"]["after"] for result in ran.results)

    assert fast == [0.5, 1.0, 51.5, 102.0, 102.5]
    assert slow in ([51.0, 102.0], [51.0, 102.5])


def test_staleness_is_counted_in_updates_of_others(ran: Ran) -> None:
    """Rank 1's first step missed two of rank 0's, rank 0's third one of rank 1's, rank 1's second two of rank 0's."""
    ages = [[mark.bytes for mark in ran.marked("ahead", rank, Kind.STALENESS)] for rank in (0, 1)]

    assert ages == [[0, 0, 1, 0, 0], [2, 2]]


def test_all_end_with_the_same_parameters(ran: Ran) -> None:
    """`close` waits until no rank updates any more: seven updates, all shards."""
    assert [result["ahead"]["final"] for result in ran.results] == [[102.5] * 3] * 2


def test_another_policy_releases_a_waiting_rank(ran: Ran) -> None:
    """Rank 0 changes the policy, at once: rank 1 makes its five updates while rank 0 makes none, and both end with them."""
    assert ran.results[1]["followed"]["after"] == [50.0, 100.0, 150.0, 200.0, 250.0]
    assert [result["followed"]["final"] for result in ran.results] == [[250.0] * 3] * 2


def test_a_restart_continues_to_the_same_bits(ran: Ran) -> None:
    """A checkpoint after three of six steps of Adam, loaded over other parameters; the counts continue too."""
    for result, version in zip(ran.results, (12, None), strict=True):
        assert result["restarted"] == {"same": [True] * 4, "clock": 6, "version": version}


@pytest.mark.parametrize(
    ("compression", "least", "most"),
    [("fp16", 8_000, 8_000), ("int8", 4_004, 4_040), ("topk(ratio=0.1)", 3_200, 3_280), ("topk", 8_000, 16_000)],
)
def test_what_a_compressed_push_omits_is_kept(ran: Ran, compression: str, least: int, most: int) -> None:
    """Of 20 updates of both ranks: what the server received plus the residuals is the total change. Octets of a push: 16,000 uncompressed."""
    compressed = [result["compressed"][compression] for result in ran.results]
    (wanted, kept), (others, other_kept) = ([torch.tensor(side) for side in one["sides"][:2]] for one in compressed)
    arrived = torch.tensor(compressed[0]["sides"][2])

    assert (arrived + kept + other_kept - wanted - others).abs().max() < 1e-4
    assert kept.abs().max() > 0
    assert all(least <= one["sent_bytes"] <= most for one in compressed)
    assert compressed[0]["sides"][2] == compressed[1]["sides"][2]


def test_a_ddp_module_does_not_reduce_meanwhile() -> None:
    """Gradients are the ranks' own (1 and 3) while the server runs, and their mean again afterwards."""
    with listening() as (folder, _):
        results = run_ranks(CHILD, ["--folder", str(folder), "--scene", "reduced"])

    assert [facts["reduced"]["gradients"] for facts in results] == [[1.0, 2.0], [3.0, 2.0]]


def ends(failure: str, servers: int, timeout_s: float = 60.0) -> list[tuple[int, dict[str, str]]]:
    """How each process ended: its status, and its output; a stopped or hanging process is killed."""
    environ = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    with listening() as (folder, _):
        options = ["--folder", folder, "--servers", servers, "--timeout", timeout_s, "--failure", failure]
        processes = [
            start(CHILD, list(map(str, options)), number, environ | {"RANK": str(number)})
            for number in range(2 + servers)
        ]
        try:
            return [
                ended(process, failure == "stopped_rank" and number == 1) for number, process in enumerate(processes)
            ]
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def ended(process: RankProcess, stands_still: bool) -> tuple[int, dict[str, str]]:
    if stands_still:
        return 0, {}
    output, complained = process.communicate(timeout=TIMEOUT_S)
    lines = output.strip().splitlines()
    status = process.wait()
    assert lines or status <= 0, complained[-3000:]
    return status, json.loads(lines[-1]) if lines else {}


KILLED = -9


def sync_error(message: str) -> tuple[int, dict[str, str]]:
    return 0, {"error": "SyncError", "message": message}


@pytest.mark.parametrize("failure", ["killed_rank", "killed_alone"])
def test_a_killed_rank_is_named_to_the_others(failure: str) -> None:
    """To those that wait for it, and to those that do not: ranks and server end."""
    gone = sync_error("rank 1 has ended")

    assert ends(failure, servers=1) == [gone, (KILLED, {}), gone]


def test_a_killed_rank_s_shard_ends_with_it() -> None:
    """Where the ranks serve the shards, the connection to that one breaks."""
    (status, first), second = ends("killed_rank", servers=0)

    assert second == (KILLED, {})
    assert (status, first["error"]) == (0, "SyncError")
    assert first["message"].startswith("rank 1 has ended")


def test_a_stopped_rank_is_named() -> None:
    """Its connections stay open: it is silent for the time-out."""
    first, _, server = ends("stopped_rank", servers=1, timeout_s=5)

    assert first == server == sync_error("rank 1 has ended")


def test_the_others_get_the_error_of_a_rank_that_raises() -> None:
    """Its own error is unchanged."""
    expected = sync_error("rank 1 ended: ValueError: no more data")
    own = 0, {"error": "ValueError", "message": "no more data"}

    assert ends("failed_rank", servers=1) == [expected, own, expected]


def test_a_script_that_ends_without_closing_is_detected() -> None:
    """It ends as it would without a server, with status 0, and the others do not wait for it."""
    (status, first), second = ends("left_rank", servers=0)

    assert second == (0, {})
    assert (status, first["error"]) == (0, "SyncError")
    assert first["message"].startswith("rank 1 has ended")


def test_a_killed_server_is_named_to_all() -> None:
    """One of two: the ranks name it, and the other server ends too."""
    *others, killed = ends("killed_server", servers=2)

    assert killed == (KILLED, {})
    for status, facts in others:
        assert (status, facts["error"]) == (0, "SyncError")
        assert facts["message"].startswith("parameter server 1 has ended")


def test_a_server_that_never_starts_is_named() -> None:
    """After the time-out, instead of torch's half an hour."""
    first, *others, _ = ends("absent", servers=1, timeout_s=20)

    assert first == sync_error("parameter server 0 did not join the job within 20 s")
    assert all(facts["error"] == "SyncError" for _, facts in others)


def test_a_rank_of_another_job_is_rejected() -> None:
    """All get an error that describes both."""
    for status, facts in ends("another_job", servers=1):
        assert (status, facts["error"]) == (0, "SyncError")
        assert "job 'job of rank 0'" in facts["message"] and "job 'job of rank 1'" in facts["message"]
