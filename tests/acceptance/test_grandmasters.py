"""Grandmasters as their users meet them: what they report, what happens to them, and what a daemon that was away makes of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from grandmaster_lab import (
    Listener,
    Viewer,
    Workshop,
    free_udp_port,
    grandmaster,
    place,
    secret,
    section,
    stored_alarms,
    user,
)
from lab import Watch, ask, eventually

from timesyncd.bound import ClockStatus, Reason
from timesyncd.client.clock import Clock
from timesyncd.sample import format_identity
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.simulated_ptp4l import GRANDMASTER_IDENTITY, SimulatedPtp4l
from timesyncd.simulation.grandmaster.actions import SCENARIOS
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, alarm
from timesyncd.simulation.grandmaster.channels import CHANNELS, day_file
from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster
from timesyncd.simulation.grandmaster.traps import SyslogSender, TrapSender
from timesyncd.simulation.grandmaster.wire import UsmUser
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

pytestmark = pytest.mark.integration

S = 1_000_000_000
FOLLOWED = format_identity(GRANDMASTER_IDENTITY)
#: A holdover budget, and a part of it that is well above the time between two polls.
BUDGET_S, HELD_NS = 3_600, 4 * S
REPORTER = UsmUser("reporter", "sha256", "quiet-harbour", "aes256", "seven-lanterns")


@dataclass(frozen=True)
class Bench:
    """Where a test's parts stand; all of them go with it."""

    folder: Path
    marker: str
    workshop: Workshop

    def daemon(self, name: str, *sections: str, uds_address: str = "", **more: Any) -> DaemonProcess:
        return DaemonProcess(name, self.folder / name, uds_address, self.marker, more="".join(sections), **more)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with place() as (folder, marker), Workshop() as workshop:
        yield Bench(folder, marker, workshop)


def state_of(node: DaemonProcess, name: str = "gm") -> dict[str, Any]:
    states = {each["name"]: each for each in ask(node, "grandmasters")}
    state: dict[str, Any] = states[name]
    return state


def polled_ns(state: dict[str, Any]) -> int:
    """When the grandmaster was polled, CLOCK_REALTIME; 0: never."""
    return 0 if state["age_ns"] is None else state["published_realtime_ns"] - state["age_ns"]


@dataclass(frozen=True)
class Reporting:
    """A grandmaster that a daemon polls once an hour, unless a report causes a poll."""

    gm: SimulatedGrandmaster
    node: DaemonProcess
    workshop: Workshop
    listener: Listener
    viewer: Viewer
    ports: dict[str, int]


@pytest.fixture(scope="module")
def reporting() -> Iterator[Reporting]:
    ports = {"traps": free_udp_port(), "syslog": free_udp_port()}
    v3 = {"user": REPORTER.name, "auth": REPORTER.auth, "auth_pass": REPORTER.auth_pass}
    v3 |= {"priv": REPORTER.priv, "priv_pass": REPORTER.priv_pass}
    with place() as (folder, marker), Workshop() as workshop, Mosquitto(marker=marker) as broker:
        (gm,) = workshop.grandmasters(model="tp4100")
        traps = {"communities": [secret(gm.agent.community, folder / "traps")], "users": [user(v3, folder / "user")]}
        sections = [
            grandmaster("gm", gm.facts(), folder, state_interval_s=3600, table_interval_s=3600),
            section("[traps]", {"host": "127.0.0.1", "port": ports["traps"], **traps}),
            section("[syslog]", {"host": "127.0.0.1", "port": ports["syslog"]}),
        ]
        node = DaemonProcess("hub", folder / "hub", "", marker, broker, more="".join(sections))
        with Listener(broker) as listener, node, Viewer(node) as viewer:
            eventually(lambda: state_of(node), lambda state: state["clock_state"] == "locked")
            yield Reporting(gm, node, workshop, listener, viewer, ports)


