"""
The widths that fbclock, chrony and ClockBound would give for the samples of a run (bench/_peer_bounds.py has their formulas), beside ours.

Theirs bound the card's clock, which ptp4l measures; the bound of timesyncd is on the system clock, so it has the reading of the card in it.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from timesyncd.model.replay import TraceRow
from timesyncd.sample import PortState

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from _peer_bounds import PEERS, PeerBounds

OURS = "timesyncd"


def widths_ns(samples: Iterable[str], after_ns: int) -> dict[str, float]:
    """
    The median half width against UTC by name, of a ptp4l source's samples as `timesyncd export` writes them.

    All take the samples from the first one on, and those read later than `after_ns` (CLOCK_REALTIME) count.
    """
    peers = PeerBounds()
    widths: dict[str, list[float]] = {name: [] for name in (OURS, *PEERS)}
    for cells in csv.DictReader(samples):
        row = _row(cells)
        peers.take(row)
        if int(cells["realtime_ns"]) < after_ns:
            continue
        ours = float(cells["utc_bound_ns"]) if cells["utc_bound_ns"] else None
        for name, width_ns in zip((OURS, *PEERS), (ours, *peers.at(row.t_ns)), strict=True):
            if width_ns is not None:
                widths[name].append(width_ns)
    return {name: statistics.median(of_it) for name, of_it in widths.items() if of_it}


def _row(cells: dict[str, str]) -> TraceRow:
    frequency = cells["frequency_ppb"]
    return TraceRow(
        int(cells["read_ns"]),
        int(cells["offset_ns"]),
        int(cells["path_delay_ns"]),
        -int(frequency) if frequency else None,
        PortState[cells["port_state"].upper()],
        gm_present=True,
        clock_class=int(cells["clock_class"]),
        clock_accuracy=int(cells["clock_accuracy"]),
        is_sync=True,
    )
