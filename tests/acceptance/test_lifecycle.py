"""The whole system through a day's accidents: silenced, stopped, killed, restarted; and what its clients see meanwhile."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from lab import HUB, JOB, X_NS, Lab, Seen, Watch, ask, boottime_ns, eventually

from timesyncd.bound import ClockStatus
from timesyncd.ipc.clock_segment import NAME
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

SYNCHRONIZED, HOLDOVER, UNKNOWN = ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER, ClockStatus.UNKNOWN
DISRUPTED = ClockStatus.DISRUPTED
FADING = [SYNCHRONIZED, HOLDOVER, UNKNOWN]

#: From the last sample to the moment that something was stopped: a few Sync intervals on a busy machine.
SAMPLE_EVERY_NS = 3_000_000_000

#: A Sync that was under way at that moment may still arrive.
IN_FLIGHT_NS = 1_000_000_000


@pytest.fixture(scope="module")
def whole() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.fixture
def lab(whole: Lab) -> Lab:
    """As each test finds it: all in sync."""
    whole.settle()
    return whole


def test_a_dead_broker_disturbs_no_clock(lab: Lab) -> None:
    """While the broker is away every node stays in sync and reports the lost connection; afterwards all states are there again."""
    with Watch(lab.clocks["node-a"]) as here, Watch(lab.clocks["node-b"]) as there:
        lab.broker.stop()
        try:
            eventually(lambda: standing(lab), {("broker-lost", name) for name in X_NS}.__eq__)
        finally:
            lab.broker.start()
        eventually(lambda: standing(lab), lambda found: not found)
        for leaf in ("node/node-a/state", "node/node-b/state", f"job/{JOB}/state"):
            eventually(partial(lab.retained, leaf), len)
        here_again = eventually(lambda: lab.retained("node/node-b/availability"), lambda state: state.get("online"))

    assert here_again
    assert (here.statuses(), there.statuses()) == ([SYNCHRONIZED], [SYNCHRONIZED])


def standing(lab: Lab) -> set[tuple[str, str]]:
    """The findings that stand on any node."""
    found = [finding for node in lab.nodes.values() for finding in ask(node, "findings")]
    return {(finding["id"], finding["subject"]) for finding in found if finding["until_realtime_ns"] is None}


@pytest.mark.parametrize("name", ["node-b", "node-a"])
def test_a_killed_daemon_comes_back(lab: Lab, name: str) -> None:
    """
    Its clients read on from the same segment, its history is whole, the broker reports it as away, and a new incarnation
    takes up what the former one did.
    """
    node, source = lab.nodes[name], f"ptp-{name}"
    inode, incarnation = segment_inode(lab, name), ask(node, "node")["incarnation"]
    stored = list(history.samples(StoreLocation(node.store), source, 0, 2**62))
    with Watch(lab.clocks[name]) as watch:
        killed = Seen.of(lab.clocks[name])
        node.kill()
        gone = eventually(
            lambda: lab.retained(f"node/{name}/availability"), lambda state: not state.get("online", True)
        )
        left = list(history.samples(StoreLocation(node.store), source, 0, 2**62))
        node.start()
        new = eventually(lambda: ask(node, "node"), lambda state: state["status"] == "SYNCHRONIZED")
        eventually(lambda: lab.clocks[name].snapshot(), lambda bound: bound and bound.as_of_ns > killed.boottime_ns[1])
        step = lab.ranks[name].latest()["step"]
        eventually(lambda: ask(lab.nodes[HUB], "jobs"), lambda jobs: any(is_beyond(job, step) for job in jobs))
    with closing(sqlite3.connect(node.store)) as connection:
        integrity = connection.execute("PRAGMA integrity_check").fetchall()

    assert gone == {"online": False, "incarnation": incarnation}
    assert new["incarnation"] > incarnation
    assert lab.retained(f"node/{name}/availability") == {"online": True, "incarnation": new["incarnation"]}
    assert integrity == [("ok",)]
    assert left[: len(stored)] == stored
    assert killed.realtime_ns[0] - left[-1]["realtime_ns"] < 4_000_000_000
    assert list(history.samples(StoreLocation(node.store), source, 0, 2**62))[: len(left)] == left
    assert segment_inode(lab, name) == inode
    assert set(watch.statuses()) <= set(FADING)
    assert all(seen.holds_truth(X_NS[name]) for seen in watch.seen)


def is_beyond(job: dict[str, Any], step: int) -> bool:
    """The hub has both ranks' marks of a later step, and names the slow one."""
    return bool(job["straggler_rank"] == 1 and (job["step"] or 0) > step)


def segment_inode(lab: Lab, name: str) -> int:
    return (lab.folder / name / NAME).stat().st_ino


def test_a_restarted_ptp4l_is_reported_and_followed(lab: Lab) -> None:
    """What the former instance measured is not believed any more, until the new one has measured."""
    with Watch(lab.clocks["node-a"]) as watch:
        lab.bed.restart("node-a")
        eventually(lambda: ask(lab.nodes["node-a"], "node"), lambda node: node["status"] == "DISRUPTED")
        eventually(watch.statuses, lambda statuses: len(statuses) > 1 and statuses[-1] is SYNCHRONIZED)
    disrupted = [seen for seen in watch.seen if seen.interval.status is DISRUPTED]

    assert watch.statuses()[-2:] == [DISRUPTED, SYNCHRONIZED]
    assert {(seen.width_ns, seen.reason) for seen in disrupted} == {(None, "the PTP daemon restarted")}


