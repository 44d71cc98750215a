"""What the fleet's findings keep of each node: the newest state in short, since ten thousand whole ones are dear. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.fleet_delay_history import DelayHistory
from timesyncd.findings.fleet_offset_history import OffsetHistory
from timesyncd.fleet.node_clock import silent_after_ns
from timesyncd.messages.node import NodeState, SourceState

#: A reading is a new one when it is so much younger: two states date the same one by some microseconds differently.
_NEWER_NS = 1_000_000

NTP_FRESH_NS = 60 * NS_PER_S

UTC = "UTC"

Witness = tuple[str, str, int, int]
"""(grandmaster, other, offset_ns, error_ns): the grandmaster's time minus what `other` says, an identity or UTC, within +-error_ns."""


class NodeRecord:
    """
    One node; `contradicts` where one of its witnesses is beyond its error. `offset_ns`, its own `error_ns` and the histories are of the PTP source that its clock follows; `is_new` until a round has
    looked at the newest offset. `parent` and `grandmaster` are "" where it follows none; `domains` and `heard` are of all its PTP sources that
    measure.
    """

    __slots__ = (
        "contradicts", "delays", "domains", "error_ns", "grandmaster", "heard", "heard_ns", "is_new", "node", "offset_ns", "offsets",
        "parent", "sample_ns", "silent_after_ns", "topology", "witnesses",
    )  # fmt: skip

    def __init__(self, node: str) -> None:
        self.node = node
        self.topology = self.parent = self.grandmaster = ""
        self.heard_ns = self.silent_after_ns = 0
        self.sample_ns: int | None = None
        self.offset_ns: int | None = None
        self.error_ns = 0
        self.is_new = False
        self.domains: tuple[int, ...] = ()
        self.heard: tuple[str, ...] = ()
        self.witnesses: tuple[Witness, ...] = ()
        self.contradicts = False
        self.offsets = OffsetHistory()
        self.delays = DelayHistory()

    def note(self, state: NodeState, received_ns: int) -> None:
        """Take the node's newest live state; `received_ns` is CLOCK_BOOTTIME here."""
        self.heard_ns = received_ns
        self.silent_after_ns = silent_after_ns(state)
        self.topology = intern(state.topology)
        ptp = [source for source in state.sources if source.kind == "ptp" and source.reason is None]
        self.domains = tuple(sorted({source.domain for source in ptp if source.domain is not None}))
        self.heard = tuple({intern(source.grandmaster_identity) for source in ptp if source.grandmaster_identity})
        self.witnesses = tuple(_witnesses(state.sources, state.holdover_after_ns)) if ptp else ()
        self.contradicts = any(abs(offset_ns) > error_ns for _, _, offset_ns, error_ns in self.witnesses)
        self._note_followed(state, ptp, received_ns)

    def is_silent(self, now_ns: int) -> bool:
        return now_ns - self.heard_ns > self.silent_after_ns

    def _note_followed(self, state: NodeState, ptp: list[SourceState], received_ns: int) -> None:
        grandmaster = state.grandmaster_identity
        followed = next((each for each in ptp if each.grandmaster_identity == grandmaster), None)
        age_ns = followed.age_ns if followed else None
        if followed is None or age_ns is None or age_ns >= state.holdover_after_ns or followed.offset_ns is None:
            self.offset_ns = None
            return
        path = (intern(state.parent_identity or ""), intern(grandmaster or ""))
        if path != (self.parent, self.grandmaster):
            self.parent, self.grandmaster = path
            self.offsets, self.delays = OffsetHistory(), DelayHistory()
        self.offset_ns = None
        if state.parent is not None and state.parent.bound_ns is not None:
            self.offset_ns = followed.offset_ns
            self.error_ns = max(0, state.parent.bound_ns - abs(followed.offset_ns))
        sample_ns = state.published_realtime_ns - age_ns
        if self.sample_ns is not None and abs(sample_ns - self.sample_ns) < _NEWER_NS:
            return
        self.sample_ns, self.is_new = sample_ns, True
        if followed.path_delay_ns is not None:
            self.delays.note(followed.path_delay_ns, received_ns)


def _witnesses(sources: list[SourceState], fresh_ns: int) -> Iterator[Witness]:
    """What the node's other sources make of each grandmaster, all against UTC, so that each one's own error is in it."""
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
    (grandmaster or UTC, clock - UTC by it, its error): the error is what the UTC bound holds beyond the offset. The offset of a PHC stands
    for the system clock's, since what lies between is in the bound. NTP is asked less often than PTP measures, and its bound
    grows meanwhile: it is fresh for longer.
    """
    is_ntp = source.kind == "utc"
    name = UTC if is_ntp else source.grandmaster_identity
    utc, offset_ns, age_ns = source.utc, source.offset_ns, source.age_ns
    if name is None or utc is None or utc.bound_ns is None or offset_ns is None or age_ns is None:
        return None
    if source.reason is not None or age_ns >= (NTP_FRESH_NS if is_ntp else fresh_ns):
        return None
    bound_ns = Bound(utc.bound_ns, utc.growth_ppb).at(age_ns) or 0
    return intern(name), offset_ns, max(0, bound_ns - abs(offset_ns))
