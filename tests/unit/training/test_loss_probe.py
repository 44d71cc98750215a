"""Trials between steps of BSP: what they show of averagings whose cost is known, and what `auto` does then."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

import pytest
import torch
from auto_world import World, interval_of
from policies.adam_tasks import AdamTask
from policies.one_process import Curve, LinkModel, Training
from torch import Tensor, nn
from torch.nn import functional

from timesyncd.training.policy.auto import Controller
from timesyncd.training.policy.learning import LearningVerdict
from timesyncd.training.policy.loss_probe import LossLag, LossProbe, LossRow, judge, measure_lag
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.text import parse_policy


def rows(begin: int, end: int, behind: float = 0.0, exponent: float = 0.3) -> list[LossRow]:
    """Of a loss that is a power of the step, `behind` so many steps."""
    return [(step, 3.0 * (step - behind) ** -exponent) for step in range(begin, end, 8)]


@pytest.mark.parametrize("worth", [1.0, 0.7, 0.3])
def test_a_lag_is_what_the_steps_of_a_trial_lack(worth: float) -> None:
    """The loss is a power of the step: with steps that are worth 0.7 of BSP's it lacks 0.3 of the exponent."""
    found = measure_lag(rows(512, 1024), rows(1176, 1688, behind=(1 - worth) * 128), 1024, 1152)
    assert found is not None
    assert found.lag == pytest.approx(0.3 * (1 - worth), abs=0.02)


def test_rows_that_show_nothing_make_no_lag() -> None:
    """Too few of them, or a loss that has no logarithm."""
    assert measure_lag(rows(512, 560), rows(1176, 1688), 1024, 1152) is None
    assert measure_lag(rows(512, 1024), [(1176 + 8 * each, 0.0) for each in range(64)], 1024, 1152) is None


@pytest.mark.parametrize(("lag", "forbidden"), [(0.02, LearningVerdict.KEEPS_UP), (0.0, LearningVerdict.WORSE)])
def test_a_wrong_answer_is_rare(lag: float, forbidden: LearningVerdict) -> None:
    """Over six looks at a lag that is twice or none of what is allowed, in at most 5 % of 400 jobs."""
    drawn, wrong = random.Random(4), 0
    for _ in range(400):
        lags: list[LossLag] = []
        for error in (0.03, 0.02, 0.015, 0.01, 0.007, 0.005):
            lags.append(LossLag(drawn.gauss(lag, error), error, 30))
            verdict = judge(lags).verdict
            if verdict is not LearningVerdict.UNDECIDED:
                break
        wrong += verdict is forbidden
    assert wrong <= 20


def test_trials_that_contradict_each_other_decide_nothing() -> None:
    """Their scatter is the error then, however small they state theirs."""
    assert judge([LossLag(-0.2, 0.001, 30), LossLag(0.15, 0.001, 30)]).verdict is LearningVerdict.UNDECIDED
    assert judge([LossLag(-0.2, 0.001, 30)]).verdict is LearningVerdict.KEEPS_UP


@dataclasses.dataclass
class Job(World):
    """A step of averagings is worth `worth` of BSP's; the loss of a row scatters by `scatter`. `local`: number of steps under averagings."""

    worth: float = 1.0
    scatter: float = 0.001
    local: int = 0

    def train(self, steps: int) -> Job:
        worked = 50.0
        while self.step < steps:
            h, passed = interval_of(parse_policy(self.text).policy), self.to_next_rows()
            worked += passed * (self.worth if h > 1 else 1.0)
            self.local += passed * (h > 1)
            noise = self.random.gauss(0, self.scatter * math.sqrt(min(h, passed)))
            self.loss = 3.0 * worked**-0.3 * math.exp(noise)
            self.step += passed
            choice = self.controller.update(self.rows())
            if choice is not None:
                print(f"{self.step}: {choice.reason} -> {choice.text}")
                self.changes.append((self.step, choice))
                self.text = choice.text
        return self


def adam_job(**given: float) -> Job:
    """Its ranks wait for 8 times as long as they compute under BSP, and no validation loss is recorded."""
    return Job(8.0, apart=0.0, is_adaptive=True, **given)  # type: ignore[arg-type]


def test_averagings_that_cost_nothing_are_shown_to_and_stay() -> None:
    """In trials first, and from then on in every step."""
    job = adam_job().train(20_000)
    shown = [(step, choice) for step, choice in job.changes if choice.reason_code is ChangeReason.SAME_DATA]

    assert interval_of(parse_policy(job.text).policy) > 1
    assert shown[0][1].reason.startswith(tuple("123456789"))
    assert " trial" in shown[0][1].reason and shown[0][0] < 10_000
    assert job.changes[-1] == shown[0]


