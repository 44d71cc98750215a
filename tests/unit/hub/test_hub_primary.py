"""Which of several hubs speaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.clocks import NS_PER_S
from timesyncd.hub.hub import GONE_AFTER_NS, LISTEN_NS, STATE_EVERY_NS, Primary
from timesyncd.messages.fleet import HubState

START = 1_000 * NS_PER_S
READY = START + LISTEN_NS


def hub_state(node: str, primary: bool) -> HubState:
    return HubState(
        node=node,
        incarnation=1,
        sequence=1,
        published_realtime_ns=0,
        started_realtime_ns=0,
        primary=primary,
        nodes_live=0,
        nodes_known=0,
        nodes_expected=0,
    )


def ready(name: str) -> Primary:
    """It has listened to the end."""
    hub = Primary(name)
    for now_ns in range(START, READY, NS_PER_S):
        hub.advance(now_ns)
    return hub


def test_a_hub_that_starts_listens_first() -> None:
    """Alone it is primary after three states of anybody else would have come."""
    hub = ready("a")

    assert [hub.advance(now_ns) for now_ns in (READY - 1, READY, READY + 1)] == [False, True, True]


def test_the_first_by_name_is_primary() -> None:
    """A hub that receives the state of an earlier one by name is not primary until that one is gone."""
    hub = ready("b")
    hub.accept(hub_state("a", primary=True), READY, live=True)

    assert [hub.advance(READY + later) for later in (0, GONE_AFTER_NS - 1, GONE_AFTER_NS)] == [False, False, True]


def test_one_that_comes_later_by_name_does_not_count() -> None:
    """Neither a retained copy nor its own state counts as another hub."""
    hub = ready("b")
    hub.accept(hub_state("c", primary=True), READY, live=True)
    hub.accept(hub_state("a", primary=True), READY, live=False)
    hub.accept(hub_state("b", primary=True), READY, live=True)

    assert hub.advance(READY)
    assert [state.node for state in hub.alive(READY)] == ["c"]


def test_a_primary_waits_for_the_word_of_the_one_before_it() -> None:
    """While that one still listens, one hub must be primary."""
    hub = ready("b")
    hub.advance(READY)
    hub.accept(hub_state("a", primary=False), READY, live=True)
    waits = hub.advance(READY + 1)
    hub.accept(hub_state("a", primary=True), READY + 2, live=True)

    assert (waits, hub.advance(READY + 3)) == (True, False)


def test_a_hub_that_was_disconnected_for_long_listens_again() -> None:
    """The others took it for gone; one that was away for less goes on."""
    brief, long = ready("a"), ready("a")
    brief.advance(READY)
    long.advance(READY)
    cut_off = long.advance(READY + 1, connected=False)

    assert brief.advance(READY + GONE_AFTER_NS - 1)
    assert cut_off
    assert not long.advance(READY + GONE_AFTER_NS)
    assert long.advance(READY + GONE_AFTER_NS + LISTEN_NS)


@dataclass
class Hubs:
    """Several hubs that receive one another's states except lost ones; each lives from and until a second."""

    lives: dict[str, tuple[int, int]]
    lost: float
    chance: Random
    hubs: dict[str, Primary] = field(default_factory=dict)

    def second(self, now_s: int) -> list[str]:
        """Those that speak."""
        now_ns = START + now_s * NS_PER_S
        alive = [name for name, (since_s, until_s) in self.lives.items() if since_s <= now_s < until_s]
        speaking = [name for name in alive if self.hubs.setdefault(name, Primary(name)).advance(now_ns)]
        if now_s * NS_PER_S % STATE_EVERY_NS == 0:
            for name in alive:
                for other in alive:
                    if self.chance.random() >= self.lost:
                        self.hubs[other].accept(hub_state(name, name in speaking), now_ns, live=True)
        return speaking


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 60), st.integers(0, 200)), min_size=1),
    st.integers(0, 2**32),
)
def test_one_hub_speaks(lives: dict[str, tuple[int, int]], seed: int) -> None:
    """With messages lost two never speak for longer than a few states take, and where one lives for long enough one speaks."""
    fleet = Hubs(lives, 0.1, Random(seed))
    doubled_s = silent_s = most_doubled_s = most_silent_s = 0
    for now_s in range(200):
        speaking = fleet.second(now_s)
        anybody = any(since_s <= now_s < until_s for since_s, until_s in lives.values())
        doubled_s = doubled_s + 1 if len(speaking) > 1 else 0
        silent_s = silent_s + 1 if anybody and not speaking else 0
        most_doubled_s, most_silent_s = max(most_doubled_s, doubled_s), max(most_silent_s, silent_s)

    assert most_doubled_s <= 10
    assert most_silent_s <= 45


def test_a_hub_that_was_cut_off_for_long_does_not_come_back_speaking() -> None:
    """Meanwhile another hub became primary; the first state after the return denies being primary."""
    hub = ready("a")
    spoke = hub.advance(READY)
    cut_off = [hub.advance(READY + later, connected=False) for later in (NS_PER_S, GONE_AFTER_NS - 1, GONE_AFTER_NS)]
    back = hub.advance(READY + GONE_AFTER_NS + NS_PER_S)

    assert (spoke, cut_off, back) == (True, [True, True, False], False)
