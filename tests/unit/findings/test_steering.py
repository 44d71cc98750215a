"""Which programs steer the system clock, and where that is in no doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import HEALTHY

from timesyncd.findings.node import kernel_conditions
from timesyncd.findings.steering import Ptp4lSteering, steering_text
from timesyncd.sample import KernelSample, Movement

CALM = KernelSample("kernel", 0, 0, 0, 0, True, "none", 37, disciplines=("chronyd",))


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"unexplained_movement": Movement.FREQUENCY}, "the clock's frequency moves, and no running program is known to steer it"),
        ({"unexplained_movement": Movement.SLEW}, "the clock is being slewed, and no running program is known to steer it"),
        ({"unexplained_movement": Movement.TICK, "programs_visible": False}, None),
    ],
)  # fmt: skip
def test_a_clock_that_moves_without_a_known_program_is_a_finding(changes: dict[str, Any], evidence: str | None) -> None:
    """In a container the program is hidden: that is no fault."""
    assert kernel_conditions(replace(CALM, disciplines=(), **changes), 37, 0)["unknown-discipline"] == evidence


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "chronyd"),
        ({"disciplines": ()}, "none found"),
        ({"undecided_disciplines": ("sfptpd",)}, "chronyd, possibly sfptpd"),
        ({"disciplines": (), "unexplained_movement": Movement.TICK}, "an unknown program: the clock's tick moves"),
        ({"disciplines": (), "programs_visible": False}, "unknown, programs outside this container are hidden"),
        ({"programs_visible": False}, "chronyd, programs outside this container are hidden"),
    ],
)
def test_the_programs_that_steer_are_one_text(changes: dict[str, Any], text: str) -> None:
    """Status and doctor print the same."""
    assert steering_text(replace(CALM, **changes)) == text


DOUBT = replace(CALM, disciplines=(), undecided_disciplines=("ptp4l", "sptp"), undecided_ptp4l=(42,))


def followed(clock: str, pid: int | None = 42, moves: bool = True) -> Ptp4lSteering:
    """What a node knows after a dozen Syncs from its ptp4l."""
    steering = Ptp4lSteering()
    for n in range(12):
        steering.update(replace(HEALTHY, clock=clock, daemon_pid=pid, frequency_ppb=n if moves else 5))
    return steering


@pytest.mark.parametrize(
    ("steering", "expected"),
    [
        (followed("realtime"), (("ptp4l",), ("sptp",))),
        (followed("phc:0"), ((), ("sptp",))),
        (followed("realtime", moves=False), ((), ("sptp",))),
        (followed("phc:0", pid=7), ((), ("ptp4l", "sptp"))),
        (followed("phc:0", pid=None), ((), ("ptp4l", "sptp"))),
        (Ptp4lSteering(), ((), ("ptp4l", "sptp"))),
    ],
    ids=["software", "hardware", "free running", "another ptp4l", "a hidden pid namespace", "no source"],
)
def test_a_ptp4l_that_is_a_source_is_in_no_doubt(
    steering: Ptp4lSteering, expected: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Its samples show which clock it measures, whatever its process hides; of any other ptp4l they show nothing."""
    known = steering.resolve(DOUBT)

    assert (known.disciplines, known.undecided_disciplines) == expected


def test_one_ptp4l_of_two_leaves_the_doubt_about_the_other() -> None:
    """Only the process that replies to this node is known."""
    known = followed("phc:0").resolve(replace(DOUBT, undecided_ptp4l=(42, 43)))

    assert (known.disciplines, known.undecided_disciplines, known.undecided_ptp4l) == ((), ("ptp4l", "sptp"), (43,))
