"""A second source of UTC beside ptp4l, against the truth: one that shares the first one's error, and one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from chain import Chain, Instant
from chain_samples import sampled
from judging import Judgement, Reader
from scenarios import BY_NAME

from timesyncd.bound import ErrorBound
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import ReplayedRow, TraceRow
from timesyncd.sample import UtcOrigin, UtcSample

SECONDS = 300

#: What chronyd takes for its error: the jitter of its reference, and nothing of the path that is 10 us lopsided.
OWN_ERROR_NS = 1_000


@dataclass(frozen=True)
class SecondSource:
    """
    What chronyd follows, whether the operator declares it independent of ptp4l, and whether it is: one that is not measures
    along ptp4l's own path, and is sure to 1 us.
    """

    origin: UtcOrigin
    declared: bool = False
    is_own: bool = False


KEEPING_SECOND_SOURCES = {
    "chronyd behind the PHC": SecondSource(UtcOrigin.PHC),
    "chronyd behind the PHC, declared": SecondSource(UtcOrigin.PHC, declared=True),
    "chronyd behind a reference clock": SecondSource(UtcOrigin.REFCLOCK),
    "a server behind our grandmaster": SecondSource(UtcOrigin.NETWORK),
    "a receiver": SecondSource(UtcOrigin.RECEIVER, is_own=True),
    "a receiver, declared": SecondSource(UtcOrigin.RECEIVER, declared=True, is_own=True),
    "servers": SecondSource(UtcOrigin.NETWORK, is_own=True),
    "servers, declared": SecondSource(UtcOrigin.NETWORK, declared=True, is_own=True),
}

#: The paths that a seed chooses from: on each, ptp4l's offset is wrong by more than chronyd believes.
_BASES = ("lopsided", "one-way", "drawn delays", "reroutes", "slow reroutes", "loss", "nothing at times", "temperature")


def following_sample(row: TraceRow, origin: UtcOrigin) -> UtcSample:
    """chronyd measures the clock along the same path, and so sees the same offset."""
    return UtcSample(
        "utc", row.t_ns, 0, row.offset_ns or 0, OWN_ERROR_NS, 1_000, "PHC0", 1, "none", 0, OWN_ERROR_NS, origin=origin
    )


def own_sample(instant: Instant, origin: UtcOrigin, error_ns: int, chance: Random) -> UtcSample:
    """A server or a declared receiver of its own: wrong by up to what it says of itself."""
    offset_ns = round(instant.utc_error_ns + chance.uniform(-error_ns, error_ns))
    return UtcSample(
        "utc", instant.row.t_ns, 0, offset_ns, error_ns + 1, 1_000, "GPS", 1, "none", 0, error_ns, origin=origin
    )


def usual_error_ns(origin: UtcOrigin) -> int:
    return 2_000 if origin is UtcOrigin.RECEIVER else 200_000


def ensemble_of(source: SecondSource) -> Ensemble:
    independent_of = frozenset(["ptp"] if source.declared else [])
    return Ensemble({"ptp": EnsembleSettings(), "utc": EnsembleSettings(independent_of=independent_of)})


def published(
    source: SecondSource, ensemble: Ensemble, seed: int, base: str = "lopsided", error_ns: int | None = None
) -> Iterator[tuple[Instant, ErrorBound | None]]:
    """
    Each moment with the bound that is published then. Where chronyd follows PTP, the bound counts once PTP has one: before
    that, chronyd's report is the only one, and it is wrong.
    """
    bound, chance = None, Random(seed)
    for instant, sample in sampled(Chain(BY_NAME[base], seed, SECONDS).instants()):
        if sample is not None:
            bound = ensemble.accept(sample).bound or bound
            second = (
                own_sample(instant, source.origin, error_ns or usual_error_ns(source.origin), chance)
                if source.is_own
                else following_sample(instant.row, source.origin)
            )
            bound = ensemble.accept(second).bound or bound
        yield instant, bound if source.is_own or ensemble.source_bound("ptp") is not None else None


def replayed_second_source(name: str, seed: int) -> Iterator[tuple[Instant, ReplayedRow]]:
    """A seed chooses the path, and how sure a source of its own is."""
    source, chance = KEEPING_SECOND_SOURCES[name], Random(f"{name}/{seed}")
    base, error_ns = chance.choice(_BASES), round(usual_error_ns(source.origin) * 10 ** chance.uniform(-1, 1))
    reader = Reader()
    for instant, bound in published(source, ensemble_of(source), seed, base, error_ns):
        yield instant, reader.read(bound, instant, instant.row.t_ns)


def judged_second_source(name: str, seed: int) -> Judgement:
    judgement = Judgement(seed)
    for instant, row in replayed_second_source(name, seed):
        judgement.count(instant, instant.row.t_ns, row)
    return judgement
