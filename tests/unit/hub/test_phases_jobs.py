"""From the marks of jobs on one link to the phases in their plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from batches import MS, NOW, batch
from node_states import node_state

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.barrier_plan import VERSIONS_SKIPPED
from timesyncd.hub.hub import Hub
from timesyncd.hub.phase_fit import Load, PeriodicSend, arrangements
from timesyncd.hub.phases import AHEAD_NS, step_times
from timesyncd.ipc.job_datagram import Kind, Mark
from timesyncd.jobs.arrivals import StepMark
from timesyncd.jobs.window import StepRecord
from timesyncd.messages.jobs import JobState

BEGIN_NS = 1_790_000_000 * NS_PER_S
PERIOD_NS = 300 * MS


def marks_of(step: int, begin_ns: int, late_ns: int = 0) -> list[Mark]:
    """A step of 300 ms: 100 ms of compute, then 200 ms in an all-reduce that takes 100 ms alone, then a barrier."""
    at = begin_ns + step * PERIOD_NS
    sends, sent = at + 100 * MS + late_ns, at + 299 * MS
    times = [
        (0, Kind.ALL_REDUCE, sends, sent),
        (1, Kind.BARRIER, sent, at + PERIOD_NS - 1),
        (0, Kind.STEP, at, at + PERIOD_NS),
    ]
    return [
        Mark(step=step, sync=sync, kind=kind, arrival_ns=arrival, begin_ns=arrival, end_ns=end, bytes=0)
        for sync, kind, arrival, end in times
    ]


def feed(hub: Hub, job: str, steps: range, begin_ns: int = BEGIN_NS) -> None:
    for step in steps:
        for rank in (0, 1):
            marked = batch(rank, *marks_of(step, begin_ns, rank * MS), sequence=step)
            hub.accept_marks(marked.model_copy(update={"job": job}), NOW)


def fleet_hub(*links: str | None) -> Hub:
    """A hub that knows the two nodes of all jobs here, with these links."""
    hub = Hub(HubSettings(), "node-0")
    for number, link in enumerate(links):
        hub.accept_node(node_state(f"node-{number}").model_copy(update={"link": link}), NOW, live=True)
    return hub


def look(hub: Hub, number: int = 0) -> dict[str, JobState]:
    """What a round gives, so many seconds later; no node falls silent meanwhile."""
    later_ns = number * NS_PER_S
    for name in hub.fleet.names():
        link = hub.fleet.clock(name).link  # type: ignore[union-attr]
        state = node_state(name, sequence=number + 2).model_copy(
            update={"link": link, "published_realtime_ns": later_ns}
        )
        hub.accept_node(state, NOW + later_ns, live=True)
    return {state.job: state for state in hub.advance(NOW + later_ns, later_ns).jobs}


def planned(hub: Hub, jobs: tuple[str, ...] = ("a", "b"), steps: int = 60) -> dict[str, JobState]:
    for job in jobs:
        feed(hub, job, range(steps))
    return look(hub)


def test_two_jobs_on_one_link_are_given_turns() -> None:
    """Both plans get one period, opposite shifts, and a first step far enough ahead for all ranks to receive it."""
    states = planned(fleet_hub("rack-7", "rack-7"))
    a, b = (states[job].plan.phase for job in ("a", "b"))

    assert a is not None and b is not None
    assert [(states[job].link, states[job].phase_reason) for job in "ab"] == [("rack-7", "2 jobs send in turn")] * 2
    assert a.period_ns == b.period_ns == pytest.approx(209 * MS, rel=0.01)
    assert abs(a.shift_ns - b.shift_ns) == pytest.approx(a.period_ns / 2, rel=0.02)
    assert [states[job].plan.from_step for job in ("a", "b")] == [59 + AHEAD_NS // PERIOD_NS] * 2, states["a"].plan


def test_a_configured_priority_reaches_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the job's name; 1 for the others."""
    weights: dict[str, int] = {}

    def observed(loads: Mapping[str, Load]) -> Iterator[dict[str, PeriodicSend]]:
        weights.update({job: load.weight for job, load in loads.items()})
        return arrangements(loads)

    monkeypatch.setattr("timesyncd.hub.phases.arrangements", observed)
    hub = Hub(HubSettings(), "node-0", priorities={"a": 5})
    for number in range(2):
        hub.accept_node(node_state(f"node-{number}").model_copy(update={"link": "rack-7"}), NOW, live=True)
    states = planned(hub)

    assert weights == {states["a"].job_id: 5, states["b"].job_id: 1}


@pytest.mark.parametrize(
    ("links", "link"), [((None, None), None), (("rack-7", "rack-8"), None), (("rack-7", None), "rack-7")]
)
def test_a_job_is_on_the_one_link_that_its_nodes_name(links: tuple[str | None, str | None], link: str | None) -> None:
    """Without a link, or with several, a job is left alone."""
    states = planned(fleet_hub(*links))

    assert [state.link for state in states.values()] == [link, link]
    assert [state.plan.phase is None for state in states.values()] == [link is None] * 2


def test_a_job_alone_on_its_link_is_left_alone() -> None:
    """There is no other job to avoid."""
    state = planned(fleet_hub("rack-7", "rack-7"), jobs=("a",))["a"]

    assert (state.plan.phase, state.phase_reason) == (None, "no other job is on this link")


def test_a_phase_outlives_the_barriers_plans_and_is_one_version() -> None:
    """Round after round the plan stays the same; a plan of the barrier keeps the phase under its own version."""
    hub = fleet_hub("rack-7", "rack-7")
    for job in ("a", "b"):
        feed(hub, job, range(60))
    plans = [look(hub, number)["a"].plan for number in range(12)]

    assert len({plan.version for plan in plans}) == len(set(plans))
    assert len({plan.phase for plan in plans}) == 1
    assert plans[-1].mode == "timed"


def test_a_hub_that_just_began_leaves_a_phase_as_it_is() -> None:
    """Until it knows enough steps, the plan of the other hub stays."""
    former = planned(fleet_hub("rack-7", "rack-7"))
    hub = fleet_hub("rack-7", "rack-7")
    for state in former.values():
        hub.adopt(state)
    states = planned(hub, steps=5)

    assert [states[job].plan.phase for job in "ab"] == [former[job].plan.phase for job in "ab"]
    assert states["a"].plan.version == former["a"].plan.version + VERSIONS_SKIPPED


def test_steps_that_some_rank_did_not_mark_are_no_times() -> None:
    """The last rank begins and ends a step; a step without the marks of all ranks, or without a comparison, is left out."""
    whole = StepRecord(marks={0: StepMark(3, 10, None, 90), 1: StepMark(3, 12, None, 95)})

    assert step_times([whole], 2) == []
    assert step_times([whole], 3) == []
