"""A policy by one argument, in Lightning's Trainer, Hugging Face's and a loop of accelerate: two real ranks on gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_ranks import run_ranks

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("trainer_policy_child.py")
POLICIES = ["local_sgd(h=4)", "accumulate(k=2)"]
STEPS = 10


def run(folder: Path, trainer: str) -> list[dict[str, Any]]:
    """By policy, what each rank found."""
    arguments = ["--folder", str(folder), "--trainer", trainer, "--policies", *POLICIES]
    results = run_ranks(CHILD, arguments, TORCHELASTIC_RUN_ID="run", GROUP_RANK="0", LOCAL_WORLD_SIZE="2")
    return [rank[policy] for policy in POLICIES for rank in results]


def test_lightning(tmp_path: Path) -> None:
    """Its optimizer runs backward in a closure. Each step is that of a plain loop; validations and saved weights are the mean."""
    for found in run(tmp_path, "lightning"):
        assert found == {"same": True, "inside": [True] * 3, "off": 0.0, "saved": 1, "steps": STEPS}


def test_transformers(tmp_path: Path) -> None:
    """Evaluations and checkpoints have the mean, and so has the model in the end."""
    for number, found in enumerate(run(tmp_path, "transformers")):
        assert found.pop("inside") and found.pop("rounds") == (2 if number < 2 else 5)
        assert found == {"closed": True, "saved": True, "steps": STEPS}


def test_accelerate(tmp_path: Path) -> None:
    """`synchronized` takes what `prepare` returned: each step is that of a plain loop."""
    for found in run(tmp_path, "accelerate"):
        assert found == {"same": True, "off": 0.0, "steps": STEPS}
