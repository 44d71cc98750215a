"""
Findings of simulated fleets against their truth: none in quiet hours, whatever happens there every day; of each fault the right one,
within half a minute, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from grandmaster_states import polled_grandmaster
from simulated_fleet import GM_A, GM_B, GM_C, NOISES, NTP_ERROR_NS, ROGUE, Fleet, Node

SOON_S = 30
MINUTE_S = 60
WARM_S = 5 * MINUTE_S

every_noise = pytest.mark.parametrize("noise", NOISES)
GRANDMASTERS = [
    polled_grandmaster(name, identities=[identity])
    for name, identity in (("gm-a", GM_A), ("gm-b", GM_B), ("gm-c", GM_C))
]


def fleet(
    noise: str = "hardware", seed: int = 0, racks: int = 4, per_rack: int = 10, is_boundary: bool = True
) -> Fleet:
    made = Fleet(seed, NOISES[noise], racks, per_rack, is_boundary)
    made.grandmasters = GRANDMASTERS
    return made


def change_over(fleet: Fleet, grandmaster: str) -> set[tuple[str, str]]:
    """Node after node within some ten seconds."""
    found: set[tuple[str, str]] = set()
    for part in range(5):
        for node in fleet.nodes[part::5]:
            node.follow(grandmaster, None if node.parent.startswith("5c") else grandmaster)
            node.kick(fleet.now_s, fleet.random.gauss(0, 200))
        found |= fleet.first_reported(2).keys()
    return found


def a_path_changes(fleet: Fleet) -> None:
    node = fleet.random.choice(fleet.nodes)
    change_ns = fleet.random.uniform(-0.3, 3) * node.base_ns
    node.path_ns = change_ns
    node.kick(fleet.now_s, change_ns)


def a_node_restarts(fleet: Fleet) -> None:
    fleet.random.choice(fleet.nodes).silent_until_s = fleet.now_s + 12


def everyday(fleet: Fleet, minute: int) -> set[tuple[str, str]]:
    """What is no fault of the fleet's: paths of single nodes, restarts, holdover, failover and back, a jump of the grandmaster."""
    if minute % 3 == 0:
        a_path_changes(fleet)
    if minute % 4 == 0:
        a_node_restarts(fleet)
    if 30 <= minute < 60:
        fleet.grandmaster_ns[GM_A] += 600
    if minute == 100:
        fleet.jump(GM_A, 80_000)
    return change_over(fleet, GM_B if minute == 60 else GM_A) if minute in (60, 90) else set[tuple[str, str]]()


@every_noise
@pytest.mark.parametrize("seed", range(3))
def test_quiet_hours_have_no_finding(noise: str, seed: int) -> None:
    """Two hours of forty nodes, half of the fleets behind boundary clocks, with and without NTP beside it."""
    quiet = fleet(noise, seed, is_boundary=seed % 2 == 0)
    quiet.has_ntp = seed == 2
    found: set[tuple[str, str]] = set()
    for minute in range(120):
        found |= everyday(quiet, minute)
        found |= quiet.first_reported(MINUTE_S).keys()

    assert found == set()


def one_clock_jumps(fleet: Fleet) -> None:
    fleet.nodes[3].jump_ns = 100 * (fleet.noise.path_ns + fleet.noise.spike_ns)


def one_clock_is_pulled_and_comes_back(fleet: Fleet) -> None:
    fleet.nodes[3].servo_s = 30
    fleet.nodes[3].kick(fleet.now_s, -200 * (fleet.noise.path_ns + fleet.noise.spike_ns))


def move(nodes: list[Node], fleet: Fleet) -> None:
    for node in nodes:
        node.path_ns = fleet.noise.path_ns


def a_rack_is_rerouted(fleet: Fleet) -> None:
    move(fleet.rack(1), fleet)


def a_hall_is_rerouted(fleet: Fleet) -> None:
    move(fleet.rack(2) + fleet.rack(3), fleet)


def the_grandmaster_is_wrong(fleet: Fleet) -> None:
    fleet.jump(GM_A, 4 * NTP_ERROR_NS)


def a_node_is_in_another_domain(fleet: Fleet) -> None:
    fleet.nodes[7].domain = 44


def a_node_is_in_another_domain_under_another_clock(fleet: Fleet) -> None:
    fleet.nodes[7].domain = 44
    a_stranger_takes_a_node(fleet)


def a_stranger_takes_a_node(fleet: Fleet) -> None:
    fleet.grandmaster_ns[ROGUE] = 900_000
    fleet.nodes[7].follow(ROGUE, ROGUE)
    fleet.nodes[7].kick(fleet.now_s, -900_000)


def two_nodes_fall_silent(fleet: Fleet) -> None:
    for node in fleet.nodes[5:7]:
        node.silent_until_s = 1e9


