"""Turns torch's RuntimeError after the loss of a rank into one line that states what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakSet

import torch

from timesyncd.errors import SyncError

_T = TypeVar("_T")

#: The policies in force in this process. Without one, an error of torch stays torch's.
policies_in_force: WeakSet[object] = WeakSet()


def first_sentence(error: RuntimeError) -> str:
    """The error's first sentence, without gloo's advice; of an error in nested callbacks the innermost one."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rpartition("running the callback: ")[2]


def peer_loss_text(operation: str, error: RuntimeError) -> str:
    return (
        f"{operation} failed: a rank is lost, or did not respond within the group's timeout ({first_sentence(error)}); "
        "restart the job from its last checkpoint"
    )


def reduced_value(gradients: torch.futures.Future[_T]) -> _T:
    """
    The value of a finished reduction. Raises SyncError where a policy is in force, else torch's error.

    Chain it to the reduction's future: the reducer reports the error of a chained future only, as a RuntimeError with its text.
    """
    if not policies_in_force:
        return gradients.value()
    with peer_loss_as_sync_error():
        return gradients.value()


@contextmanager
def peer_loss_as_sync_error() -> Iterator[None]:
    """Inside `with`, a RuntimeError of a failed reduction becomes a SyncError."""
    try:
        yield
    except RuntimeError as error:
        raise SyncError(peer_loss_text("reducing the gradients", error)) from error
