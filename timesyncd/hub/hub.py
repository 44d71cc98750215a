"""The fleet's view that the daemon keeps: takes node states and marks, gives each job its signals and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.config import Hub as HubSettings
from timesyncd.hub.alignment import ONE_CLOCK, Alignment, NodeClock, Now, alignment, unknown
from timesyncd.hub.jobs import Job, Jobs
from timesyncd.hub.plan import Planned, View, decide
from timesyncd.joblink import Kind
from timesyncd.messages import JobState, MarkBatch, NodeState, RankState
from timesyncd.overhead import Sync, Window, summarize

#: A node unheard for so long may begin with a lower incarnation: its store was lost.
NODE_FORGOTTEN_AFTER_NS = 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class HubOutput:
    """What a round gives: every job that runs, and the ids of those that ended since the last round."""

    jobs: list[JobState]
    ended: list[str]


class Hub:
    """
    Never waits and never reads a clock. The states that `advance` gives carry this node's name, and incarnation and sequence
    0: the daemon numbers them when it sends them.
    """

    def __init__(self, settings: HubSettings, node: str) -> None:
        self._settings = settings
        self._node = node
        self._nodes: dict[str, NodeClock] = {}
        self._jobs = Jobs(settings.window_steps)
        self._planned: dict[str, Planned] = {}

    @property
    def busy(self) -> bool:
        """There are jobs to judge."""
        return any(True for _ in self._jobs)

    @property
    def refused_batches(self) -> int:
        """Batches that were not taken: a rank outside its world, or too many jobs."""
        return self._jobs.refused

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool) -> None:
        """`live` False: a retained copy. A late or repeated message changes nothing."""
        known = self._nodes.get(state.node)
        if known is None or _replaces(state, received_boottime_ns, live, known):
            self._nodes[state.node] = NodeClock(state, received_boottime_ns, live)

    def accept_marks(self, batch: MarkBatch, now_boottime_ns: int) -> None:
        self._jobs.accept(batch, now_boottime_ns)

    def advance(self, now_boottime_ns: int, now_realtime_ns: int) -> HubOutput:
        """One round, about once a second: close what is due, and judge every job anew."""
        ended = self._jobs.advance(now_boottime_ns)
        for job in ended:
            self._planned.pop(job.id, None)
        now = self._now(now_boottime_ns, now_realtime_ns)
        return HubOutput([self._judge(job, now, now_realtime_ns) for job in self._jobs], [job.id for job in ended])

    def _now(self, boottime_ns: int, realtime_ns: int) -> Now:
        """Our own REALTIME shows how old a message is only while our own node's clock is known."""
        blind = Now(boottime_ns, None)
        own = self._nodes.get(self._node)
        return Now(boottime_ns, realtime_ns) if own is not None and own.usable(blind) else blind

    def _judge(self, job: Job, now: Now, realtime_ns: int) -> JobState:
        aligned = self._alignment(job, now)
        view = View(job.run, job.newest_step, aligned, _barrier_transfers_ns(job.window))
        planned = decide(self._planned.get(job.id, Planned()), view, now.boottime_ns)
        self._planned[job.id] = planned
        window, newest = summarize(job.window), job.newest_complete()
        comparison = newest.comparison if newest is not None else None
        return JobState(
            node=self._node,
            incarnation=0,
            sequence=0,
            job_id=job.id,
            job=job.name,
            attempt=job.attempt,
            uid=job.uid,
            world_size=job.world_size,
            published_realtime_ns=realtime_ns,
            step=newest.step if newest is not None else None,
            steps_complete=job.complete,
            steps_incomplete=job.incomplete,
            sync_overhead=window.sync_overhead,
            arrival_skew_ns=comparison.skew_ns if comparison is not None else None,
            arrival_skew_p50_ns=window.skew_p50_ns,
            arrival_skew_error_ns=comparison.error_ns if comparison is not None else None,
            transfer_p50_ns=window.transfer_p50_ns,
            last_rank=comparison.last_rank if comparison is not None else None,
            slow_rank=window.slow_rank,
            verdict=_verdict(job, window, newest),
            alignment_ns=aligned.alignment_ns,
            alignment_growth_ppb=aligned.growth_ppb,
            alignment_reason=aligned.reason,
            ranks=_rank_states(job, window),
            plan=planned.plan,
        )

    def _alignment(self, job: Job, now: Now) -> Alignment:
        if job.on_one_clock():
            return ONE_CLOCK
        if len(job.ranks) < job.world_size:
            return unknown(f"heard of {len(job.ranks)} ranks of {job.world_size}")
        nodes = sorted({rank.newest.node for rank in job.ranks.values()})
        for node in nodes:
            if node not in self._nodes:
                expected = "it is expected (hub.nodes) and" if node in self._settings.nodes else "it"
                return unknown(f"{node}: {expected} never sent its state to this hub")
        for rank in job.ranks.values():
            if rank.newest.boot_id != self._nodes[rank.newest.node].state.boot_id:
                return unknown(
                    f"{rank.newest.node}: the marks of rank {rank.newest.rank} are of another boot than its state"
                )
        return alignment([self._nodes[node] for node in nodes], now)


def _replaces(state: NodeState, received_boottime_ns: int, live: bool, known: NodeClock) -> bool:
    order = (state.incarnation, state.sequence)
    known_order = (known.state.incarnation, known.state.sequence)
    if order == known_order:
        return live and not known.live
    forgotten = received_boottime_ns - known.received_boottime_ns >= NODE_FORGOTTEN_AFTER_NS
    return order > known_order or (live and forgotten)


def _barrier_transfers_ns(syncs: Sequence[Sync]) -> list[int]:
    barriers = (sync.comparison for sync in syncs if sync.kind == Kind.BARRIER)
    return [comparison.transfer_ns for comparison in barriers if comparison is not None]


def _rank_states(job: Job, window: Window) -> list[RankState]:
    states = []
    for number, rank in sorted(job.ranks.items()):
        seen = window.ranks.get(number)
        states.append(
            RankState(
                rank=number,
                node=rank.newest.node,
                wait_p50_ns=seen.wait_p50_ns if seen is not None else None,
                wait_total_ns=seen.wait_total_ns if seen is not None else None,
                last_share=seen.last_share if seen is not None else None,
                lateness_p50_ns=seen.lateness_p50_ns if seen is not None else None,
                marks_lost=rank.lost,
                clock_status=rank.newest.status,
            )
        )
    return states


def _verdict(job: Job, window: Window, newest: Sync | None) -> str:
    """One line for people: who is slow or was last, or why that is not said."""
    if newest is None:
        return f"inconclusive: no step has the marks of all {job.world_size} ranks yet"
    if window.slow_rank is not None:
        share = window.ranks[window.slow_rank].last_share or 0
        return f"rank {window.slow_rank} is slow: last in {share:.0%} of {window.conclusive_steps} conclusive steps"
    comparison = newest.comparison
    if comparison is None:
        return "inconclusive: " + _why_not_compared(newest, job)
    if comparison.last_rank is None:
        return (
            f"inconclusive: the skew of {comparison.skew_ns} ns is within the clocks' error of {comparison.error_ns} ns"
        )
    return f"rank {comparison.last_rank} was last in step {newest.step}; none is persistently"


def _why_not_compared(sync: Sync, job: Job) -> str:
    for number, arrival in sync.arrivals.items():
        node = job.ranks[number].newest.node
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return f"the clock of rank {number} ({node}) was stepped"
        if arrival.error_ns is None:
            return f"the clock error of rank {number} ({node}) is unknown"
    return "the clock of a node was stepped"
