"""When the demo holds that it has seen every node's clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_view import FakeView

from timesyncd.cli import _demo_system
from timesyncd.cli.render import DaemonReplies, DemoNodeState
from timesyncd.messages.node import NodeState
from timesyncd.simulation.bed.daemon import DaemonProcess


def seen(*states: NodeState) -> list[DemoNodeState]:
    """What each node's daemon answered at one moment."""
    return [DemoNodeState(state.node, DaemonReplies(state, [], [], [], []), 0) for state in states]


async def test_every_node_had_a_sample_also_when_never_two_were_fresh_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that fell into holdover since has had its valid sample: the result is not "interrupted" for it."""
    synchronized, holdover = FakeView().states[:2]
    unknown = holdover.model_copy(update={"status": "UNKNOWN", "gm": None})
    moments = iter([seen(synchronized, unknown), seen(unknown, holdover)])
    monkeypatch.setattr(_demo_system, "_seen", lambda _: next(moments))
    monkeypatch.setattr(_demo_system.DemoSystem, "check", lambda _: None)
    monkeypatch.setattr(_demo_system.DemoSystem, "page", "")
    nodes = [_demo_system.DemoNode(DaemonProcess(s.node, tmp_path, "", "marker"), 0) for s in (synchronized, holdover)]

    valid = await _demo_system._look(_demo_system.DemoSystem("simulated", nodes, []), 0.0, None, asyncio.Event())

    assert valid
