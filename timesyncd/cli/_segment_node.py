"""A node's state by its clock segment alone: the bounds and their hard terms."""

from __future__ import annotations

import time
from pathlib import Path

from timesyncd.client.clock import Clock
from timesyncd.clocks import boot_id, time_namespace
from timesyncd.messages.node import NodeState, bound_fields, status_name


def segment_node(runtime_dir: Path | None) -> NodeState:
    """The state now. `runtime_dir` None: the folder in which clients look for the segment."""
    clock = Clock(runtime_dir)
    (gm, _, reason), utc, bound = clock.read(), clock.now(), clock.snapshot()
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    parts = {} if bound is None else bound_fields(bound)
    state = NodeState.model_validate(
        parts
        | {
            "node": "this-node",
            "incarnation": 0,
            "sequence": 0,
            "published_realtime_ns": time.time_ns(),
            "age_ns": None if bound is None else max(0, boottime_ns - bound.as_of_ns),
            "boot_id": f"{boot_id():032x}",
            "time_namespace": time_namespace(),
            "status": status_name(gm.status),
            "utc_status": status_name(utc.status),
            "reason": reason,
            "since_realtime_ns": None,
        }
    )
    is_synchronized = state.knows_utc_alone and state.utc_status == "SYNCHRONIZED"
    return state.model_copy(update={"reason": ""}) if is_synchronized else state
