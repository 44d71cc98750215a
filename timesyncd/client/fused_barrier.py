"""The timed barrier in one collective a wait instead of two: what the ranks have to agree on travels with the collective itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from timesyncd.client.barrier import (
    GRANULARITY_NS,
    NO_SIGNALS,
    PLAIN,
    Barrier,
    CollectiveOutcome,
    ReleaseDecision,
    decide_release,
    own_clock_bound,
    signals_and_plan,
)
from timesyncd.client.job import Job
from timesyncd.client.slack import SchedFifo, Slack, adapted_ns
from timesyncd.clocks import boot_id, time_namespace

#: Where the slack starts, and what it is kept within, while there is no hub that plans.
START_SLACK_NS = 1_000_000
MIN_SLACK_NS = 100_000
MAX_SLACK_NS = 10_000_000

#: After a rank was late even so, so many barriers are plain: a machine that runs more than it can gains nothing by holding.
PLAIN_BARRIERS_AFTER_MISS = 1_000

_ABSENT = 0

#: Of a word: 64 bits.
_LARGEST = 2**63 - 1

_LATE_EVEN_SO = f"a rank was late with the longest slack: plain for {PLAIN_BARRIERS_AFTER_MISS} barriers"


class ExchangeWords(NamedTuple):
    """
    What one exchange carries, each word the largest of all ranks' words.

    `hold_ns`: rank 0's, how long after the last arrival the release is to be; PLAIN: not timed. `unconditional`: rank 0's, 1: also on
    several clocks. `trusted_ns`: arrivals on clocks that are trusted; `realtime_ns`: on CLOCK_REALTIME whatever it shows. `clock` and
    `minus_clock`: which clock a rank reads, so that the two add up to 0 if all read one. `way_ns`: how long after the last arrival
    a rank was ready for the last release. `apart_ns`: rank 0's, how far two ranks' clocks may be apart; UNKNOWN.
    """

    hold_ns: int
    unconditional: int
    trusted_ns: int
    realtime_ns: int
    clock: int
    minus_clock: int
    way_ns: int
    apart_ns: int

    @property
    def one_clock(self) -> bool:
        return self.clock + self.minus_clock == 0

    def last_arrival_ns(self) -> int | None:
        """On the clock that the ranks share; None: none that anyone trusts."""
        last_ns = self.realtime_ns if self.one_clock else self.trusted_ns
        return None if last_ns == _ABSENT else last_ns

    def margin_ns(self) -> int | None:
        """What an arrival can differ from another rank's by the clocks alone; None: they cannot be compared."""
        if self.one_clock:
            return 2 * GRANULARITY_NS
        return None if self.apart_ns < 0 else self.apart_ns

    def why_plain(self) -> str:
        if self.hold_ns < 0:
            return "rank 0 decided so"
        if not (self.unconditional or self.one_clock):
            return f"{NO_SIGNALS}, and the ranks do not read one clock"
        return "" if self.last_arrival_ns() is not None else "no rank has a clock to trust"


class FusedBarrier(Barrier):
    """
    `exchange` waits for all ranks and gives each of them, place by place, the largest of the numbers (64 bits) that they passed: an
    all-reduce by maximum. It is the job's own, the one collective of a wait, and what it raises goes through.

    The last arrival is known from it, to what the clocks may be apart, so the release is measured from there and needs no second
    round; `slack()` needs no hub on one clock, and else its alignment; and ranks that read one clock find that out by themselves: without a hub they are released together,
    with a slack that they adapt to how long the exchange took. Rank 0 decides before it waits, so a plan counts from the next
    barrier on; and a trusted clock that is ahead by mistake delays the release of all ranks by as much, at most MAX_HOLD_NS.
    """

    def __init__(
        self, job: Job, exchange: Callable[[Sequence[int]], Sequence[int]], scheduling: SchedFifo | None = None
    ) -> None:
        self._init(job, scheduling)
        self._exchange = exchange
        self._clock = _clock_number()
        self._slack_ns = START_SLACK_NS
        self._rests = 0
        self._hold_ns: int | None = None
        self._way_ns = 0
        self._last_ns: int | None = None

    def slack(self) -> Slack:
        """The time that this rank surely has before the others arrive: all but SURE_PERCENT of its past waits were longer."""
        return self._waits.sure()

    def _meet(self, step: int, arrival_ns: int) -> CollectiveOutcome:
        """The one collective; nothing of ours before it may raise."""
        trusted_ns = _ABSENT if own_clock_bound(self._job)[0] is None else arrival_ns
        offer, unconditional = self._offer(step)
        clock, apart_ns = self._clock, offer.apart_ns
        mine = ExchangeWords(
            offer.hold_ns, unconditional, trusted_ns, arrival_ns, clock, -clock, self._way_ns, apart_ns
        )
        words = ExchangeWords(*self._exchange([min(max(word, -_LARGEST), _LARGEST) for word in mine]))
        bound_ns, distrust = (
            (GRANULARITY_NS, "") if words.one_clock else own_clock_bound(self._job)
        )  # the wait may have been long
        self._adapt(words)
        why_plain, last_ns, margin_ns = words.why_plain(), words.last_arrival_ns(), words.margin_ns()
        self._hold_ns = None if why_plain else words.hold_ns
        instant_ns = PLAIN if why_plain or last_ns is None else last_ns + words.hold_ns
        reason = offer.reason or why_plain or distrust
        if last_ns is None or bound_ns is None or margin_ns is None:
            self._last_ns = None
            return CollectiveOutcome(instant_ns, bound_ns, reason, None, 0)
        self._last_ns = last_ns
        return CollectiveOutcome(instant_ns, bound_ns, reason, last_ns - arrival_ns, margin_ns)

    def _was_ready(self, now_ns: int) -> None:
        self._way_ns = 0 if self._last_ns is None else max(0, now_ns - self._last_ns)

    def _offer(self, step: int) -> tuple[ReleaseDecision, int]:
        """And whether it is unconditional: rank 0's; the others offer nothing."""
        if self._job.rank != 0:
            return ReleaseDecision(PLAIN), 0
        if signals_and_plan(self._job)[2] == NO_SIGNALS:
            return ReleaseDecision(PLAIN, _LATE_EVEN_SO) if self._rests else ReleaseDecision(self._slack_ns), 0
        return decide_release(self._job, step), 1

    def _adapt(self, words: ExchangeWords) -> None:
        """By how the last release went, on every rank alike."""
        self._rests = max(0, self._rests - 1)
        if self._hold_ns is None:
            return
        missed = words.way_ns > self._hold_ns
        if missed and self._slack_ns == MAX_SLACK_NS:
            self._slack_ns, self._rests = START_SLACK_NS, PLAIN_BARRIERS_AFTER_MISS
        else:
            self._slack_ns = adapted_ns(self._slack_ns, missed, not missed, MIN_SLACK_NS, MAX_SLACK_NS)


def _clock_number() -> int:
    """Of the clock that this process reads: equal for all processes of one boot and time namespace, below 2^56."""
    name = f"{boot_id()}/{time_namespace()}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7])
