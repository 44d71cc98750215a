"""The wire message of what a daemon costs its node, on HTTP; schemas/ is exported from here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from timesyncd.config import Name
from timesyncd.ipc.wire_types import Int64, RealtimeNs
from timesyncd.messages.node import Message

Share = Annotated[float, Field(ge=0)]


class SourceCost(Message):
    """
    Of one source, grandmaster or the broker since the daemon's start: polls, and packets with their payload's bytes; of HTTPS
    only the polls. `polls_per_s` is over the last minute; null: not measured yet.
    """

    source: str
    polls: Int64
    polls_per_s: Share | None
    packets_sent: Int64
    packets_received: Int64
    bytes_sent: Int64
    bytes_received: Int64


class DaemonCost(Message):
    """
    What the daemon costs: `cpu_ns` of processor time since its start, `cpu_share` of one core over the last `window_ns` (null:
    not measured yet), and resident memory. Budgets are those of [limits], null without one. While the daemon is over its
    budget of CPU, its polls are `poll_factor` times as far apart as configured.
    """

    node: Name
    as_of_realtime_ns: RealtimeNs
    cpu_ns: Int64
    cpu_share: Share | None
    window_ns: Int64
    memory_bytes: Int64 | None
    cpu_budget_share: Share | None
    memory_budget_bytes: Int64 | None
    poll_factor: Annotated[int, Field(ge=1)]
    sources: list[SourceCost] = []
