"""Small messages for tests, as they cross the wire."""

from __future__ import annotations

from timesyncd.messages.fleet import CloudEvent, FleetShare, HistoryBatch, HistoryRow, HubState, Stored
from timesyncd.messages.jobs import MarkBatch, PolicyRequest
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, GrandmasterState, NodeState


def node_state(node: str = "n1", incarnation: int = 1, sequence: int = 1) -> NodeState:
    return NodeState.model_validate(
        {
            "node": node,
            "incarnation": incarnation,
            "sequence": sequence,
            "published_realtime_ns": 1,
            "age_ns": None,
            "boot_id": "b",
            "time_namespace": 0,
            "status": "UNKNOWN",
            "utc_status": "UNKNOWN",
            "since_realtime_ns": None,
        }
    )


def grandmaster(node: str, incarnation: int, sequence: int) -> GrandmasterState:
    return GrandmasterState(
        node=node,
        incarnation=incarnation,
        sequence=sequence,
        name="gm-a",
        published_realtime_ns=1,
        age_ns=None,
        reachable=True,
    )


def alarm_event() -> AlarmEventMessage:
    return AlarmEventMessage(
        node="n1",
        incarnation=1,
        sequence=1,
        name="gm-a",
        published_realtime_ns=1,
        action="raise",
        id=99,
        index=1,
        severity="minor",
        text="",
    )


def marks(sequence: int, node: str = "n1") -> MarkBatch:
    return MarkBatch.model_validate(
        dict.fromkeys(
            ("uid", "pid", "attempt", "rank", "world_size", "time_namespace", "real_minus_boot_ns", "lost"), 0
        )
        | dict.fromkeys(("gm_bound_ns", "utc_bound_ns", "grandmaster_identity", "utc_seconds_removed"))
        | {"node": node, "incarnation": 1, "sequence": sequence}
        | {"job": "j", "boot_id": "b", "status": "UNKNOWN", "marks": []}
    )


def policy_request(sequence: int = 1, node: str = "n1") -> PolicyRequest:
    return PolicyRequest(node=node, incarnation=1, sequence=sequence, uid=0, job_id="0" * 16, policy="bsp")


def finding() -> FindingMessage:
    return FindingMessage(
        id="x",
        severity="info",
        subject="eth0",
        since_realtime_ns=1,
        until_realtime_ns=None,
        evidence="",
        cause="",
        remedy="",
    )


def cloud_event(number: int = 1, node: str = "n1") -> CloudEvent:
    return CloudEvent(
        id=f"1-{number}", source=f"/cluster/node/{node}", type="x", subject="s", time="2026-01-01T00:00:00Z", data={}
    )


def history(sequence: int = 1, node: str = "n1", incarnation: int = 1) -> HistoryBatch:
    rows = [HistoryRow(sequence=7, realtime_ns=1, event=cloud_event())]
    return HistoryBatch(node=node, incarnation=incarnation, sequence=sequence, stream=1, floor=1, rows=rows)


def stored(sequence: int = 1, of: str = "n1", node: str = "hub", incarnation: int = 1) -> Stored:
    return Stored(node=node, incarnation=incarnation, sequence=sequence, of=of, stream=1, stored_up_to=sequence, lost=0)


def hub_share(node: str = "hub") -> FleetShare:
    return FleetShare(
        node=node,
        incarnation=1,
        sequence=1,
        published_realtime_ns=1,
        members=[node],
        nodes=0,
        nodes_live=0,
        statuses={},
        grandmasters={},
        worst=[],
        missing=[],
        unknown=None,
        holds_for_ns=1,
        groups=[],
    )


def hub_state(node: str = "hub", incarnation: int = 1, sequence: int = 1) -> HubState:
    return HubState(
        node=node,
        incarnation=incarnation,
        sequence=sequence,
        published_realtime_ns=1,
        started_realtime_ns=1,
        primary=True,
        nodes_live=1,
        nodes_known=1,
        nodes_expected=1,
    )
