"""The losses of a former run, which a running job is compared with, from the files that its ranks recorded."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from timesyncd.client.files import read_file
from timesyncd.client.recorder import LENGTH, MAX_RECORD_BYTES
from timesyncd.errors import Malformed
from timesyncd.ipc.job_datagram import Kind, Mark, decode, loss_of
from timesyncd.training.policy.learning import LossPoint


def read_reference(folder: Path) -> list[LossPoint]:
    """
    By step the mean training loss of the ranks whose `*.marks` files are in the folder. Steps are keys.

    Raises ValueError for a folder without losses, and OSError.
    """
    losses: dict[int, list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.marks")):
        for mark in recorded_marks(read_file(path, MAX_RECORD_BYTES)):
            if mark.kind == Kind.LOSS:
                losses[mark.step].append(loss_of(mark.bytes))
    if not losses:
        raise ValueError(
            f"{folder}: no losses: a reference is a folder of *.marks files of a job that called record_loss(loss)"
        )
    return [LossPoint(step, math.fsum(of) / len(of)) for step, of in sorted(losses.items())]


def recorded_marks(data: bytes) -> Iterator[Mark]:
    """Of the whole datagrams of a file; a rank that was killed leaves a part of one."""
    at = 0
    while at + LENGTH.size <= len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + length > len(data):
            return
        try:
            yield from decode(data[at : at + length]).marks
        except (Malformed, struct.error):
            return
        at += length
