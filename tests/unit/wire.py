"""Small messages for tests, as they cross the wire."""

from __future__ import annotations

from timesyncd.messages import AlarmEventMessage, FindingMessage, GrandmasterState, MarkBatch, NodeState


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
