"""
A fleet of real parts: two nodes with a PTP bed, two hubs and a broker that keeps nothing, through the death of the broker and of
either hub. What the nodes publish arrives at both hubs once, one hub publishes at a time, and a set of nodes is judged.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab import ask, eventually, metric

from timesyncd.__main__ import main
from timesyncd.client import preflight
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

NODES, HUBS = ("n1", "n2"), ("hub-a", "hub-b")
VOID_AFTER_NS = 8_000_000_000
EVER = (0, 2**62)

#: Longer than a hub's silence takes to be noticed, and the other one to speak.
TAKES_OVER_WITHIN_S = 30.0
#: A row that was on its way when somebody died is sent again after 30 s, and waits for a random part of 10 s.
ARRIVES_WITHIN_S = 60.0
MINUTE_WITHIN_S = 200.0


Events = list[tuple[int, str]]


class Fleet:
    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        marker = new_marker()
        self.broker = stack.enter_context(Mosquitto(marker=marker))
        bed = stack.enter_context(PtpBed(direct=NODES, marker=marker))
        self.ptp = bed.nodes
        self.daemons = {
            name: DaemonProcess(
                name, folder / name, bed.nodes[name].uds_address, marker, self.broker,
                bounds={"void_after_ns": VOID_AFTER_NS}, more=f"hubs = {json.dumps(HUBS)}\n",
            )
            for name in NODES
        } | {
            name: DaemonProcess(name, folder / name, "", marker, self.broker, hub=True, more=f"nodes = {json.dumps(NODES)}\n")
            for name in HUBS
        }  # fmt: skip
        for daemon in self.daemons.values():
            stack.enter_context(daemon)

    def primaries(self, asked: str) -> list[str]:
        return [hub["node"] for hub in ask(self.daemons[asked], "hubs") if hub["primary"]]

    def both(self, hub: str, node: str) -> tuple[Events, Events]:
        """A node's events, as it has them itself, and as the hub does."""
        return self.events(node, node), self.events(hub, node)

    def events(self, where: str, node: str) -> Events:
        """What this daemon's store has of a node's events: number and id, newest first."""
        place = StoreLocation(self.daemons[where].store)
        return [(row["sequence"], row["event_id"]) for row in history.cloud_events(place, node, *EVER, limit=1_000)]

    def alignment_ns(self, hub: str) -> Any:
        return ask(self.daemons[hub], f"alignment?nodes={','.join(NODES)}")["alignment_ns"]


@dataclass
class FleetRun:
    """What was seen, in the order of its happening."""

    first: list[str] = field(default_factory=list)
    as_seen_by_a_node: list[str] = field(default_factory=list)
    good: Any = None
    too_tight: Any = None
    kept: dict[tuple[str, str], tuple[Events, Events]] = field(default_factory=dict)
    rollups: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    own_rollups: list[tuple[Any, ...]] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    failed: Any = None
    waiting: float | None = None
    lost: float | None = None


@pytest.fixture(scope="module")
def fleet_run() -> Iterator[FleetRun]:
    with ExitStack() as stack:
        yield play(Fleet(stack))


def play(fleet: Fleet) -> FleetRun:
    fleet_run = FleetRun()
    for hub in HUBS:
        eventually(lambda: fleet.alignment_ns(hub), lambda ns: ns is not None, 60.0)  # noqa: B023
    fleet_run.first = eventually(lambda: fleet.primaries("hub-b"), bool)
    fleet_run.as_seen_by_a_node = eventually(lambda: fleet.primaries("n1"), bool)
    url = fleet.daemons["hub-b"].page
    fleet_run.good = preflight(nodes=NODES, max_alignment_ns=10**9, url=url)
    fleet_run.too_tight = preflight(nodes=NODES, max_alignment_ns=1, url=url)

    accidents(fleet)
    for hub in HUBS:
        for node in NODES:
            both = partial(fleet.both, hub, node)
            fleet_run.kept[hub, node] = eventually(both, lambda seen: seen[0] == seen[1], ARRIVES_WITHIN_S)

    fleet.daemons["hub-a"].kill()
    fleet_run.second = eventually(lambda: fleet.primaries("hub-b"), ["hub-b"].__eq__, TAKES_OVER_WITHIN_S)
    fleet.daemons["hub-a"].start()

    own = fleet_run.own_rollups = eventually(lambda: minutes(fleet, "n1"), is_whole, MINUTE_WITHIN_S)
    fleet_run.rollups = {
        hub: eventually(partial(minutes, fleet, hub), lambda rows: len(rows) >= len(own), ARRIVES_WITHIN_S)[: len(own)]
        for hub in HUBS
    }
    fleet_run.waiting = eventually(
        lambda: metric(fleet.daemons["n1"], "timesyncd_outbox_waiting_rows"), (0.0).__eq__, ARRIVES_WITHIN_S
    )
    fleet_run.lost = metric(fleet.daemons["n1"], "timesyncd_outbox_lost_total")

    fleet.daemons["n2"].kill()
    time.sleep(VOID_AFTER_NS / 1e9)
    fleet_run.failed = preflight(nodes=NODES, max_alignment_ns=10**9, timeout_s=3.0, url=url)
    return fleet_run


