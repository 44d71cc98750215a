"""
Advice with a price: what could be changed about a job, and what the recorded steps take with the change. Pure.

Each change is replayed (`remedies.replay`). The error of a gain is the block bootstrap's over the steps; what a change
assumes beside that is in its `assumption`. Where the recording does not support a price there is a reason instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from timesyncd.audit import bootstrap, buckets
from timesyncd.audit.headline import percent, sizes_text
from timesyncd.audit.measured import Measured
from timesyncd.audit.mesh_remedies import MeshReplay
from timesyncd.audit.remedies import LOCAL_STEPS, ReplayCase, every, leveled, replay
from timesyncd.audit.report import AdviceKind, AdviceReport, EstimateReport, NoPrice
from timesyncd.audit.timeline import RankStep, RecordedStep, Run
from timesyncd.jobs.recording import positions, same_step
from timesyncd.training.policy.shares import batch_shares
from timesyncd.units import percentile

_ASSUMED_PLACE = (
    "What makes the rank late stays at its place (clock rate, temperature, a neighbour), and does not follow its work."
)
_ASSUMED_SHARES = (
    "All ranks have equal batches now, and computing grows with a rank's batch; what a step takes whatever its batch is "
    "makes the gain smaller."
)
_ASSUMED_HALF = (
    "Half of the octets take half of the fitted time by octets, and rounding to half precision costs no step."
)

#: A change that saves less of the time is not worth making.
MIN_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Why a change has no price."""

    code: NoPrice
    reason: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that may be made. `changed`: how long each step takes with it, in ns."""

    kind: AdviceKind
    title: str
    action: str
    assumption: str
    changed: Sequence[float] | _Unknown
    ranks: tuple[int, ...] = ()
    shares: tuple[float, ...] | None = None


def advise(now: Measured, runs: Sequence[Run], of_buckets: buckets.BucketAdvice | None) -> list[AdviceReport]:
    """
    The largest gain first, and last what has no price. `runs`: as `build.comparable_runs` gives them; empty: the ranks
    are not comparable.
    """
    if not runs:
        return []
    before_ns = _lengths_ns(runs)
    found = [_priced(change, before_ns) for change in _changes(now, runs, of_buckets)]
    found.append(_resized(of_buckets, now))
    return sorted(found, key=lambda one: float("inf") if one.gain is None else -one.gain.value)


def advise_mesh(now: Measured, found: MeshReplay | str) -> list[AdviceReport]:
    """
    The same for a job that synchronizes in groups: other places for late ranks. What else could be changed has no price
    there.
    """
    if isinstance(found, str):
        changes = [
            _Change(AdviceKind.SWAP_NODE, "Swap a node", "", _ASSUMED_PLACE, _Unknown(NoPrice.NOT_COMPARABLE, found))
        ]
        return [_priced(change, []) for change in changes]

    def level(ranks: Sequence[int]) -> Sequence[float] | _Unknown:
        changed = found.leveled(ranks)
        if isinstance(changed, str):
            return _Unknown(NoPrice.NO_OTHER_NODE, changed)
        return found.step_lengths_ns(changed)

    before_ns = found.step_lengths_ns(found.graph.durations)
    reports = [_priced(change, before_ns, found.misfit) for change in _places(now, level)]
    return sorted(reports, key=lambda one: float("inf") if one.gain is None else -one.gain.value)


def _changes(now: Measured, runs: Sequence[Run], of_buckets: buckets.BucketAdvice | None) -> Iterator[_Change]:
    yield from _places(now, lambda ranks: _lengths_ns(_each_step(runs, lambda step: leveled(step, ranks))))
    yield _shares(runs)
    yield _groups(now)
    yield _half_precision(now, runs, of_buckets)
    for steps in LOCAL_STEPS:
        changed = every(steps, update_once=False)(ReplayCase(runs, (), ()))
        yield _Change(
            AdviceKind.LOCAL_STEPS,
            f"Average the parameters every {steps} steps",
            f'synchronized(job, ddp, optimizer, "local_sgd(h={steps})"), or timesyncd policy JOB "local_sgd(h={steps})"',
            "The loss needs no step more than with a synchronization in each: compare it on a held-out set.",
            _Unknown(NoPrice.TOO_FEW_STEPS, changed) if isinstance(changed, str) else _lengths_ns(changed),
        )


_Level = Callable[[Sequence[int]], "Sequence[float] | _Unknown"]
"""How long each step takes if these ranks compute no longer than the others."""


def _places(now: Measured, level: _Level) -> Iterator[_Change]:
    """Other places for late ranks: a whole node where all of its ranks are late, else single ranks."""
    late, nodes = sorted(now.late_ranks), now.recording.nodes
    if not late:
        none = _Unknown(NoPrice.NO_STRAGGLER, "no rank is persistently late")
        yield _Change(AdviceKind.SWAP_NODE, "Swap a node", "", _ASSUMED_PLACE, none)
        return
    by_node: dict[str, list[int]] = {}
    for rank in range(now.recording.world_size):
        by_node.setdefault(nodes.get(rank, ""), []).append(rank)
    for node, ranks in by_node.items():
        of_node = [rank for rank in ranks if rank in late]
        if of_node == ranks:
            yield _swap(node, ranks, level, len(by_node))
        else:
            is_other = len(late) < now.recording.world_size
            yield from (_move(rank, node, level if is_other else _all_late) for rank in of_node)


def _swap(node: str, ranks: Sequence[int], level: _Level, nodes: int) -> _Change:
    changed: Sequence[float] | _Unknown
    if nodes == 1:
        changed = _Unknown(
            NoPrice.NO_OTHER_NODE, "all ranks are on one node, and nothing shows how fast another one is"
        )
    else:
        changed = level(ranks)
    return _Change(
        AdviceKind.SWAP_NODE,
        f"Swap {node or 'the node'} for another node",
        f"give {_ranks_text(ranks)} a node that computes like the others (drain {node or 'the node'} and restart the job)",
        _ASSUMED_PLACE,
        changed,
        tuple(ranks),
    )


def _move(rank: int, node: str, level: _Level) -> _Change:
    return _Change(
        AdviceKind.MOVE_RANK,
        f"Move rank {rank} to another place on {node or 'its node'}, or to another node",
        f"the other ranks of {node or 'the node'} are not late: give rank {rank} another device, core set or host",
        _ASSUMED_PLACE,
        level([rank]),
        (rank,),
    )


def _all_late(ranks: Sequence[int]) -> _Unknown:
    return _ALL_LATE


_ALL_LATE = _Unknown(NoPrice.NO_OTHER_NODE, "every rank is late at some place, so none shows how fast a good one is")


def _shares(runs: Sequence[Run]) -> _Change:
    ranks = range(len(runs[0].starts_ns))
    steps = [step for run in runs for step in run.steps]
    computed = [percentile([_batch_ns(step.ranks[rank]) for step in steps], 50) for rank in ranks]
    shares = batch_shares(computed)
    factors = [share * len(shares) for share in shares]
    return _Change(
        AdviceKind.BATCH_SHARES,
        "Give each rank a share of the batch by its speed",
        "synchronized(..., balance=True) does it, and weights the loss; or deal these shares yourself",
        _ASSUMED_SHARES,
        _lengths_ns(_each_step(runs, lambda step: _with_batches(step, factors))),
        tuple(ranks),
        shares,
    )


def _batch_ns(step: RankStep) -> int:
    """What a rank computes of its batch: the update is as long whatever the batch is."""
    return step.compute_ns - step.update_ns


def _with_batches(step: RecordedStep, factors: Sequence[float]) -> RecordedStep:
    return replace(step, ranks=tuple(_with_batch(rank, by) for rank, by in zip(step.ranks, factors, strict=True)))


def _with_batch(rank: RankStep, factor: float) -> RankStep:
    """
    What a rank computes of its batch takes `factor` times as long. A wait that took no time shows only that the rank
    would have waited later: it counts from the next wait that took some, else from the end of the batch.
    """
    begins_ns, parts = _batch_ns(rank), []
    for part in reversed(rank.parts):
        if part.own_ns > part.waits_ns - part.arrives_ns:
            begins_ns = part.waits_ns
        parts.append(replace(part, arrives_ns=round(part.arrives_ns * factor), waits_ns=round(begins_ns * factor)))
    return replace(rank, parts=tuple(reversed(parts)), compute_ns=round(_batch_ns(rank) * factor) + rank.update_ns)


def _groups(now: Measured) -> _Change:
    nodes = len(set(now.recording.nodes.values()))
    if nodes < 2:
        none = _Unknown(NoPrice.NO_OTHER_NODE, "all ranks are on one node, so there are no near and far ranks")
    else:
        none = _Unknown(
            NoPrice.NOT_RECORDED,
            "the recording has no transfer within a group of near ranks: record one run with levels=near_ranks(job), "
            "and compare it with --before",
        )
    return _Change(
        AdviceKind.GROUPS, "Let near ranks add up first", "synchronized(..., levels=near_ranks(job))", "", none
    )


def _half_precision(now: Measured, runs: Sequence[Run], of_buckets: buckets.BucketAdvice | None) -> _Change:
    cost = None if of_buckets is None else of_buckets.cost
    changed: Sequence[float] | _Unknown
    if cost is None:
        why = "no gradient bucket is recorded" if of_buckets is None else of_buckets.reason
        changed = _Unknown(NoPrice.NOT_RECORDED, f"what a transfer costs by octet is not known: {why}")
    else:
        saved_ns = {place: size * cost.ns_per_byte / 2 for place, size in _sizes(now).items()}
        changed = _lengths_ns(_each_step(runs, lambda step: _with_less(step, saved_ns)))
    return _Change(
        AdviceKind.HALF_PRECISION,
        "Send gradients in half precision",
        'synchronized(job, ddp, optimizer, "bsp + fp16")',
        _ASSUMED_HALF,
        changed,
    )


def _sizes(now: Measured) -> dict[str, int]:
    """By the place of a synchronization: its octets."""
    found: dict[str, int] = {}
    for _, step in same_step(now.aligned.syncs):
        for place, sync in zip(positions(step), step, strict=True):
            found.setdefault(place, max(arrival.bytes for arrival in sync.arrivals.values()))
    return found


def _with_less(step: RecordedStep, saved_ns: dict[str, float]) -> RecordedStep:
    both = zip(step.places, step.transfers_ns, strict=True)
    shorter = (took_ns - round(min(saved_ns.get(place, 0.0), took_ns / 2)) for place, took_ns in both)
    return replace(step, transfers_ns=tuple(shorter))


def _each_step(runs: Sequence[Run], change: Callable[[RecordedStep], RecordedStep]) -> list[Run]:
    return [replace(run, steps=tuple(map(change, run.steps))) for run in runs]


def _priced(change: _Change, before_ns: Sequence[float], error: float = 0.0) -> AdviceReport:
    """`error`: of the replay, as a share of the time."""
    if isinstance(change.changed, _Unknown):
        return _report(change, change.changed)
    gain, saved_ns = _price(before_ns, change.changed)
    if gain.low is not None and gain.high is not None:
        gain = replace(gain, low=gain.low - error, high=gain.high + error)
    if gain.low is None or gain.high is None:
        return _report(
            change, _Unknown(NoPrice.TOO_FEW_STEPS, "the steps are too few for an error: record 100 or more")
        )
    if gain.low <= 0 or gain.value < MIN_GAIN:
        span = f"{percent(gain.value)} (95 %: {percent(gain.low)} to {percent(gain.high)})"
        return _report(change, _Unknown(NoPrice.NOT_WORTH_IT, f"it would save {span} of the time: no sure gain"))
    estimate = EstimateReport(value=gain.value, low=gain.low, high=gain.high)
    return _report(change, None, estimate, saved_ns)


def price(runs: Sequence[Run], changed: Sequence[Run]) -> tuple[bootstrap.Estimate, int]:
    """The share of the time that a change saves, with its interval over the steps; and what it saves of a step, in ns."""
    return _price(_lengths_ns(runs), _lengths_ns(changed))


def _price(steps_ns: Sequence[float], changed_ns: Sequence[float]) -> tuple[bootstrap.Estimate, int]:
    samples = [
        bootstrap.StepSample(before_ns, before_ns - after_ns)
        for before_ns, after_ns in zip(steps_ns, changed_ns, strict=True)
    ]
    saved_ns = sum(sample.exposed_ns for sample in samples) / len(samples)
    return bootstrap.estimate(samples, lambda sums: sums.overhead), round(saved_ns)


def _lengths_ns(runs: Sequence[Run]) -> list[float]:
    return [sum(time.lengths_ns) / len(time.lengths_ns) for time in replay(runs)]


def _report(
    change: _Change, unknown: _Unknown | None, gain: EstimateReport | None = None, saved_ns: int | None = None
) -> AdviceReport:
    return AdviceReport(
        kind=change.kind,
        title=change.title,
        action=change.action,
        ranks=list(change.ranks),
        gain=gain,
        step_saved_ns=saved_ns,
        shares=None if change.shares is None else list(change.shares),
        reason_code=None if unknown is None else unknown.code,
        reason="" if unknown is None else unknown.reason,
        assumption=change.assumption,
    )


def _resized(found: buckets.BucketAdvice | None, now: Measured) -> AdviceReport:
    """The suggested sizes of gradient buckets; the error of their gain is that of the model of reductions."""
    change = _Change(
        AdviceKind.BUCKETS,
        "Other bucket sizes",
        "DistributedDataParallel(network, **bucket_options(REPORT))",
        buckets.ASSUMPTION,
        [],
    )
    if found is None:
        return _report(change, _Unknown(NoPrice.NOT_RECORDED, "no gradient bucket is recorded"))
    if found.caps_mib is None or found.saved_ns is None or found.error_ns is None:
        code = NoPrice.NOT_RECORDED if found.cost is None else NoPrice.NOT_WORTH_IT
        return _report(change, _Unknown(code, found.reason))
    step_ns = bootstrap.sum_of(now.samples).step_ns
    low, high = ((found.saved_ns + side * found.error_ns) / step_ns for side in (-1, 1))
    gain = EstimateReport(value=found.saved_ns / step_ns, low=low, high=high)
    return _report(replace(change, title=f"Buckets of {sizes_text(found.caps_mib)}"), None, gain, round(found.saved_ns))


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
