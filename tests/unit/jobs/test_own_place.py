"""The part of a step in which a rank of a mesh is slow: it holds half of the lateness or more, or there is a reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from timesyncd.ipc.job_datagram import OwnPart
from timesyncd.jobs.exposed import OwnWait
from timesyncd.jobs.own_place import OwnPlace, PlaceUnknown, own_place, step_parts

MS = 1_000_000
STEP_NS = 100 * MS
USUAL = {OwnPart.DATA: 2 * MS, OwnPart.BACKWARD: 20 * MS, OwnPart.OPTIMIZER: 3 * MS}
FORWARD_NS = 10 * MS


def own(more: Mapping[OwnPart | None, int] | None = None, parts: Mapping[OwnPart, int] | None = USUAL) -> OwnWait:
    """A step in which each part takes so much more; None: the forward pass."""
    more = more or {}
    own_ns = sum(USUAL.values()) + FORWARD_NS + sum(more.values())
    stated = None if parts is None else {part: ns + more.get(part, 0) for part, ns in parts.items()}
    return OwnWait(STEP_NS, STEP_NS - own_ns, 7, stated)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (OwnPart.DATA, "data loading"),
        (None, "the forward pass and the rest of the loop"),
        (OwnPart.BACKWARD, "the backward pass"),
        (OwnPart.OPTIMIZER, "the optimizer"),
    ],
)
def test_the_part_in_which_the_rank_takes_longer_is_its_place(part: OwnPart | None, text: str) -> None:
    """Rank 2 takes 30 ms longer there than the other three."""
    steps = [{rank: own({part: 30 * MS} if rank == 2 else {}) for rank in range(4)} for _ in range(20)]

    assert own_place(2, range(4), steps) == OwnPlace(text)


def test_data_that_no_hook_sees_is_stated_as_a_part_of_the_rest() -> None:
    """No rank has a DataLoader: what the slow rank loads may be its data or its forward pass."""
    parts = {OwnPart.BACKWARD: 20 * MS, OwnPart.OPTIMIZER: 3 * MS}
    steps = [{rank: own({None: 30 * MS} if rank == 2 else {}, parts) for rank in range(4)} for _ in range(20)]

    assert own_place(2, range(4), steps).text == "data, the forward pass and the rest of the loop"


def test_lateness_in_all_parts_has_no_place() -> None:
    """A rank on a slow node takes longer everywhere: three parts have a third each."""
    more = {OwnPart.DATA: 10 * MS, None: 10 * MS, OwnPart.BACKWARD: 10 * MS}
    found = own_place(2, range(4), [{rank: own(more if rank == 2 else {}) for rank in range(4)} for _ in range(20)])

    assert found.text is None
    assert found.unknown is PlaceUnknown.SPREAD
    assert found.reason == "no part of the step holds half of what the rank takes longer"


@pytest.mark.parametrize("without", [0, 2])
def test_ranks_that_state_no_parts_have_no_place(without: int) -> None:
    """One of its like is of an older timesyncd, or on a device: nothing is compared."""
    steps = [
        {
            rank: own({OwnPart.DATA: 30 * MS} if rank == 2 else {}, None if rank == without else USUAL)
            for rank in range(4)
        }
        for _ in range(20)
    ]
    found = own_place(2, range(4), steps)

    assert (found.text, found.unknown) == (None, PlaceUnknown.NO_PARTS)
    assert step_parts(steps, 4) is None


def test_the_parts_and_the_waits_add_up_to_the_step() -> None:
    """The means of four ranks, of which one takes 40 ms longer in its backward pass."""
    steps = [{rank: own({OwnPart.BACKWARD: 40 * MS} if rank == 2 else {}) for rank in range(4)} for _ in range(20)]
    found = step_parts([*steps, {0: own()}], 4)  # of the last one three ranks are not there yet

    assert found is not None
    assert found.steps == 20
    assert found.parts_ns == {
        OwnPart.DATA: 2 * MS,
        None: FORWARD_NS,
        OwnPart.BACKWARD: 30 * MS,
        OwnPart.OPTIMIZER: 3 * MS,
    }
    assert found.waited_ns + sum(found.parts_ns.values()) == STEP_NS
