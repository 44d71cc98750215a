"""One node's offset against that of its siblings: how far it usually is, and since when it is further. Pure."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S

#: So many readings tell how far a node usually is from its siblings.
MIN_READINGS = 12

#: Of a single reading one late packet may be the reason; of so many in a row over so long it is not.
ALONE_READINGS = 4
ALONE_FOR_NS = 12 * NS_PER_S

#: What has stood for so long is how it is now.
NORMAL_AFTER_NS = 3_600 * NS_PER_S

#: A node's usual distance is forgotten to a half in 177 readings: a quarter of an hour of one each 5 s.
_FORGOTTEN_PER_READING = 256

#: One wild reading blinds for a while, not for a day.
_MOST_OF_LIMIT = 4


class OffsetHistory:
    """
    `usual_ns` is the largest distance of late. Beyond twice that, and beyond what noise and bounds allow, a node is suspect:
    `since_ns` tells from when on, `least_ns` by how much at least.
    """

    __slots__ = ("_peak_ns", "_readings", "least_ns", "since_ns", "suspect", "usual_ns")

    def __init__(self) -> None:
        self.usual_ns = 0
        self.suspect = 0
        self.since_ns = 0
        self.least_ns = 0
        self._peak_ns = 0
        self._readings = 0

    def note(self, distance_ns: int, allowed_ns: int, now_ns: int) -> None:
        """The next reading: signed, from the siblings' median; `allowed_ns` is what noise and bounds explain."""
        far_ns, limit_ns = abs(distance_ns), max(allowed_ns, 2 * self.usual_ns)
        if self.is_alone(now_ns):
            limit_ns //= 2
        is_over = self._readings >= MIN_READINGS and far_ns > limit_ns
        if is_over and not (self.suspect and now_ns - self.since_ns >= NORMAL_AFTER_NS):
            self._suspect(distance_ns, now_ns)
            return
        self._readings += 1
        outlier_ns = min(self._peak_ns, _MOST_OF_LIMIT * limit_ns)
        kept_ns = self.usual_ns - self.usual_ns // _FORGOTTEN_PER_READING
        self.usual_ns = max(far_ns, kept_ns, outlier_ns)
        self.clear()

    def clear(self) -> None:
        """It is suspect no longer."""
        self.suspect = self._peak_ns = 0

    @property
    def is_beyond_chance(self) -> bool:
        """More than one late packet."""
        return self.suspect > 1

    def is_alone(self, now_ns: int) -> bool:
        return self.suspect >= ALONE_READINGS and now_ns - self.since_ns >= ALONE_FOR_NS

    def _suspect(self, distance_ns: int, now_ns: int) -> None:
        if self.suspect and (distance_ns > 0) != (self.least_ns > 0):
            self.suspect = 0  # once ahead and once behind is noise
        if self.suspect == 0:
            self.since_ns, self.least_ns = now_ns, distance_ns
        self.suspect += 1
        self.least_ns = min(self.least_ns, distance_ns, key=abs)
        self._peak_ns = max(self._peak_ns, abs(distance_ns))
