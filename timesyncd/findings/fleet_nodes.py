"""
One node as the fleet's findings see it. Pure: time is an argument.

`NodeRecord` keeps the newest state in short, since ten thousand whole states take too much memory. `DelayHistory`
compares the node's path delay with its past, `OffsetHistory` its offset with those of its siblings.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from statistics import median
from sys import intern

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.fleet.node_clock import silent_after_ns
from timesyncd.messages.node import OK, NodeState, SourceState
from timesyncd.units import SIGMA_PER_MAD

#: At first every reading counts, later one a minute: the median is that of an hour.
MIN_DELAY_READINGS = 24
MAX_READINGS = 60
_FIRST_EVERY_NS = 4 * NS_PER_S
_EVERY_NS = 60 * NS_PER_S

#: A path delay changed when it is more than so many standard deviations, so many ns, and 1 / LEAST_SHARE from its
#: median. Nearly all nodes of a group must show it, so the limit for one node may be low.
SIGMAS = 5
LEAST_NS = 100
LEAST_SHARE = 20

#: A change that has lasted for so long is the new normal.
NORMAL_AFTER_NS = 3_600 * NS_PER_S


class DelayHistory:
    """
    The delay of one path; another parent clock begins a new history. `direction` is 1 while the delay is longer than
    before, -1 while it is shorter, since `since_ns` and by `moved_ns`. The median does not change meanwhile.
    """

    __slots__ = ("_limit_ns", "_next_ns", "_oldest", "_readings", "direction", "median_ns", "moved_ns", "since_ns")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.direction = 0
        self.since_ns = self.moved_ns = self.median_ns = 0
        self._limit_ns = 0
        self._next_ns = 0
        self._oldest = 0
        self._readings = array("q")

    @property
    def is_known(self) -> bool:
        return len(self._readings) >= MIN_DELAY_READINGS

    def update(self, delay_ns: int, now_ns: int) -> None:
        self.moved_ns = delay_ns - self.median_ns
        is_moved = self.is_known and abs(self.moved_ns) > self._limit_ns
        direction = (1 if self.moved_ns > 0 else -1) if is_moved else 0
        if direction != self.direction:
            self.direction, self.since_ns = direction, now_ns
        elif direction and now_ns - self.since_ns >= NORMAL_AFTER_NS:
            self._begin()
        if not self.direction and now_ns >= self._next_ns:
            self._keep(delay_ns, now_ns)

    def _keep(self, delay_ns: int, now_ns: int) -> None:
        readings = self._readings
        if len(readings) < MAX_READINGS:
            readings.append(delay_ns)
        else:
            readings[self._oldest] = delay_ns
            self._oldest = (self._oldest + 1) % MAX_READINGS
        if len(readings) < MIN_DELAY_READINGS:
            self._next_ns = now_ns + _FIRST_EVERY_NS
            return
        self._next_ns = now_ns + _EVERY_NS
        self.median_ns = int(median(readings))
        spread_ns = SIGMAS * SIGMA_PER_MAD * median(abs(each - self.median_ns) for each in readings)
        self._limit_ns = max(LEAST_NS, self.median_ns // LEAST_SHARE, int(spread_ns))


#: So many readings give a node's usual distance from its siblings.
MIN_OFFSET_READINGS = 12

#: One late packet explains a single reading, but not so many in a row over so long.
ALONE_READINGS = 4
ALONE_FOR_NS = 12 * NS_PER_S

#: A node's usual distance decays to a half in 177 readings: in a quarter of an hour at one reading each 5 s.
_DECAY_READINGS = 256

#: An outlier raises the usual distance to at most so many limits, so that it hides later ones for minutes, not for a
#: day.
_MAX_OUTLIER_LIMITS = 4


class OffsetHistory:
    """
    `usual_ns` is the largest recent distance. Beyond twice that, and beyond what noise and bounds allow, the node is
    suspect, since `since_ns` and by at least `least_ns`; `suspect` counts the readings.
    """

    __slots__ = ("_peak_ns", "_readings", "least_ns", "since_ns", "suspect", "usual_ns")

    def __init__(self) -> None:
        self.usual_ns = 0
        self.suspect = 0
        self.since_ns = 0
        self.least_ns = 0
        self._peak_ns = 0
        self._readings = 0

    def update(self, distance_ns: int, allowed_ns: int, now_ns: int) -> None:
        """Take in the next signed distance from the siblings' median; `allowed_ns` is what noise and bounds explain."""
        far_ns, limit_ns = abs(distance_ns), max(allowed_ns, 2 * self.usual_ns)
        if self.is_alone(now_ns):
            limit_ns //= 2
        is_over = self._readings >= MIN_OFFSET_READINGS and far_ns > limit_ns
        if is_over and not (self.suspect and now_ns - self.since_ns >= NORMAL_AFTER_NS):
            self._suspect(distance_ns, now_ns)
            return
        self._readings += 1
        outlier_ns = min(self._peak_ns, _MAX_OUTLIER_LIMITS * limit_ns)
        kept_ns = self.usual_ns - self.usual_ns // _DECAY_READINGS
        self.usual_ns = max(far_ns, kept_ns, outlier_ns)
        self.clear()

    def clear(self) -> None:
        """The node is no longer suspect."""
        self.suspect = self._peak_ns = 0

    @property
    def is_beyond_chance(self) -> bool:
        """More than one late packet."""
        return self.suspect > 1

    def is_alone(self, now_ns: int) -> bool:
        return self.suspect >= ALONE_READINGS and now_ns - self.since_ns >= ALONE_FOR_NS

    def _suspect(self, distance_ns: int, now_ns: int) -> None:
        if self.suspect and (distance_ns > 0) != (self.least_ns > 0):
            self.suspect = 0  # ahead and behind in turn is noise
        if self.suspect == 0:
            self.since_ns, self.least_ns = now_ns, distance_ns
        self.suspect += 1
        self.least_ns = min(self.least_ns, distance_ns, key=abs)
        self._peak_ns = max(self._peak_ns, abs(distance_ns))


