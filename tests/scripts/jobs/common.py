"""What the scripts share: a rank that is late on purpose, and the bits of the trained weights."""

import hashlib
import os
import time
from collections.abc import Iterable

import torch

STEPS = int(os.environ.get("SCRIPT_STEPS", "70"))
LATE_RANK = int(os.environ.get("LATE_RANK", "-1"))
LATE_S = float(os.environ.get("LATE_MS", "30")) / 1e3
LATE_PLACE = os.environ.get("LATE_PLACE", "data")

torch.set_num_threads(1)


def late(place: str, rank: int) -> None:
    """The rank that is late on purpose sleeps, if it is late at this place."""
    if rank == LATE_RANK and place == LATE_PLACE:
        time.sleep(LATE_S)


class LateBackward(torch.autograd.Function):
    """Passes on; its backward is the place `backward`."""

    @staticmethod
    def forward(ctx, x, rank):  # type: ignore[no-untyped-def]
        ctx.rank = rank
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        late("backward", ctx.rank)
        return gradient, None


def print_bits(rank: int, tensors: Iterable[torch.Tensor]) -> None:
    """One line with a hash of the tensors, as one write, so that ranks do not mix."""
    digest = hashlib.sha256()
    for tensor in tensors:
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(full.detach().cpu().contiguous().numpy().tobytes())
    os.write(1, f"bits of rank {rank}: {digest.hexdigest()[:16]}\n".encode())
