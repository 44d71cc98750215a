"""
A boundary clock (T-BC) that loses its own parent and goes on announcing the grandmaster's class 6, against the truth.

The chain's own grandmaster is the boundary clock here, and true time is the grandmaster behind it: the node measures the
one and wants the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from chain import Chain, Instant
from chain_samples import sampled
from grandmaster_clock import GrandmasterSpec
from judging import Judgement, Reader
from scenarios import BY_NAME, Scenario

from timesyncd.bound import Bound, ErrorBound
from timesyncd.clocks import NS_PER_S
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.grandmaster import GrandmasterVerdict
from timesyncd.model.replay import ReplayedRow

SECONDS = 900

BOUNDARY_CLOCK = "0011aa.fffe.bbccdd"

#: Its phase while it is locked; the chain's grandmaster swings by as much.
LOCKED_NS = 50

POLL_S = 10.0


@dataclass(frozen=True)
class BoundaryClockScenario:
    """
    The boundary clock loses its parent at `lost_s`, and its oscillator leaves the grandmaster by `drift_ppb`. `error_ns` is
    configured of it; None: nothing is. `polled`: a hub polls it, and its `[oscillator]` has the drift as its curve.
    """

    name: str
    base: str = "quiet"
    lost_s: float = 300.0
    drift_ppb: float = 10.0
    error_ns: int | None = LOCKED_NS
    polled: bool = False

    @property
    def chain(self) -> Scenario:
        spec = GrandmasterSpec(loses_reference_s=self.lost_s, drift_ppb=self.drift_ppb, lies=True)
        return replace(BY_NAME[self.base], name=f"{self.name}, {self.base}", grandmaster=spec)


#: The names of the scenarios that keep the assumptions, and whether a hub polls the boundary clock.
KEEPING_BOUNDARY_CLOCKS = {"T-BC holdover": False, "T-BC holdover, polled": True}

#: The paths and oscillators that a seed chooses from.
_BASES = ("quiet", "lopsided", "queues", "temperature", "loss", "reroutes", "no Sync at times", "nothing at times")


def drawn_boundary_clock(name: str, seed: int) -> BoundaryClockScenario:
    """When its parent is lost, how fast it leaves, and what lies between; the configured error covers that, if no poll does."""
    chance, polled = Random(f"{name}/{seed}"), KEEPING_BOUNDARY_CLOCKS[name]
    lost_s, drift_ppb = chance.uniform(60, 0.8 * SECONDS), chance.uniform(0.1, 90)
    unseen_s = 2 * POLL_S if polled else SECONDS - lost_s
    error_ns = LOCKED_NS + round(drift_ppb * unseen_s) + 1
    return BoundaryClockScenario(name, chance.choice(_BASES), lost_s, drift_ppb, error_ns, polled)


def published(
    scenario: BoundaryClockScenario, model: Ensemble, seed: int
) -> Iterator[tuple[Instant, ErrorBound | None]]:
    """Each moment with the bound that the daemon publishes then; the grandmaster of an instant is the one behind."""
    bound, poll_ns = None, 0.0
    for instant, sample in sampled(Chain(scenario.chain, seed, SECONDS).instants()):
        now_ns = instant.row.t_ns
        if scenario.polled and now_ns >= poll_ns:
            poll_ns = now_ns + POLL_S * NS_PER_S
            bound = model.update_grandmaster("t-bc", [BOUNDARY_CLOCK], _verdict(scenario, now_ns), now_ns) or bound
        if sample is not None:
            bound = model.accept(replace(sample, steps_removed=2, parent_identity=BOUNDARY_CLOCK)).bound or bound
        yield instant, bound


def _verdict(scenario: BoundaryClockScenario, now_ns: int) -> GrandmasterVerdict:
    lost_ns, drift_ppb = round(scenario.lost_s * NS_PER_S), round(scenario.drift_ppb) + 1
    if now_ns < lost_ns:
        return GrandmasterVerdict("hub", Bound(LOCKED_NS, drift_ppb), now_ns)
    error_ns = LOCKED_NS + drift_ppb * (now_ns - lost_ns) // NS_PER_S + 1
    return GrandmasterVerdict("hub", Bound(error_ns, drift_ppb), now_ns, 2 * SECONDS * NS_PER_S)


def ensemble(error_ns: int | None) -> Ensemble:
    source = SourceSettings(step_tolerance_ns=0, boundary_clock_error_ns=error_ns)
    return Ensemble({"ptp": EnsembleSettings(source)})


def replayed_boundary_clock(name: str, seed: int) -> Iterator[tuple[Instant, ReplayedRow]]:
    scenario, reader = drawn_boundary_clock(name, seed), Reader()
    for instant, bound in published(scenario, ensemble(scenario.error_ns), seed):
        behind = instant._replace(gm_error_ns=instant.utc_error_ns)
        yield behind, reader.read(bound, instant, instant.row.t_ns)


def judged_boundary_clock(name: str, seed: int) -> Judgement:
    """Of the bound against the grandmaster: UTC rests on the class, and the boundary clock lies."""
    judgement = Judgement(seed)
    for instant, row in replayed_boundary_clock(name, seed):
        judgement.count(instant, instant.row.t_ns, row)
    return judgement
