"""A training step as a span: what it claims of ranks whose clocks differ, and which steps are sent."""

from __future__ import annotations

from typing import Any

import pytest
from fake_view import RECORDED, FakeView

from timesyncd.integrations.otlp.steps import MAX_SYNCS, NewestSteps, Span, step_span
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.jobs import JobState

JOB = RECORDED["jobs"][0]["job_id"]


def window(step: int = 1200, **changes: Any) -> RecordingMessage:
    page = FakeView().window(JOB, step, 1)
    assert page is not None
    return page.model_copy(update=changes)


def of(page: RecordingMessage, step: int = 1200) -> Span:
    found = step_span(page.recording(), step)
    assert found is not None
    return found


def test_a_step_has_its_synchronizations_as_children() -> None:
    """From the first arrival to the last end; the skew has its error beside it."""
    span = of(window())
    [sync] = span.children

    assert (span.name, sync.name) == ("training step", "bucket")
    assert (span.begin_ns, span.end_ns) == (sync.begin_ns, sync.end_ns)
    assert sync.end_ns - sync.begin_ns == 46_000_000
    assert sync.attributes["timesyncd.arrival_skew_ns"] == 39_800_000
    assert sync.attributes["timesyncd.arrival_skew_error_ns"] == pytest.approx(55_000, abs=2_000)
    assert sync.attributes["timesyncd.last_rank"] == 1
    assert {key: span.attributes[key] for key in ("timesyncd.step", "timesyncd.epoch", "timesyncd.ranks")} == {
        "timesyncd.step": 1200,
        "timesyncd.epoch": 0,
        "timesyncd.ranks": 2,
    }


def test_no_rank_is_compared_by_a_clock_that_is_not_known() -> None:
    """Without a bound on a clock the span has neither a skew nor a last rank, and says so."""
    [sync] = window().syncs
    unknown = [arrival.model_copy(update={"error_ns": None}) for arrival in sync.arrivals]
    [span] = of(window(syncs=[sync.model_copy(update={"arrivals": unknown})])).children

    assert span.attributes["timesyncd.clocks_compare"] is False
    assert not {"timesyncd.arrival_skew_ns", "timesyncd.last_rank"} & span.attributes.keys()


def test_a_step_of_many_synchronizations_is_cut() -> None:
    """The first ones are children, and an attribute has the true number."""
    [sync] = window().syncs
    many = [sync.model_copy(update={"sync": number}) for number in range(MAX_SYNCS + 2)]
    span = of(window(syncs=many))

    assert (len(span.children), span.attributes["timesyncd.syncs"]) == (MAX_SYNCS, MAX_SYNCS + 2)


def test_a_step_that_is_not_in_the_window_is_none() -> None:
    """Nothing is made up of it."""
    assert step_span(window().recording(), 7) is None


def test_each_newest_step_is_given_once() -> None:
    """Asked again without a new step there is none; a new step, or the same in another run, is given."""
    state = JobState.model_validate(RECORDED["jobs"][0] | {"step": 1199, "run": 0})
    jobs = [state]
    steps = NewestSteps(lambda: jobs, FakeView().window)
    counts = [len(steps()), len(steps())]
    jobs[0] = state.model_copy(update={"step": 1200})
    counts.append(len(steps()))
    jobs[0] = state.model_copy(update={"step": 1200, "run": 1})
    counts.append(len(steps()))
    jobs[0] = state.model_copy(update={"step": None})
    counts.append(len(steps()))

    assert counts == [1, 0, 1, 1, 0]