#: A sample that is so much younger is another one: two states may date the same sample some microseconds apart.
_NEWER_NS = 1_000_000

NTP_FRESH_NS = 60 * NS_PER_S

UTC = "UTC"

Witness = tuple[str, str, int, int]
"""
(grandmaster, other, offset_ns, error_ns): the grandmaster's time minus that of `other` (an identity or UTC), within
+-error_ns.
"""


class NodeRecord:
    """
    One node. `contradicts`: one of its witnesses is beyond its error. `offset_ns`, its `error_ns` and the histories are
    of the PTP source that its clock follows; `is_new` until a round has read the newest offset. `parent` and
    `grandmaster` are "" where it follows none. `domains` and `grandmasters` are of all its PTP sources that give
    samples. `followed` is the age of that source's sample at its publication, and the path delay; None: it has none.
    """

    __slots__ = (
        "contradicts",
        "delays",
        "domains",
        "error_ns",
        "followed",
        "grandmaster",
        "grandmasters",
        "is_new",
        "node",
        "offset_ns",
        "offsets",
        "parent",
        "received_ns",
        "sample_ns",
        "silent_after_ns",
        "topology",
        "witnesses",
    )  # fmt: skip

    def __init__(self, node: str) -> None:
        self.node = node
        self.topology = self.parent = self.grandmaster = ""
        self.received_ns = self.silent_after_ns = 0
        self.sample_ns: int | None = None
        self.offset_ns: int | None = None
        self.error_ns = 0
        self.is_new = False
        self.domains: tuple[int, ...] = ()
        self.grandmasters: tuple[str, ...] = ()
        self.witnesses: tuple[Witness, ...] = ()
        self.contradicts = False
        self.followed: tuple[int, int | None] | None = None
        self.offsets = OffsetHistory()
        self.delays = DelayHistory()

    def update(self, state: NodeState, received_ns: int) -> None:
        """Take in the node's newest live state; `received_ns` is CLOCK_BOOTTIME of this daemon."""
        self.received_ns = received_ns
        self.silent_after_ns = silent_after_ns(state)
        self.topology = intern(state.topology)
        ptp = [source for source in state.sources if source.kind == "ptp" and source.reason_code == OK]
        self.domains = tuple(sorted({source.domain for source in ptp if source.domain is not None}))
        self.grandmasters = tuple(
            {intern(source.grandmaster_identity) for source in ptp if source.grandmaster_identity}
        )
        self.witnesses = tuple(_witnesses(state.sources, state.holdover_after_ns)) if ptp else ()
        self.contradicts = any(abs(offset_ns) > error_ns for _, _, offset_ns, error_ns in self.witnesses)
        self._update_followed(state, ptp, received_ns)

    def repeat(self, published_realtime_ns: int, received_ns: int) -> None:
        """Take in a state that differs from the newest one in its time of publication alone."""
        self.received_ns = received_ns
        if self.followed is not None:
            self._update_sample(published_realtime_ns, *self.followed, received_ns)

    def is_silent(self, now_ns: int) -> bool:
        return now_ns - self.received_ns > self.silent_after_ns

    def _update_followed(self, state: NodeState, ptp: list[SourceState], received_ns: int) -> None:
        grandmaster = state.grandmaster_identity
        followed = next((each for each in ptp if grandmaster and each.grandmaster_identity == grandmaster), None)
        age_ns = followed.age_ns if followed else None
        if followed is None or age_ns is None or age_ns >= state.holdover_after_ns or followed.offset_ns is None:
            self.offset_ns = self.followed = None
            return
        path = (intern(state.parent_identity or ""), intern(grandmaster or ""))
        if path != (self.parent, self.grandmaster):
            self.parent, self.grandmaster = path
            self.offsets, self.delays = OffsetHistory(), DelayHistory()
        self.offset_ns = None
        if state.parent is not None and state.parent.bound_ns is not None:
            self.offset_ns = followed.offset_ns
            self.error_ns = max(0, state.parent.bound_ns - abs(followed.offset_ns))
        self.followed = (age_ns, followed.path_delay_ns)
        self._update_sample(state.published_realtime_ns, *self.followed, received_ns)

    def _update_sample(self, published_ns: int, age_ns: int, path_delay_ns: int | None, received_ns: int) -> None:
        sample_ns = published_ns - age_ns
        if self.sample_ns is not None and abs(sample_ns - self.sample_ns) < _NEWER_NS:
            return
        self.sample_ns, self.is_new = sample_ns, True
        if path_delay_ns is not None:
            self.delays.update(path_delay_ns, received_ns)


