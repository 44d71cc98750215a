"""Ranks that ask nobody decide alike: a job's ranks as state machines, in any order, over a network that delivers at any time."""

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
from timesyncd.training.policy.schedule import (
    FIRST_ROWS_STEP,
    MAX_STEPS_BETWEEN_ROWS,
    MIN_STEPS_BETWEEN_ROWS,
    ROWS_DELAY,
    PolicySchedule,
    Row,
    check_in_step,
    must_average_replicas,
    replicas_diverge,
)
from timesyncd.training.policy.text import parse_policy

STEPS = 64

TEXTS = [
    *["bsp", "accumulate(k=3)", "local_sgd(h=4)", "local_sgd(h=5, delay=3)", "post_local_sgd(start=9, h=5)", "qsr(h=3, alpha=0.1)"],
    *[f"selsync(delta=0.3, late={late})" for late in range(5)],
]  # fmt: skip

Told = tuple[int, Decision, bool, str]


@dataclass
class Rank:
    """One rank: what its script does with a Course in a step, up to where it has to wait for rows."""

    number: int
    course: PolicySchedule
    votes: Callable[[int], bool]
    wishes: dict[int, str] = field(default_factory=dict)
    dies_in: int | None = None
    heard: dict[int, dict[int, Row]] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    waits_for: list[int] | None = None
    wish: int = 0
    text: str = ""
    spoke: bool = False

    @property
    def rate(self) -> float:
        """A learning rate of its own, as of a scheduler that goes by the rank's loss."""
        return 0.05 / (self.number + 1) / (1 + self.course.step)

    @property
    def over(self) -> bool:
        return self.course.step == STEPS or self.course.step == self.dies_in

    def begins(self) -> Row | None:
        """What it says in this step, if anything."""
        if self.course.step in self.wishes:
            self.wish, self.text = self.wish + 1, self.wishes[self.course.step]
        self.spoke = self.course.exchanges()
        said = self.course.step, self.votes(self.course.step), self.wish, self.text
        row = Row(*said, rate=self.rate) if self.spoke else None
        self.waits_for = self.course.due()
        return row

    def can_end(self, ranks: int) -> bool:
        assert self.waits_for is not None
        return all(len(self.heard.get(step, {})) == ranks for step in self.waits_for)

    def ends(self) -> None:
        assert self.waits_for is not None
        rows = [[row for _, row in sorted(self.heard.pop(step).items())] for step in self.waits_for]
        decision = self.course.decide(rows)
        self.told.append((self.course.step, decision, self.spoke, str(self.course.strategy)))
        self.course.next_step(decision)
        self.course.strategy = self.course.turn(rows) or self.course.strategy
        self.waits_for = None


def run(ranks: Sequence[Rank], drawn: random.Random) -> None:
    """Until nobody can go on. A row is for everybody, and reaches each rank at a time of its own."""
    on_way: list[tuple[int, int, Row]] = []
    while True:
        able = [rank for rank in ranks if not rank.over and (rank.waits_for is None or rank.can_end(len(ranks)))]
        if not able and not on_way:
            return
        if on_way and (not able or drawn.random() < 0.6):
            to, of, row = on_way.pop(drawn.randrange(len(on_way)))
            ranks[to].heard.setdefault(row.step, {})[of] = row
            continue
        rank = drawn.choice(able)
        if rank.waits_for is None:
            said = rank.begins()
            on_way += [(to, rank.number, said) for to in range(len(ranks))] if said is not None else []
        else:
            rank.ends()


def job(ranks: int, seed: int, text: str, wishes: dict[int, str]) -> list[Rank]:
    """Flags that differ from rank to rank; wishes are rank 0's, and others have some that do not count."""
    made = []
    for number in range(ranks):
        votes = [random.Random(f"{seed} {number} {step}").random() < 0.15 for step in range(STEPS)]
        others = {step: "local_sgd(h=2)" for step in range(number, STEPS, 11)}
        made.append(
            Rank(number, PolicySchedule(parse_policy(text), ranks), votes.__getitem__, others if number else wishes)
        )
    return begun(made)


def begun(made: list[Rank]) -> list[Rank]:
    for rank in made:
        rank.course.agree([other.course.first_row(other.rate) for other in made])
    return made


WISHES = st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from(TEXTS), max_size=6)


