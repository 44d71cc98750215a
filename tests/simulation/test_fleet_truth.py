"""The alignment against the truth of simulated fleets, whose every clock is known at every instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest
from fleet_world import FleetSnapshot, Trouble, World, disturbed_s
from hypothesis import given, settings
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S

SECONDS = 200.0
SEEDS = range(6)

#: An answer is looked at again after so long, with what it foretold for then.
LATER_S = (2.0, 10.0, 20.0)

TROUBLES = {
    "calm": Trouble(every_s=60.0, lost=0.0, late=0.0, doubled=0.0),
    "much happens": Trouble(every_s=3.0),
    "messages suffer": Trouble(every_s=15.0, lost=0.4, late=0.5, latest_s=20.0, doubled=0.4, reconnected=0.05),
    "the hub's clock steps": Trouble(every_s=15.0, late=0.6, latest_s=15.0, hub_steps_every_s=15.0),
    "a hub that is no node": Trouble(lost=0.5, late=0.5, latest_s=20.0, reconnected=0.1, hub_is_a_node=False),
}


@dataclass
class Tally:
    """What was judged: answers that were known of nodes that the hub could know of, by the reference; and what was missed."""

    asked: int = 0
    known: dict[str, int] = field(default_factory=dict)
    misses: list[FleetSnapshot] = field(default_factory=list)
    tightest: float = 0.0

    def judge(self, moment: FleetSnapshot) -> None:
        self.asked += 1
        found = moment.found
        if moment.blind or found.alignment_ns is None:
            return
        by = found.reason.rpartition(", by ")[2]
        self.known[by] = self.known.get(by, 0) + 1
        self.tightest = max(self.tightest, moment.apart_ns / found.alignment_ns)
        if moment.apart_ns > found.alignment_ns:
            self.misses.append(moment)


def description(moment: FleetSnapshot) -> str:
    names = ", ".join(node.name for node in moment.nodes)
    return f"at {moment.now_s} s {names}: {moment.apart_ns:.0f} ns apart, published {moment.found.alignment_ns}: {moment.found.reason}"


@cache
def tally_of(name: str, seed: int) -> Tally:
    return judged(World(f"{name}/{seed}", TROUBLES[name]), SECONDS)


def judged(world: World, seconds: float) -> Tally:
    tally = Tally()
    for moment in world.moments(seconds):
        tally.judge(moment)
    return tally


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TROUBLES)
def test_no_two_clocks_are_further_apart_than_the_alignment(name: str, seed: int) -> None:
    """Whatever happens to grandmasters, nodes, messages and hub: of no set of nodes, at no instant, as far as the hub could know."""
    assert [description(miss) for miss in tally_of(name, seed).misses] == []


@given(
    seed=st.integers(0, 2**32),
    trouble=st.builds(
        Trouble,
        every_s=st.floats(1.0, 60.0),
        lost=st.floats(0, 0.6),
        late=st.floats(0, 1),
        latest_s=st.floats(0, 30),
        doubled=st.floats(0, 0.5),
        reconnected=st.floats(0, 0.1),
    ),
    nodes=st.integers(5, 20),
)
@settings(max_examples=25)
def test_no_fleet_is_further_apart_than_its_alignment(seed: int, trouble: Trouble, nodes: int) -> None:
    """The same of fleets of any size in any trouble."""
    tally = judged(World(seed, trouble, nodes), 60.0)

    assert [description(miss) for miss in tally.misses] == []


def test_the_alignment_is_found_by_every_reference_and_no_wider_than_it_must() -> None:
    """To know nothing is no way to be right: in a calm fleet most questions have an answer, and the truth comes close to it."""
    tallies = [tally_of("calm", seed) for seed in SEEDS]
    known = [
        sum(tally.known.get(by, 0) for tally in tallies) for by in ("UTC", "their grandmaster", "their parent clock")
    ]

    assert min(known) > 100
    assert sum(known) > 0.3 * sum(tally.asked for tally in tallies)
    assert max(tally.tightest for tally in tallies) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forecast_alignment_holds_for_its_time(seed: int) -> None:
    """Grown by its growth an answer stays true until it ends, where nothing moves a clock at once."""
    world = World(f"foretold/{seed}", Trouble(every_s=10.0))
    waiting: list[tuple[float, FleetSnapshot]] = []
    missed = []
    looked = 0
    for moment in world.moments(SECONDS):
        if not moment.blind and moment.found.alignment_ns is not None and world.chance.random() < 0.05:
            waiting += [(moment.now_s + later_s, moment) for later_s in LATER_S]
        due = [each for at_s, each in waiting if at_s <= moment.now_s]
        waiting = [(at_s, each) for at_s, each in waiting if at_s > moment.now_s]
        for each in due:
            forecast_ns = each.found.at(round((moment.now_s - each.now_s) * NS_PER_S))
            if forecast_ns is None or disturbed_s(each.nodes) > each.now_s:
                continue
            errors_ns = [node.error_ns for node in each.nodes]
            looked += 1
            if max(errors_ns) - min(errors_ns) > forecast_ns:
                missed.append(description(each))

    assert missed == []
    assert looked > 50
