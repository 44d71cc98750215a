"""A leap second through the whole chain: ptp4l, kernel, model, segment and client."""

from __future__ import annotations

from pathlib import Path

import pytest
from leap_world import MIDNIGHT_S, TAI, LeapScenario, LeapWorld, contains, is_narrow

from timesyncd.bound import ClockStatus, Reference
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.node import agreement_conditions
from timesyncd.model.leap import Leap, LeapTable

KNOWN = LeapTable(((0, 36), (1_483_228_800, 37), (MIDNIGHT_S, 38)), MIDNIGHT_S + 10**7)
DELETED = LeapTable(((0, 36), (1_483_228_800, 37), (MIDNIGHT_S, 36)), MIDNIGHT_S + 10**7)

SCENARIOS = {
    "inserted": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, table=KNOWN),
    "inserted, no table": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1),
    "inserted, ptp4l 3.1.1": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, adopts=False, table=KNOWN),
    "inserted, ptp4l 3.1.1 steps": LeapScenario(
        Leap.INSERT, Leap.INSERT, -1, 1, adopts=False, restored_s=20, table=KNOWN
    ),
    "deleted": LeapScenario(Leap.DELETE, Leap.DELETE, 1, -1, table=DELETED),
    "announced falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0),
    "announced falsely, flag stuck": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, cleared_s=10**6),
    "announced falsely, UTC offset follows": LeapScenario(Leap.NONE, Leap.INSERT, -1, 1),
    "announced falsely, UTC offset follows, is corrected": LeapScenario(Leap.NONE, Leap.INSERT, -1, 1, corrected_s=20),
    "the same, and ptp4l 3.1.1 keeps it": LeapScenario(
        Leap.NONE, Leap.INSERT, -1, 1, corrected_s=20, keeps_offset=True
    ),
    "the kernel does not step": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, servo_steps_s=30, table=KNOWN),
    "the kernel does not step, nor anything else": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, table=KNOWN),
    "the daemon died before": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, daemon_dies_s=-20, table=KNOWN),
    "both flags": LeapScenario(Leap.INSERT, Leap.BOTH, 0, 1, table=KNOWN),
    "hardware stamps": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, hardware=True, table=KNOWN),
    "hardware stamps, deleted": LeapScenario(Leap.DELETE, Leap.DELETE, 1, -1, hardware=True, table=DELETED),
    "hardware stamps, no step": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, hardware=True, table=KNOWN),
    "hardware stamps, falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, hardware=True),
    "read at each Sync": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, hardware=True, read_at_sync=True, table=KNOWN),
    "read at each Sync, deleted": LeapScenario(
        Leap.DELETE, Leap.DELETE, 1, -1, hardware=True, read_at_sync=True, table=DELETED
    ),
    "read at each Sync, no step": LeapScenario(
        Leap.INSERT, Leap.INSERT, 0, 1, hardware=True, read_at_sync=True, table=KNOWN
    ),
    "read at each Sync, falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, hardware=True, read_at_sync=True),
    "an NTP server that leaps too": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, ntp="steps", table=KNOWN),
    "an NTP server that smears": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, ntp="smears", table=KNOWN),
    "not announced, but known": LeapScenario(Leap.INSERT, Leap.NONE, 0, 1, cleared_s=2, table=KNOWN),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interval_excludes_the_truth_through_a_leap_second(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times a second, of UTC and TAI, now and at moments up to a minute ago: what is claimed holds."""
    world = LeapWorld(SCENARIOS[name], tmp_path, monkeypatch)
    misses = []
    while world.now_s < 90:
        world.step()
        if not contains(world.client.now(), world.utc_ns()):
            misses.append(("utc", world.now_s))
        if not contains(world.client.tai_now(), {world.tai_ns()}):
            misses.append(("tai", world.now_s))
        for ago_s in (0.25, 1, 5, 60):
            at_s = world.now_s - ago_s
            for reference, truth in ((Reference.UTC, world.utc_ns(at_s)), (TAI, {world.tai_ns(at_s)})):
                boottime_ns = world.boottime_ns() - round(ago_s * NS_PER_S)
                found = world.client.translate(boottime_ns=boottime_ns, reference=reference)
                if not contains(found.interval, truth):
                    misses.append((f"{reference} {ago_s} s ago", world.now_s))

    assert misses == []


def test_a_client_made_after_the_leap_second_does_not_translate_across_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw no step, so only the segment can tell how far back UTC is known."""
    world = LeapWorld(SCENARIOS["hardware stamps"], tmp_path, monkeypatch)
    while world.now_s < 60:
        world.step()
    client = type(world.client)(tmp_path)
    ago_ns = [round(ago_s * NS_PER_S) for ago_s in (5, 30, 62)]
    found = [
        client.translate(boottime_ns=world.boottime_ns() - ago, reference=Reference.UTC).interval for ago in ago_ns
    ]

    assert [contains(interval, world.utc_ns(60 - ago / NS_PER_S)) for interval, ago in zip(found, ago_ns, strict=True)]
    assert [interval.earliest is not None for interval in found] == [True, True, False]


def test_before_during_and_after_an_inserted_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known until two seconds before midnight, unknown through the second itself, and narrow again within half a minute."""
    world = LeapWorld(SCENARIOS["hardware stamps"], tmp_path, monkeypatch)
    statuses: dict[float, ClockStatus] = {}
    narrow: dict[float, tuple[bool, bool]] = {}
    while world.now_s < 60:
        world.step()
        interval = world.client.now()
        statuses[world.now_s] = interval.status
        narrow[world.now_s] = is_narrow(interval), is_narrow(world.client.tai_now())

    assert narrow[-10] == narrow[-3] == (True, True)
    assert {statuses[at_s / 4] for at_s in range(-4, 8)} <= {ClockStatus.UNKNOWN, ClockStatus.DISRUPTED}
    assert narrow[30] == narrow[60] == (True, True)


def test_a_server_that_smears_contradicts_a_grandmaster_that_leaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second apart at midnight: a finding of both sources, and a UTC bound that covers both."""
    world = LeapWorld(SCENARIOS["an NTP server that smears"], tmp_path, monkeypatch)
    while world.now_s < -10:
        world.step()
    found = agreement_conditions(world.ensemble.agreement, ["ptp", "ntp"])

    assert found["sources-contradict", "ptp"] and found["sources-contradict", "ntp"]
    assert contains(world.client.now(), world.utc_ns()) and not is_narrow(world.client.now())
    assert world.client.now().status is ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize("name", ["announced falsely, UTC offset follows", "inserted"])
def test_another_utc_offset_is_not_believed_where_that_may_be_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A grandmaster that announces one falsely, and changes its offset, would move UTC by a second. With software stamps it is
    not visible which offset ptp4l removes.
    """
    world = LeapWorld(SCENARIOS[name], tmp_path, monkeypatch)
    while world.now_s < 60:
        world.step()

    assert world.client.now().earliest is None
    assert world.client.reason_code(Reference.UTC).code == "utc_offset_differs"
