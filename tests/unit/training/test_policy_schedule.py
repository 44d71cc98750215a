"""Ranks decide alike without asking each other: a job's ranks as state machines, in any order, over a network that delivers at any time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import SyncError
from timesyncd.training.policy.policies import Decision
from timesyncd.training.policy.row import Row, check_in_step
from timesyncd.training.policy.schedule import (
    FIRST_ROWS_STEP,
    MAX_STEPS_BETWEEN_ROWS,
    MIN_STEPS_BETWEEN_ROWS,
    ROWS_DELAY,
    PolicySchedule,
    must_average_replicas,
    replicas_diverge,
)
from timesyncd.training.policy.text import parse_policy

STEPS = 64

TEXTS = [
    *["bsp", "accumulate(k=3)", "local_sgd(h=4)", "local_sgd(h=5, delay=3)", "post_local_sgd(start=9, h=5)", "qsr(h=3, alpha=0.1)"],
    *[f"selsync(delta=0.3, late={late})" for late in range(5)],
]  # fmt: skip

#: Of a step: its number, the decision, whether the rank sent a row, and the policy in force.
StepLog = tuple[int, Decision, bool, str]


@dataclass
class Rank:
    """One rank: what its script does with a PolicySchedule in a step, up to where it must wait for rows."""

    number: int
    schedule: PolicySchedule
    votes: Callable[[int], bool]
    requests: dict[int, str] = field(default_factory=dict)
    dies_in: int | None = None
    received: dict[int, dict[int, Row]] = field(default_factory=dict)
    log: list[StepLog] = field(default_factory=list)
    waits_for: list[int] | None = None
    request_number: int = 0
    text: str = ""
    sent: bool = False

    @property
    def rate(self) -> float:
        """A learning rate of its own, as of a scheduler that goes by the rank's loss."""
        return 0.05 / (self.number + 1) / (1 + self.schedule.step)

    @property
    def over(self) -> bool:
        return self.schedule.step == STEPS or self.schedule.step == self.dies_in

    def begin_step(self) -> Row | None:
        """The row that it sends in this step, if any."""
        if self.schedule.step in self.requests:
            self.request_number, self.text = self.request_number + 1, self.requests[self.schedule.step]
        self.sent = self.schedule.begin_exchange()
        step, vote = self.schedule.step, self.votes(self.schedule.step)
        row = Row(step, vote=vote, request_number=self.request_number, requested_policy=self.text, rate=self.rate)
        self.waits_for = self.schedule.take_due()
        return row if self.sent else None

    def can_end_step(self, ranks: int) -> bool:
        assert self.waits_for is not None
        return all(len(self.received.get(step, {})) == ranks for step in self.waits_for)

    def end_step(self) -> None:
        assert self.waits_for is not None
        rows = [[row for _, row in sorted(self.received.pop(step).items())] for step in self.waits_for]
        decision = self.schedule.decide(rows)
        self.log.append((self.schedule.step, decision, self.sent, str(self.schedule.strategy)))
        self.schedule.next_step(decision)
        self.schedule.strategy = self.schedule.accept_request(rows) or self.schedule.strategy
        self.waits_for = None


def run(ranks: Sequence[Rank], drawn: random.Random) -> None:
    """Until no rank can continue. A row goes to all ranks, and reaches each at a time of its own."""
    in_transit: list[tuple[int, int, Row]] = []
    while True:
        able = [rank for rank in ranks if not rank.over and (rank.waits_for is None or rank.can_end_step(len(ranks)))]
        if not able and not in_transit:
            return
        if in_transit and (not able or drawn.random() < 0.6):
            to, of, row = in_transit.pop(drawn.randrange(len(in_transit)))
            ranks[to].received.setdefault(row.step, {})[of] = row
            continue
        rank = drawn.choice(able)
        if rank.waits_for is None:
            row_sent = rank.begin_step()
            in_transit += [(to, rank.number, row_sent) for to in range(len(ranks))] if row_sent is not None else []
        else:
            rank.end_step()


def job(ranks: int, seed: int, text: str, requests: dict[int, str]) -> list[Rank]:
    """Votes differ from rank to rank; the requests are rank 0's, and other ranks have some that do not count."""
    made = []
    for number in range(ranks):
        votes = [random.Random(f"{seed} {number} {step}").random() < 0.15 for step in range(STEPS)]
        others = {step: "local_sgd(h=2)" for step in range(number, STEPS, 11)}
        made.append(
            Rank(number, PolicySchedule(parse_policy(text), ranks), votes.__getitem__, others if number else requests)
        )
    return started(made)


def started(made: list[Rank]) -> list[Rank]:
    for rank in made:
        rank.schedule.check_start([other.schedule.first_row(other.rate) for other in made])
    return made


REQUESTS = st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from(TEXTS), max_size=6)