@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(TEXTS), WISHES, st.randoms(use_true_random=False))
def test_ranks_agree_whatever_the_timing(
    ranks: int, seed: int, text: str, wishes: dict[int, str], drawn: random.Random
) -> None:
    """In each step all decide the same, say something or nothing, and are under the same policy; and all get to the end."""
    made = job(ranks, seed, text, wishes)
    run(made, drawn)

    assert [len(rank.told) for rank in made] == [STEPS] * ranks
    assert all(rank.told == made[0].told for rank in made)


@given(st.integers(2, 4), st.integers(0, STEPS - 1), st.sampled_from(TEXTS), WISHES, st.randoms(use_true_random=False))
def test_a_rank_that_is_gone_is_waited_for(
    ranks: int, dies_in: int, text: str, wishes: dict[int, str], drawn: random.Random
) -> None:
    """The others decide nothing that they would need its rows for: they stop, and all that they decided is alike. Of its rows a later one may count first."""
    complete, made = job(ranks, 7, text, wishes), job(ranks, 7, text, wishes)
    made[-1].dies_in = dies_in
    run(complete, random.Random(0))
    run(made, drawn)

    unsaid = [step for step, _, spoke, _ in complete[0].told if spoke and step >= dies_in]
    for rank in made[:-1]:
        assert rank.told == complete[0].told[: len(rank.told)]
        assert rank.over or (rank.waits_for is not None and set(unsaid) & set(rank.waits_for))


def told(
    text: str, votes: Callable[[int], bool] = lambda step: False, steps_per_epoch: int | None = None, **wishes: str
) -> list[Told]:
    """By a job of one rank; `wishes` by step as s12=..."""
    rank = Rank(
        0,
        PolicySchedule(parse_policy(text), 1, steps_per_epoch),
        votes,
        {int(step[1:]): wish for step, wish in wishes.items()},
    )
    run(begun([rank]), random.Random(0))
    return rank.told


def synced(said: Sequence[Told]) -> list[int]:
    return [step for step, decision, _, _ in said if decision is Decision.SYNC]


@pytest.mark.parametrize("late", range(5))
def test_a_flag_counts_as_late_as_is_said(late: int) -> None:
    """Flags of steps 10, 11 and 20 synchronize so many steps later, and nothing else does."""
    said = told(f"selsync(delta=0.3, late={late})", {10, 11, 20}.__contains__)
    assert synced(said) == [10 + late, 11 + late, 20 + late]
    assert all(spoke for _, _, spoke, _ in said)


def test_without_flags_rows_are_few() -> None:
    """In most steps nobody says anything."""
    said = told("bsp")
    assert sum(spoke for _, _, spoke, _ in said) <= 2 + STEPS // 8


@pytest.mark.parametrize(
    "text", ["local_sgd(h=12)", "local_sgd(h=5, delay=3)", "fedavg(c=1, e=0.2)", "qsr(h=9, alpha=0.001)"]
)
def test_rows_travel_while_ranks_wait_for_an_averaging(text: str) -> None:
    """But the first ones; and no more often than every eighth step."""
    said = told(text, steps_per_epoch=50)
    spoke = [step for step, _, spoke, _ in said if spoke]

    assert spoke[0] == FIRST_ROWS_STEP
    assert set(spoke[1:]) <= set(synced(said))
    assert all(later - earlier >= MIN_STEPS_BETWEEN_ROWS for earlier, later in pairwise(spoke))
    assert len(spoke) > STEPS // 20


def test_where_averagings_are_rare_rows_come_in_between() -> None:
    """What rank 0 is told is not kept back for hundreds of steps."""
    said = told("local_sgd(h=1000)", s20="bsp")

    assert [step for step, _, spoke, _ in said if spoke][:2] == [
        FIRST_ROWS_STEP,
        FIRST_ROWS_STEP + MAX_STEPS_BETWEEN_ROWS,
    ]
    assert [each[-1] for each in said].index("bsp") == FIRST_ROWS_STEP + MAX_STEPS_BETWEEN_ROWS + ROWS_DELAY + 1


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("wish", TEXTS)
def test_every_policy_gives_way_to_every_other(text: str, wish: str) -> None:
    """Some steps after the wish, from one step to the next, and it stays."""
    said = [each[-1] for each in told(text, s20=wish)]
    turned = said.index(str(parse_policy(wish)))

    assert said[:20] == [str(parse_policy(text))] * 20
    assert (
        turned == 0
        if parse_policy(text) == parse_policy(wish)
        else 20 < turned <= 20 + MAX_STEPS_BETWEEN_ROWS + ROWS_DELAY + 1
    )
    assert set(said[turned:]) == {str(parse_policy(wish))}


