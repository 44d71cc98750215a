"""
The bound against a truth that can refute it.

Both ends of the pair stamp with one clock, and the relay adds a known x(t) to the grandmaster's timestamps: the true offset
is -x(t). One walk through constant, ramp, unequal delays and step is recorded once; the tests judge the recording.
A bound holds the truth when |true offset| <= bound. A large reported offset makes that easy, so the bound is judged without
its |offset| term too: |true offset - offset| <= bound - |offset|.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from timesyncd.bound import ErrorBound, Term
from timesyncd.clocks import SystemClocks
from timesyncd.driver import Runner
from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.sample import ClockSample, NoSample
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.relay import Piece

pytestmark = pytest.mark.integration

RAMP_PPB = 20_000
SLOW_NS = 5_000_000

# How often the walk is gone; `make soak` goes it for longer.
ROUNDS = int(os.environ.get("TIMESYNCD_TRUTH_ROUNDS", "1"))

#: A Sync that left the grandmaster before the step may arrive so much later.
IN_FLIGHT_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Phase:
    """What the relay does from now on, and for how long; x_ns None = no step."""

    name: str
    seconds: float
    x_ns: int | None = None
    rate_ppb: int = 0
    delay_to_node_ns: int = 0
    delay_to_grandmaster_ns: int = 0


WALK = [
    Phase("constant", 20),
    Phase("ramp", 30, rate_ppb=RAMP_PPB),
    Phase("slow to the node", 25, delay_to_node_ns=SLOW_NS),
    Phase("slow to the grandmaster", 25, delay_to_grandmaster_ns=SLOW_NS),
    Phase("equal again", 10),
    Phase("step up", 15, x_ns=8_000_000),
    Phase("step down", 15, x_ns=300_000),
]
SLOW_PHASES = ("slow to the node", "slow to the grandmaster")
STEP_PHASES = ("step up", "step down")


@dataclass(frozen=True, slots=True)
class Observed:
    """A sample, the bound that followed, and the moment at which a reader could first have it."""

    phase: str
    sample: ClockSample
    bound: ErrorBound
    phase_jump_ns: int | None
    realtime_ns: int
    boottime_ns: int


@dataclass(frozen=True, slots=True)
class Judged:
    """One reading of the interval: the bound as aged at that moment, and the truth then."""

    phase: str
    bound_ns: int
    path_delay_term_ns: int
    offset_ns: int
    true_offset_ns: int

    def holds(self) -> bool:
        return abs(self.true_offset_ns) <= self.bound_ns

    def holds_without_offset(self) -> bool:
        return abs(self.true_offset_ns - self.offset_ns) <= self.bound_ns - abs(self.offset_ns)

    def holds_without_offset_and_path_delay(self) -> bool:
        """The mutant: a model that forgot the path delay."""
        slack_ns = self.bound_ns - abs(self.offset_ns) - self.path_delay_term_ns
        return abs(self.true_offset_ns - self.offset_ns) <= slack_ns


@dataclass(frozen=True, slots=True)
class Recording:
    """The walk: what was observed, the error of each offset in it, where each step began, and each reading judged."""

    observed: list[Observed]
    errors_ns: list[int]
    steps: list[tuple[str, Piece]]
    judged: list[Judged]

    def share(self, phases: tuple[str, ...], holds: Callable[[Judged], bool]) -> float:
        verdicts = [holds(judged) for judged in self.judged if judged.phase in phases]
        return sum(verdicts) / len(verdicts)


class Walker:
    """Goes the walk and observes at the same time."""

    def __init__(self, bed: PtpBed, folder: Path) -> None:
        source = SourceSettings(grandmaster_rate_ppb=30_000)
        self._ensemble = Ensemble({"ptp": EnsembleSettings(source)})
        options = Ptp4lOptions(uds_address=Path(bed.nodes["b"].uds_address), domain=DOMAIN)
        self._runner = Runner("ptp", Ptp4l("ptp", options, folder), SystemClocks(), report=lambda _: None)
        self._bed = bed
        self._phase = WALK[0].name
        self._first = asyncio.Event()
        self.observed: list[Observed] = []
        self.steps: list[tuple[str, Piece]] = []

    async def go(self) -> None:
        self._bed.set_relay("b", x_ns=300_000)
        async with asyncio.TaskGroup() as tasks:
            observing = tasks.create_task(self._observe())
            async with asyncio.timeout(60):
                await self._first.wait()
            for phase in WALK * ROUNDS:
                self._enter(phase)
                await asyncio.sleep(phase.seconds)
            observing.cancel()

    def _enter(self, phase: Phase) -> None:
        piece = self._bed.set_relay(
            "b",
            x_ns=phase.x_ns,
            rate_ppb=phase.rate_ppb,
            delay_to_node_ns=phase.delay_to_node_ns,
            delay_to_grandmaster_ns=phase.delay_to_grandmaster_ns,
        )
        self._phase = phase.name
        if phase.x_ns is not None:
            self.steps.append((phase.name, piece))

    async def _observe(self) -> None:
        clocks = SystemClocks()
        async for reading in self._runner.samples():
            assert isinstance(reading, ClockSample | NoSample)
            outcome = self._ensemble.accept(reading)
            if isinstance(reading, NoSample) or outcome.bound is None:
                continue
            moment = clocks.realtime_ns(), clocks.boottime_ns()
            self.observed.append(Observed(self._phase, reading, outcome.bound, outcome.phase_jump_ns, *moment))
            self._first.set()


def judge(walker: Walker, bed: PtpBed) -> Iterator[Judged]:
    """Each bound as soon as it could be read, and once more when the next one replaced it."""
    for this, following in itertools.pairwise(walker.observed):
        for moment in (this, following):
            if any(unheard(piece, this.sample, moment.realtime_ns) for _, piece in walker.steps):
                continue
            bound_ns = this.bound.gm_hard.at(moment.boottime_ns - this.bound.as_of_ns)
            assert bound_ns is not None
            true_offset_ns = bed.true_offset_ns("b", moment.realtime_ns)
            terms = this.bound.terms
            yield Judged(this.phase, bound_ns, terms[Term.PATH_DELAY], this.sample.offset_ns, true_offset_ns)


def unheard(step: Piece, sample: ClockSample, realtime_ns: int) -> bool:
    """Between a step and the first Sync after it nothing on the node can know."""
    return sample.ingress_time_ns - IN_FLIGHT_NS < step.start_ns <= realtime_ns


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The walk, gone once for all tests."""

    async def walk() -> Recording:
        walker = Walker(bed, tmp_path_factory.mktemp("run"))
        await walker.go()
        samples = [each.sample for each in walker.observed]
        errors_ns = [abs(each.offset_ns - bed.true_offset_ns("b", each.ingress_time_ns)) for each in samples]
        return Recording(walker.observed, errors_ns, walker.steps, list(judge(walker, bed)))

    with PtpBed(relayed=("b",)) as bed:
        return asyncio.run(walk())


