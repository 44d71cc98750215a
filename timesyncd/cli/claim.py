"""Measure the vendors' claims for synchronized time on a reproducible job: audit, plan, apply, audit again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli import advise
from timesyncd.cli._common import count_of
from timesyncd.errors import TimesyncdError

if TYPE_CHECKING:
    from timesyncd.audit.bootstrap import StepSample
    from timesyncd.audit.claim import ClaimReport
    from timesyncd.training.claim_plan import Variant

EXAMPLES = ("timesyncd claim", "timesyncd claim --rounds 20 --json")

#: Steps of a block: the first is left out of all figures.
_STEPS = 40

_CONFIG = """\
[node]
name = "claim"
runtime_dir = "{folder}"
[web]
port = 0
[hub]
"""

#: How long a rank may take for a block, processes and the daemon included.
_BLOCK_TIMEOUT_S = 60


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--rounds",
        type=count_of,
        default=8,
        metavar="N",
        help="how often each variant takes its turn (default: %(default)s); more make the intervals narrower",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: Namespace) -> int:
    """0: measured; 2: torch is not installed. Raises TimesyncdError where the job fails."""
    from timesyncd.audit.claim import lines

    if find_spec("torch") is None:
        print("timesyncd claim: torch is missing: pip install torch", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ts-") as name:
        found = _claim(Path(name), args.rounds)
    print(found.model_dump_json(indent=2) if args.json else "\n".join(lines(found)))
    return 0


def _claim(folder: Path, rounds: int) -> ClaimReport:
    from timesyncd.audit.build import advice_for
    from timesyncd.audit.claim import ClaimReport, changes, figures
    from timesyncd.audit.measured import measured
    from timesyncd.jobs.recording_files import load
    from timesyncd.training.claim_plan import AUDIT, OUTCOME, RANKS, blocks

    with _daemon(folder) as runtime_dir:
        _train(folder, rounds, runtime_dir)
    outcome = json.loads((folder / OUTCOME).read_text())
    samples: dict[Variant, list[StepSample]] = {}
    for block in blocks(rounds, _STEPS, with_clocks=not outcome["clocks_reason"]):
        samples.setdefault(block.variant, []).extend(measured(load(folder / block.name)).samples)
    return ClaimReport(
        ranks=RANKS,
        shares=outcome["shares"],
        plan=advise.lines(advice_for(measured(load(folder / AUDIT.name)))),
        clocks_reason=outcome["clocks_reason"],
        figures=figures(samples),
        changes=changes(samples),
    )


@contextmanager
def _daemon(folder: Path) -> Iterator[Path]:
    """A daemon of its own, so that all ranks know that they read one clock."""
    runtime_dir = folder / "run"
    runtime_dir.mkdir()
    config = folder / "timesyncd.toml"
    config.write_text(_CONFIG.format(folder=runtime_dir))
    command = [sys.executable, "-m", "timesyncd", "run", "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield runtime_dir
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _train(folder: Path, rounds: int, runtime_dir: Path) -> None:
    """Raises TimesyncdError with the end of what the ranks wrote."""
    from timesyncd.training.claim_plan import RANKS, Variant

    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = ["-m", "timesyncd.training.torch.claim_job", str(folder), "--daemon", str(runtime_dir)]
    size = ["--rounds", str(rounds), "--steps", str(_STEPS)]
    limit_s = _BLOCK_TIMEOUT_S * (2 + rounds * len(Variant))
    done = subprocess.run(
        [sys.executable, *launch, *job, *size], capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise TimesyncdError(f"the job of the claim ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