def reporter(reporting: Reporting, way: str) -> Callable[[DeviceEvent], None]:
    agent, ports, workshop = reporting.gm.agent, reporting.ports, reporting.workshop
    match way:
        case "v2c trap":
            return workshop.open(TrapSender(agent, "127.0.0.1", ports["traps"])).report
        case "v3 inform":
            inform = TrapSender(agent, "127.0.0.1", ports["traps"], user=REPORTER, inform=True)
            return workshop.open(inform).report
        case _:
            return workshop.open(SyslogSender(agent.device, "127.0.0.1", ports["syslog"])).report


@pytest.mark.parametrize(
    ("way", "name"), [("v2c trap", "fan"), ("v3 inform", "temperature"), ("line of syslog", "rb-unlock")]
)
def test_what_a_grandmaster_reports_is_published_and_causes_a_poll(reporting: Reporting, way: str, name: str) -> None:
    """An alarm is on MQTT, on the page's stream, in the store and in the grandmaster's state, and causes a poll at once."""
    node, raised = reporting.node, alarm(name, 1, time.time())
    report = reporter(reporting, way)
    reported_ns = time.time_ns()
    reporting.workshop.do(lambda: report(DeviceEvent("raise", raised.raised_s, raised)))
    (event,) = eventually(lambda: with_id(reporting.listener.alarms("gm"), raised.s650_id), len)
    (shown,) = eventually(lambda: with_id(reporting.viewer.of("alarm"), raised.s650_id), len)
    state = eventually(lambda: state_of(node), lambda state: polled_ns(state) > reported_ns)
    (stored,) = eventually(lambda: with_id(stored_alarms(node, "gm"), raised.s650_id, "alarm_id"), len)

    assert (event["action"], event["severity"], event["text"], event["lost"]) == (
        "raise",
        raised.severity,
        raised.text,
        0,
    )
    assert shown == event
    assert (stored["action"], stored["text"], stored["realtime_ns"]) == (
        "raise",
        raised.text,
        event["published_realtime_ns"],
    )
    assert raised.text in [each["text"] for each in state["alarms"]]


def with_id(events: list[dict[str, Any]], alarm_id: int | None, key: str = "id") -> list[dict[str, Any]]:
    return [event for event in events if event[key] == alarm_id]


def test_a_restart_in_holdover_goes_on_with_the_budget(bench: Bench) -> None:
    """The store knows when the grandmaster was last locked, and the new daemon counts from there; without a store the time is unknown."""
    (gm,) = bench.workshop.grandmasters(model="tp5000e")
    sections = [
        grandmaster("gm", gm.facts(), bench.folder, oscillator="ocxo"),
        section("[oscillator.ocxo]", {"holdover": [[0, 1_000], [BUDGET_S, 3_600_000]]}),
    ]
    with bench.daemon("kept", *sections) as kept, bench.daemon("lost", *sections, has_store=False) as lost:
        eventually(lambda: history.last_locked(StoreLocation(kept.store), "gm"), bool)
        eventually(lambda: state_of(lost), lambda state: state["clock_state"] == "locked")
        bench.workshop.do(lambda: SCENARIOS["antenna-cut"](gm.device))
        before, _ = (eventually(partial(state_of, node), has_held_for_a_while) for node in (kept, lost))
        for node in (kept, lost):
            node.kill()
            node.start()
        after, unknown = (eventually(partial(state_of, node), is_in_holdover) for node in (kept, lost))

    assert abs(ends_ns(before) - ends_ns(after)) < HELD_NS // 2
    assert after["utc"]["bound_ns"] > before["utc"]["bound_ns"]
    assert (unknown["clock_state"], unknown["utc"]["bound_ns"]) == ("holdover", None)
    assert unknown["utc"]["reason"] == Reason.HOLDOVER_AGE_UNKNOWN.text


def is_in_holdover(state: dict[str, Any]) -> bool:
    return state["clock_state"] == "holdover" and state["utc"] is not None


def has_held_for_a_while(state: dict[str, Any]) -> bool:
    return state["holdover_left_ns"] is not None and BUDGET_S * S - state["holdover_left_ns"] > HELD_NS


def ends_ns(state: dict[str, Any]) -> int:
    """When the holdover budget is used up, CLOCK_REALTIME."""
    left_ns: int = state["holdover_left_ns"]
    return polled_ns(state) + left_ns


AWAY_S = 7_200


