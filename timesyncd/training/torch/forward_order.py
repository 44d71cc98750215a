"""
An average of parameters that arrives during the next forward pass: its chunks are sent in the order of the layers, and
each is waited for where the pass first uses one of its tensors (priority and partition, after P3, arXiv 1905.03960, and
ByteScheduler, SOSP 2019). The means are those of an averaging that the step waits for, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from timesyncd.client.torch.stamps import Times
from timesyncd.training.torch.averaging import Averaging, local_shard

#: What `synchronized(order=)` takes.
FORWARD = "forward"


def checked_order(order: str | None, module: torch.nn.Module, is_compiled: bool = False) -> bool:
    """Whether averages arrive in the order of the forward pass. Raises ValueError for another order, or a compiled module."""
    if order is None:
        return False
    if order != FORWARD:
        raise ValueError(f"order is {order!r}; it must be None or {FORWARD!r}")
    if is_compiled or any(type(each).__name__ == "OptimizedModule" for each in module.modules()):
        raise ValueError("order='forward' follows each operation of the forward pass, and torch.compile hides them")
    return True


class ForwardOrder:
    """
    Lets averages of the module's parameters arrive in its forward pass. Nothing else may read the parameters between the
    update and that pass, except a state dictionary of the module; `finish` before anything that does.

    `waited`: called with begin and end of each wait, moments of `times`. `errors`: turns what torch raises in a wait into
    a SyncError.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        times: Times,
        waited: Callable[[Any, Any], None],
        errors: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._times, self._waited, self._errors = times, waited, errors
        self._chunks_of: dict[int, set[int]] = {}  #: by the memory of tensors
        self._receive: list[Callable[[], None] | None] = []
        self._begin: Callable[[], None] | None = None
        self._end: Callable[[], None] | None = None
        self._uses: _Uses | None = None
        self._hooks = [
            module.register_forward_pre_hook(self._begin_forward, prepend=True),
            module.register_forward_hook(self._end_forward, always_call=True),
            module.register_state_dict_pre_hook(lambda *_: self.finish()),  # type: ignore[no-untyped-call]
        ]

    @property
    def is_pending(self) -> bool:
        return any(self._receive)

    def begin(self, averaging: Averaging, scale: float) -> None:
        """Begin an averaging. Raises RuntimeError where torch does."""
        self.finish()
        self._receive, self._chunks_of = [*averaging.send(scale)], {}
        for number, tensors in enumerate(averaging.tensors_of_chunks):
            for tensor in tensors:
                self._chunks_of.setdefault(_memory(tensor), set()).add(number)

    def follow(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Of what is pending: `begin` is called before the first wait, `end` when all has arrived."""
        self._begin, self._end = begin, end

    def finish(self) -> None:
        """Wait for what has not arrived yet. Raises SyncError."""
        for number in range(len(self._receive)):
            if self._receive:
                self._arrive(number)

    def close(self) -> None:
        """What has not arrived is left out."""
        for hook in self._hooks:
            hook.remove()

    def use(self, values: Iterable[Any]) -> None:
        """Wait for those of them that are tensors and have not arrived."""
        for value in values:
            if isinstance(value, torch.Tensor):
                for number in self._chunks_of.get(_memory(value), ()):
                    self._arrive(number)

    def _arrive(self, number: int) -> None:
        receive, self._receive[number] = self._receive[number], None
        if receive is None:
            return
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
        began = self._times.now()
        try:
            with self._errors("averaging"):
                receive()
        except BaseException:
            self._receive = []  # the ranks cannot go on
            raise
        self._waited(began, self._times.now())
        if not any(self._receive):
            self._receive, self._chunks_of, end, self._end = [], {}, self._end, None
            if end is not None:
                end()

    def _begin_forward(self, *_: object) -> None:
        if self.is_pending and self._uses is None:
            self._uses = _Uses(self)
            self._uses.__enter__()  # type: ignore[no-untyped-call]

    def _end_forward(self, *_: object) -> None:
        """Also after an error. What the pass has not used arrives now."""
        uses, self._uses = self._uses, None
        if uses is not None:
            uses.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.finish()


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the tensors of each operation before it runs."""

    def __init__(self, order: ForwardOrder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order = order

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._order.is_pending:
            self._order.use(tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _memory(tensor: torch.Tensor) -> int:
    """The same for all views of the same memory."""
    return local_shard(tensor).untyped_storage().data_ptr()
