"""`timesyncd run-audit` on unmodified torch scripts with real gloo DDP and a known straggler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from timesyncd.cli.schemas import documents
from timesyncd.simulation.bed.broker import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCRIPT = str(Path(__file__).with_name("audited_train.py"))
MESH = str(Path(__file__).with_name("audited_mesh.py"))
UNEVEN_SYNCS = str(Path(__file__).with_name("audited_uneven_syncs.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT]

#: Of two ranks on a busy machine 60 steps do not tell 5 ms from what changes slowly by itself.
LONG = ["--steps", "200"]


@dataclass
class Ran:
    status: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def stragglers(self) -> list[dict[str, Any]]:
        return list(self.report["stragglers"])

    def straggler(self, rank: int) -> dict[str, Any]:
        """The entry of this rank; load of this machine may make another rank late, too."""
        (found,) = (each for each in self.stragglers if each["rank"] == rank)
        return found


def audited(folder: Path, *command: str, **environ: str) -> Ran:
    """Runs the command under run-audit; returns its output and its report."""
    whole = [sys.executable, "-m", "timesyncd", "run-audit", "--out", str(folder), "--", *command]
    process = subprocess.Popen(
        whole,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
    )
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    report = folder / "report.json"
    return Ran(process.returncode, out, err, json.loads(report.read_text()) if report.exists() else {})


def until(holds: Callable[[Ran], bool], run: Callable[[str], Ran], status: int = 0) -> Ran:
    """The first of three runs for which the condition holds: load of this machine can hide 5 ms."""
    for attempt in ("first", "second", "third"):
        ran = run(attempt)
        if ran.status != status or holds(ran):
            break
    return ran


def test_a_hidden_straggler_is_named_with_its_place(tmp_path: Path) -> None:
    """Rank 1 is 5 ms late behind a slow bucket: it costs nothing, and is still named with its place."""

    def is_hidden(ran: Ran) -> bool:
        """A sum over the run: one pause of rank 1 makes it as long."""
        limits_ns = {each["rank"]: each["lateness_p50_ns"] * ran.report["steps"] / 2 for each in ran.stragglers}
        return any(each["rank"] == 1 and each["exposed_ns"] < limits_ns[1] for each in ran.stragglers)

    ran = until(is_hidden, lambda attempt: audited(tmp_path / attempt, *TORCHRUN, *LONG, "--slow", "1", "--hide"))

    one = ran.straggler(1)
    assert (ran.status, one["verdict"]) == (0, "straggler")
    assert re.fullmatch("bucket [1-9]", one["where"])
    assert 3_000_000 < one["lateness_p50_ns"] < 30_000_000
    assert is_hidden(ran)
    assert (ran.report["method"], ran.report["world_size"]) == ("one_clock", 2)
    network = ran.report["network"]
    links = sorted((one["rank"], one["peer"], one["interface"]) for one in network["links"])
    assert links == [(0, 1, None), (1, 0, None)]
    assert network["packing_ns"] > 0
    assert ran.report["steps"] >= 199
    assert ran.report["marks_lost"] == 0
    assert "rank 1" in ran.err.lower()
    validator = Draft202012Validator(json.loads(documents()["audit_report.json"]))
    assert [error.message for error in validator.iter_errors(ran.report)] == []


def test_an_exposed_straggler_costs_and_the_status_is_the_script_s(tmp_path: Path) -> None:
    """In processes that multiprocessing forks, the other rank waits 5 ms, and the exit status is the script's 7."""
    command = [sys.executable, SCRIPT, *LONG, "--spawn", "2", "--slow", "0", "--status", "7"]

    def costs(ran: Ran) -> bool:
        """And it is rank 0 that is waited for most."""
        waits = Counter[int | None]()
        for source in ran.report["sources"]:
            waits[source["rank"]] += source["exposed_ns"] if source["cause"] == "wait" else 0
        gains = {remedy["name"]: remedy["gain"] or 0 for remedy in ran.report["remedies"]}
        named = {each["rank"]: each["exposed_ns"] for each in ran.stragglers}
        is_exposed = named.get(0, 0) > 2_500_000 * ran.report["steps"]
        return is_exposed and max(waits, key=lambda rank: waits[rank]) == 0 and gains["no_straggler"] > 0.1

    ran = until(costs, lambda attempt: audited(tmp_path / attempt, *command, "--port", str(free_port())), status=7)

    assert (ran.status, ran.straggler(0)["verdict"]) == (7, "straggler")
    assert costs(ran)