FAULTS: dict[Callable[[Fleet], None], tuple[str, str]] = {
    one_clock_jumps: ("node-offset-alone", "n003"),
    one_clock_is_pulled_and_comes_back: ("node-offset-alone", "n003"),
    a_rack_is_rerouted: ("rack-path-delay-moved", "hall-0/rack-1"),
    a_hall_is_rerouted: ("rack-path-delay-moved", "hall-1"),
    the_grandmaster_is_wrong: ("grandmaster-outvoted", "gm-a"),
    a_node_is_in_another_domain: ("node-other-domain", "n007"),
    a_node_is_in_another_domain_under_another_clock: ("node-other-domain", "n007"),
    a_stranger_takes_a_node: ("node-other-grandmaster", ROGUE),
    two_nodes_fall_silent: ("hub-nodes-missing", "fleet"),
}


def name_of(fault: Callable[[Fleet], None]) -> str:
    return fault.__name__


@pytest.mark.parametrize("seed", range(2))
@every_noise
@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_a_fault_is_found_soon_and_named(fault: Callable[[Fleet], None], noise: str, seed: int) -> None:
    """Within half a minute, in each kind of noise; and for three minutes nothing else is reported."""
    broken = fleet(noise, seed, is_boundary=seed % 2 == 0)
    broken.has_ntp = True
    before = broken.first_reported(WARM_S)
    fault(broken)
    found = broken.first_reported(3 * MINUTE_S)

    assert before == {}
    assert found.keys() == {FAULTS[fault]}
    assert found[FAULTS[fault]] <= SOON_S


@every_noise
def test_a_jump_of_the_grandmaster_accuses_no_follower(noise: str) -> None:
    """All offsets jump with it, and settle at each servo's own pace: that is one cause, and the grandmaster's."""
    jumped = fleet(noise, is_boundary=False)
    jumped.first_reported(WARM_S)
    jumped.jump(GM_A, 5_000_000)

    assert jumped.first_reported(5 * MINUTE_S) == {}


def contested(*seconds: str) -> Fleet:
    """Half of its nodes receive other grandmasters beside their own, which jumps."""
    voting = fleet()
    for node in voting.nodes[:20]:
        node.seconds = seconds
    voting.first_reported(WARM_S)
    voting.jump(GM_A, 60_000)
    return voting


def test_one_other_grandmaster_outvotes_none() -> None:
    """Of two that differ either may be wrong, and grandmasters-disagree reports that."""
    found = contested(GM_B).first_reported(MINUTE_S)

    assert found == {}


def test_two_grandmasters_outvote_one() -> None:
    """They agree with each other, and each contradicts the third by the same amount."""
    found = contested(GM_B, GM_C).first_reported(MINUTE_S)

    assert found.keys() == {("grandmaster-outvoted", "gm-a")}


def test_within_the_error_bars_nothing_is_reported() -> None:
    """NTP that is right within half a millisecond proves nothing of a fifth of one."""
    voting = fleet()
    voting.has_ntp = True
    voting.first_reported(WARM_S)
    voting.jump(GM_A, NTP_ERROR_NS // 5 * 2)

    assert voting.first_reported(5 * MINUTE_S) == {}


def test_ntp_that_contradicts_every_grandmaster_outvotes_none() -> None:
    """Then it is NTP that is alone."""
    voting = fleet()
    voting.has_ntp = True
    for node in voting.nodes[20:]:
        node.follow(GM_B)
    voting.first_reported(WARM_S)
    voting.ntp_ns = 8 * NTP_ERROR_NS

    assert voting.first_reported(5 * MINUTE_S) == {}


def test_two_wrong_ways_are_two_wrong_grandmasters() -> None:
    """One ahead of UTC and one behind it cannot both be right, whatever NTP reports."""
    voting = fleet()
    voting.has_ntp = True
    for node in voting.nodes[20:]:
        node.follow(GM_B)
    voting.first_reported(WARM_S)
    voting.jump(GM_A, 8 * NTP_ERROR_NS)
    voting.jump(GM_B, -8 * NTP_ERROR_NS)

    assert voting.first_reported(MINUTE_S).keys() == {
        ("grandmaster-outvoted", "gm-a"),
        ("grandmaster-outvoted", "gm-b"),
    }


def test_of_a_few_nodes_none_is_reported() -> None:
    """Of four nodes none is distinct from the others."""
    small = fleet(racks=1, per_rack=4)
    small.first_reported(WARM_S)
    one_clock_jumps(small)
    small.nodes[2].domain = 44
    small.nodes[1].path_ns = small.nodes[0].path_ns = 20_000

    assert small.first_reported(5 * MINUTE_S) == {}


def test_a_finding_ends_when_its_fault_is_mended() -> None:
    """Within half a minute."""
    mended = fleet()
    mended.first_reported(WARM_S)
    one_clock_jumps(mended)
    a_rack_is_rerouted(mended)
    first = mended.first_reported(MINUTE_S)
    mended.nodes[3].jump_ns = 0
    for node in mended.nodes:
        node.path_ns = 0
    mended.first_reported(SOON_S)

    assert len(first) == 2
    assert mended.first_reported(MINUTE_S) == {}
