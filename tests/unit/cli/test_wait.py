"""`timesyncd wait`: until the bound is within a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.bound import ClockStatus, Interval, Reason, Reference
from timesyncd.cli import wait
from timesyncd.client.past import ClockReading


def reading(width_ns: int | None) -> ClockReading:
    """At 1 s after 1970; None: unknown."""
    if width_ns is None:
        unknown = Interval(None, None, ClockStatus.UNKNOWN, Reference.GRANDMASTER)
        return ClockReading(unknown, Reason.NO_SEGMENT, "no sample yet")
    known = Interval(10**9, 10**9 + width_ns, ClockStatus.SYNCHRONIZED, Reference.GRANDMASTER)
    return ClockReading(known, Reason.OK, "")


class ScriptedClock:
    """Reads the next width at each reading, and the last one for ever."""

    widths: Iterator[int | None]
    last: int | None = None

    def __init__(self, _: Path | None) -> None:
        pass

    def read(self, reference: Reference) -> ClockReading:
        assert reference is Reference.GRANDMASTER
        ScriptedClock.last = next(self.widths, self.last)
        return reading(self.last)


@pytest.mark.parametrize(
    ("widths", "status", "printed"),
    [
        ([2_000], 0, "+- 1.00 us"),
        ([None, 9_000, 2_000], 0, "+- 1.00 us"),
        ([None, 2_001], 1, "+- 1.00 us"),
        ([None], 1, "UNKNOWN       no sample yet"),
    ],
)
def test_it_ends_once_the_bound_is_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    widths: list[int | None],
    status: int,
    printed: str,
) -> None:
    """0 then, else 1 after the timeout; the last bound, or the reason of none, is printed."""
    monkeypatch.setattr(ScriptedClock, "widths", iter(widths), raising=False)
    monkeypatch.setattr(wait, "Clock", ScriptedClock)
    monkeypatch.setattr(wait, "_LOOK_S", 0.01)

    assert main(["wait", "--within", "1us", "--timeout", "100ms"]) == status
    assert printed in capsys.readouterr().out