PHASES = [phase.name for phase in WALK]


@pytest.mark.parametrize("phase", PHASES)
def test_every_interval_holds_the_truth(recording: Recording, phase: str) -> None:
    """|true offset| <= bound, at every reading of every phase."""
    assert recording.share((phase,), Judged.holds) == 1.0


@pytest.mark.parametrize("phase", PHASES)
def test_the_bound_holds_without_the_help_of_a_large_offset(recording: Recording, phase: str) -> None:
    """|true offset - offset| <= bound - |offset|: the other terms alone cover the measurement's error."""
    assert recording.share((phase,), Judged.holds_without_offset) == 1.0


@pytest.mark.parametrize("phase", SLOW_PHASES)
def test_a_model_without_the_path_delay_is_refuted_by_unequal_delays(recording: Recording, phase: str) -> None:
    """This test bed's truth can refute a bound: half of the path's asymmetry is in no other term."""
    assert recording.share((phase,), Judged.holds_without_offset_and_path_delay) < 0.5


def first_jump(recording: Recording, step: Piece) -> tuple[int | None, int]:
    """
    What was reported within the first three samples whose Sync came after the step, and the most that the delay of one
    message can have added: the errors of the offsets around the step, those of Syncs that were in flight at it left out.
    """
    arrived_ns = [each.sample.ingress_time_ns for each in recording.observed]
    first = next(at for at, ingress_time_ns in enumerate(arrived_ns) if ingress_time_ns > step.start_ns)
    jumps_ns = [each.phase_jump_ns for each in recording.observed[first : first + 3]]
    around = range(first - 3, first + 4)
    compared = [at for at in around if not 0 < arrived_ns[at] - step.start_ns < IN_FLIGHT_NS]
    return next((ns for ns in jumps_ns if ns is not None), None), 2 * max(recording.errors_ns[at] for at in compared)


@pytest.mark.parametrize("phase", STEP_PHASES)
def test_a_step_is_reported_as_a_phase_jump(recording: Recording, phase: str) -> None:
    """One of the first samples after it reports it, with its sign and size, give or take what single messages were late."""
    expected_ns = {"step up": -7_100_000, "step down": 7_700_000}[phase]
    for jump_ns, late_ns in (first_jump(recording, piece) for name, piece in recording.steps if name == phase):
        assert jump_ns is not None
        assert (jump_ns > 0) == (expected_ns > 0)
        assert jump_ns == pytest.approx(expected_ns, abs=1_000_000 + late_ns)


def test_the_walk_was_observed_all_along(recording: Recording) -> None:
    """Every phase has fresh samples at nearly the Sync rate: a share of few would prove little."""
    counts = {phase.name: sum(each.phase == phase.name for each in recording.observed) for phase in WALK}

    assert {name for name, count in counts.items() if count < 40} == set()
