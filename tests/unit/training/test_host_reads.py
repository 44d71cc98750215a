"""How often a policy makes the host wait for the device: at most once a step, and never in a bucket's hook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from timesyncd.client import Job
from timesyncd.client.torch.ddp import stamping_hook
from timesyncd.training import synchronized
from timesyncd.training.compression import compressors
from timesyncd.training.compression.interface import replace_if

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 120
POLICIES = ["bsp", "local_sgd(h=4)", "local_sgd(h=8, delay=4)", "selsync(quantile=0.5)", "accumulate(k=4)"]
COMPRESSED = [
    "bsp + topk",
    "local_sgd(h=4) + topk",
    "bsp + topk(ratio=0.1)",
    "bsp + int8",
    "bsp + powersgd(rank=2)",
    "local_sgd(h=4) + int8",
]

#: Operations whose result the host needs, and the methods of a tensor that need one.
READING_OPERATIONS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}
READING_METHODS = ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "nonzero", "cpu", "numpy")


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the reads of each step, and those in a bucket's hook."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of_step = [0]
        self.in_hooks = 0
        self._inside = False

    def count(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int64:
            return  # rows are in the host's memory whatever trains
        self.of_step[-1] += 1
        frame = sys._getframe(2)
        while frame is not None and frame.f_code not in (
            stamping_hook.__code__,
            compressors.Gathered._compressed.__code__,
        ):
            frame = frame.f_back  # type: ignore[assignment]
        self.in_hooks += frame is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in READING_OPERATIONS and not self._inside:
            self.count(args[0])
        return func(*args, **(kwargs or {}))

    def counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In any thread, unlike the operations."""

        def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            was_inside, self._inside = self._inside, True
            try:
                if not was_inside:
                    self.count(tensor)
                return original(tensor, *args, **kwargs)
            finally:
                self._inside = was_inside

        return called


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    backend = "nccl" if DEVICE == "cuda" else "gloo"  # gloo's own threads wait for a device
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@contextmanager
def no_waits() -> Iterator[None]:
    """Where there is a card, an operation that makes the host wait is an error."""
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def trained(policy: str, folder: Path, patch: pytest.MonkeyPatch) -> Reads:
    """The reads of all steps, from the first one on."""
    reads = Reads()
    torch.manual_seed(0)
    patch.setattr(compressors, "on_host", lambda tensor: False)  # what a device does
    ddp = DistributedDataParallel(nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)]).to(DEVICE), bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with synchronized(Job("job", rank=0, world_size=1, runtime_dir=folder), ddp, optimizer, policy) as sync, reads:
        for name in READING_METHODS:
            patch.setattr(torch.Tensor, name, reads.counted(getattr(torch.Tensor, name)))
        for _ in range(STEPS):
            reads.of_step.append(0)
            loss = ddp(torch.randn(4, 16, device=DEVICE)).square().mean()
            optimizer.zero_grad()
            with no_waits():
                loss.backward()
            sync.record_loss(loss)
            optimizer.step()
        patch.undo()
    return reads


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("policy", [*POLICIES, *COMPRESSED, "auto"])
def test_the_host_reads_the_device_once_a_step_at_most(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row needs is read together; a bucket's hook leaves its conditions on the device."""
    reads = trained(policy, tmp_path, monkeypatch)

    assert max(reads.of_step) <= 1
    assert reads.in_hooks == 0
    assert "selsync" in policy or sum(reads.of_step) <= STEPS / 4


@pytest.mark.usefixtures("alone")
def test_a_read_would_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressor that asks in each hook whether its bucket is finite fails the test above."""
    asked = replace_if
    monkeypatch.setattr(compressors, "replace_if", lambda valid, *rest: asked(valid, *rest) if bool(valid) else None)
    reads = trained("bsp + powersgd(rank=2)", tmp_path, monkeypatch)

    assert max(reads.of_step) > 1
    assert reads.in_hooks > 0