def test_equal_ranks_give_no_straggler_and_unchanged_output(tmp_path: Path) -> None:
    """Without a delay there is no straggler, and the output is that of the script alone."""
    odd = [*TORCHRUN, "--steps", "150", "--odd", str(tmp_path / "saved")]
    alone = subprocess.run(
        odd, capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    # Whom the load of this machine makes late, throughout or from some step on, is rightly named: of three runs one has to be without.
    for attempt in range(3):
        ran = audited(tmp_path / f"out-{attempt}", *odd)
        if ran.status or "no rank is persistently late" in ran.report["headline"]:
            break

    assert (alone.returncode, ran.status) == (0, 0), ran.err
    assert ran.out == alone.stdout
    assert ran.stragglers == []
    assert "no rank is persistently late" in ran.report["headline"]
    assert 0 < ran.report["sync_overhead"] < 1
    assert 0 < ran.report["own_overhead"] < 0.5


def test_a_single_process_has_nothing_to_compare(tmp_path: Path) -> None:
    """A single process gets a report of its own times."""
    ran = audited(tmp_path, sys.executable, SCRIPT, "--spawn", "1", "--port", str(free_port()), "--steps", "30")

    assert (ran.status, ran.report["world_size"], ran.stragglers) == (0, 1, [])
    assert "nothing to compare" in ran.report["headline"]


@pytest.mark.parametrize(
    ("variant", "slow", "where"),
    [
        ("buffers", 1, "broadcast 0"),
        ("buffers", 0, "broadcast 0"),
        ("join", 1, "broadcast 0"),
        ("zero", 1, "bucket 0"),
        ("sharded", 1, "all_gather 0"),
    ],
)
def test_only_the_slow_rank_is_named_where_ranks_leave_at_different_times(
    tmp_path: Path, variant: str, slow: int, where: str
) -> None:
    """
    A broadcast holds up some ranks only, which then come late to the next synchronization: they waited, and are not named. That is
    DDP's of its buffers, also in a join, and ZeRO's of the parameters.
    """
    command = [*TORCHRUN[:-2], "--nproc-per-node=3", UNEVEN_SYNCS]

    def is_right(ran: Ran) -> bool:
        return [each["rank"] for each in ran.stragglers] == [slow]

    ran = until(is_right, lambda attempt: audited(tmp_path / attempt, *command, VARIANT=variant, SLOW=str(slow)))

    found = ran.straggler(slow)
    assert is_right(ran), ran.stragglers
    assert (ran.status, found["verdict"], found["where"]) == (0, "straggler", where)
    assert 30_000_000 < found["lateness_p50_ns"] < 60_000_000
    assert ran.report["marks_lost"] == 0


@pytest.mark.parametrize(
    ("variant", "ranks", "unmetered", "dimensions"),
    [
        ("imported", 2, set(), set()),
        ("unused", 2, set(), set()),
        ("functional", 2, set(), {None}),
        ("hsdp", 4, set(), {"shard", "replicate"}),
        ("ddp_mesh", 4, set(), {"dp"}),
        ("1f1b", 8, set(), {"dp", "tp"}),
    ],
)
def test_every_call_has_a_mark_or_is_counted(
    tmp_path: Path,
    variant: str,
    ranks: int,
    unmetered: set[tuple[str, str | None]],
    dimensions: set[str | None],
) -> None:
    """
    As torch's profiler counts them, by imported names, in meshes and between stages. Of calls without a mark the report gives the names; then
    the overhead is null and no rank is accused. With marks it has each group with its dimension, and the messages between stages.
    """
    command = [*TORCHRUN[:-2], f"--nproc-per-node={ranks}", MESH]
    ran = audited(tmp_path / "out", *command, VARIANT=variant, COUNTS=str(tmp_path))

    assert ran.status == 0, ran.err
    issued = sum(sum(json.loads((tmp_path / f"{rank}.json").read_text()).values()) for rank in range(ranks))
    assert issued > 0
    assert ran.report["metered_calls"] + sum(each["calls"] for each in ran.report["unmetered"]) == issued
    assert {(each["name"], each["dimension"]) for each in ran.report["unmetered"]} == unmetered
    assert {each["dimension"] for each in ran.report["groups"]} == dimensions
    if unmetered:
        assert (ran.report["sync_overhead"], ran.report["stragglers"]) == (None, [])
        assert "not metered" in ran.report["headline"]
        assert "not comparable" not in ran.err
    else:
        assert 0 < ran.report["sync_overhead"] < 1
    if variant == "1f1b":
        found = {(each["sender"], each["receiver"]) for each in ran.report["messages"]}
        assert found == {pair for low in (0, 1, 4, 5) for pair in ((low, low + 2), (low + 2, low))}
        assert all(each["delay_min_ns"] is None or each["delay_min_ns"] > 0 for each in ran.report["messages"])
