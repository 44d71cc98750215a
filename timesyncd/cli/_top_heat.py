"""
A job's lateness, ranks by steps, as characters of a terminal. Pure.

A sign says what a color says, so that nothing is lost without colors: a dot is within the clocks' error, "<" is early, and
the darker the block, the later the rank.
"""

from __future__ import annotations

import base64
import statistics
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from timesyncd.cli.render import plain_text
from timesyncd.ipc.job_datagram import step_text
from timesyncd.messages.series import LatenessMatrix
from timesyncd.units import duration_text

UNKNOWN = -(2**31)

#: Later than so many ns, sign, and style; the first that fits counts.
LEVELS = (
    (10_000_000, "█", "bold bright_red"),
    (1_000_000, "▓", "red"),
    (100_000, "▒", "dark_orange3"),
    (0, "░", "yellow"),
)
WITHIN, EARLY, NOT_COMPARABLE, NOTHING = "·", "<", "?", " "
_QUIET, _EARLY_STYLE = "bright_black", "cyan"

#: The rank's name on the left of its row.
LABEL_WIDTH = 22

LEGEND = Text.assemble(
    ("· within the clocks' error", _QUIET),
    ("   < early", _EARLY_STYLE),
    "   later by: ",
    ("░ up to 100 us", "yellow"),
    "  ",
    ("▒ 1 ms", "dark_orange3"),
    "  ",
    ("▓ 10 ms", "red"),
    "  ",
    ("█ more", "bold bright_red"),
    ("   ? the clocks do not compare", _QUIET),
)


@dataclass(frozen=True, slots=True)
class Heat:
    """
    `late_ns[step * len(ranks) + rank]`, by place in `steps` and `ranks`: after the median rank; UNKNOWN. `error_ns` is
    that of each step's differences; None: the clocks do not compare.
    """

    ranks: Sequence[int]
    nodes: Sequence[str]
    steps: Sequence[int]
    error_ns: Sequence[int | None]
    unit_ns: int
    late: array[int]

    def late_ns(self, rank: int, step: int) -> int | None:
        """By places, not by numbers. None: nothing is known."""
        value = self.late[step * len(self.ranks) + rank]
        return None if value == UNKNOWN else value * self.unit_ns

    def label(self, rank: int) -> str:
        """The rank and its node."""
        return f"rank {self.ranks[rank]} {self.nodes[rank]}"


def heat_of(matrix: LatenessMatrix) -> Heat:
    """From the daemon's answer. A matrix that is too short counts as unknown."""
    late = array("i", base64.b64decode(matrix.lateness)[: 4 * len(matrix.steps) * len(matrix.ranks)])
    if sys.byteorder == "big":
        late.byteswap()
    late.extend([UNKNOWN] * (len(matrix.steps) * len(matrix.ranks) - len(late)))
    return Heat(matrix.ranks, matrix.nodes, matrix.steps, matrix.error_ns, matrix.unit_ns, late)


def ordered(heat: Heat, by_lateness: bool, part: str) -> list[int]:
    """The places of the ranks whose label has `part`, by number, or the latest in the median of its steps first."""
    found = [rank for rank in range(len(heat.ranks)) if part.lower() in heat.label(rank).lower()]
    if not by_lateness:
        return found
    return sorted(found, key=lambda rank: (-_median_late(heat, rank), rank))


def _median_late(heat: Heat, rank: int) -> float:
    known = [value for value in heat.late[rank :: len(heat.ranks)] if value != UNKNOWN]
    return statistics.median(known) if known else float("-inf")


def sign(late_ns: int | None, error_ns: int | None) -> tuple[str, str]:
    """The character of a cell, and its style."""
    if late_ns is None:
        return NOTHING, ""
    if error_ns is None:
        return NOT_COMPARABLE, _QUIET
    if late_ns < -error_ns:
        return EARLY, _EARLY_STYLE
    if late_ns <= error_ns:
        return WITHIN, _QUIET
    return next((char, style) for above_ns, char, style in LEVELS if late_ns > above_ns)


@dataclass(frozen=True, slots=True)
class HeatPort:
    """What of the heat map is seen: places in the order of the rows and in the steps. `row`, `column` are the cursor's."""

    first_row: int
    first_column: int
    row: int
    column: int


def follow(port: HeatPort, rows: int, columns: int, height: int, width: int) -> HeatPort:
    """The port after the cursor was moved: inside the matrix, and the cursor inside the port."""
    row = max(0, min(port.row, rows - 1))
    column = max(0, min(port.column, columns - 1))
    first_row = max(min(port.first_row, row), row - height + 1, 0)
    first_column = max(min(port.first_column, column), column - width + 1, 0)
    return HeatPort(min(first_row, max(0, rows - height)), min(first_column, max(0, columns - width)), row, column)


def heat_text(heat: Heat, order: Sequence[int], port: HeatPort, height: int, width: int) -> Text:
    """A line for each visible rank, then the axis of steps. `width` is that of the cells alone."""
    steps = range(port.first_column, min(port.first_column + width, len(heat.steps)))
    lines = []
    for at in range(port.first_row, min(port.first_row + height, len(order))):
        label = plain_text(heat.label(order[at]), "bold" if at == port.row else "")
        label.truncate(LABEL_WIDTH - 1, overflow="ellipsis", pad=True)
        line = Text.assemble(label, " ")
        for step in steps:
            char, style = sign(heat.late_ns(order[at], step), heat.error_ns[step])
            is_cursor = at == port.row and step == port.column
            line.append(char, Style.parse(style) + Style(reverse=True) if is_cursor else style)
        lines.append(line)
    return Text("\n").join([*lines, _axis(heat, steps)])


def _axis(heat: Heat, steps: range) -> Text:
    if not steps:
        return Text("no step is closed yet", "dim")
    first, last = f"step {step_text(heat.steps[steps[0]])}", step_text(heat.steps[steps[-1]])
    gap = max(1, len(steps) - len(first) - len(last))
    return Text(" " * LABEL_WIDTH + first + " " * gap + last, "dim")


def cell_text(heat: Heat, order: Sequence[int], port: HeatPort) -> str:
    """The cell under the cursor in words."""
    if not 0 <= port.row < len(order) or not 0 <= port.column < len(heat.steps):
        return ""
    rank = order[port.row]
    late_ns, error_ns = heat.late_ns(rank, port.column), heat.error_ns[port.column]
    place = f"{heat.label(rank)}, step {step_text(heat.steps[port.column])}: "
    if late_ns is None:
        return f"{place}nothing is known"
    side = "after" if late_ns >= 0 else "before"
    error = "the clocks do not compare" if error_ns is None else f"clocks' error {duration_text(error_ns)}"
    judged = "; within it" if error_ns is not None and late_ns <= error_ns and late_ns >= -error_ns else ""
    return f"{place}{duration_text(abs(late_ns))} {side} the median rank; {error}{judged}"
