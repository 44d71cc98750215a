"""Any local user may send any datagram: no marks stop the hub."""

from __future__ import annotations

from dataclasses import replace

from batches import NOW, REAL_MINUS_BOOT, batch, mark
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.messages.jobs import JobState, MarkBatch

numbers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, NOW, REAL_MINUS_BOOT, 2**62 - 1, 2**62, 2**63 - 1])


@given(st.lists(st.tuples(*[numbers] * 6), max_size=4), st.tuples(*[numbers] * 4), st.integers(-1, 3))
def test_no_numbers_in_a_batch_end_the_hub(
    marks: list[tuple[int, ...]], others: tuple[int, int, int, int], rank: int
) -> None:
    """Any local user may send any datagram: it is accepted or refused, and the next round gives states that can be sent."""
    names = ("step", "sync", "arrival_ns", "begin_ns", "end_ns", "bytes")
    reported = [replace(mark(0), **dict(zip(names, each, strict=True))) for each in marks]
    changes = dict(zip(("real_minus_boot_ns", "gm_bound_ns", "utc_bound_ns", "lost"), others, strict=True))
    hub = Hub(HubSettings(), "hub")
    for number in (0, 1):
        times = dict.fromkeys(("arrival_ns", "begin_ns", "end_ns"), number * (2**62 - 1))
        far = [replace(mark(step), **times) for step in range(8)]
        whole = batch(number, *reported, *far).model_copy(update=changes | {"rank": rank if number else 0})
        hub.accept_marks(MarkBatch.model_validate(whole.model_dump()), NOW)
    states = hub.advance(NOW + 11 * NS_PER_S, REAL_MINUS_BOOT + NOW).jobs

    assert all(JobState.model_validate_json(state.model_dump_json()) == state for state in states)


small = st.integers(0, 2**62 - 1) | st.integers(0, 100) | st.sampled_from([NOW, REAL_MINUS_BOOT, 2**62 - 1])


@st.composite
def lying_batches(draw: st.DrawFn) -> list[MarkBatch]:
    """Plausible batches of two to four ranks on as many nodes: many steps with any times, kinds and bounds."""
    world = draw(st.integers(2, 4))
    batches = []
    for rank in range(world):
        kinds = draw(st.lists(st.integers(0, 18), min_size=1, max_size=3))
        origin, every = draw(small), draw(st.integers(0, 2**50))
        lasts = draw(st.lists(small, min_size=1, max_size=3))
        marks = []
        for n in range(draw(st.integers(0, 24))):
            arrival_ns = min(origin + n * every, 2**62 - 1)
            end_ns = min(arrival_ns + lasts[n % len(lasts)], 2**62 - 1)
            published = {"arrival_ns": arrival_ns, "begin_ns": draw(small), "end_ns": end_ns, "bytes": draw(small)}
            marks += [replace(mark(n, sync=at), **(published | {"kind": kind})) for at, kind in enumerate(kinds)]
        changes = {
            "real_minus_boot_ns": draw(small),
            "gm_bound_ns": draw(st.none() | st.integers(0, 10**15)),
            "lost": draw(small),
            "own_overhead_ns": draw(small),
            "joined_ns": draw(small),
        }
        for cut in range(0, len(marks) + 1, 30):
            one = batch(rank, *marks[cut : cut + 30], sequence=cut, world_size=world)
            batches.append(one.model_copy(update=changes))
    return batches


@given(lying_batches(), st.booleans())
def test_no_lies_end_the_hub(batches: list[MarkBatch], twice: bool) -> None:
    """Whatever plausible marks contain together, each round gives states that can be sent: sums, medians, fits and shares included."""
    hub = Hub(HubSettings(window_steps=10 if twice else 100), "hub")
    for round_ns in (0, NS_PER_S, 11 * NS_PER_S):
        for one in batches if twice or not round_ns else ():
            hub.accept_marks(MarkBatch.model_validate(one.model_dump()), NOW + round_ns)
        for state in hub.advance(NOW + round_ns, REAL_MINUS_BOOT + NOW).jobs:
            assert JobState.model_validate_json(state.model_dump_json()) == state
        hub.findings()
