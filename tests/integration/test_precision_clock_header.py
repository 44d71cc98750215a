"""schemas/timesyncd_precision_clock.hpp, compiled: the five calls agree with the client's, from several threads."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from c_header import bound_now, compiled, publish

from timesyncd.bound import Bound, ClockStatus, Reason, unbounded

pytestmark = pytest.mark.integration

PROGRAM = """
#include "timesyncd_precision_clock.hpp"
#include <thread>
static void print() {
    auto &clock = timesyncd::PrecisionClock::instance();
    auto [earliest, latest] = clock.range_ns();
    long long values[] = {earliest, latest, clock.now_ns(), clock.error_ns(), clock.using_ptp(), clock.now().time_since_epoch().count()};
    for (long long value : values) printf("%lld ", value);
    printf("\\n");
}
int main() {
    print();
    std::thread other(print);
    other.join();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("C++", PROGRAM, tmp_path_factory.mktemp("precision") / "program", "-pthread")


def run(program: Path, folder: Path, **environment: str) -> list[list[int]]:
    environ = {**os.environ, "TIMESYNCD_RUNTIME_DIR": str(folder), **environment}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, check=True)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_the_five_calls_give_the_segment_s_utc(program: Path, tmp_path: Path) -> None:
    """In the first thread and in another: 1 s of error, around CLOCK_REALTIME, and not 37 s ahead of it."""
    publish(tmp_path, bound_now(utc_hard=Bound(10**9, 0)))
    before_ns = time.time_ns()
    rows = run(program, tmp_path)
    after_ns = time.time_ns()

    for earliest, latest, now_ns, error_ns, using_ptp, now in rows:
        assert using_ptp == 1
        assert 10**9 <= error_ns == (latest - earliest + 1) // 2 <= 10**9 + 10**8
        assert before_ns - 10**8 <= now_ns <= now <= after_ns + 10**8
    assert len(rows) == 2


@pytest.mark.parametrize("case", ["no daemon", "no bound", "switched off"])
def test_an_unknown_error_is_not_0(program: Path, tmp_path: Path, case: str) -> None:
    """The range is all of time, and the time is CLOCK_REALTIME's."""
    nothing = {"utc_hard": unbounded(Reason.UTC_OFFSET_UNKNOWN), "utc_status": ClockStatus.UNKNOWN}
    if case != "no daemon":
        publish(tmp_path, bound_now(**(nothing if case == "no bound" else {})))
    before_ns = time.time_ns()
    rows = run(program, tmp_path, **({"NCCL_USE_PTP": "0"} if case == "switched off" else {}))

    for earliest, latest, now_ns, error_ns, using_ptp, _ in rows:
        assert (earliest, latest, error_ns, using_ptp) == (-(2**63), 2**63 - 1, 2**63 - 1, 0)
        assert before_ns <= now_ns <= time.time_ns()
