"""schemas/timesyncd_clock.h, compiled; and segments for it to read."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Reference, Term
from timesyncd.clocks import SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.ipc import clock_segment, seqlock

HEADER = Path(__file__).parents[2] / "schemas" / "timesyncd_clock.h"
EPOCH = clock_segment.Epoch(boot_id(), time_namespace())

#: In the order of the header's enum.
REFERENCES = [Reference.PARENT, Reference.GRANDMASTER, Reference.UTC]
#: The interval where there is none.
ALL_OF_TIME = (-(2**63), 2**63 - 1)

STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(HEADER.parent)]
COMPILERS = {"C": ["cc", "-std=c11", "-x", "c"], "C++": ["c++", "-std=c++17", "-x", "c++"]}


def compiled(language: str, source: str, target: Path, *options: str) -> Path:
    command = COMPILERS[language]

    assert shutil.which(command[0]), f"no {language} compiler: Debian package g++"
    subprocess.run([*command, *STRICT, *options, "-o", target, "-"], input=source, text=True, check=True)
    return target


def bound_now(**changes: object) -> ErrorBound:
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 100),
        parent_hard=Bound(4_000, 50_100),
        gm_hard=Bound(5_000, 50_100),
        utc_hard=Bound(10**9, 50_100),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.SYNCHRONIZED,
        grandmaster_identity="ff1122.fffe.334455",
        utc_seconds_removed=37,
        clock="phc:3",
        terms={Term.OFFSET: -3, Term.PATH_DELAY: 2_000},
    )
    return replace(bound, **changes)  # type: ignore[arg-type]


def writer(folder: Path) -> seqlock.SegmentWriter:
    return seqlock.SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )


def publish(folder: Path, bound: ErrorBound, epoch: clock_segment.Epoch = EPOCH) -> seqlock.SegmentWriter:
    made = writer(folder)
    made.write(clock_segment.encode(bound, epoch))
    return made
