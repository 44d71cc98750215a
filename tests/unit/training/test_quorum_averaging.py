"""What averagings of ranks that may be lost refuse: nothing of a policy is left out in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from timesyncd.client import Job
from timesyncd.training import QuorumAveraging


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("local_sgd(h=4, delay=2)", "cannot have a delay: "),
        ("local_sgd(h=4, across=8)", "cannot have near ranks: "),
        ("diloco(h=4) + fp16", "cannot have a compression: "),
        ("local_sgd(h=4, delay=2) + int8", "cannot have a delay: .*; a compression: "),
        ("streaming_diloco(h=8, fragments=2)", "cannot have fragments: "),
        (
            "streaming_diloco(h=8, fragments=2, delay=1) + e3m0",
            "cannot have fragments: .*; a delay: .*; a compression: ",
        ),
        ("des_loc(kx=4)", "cannot have another policy$"),
        ("selsync(quantile=0.9)", "cannot have another policy$"),
    ],
)
def test_what_it_cannot_do_is_refused(policy: str, refused: str, tmp_path: Path) -> None:
    """Before the store is used, with each of the reasons and what is allowed."""
    module = nn.Linear(1, 1)
    job = Job("job", rank=0, world_size=1, runtime_dir=tmp_path)
    with pytest.raises(ValueError, match=rf"^policy .*: ranks that may be lost average by .*, and {refused}"):
        QuorumAveraging(job, module, torch.optim.SGD(module.parameters()), policy, HashStore())
    job.close()
