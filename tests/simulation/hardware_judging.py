"""The ensemble's bounds against the truth of a simulated chain with hardware timestamps."""

from __future__ import annotations

from collections.abc import Iterator

from hardware_chain import BOOTTIME_EPOCH_NS, PHC, PTP, HardwareChain, HardwareInstant
from hardware_scenarios import HardwareScenario
from judging import Judgement, Reader

from timesyncd.bound import ErrorBound
from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import ReplayedRow, bounds_at

#: No program here misses a step of less than a segment's reader may.
SETTINGS = EnsembleSettings(SourceSettings(step_tolerance_ns=0))


def replayed_hardware(
    scenario: HardwareScenario, seed: int, seconds: float | None = None
) -> Iterator[tuple[HardwareInstant, ReplayedRow]]:
    """Each instant with the published bounds at it: by the readings up to it."""
    ensemble, reader = Ensemble({PTP: SETTINGS, PHC: SETTINGS}), Reader()
    written: ErrorBound | None = None
    for instant in HardwareChain(scenario, seed, seconds).instants():
        for reading in instant.readings:
            written = ensemble.accept(reading).bound or written
        known = reader.read(written, instant, instant.boottime_ns)
        if written is not None and abs(written.real_minus_boot_ns - instant.real_minus_boot_ns) > STEP_TOLERANCE_NS:
            known = bounds_at(None, instant.boottime_ns)  # each reader of the segment sees that the clock was stepped
        yield instant, known


def judged_hardware(scenario: HardwareScenario, seed: int) -> Judgement:
    judgement = Judgement(seed)
    for instant, row in replayed_hardware(scenario, seed):
        judgement.count(instant, instant.boottime_ns - BOOTTIME_EPOCH_NS, row)
    return judgement
