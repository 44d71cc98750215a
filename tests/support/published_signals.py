"""A job whose signals are in shared memory, as a daemon publishes them, without a daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timesyncd.client import Job, Plan, Signals
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import job_id
from timesyncd.ipc.job_segment import JobWriter, segment_path

#: A daemon writes about once a second; signals are void after 30 s.
WRITE_EVERY_S = 1.0


@contextmanager
def job_with_signals(folder: Path, rank: int = 0, **signals: Any) -> Iterator[Job]:
    """Rank `rank` of two; its signals are these, written again and again."""
    job = Job("job", rank, 2, 0, runtime_dir=folder)
    path = segment_path(folder, job_id(os.getuid(), "job", 0))
    path.parent.mkdir(exist_ok=True)
    known = Signals(world_size=2, steps_complete=9, steps_incomplete=0, joined_ns=(job.joined_ns,), **signals)
    writer = JobWriter(path, Epoch(boot_id(), time_namespace()))
    over = threading.Event()

    def write() -> None:
        while True:
            writer.write(time.clock_gettime_ns(time.CLOCK_BOOTTIME), known, Plan())
            if over.wait(WRITE_EVERY_S):
                return

    writer.write(time.clock_gettime_ns(time.CLOCK_BOOTTIME), known, Plan())
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield job
    finally:
        over.set()
        thread.join()
        job.close()
