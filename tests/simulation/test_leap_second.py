"""A leap second through the whole chain: ptp4l, kernel, model, segment and client."""

from __future__ import annotations

from pathlib import Path

import pytest
from leap_judging import claims, judged_leap
from leap_world import LEAP_SCENARIOS, LeapWorld, contains, is_narrow

from timesyncd.bound import ClockStatus, Reference
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.node import agreement_conditions


@pytest.mark.parametrize("name", LEAP_SCENARIOS)
def test_no_interval_excludes_the_truth_through_a_leap_second(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times a second, of UTC and TAI, now and at moments up to a minute ago: what is claimed holds."""
    world = LeapWorld(LEAP_SCENARIOS[name], tmp_path, monkeypatch)
    misses = [claim for claim in claims(world) if not contains(claim.interval, claim.truths)]

    assert misses == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", LEAP_SCENARIOS)
def test_no_interval_excludes_the_truth_whenever_programs_act(name: str, seed: int) -> None:
    """The flags are cleared, the programs act and the daemon polls at other moments; the clock is off by another amount."""
    judgement = judged_leap(name, seed)

    assert (judgement.utc_hard.misses, judgement.between.misses) == (0, 0)


def test_a_client_made_after_the_leap_second_does_not_translate_across_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw no step, so only the segment can tell how far back UTC is known."""
    world = LeapWorld(LEAP_SCENARIOS["hardware stamps"], tmp_path, monkeypatch)
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
    world = LeapWorld(LEAP_SCENARIOS["hardware stamps"], tmp_path, monkeypatch)
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
    world = LeapWorld(LEAP_SCENARIOS["an NTP server that smears"], tmp_path, monkeypatch)
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
    world = LeapWorld(LEAP_SCENARIOS[name], tmp_path, monkeypatch)
    while world.now_s < 60:
        world.step()

    assert world.client.now().earliest is None
    assert world.client.reason_code(Reference.UTC).code == "utc_offset_differs"