@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(TEXTS), REQUESTS, st.randoms(use_true_random=False))
def test_ranks_agree_whatever_the_timing(
    ranks: int, seed: int, text: str, requests: dict[int, str], drawn: random.Random
) -> None:
    """In each step all ranks decide the same, send a row or none, and use the same policy; and all reach the end."""
    made = job(ranks, seed, text, requests)
    run(made, drawn)

    assert [len(rank.log) for rank in made] == [STEPS] * ranks
    assert all(rank.log == made[0].log for rank in made)


@given(
    st.integers(2, 4), st.integers(0, STEPS - 1), st.sampled_from(TEXTS), REQUESTS, st.randoms(use_true_random=False)
)
def test_ranks_wait_for_a_rank_that_ended(
    ranks: int, dies_in: int, text: str, requests: dict[int, str], drawn: random.Random
) -> None:
    """The other ranks decide nothing that needs its rows: they stop, and their decisions so far are alike. A later row of it may count first."""
    complete, made = job(ranks, 7, text, requests), job(ranks, 7, text, requests)
    made[-1].dies_in = dies_in
    run(complete, random.Random(0))
    run(made, drawn)

    missing = [step for step, _, sent, _ in complete[0].log if sent and step >= dies_in]
    for rank in made[:-1]:
        assert rank.log == complete[0].log[: len(rank.log)]
        assert rank.over or (rank.waits_for is not None and set(missing) & set(rank.waits_for))


def log_of(
    text: str, votes: Callable[[int], bool] = lambda step: False, steps_per_epoch: int | None = None, **requests: str
) -> list[StepLog]:
    """The log of a job with one rank; `requests` by step as s12=..."""
    rank = Rank(
        0,
        PolicySchedule(parse_policy(text), 1, steps_per_epoch),
        votes,
        {int(step[1:]): request for step, request in requests.items()},
    )
    run(started([rank]), random.Random(0))
    return rank.log


def synced(log: Sequence[StepLog]) -> list[int]:
    return [step for step, decision, _, _ in log if decision is Decision.SYNC]


@pytest.mark.parametrize("late", range(5))
def test_a_vote_counts_the_given_number_of_steps_later(late: int) -> None:
    """Votes of steps 10, 11 and 20 synchronize `late` steps later, and nothing else does."""
    log = log_of(f"selsync(delta=0.3, late={late})", {10, 11, 20}.__contains__)
    assert synced(log) == [10 + late, 11 + late, 20 + late]
    assert all(sent for _, _, sent, _ in log)


def test_without_votes_rows_are_few() -> None:
    """In most steps no rank sends a row."""
    log = log_of("bsp")
    assert sum(sent for _, _, sent, _ in log) <= 2 + STEPS // 8


@pytest.mark.parametrize(
    "text", ["local_sgd(h=12)", "local_sgd(h=5, delay=3)", "fedavg(c=1, e=0.2)", "qsr(h=9, alpha=0.001)"]
)
def test_rows_travel_while_ranks_wait_for_an_averaging(text: str) -> None:
    """Except the first rows; and at least eight steps apart."""
    log = log_of(text, steps_per_epoch=50)
    sent = [step for step, _, sent, _ in log if sent]

    assert sent[0] == FIRST_ROWS_STEP
    assert set(sent[1:]) <= set(synced(log))
    assert all(later - earlier >= MIN_STEPS_BETWEEN_ROWS for earlier, later in pairwise(sent))
    assert len(sent) > STEPS // 20


def test_rows_are_exchanged_between_rare_averagings() -> None:
    """A request to rank 0 is not delayed for hundreds of steps."""
    log = log_of("local_sgd(h=1000)", s20="bsp")

    assert [step for step, _, sent, _ in log if sent][:2] == [
        FIRST_ROWS_STEP,
        FIRST_ROWS_STEP + MAX_STEPS_BETWEEN_ROWS,
    ]
    assert [each[-1] for each in log].index("bsp") == FIRST_ROWS_STEP + MAX_STEPS_BETWEEN_ROWS + ROWS_DELAY + 1


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("requested", TEXTS)
def test_every_policy_can_follow_every_other(text: str, requested: str) -> None:
    """It changes some steps after the request, from one step to the next, and stays."""
    log = [each[-1] for each in log_of(text, s20=requested)]
    changed = log.index(str(parse_policy(requested)))

    assert log[:20] == [str(parse_policy(text))] * 20
    assert (
        changed == 0
        if parse_policy(text) == parse_policy(requested)
        else 20 < changed <= 20 + MAX_STEPS_BETWEEN_ROWS + ROWS_DELAY + 1
    )
    assert set(log[changed:]) == {str(parse_policy(requested))}


def test_accumulated_gradients_make_an_update_before_another_policy_begins() -> None:
    """In the last step under the former policy, at any position in its interval; the new policy counts from there."""
    log = log_of("accumulate(k=50)", s10="accumulate(k=3)")
    changed = [each[-1] for each in log].index("accumulate(k=3)")

    assert synced(log) == [changed - 1, *range(changed + 2, STEPS, 3)]


