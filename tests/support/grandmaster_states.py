"""States of grandmasters and of the nodes that follow them, as they cross the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from wire import grandmaster, node_state

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import BoundMessage, GrandmasterState, NodeState, SourceState
from timesyncd.sample import InputReference, Satellite

MINUTE_NS = 60 * NS_PER_S
HOUR_NS = 60 * MINUTE_NS

#: Ten past two, at night.
NIGHT_NS = int(datetime(2026, 3, 1, 2, 10, tzinfo=UTC).timestamp()) * NS_PER_S

GM_A, GM_B = "00a069.fffe.70476a", "00a069.fffe.70476b"


def satellites(*levels: int | None, healthy: bool | None = True) -> list[Satellite]:
    return [Satellite(number, level, healthy) for number, level in enumerate(levels, 1)]


GOOD_SKY = satellites(45, 44, 43, 42, 41, 40)


def polled_grandmaster(name: str = "gm-a", /, **changes: Any) -> GrandmasterState:
    """Locked to GNSS, just polled by the node `hub`."""
    fields: dict[str, Any] = {
        "name": name,
        "published_realtime_ns": NIGHT_NS,
        "age_ns": 0,
        "identities": [GM_A if name == "gm-a" else GM_B],
        "clock_state": "locked",
        "clock_class": 6,
        "clock_accuracy": 0x21,
        "utc_offset_s": 37,
        "selected_reference": "GNSS-1",
        "references": [InputReference("GNSS-1", "selected"), InputReference("PTP-1", "qualified")],
        "satellites": GOOD_SKY,
        "antenna": "ok",
        "alarms": [],
        "utc": BoundMessage(bound_ns=100, growth_ppb=0, reason=""),
    }
    return grandmaster("hub", 1, 1).model_copy(update=fields | changes)


def source(identity: str = GM_A, **changes: Any) -> SourceState:
    """Receives a healthy grandmaster."""
    fields: dict[str, Any] = {
        "name": "ptp",
        "driver": "ptp4l",
        "reachable": True,
        "offset_ns": 0,
        "clock_class": 6,
        "clock_accuracy": 0x21,
        "steps_removed": 1,
        "ptp_timescale": True,
        "grandmaster_identity": identity,
        "current_utc_offset_s": 37,
        "utc_seconds_removed": 37,
        "gm": BoundMessage(bound_ns=1_000, growth_ppb=50_000, reason=""),
        "age_ns": 0,
    }
    return SourceState.model_validate(fields | changes)


def follower(name: str = "node-a", identity: str = GM_A, **changes: Any) -> NodeState:
    """Its clock is known against this grandmaster and against UTC."""
    bound = BoundMessage(bound_ns=5_000, growth_ppb=50_100, reason="")
    fields: dict[str, Any] = {
        "status": "SYNCHRONIZED",
        "utc_status": "SYNCHRONIZED",
        "age_ns": 0,
        "published_realtime_ns": NIGHT_NS,
        "grandmaster_identity": identity,
        "gm": bound,
        "utc": bound,
        "sources": [source(identity)],
    }
    return node_state(name).model_copy(update=fields | changes)
