"""The logs of two machines' clocks, as `clocktruth log` writes them, of clocks that are functions of the guest's counter."""

from __future__ import annotations

from collections.abc import Callable

from vm_truth import TAI_MINUS_UTC_NS, CounterOffset, MachineLog, Piece

#: One tick a nanosecond keeps the arithmetic readable; the guest's counters begin at 0.
PERIOD = 20_000_000
EPOCH_NS = 1_795_690_000_000_000_000
READING = 200
ALWAYS = 1 << 62

SAME = CounterOffset(0, 0)

Clock = Callable[[int], int]


def log(
    *,
    realtime: Clock = lambda t: EPOCH_NS + t,
    phc: Clock = lambda t: EPOCH_NS + TAI_MINUS_UTC_NS + t,
    offset: CounterOffset = SAME,
    rows: int = 100,
    without: range = range(0),
) -> MachineLog:
    """A log of four clocks, each given as a function of the guest's counter."""
    lines = []
    for row in range(rows):
        if row in without:
            continue
        clocks: tuple[Clock, ...] = (realtime, lambda t: t, lambda t: t, phc)
        cells = []
        for number, clock in enumerate(clocks):
            before = row * PERIOD + number * 1_000
            cells += [before, before + READING, clock(before + READING // 2)]
        lines.append(" ".join(map(str, cells)))
    return MachineLog(lines, [Piece(-ALWAYS, ALWAYS, offset)])