def test_a_silent_grandmaster_fades_as_configured(lab: Lab) -> None:
    """SYNCHRONIZED, HOLDOVER with a growing bound, UNKNOWN, on both nodes; and back when it speaks again."""
    with Watch(lab.clocks["node-a"]) as here, Watch(lab.clocks["node-b"]) as there:
        with stopped(lab.bed.grandmaster.pid) as stopped_ns:
            for watch in (here, there):
                eventually(watch.statuses, lambda statuses: statuses[-1] is UNKNOWN)
            node = eventually(lambda: ask(lab.nodes[HUB], "node"), lambda node: node["status"] == "UNKNOWN")
            eventually(lambda: standing(lab), {("clock-unknown", name) for name in X_NS}.__eq__)
            eventually(lambda: lab.signals("node-b"), lambda signals: signals["alignment_ns"] is None)
            eventually(lab.ranks["node-b"].latest, lambda record: record["mode"] == "plain")
        lab.settle()
        eventually(lambda: standing(lab), lambda found: not found)

    assert re.match(r"no fresh sample for too long: no Sync", node["reason"])
    assert_faded(here, stopped_ns, X_NS["node-a"])
    assert_faded(there, stopped_ns, X_NS["node-b"])


def test_a_stopped_daemon_fades_as_configured(lab: Lab) -> None:
    """The segment alone shows it, ptp4l is not held up, and no rank waits for the daemon."""
    rank = lab.ranks["node-b"]
    with Watch(lab.clocks["node-b"]) as watch:
        with stopped(lab.nodes["node-b"].process.pid) as stopped_ns:
            before, synced_ns = rank.latest(), newest_sync_ns(lab, "node-b")
            eventually(watch.statuses, lambda statuses: statuses[-1] is UNKNOWN)
            after, later_synced_ns = rank.latest(), newest_sync_ns(lab, "node-b")
            others = ask(lab.nodes[HUB], "nodes")
        lab.settle()

    assert_faded(watch, stopped_ns, X_NS["node-b"])
    assert later_synced_ns - synced_ns > 4_000_000_000
    assert after["step"] > before["step"] + 100
    assert after["marks_lost"] > before["marks_lost"]
    assert [(node["node"], node["status"]) for node in others] == [("node-a", "SYNCHRONIZED"), ("node-b", "UNKNOWN")]


@contextmanager
def stopped(pid: int) -> Iterator[int]:
    """The process does nothing inside; gives CLOCK_BOOTTIME when that began."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield boottime_ns()
    finally:
        os.kill(pid, signal.SIGCONT)


def assert_faded(watch: Watch, stopped_ns: int, x_ns: int) -> None:
    """From the last sample before the stop on, every reading was what its age asks for, and the interval held the truth."""
    last = next(seen.as_of_ns for seen in watch.seen if seen.interval.status is UNKNOWN)
    fading = [seen for seen in watch.seen if seen.as_of_ns == last]
    widths = [seen.width_ns or 0 for seen in fading if seen.interval.status is HOLDOVER]
    reasons = {(seen.interval.status, seen.reason) for seen in fading}

    assert watch.statuses()[: len(FADING)] == FADING
    assert watch.statuses()[-1] is SYNCHRONIZED
    assert set(watch.statuses()) == set(FADING)
    assert last is not None
    assert -IN_FLIGHT_NS < stopped_ns - last < SAMPLE_EVERY_NS
    assert all(seen.status_is_due() for seen in fading)
    assert len(widths) > 50
    assert min(widths[len(widths) // 2 :]) > min(widths[: len(widths) // 2])
    assert all(seen.holds_truth(x_ns) for seen in watch.seen)
    assert reasons == {
        (SYNCHRONIZED, ""),
        (HOLDOVER, "no fresh sample; the bound grows"),
        (UNKNOWN, "no fresh sample for too long"),
    }


def newest_sync_ns(lab: Lab, name: str) -> int:
    """When ptp4l's newest Sync came in, as linuxptp's own client reads it."""
    server = lab.bed.nodes[name].uds_address
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", server, "-i", f"{folder}/pmc"]
        answer = subprocess.run([*command, "GET TIME_STATUS_NP"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"ingress_time\s+(\d+)", answer)
    assert found, answer
    return int(found[1])


@pytest.mark.parametrize("name", X_NS)
def test_no_rank_ever_read_a_wrong_time(lab: Lab, name: str) -> None:
    """Through all of the above, on both nodes: each interval held the truth, and a rank never raised or ended."""
    rank = lab.ranks[name]
    readings = [Seen.recorded(record) for record in eventually(rank.records, lambda records: len(records) > 100)]

    assert rank.process.poll() is None
    assert {seen.interval.status for seen in readings} >= {SYNCHRONIZED, UNKNOWN}
    assert [seen for seen in readings if not seen.holds_truth(X_NS[name])] == []