def accidents(fleet: Fleet) -> None:
    """The broker dies while there is something to publish, and a hub dies meanwhile; then each comes back."""
    fleet.broker.stop()
    os.kill(fleet.ptp["n1"].pid, signal.SIGSTOP)
    eventually(lambda: len(fleet.events("n1", "n1")), lambda count: count > 4)
    fleet.daemons["hub-b"].kill()
    fleet.broker.start()
    os.kill(fleet.ptp["n1"].pid, signal.SIGCONT)
    eventually(lambda: fleet.alignment_ns("hub-a"), lambda ns: ns is not None, 60.0)
    fleet.daemons["hub-b"].start()


def minutes(fleet: Fleet, where: str) -> list[tuple[Any, ...]]:
    """What this daemon has of n1's minutes, oldest first."""
    with closing(sqlite3.connect(f"file:{fleet.daemons[where].store}?mode=ro", uri=True)) as store:
        return store.execute(
            "SELECT source, quantity, realtime_ns, count, minimum, maximum, mean, p50, p99 FROM rollup"
            " WHERE node = 'n1' AND span_s = 60 ORDER BY realtime_ns, quantity"
        ).fetchall()


def is_whole(rows: list[tuple[Any, ...]]) -> bool:
    """There is a minute in which the node had a bound: in its first one it may have none yet."""
    return {"offset_ns", "path_delay_ns", "gm_bound_ns"} <= {row[1] for row in rows}


def test_one_hub_publishes_and_every_daemon_knows_which(fleet_run: FleetRun) -> None:
    """The first by name; when it is dead, the other one."""
    assert (fleet_run.first, fleet_run.as_seen_by_a_node) == (["hub-a"], ["hub-a"])
    assert fleet_run.second == ["hub-b"]


def test_the_nodes_agree_within_what_their_bounds_allow(fleet_run: FleetRun) -> None:
    """Also by the standby hub; and not within a nanosecond."""
    assert (fleet_run.good.ok, fleet_run.too_tight.ok) == (True, False)
    assert 0 < fleet_run.good.alignment_ns < 10**9
    assert sorted(node.node for node in fleet_run.good.nodes) == sorted(NODES)


@pytest.mark.parametrize("hub", HUBS)
@pytest.mark.parametrize("node", NODES)
def test_every_event_is_in_every_hub_s_store_once(fleet_run: FleetRun, hub: str, node: str) -> None:
    """With its number, whichever hub was dead when it happened."""
    own, kept = fleet_run.kept[hub, node]
    sequences = [sequence for sequence, _ in own]

    assert kept == own
    assert len(sequences) == len(set(sequences)) > 0


def test_a_minute_is_the_same_on_the_node_and_on_both_hubs(fleet_run: FleetRun) -> None:
    """Rolled up where the samples are, and kept unchanged."""
    assert is_whole(fleet_run.own_rollups)
    assert fleet_run.rollups == dict.fromkeys(HUBS, fleet_run.own_rollups)


def test_nothing_waits_and_nothing_was_lost(fleet_run: FleetRun) -> None:
    """What both hubs have is cut from the outbox."""
    assert (fleet_run.waiting, fleet_run.lost) == (0.0, 0.0)


def test_a_dead_node_fails_the_preflight_by_its_name(fleet_run: FleetRun) -> None:
    """A node that is silent is unknown, not fine."""
    assert (fleet_run.failed.ok, fleet_run.failed.alignment_ns) == (False, None)
    assert fleet_run.failed.reason.startswith("n2: ")


def test_the_command_fails_without_a_hub(fleet_run: FleetRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a hub it fails, and names the address that it tried."""
    status = main(
        ["preflight", "--nodes", "n1,n2", "--max-alignment", "1us", "--timeout", "1s", "--url", "http://127.0.0.1:9/"]
    )

    assert status == 1
    assert "127.0.0.1:9" in "".join(capsys.readouterr())
