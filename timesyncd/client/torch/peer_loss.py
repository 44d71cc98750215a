"""A rank that is gone: torch says so in a RuntimeError of its own words; here it is one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from timesyncd.errors import SyncError

_T = TypeVar("_T")


def first_sentence(error: RuntimeError) -> str:
    """Its first sentence: gloo goes on with advice. Of an error within callbacks the innermost."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rpartition("running the callback: ")[2]


def peer_loss_text(doing: str, error: RuntimeError) -> str:
    return (
        f"{doing} failed: a rank is gone, or silent for the group's time-out ({first_sentence(error)}); "
        "restart the job from its last checkpoint"
    )


def reduced_value(gradients: torch.futures.Future[_T]) -> _T:
    """
    The value of a finished reduction. Raises SyncError.

    To be chained: the reducer tells only such a future's error in words, as a RuntimeError that quotes it.
    """
    with peer_loss_as_sync_error():
        return gradients.value()


@contextmanager
def peer_loss_as_sync_error() -> Iterator[None]:
    """What torch says of a reduction that failed becomes a SyncError."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(peer_loss_text("reducing the gradients", error)) from error
