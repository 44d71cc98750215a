"""When the demo counts every node as having had a valid sample."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_view import FakeView

from timesyncd.cli import _demo_system
from timesyncd.cli.render import DaemonReplies, DemoNodeState
from timesyncd.messages.node import NodeState
from timesyncd.simulation.bed.daemon import DaemonProcess


def node_states(*states: NodeState) -> list[DemoNodeState]:
    """The replies of all nodes' daemons at one moment."""
    return [DemoNodeState(state.node, DaemonReplies(state, [], [], [], []), 0) for state in states]


async def test_a_node_in_holdover_has_had_its_valid_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every node has had a valid sample, although never two were synchronized at once."""
    synchronized, holdover = FakeView().states[:2]
    unknown = holdover.model_copy(update={"status": "UNKNOWN", "gm": None})
    moments = iter([node_states(synchronized, unknown), node_states(unknown, holdover)])
    monkeypatch.setattr(_demo_system, "_node_states", lambda _: next(moments))
    monkeypatch.setattr(_demo_system.DemoSystem, "check", lambda _: None)
    monkeypatch.setattr(_demo_system.DemoSystem, "page", "")
    nodes = [_demo_system.DemoNode(DaemonProcess(s.node, tmp_path, "", "marker"), 0) for s in (synchronized, holdover)]

    valid = await _demo_system._watch(_demo_system.DemoSystem("simulated", nodes, []), 0.0, None, asyncio.Event())

    assert valid
