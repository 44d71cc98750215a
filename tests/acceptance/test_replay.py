"""A real ptp4l whose clock has a known error: pmc's answers go row by row through a pipe to `timesyncd replay`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from timesyncd.model.replay import COLUMNS, REPLAYED_HEADER
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN

pytestmark = pytest.mark.integration

X_NS = 300_000
ROWS, PERIOD_S = 90, 0.5

#: What pmc calls what a column holds. Nothing steers the clock of the bed, so its frequency never changes.
PMC_NAMES = {
    "offset_ns": "master_offset",
    "path_delay_ns": "meanPathDelay",
    "port_state": "portState",
    "gm_present": "gmPresent",
    "clock_class": "gm.ClockClass",
    "clock_accuracy": "gm.ClockAccuracy",
}
QUESTIONS = ("TIME_STATUS_NP", "CURRENT_DATA_SET", "PORT_DATA_SET", "PARENT_DATA_SET")


@dataclass(frozen=True, slots=True)
class Answered:
    """A row that was written, the command's answer before the next one, and the true offset at that moment."""

    t_s: str
    cells: list[str]
    true_ns: int


def trace_row(bed: PtpBed, folder: Path) -> str:
    """What pmc shows now, as a row of a trace."""
    server = bed.nodes["b"].uds_address
    command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", server, "-i", str(folder / "pmc")]
    shown = subprocess.run(
        [*command, *(f"GET {question}" for question in QUESTIONS)], check=True, capture_output=True, text=True
    ).stdout
    found = {column: re.search(rf"\b{name}\s+(\S+)", shown) for column, name in PMC_NAMES.items()}
    cells = {column: match[1] if match else "" for column, match in found.items()}
    realtime_ns = time.time_ns()
    cells |= {"t_s": f"{realtime_ns // 10**9}.{realtime_ns % 10**9:09d}", "freq_ppb": "0"}
    return ",".join(cells[column] for column in COLUMNS)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Answered]]:
    folder = tmp_path_factory.mktemp("replay")
    command = [sys.executable, "-m", "timesyncd", "replay"]
    with (
        PtpBed(relayed=("b",)) as bed,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as replay,
    ):
        assert replay.stdin is not None and replay.stdout is not None
        bed.set_relay("b", x_ns=X_NS)
        replay.stdin.write(",".join(COLUMNS) + "\n")
        assert replay.stdout.readline() == REPLAYED_HEADER
        rows = []
        for _ in range(ROWS):
            row = trace_row(bed, folder)
            replay.stdin.write(row + "\n")
            cells = replay.stdout.readline().rstrip("\n").split(",")
            t_s = row.split(",")[0]
            rows.append(Answered(t_s, cells, bed.true_offset_ns("b", int(t_s.replace(".", "")))))
            time.sleep(PERIOD_S)
        replay.stdin.close()
        assert (replay.stdout.read(), replay.wait()) == ("", 0)
    yield rows


def test_each_row_is_answered_before_the_next_is_written(answered: list[Answered]) -> None:
    """With its own time, and in the end with a bound."""
    assert [row.cells[0] for row in answered] == [row.t_s for row in answered]
    assert [row.cells[1] for row in answered][-10:] == ["SYNCHRONIZED"] * 10


def test_the_known_truth_is_inside_each_bound(answered: list[Answered]) -> None:
    """The clock is 300 us off, and no bound is smaller."""
    bounds = [(abs(row.true_ns), int(row.cells[2])) for row in answered if row.cells[2]]

    assert len(bounds) >= 10
    assert [(true_ns, bound_ns) for true_ns, bound_ns in bounds if true_ns > bound_ns] == []


def test_the_grandmaster_s_accuracy_is_between_the_two(answered: list[Answered]) -> None:
    """It announces class 6 within 100 ns, which pmc shows as 0x21."""
    beyond = {int(row.cells[4]) - int(row.cells[2]) for row in answered if row.cells[2]}

    assert beyond == {100}
