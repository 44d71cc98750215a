"""What a client of a node claims through a leap second, against the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from judging import Judgement
from leap_world import LEAP_SCENARIOS, TAI, LeapScenario, LeapWorld

from timesyncd.bound import Interval, Reference
from timesyncd.clocks import NS_PER_S

UNTIL_S = 90.0

#: A client asks for moments of so long ago, too.
AGO_S = (0.25, 1, 5, 60)


class Claim(NamedTuple):
    """An interval of `reference` that a client got at `at_s` seconds from midnight, for `ago_s` before, and what is true."""

    reference: Reference
    at_s: float
    ago_s: float
    interval: Interval
    truths: set[int]


def claims(world: LeapWorld) -> Iterator[Claim]:
    """Four times a second, of UTC and TAI, now and at moments up to a minute ago."""
    while world.now_s < UNTIL_S:
        world.step()
        yield Claim(Reference.UTC, world.now_s, 0, world.client.now(), world.utc_ns())
        yield Claim(TAI, world.now_s, 0, world.client.tai_now(), {world.tai_ns()})
        for ago_s in AGO_S:
            at_s = world.now_s - ago_s
            boottime_ns = world.boottime_ns() - round(ago_s * NS_PER_S)
            for reference, truths in ((Reference.UTC, world.utc_ns(at_s)), (TAI, {world.tai_ns(at_s)})):
                found = world.client.translate(boottime_ns=boottime_ns, reference=reference)
                yield Claim(reference, world.now_s, ago_s, found.interval, truths)


def drawn_leap(name: str, seed: int) -> LeapScenario:
    """When flags are cleared, programs act, the daemon polls and dies, and how far off the clock is."""
    scenario, chance = LEAP_SCENARIOS[name], Random(f"{name}/{seed}")
    cleared_s = scenario.cleared_s if scenario.cleared_s > 60 else chance.randint(1, 15)
    path_ns = round(10 ** chance.uniform(2, 6))
    return replace(
        scenario,
        cleared_s=cleared_s,
        servo_steps_s=None if scenario.servo_steps_s is None else chance.randint(1, 60),
        daemon_dies_s=None if scenario.daemon_dies_s is None else chance.randint(-80, 80),
        restored_s=None if scenario.restored_s is None else cleared_s + chance.randint(1, 60),
        corrected_s=scenario.corrected_s if scenario.corrected_s > 90 else cleared_s + chance.randint(1, 60),
        path_ns=path_ns,
        clock_error_ns=round(chance.uniform(-0.99, 0.99) * path_ns),
        poll_s=chance.choice((0.0, 0.25, 0.5, 0.75)),
    )


def leap_claims(name: str, seed: int) -> Iterator[Claim]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        yield from claims(LeapWorld(drawn_leap(name, seed), Path(folder), monkeypatch))


def judged_leap(name: str, seed: int) -> Judgement:
    """UTC now as the bound against UTC; TAI, and moments of before, as the instants between two readings."""
    judgement = Judgement(seed)
    for claim in leap_claims(name, seed):
        earliest, latest, *_ = claim.interval
        is_now = claim.reference is Reference.UTC and claim.ago_s == 0
        tally = judgement.utc_hard if is_now else judgement.between
        width_ns = None if earliest is None or latest is None else -(-(latest - earliest) // 2)
        twice_ns = min(abs(2 * truth - (earliest or 0) - (latest or 0)) for truth in claim.truths)
        tally.count(twice_ns / 2, width_ns, round((claim.at_s + UNTIL_S) * NS_PER_S))
    return judgement
