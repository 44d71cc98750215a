"""The training scripts of tests/scripts: how each is run with and without run-audit, and the judgement of what came out."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parents[1] / "scripts" / "jobs"
LATE_MS = 30

#: A job of a few seconds; a machine that is busy needs longer.
TIMEOUT_S = 240


@dataclass(frozen=True)
class Case:
    """
    A script and how it ends. `places`: by the place at which a rank is late on purpose, the place that the report has to
    state, as a regular expression; empty: its ranks do not compare, so no rank may be named.
    """

    name: str
    script: str
    ranks: int = 2
    environ: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=lambda: {"data": "before bucket 0"})
    status: int = 0
    launcher: str = "fork"


CASES = (
    Case("nanoGPT, its own flag", "nanogpt", places={"data": "(before|at) bucket [01]", "backward": "at bucket [1-9]", "update": "in the update before bucket 0"}),
    Case("accumulation by no_sync", "no_sync", places={"data": "before bucket 0", "backward": "at bucket [1-9]"}),
    Case("ImageNet example, BatchNorm", "imagenet", places={"data": "before broadcast 0"}),
    Case("DataLoader with a worker", "workers"),
    Case("Hugging Face Trainer", "hf_trainer", launcher="torchrun"),
    Case("Lightning", "lightning_fit", launcher="torchrun"),
    Case("accelerate", "accelerate_loop", launcher="torchrun"),
    Case("FSDP2, 40 steps", "fsdp2", places={"data": "before all_gather 0", "backward": "at (all_gather|reduce_scatter) [0-9]+"}),
    Case("FSDP2, accumulation", "fsdp2_accumulate", places={"data": "before all_gather 0 of all ranks"}),
    Case("HSDP 2 x 2", "hsdp", 4, places={"data": "before all_gather 0 of the shard groups of 2 ranks"}),
    Case("DP x TP 2 x 2", "dp_tp", 4, places={"data": "before all_gather 0 of the dp groups of 2 ranks"}),
    Case("DP x PP 2 x 2, GPipe", "mesh_pipeline", 4, {"SCHEDULE": "GPipe"}, {"data": "before (all_gather|receive) 0 of the .*"}),
    Case("DP x PP x TP 2 x 2 x 2, 1F1B", "mesh_pipeline", 8, {"MESH": "2x2x2"}, {"data": "before (all_gather|receive) 0 of the .*"}),
    Case("GPipe", "pipeline", environ={"SCHEDULE": "GPipe"}, places={}),
    Case("1F1B", "pipeline", places={}),
    Case("mixture of experts", "moe", places={"data": "(before|at) (all_to_all|bucket) 0"}),
    Case("ZeRO-1", "zero1"),
    Case("GAN", "gan", places={"data": "before bucket 0", "generator": "at bucket 1"}),
    Case("GAN, five critic updates", "gan", environ={"CRITIC": "5"}),
    Case("uneven inputs, join", "uneven", places={"data": "before (broadcast|bucket) 0"}),
    Case("crash of rank 1", "failing", environ={"ENDS": "crash"}, status=1, launcher="torchrun"),
    Case("SIGTERM", "failing", environ={"ENDS": "sigterm"}, status=143),
    Case("elastic restart", "failing", environ={"ENDS": "restart"}, launcher="elastic"),
    Case("gradients reduced by hand", "by_hand", places={"data": "before all_reduce 0"}),
    Case("contrastive, gathered features", "by_hand", environ={"CONTRASTIVE": "1"}, places={"data": "before all_gather 0"}),
    Case("fp16 hook", "hooked", environ={"HOOK": "fp16"}),
    Case("PowerSGD hook", "hooked", environ={"HOOK": "powersgd"}),
    Case("post-local SGD", "hooked", environ={"HOOK": "post_local_sgd"}, places={}),
    Case("evaluation, EMA, checkpoints", "checkpointing"),
    Case("two optimizers of one module", "two_optimizers", places={"data": "before bucket 0", "update": "in the update before bucket 0"}),
    Case("compiled, autocast, checkpoints", "compiled"),
    Case("multiprocessing.spawn", "spawned", launcher="alone"),
    Case("student and teacher", "teacher"),
    Case("actor and learner", "actor_learner", places={}),
    Case("whole module saved and loaded", "resumed"),
    Case("a step that fails, another optimizer", "out_of_memory"),
    Case("group made again with a rank more", "regroup", 3),
    Case("LBFGS, several passes a step", "lbfgs", places={"data": "before bucket 0"}),
    Case("updates without an optimizer", "updates_by_hand", places={}),
    Case("sharded by hand, objects, early stop", "sharded_by_hand", places={"data": "(before|at) reduce_scatter 0"}),
)  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a script did: its exit status, the hashes of its weights, and the report of run-audit."""

    status: int
    bits: tuple[str, ...]
    report: Mapping[str, Any]
    err: str


