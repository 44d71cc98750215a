"""The timed barrier with one collective a wait instead of two: what the ranks must agree on travels with that collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from timesyncd.client.barrier import (
    GRANULARITY_NS,
    OK,
    PLAIN,
    Barrier,
    BarrierExplanation,
    BarrierReason,
    CollectiveOutcome,
    ReleaseDecision,
    decide_release,
    distrust,
    own_clock_bound,
    signals_and_plan,
)
from timesyncd.client.job import Job
from timesyncd.client.slack import SchedFifo, Slack, adapted_ns
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.ipc.wire_types import CodedReason

#: The first slack, and the limits of its adaptation, while no hub plans.
START_SLACK_NS = 1_000_000
MIN_SLACK_NS = 100_000
MAX_SLACK_NS = 10_000_000

#: After a rank was late at the longest slack, so many barriers are plain: on an overloaded machine a hold gains nothing.
PLAIN_BARRIERS_AFTER_MISS = 1_000

_ABSENT = 0

#: Of a word: 64 bits.
_LARGEST = 2**63 - 1

_LATE_AT_MAX_SLACK = CodedReason(
    BarrierReason.LATE_AT_MAX_SLACK,
    f"a rank was late at the longest slack: {PLAIN_BARRIERS_AFTER_MISS} plain barriers follow",
)


class ExchangeWords(NamedTuple):
    """
    The words of one exchange. Each rank receives, word by word, the largest of all ranks' words.

    From rank 0: `hold_ns`, how long after the last arrival the release is (PLAIN: not timed); `unconditional`, 1: also with several
    clocks; `alignment_ns`, how far two ranks' clocks may be apart (UNKNOWN). From all ranks: `trusted_ns`, the arrival on a trusted
    clock; `realtime_ns`, the arrival on CLOCK_REALTIME, trusted or not; `clock` and `minus_clock`, the number of the rank's clock,
    so that the two add up to 0 if all ranks read one clock; `ready_after_ns`, how long after the last arrival the rank was ready for
    the last release.
    """

    hold_ns: int
    unconditional: int
    trusted_ns: int
    realtime_ns: int
    clock: int
    minus_clock: int
    ready_after_ns: int
    alignment_ns: int

    @property
    def one_clock(self) -> bool:
        return self.clock + self.minus_clock == 0

    def last_arrival_ns(self) -> int | None:
        """On the ranks' common clock; None: no rank has a trusted one."""
        last_ns = self.realtime_ns if self.one_clock else self.trusted_ns
        return None if last_ns == _ABSENT else last_ns

    def margin_ns(self) -> int | None:
        """How far two ranks' arrivals may differ by their clocks alone; None: the clocks cannot be compared."""
        if self.one_clock:
            return 2 * GRANULARITY_NS
        return None if self.alignment_ns < 0 else self.alignment_ns

    def why_plain(self) -> BarrierExplanation:
        """The same on all ranks, since all have the same words. OK: the barrier is timed."""
        if self.hold_ns < 0:
            return CodedReason(BarrierReason.RANK_0_PLAIN, "rank 0 chose a plain barrier")
        if not (self.unconditional or self.one_clock):
            text = "no signals from timesyncd, and the ranks do not share one clock"
            return CodedReason(BarrierReason.DIFFERENT_CLOCKS, text)
        if self.last_arrival_ns() is None:
            return CodedReason(BarrierReason.NO_TRUSTED_CLOCK, "no rank has a trusted clock")
        return OK