def test_what_was_gathered_makes_an_update_before_another_policy_begins() -> None:
    """In the last step under the former one, wherever its interval was; and then the new one counts from there."""
    said = told("accumulate(k=50)", s10="accumulate(k=3)")
    turned = [each[-1] for each in said].index("accumulate(k=3)")

    assert synced(said) == [turned - 1, *range(turned + 2, STEPS, 3)]


def test_flags_that_are_on_their_way_in_a_change_are_not_lost() -> None:
    """A flag of step 20 under late=4 still counts under the next policy, where it takes flags."""
    said = told("selsync(delta=0.3, late=4)", {20}.__contains__, s17="selsync(delta=0.5, late=0)")
    assert said[22][-1] == "selsync(delta=0.5, late=0)"
    assert synced(said) == [24]


def test_the_last_of_several_wishes_stays() -> None:
    """However fast they come one after the other."""
    said = told("bsp", s20="local_sgd(h=4)", s21="accumulate(k=3)", s22="local_sgd(h=2)")
    assert said[-1][-1] == "local_sgd(h=2)"


def test_a_wish_for_what_is_in_force_changes_nothing() -> None:
    """Not even the place within an interval."""
    assert synced(told("local_sgd(h=7)", s20="local_sgd(h=7)")) == synced(told("local_sgd(h=7)"))


def test_ranks_out_of_step_are_told_which() -> None:
    """One resumed from an older checkpoint than the others: nobody decides by such rows."""
    course = PolicySchedule(parse_policy("selsync(delta=0.3, late=0)"), 3)
    with pytest.raises(SyncError, match=r"rank 1 is in step 8 and rank 0 is in step 9; .* the same number") as raised:
        course.decide([[Row(9), Row(8), Row(9)]])
    assert "\n" not in str(raised.value)


def test_a_rank_that_ended_earlier_is_out_of_step() -> None:
    """Its last row is that of no step, so that it is not taken for one: neither of the step that was next, nor of a later end."""
    ended, other = PolicySchedule(parse_policy("bsp"), 2), PolicySchedule(parse_policy("bsp"), 2)
    for course in (ended, other):
        course.next_step(Decision.SYNC)
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
def test_ranks_begin_alike_or_not_at_all(other: PolicySchedule) -> None:
    """Another policy, or another number of steps in an epoch, would part the ranks later."""
    course = PolicySchedule(parse_policy("local_sgd(h=4)"), 2, 10)
    with pytest.raises(ValueError, match="rank 0 begins with 'local_sgd.h=4.' and 10 steps an epoch, rank 1 with"):
        course.agree([course.first_row(0.1), other.first_row(0.1)])


def test_a_state_of_another_number_of_ranks_is_refused() -> None:
    """Whose votes its rows have would not be known."""
    with pytest.raises(ValueError, match="the policy's state is of 3 ranks, these are 2"):
        PolicySchedule(parse_policy("bsp"), 2).load_state_dict(PolicySchedule(parse_policy("bsp"), 3).state_dict())


@given(st.sampled_from(TEXTS), WISHES, st.integers(0, STEPS - 1))
def test_a_course_resumes_as_it_was(text: str, wishes: dict[int, str], stop: int) -> None:
    """Saved and loaded between any two steps, with rows on their way, it goes on as one that was never stopped."""
    whole, saved = job(1, 3, text, wishes)[0], job(1, 3, text, wishes)[0]
    run([whole], random.Random(0))
    saved.dies_in = stop
    run([saved], random.Random(0))
    state = saved.course.state_dict()
    saved.course, saved.dies_in = PolicySchedule(parse_policy("bsp"), 1), None
    saved.course.load_state_dict(state)
    run([saved], random.Random(0))

    assert saved.told == whole.told


def test_replicas_are_made_one_where_the_next_policy_needs_it() -> None:
    """After those that leave them apart: before one that keeps them one, or that sends differences to what all have in common."""
    apart = {text: replicas_diverge(parse_policy(text).policy) for text in TEXTS}
    assert [text for text, is_apart in apart.items() if not is_apart] == ["bsp", "accumulate(k=3)"]
    assert must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("bsp"))
    assert must_average_replicas(parse_policy("selsync(delta=1, aggregate=gradients)"), parse_policy("auto"))
    assert must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("local_sgd(h=4) + fp16"))
    assert not must_average_replicas(parse_policy("local_sgd(h=4)"), parse_policy("local_sgd(h=8)"))
    assert not must_average_replicas(parse_policy("bsp"), parse_policy("local_sgd(h=4) + fp16"))
