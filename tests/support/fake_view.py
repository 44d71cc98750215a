"""The daemon that the HTTP server reads, from recorded states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.feed import Feed
from timesyncd.fleet.headline import FleetReading
from timesyncd.fleet.node_clock import NodeClock
from timesyncd.fleet.overview import overview
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState, NodeAlignment
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, Message, NodeState, Status
from timesyncd.messages.notes import Handled, HandledFinding, NoteRequest, OperatorNote
from timesyncd.messages.overview import Overview
from timesyncd.messages.series import LatenessMatrix
from timesyncd.web.view import ALL_NODES, NodeFilter, StreamEvent

RECORDED: dict[str, list[Any]] = json.loads((Path(__file__).parents[1] / "recordings" / "view.json").read_text())


M = TypeVar("M", bound=Message)


def _key(state: Message) -> tuple[object, ...]:
    """What tells the states of one kind apart."""
    if isinstance(state, JobState):
        return (state.job_id,)
    if isinstance(state, FindingMessage):
        return (state.id, state.subject)
    return (state.name,) if isinstance(state, GrandmasterState) else (getattr(state, "node", None),)


def as_json(message: Message) -> Any:
    return message.model_dump(mode="json")


@dataclass
class FakeView:
    """A node in sync, one in holdover, a grandmaster with an alarm, a job with a straggler, and the primary hub."""

    states: list[NodeState] = field(default_factory=lambda: [NodeState.model_validate(n) for n in RECORDED["nodes"]])
    fault: str | None = None
    notes: list[OperatorNote] = field(default_factory=list)
    taken: Handled = field(default_factory=Handled)
    events: Feed[StreamEvent] = field(default_factory=lambda: Feed(key=lambda event: event.kind))
    _published: list[Message] = field(default_factory=list)

    def publish(self, event: StreamEvent) -> None:
        """As the daemon does: a viewer that connects later finds the new state in its snapshot."""
        self._published.append(event.data)
        self.states = self._current(NodeState, self.states)
        self.events.publish(event)

    def _current(self, kind: type[M], recorded: Sequence[M]) -> list[M]:
        """The recorded states; a published one replaces that of its name."""
        published = [state for state in self._published if isinstance(state, kind)]
        return list({_key(state): state for state in (*recorded, *published)}.values())

    def node(self) -> NodeState:
        return self.states[0]

    def node_count(self) -> int:
        return len(self.states)

    def node_names(self, node_filter: NodeFilter = ALL_NODES) -> list[str]:
        return sorted(
            state.node
            for state in self.states
            if node_filter.matches(
                state.node, state.main_status, state.topology, (state.grandmaster, state.grandmaster_identity)
            )
        )

    def nodes(self, names: Sequence[str]) -> list[NodeState]:
        known = {state.node: state for state in self.states}
        return [known[name] for name in names if name in known]

    def fleet(self) -> FleetSummary:
        statuses = [state.main_status for state in self.states]
        return FleetSummary(
            published_realtime_ns=RECORDED["nodes"][0]["published_realtime_ns"],
            nodes=len(self.states),
            statuses={status: statuses.count(status) for status in statuses},
            grandmasters={"gm-a": len(self.states)},
            worst=[_part(state) for state in self.states[:2]],
        )

    def overview(self) -> Overview:
        realtime_ns = RECORDED["nodes"][0]["published_realtime_ns"]
        now = Moment(realtime_ns=realtime_ns, boottime_ns=1_000 * NS_PER_S)
        clocks = [NodeClock.of(state, now.boottime_ns, live=True) for state in self.states]
        reading = FleetReading(clocks, jobs=self.jobs(), findings=self.findings())
        return overview(reading, self.grandmasters(), self.hubs(), self.states[0].node, now, self.fleet().worst)

    def map(self) -> FleetMap:
        places: dict[str, list[tuple[str, Status, int | None]]] = {}
        for state in self.states:
            bound = state.main_bound.bound_ns if state.main_bound is not None else None
            places.setdefault(state.topology, []).append((state.node, state.main_status, bound))
        return FleetMap(published_realtime_ns=RECORDED["nodes"][0]["published_realtime_ns"], places=places)

    def alignment(self, names: Sequence[str] | None, job: str | None) -> AlignmentState | None:
        """Twice the widest bound."""
        if job is not None:
            known = {each.job_id: each for each in self.jobs()}
            if job not in known:
                return None
            names = [rank.node for rank in known[job].ranks]
        nodes = [_part(state) for state in self.nodes(self.node_names() if names is None else names)]
        return AlignmentState(
            published_realtime_ns=RECORDED["nodes"][0]["published_realtime_ns"],
            alignment_ns=2 * max((node.bound_ns or 0 for node in nodes), default=0),
            growth_ppb=100_200,
            holds_for_ns=999_000_000_000,
            pair=[node.node for node in nodes][:2] if len(nodes) > 1 else None,
            reason="",
            nodes=nodes,
        )

    def hubs(self) -> list[HubState]:
        return [
            HubState(
                node="trainer-01", incarnation=3, sequence=12, published_realtime_ns=1_700_000_300_000_000_000,
                started_realtime_ns=1_700_000_000_000_000_000, primary=True, url=None, nodes_live=2, nodes_known=2,
                nodes_expected=3, missing=["trainer-03"], jobs=1,
            )
        ]  # fmt: skip

    def grandmasters(self) -> list[GrandmasterState]:
        return self._current(
            GrandmasterState, [GrandmasterState.model_validate(item) for item in RECORDED["grandmasters"]]
        )

    def jobs(self) -> list[JobState]:
        return self._current(JobState, [JobState.model_validate(item) for item in RECORDED["jobs"]])

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """Of the recorded job two steps, each with one synchronization."""
        if job_id not in [job.job_id for job in self.jobs()]:
            return None
        steps = [step for step in (1199, 1200) if step >= from_step]
        page = {
            "syncs": [_sync(step) for step in steps[:most_steps]],
            "next_step": next(iter(steps[most_steps:]), None),
        }
        return RecordingMessage.model_validate(RECORDED_WINDOW | page)

    def lateness(self, job_id: str, most_steps: int) -> LatenessMatrix | None:
        if job_id not in [job.job_id for job in self.jobs()]:
            return None
        begins_ms: list[int | None] = [1_700_000_298_000, 1_700_000_299_000]
        return LatenessMatrix(
            as_of_realtime_ns=1_700_000_300_000_000_000, lag_ns=7, job_id=job_id, job="llama-pretrain", ranks=[0, 1],
            nodes=["trainer-01", "trainer-02"], steps=[1199, 1200][-most_steps:], begins_ms=begins_ms[-most_steps:],
            error_ns=[55_000, None][-most_steps:], unit_ns=1, lateness="AAAAAHBLXwIAAACAAAAAgA==",
        )  # fmt: skip

    def findings(self) -> list[FindingMessage]:
        return self._current(FindingMessage, [FindingMessage.model_validate(item) for item in RECORDED["findings"]])

    def handled(self) -> list[HandledFinding]:
        return self.taken.of(self.findings(), 1_700_000_300_000_000_000)

    def write_note(self, request: NoteRequest, author: str) -> OperatorNote | str:
        if request.subject == "refused":
            return "no such finding is active"
        note = OperatorNote(
            node="trainer-01", incarnation=3, sequence=99, id="trainer-01-3-99", author=author, kind=request.kind,
            text=request.text, subject=request.subject, finding=request.finding, realtime_ns=1_700_000_300_000_000_000,
            until_realtime_ns=None if request.silence_s is None else 1_800_000_000_000_000_000,
            published_realtime_ns=1_700_000_300_000_000_000,
        )  # fmt: skip
        self.notes.append(note)
        self.taken.add(note)
        return note

    def cost(self) -> DaemonCost | None:
        return DaemonCost(
            node="trainer-01", as_of_realtime_ns=1, cpu_ns=1, cpu_share=0.01, window_ns=60, memory_bytes=1, cpu_budget_share=None,
            memory_budget_bytes=None, poll_factor=1,
        )  # fmt: skip

    def config(self) -> str:
        return '{"node":{"name":"trainer-01"}}'

    def metrics(self) -> bytes:
        return b"timesyncd_gm_bound_seconds 1e-06\n"

    def health(self) -> str | None:
        return self.fault


def _sync(step: int) -> dict[str, Any]:
    at_ns = 1_700_000_000_000_000_000 + step * 260_000_000
    arrivals = [
        {
            "rank": rank, "clock": f"trainer-0{rank + 1}", "real_minus_boot_ns": 1_699_990_000_000_000_000, "arrival_ns": at_ns + late_ns,
            "begin_ns": at_ns + late_ns, "end_ns": at_ns + 46_000_000, "bytes": 26_214_400, "error_ns": 27_500,
        }
        for rank, late_ns in ((0, 0), (1, 39_800_000))
    ]  # fmt: skip
    return {"step": step, "sync": 0, "kind": 6, "arrivals": arrivals}


RECORDED_WINDOW: dict[str, Any] = {
    "job": "llama-pretrain", "attempt": 1, "world_size": 2, "ranks": [{"rank": rank, "node": f"trainer-0{rank + 1}"} for rank in (0, 1)],
}  # fmt: skip


def _part(state: NodeState) -> NodeAlignment:
    bound = state.gm.bound_ns if state.gm is not None else None
    return NodeAlignment(node=state.node, status=state.status, bound_ns=bound, reason=state.reason)
