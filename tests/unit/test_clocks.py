"""Two clocks read together."""

from __future__ import annotations

from dataclasses import dataclass, field

from fake_clocks import FakeClocks

from timesyncd.clocks import Moment, real_minus_boot_ns


@dataclass
class PreemptedClocks(FakeClocks):
    """A preemption of this length follows each reading of CLOCK_REALTIME."""

    pauses_ns: list[int] = field(default_factory=list)

    def realtime_ns(self) -> int:
        read_ns = super().realtime_ns()
        self.advance(self.pauses_ns.pop(0))
        return read_ns


def test_the_least_preempted_reading_counts() -> None:
    """
    A preemption between the two clocks makes REALTIME look stepped back, so the largest difference is the best one.
    """
    clocks = PreemptedClocks(real_ns=5_000, boot_ns=1_000, pauses_ns=[300, 20, 700])

    moment = Moment.read(clocks)

    assert moment == Moment(realtime_ns=5_300, boottime_ns=1_320)
    assert moment.real_minus_boot_ns == 3_980


def test_the_difference_of_the_clocks_is_that_of_the_best_reading() -> None:
    """real_minus_boot_ns takes as many readings as asked for."""
    clocks = PreemptedClocks(real_ns=5_000, boot_ns=1_000, pauses_ns=[300, 20, 0])

    assert real_minus_boot_ns(clocks, 2) == 3_980


def test_a_moment_is_moved_along_both_clocks() -> None:
    """At another BOOTTIME, CLOCK_REALTIME differs by as much: no step lies between."""
    moment = Moment(realtime_ns=5_000, boottime_ns=1_000)

    assert moment.at_boottime(400) == Moment(realtime_ns=4_400, boottime_ns=400)
