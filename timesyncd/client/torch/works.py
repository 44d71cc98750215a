"""The handle of an asynchronous collective, with its wait stamped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

#: All that torch.distributed.Work offers besides wait.
_PASSED_ON = (
    "block_current_stream",
    "boxed",
    "exception",
    "get_future",
    "get_future_result",
    "is_completed",
    "is_success",
    "result",
    "source_rank",
    "synchronize",
    "_get_duration",
    "_get_op_type",
    "_source_rank",
)


class TimedWork(dist.Work):
    """The work itself in every respect; the first `wait` calls `waiting` before and `waited` after."""

    def __init__(self, work: dist.Work, waiting: Callable[[], None], waited: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._waiting: Callable[[], None] | None = waiting
        self._waited = waited

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return self._work.wait(*args, **kwargs)
        waiting()
        result = self._work.wait(*args, **kwargs)
        self._waited()
        return result


def _passing_on(name: str) -> Callable[..., Any]:
    def method(self: TimedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in _PASSED_ON:
    if hasattr(dist.Work, _name):
        setattr(TimedWork, _name, _passing_on(_name))
