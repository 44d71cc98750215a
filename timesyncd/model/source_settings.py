"""What is assumed of a clock source."""

from __future__ import annotations

from dataclasses import dataclass

from timesyncd.clocks import STEP_TOLERANCE_NS


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is assumed of a source, see `[source.bounds]`; every assumption is listed in docs/error-bound.md."""

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
