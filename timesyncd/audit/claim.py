"""
The claims of vendors of timing equipment, and what the variants of one reproducible job gain beside them.

All variants make the same updates to rounding, so a shorter step is a shorter training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.audit import bootstrap
from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.report import EstimateReport
from timesyncd.ipc.wire_types import Int64
from timesyncd.messages.node import Message
from timesyncd.training.claim_plan import Variant


@dataclass(frozen=True, slots=True)
class VendorClaim:
    """What vendors claim: a change of a figure, as the ends of its range. A figure that is less is a negative change."""

    name: str
    low: float
    high: float
    figure: Callable[[bootstrap.StepSums], float]


CLAIMS = (
    VendorClaim("training time", -0.35, -0.20, lambda sums: sums.step_ns),
    VendorClaim("synchronization overhead", -0.50, -0.40, lambda sums: sums.overhead),
    VendorClaim("utilization", 0.25, 0.30, lambda sums: 1 - sums.overhead),
)


class ChangeReport(Message):
    """The relative change of a figure against `before`, with its 95 % interval; `claimed`: the vendors' range."""

    figure: str
    variant: str
    change: EstimateReport
    claimed: tuple[float, float]


class FigureReport(Message):
    """A variant's figures: the time of a step, its exposed waiting as a share, and the rest as utilization."""

    variant: str
    steps: Int64
    step_ns: EstimateReport
    sync_overhead: EstimateReport
    utilization: EstimateReport


class ClaimReport(Message):
    """
    `timesyncd claim --json`. `clocks_reason`: why the variants by the clock were not run; empty: they were. `shares`: by
    rank, the shares of the batch that were applied. `plan`: what the audit of `before` advised.
    """

    version: Int64 = 1
    ranks: Int64
    shares: list[float]
    plan: list[str]
    clocks_reason: str
    figures: list[FigureReport]
    changes: list[ChangeReport]


def figures(samples: Mapping[Variant, Sequence[bootstrap.StepSample]]) -> list[FigureReport]:
    return [
        FigureReport(
            variant=variant,
            steps=len(steps),
            step_ns=_estimate(bootstrap.estimate(steps, lambda sums: sums.step_ns)),
            sync_overhead=_estimate(bootstrap.estimate(steps, lambda sums: sums.overhead)),
            utilization=_estimate(bootstrap.estimate(steps, lambda sums: 1 - sums.overhead)),
        )
        for variant, steps in samples.items()
    ]


def changes(samples: Mapping[Variant, Sequence[bootstrap.StepSample]]) -> list[ChangeReport]:
    """Of each claimed figure in each variant, against `before`."""
    before = samples[Variant.BEFORE]
    return [
        ChangeReport(
            figure=claim.name,
            variant=variant,
            change=_estimate(bootstrap.change(before, steps, _relative(claim.figure))),
            claimed=(claim.low, claim.high),
        )
        for claim in CLAIMS
        for variant, steps in samples.items()
        if variant is not Variant.BEFORE
    ]


def _relative(
    figure: Callable[[bootstrap.StepSums], float],
) -> Callable[[bootstrap.StepSums, bootstrap.StepSums], float]:
    """The relative change; 0 where there was nothing before."""

    def change(before: bootstrap.StepSums, after: bootstrap.StepSums) -> float:
        was = figure(before)
        return figure(after) / was - 1 if was else 0.0

    return change


def _estimate(found: bootstrap.Estimate) -> EstimateReport:
    return EstimateReport(value=found.value, low=found.low, high=found.high)


#: The columns of the table, each with its title: which part comes from timing, which from policies.
_COLUMNS = (
    (Variant.TIMING, "timing"),
    (Variant.TIMING_WITHOUT_CLOCKS, "the same without clocks"),
    (Variant.POLICIES, "policies"),
    (Variant.BOTH, "both"),
    (Variant.BOTH_WITHOUT_CLOCKS, "both without clocks"),
)


def lines(found: ClaimReport) -> list[str]:
    """For a terminal: the plan, what each variant takes, and each claim beside what was measured."""
    text = [f"A job of {found.ranks} ranks, of which rank 1 computes each sample longer, and each rank pauses."]
    text += ["Plan, by the audit of the job as it was:", *(f"  {line}" for line in found.plan)]
    text.append("Measured, with 95 % intervals:")
    for one in found.figures:
        text.append(
            f"  {one.variant:22} a step takes {_span(one.step_ns, short_duration)}; overhead "
            f"{_span(one.sync_overhead, percent)}; utilization {_span(one.utilization, percent)}; {one.steps} steps"
        )
    if found.clocks_reason:
        text.append(f"Unknown: what clocks add, because {found.clocks_reason}.")
    for claim in CLAIMS:
        text.append(f"{claim.name}: vendors claim {_claimed(claim)}")
        of_claim = {one.variant: one for one in found.changes if one.figure == claim.name}
        for variant, title in _COLUMNS:
            measured = "unknown" if variant not in of_claim else _signed_span(of_claim[variant].change)
            text.append(f"  {title:24} {measured}")
    return text


def _claimed(claim: VendorClaim) -> str:
    ends = sorted((abs(claim.low), abs(claim.high)))
    return f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f} % {'less' if claim.low < 0 else 'more'}"


def _span(estimate: EstimateReport, text: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{text(estimate.value)} (too few steps for an interval)"
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


def _signed_span(estimate: EstimateReport) -> str:
    return _span(estimate, lambda value: f"{100 * value:+.1f} %")