def test_averagings_that_cost_steps_are_tried_once_and_never_again() -> None:
    """One trial shows it, and the reason has the interval."""
    job = adam_job(worth=0.6).train(20_000)
    last = job.changes[-1][1]

    assert [choice.reason_code for _, choice in job.changes[1:]] == [
        ChangeReason.TRIAL,
        ChangeReason.LOSS_UNPROVEN,
        ChangeReason.LOSS_ROSE,
    ]
    assert last.text == job.text == "bsp + fp16"
    assert last.reason.startswith("1 trial between steps of BSP: with averagings the loss would in the long run be +")
    assert job.local <= 64


def test_what_nothing_shows_sends_less_and_tries_at_most_one_step_of_five() -> None:
    """The losses scatter too much: after each trial it averages gradients in every step again, for eight of ten steps at least."""
    job = adam_job(scatter=0.05)
    for step in range(500, 20_000, 500):
        assert job.train(step).local <= 0.2 * step

    assert job.text == "bsp + fp16"
    assert job.local > 0
    assert ChangeReason.SAME_DATA not in [choice.reason_code for _, choice in job.changes]


def test_a_learning_rate_that_rises_again_ends_what_was_shown() -> None:
    """What is tried and what was shown belongs to the rate of then."""
    job = adam_job(rate=0.001).train(20_000)
    assert interval_of(parse_policy(job.text).policy) > 1
    job.rate *= 1.1
    job.train(20_100)
    assert job.text == "bsp + fp16"


def test_a_controller_that_is_loaded_in_a_trial_goes_on_with_it() -> None:
    """Two jobs, one of them loaded after each row, change alike."""
    plain, loaded = adam_job(), adam_job()
    for until in range(100, 6_000, 100):
        plain.train(until)
        loaded.train(until)
        former, loaded.controller = loaded.controller, Controller(is_adaptive=True)
        loaded.controller.load_state_dict(former.state_dict())
    assert len(plain.changes) > 3
    assert loaded.changes == plain.changes


def test_a_long_stretch_of_bsp_keeps_a_bounded_number_of_rows() -> None:
    """Neighbours are merged, and what is older than half of the steps is left out."""
    probe = LossProbe()
    for step in range(8, 400_000, 8):
        probe.add(step, 2.0)
    assert len(probe.rows) <= 512
    assert probe.rows[-1][0] > 399_000 and {loss for _, loss in probe.rows} == {2.0}


WIDTH, CLASSES = 16, 4
SLOW = LinkModel("slow", 1.0, 0.05)


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples of a linear teacher with noise."""
    teacher = torch.linspace(-1, 1, WIDTH * CLASSES).sin().mul(40).cos().view(WIDTH, CLASSES) * 10
    inputs = torch.randn(count, WIDTH, generator=generator) * torch.logspace(0, -2, WIDTH)
    noise = torch.randn(count, CLASSES, generator=generator)
    return inputs, (inputs @ teacher + noise).argmax(1)


WHOLE = drawn(64, torch.Generator().manual_seed(2))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(is_whole: bool, ranks: int, steps: int) -> tuple[Curve, Training]:
    """`auto` with AdamW by replicas in this process. `is_whole`: each gradient is that of the same samples, so no step is lost by averaging seldom."""
    task = AdamTask(
        "linear", "", 1, steps, steps // 4, 2e-3, 8.0, lambda: nn.Linear(WIDTH, CLASSES),
        (lambda count, generator: WHOLE) if is_whole else drawn,
        lambda network: functional.cross_entropy(network(WHOLE[0]), WHOLE[1]).item(), warm_up=0.0,
    )  # fmt: skip
    training = Training(task, ranks, 1, "auto", SLOW)
    curve = training.run()
    print("\n".join(curve.changes))
    return curve, training


@pytest.mark.usefixtures("one_thread")
def test_replicas_that_learn_alike_are_averaged_seldom() -> None:
    """Without noise a local step is BSP's: a trial shows it, and the job goes on averaging seldom."""
    curve, training = trained(True, 2, 1_200)
    assert training._controller is not None
    assert training._controller._adaptive.interval > 0
    assert "1 trial between steps of BSP" in curve.changes[-1]


@pytest.mark.usefixtures("one_thread")
def test_replicas_whose_gradients_are_noise_are_averaged_in_every_step() -> None:
    """With one sample a step the noise of Adam's steps hurts; nothing shows that the loss keeps up, so less is sent instead."""
    curve, training = trained(False, 4, 1_100)
    assert training._controller is not None
    assert training._controller._adaptive.text == "bsp + fp16"
    assert len(curve.changes) >= 3  # a trial was made
