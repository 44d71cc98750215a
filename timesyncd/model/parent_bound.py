"""What one source's samples say about the clock: the bound against the PTP parent, as of a Sync or some time after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from timesyncd.bound import Bound, Rate, Term
from timesyncd.model.delay_filter import FilterEntry


class CarriedSync(NamedTuple):
    """
    What it adds to the error that a Sync was carried over from the PHC to the system clock.

    `reading_ns` is half the window of the PHC's reading, `age_ns` how far the PHC may have moved unseen between Sync and
    reading. System clock minus PHC moved by `moved_ns` since the last Sync's reading (None: not known), within
    `moved_error_ns`. In response to this Sync the servo changed the PHC's rate by at most `correction_ppb`.
    """

    reading_ns: int
    age_ns: int
    moved_ns: int | None
    moved_error_ns: int
    correction_ppb: int

    @property
    def error_ns(self) -> int:
        return self.reading_ns + self.age_ns


class ParentBound(NamedTuple):
    """
    The bounds against the parent at `as_of_ns` (CLOCK_BOOTTIME), which is `since_sample_ns` later than the sample.

    `terms` add up to the hard bound, `stat_terms` to the statistical one, `rates` (ppb) to the growth of the hard one.
    The true offset, local minus parent, lies in [`low_ns`, `high_ns`]. `phase_jump_ns` is the movement of the offset
    that neither delays nor rates explain. `of_system_clock`: it bounds the system clock, not the PHC. `frequency_ppb` is
    that of the measured clock, as read at `frequency_at_ns` (CLOCK_BOOTTIME; None: not known).
    """

    as_of_ns: int
    bound: Bound
    statistical: Bound
    terms: dict[Term, int]
    stat_terms: dict[Term, int]
    rates: dict[Rate, int]
    low_ns: int
    high_ns: int
    past_growth_ppb: int
    past_span_ns: int
    phase_jump_ns: int | None = None
    since_sample_ns: int = 0
    of_system_clock: bool = False
    frequency_ppb: int | None = None
    frequency_at_ns: int = 0


class Coasting(NamedTuple):
    """
    The bound some time after the last sample, from the frequencies that were read since: `bound` as of `time_ns`
    (CLOCK_BOOTTIME), when the true offset lies in [`low_ns`, `high_ns`]. `rates` (ppb) add up to its growth.
    `frequency_ppb` was read at that time (None: not known).
    """

    bound: Bound
    rates: dict[Rate, int]
    time_ns: int
    low_ns: int
    high_ns: int
    frequency_ppb: int | None = None


@dataclass(slots=True)
class CoastingState:
    """The true offset lay in [low_ns, high_ns] at `time_ns` (CLOCK_BOOTTIME), by the sample of `as_of_ns`."""

    as_of_ns: int
    time_ns: int
    low_ns: float
    high_ns: float
    steered_ns: float
    uncertainty_ns: float
    growth_ppb: int
    seen: FilterEntry | None = None
    unseen_ns: int = 0
