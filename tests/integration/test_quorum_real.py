"""Ranks of a real gloo job are killed: the others go on with the mean of those present, and the lost rank comes again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch_processes import RankProcess, start

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("quorum_child.py")
RANKS, H, LR = 3, 2, 0.125
DEADLINE_S = 180
HOSTING = [sys.executable, "-m", "timesyncd.training.torch.quorum_store"]


@dataclass
class Ranks:
    """The job's processes, and what they wrote."""

    folder: Path
    port: int
    policy: str
    processes: dict[int, RankProcess] = field(default_factory=dict)

    def start(self, rank: int, *more: str) -> None:
        arguments = [str(self.folder), str(self.port), str(rank), str(RANKS), self.policy, *more]
        self.processes[rank] = start(CHILD, arguments, rank, os.environ | {"OMP_NUM_THREADS": "1"})

    def lines(self, rank: int | None = None) -> list[dict[str, Any]]:
        """Of a rank's processes, the former ones first; whole lines only."""
        paths = sorted(
            self.folder.glob(f"rank-{'*' if rank is None else rank}-*"), key=lambda path: path.stat().st_ctime
        )
        texts = [text for path in paths for text in path.read_text().splitlines(keepends=True)]
        return [json.loads(text) for text in texts if text.endswith("\n")]

    def newest_members(self, rank: int) -> list[int] | None:
        lines = self.lines(rank)
        return lines[-1]["members"] if lines else None

    def wait_until(self, fact: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            time.sleep(0.05)

    def wait_for(self, members: list[int]) -> None:
        """Until each of these ranks averaged with exactly these, after what is written now."""
        self.wait_until(lambda: all(self.newest_members(rank) == members for rank in members), f"{members} average")

    def end(self) -> None:
        (self.folder / "end").touch()
        for rank, process in self.processes.items():
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, f"rank {rank}: {errors[-3000:]}"


@contextmanager
def job(folder: Path, policy: str) -> Iterator[Ranks]:
    """A store of its own process, so that no rank's loss ends it."""
    with subprocess.Popen(HOSTING, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        ranks = Ranks(folder, int(store.stdout.readline()), policy)
        try:
            yield ranks
        finally:
            for process in ranks.processes.values():
                process.kill()
                process.communicate()
            store.kill()


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_the_store_refuses_what_is_no_port(port: str) -> None:
    """The last line names the argument and the numbers that it takes."""
    done = subprocess.run([*HOSTING, "--", port], check=False, capture_output=True, text=True, timeout=DEADLINE_S)

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"{port!r} is no port: give a number from 0 to 65535")


def test_the_store_names_a_port_that_another_process_has() -> None:
    """One line, and no traceback of torch."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run([*HOSTING, str(port)], check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[")]  # torch's own log

    assert done.returncode == 1
    assert len(lines) == 1
    assert f"cannot listen on port {port}: " in lines[0]


def expected(lines: list[dict[str, Any]], outer: tuple[float, float]) -> Iterator[float]:
    """
    The common parameter after each averaging, by the ranks that were in it and in the one before. It begins as that of
    the lowest rank in the first averaging: rank 0 itself may be lost there.
    """
    lr, momentum = outer
    value, velocity, before = float(lines[0]["members"][0]), 0.0, set[int]()
    for line in lines:
        present = before & set(line["members"])
        if before:
            difference = -LR * H * sum(rank + 1 for rank in present) / len(present)
            velocity = momentum * velocity + difference
            value += lr * (difference + momentum * velocity)
        before = set(line["members"])
        yield value


def check(ranks: Ranks, outer: tuple[float, float]) -> None:
    """All ranks have one value after each averaging, and it is the mean of those present."""
    by_round: dict[int, dict[str, Any]] = {}
    for line in ranks.lines():
        assert by_round.setdefault(line["rounds"], line) == line
    lines = [by_round[number] for number in sorted(by_round)]
    assert [line["rounds"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["step"] for line in lines] == [H * number for number in range(len(lines))]
    for line, value in zip(lines, expected(lines, outer), strict=True):
        assert line["value"] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("policy", "outer", "lost", "inside"),
    [
        ("local_sgd(h=2)", (1.0, 0.0), 1, 4),
        ("diloco(h=2)", (0.7, 0.9), 0, None),
        ("diloco(h=2)", (0.7, 0.9), 0, 0),
    ],
)
def test_a_lost_rank_does_not_end_the_job(
    tmp_path: Path, policy: str, outer: tuple[float, float], lost: int, inside: int | None
) -> None:
    """
    kill -9 between two averagings, or in the one after `inside` others: the others go on, and the rank comes again with
    their parameters.
    """
    others = [rank for rank in range(RANKS) if rank != lost]
    with job(tmp_path, policy) as ranks:
        for rank in range(RANKS):
            ranks.start(rank, *([] if inside is None or rank != lost else ["--fail-inside", str(inside)]))
        if inside is not None:
            assert ranks.processes[lost].wait(timeout=DEADLINE_S) < 0
        else:
            ranks.wait_for([0, 1, 2])
            ranks.processes[lost].kill()
        ranks.processes[lost].communicate()
        ranks.wait_for(others)
        ranks.start(lost)
        ranks.wait_for([0, 1, 2])
        ranks.end()
        check(ranks, outer)
