"""The end of a process whose collectives called Python back."""

from __future__ import annotations

import atexit
import time
from functools import cache

#: What gloo's threads take at most to give a callback back after its collective, with the machine busy.
GRACE_S = 0.1


@cache
def let_threads_finish() -> None:
    """
    Call it before a callback is given to a collective; the process then ends `GRACE_S` later.

    A thread of gloo's completes the future first and gives the callback back after that, for which it needs the GIL. Where Python
    is ending by then, it unwinds that thread, and C++ answers with abort(): all work is done, and the job has failed. torch 2.13
    does so by itself with any hook that is written in Python.
    """
    atexit.register(time.sleep, GRACE_S)
