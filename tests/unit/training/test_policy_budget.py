"""The budget of a job's synchronization: averagings are put off until the share of an epoch's time allows them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from timesyncd.training.policy.budget import MAX_INTERVALS, SyncBudget
from timesyncd.training.policy.policies import Decision
from timesyncd.training.policy.row import Row
from timesyncd.training.policy.schedule import PolicySchedule
from timesyncd.training.policy.text import parse_policy

MS = 1_000_000


class Job:
    """Ranks of one schedule: a step computes `step_ms`, and an averaging takes `cost_ms`."""

    def __init__(self, policy: str, budget: float | None, cost_ms: float, steps_per_epoch: int | None = None) -> None:
        self.schedule = PolicySchedule(parse_policy(policy), 2, steps_per_epoch, budget)
        self.step_ms, self.cost_ms = 10.0, cost_ms
        self.averaged_in: list[int] = []
        self._rows: dict[int, list[Row]] = {}
        self._waited: list[float] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.schedule.step
            if self.schedule.begin_exchange():
                wait_ns = int(sum(self._waited) / max(1, len(self._waited)) * MS)
                row = Row(step, rounds=self.schedule.rounds, compute_ns=int(self.step_ms * MS), wait_ns=wait_ns)
                self._rows[step], self._waited = [row, row], []
            decision = self.schedule.decide([self._rows.pop(due) for due in self.schedule.take_due()])
            if decision is Decision.SYNC:
                self.averaged_in.append(step)
            self._waited.append(self.cost_ms if decision is Decision.SYNC else 0.0)
            self.schedule.next_step(decision)

    def spent(self, first: int, last: int) -> float:
        """The share of the time of these steps that averagings took."""
        cost = self.cost_ms * sum(first <= step < last for step in self.averaged_in)
        return cost / (cost + self.step_ms * (last - first))


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.2])
def test_what_is_spent_keeps_to_the_budget(budget: float) -> None:
    """With averagings of two steps every fourth one a third of the time would go."""
    free, limited = Job("local_sgd(h=4)", None, 20), Job("local_sgd(h=4)", budget, 20)
    free.run(3000)
    limited.run(3000)

    assert free.spent(0, 3000) == pytest.approx(1 / 3, abs=0.01)
    wanted = max(budget, 20 / (20 + 10 * 4 * MAX_INTERVALS))
    assert limited.spent(0, 3000) == pytest.approx(wanted, rel=0.1)


def test_averagings_within_the_budget_are_those_of_the_policy() -> None:
    """Where they cost less, nothing changes."""
    free, limited = Job("diloco(h=8)", None, 1), Job("diloco(h=8)", 0.05, 1)
    free.run(500)
    limited.run(500)

    assert limited.averaged_in == free.averaged_in


def test_replicas_are_averaged_after_some_intervals_in_any_case() -> None:
    """Whatever an averaging costs: the policy's own limit is that many intervals."""
    job = Job("local_sgd(h=4)", 0.001, 500)
    job.run(1000)

    measured = [step for step in job.averaged_in if step >= 100]  # the first ones count before any is measured
    assert {later - earlier for earlier, later in pairwise(measured)} == {4 * MAX_INTERVALS}


def test_each_epoch_has_its_own_budget() -> None:
    """What one epoch saved or spent too much does not count for the next one."""
    job = Job("local_sgd(h=4)", 0.1, 1, steps_per_epoch=400)
    job.run(400)
    assert job.spent(0, 400) < 0.03
    job.cost_ms = 20
    job.run(800)

    assert job.spent(800, 1200) == pytest.approx(0.1, rel=0.15)


def test_a_budget_survives_a_checkpoint() -> None:
    """The resumed schedule decides as the saved one would have."""
    job, resumed = Job("local_sgd(h=4)", 0.05, 20), Job("local_sgd(h=4)", 0.05, 20)
    job.run(400)
    resumed.schedule.load_state_dict(job.schedule.state_dict())
    resumed._rows, resumed._waited = dict(job._rows), list(job._waited)
    job.run(400)
    resumed.run(400)

    assert resumed.averaged_in == [step for step in job.averaged_in if step >= 400]


@pytest.mark.parametrize("budget", [0.0, 1.0, -0.1, float("nan")])
def test_a_budget_is_a_share(budget: float) -> None:
    """Above 0 and below 1; the error names the value."""
    with pytest.raises(ValueError, match=f"^budget is {budget}; it is a share of the time, above 0 and below 1$"):
        SyncBudget(budget)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd(h=8, delay=4)", "selsync(delta=0.3)", "des_loc(kx=4)"])
def test_a_policy_that_cannot_wait_has_no_budget(policy: str) -> None:
    """The error states which ones have."""
    with pytest.raises(ValueError, match=r"^a budget limits local_sgd\(h=\.\.\.\), diloco\(h=\.\.\.\) and auto; "):
        PolicySchedule(parse_policy(policy), 2, None, 0.05)
    PolicySchedule(parse_policy("auto"), 2, None, 0.05)
