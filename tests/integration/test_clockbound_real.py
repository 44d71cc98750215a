"""The driver clockbound on a real file that another process rewrites meanwhile, by ClockBound's layout and not by our writer."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.clockbound.clockbound import ClockBound, ClockBoundOptions
from timesyncd.errors import Unreachable
from timesyncd.ipc.clockbound import read_segment
from timesyncd.sample import NoSample, Reading, UtcSample

pytestmark = pytest.mark.integration

MANY = 200


@contextmanager
def clockbound_daemon(path: Path) -> Iterator[None]:
    """A process that writes again and again: the bound is the drift, in two words of the segment that it writes apart."""
    path.write_bytes(struct.pack("=IIIHH", 0x414D5A4E, 0x43420200, 80, 2, 0).ljust(80, b"\0"))
    child = os.fork()
    if child == 0:
        with path.open("r+b") as file:
            _write_for_ever(memoryview(mmap.mmap(file.fileno(), 80)))
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _write_for_ever(words: memoryview) -> None:
    halves, number = words.cast("H"), 0
    while True:
        number += 1
        as_of = divmod(time.monotonic_ns(), NS_PER_S)
        odd = halves[7] | 1
        halves[7] = odd
        struct.pack_into("=4qq", words, 16, *as_of, as_of[0] + 1000, 0, number)
        time.sleep(0)  # another process may read between the two
        struct.pack_into("=QIiB", words, 56, 0, number, 1, 0)
        halves[7] = odd + 1 if odd < 0xFFFF else 2
        time.sleep(0.0005)


def test_a_reader_never_sees_half_of_a_write(tmp_path: Path) -> None:
    """Of hundreds of copies taken while the file is rewritten, each is of one write."""
    path = tmp_path / "shm0"
    seen: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 60
    with clockbound_daemon(path):
        while len(seen) < MANY and time.monotonic() < deadline:
            try:
                content = read_segment(path)
            except Unreachable:  # not written yet, or the writer was stopped within a write
                time.sleep(0.001)
                continue
            seen.add((content.bound_ns, content.max_drift_ppb))

    assert len(seen) >= MANY
    assert {bound_ns - drift_ppb for bound_ns, drift_ppb in seen} == {0}


def test_the_driver_follows_a_running_writer(tmp_path: Path) -> None:
    """It gives samples of this boot, dated in the past, and none once the writer is gone and the file is removed."""
    path = tmp_path / "shm0"
    driver = ClockBound("aws", ClockBoundOptions(path=path), tmp_path)
    with clockbound_daemon(path):
        first, sample = asyncio.run(_until_sample(driver))
    path.unlink()

    assert isinstance(first, NoSample) and first.reason.startswith("ClockBound has computed no bound since")
    assert 0 < sample.as_of_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert sample.error_ns == sample.growth_ppb > 0
    with pytest.raises(Unreachable, match="no such file"):
        asyncio.run(driver.poll())


async def _until_sample(driver: ClockBound) -> tuple[Reading, UtcSample]:
    readings: list[Reading] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            readings += await driver.poll()
        except Unreachable:  # not written yet, or the writer was stopped within a write
            await asyncio.sleep(0.001)
        if readings and isinstance(readings[-1], UtcSample):
            return readings[0], readings[-1]
    raise AssertionError(f"no sample within a minute: {readings[-3:]}")
