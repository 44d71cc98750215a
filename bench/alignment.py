"""
What a question to a hub's fleet of 10,000 nodes costs in processor time: how far their clocks can be apart, and the summary. Goal: under 20 ms each.
Beside it, in the same run: the bare cost, which is to add what each of 10,000 floats has grown by and to take the largest; and every pair of a sample.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import combinations

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.alignment import alignment
from timesyncd.fleet.node_clock import NodeClock
from timesyncd.fleet.registry import Fleet
from timesyncd.messages.node import BoundMessage, NodeState, SourceState

NODES, ROUNDS, SAMPLE = 10_000, 31, 100
NOW = Moment(realtime_ns=1_790_000_000 * NS_PER_S, boottime_ns=10_000 * NS_PER_S)

#: Under how many grandmasters, and how many nodes a parent clock has.
SHAPES = {
    "4 grandmasters, racks of 32": (4, 32),
    "4 grandmasters, no parent shared": (4, 1),
    "1 grandmaster, 1 parent": (1, NODES),
}
_TERMS = {
    "offset": 40,
    "path_delay": 1_200,
    "path_memory": 310,
    "granularity": 8,
    "step_tolerance": 100,
    "phc_reading": 150,
}
_RATES = {"local_drift": 900, "steering": 210, "grandmaster_rate": 100}


def node_state(index: int, grandmasters: int, of_a_parent: int, chance: random.Random) -> NodeState:
    """Of a node with hardware stamps, so with two sources."""
    age_ns = chance.randrange(NS_PER_S)
    widths = {"parent": 1_900, "gm": 2_900, "utc": 3_150, "parent_stat": 240, "gm_stat": 440, "utc_stat": 690}
    bounds = {name: _bound(width_ns + chance.randrange(500)) for name, width_ns in widths.items()}
    sources = [_source(name, driver) for name, driver in (("ptp", "ptp4l"), ("phc0", "phc"))]
    return NodeState.model_validate(
        bounds
        | {"node": f"n{index:05}", "incarnation": 3, "sequence": index, "boot_id": f"{index:032x}", "time_namespace": 1}
        | {"published_realtime_ns": NOW.realtime_ns, "age_ns": age_ns, "since_realtime_ns": NOW.realtime_ns}
        | {"status": "SYNCHRONIZED", "utc_status": "SYNCHRONIZED", "topology": f"hall-1/rack-{index // 32}"}
        | {"grandmaster_identity": f"gm-{index % grandmasters}", "parent_identity": f"switch-{index // of_a_parent}"}
        | {"utc_seconds_removed": 37, "clock": "phc:0", "terms": _TERMS, "stat_terms": _TERMS, "rates": _RATES}
        | {"sources": sources}
    )


def _bound(bound_ns: int) -> BoundMessage:
    return BoundMessage.of(Bound(bound_ns, 1_250))


def _source(name: str, driver: str) -> SourceState:
    return SourceState(
        name=name,
        driver=driver,
        reachable=True,
        offset_ns=40,
        frequency_ppb=-12_345,
        age_ns=40_000_000,
        gm=_bound(1_900),
        utc=_bound(2_150),
    )


def median_ms(question: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        question()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def bare_ms() -> float:
    bounds = [(float(1_900 + index), 1_250e-9, 1e9) for index in range(NODES)]
    return median_ms(lambda: max(bound + growth * age for bound, growth, age in bounds))


def pairs_ms(clocks: list[NodeClock]) -> float:
    """What every pair of all nodes would take, from those of a sample."""
    sample_ms = median_ms(
        lambda: max(alignment(pair, NOW).alignment_ns or 0 for pair in combinations(clocks[:SAMPLE], 2)), 3
    )
    return sample_ms * NODES * (NODES - 1) / (SAMPLE * (SAMPLE - 1))


def filled(grandmasters: int, of_a_parent: int) -> tuple[Fleet, float, float]:
    """A fleet, with the time that one state takes it in us, and the memory in MB."""
    chance, fleet, states = random.Random(1), Fleet(), []
    for index in range(NODES):
        states.append(node_state(index, grandmasters, of_a_parent, chance))
    tracemalloc.start()
    for state in states[: NODES // 10]:
        fleet.accept(state, NOW.boottime_ns, live=True)
    megabytes = tracemalloc.get_traced_memory()[0] * 10 / 1e6
    tracemalloc.stop()
    began = time.process_time()
    for state in states[NODES // 10 :]:
        fleet.accept(state, NOW.boottime_ns, live=True)
    return fleet, (time.process_time() - began) / (NODES * 0.9) * 1e6, megabytes


def main() -> None:
    bare = bare_ms()
    print(
        f"{NODES:,} nodes, medians of {ROUNDS} rounds; bare cost (the largest of as many floats, grown) {bare:.2f} ms"
    )
    for shape, numbers in SHAPES.items():
        fleet, accept_us, megabytes = filled(*numbers)
        times_ms = {
            "alignment of all": median_ms(partial(fleet.alignment, None, NOW)),
            "of all by name": median_ms(partial(fleet.alignment, fleet.names(), NOW)),
            "overview": median_ms(partial(fleet.overview, NOW)),
        }
        print(
            f"{shape}: "
            + "; ".join(f"{what} {ms:.1f} ms (goal < 20), ratio {ms / bare:.1f}" for what, ms in times_ms.items())
        )
        print(
            f"    a state is taken in {accept_us:.0f} us; all are kept in {megabytes:.0f} MB; every pair would take {pairs_ms(list(fleet)) / 1e3:,.0f} s"
        )


if __name__ == "__main__":
    main()