def run(case: Case, folder: Path, audit: bool, late_rank: int = -1, place: str = "data") -> Ran:
    """Run the script once. `late_rank` is late at that place in each step; -1: no rank."""
    folder.mkdir(parents=True, exist_ok=True)
    command = _command(case)
    if audit:
        command = [sys.executable, "-m", "timesyncd", "run-audit", "--out", str(folder / "audit"), "--", *command]
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(JOBS),
        "LATE_RANK": str(late_rank),
        "LATE_MS": str(LATE_MS),
        "LATE_PLACE": place,
        "SCRIPT_FOLDER": str(folder),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if case.launcher == "elastic":
        # torch 2.13 gives a restarted attempt the store of the failed one, with the addresses of ranks that are gone, and
        # gloo waits for these until its time-out: with and without run-audit.
        environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    status, printed, err = _ended(command, environ | dict(case.environ))
    report = folder / "audit" / "report.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    return Ran(status, tuple(sorted(re.findall("^bits of .*", printed, re.MULTILINE))), found, err)


def _ended(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Its status and what it printed. Raises TimeoutExpired; nothing that it started is left then."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    )
    try:
        printed, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, printed, err


def run_alone(case: Case, folder: Path) -> tuple[Ran, int]:
    """
    The script without run-audit, and how often it did not end before it did; at most twice, then raises TimeoutExpired.

    torch 2.13 can stop for ever where a process group goes away before its last gradient is dropped: the main thread
    joins gloo's threads and holds Python's lock, for which such a thread waits to drop a Python object of the call.
    """
    for attempt in range(2):
        try:
            return run(case, folder / f"alone-{attempt}", audit=False), attempt
        except subprocess.TimeoutExpired:
            shutil.rmtree(folder / f"alone-{attempt}", ignore_errors=True)
    return run(case, folder / "alone", audit=False), 2


def _command(case: Case) -> list[str]:
    script = str(JOBS / f"{case.script}.py")
    if case.launcher == "alone":
        return [sys.executable, script]
    if case.launcher == "fork":
        return [sys.executable, str(JOBS / "launch.py"), str(case.ranks), script]
    restarts = ["--max-restarts=1"] if case.launcher == "elastic" else []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *restarts]
    return [*torchrun, f"--nproc-per-node={case.ranks}", script]


def difference(alone: Ran, audited: Ran) -> str:
    """What run-audit changed of the script; empty: nothing."""
    if alone.status != audited.status:
        return f"exit status {alone.status} alone, {audited.status} under run-audit"
    if alone.bits != audited.bits:
        return f"weights {alone.bits} alone, {audited.bits} under run-audit"
    return ""


def named(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The stragglers of which the report is sure."""
    return [each for each in report.get("stragglers", ()) if each["verdict"] == "straggler"]


def judgement(case: Case, report: Mapping[str, Any], late_rank: int, place: str) -> str:
    """`right`, `not named`, or what is wrong with what the report states of the rank that was late on purpose."""
    found = named(report)
    others = [each["rank"] for each in found if each["rank"] != late_rank]
    if others:
        return f"WRONG: names rank {others[0]} ({report['headline']})"
    if not found:
        return "not named" if case.places else "right: no rank named, as its ranks do not compare"
    late_ms = found[0]["lateness_p50_ns"] / 1e6
    expected = case.places.get(place)
    if expected is not None and not re.fullmatch(expected, found[0]["place"]):
        return f"WRONG place: {found[0]['place']!r}"
    if expected is not None and not LATE_MS * 0.8 <= late_ms <= LATE_MS * 1.5:
        return f"WRONG lateness: {late_ms:.1f} ms"
    return "right"
