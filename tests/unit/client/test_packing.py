"""The CPU time of packing."""

from __future__ import annotations

import os
import time

from timesyncd.client.packing import Packing, packing_times
from timesyncd.ipc.network_record import PackingPart, PackingTime


def test_cpu_time_counts_and_waiting_does_not() -> None:
    """What a hook waits inside for other ranks is not packing."""
    before = packing_times().get(PackingPart.HOOKS, PackingTime(0, 0))
    began_ns = time.thread_time_ns()
    with Packing(PackingPart.HOOKS, 1_000):
        while time.thread_time_ns() - began_ns < 5_000_000:
            pass
    with Packing(PackingPart.HOOKS, 500):
        time.sleep(0.1)
    after = packing_times()[PackingPart.HOOKS]

    assert after.bytes - before.bytes == 1_500
    assert 4_000_000 <= after.cpu_ns - before.cpu_ns < 100_000_000


def test_a_forked_process_begins_at_nothing() -> None:
    """A rank that is forked has packed nothing yet."""
    with Packing(PackingPart.AVERAGING, 1):
        pass
    child = os.fork()
    if child == 0:
        os._exit(len(packing_times()))

    assert os.waitpid(child, 0)[1] == 0
