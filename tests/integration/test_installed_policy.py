"""A policy and a compression of another distribution: installed, found by their names, and trained with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_policy"

#: One rank that trains: which steps synchronize, and what was sent.
SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from timesyncd.client import Job
from timesyncd.training import synchronized
from timesyncd.training.policy import parse_policy

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
torch.manual_seed(1)
ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
print(parse_policy("geometric( factor=3 , h=2 ) + scaled_fp16"))
with synchronized(Job("job", rank=0, world_size=1, runtime_dir=sys.argv[1]), ddp, optimizer, "geometric(h=1) + scaled_fp16") as sync:
    for step in range(10):
        rounds = sync.report().rounds
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if sync.report().rounds > rounds:
            print("synchronized in step", step)
    print("sent", sync.report().sent_bytes)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a user installs it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "example")
    install = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", *install, str(source)], check=True)
    return folder


def printed(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", *words], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_job_selects_them_by_name(target: Path, tmp_path: Path) -> None:
    """Intervals of 1, 2 and 4 steps end in steps 0, 2 and 6; each averaging sends 6 halves and a scale."""
    done = printed(target, SCRIPT, str(tmp_path))

    assert done.returncode == 0, done.stderr
    steps = [f"synchronized in step {step}" for step in (0, 2, 6)]
    assert done.stdout.splitlines() == ["geometric(h=2, factor=3.0) + scaled_fp16", *steps, f"sent {3 * (6 * 2 + 4)}"]


def test_an_unknown_name_lists_them(target: Path) -> None:
    """Beside timesyncd's own; and a wrong parameter is named with the others of the policy."""
    parse = "from timesyncd.training.policy import parse_policy; parse_policy({!r})"
    unknown, wrong = (printed(target, parse.format(text)).stderr for text in ("geometrik", "geometric(h=0)"))

    assert "'geometrik' is unknown; allowed: auto, bsp, " in unknown and ", geometric\n" in unknown
    assert "geometric(h, factor, most): h is 0 and factor is 2.0; both must be at least 1" in wrong


def test_the_daemon_accepts_the_text(target: Path) -> None:
    """Where it is installed beside the daemon, the command line and the configuration know it too."""
    done = printed(target, "from timesyncd.config.sections import parse_policy; print(parse_policy('geometric(h=4)'))")
    assert done.stdout == "geometric(h=4)\n"
