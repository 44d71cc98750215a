"""What the daemon writes into the clock segment beside the bound: what a reader needs to measure the steering since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from published import good_bound

from timesyncd.bound import ErrorBound, steered_ns
from timesyncd.clocks import NS_PER_S, RawReading
from timesyncd.config import parse
from timesyncd.daemon.daemon import Daemon
from timesyncd.daemon.runtime_folder import RuntimeFolder
from timesyncd.driver import options_of
from timesyncd.drivers.kernel import system_clock_frequency_ppb
from timesyncd.ipc import clock_segment


@dataclass
class Folder:
    """Keeps the words that were written last."""

    words: Sequence[int] = ()

    def write(self, payload: Sequence[int]) -> None:
        self.words = payload


def written(bound: ErrorBound) -> ErrorBound:
    """The bound as a reader of the segment gets it from a daemon without any other segment."""
    daemon, folder = Daemon(parse({"node": {"name": "a"}}, options_of, "test")), Folder()
    daemon._folder, daemon._clockbound = cast(RuntimeFolder, folder), None
    daemon._write(bound)
    return clock_segment.decode(folder.words)[0]


def test_the_daemon_publishes_the_oscillator_beside_each_bound() -> None:
    """Of this machine, whose clock no program slews now: a reader measures microseconds at most, and not an unknown number."""
    bound = written(good_bound(publication=None, frequency_ppb=system_clock_frequency_ppb()))
    measured_ns = steered_ns(bound, RawReading.read())

    assert bound.publication is not None
    assert measured_ns is not None and 0 <= measured_ns < NS_PER_S


def test_a_slew_since_the_reading_is_in_what_the_daemon_publishes() -> None:
    """The bound's frequency was read a second ago, and is another now: the clock may have moved by the difference since."""
    now_ppb = system_clock_frequency_ppb()
    assert now_ppb is not None
    bound = good_bound(publication=None, frequency_ppb=now_ppb + 1_000_000)
    bound.frequency_at_ns -= NS_PER_S
    found = written(bound)

    assert found.publication is not None
    assert found.publication.unseen_ns >= 1_000_000