def test_the_grandmasters_own_history_fills_the_hole(bench: Bench) -> None:
    """A daemon that was away for two hours takes them from the grandmaster's file of the day, and no earlier record comes twice."""
    (gm,) = bench.workshop.grandmasters(model="tp4100")
    bench.workshop.do(lambda: set_back(gm.device))
    with bench.daemon("hub", grandmaster("gm", gm.facts(), bench.folder, https=True)) as node:
        first = eventually(lambda: gnss_te(node), lambda points: len(points) > 1_400)
        node.stop()
        gm.device.clock = time.time
        went_ns = time.time_ns() - AWAY_S * S
        node.start()
        both = eventually(lambda: gnss_te(node), lambda points: max(points) > went_ns + (AWAY_S - 120) * S)
        rows = [row for row in history.time_errors(StoreLocation(node.store), "gm", 0, 2**62) if row["metric"] == "te"]
    truth = day(bench.workshop.do(lambda: day_file(gm.device, CHANNELS[0], "te", tai=False)))
    filled = {at_ns: value for at_ns, value in both.items() if max(first) < at_ns and at_ns in truth}

    assert len(filled) >= AWAY_S // 60 - 1
    assert filled == {at_ns: truth[at_ns] for at_ns in filled}
    assert max(later - earlier for earlier, later in pairwise(sorted(both))) <= 60 * S
    assert {at_ns: both[at_ns] for at_ns in first} == first
    assert len({(row["channel"], row["realtime_ns"]) for row in rows}) == len(rows)


def day(file: str) -> dict[int, int]:
    """Time errors by their time, both in ns."""
    rows = [line.rpartition(",") for line in file.splitlines() if not line.startswith("#")]
    return {
        int(datetime.strptime(f"{at}Z", "%Y-%m-%d,%H:%M:%S%z").timestamp()) * S: round(Decimal(value.strip()))
        for at, _, value in rows
    }


def set_back(device: Device) -> None:
    """The grandmaster lives two hours ago."""
    device.clock = lambda: time.time() - AWAY_S
    device.epoch_s -= AWAY_S
    device.started_s -= AWAY_S


def gnss_te(node: DaemonProcess) -> dict[int, int]:
    """The stored time errors of the GNSS channel by time; empty as long as there is no store."""
    if not node.store.exists():
        return {}
    rows = history.time_errors(StoreLocation(node.store), "gm", 0, 2**62)
    return {row["realtime_ns"]: row["value_ns"] for row in rows if (row["channel"], row["metric"]) == ("GNSS-1", "te")}


@dataclass(frozen=True)
class Followed:
    """A grandmaster, and a daemon that polls it and whose own clock follows it."""

    gm: SimulatedGrandmaster
    node: DaemonProcess
    workshop: Workshop
    clock: Clock


@pytest.fixture(scope="module")
def followed() -> Iterator[Followed]:
    with place() as (folder, marker), Workshop() as workshop:
        (gm,) = workshop.grandmasters(model="tp5000e", speed=60)
        workshop.open(SimulatedPtp4l(folder / "ptp4l", 0, is_traceable=True))
        more = grandmaster("gm", gm.facts(), folder, identities=[FOLLOWED])
        with DaemonProcess("node", folder / "node", str(folder / "ptp4l"), marker, more=more) as node:
            yield Followed(gm, node, workshop, Clock(folder / "node"))


def another_module(device: Device) -> None:
    device.serial = "SIM0002"


def wrong_utc_offset(device: Device) -> None:
    SCENARIOS["wrong-utc-offset"](device)


def reboot(device: Device) -> None:
    SCENARIOS["reboot"](device)