def _witnesses(sources: list[SourceState], fresh_ns: int) -> Iterator[Witness]:
    """Each grandmaster against the node's other sources, all against UTC, so that the errors of both are included."""
    claims = [claim for source in sources if (claim := _claim(source, fresh_ns)) is not None]
    if len(claims) < 2:
        return
    for grandmaster, offset_ns, error_ns in claims:
        if grandmaster == UTC:
            continue
        for other, other_ns, other_error_ns in claims:
            if other != grandmaster:
                yield grandmaster, other, other_ns - offset_ns, error_ns + other_error_ns


def _claim(source: SourceState, fresh_ns: int) -> tuple[str, int, int] | None:
    """
    (grandmaster or UTC, clock minus UTC by it, its error). The error is the part of the UTC bound beyond the offset. A
    PHC's offset counts as the system clock's, since the bound covers the difference. NTP is polled less often than PTP
    measures, and its bound grows meanwhile, so it is fresh for longer.
    """
    is_ntp = source.kind == "utc"
    name = UTC if is_ntp else source.grandmaster_identity
    utc, offset_ns, age_ns = source.utc, source.offset_ns, source.age_ns
    if name is None or utc is None or utc.bound_ns is None or offset_ns is None or age_ns is None:
        return None
    if source.reason_code != OK or age_ns >= (NTP_FRESH_NS if is_ntp else fresh_ns):
        return None
    bound_ns = Bound(utc.bound_ns, utc.growth_ppb).at(age_ns) or 0
    return intern(name), offset_ns, max(0, bound_ns - abs(offset_ns))
