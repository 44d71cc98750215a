"""The demo's story: what happens, when, and the line that announces it. Pure but for the events' own acts."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

#: An announcement precedes its event by so long.
ANNOUNCED_S = 5.0

#: The relay's error grows by 5 us in a second, for so long.
MOVE_PPB, MOVE_S = -5_000, 60.0

#: What node-b's daemon assumes its reference to move at most: the truth is inside the bound only as long as that holds.
ASSUMED_RATE_PPB = 6_000

#: The grandmaster's time runs faster, so that what takes it a quarter of an hour fits the story.
GRANDMASTER_SPEED = 2.0
BRIDGING_S = 15.0
#: It judges its reference for 30 s and needs 20 s more, of its own time.
RECOVERY_S = 20.0
RELOCK_S = (30.0 + RECOVERY_S) / GRANDMASTER_SPEED


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """What happens `at_s` after every node had a valid sample, and one line that says it."""

    at_s: float
    text: str
    act: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StoryActs:
    """What the demo can do to its system."""

    cut_antenna: Callable[[], Awaitable[None]]
    connect_antenna: Callable[[], Awaitable[None]]
    announce: Callable[[int], Awaitable[None]]
    set_slow: Callable[[bool], Awaitable[None]]
    move: Callable[[int], Awaitable[None]]


def story_of(acts: StoryActs, node: str) -> list[StoryEvent]:
    """The events in their order. `node` is the one behind the relay; the nodes follow gm-1."""
    cut_s = 20.0
    connect_s = cut_s + BRIDGING_S + 30.0
    slow_s = connect_s + RELOCK_S + 20.0
    move_s = slow_s + 50.0
    back_s = move_s + MOVE_S + 20.0
    error, each_second = f"{abs(MOVE_PPB) * MOVE_S / 1e3:.0f} us", f"{abs(MOVE_PPB) / 1e3:.0f} us"
    return [
        StoryEvent(
            cut_s,
            "the antenna of gm-1 is cut; gm-1 is in holdover, and still announces class 6 while it bridges",
            acts.cut_antenna,
        ),
        StoryEvent(
            cut_s + BRIDGING_S,
            "gm-1 ends its bridging and announces class 7; the finding says how long its holdover lasts",
            lambda: acts.announce(7),
        ),
        StoryEvent(connect_s, "remedy: the antenna of gm-1 is connected again", acts.connect_antenna),
        StoryEvent(connect_s + RELOCK_S, "gm-1 is locked again and announces class 6", lambda: acts.announce(6)),
        StoryEvent(slow_s, "rank 1 computes twice as long in each step; the hub names it", lambda: acts.set_slow(True)),
        StoryEvent(slow_s + 30.0, "remedy: rank 1 computes as fast as rank 0 again", lambda: acts.set_slow(False)),
        StoryEvent(
            move_s,
            f"the relay of {node} falsifies its time by {each_second} more each second, for {MOVE_S:.0f} s; the bound grows along",
            lambda: acts.move(MOVE_PPB),
        ),
        StoryEvent(move_s + MOVE_S, f"the time of {node} stays {error} wrong, inside the bound", lambda: acts.move(0)),
        StoryEvent(
            back_s, f"remedy: the relay takes its error back, {each_second} each second", lambda: acts.move(-MOVE_PPB)
        ),
        StoryEvent(back_s + MOVE_S, f"the time of {node} is right again; the story is over", lambda: acts.move(0)),
    ]


def due(events: Sequence[StoryEvent], before_s: float, now_s: float) -> list[StoryEvent]:
    """What happens after `before_s`, until `now_s`."""
    return [event for event in events if before_s < event.at_s <= now_s]


def announcements(events: Sequence[StoryEvent], before_s: float, now_s: float) -> list[str]:
    """The lines that are due in the same time, each before its event."""
    return [f"in {ANNOUNCED_S:.0f} s: {event.text}" for event in events if before_s < event.at_s - ANNOUNCED_S <= now_s]


def line(events: Sequence[StoryEvent], now_s: float) -> str:
    """What is announced, or what happened last, or how long nothing will happen."""
    coming = next((event for event in events if event.at_s > now_s), None)
    if coming is not None and coming.at_s - now_s <= ANNOUNCED_S:
        return f"in {math.ceil(coming.at_s - now_s)} s: {coming.text}"
    happened = [event for event in events if event.at_s <= now_s]
    if happened:
        return f"{now_s - happened[-1].at_s:.0f} s ago: {happened[-1].text}"
    if coming is None:
        return ""
    return f"all is well: the first event comes in {coming.at_s - now_s:.0f} s"