def test_votes_in_transit_during_a_change_are_not_lost() -> None:
    """A vote of step 20 under late=4 still counts under the next policy, if it has votes."""
    log = log_of("selsync(delta=0.3, late=4)", {20}.__contains__, s17="selsync(delta=0.5, late=0)")
    assert log[22][-1] == "selsync(delta=0.5, late=0)"
    assert synced(log) == [24]


def test_the_last_of_several_requests_stays() -> None:
    """However fast they follow each other."""
    log = log_of("bsp", s20="local_sgd(h=4)", s21="accumulate(k=3)", s22="local_sgd(h=2)")
    assert log[-1][-1] == "local_sgd(h=2)"


def test_a_request_for_the_policy_in_force_changes_nothing() -> None:
    """Not even the position within an interval."""
    assert synced(log_of("local_sgd(h=7)", s20="local_sgd(h=7)")) == synced(log_of("local_sgd(h=7)"))


def test_an_error_names_the_ranks_out_of_step() -> None:
    """One resumed from an older checkpoint than the others: no rank decides by such rows."""
    schedule = PolicySchedule(parse_policy("selsync(delta=0.3, late=0)"), 3)
    with pytest.raises(SyncError, match=r"rank 1 is in step 8 and rank 0 is in step 9; .* the same number") as raised:
        schedule.decide([[Row(9), Row(8), Row(9)]])
    assert "\n" not in str(raised.value)


def test_a_rank_that_ended_earlier_is_out_of_step() -> None:
    """Its last row differs from the row of any step, and from the last row of a rank that ended later."""
    ended, other = PolicySchedule(parse_policy("bsp"), 2), PolicySchedule(parse_policy("bsp"), 2)
    for schedule in (ended, other):
        schedule.next_step(Decision.SYNC)
    check_in_step([ended.last_row(), other.last_row()])
    with pytest.raises(SyncError, match="rank 0 ended after 1 steps and rank 1 is in step 1;"):
        check_in_step([ended.last_row(), Row(1)])
    other.next_step(Decision.SYNC)
    with pytest.raises(SyncError, match="rank 1 ended after 2 steps and rank 0 ended after 1 steps;"):
        check_in_step([ended.last_row(), other.last_row()])


@pytest.mark.parametrize(
    "other",
    [PolicySchedule(parse_policy("local_sgd(h=3)"), 2, 10), PolicySchedule(parse_policy("local_sgd(h=4)"), 2, 11)],
)
def test_ranks_must_start_alike(other: PolicySchedule) -> None:
    """With another policy, or another number of steps per epoch, ranks would decide differently later."""
    schedule = PolicySchedule(parse_policy("local_sgd(h=4)"), 2, 10)
    with pytest.raises(
        ValueError, match="rank 0 starts with policy 'local_sgd.h=4.' and 10 steps per epoch, rank 1 with"
    ):
        schedule.check_start([schedule.first_row(0.1), other.first_row(0.1)])


def test_a_state_of_another_number_of_ranks_is_rejected() -> None:
    """It would be unknown whose votes its rows contain."""
    with pytest.raises(ValueError, match="the policy's state was saved with 3 ranks, and this job has 2"):
        PolicySchedule(parse_policy("bsp"), 2).load_state_dict(PolicySchedule(parse_policy("bsp"), 3).state_dict())


@given(st.sampled_from(TEXTS), REQUESTS, st.integers(0, STEPS - 1))
def test_a_schedule_resumes_unchanged(text: str, requests: dict[int, str], stop: int) -> None:
    """Saved and loaded between any two steps, with rows in transit, it continues like one that never stopped."""
    whole, saved = job(1, 3, text, requests)[0], job(1, 3, text, requests)[0]
    run([whole], random.Random(0))
    saved.dies_in = stop
    run([saved], random.Random(0))
    state = saved.schedule.state_dict()
    saved.schedule, saved.dies_in = PolicySchedule(parse_policy("bsp"), 1), None
    saved.schedule.load_state_dict(state)
    run([saved], random.Random(0))

    assert saved.log == whole.log


def test_replicas_are_averaged_where_the_next_policy_needs_it() -> None:
    """Where they diverge: before a policy that keeps replicas identical, or that sends differences from common parameters."""
    diverges = {text: replicas_diverge(parse_policy(text).policy) for text in TEXTS}
    assert [text for text, does in diverges.items() if not does] == ["bsp", "accumulate(k=3)"]
    assert must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("bsp"))
    assert must_average_replicas(parse_policy("selsync(delta=1, aggregate=gradients)"), parse_policy("auto"))
    assert must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("local_sgd(h=4) + fp16"))
    assert not must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("local_sgd(h=8)"))
    assert not must_average_replicas(parse_policy("bsp"), parse_policy("local_sgd(h=4) + fp16"))
