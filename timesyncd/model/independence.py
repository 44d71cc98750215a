"""Whether an error of one source may be another's too: the causes that two sources share, and the groups that follow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from timesyncd.sample import ClockSample, UtcOrigin, UtcSample

#: The measured clock where ptp4l does not report which PHC it is.
UNNAMED_PHC = "phc"


class SharedCause(StrEnum):
    """Why two sources count as wrong together: the same clock is behind both, or none declares them independent."""

    NOT_DECLARED = "not_declared"
    SAME_GRANDMASTER = "same_grandmaster"
    SAME_PARENT = "same_parent"
    SAME_PHC = "same_phc"
    SAME_REFERENCE = "same_reference"


def shared_ptp_cause(one: ClockSample, other: ClockSample) -> SharedCause | None:
    """Two unknown identities may be one clock's."""
    if one.grandmaster_identity is None or one.grandmaster_identity == other.grandmaster_identity:
        return SharedCause.SAME_GRANDMASTER
    if one.parent_identity is None or one.parent_identity == other.parent_identity:
        return SharedCause.SAME_PARENT
    clocks = {one.clock, other.clock}
    is_one_phc = "realtime" not in clocks and (len(clocks) == 1 or UNNAMED_PHC in clocks)
    return SharedCause.SAME_PHC if is_one_phc else None


def may_share_reference(one: UtcSample, other: UtcSample) -> bool:
    """ClockBound reports no reference. Its version 2 has none of its own: its bound is chronyd's."""
    return one.reference == other.reference or UtcOrigin.CLOCKBOUND in (one.origin, other.origin)


def grouped(names: Sequence[str], share_a_cause: Callable[[str, str], object]) -> list[list[str]]:
    """
    The sources in groups, in the order of `names`: between two groups all are independent of each other; within one
    they may share a cause of error.
    """
    groups: list[list[str]] = []
    for name in names:
        joined = [group for group in groups if any(share_a_cause(name, other) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append(sorted([name, *(each for group in joined for each in group)], key=names.index))
    return sorted(groups, key=lambda group: names.index(group[0]))
