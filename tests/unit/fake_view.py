"""What the web room needs of a daemon, from recorded states."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timesyncd.feed import Feed
from timesyncd.messages import FindingMessage, GrandmasterState, JobState, NodeState
from timesyncd.web.events import Event

RECORDED: dict[str, list[Any]] = json.loads((Path(__file__).parents[1] / "recordings" / "view.json").read_text())


@dataclass
class FakeView:
    """A node in sync, one in holdover, a grandmaster with an alarm, a job with a slow rank."""

    states: list[NodeState] = field(default_factory=lambda: [NodeState.model_validate(n) for n in RECORDED["nodes"]])
    wrong: str | None = None
    events: Feed[Event] = field(default_factory=lambda: Feed(key=lambda event: event.kind))

    def node(self) -> NodeState:
        return self.states[0]

    def nodes(self) -> list[NodeState]:
        return self.states

    def grandmasters(self) -> list[GrandmasterState]:
        return [GrandmasterState.model_validate(item) for item in RECORDED["grandmasters"]]

    def jobs(self) -> list[JobState]:
        return [JobState.model_validate(item) for item in RECORDED["jobs"]]

    def findings(self) -> list[FindingMessage]:
        return [FindingMessage.model_validate(item) for item in RECORDED["findings"]]

    def metrics(self) -> bytes:
        return b"timesyncd_gm_bound_seconds 1e-06\n"

    def health(self) -> str | None:
        return self.wrong