@pytest.mark.parametrize(
    ("happens", "finding", "evidence", "reason"),
    [
        (
            another_module,
            "grandmaster-identity-changed",
            "clock_identity changed from .* to .*",
            Reason.GRANDMASTER_IDENTITY_CHANGED,
        ),
        (
            wrong_utc_offset,
            "grandmaster-spoofing",
            "utc_offset_s changed from 37 to 36 while it was locked, at .*",
            Reason.GRANDMASTER_UTC_OFFSET_CHANGED,
        ),
        (reboot, "grandmaster-rebooted", "engine_boots changed from 4 to 5", Reason.GRANDMASTER_RESTARTED),
    ],
)
def test_an_event_of_a_grandmaster_is_reported_and_invalidates(
    followed: Followed, happens: Callable[[Device], None], finding: str, evidence: str, reason: Reason
) -> None:
    """An event, never a silent jump: a finding names the change, and the follower's clock is distrusted until it has measured again."""
    node, clock = followed.node, followed.clock
    eventually(clock.gm_now, lambda now: now.status is ClockStatus.SYNCHRONIZED)
    eventually(lambda: state_of(node), lambda state: state["clock_state"] == "locked")
    with Watch(clock) as watch:
        followed.workshop.do(lambda: happens(followed.gm.device))
        findings = eventually(lambda: [each for each in ask(node, "findings") if each["id"] == finding], len)
        state = eventually(lambda: state_of(node), lambda state: state["invalidation_reason"] == reason.text)
        measured = eventually(
            lambda: ask(node, "node"), lambda own: polled_ns(own) > state["invalid_before_realtime_ns"]
        )
        eventually(clock.gm_now, lambda now: now.status is ClockStatus.SYNCHRONIZED)
    distrusted = {seen.reason for seen in watch.seen if seen.interval.status is ClockStatus.DISRUPTED}

    assert [each["subject"] for each in findings] == ["gm"]
    assert re.fullmatch(evidence, findings[0]["evidence"])
    assert distrusted == {reason.text}
    assert measured["status"] == "SYNCHRONIZED"
    assert all(seen.holds_truth(0) for seen in watch.seen)


AHEAD_NS, UNCERTAINTY_NS = 800, 5


def test_two_grandmasters_are_compared_by_an_input_of_one(bench: Bench) -> None:
    """A channel that measures the other grandmaster gives the offset between the two, with its sign, within its bound of the truth."""
    grandmasters = bench.workshop.grandmasters(model="tp4100", count=2, speed=60)
    bench.workshop.do(lambda: grandmasters[1].device.move_reference(AHEAD_NS))
    inputs = {"PTP-1": {"grandmaster": "gm-2", "uncertainty_ns": UNCERTAINTY_NS}}
    sections = [
        grandmaster(gm.device.name, gm.facts(), bench.folder, https=True, inputs=feed)
        for gm, feed in zip(grandmasters, (inputs, {}), strict=True)
    ]
    for gm in grandmasters:
        bench.workshop.do(partial(live_on, gm.device))
    with bench.daemon("hub", *sections) as node:
        state = eventually(lambda: state_of(node, "gm-1"), lambda state: state["offsets"])
        mirrored = state_of(node, "gm-2")["offsets"]
        found = eventually(lambda: standing(node, "grandmasters-disagree"), len)
    (offset,) = state["offsets"]
    (measured,) = [each for each in state["time_errors"] if (each["channel"], each["metric"]) == ("PTP-1", "te")]
    truth_ns = [true_ns(gm.device, measured["at_realtime_ns"] / S) for gm in grandmasters]

    assert abs(offset["offset_ns"] - (truth_ns[0] - truth_ns[1])) <= offset["bound_ns"] == UNCERTAINTY_NS
    assert -2 * AHEAD_NS < offset["offset_ns"] < -AHEAD_NS // 2
    assert (offset["other"], offset["evidence"]) == ("gm-2", "gm-1 by PTP-1")
    assert [(each["other"], each["offset_ns"] > 0) for each in mirrored] == [("gm-1", True)]
    assert [each["subject"] for each in found] == ["gm-1, gm-2"]


def live_on(device: Device) -> None:
    """Half a minute passes for the grandmaster, and at its speed half an hour for what happens to it: a jump has long ended."""
    device.clock = lambda: time.time() + 30
    device.catch_up()


def standing(node: DaemonProcess, finding: str) -> list[dict[str, Any]]:
    return [each for each in ask(node, "findings") if each["id"] == finding and each["until_realtime_ns"] is None]


def true_ns(device: Device, unix_s: float) -> float:
    """A grandmaster's time minus UTC when its clock showed that."""
    return device.oscillator.true_ns(device.elapsed_at(unix_s))
