"""What a simulator states: true offsets that move, beside the bounds of the same moment."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.simulation import SimulationFile, StatedOffset

BEGAN_NS = 1_700_000_000 * NS_PER_S


def test_a_true_offset_moves_by_its_rate() -> None:
    """From the moment at which it was stated."""
    moving = StatedOffset(realtime_ns=BEGAN_NS, offset_ns=-500, rate_ppb=-10_000)

    assert [moving.at(BEGAN_NS + s * NS_PER_S) for s in (0, 1, 30)] == [-500, -10_500, -300_500]


def test_each_truth_stands_beside_its_bound() -> None:
    """A bound that does not contain it says so, and a node without a bound claims nothing."""
    offsets = {name: StatedOffset(realtime_ns=BEGAN_NS, offset_ns=ns) for name, ns in (("b", -900), ("a", 0), ("c", 1))}
    file = SimulationFile(simulated="all of it", story="calm", offsets=offsets)

    state = file.state({"a": 17, "b": 800, "c": None, "other": 5}, BEGAN_NS)

    assert (state.simulated, state.story) == ("all of it", "calm")
    assert [(each.node, each.offset_ns, each.bound_ns, each.is_inside) for each in state.true_offsets] == [
        ("a", 0, 17, True), ("b", -900, 800, False), ("c", 1, None, None),
    ]  # fmt: skip
