"""When the demo counts every node as having had a valid sample, and what it states for its daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_view import FakeView

from timesyncd.cli import _demo_system
from timesyncd.cli._demo_ptp import SimulatedPtp
from timesyncd.cli._demo_story import StoryEvent
from timesyncd.cli._demo_view import ProgressLines, StoryNotes, top_command
from timesyncd.cli.render import DaemonReplies, DemoNodeState
from timesyncd.messages.node import NodeState
from timesyncd.messages.simulation import SimulationFile
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l


def node_states(*states: NodeState) -> list[DemoNodeState]:
    """The replies of all nodes' daemons at one moment."""
    return [DemoNodeState(state.node, DaemonReplies(state, [], [], [], []), 0) for state in states]


def system_of(tmp_path: Path, names: list[str], story: list[StoryEvent]) -> _demo_system.DemoSystem:
    """Without processes; each true offset is -7 ns."""
    nodes = [_demo_system.DemoNode(DaemonProcess(name, tmp_path, "", "marker"), 0) for name in names]
    ptp = SimulatedPtp({name: SimulatedPtp4l(tmp_path / name, -7) for name in names}, {})
    return _demo_system.DemoSystem(ptp, nodes, [], tmp_path / "simulation.json", story, StoryNotes(None))


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_demo_system.DemoSystem, "check", lambda _: None)
    monkeypatch.setattr(_demo_system.DemoSystem, "page", "")


@pytest.mark.usefixtures("without_processes")
async def test_a_node_in_holdover_has_had_its_valid_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every node has had a valid sample, although never two were synchronized at once."""
    synchronized, holdover = FakeView().states[:2]
    unknown = holdover.model_copy(update={"status": "UNKNOWN", "gm": None})
    moments = iter([node_states(synchronized, unknown), node_states(unknown, holdover)])
    monkeypatch.setattr(_demo_system, "_node_states", lambda _: next(moments))
    system = system_of(tmp_path, [synchronized.node, holdover.node], [])

    valid = await _demo_system._watch(system, 0.0, ProgressLines("", as_json=True), asyncio.Event())

    assert valid


@pytest.mark.usefixtures("without_processes")
async def test_the_story_begins_with_the_last_nodes_first_sample(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is announced on stderr, and the daemon's file has the truth and the newest line."""
    done: list[str] = []

    async def act() -> None:
        done.append("cut")

    (synchronized,) = FakeView().states[:1]
    monkeypatch.setattr(_demo_system, "_node_states", lambda _: node_states(synchronized))
    system = system_of(tmp_path, [synchronized.node], [StoryEvent(0.0, "the antenna is cut", act)])

    await _demo_system._watch(system, 0.5, ProgressLines("", as_json=False), asyncio.Event())

    assert done == ["cut"]
    assert "in 5 s: the antenna is cut\n" in capsys.readouterr().err
    stated = SimulationFile.model_validate_json(system.stated.read_bytes())
    assert stated.story == "0 s ago: the antenna is cut"
    assert stated.simulated.startswith("simulated: the grandmasters and ptp4l")
    assert stated.offsets[synchronized.node].offset_ns == -7


def test_the_view_takes_no_signal_of_the_terminals() -> None:
    """Ctrl-C before it reads keys ends the demo alone, which then ends it; it dies with the demo."""
    command = " ".join(top_command("http://127.0.0.1:1/"))

    assert "--pdeathsig KILL" in command
    assert 'trap "" INT; exec' in command
    assert command.endswith("-m timesyncd top --url http://127.0.0.1:1/")
