"""Which programs steer the system clock, by the kernel's sample and by what the sources of this node know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from timesyncd.sample import ClockSample, KernelSample, Movement


def unknown_discipline(sample: KernelSample) -> str | None:
    """In a container the program is hidden, which is no fault."""
    if sample.unexplained_movement is None or not sample.programs_visible:
        return None
    moves = _MOVEMENTS[sample.unexplained_movement]
    return f"{moves}, and no running program is known to steer it"


_MOVEMENTS = {
    Movement.FREQUENCY: "the clock's frequency moves",
    Movement.TICK: "the clock's tick moves",
    Movement.SLEW: "the clock is being slewed",
}


def steering_text(sample: KernelSample) -> str:
    """The programs that steer the system clock, as "chronyd, possibly sfptpd"."""
    hidden = "" if sample.programs_visible else "programs outside this container are hidden"
    unknown = (
        "" if sample.unexplained_movement is None else f"an unknown program: {_MOVEMENTS[sample.unexplained_movement]}"
    )
    possible = ", ".join(sample.undecided_disciplines)
    steering = ", ".join(sample.disciplines) or unknown or ("unknown" if hidden else "none found")
    return ", ".join(text for text in (steering, possible and f"possibly {possible}", hidden) if text)


#: A servo with software time stamps changes the frequency at each Sync; one that does not within so many runs free.
_SYNCS_UNTIL_FREE_RUNNING = 10


class Ptp4lSteering:
    """
    Whether each ptp4l that is a source of this node steers CLOCK_REALTIME, by its samples: one with hardware time stamps steers
    its PHC. Its process may not show that, where its configuration file cannot be read.
    """

    def __init__(self) -> None:
        self._known: dict[int, _KnownPtp4l] = {}

    def update(self, sample: ClockSample) -> None:
        if sample.daemon_pid is None:
            return
        known = self._known.get(sample.daemon_pid)
        if known is None or known.source != sample.source:
            self._known = {pid: each for pid, each in self._known.items() if each.source != sample.source}
            known = self._known[sample.daemon_pid] = _KnownPtp4l(sample.source)
        known.update(sample)

    def of_source(self, source: str) -> bool | None:
        """Whether the ptp4l of this source steers CLOCK_REALTIME; None: not known."""
        return next((each.steers for each in self._known.values() if each.source == source), None)

    def resolve(self, sample: KernelSample) -> KernelSample:
        """The kernel's sample without the doubt about these ptp4l."""
        return with_known_ptp4l(sample, {pid: each.steers for pid, each in self._known.items()})


@dataclass(slots=True)
class _KnownPtp4l:
    source: str
    steers: bool | None = None
    syncs: int = 0
    frequency_ppb: int | None = None

    def update(self, sample: ClockSample) -> None:
        """A software clock whose frequency does not change from Sync to Sync is not steered (free_running)."""
        moved = self.frequency_ppb is not None and sample.frequency_ppb not in (None, self.frequency_ppb)
        self.frequency_ppb, self.syncs = sample.frequency_ppb, self.syncs + 1
        if sample.clock != "realtime":
            self.steers = False
        elif moved:
            self.steers = True
        elif self.steers is None and self.syncs >= _SYNCS_UNTIL_FREE_RUNNING:
            self.steers = False


def with_known_ptp4l(sample: KernelSample, steers: Mapping[int, bool | None]) -> KernelSample:
    """
    The sample without the doubt about the ptp4l of these process ids: it steers CLOCK_REALTIME, or does not, or (None) that is
    unknown. Another undecided ptp4l, which is no source of this node, leaves the doubt.
    """
    pids = tuple(pid for pid in sample.undecided_ptp4l if steers.get(pid) is None)
    if pids == sample.undecided_ptp4l:
        return sample
    is_steering = any(steers.get(pid) for pid in sample.undecided_ptp4l)
    steering = tuple(sorted({*sample.disciplines, *(["ptp4l"] if is_steering else [])}))
    undecided = tuple(name for name in sample.undecided_disciplines if name != "ptp4l" or (pids and not is_steering))
    return replace(sample, disciplines=steering, undecided_disciplines=undecided, undecided_ptp4l=pids)
