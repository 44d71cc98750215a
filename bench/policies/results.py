"""The rows of results.jsonl: one a run, one a link's rate, one a target. Appended, never changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from policies.plan import HARNESS, LINKS, Cell, Row

FILE = Path(__file__).with_name("results.jsonl")


def read(path: Path) -> list[Row]:
    """A last line that a killed run left half written is passed over."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def append(path: Path, row: Row) -> None:
    """On disk when this returns, with four decimals. What a killed run left half written is cut off first."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(rounded).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def link_row(cell: Cell, rows: list[Row]) -> Row | None:
    """The newest of this version: {"rate_mbit": None = unshaped, "compute_ms", "communication_ms", "ratio"}."""
    found = [row for row in rows if row["kind"] == "link" and row["version"] == f"{HARNESS}" and cell.is_of(row)]
    return found[-1] if found else None


def twin(cell: Cell, rows: list[Row]) -> Cell | None:
    """The cell that has the same link, and so is run instead: of `free` the `even` one, where an unshaped link has its ratio already."""
    even = Cell(cell.task, cell.ranks, LINKS["even"])
    link = link_row(even, rows)
    return even if cell.link == LINKS["free"] and link is not None and link["rate_mbit"] is None else None


def target_of(cell: Cell, rows: list[Row]) -> float | None:
    """Of the task and number of ranks, on every link the same."""
    wanted = ("target", f"{HARNESS}", cell.task.name, cell.ranks)
    found = [row for row in rows if (row["kind"], row["version"], row["task"], row["ranks"]) == wanted]
    return float(found[-1]["target"]) if found else None
