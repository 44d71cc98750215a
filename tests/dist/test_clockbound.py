"""
Our ClockBound segment, read by a client of other authors: PyPI's clockbound, which needs Python 3.13, in a root of Debian 13.

`make dist-test` runs it. It needs root, and the root in which `make dist` built the package.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from debian_roots import default_cache

PROJECT = Path(__file__).resolve().parents[2]
CLIENT = "clockbound==0.3.0 --hash=sha256:80788887743e161bf082898b78292ae18bca3b73733c18f6f77ea784a4abfa02\n"

#: Writes one bound with our writer, and prints what their client makes of it, between two of our own readings of the clock.
SCRIPT = """
import json, sys, time
from pathlib import Path
import clockbound
from timesyncd.bound import Bound, ClockStatus, ErrorBound
from timesyncd.clocks import SystemClocks, real_minus_boot_ns
from timesyncd.ipc.clockbound import ClockBoundWriter

status, bound_ns, growth_ppb, age_ns = ClockStatus[sys.argv[1]], *map(int, sys.argv[2:])
path, clocks = Path("/run/clockbound/shm0"), SystemClocks()
bound = ErrorBound(
    as_of_ns=clocks.boottime_ns() - age_ns,
    real_minus_boot_ns=real_minus_boot_ns(clocks, 100),
    parent_hard=Bound(1_000),
    gm_hard=Bound(2_000),
    utc_hard=Bound(bound_ns, growth_ppb),
    gm_status=status,
    utc_status=status,
)
ClockBoundWriter(path).write(bound)
before_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
try:
    found = clockbound.Clockbound(str(path)).now()
    print(json.dumps({"before": before_ns, "earliest": found.earliest, "latest": found.latest,
                      "after": time.clock_gettime_ns(time.CLOCK_REALTIME)}))
except clockbound.ClockboundError as error:
    print(json.dumps({"error": type(error).__name__}))
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the root has as /build: the client as PyPI has it, and the part of the package that writes the segment."""
    folder = tmp_path_factory.mktemp("clockbound")
    (folder / "requirements.txt").write_text(CLIENT)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:",
            "--python-version=3.13", "--target", folder, "--requirement", folder / "requirements.txt",
        ],
        check=True,
        timeout=300,
    )  # fmt: skip
    shutil.copytree(PROJECT / "timesyncd", folder / "timesyncd", ignore=shutil.ignore_patterns("__pycache__", "web"))
    (folder / "look.py").write_text(SCRIPT)
    return folder


def client_s_view(shared: Path, status: str, bound_ns: int, growth_ppb: int = 0, age_ns: int = 0) -> dict[str, Any]:
    root = default_cache() / "root-trixie"
    words = ["python3.13", "/build/look.py", status, *map(str, (bound_ns, growth_ppb, age_ns))]
    command: list[str | Path] = ["sh", PROJECT / "deploy/debian/in_root.sh", root, shared, "env", "PYTHONPATH=/build"]
    done = subprocess.run([*command, *words], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("status", "bound_ns", "growth_ppb", "age_ns"),
    [("SYNCHRONIZED", 5_000, 0, 0), ("SYNCHRONIZED", 5_000, 50_100, 2_000_000_000), ("HOLDOVER", 10**9, 10**6, 10**10)],
)
def test_their_client_gets_our_interval(shared: Path, status: str, bound_ns: int, growth_ppb: int, age_ns: int) -> None:
    """Around the system clock, no narrower than our bound at that age, and wider by at most what it grows while it is read."""
    found = client_s_view(shared, status, bound_ns, growth_ppb, age_ns)
    width_ns, middle_ns = (found["latest"] - found["earliest"]) // 2, (found["latest"] + found["earliest"]) // 2
    grown_ns = bound_ns + growth_ppb * age_ns // 10**9

    assert found["before"] <= middle_ns <= found["after"]
    assert grown_ns <= width_ns <= grown_ns + 2 + growth_ppb * 60  # within a minute


@pytest.mark.parametrize("status", ["UNKNOWN", "DISRUPTED"])
def test_their_client_gives_no_time_without_a_bound(shared: Path, status: str) -> None:
    """It raises the error of a clock that is not synchronized."""
    assert client_s_view(shared, status, 5_000) == {"error": "ClockStatusError"}
