"""The demo's story: each event is announced before it happens, happens once, and does what its line says."""

from __future__ import annotations

import itertools

from timesyncd.cli import _demo_system
from timesyncd.cli._demo_ptp import SimulatedPtp
from timesyncd.cli._demo_story import (
    ANNOUNCED_S,
    ASSUMED_RATE_PPB,
    BRIDGING_S,
    GRANDMASTER_SPEED,
    MOVE_PPB,
    MOVE_S,
    RELOCK_S,
    StoryActs,
    StoryEvent,
    announcements,
    due,
    line,
    story_of,
)
from timesyncd.simulation.grandmaster import Servo


async def nothing(_: object = None) -> None:
    """An act without effect."""


CALM = StoryActs(nothing, nothing, nothing, nothing, nothing)


def test_each_event_is_announced_once_before_it_happens_once() -> None:
    """Whatever the pace at which the demo looks at its clock."""
    story = story_of(CALM, "node-b")
    for pace_s in (0.4, 1.0, 7.3):
        log: list[str] = []
        before_s = -float("inf")
        for tick in range(int(400 / pace_s)):
            now_s = tick * pace_s
            log += announcements(story, before_s, now_s)
            log += [event.text for event in due(story, before_s, now_s)]
            before_s = now_s

        assert [text for text in log if not text.startswith("in 5 s: ")] == [event.text for event in story]
        assert [text for text in log if text.startswith("in 5 s: ")] == [f"in 5 s: {event.text}" for event in story]
        for event in story:
            assert log.index(f"in 5 s: {event.text}") < log.index(event.text)


def test_an_announcement_has_its_time_and_one_line() -> None:
    """No event comes while another is announced, and each line fits a wide terminal."""
    times_s = [event.at_s for event in story_of(CALM, "node-b")]

    assert times_s == sorted(times_s)
    assert min(later - earlier for earlier, later in itertools.pairwise(times_s)) > ANNOUNCED_S
    assert max(len(event.text) for event in story_of(CALM, "node-b")) < 110


def test_the_line_says_what_comes_or_what_happened_last() -> None:
    """And before the first event how long nothing will happen."""
    story = [StoryEvent(20.0, "first", nothing), StoryEvent(60.0, "second", nothing)]

    assert [line(story, s) for s in (0.0, 14.9, 15.0, 19.2, 20.0, 54.0, 56.0, 70.0)] == [
        "all is well: the first event comes in 20 s",
        "all is well: the first event comes in 5 s",
        "in 5 s: first",
        "in 1 s: first",
        "0 s ago: first",
        "34 s ago: first",
        "in 4 s: second",
        "10 s ago: second",
    ]
    assert line([], 5.0) == ""


def test_the_relays_error_stays_within_what_its_daemon_assumes() -> None:
    """Only then does node-b's bound contain the truth at every moment."""
    assert abs(MOVE_PPB) < ASSUMED_RATE_PPB


async def test_the_story_ends_where_it_began() -> None:
    """Every fault has its remedy: the antenna, the class, the slow rank and the relay's error."""
    antenna, slow, classes, moves = ["ok"], [False], [6], [0]

    async def cut() -> None:
        antenna.append("open")

    async def connect() -> None:
        antenna.append("ok")

    async def announce(clock_class: int) -> None:
        classes.append(clock_class)

    async def set_slow(is_slow: bool) -> None:
        slow.append(is_slow)

    async def move(rate_ppb: int) -> None:
        moves.append(rate_ppb)

    story = story_of(StoryActs(cut, connect, announce, set_slow, move), "node-b")
    for event in story:
        await event.act()

    assert (antenna, classes, slow) == (["ok", "open", "ok"], [6, 7, 6], [False, True, False])
    assert moves == [0, MOVE_PPB, 0, -MOVE_PPB, 0]
    moved = [event.at_s for event in story if "relay" in event.text or "time of" in event.text]
    assert [later - earlier for earlier, later in zip(moved[::2], moved[1::2], strict=True)] == [MOVE_S, MOVE_S]


def test_the_followed_grandmaster_does_what_the_story_says_when_it_says_it() -> None:
    """It bridges, goes to holdover, and is locked again, each in the time that the story allows for."""
    device = _demo_system._device("gm-1")
    acts = _demo_system._acts(device, SimulatedPtp({}, {}), None)  # type: ignore[arg-type]
    assert device.servo is Servo.LOCKED

    def after(seconds: float) -> Servo:
        device.advance(seconds * GRANDMASTER_SPEED)
        return device.servo

    run(acts.cut_antenna)
    assert device.receiver.antenna == "open"
    assert (after(BRIDGING_S - 1), after(2)) == (Servo.BRIDGING, Servo.HOLDOVER)
    run(acts.connect_antenna)
    assert after(RELOCK_S - 2) is not Servo.LOCKED
    assert after(3) is Servo.LOCKED


def run(act: object) -> None:
    """An act that waits for nothing."""
    step = act()  # type: ignore[operator]
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
