"""What is assumed of a clock source by the file, and what samples can refute of it; docs/error-bound.md explains each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from timesyncd.clocks import STEP_TOLERANCE_NS


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The assumptions about a clock source, `[source.bounds]` in the file; docs/error-bound.md explains each."""

    local_drift_ppb: int = 50_000
    drift_floor_ppb: int = 1_000
    grandmaster_rate_ppb: int = 100
    delay_filter_length: int = 10
    boundary_clock_error_ns: int | None = None
    asymmetry_uncertainty_ns: int = 0
    path_minimum_ns: int = 0
    step_tolerance_ns: int = STEP_TOLERANCE_NS
    grandmaster_holdover_budget_ns: int = 1_500
    utc_offset_s: int = 37


class Assumption(StrEnum):
    """An assumption of `SourceSettings` that samples can refute; the value is its name in the file."""

    LOCAL_DRIFT = "local_drift_ppb"
    DRIFT_FLOOR = "drift_floor_ppb"
    GRANDMASTER_RATE = "grandmaster_rate_ppb"
    BOUNDARY_CLOCK_ERROR = "boundary_clock_error_ns"
    PATH_MINIMUM = "path_minimum_ns"


class Refutation(NamedTuple):
    """The samples show `observed` where the file assumes `assumed`; the observed value counts from then on."""

    assumption: Assumption
    assumed: int
    observed: int


def assumed(settings: SourceSettings) -> dict[Assumption, int]:
    """What the file assumes; the floor of the drift is never above the drift itself."""
    configured_ns = settings.boundary_clock_error_ns
    return {
        **({} if configured_ns is None else {Assumption.BOUNDARY_CLOCK_ERROR: configured_ns}),
        Assumption.LOCAL_DRIFT: settings.local_drift_ppb,
        Assumption.DRIFT_FLOOR: min(settings.drift_floor_ppb, settings.local_drift_ppb),
        Assumption.GRANDMASTER_RATE: settings.grandmaster_rate_ppb,
        Assumption.PATH_MINIMUM: settings.path_minimum_ns,
    }