class FusedBarrier(Barrier):
    """
    A timed barrier of one collective.

    `exchange` waits for all ranks and returns to each, position by position, the largest of the numbers (64 bits) that they passed:
    an all-reduce by maximum. It is the job's own and the only collective of a wait; its errors propagate.

    The exchange contains the last arrival, within the clocks' alignment. So the release is measured from there, and `slack()` is
    known: with one clock without a hub, else by the hub's alignment. Ranks that read one clock detect that themselves. Without a hub
    they are released together too, with a slack that they adapt to the duration of the exchange.

    Rank 0 decides before it waits, so a plan takes effect from the next barrier on. A trusted clock that is ahead by mistake delays
    all ranks by that much, at most by MAX_HOLD_NS.
    """

    def __init__(
        self, job: Job, exchange: Callable[[Sequence[int]], Sequence[int]], scheduling: SchedFifo | None = None
    ) -> None:
        self._init(job, scheduling)
        self._exchange = exchange
        self._clock = _clock_number()
        self._slack_ns = START_SLACK_NS
        self._plain_left = 0
        self._hold_ns: int | None = None
        self._ready_after_ns = 0
        self._last_ns: int | None = None

    def slack(self) -> Slack:
        """The time that this rank certainly has before the others arrive: SLACK_PERCENTILE percent of its past waits were shorter."""
        return self._waits.slack()

    def _run_collectives(self, step: int, arrival_ns: int) -> CollectiveOutcome:
        """Nothing of ours before the one collective may raise."""
        decision, unconditional = self._decide(step)
        words = ExchangeWords(*self._exchange(self._own_words(decision, unconditional, arrival_ns)))
        # The wait may have been long, so this rank's clock is asked again.
        bound_ns, reason = (GRANULARITY_NS, "") if words.one_clock else own_clock_bound(self._job)
        self._adapt(words)
        why, last_ns, margin_ns = words.why_plain(), words.last_arrival_ns(), words.margin_ns()
        self._hold_ns = words.hold_ns if why is OK else None
        instant_ns = PLAIN if why is not OK or last_ns is None else last_ns + words.hold_ns
        if decision.why is not OK:
            why = decision.why
        elif why is OK:
            why = distrust(bound_ns, reason)
        if last_ns is None or bound_ns is None or margin_ns is None:
            self._last_ns = None
            return CollectiveOutcome(instant_ns, bound_ns, why, None, 0)
        self._last_ns = last_ns
        return CollectiveOutcome(instant_ns, bound_ns, why, last_ns - arrival_ns, margin_ns)

    def _own_words(self, decision: ReleaseDecision, unconditional: int, arrival_ns: int) -> list[int]:
        trusted_ns = _ABSENT if own_clock_bound(self._job)[0] is None else arrival_ns
        words = ExchangeWords(
            hold_ns=decision.hold_ns,
            unconditional=unconditional,
            trusted_ns=trusted_ns,
            realtime_ns=arrival_ns,
            clock=self._clock,
            minus_clock=-self._clock,
            ready_after_ns=self._ready_after_ns,
            alignment_ns=decision.alignment_ns,
        )
        return [min(max(word, -_LARGEST), _LARGEST) for word in words]

    def _update_ready(self, now_ns: int) -> None:
        self._ready_after_ns = 0 if self._last_ns is None else max(0, now_ns - self._last_ns)

    def _decide(self, step: int) -> tuple[ReleaseDecision, int]:
        """Rank 0's decision, and whether it is unconditional; the other ranks decide nothing."""
        if self._job.rank != 0:
            return ReleaseDecision(PLAIN), 0
        if signals_and_plan(self._job)[2].code is BarrierReason.NO_SIGNALS:
            return ReleaseDecision(PLAIN, _LATE_AT_MAX_SLACK) if self._plain_left else ReleaseDecision(
                self._slack_ns
            ), 0
        return decide_release(self._job, step), 1

    def _adapt(self, words: ExchangeWords) -> None:
        """Adapt the slack to the last release, alike on every rank."""
        self._plain_left = max(0, self._plain_left - 1)
        if self._hold_ns is None:
            return
        missed = words.ready_after_ns > self._hold_ns
        if missed and self._slack_ns == MAX_SLACK_NS:
            self._slack_ns, self._plain_left = START_SLACK_NS, PLAIN_BARRIERS_AFTER_MISS
        else:
            self._slack_ns = adapted_ns(self._slack_ns, missed, not missed, MIN_SLACK_NS, MAX_SLACK_NS)


def _clock_number() -> int:
    """The number of this process's clock: equal for all processes of one boot and time namespace, and below 2^56."""
    name = f"{boot_id()}/{time_namespace()}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7])
