"""The heat map of `timesyncd top`: signs that need no color, the port that follows its cursor, and what a cell says."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import pytest

from timesyncd.cli._top_heat import LEGEND, Heat, HeatPort, cell_text, follow, heat_of, heat_text, ordered, sign
from timesyncd.messages.series import LatenessMatrix

UNKNOWN = -(2**31)


def matrix(rows: list[list[int]], **more: Any) -> LatenessMatrix:
    """Step by step, a number for each rank."""
    values = array("i", [each for row in rows for each in row])
    ranks = len(rows[0]) if rows else 0
    fields = {
        "as_of_realtime_ns": 1, "lag_ns": 0, "job_id": "j", "job": "j", "ranks": [10 * rank for rank in range(ranks)],
        "nodes": [f"n{rank}" for rank in range(ranks)], "steps": list(range(len(rows))), "begins_ms": [None] * len(rows),
        "error_ns": [50_000] * len(rows), "unit_ns": 1, "lateness": base64.b64encode(values.tobytes()).decode(),
    }  # fmt: skip
    return LatenessMatrix.model_validate(fields | more)


@pytest.mark.parametrize(
    ("late_ns", "error_ns", "char"),
    [
        (None, 50_000, " "),
        (20_000_000, None, "?"),
        (50_000, 50_000, "·"),
        (-50_000, 50_000, "·"),
        (-50_001, 50_000, "<"),
        (-20_000_000, 50_000, "<"),
        (50_001, 50_000, "░"),
        (100_001, 50_000, "▒"),
        (1_000_001, 50_000, "▓"),
        (10_000_001, 50_000, "█"),
        (20_000_000, 30_000_000, "·"),
    ],
)
def test_each_sign_is_one_judgement(late_ns: int | None, error_ns: int | None, char: str) -> None:
    """Within the clocks' error no rank is late or early, and what does not compare is neither late nor in time."""
    assert sign(late_ns, error_ns)[0] == char
    assert char.strip() in LEGEND.plain


def test_the_matrix_is_read_in_its_unit() -> None:
    """Step by step, rank by rank; what is missing at its end is not known."""
    heat = heat_of(matrix([[1, -2], [UNKNOWN, 4]], unit_ns=1_000))

    assert [[heat.late_ns(rank, step) for step in (0, 1)] for rank in (0, 1)] == [[1_000, None], [-2_000, 4_000]]
    short = heat_of(matrix([[1, 2], [3, 4]], lateness=base64.b64encode(array("i", [1, 2, 3]).tobytes()).decode()))
    assert short.late_ns(1, 1) is None


def test_without_colors_the_text_says_the_same() -> None:
    """A line for each rank, and the axis."""
    heat = heat_of(matrix([[0, 200_000], [0, 20_000_000], [UNKNOWN, 0]], error_ns=[50_000, 50_000, None]))
    text = heat_text(heat, ordered(heat, False, ""), HeatPort(0, 0, 0, 2), 10, 40).plain.split("\n")

    assert text == [
        "rank 0 n0             ·· ",
        "rank 10 n1            ▒█?",
        "                      step 0 2",
    ]


def test_ranks_are_sorted_by_lateness_and_filtered_by_their_node() -> None:
    """The median of the steps counts, and a rank of which nothing is known comes last."""
    heat = heat_of(matrix([[0, 9, UNKNOWN, 5], [9, 1, UNKNOWN, 5], [0, 9, UNKNOWN, 5]]))

    assert ordered(heat, True, "") == [1, 3, 0, 2]
    assert ordered(heat, False, "RANK 10 ") == [1]
    assert ordered(heat, False, "n3") == [3]


@pytest.mark.parametrize(
    ("moved", "followed"),
    [
        (HeatPort(0, 0, 0, 1 << 30), HeatPort(0, 400, 0, 499)),
        (HeatPort(0, 400, -3, 398), HeatPort(0, 398, 0, 398)),
        (HeatPort(0, 400, 10, 450), HeatPort(1, 400, 10, 450)),
        (HeatPort(0, 400, 5_000, 450), HeatPort(990, 400, 999, 450)),
        (HeatPort(900, 490, 905, 495), HeatPort(900, 400, 905, 495)),
    ],
)
def test_the_port_follows_its_cursor(moved: HeatPort, followed: HeatPort) -> None:
    """A thousand ranks by 500 steps in 10 lines of 100 cells; no line and no cell is wasted."""
    assert follow(moved, 1_000, 500, 10, 100) == followed


def test_only_what_is_seen_is_drawn() -> None:
    """A thousand ranks by 500 steps make a screen's text."""
    heat = Heat(range(1_000), ["n"] * 1_000, range(500), [1] * 500, 1, array("i", [5] * 500_000))
    port = follow(HeatPort(0, 0, 999, 499), 1_000, 500, 16, 100)

    lines = heat_text(heat, range(1_000), port, 16, 100).plain.split("\n")
    assert len(lines) == 17 and {len(line) for line in lines[:16]} == {122}
    assert lines[15].startswith("rank 999 n ")


def test_a_cell_says_what_its_sign_means() -> None:
    """With the error of its step; an early rank too."""
    heat = heat_of(matrix([[-70_000, 10_000]]))
    at = HeatPort(0, 0, 0, 0)

    assert cell_text(heat, [0, 1], at) == "rank 0 n0, step 0: 70.0 us before the median rank; clocks' error 50.0 us"
    assert cell_text(heat, [1], at) == (
        "rank 10 n1, step 0: 10.0 us after the median rank; clocks' error 50.0 us; within it"
    )
    assert cell_text(heat, [], at) == ""


def test_hostile_node_names_are_text() -> None:
    """No control sequence of a node's name reaches the terminal, and a long one is cut."""
    heat = heat_of(matrix([[1]], nodes=["\x1b]0;owned\x07" + "x" * 80]))

    line = heat_text(heat, [0], HeatPort(0, 0, 0, 0), 1, 5).plain.split("\n")[0]
    assert "\x1b" not in line and len(line) == 23


def test_a_job_without_closed_steps_says_so() -> None:
    """No line is drawn without a step."""
    heat = heat_of(matrix([]))

    assert heat_text(heat, [], HeatPort(0, 0, 0, 0), 1, 50).plain == "no step is closed yet"
