"""A node, a broker that forgets and hubs that die: nothing is lost or doubled, whatever fails when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from history_rows import MINUTE_NS, START_NS, STREAM, TABLES, event, new_engine
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Delete, Engine, Executable, Update, delete, select, update

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HistoryRow, Stored
from timesyncd.mqtt.history import HistoryConfirmer, HistoryPacing, HistoryWindow
from timesyncd.store import archive, outbox, tables
from timesyncd.store.archive import ArchiveProgress


def in_order() -> Callable[[], dict[str, Any]]:
    counter = iter(range(1, 10**9))
    return lambda: {"node": "n1", "incarnation": STREAM, "sequence": next(counter)}


ENGINES: dict[str, Engine] = {}


@pytest.fixture(scope="module", autouse=True)
def _engines() -> Iterator[None]:
    """One for all examples: to make the tables takes longer than most examples do."""
    yield
    for engine in ENGINES.values():
        engine.dispose()


def empty_engine(name: str) -> Engine:
    if name not in ENGINES:
        ENGINES[name] = new_engine()
    with ENGINES[name].begin() as connection:
        for table in TABLES:
            connection.execute(delete(table))
    return ENGINES[name]


class Hub:
    """A hub's store, and what comes to it."""

    def __init__(self, name: str) -> None:
        self.engine = empty_engine(name)
        self.queue: deque[HistoryBatch] = deque()
        self.known: dict[str, ArchiveProgress] = {}
        self.confirmer = HistoryConfirmer(in_order())

    def receive(self, *, commits: bool = True) -> None:
        if not self.queue:
            return
        batch = self.queue.popleft()
        with self.engine.connect() as connection:
            now = archive.store(connection, batch, self.known.get("n1"), "hub", START_NS)
            if commits:
                connection.commit()
        if commits:
            self.known["n1"] = now
            self.confirmer.update(now)

    def restart(self) -> None:
        """Without what it had in memory."""
        self.confirmer = HistoryConfirmer(in_order())
        with self.engine.connect() as connection:
            self.known = archive.progress(connection)

    def events(self) -> list[str]:
        order = tables.event.c.sequence
        with self.engine.connect() as connection:
            return list(connection.scalars(select(tables.event.c.event_id).order_by(order)))

    @property
    def stored_up_to(self) -> int:
        return self.known["n1"].stored_up_to if "n1" in self.known else 0


class World:
    """A node, a broker that loses messages, and hubs. A row's event contains its number."""

    def __init__(self, named: tuple[str, ...], hubs: dict[str, Hub]) -> None:
        self.named = named
        self.hubs = hubs
        self.engine = empty_engine("n1")
        self.pace = HistoryPacing(spread_ns=0, max_unconfirmed=8, batch_rows=3, rows_per_s=10**6)
        self.now_ns = 0
        self.made = 0
        self.trimmed: set[str] = set()
        self.confirmations_sent: deque[Stored] = deque()
        self.old: list[HistoryBatch] = []
        self.window = self.new_window()
        with self.engine.begin() as connection:
            outbox.open_stream(connection, STREAM * NS_PER_S)

    def new_window(self) -> HistoryWindow:
        return HistoryWindow("n1", self.named, False, self.pace)

    def make(self, count: int) -> None:
        numbers = range(self.made, self.made + count)
        rows: list[tuple[int, CloudEvent]] = [(START_NS + n * MINUTE_NS, event(n)) for n in numbers]
        with self.engine.begin() as connection:
            outbox.append(connection, rows)
        self.made += count
        self.window.rows_added(self.now_ns, 0)

    def trim(self, keep: int) -> None:
        before = self.held()
        with self.engine.begin() as connection:
            lost = outbox.trim(connection, 0, keep)
        assert lost == max(0, len(before) - keep)
        self.trimmed |= {each.event.id for each in before[:lost] if each.event}

    def held(self) -> list[HistoryRow]:
        with self.engine.begin() as connection:
            return outbox.page(connection, 0, 10**6).rows

    def send(self, batches: int = 1) -> None:
        while batches and (ask := self.window.next_request(self.now_ns)):
            batches -= 1
            with self.engine.begin() as connection:
                page = outbox.page(connection, ask.after, ask.limit)
            rows = self.window.batch(ask, page, self.now_ns)
            self.now_ns += NS_PER_S // 100
            if rows:
                self.publish(HistoryBatch(**in_order()(), stream=page.stream, floor=page.floor, rows=rows))

    def publish(self, batch: HistoryBatch) -> None:
        self.old.append(batch)
        for hub in self.hubs.values():
            hub.queue.append(batch)

    def confirm(self, name: str) -> None:
        confirmations = self.hubs[name].confirmer.due(self.now_ns)
        self.confirmations_sent.extend(each.model_copy(update={"node": name}) for each in confirmations)

    def receive_confirmation(self) -> None:
        if self.confirmations_sent:
            self.window.confirmed(self.confirmations_sent.popleft(), self.now_ns)
        if cut := self.window.cut():
            self.check_cut(cut[1])
            with self.engine.begin() as connection:
                outbox.cut(connection, cut[1])

    def check_cut(self, up_to: int) -> None:
        """Only what is stored may be forgotten."""
        reached = [self.hubs[name].stored_up_to for name in self.named or self.hubs]
        assert up_to <= (min(reached) if self.named else max(reached))

    def lose_connection(self) -> None:
        for hub in self.hubs.values():
            hub.queue.clear()
        self.confirmations_sent.clear()
        self.window.connected(self.now_ns, 0)

    def repeat_old(self, which: int) -> None:
        """As at a reconnection: an earlier message comes once more, after later ones."""
        if self.old:
            self.publish(self.old[which % len(self.old)])

    def restart_node(self) -> None:
        self.window = self.new_window()

    def settle(self) -> None:
        """Everything works from here on."""
        for _ in range(400):
            self.now_ns += 2 * NS_PER_S
            self.send(100)
            for name, hub in self.hubs.items():
                while hub.queue:
                    hub.receive()
                self.confirm(name)
            while self.confirmations_sent:
                self.receive_confirmation()
            if not self.held():
                return
        raise AssertionError(f"still held: {[each.sequence for each in self.held()]}")


def world(*named: str, hubs: tuple[str, ...] = ("hub-a", "hub-b")) -> World:
    return World(named, {name: Hub(name) for name in hubs})


STEPS = st.one_of(
    st.tuples(st.just("make"), st.integers(1, 12)),
    st.tuples(st.just("send"), st.integers(1, 5)),
    st.tuples(st.just("pass"), st.sampled_from([1, 5, 31])),
    st.tuples(st.sampled_from(["receive", "receive", "crash before", "crash after", "hub away", "confirm"]), st.integers(0, 1)),
    st.tuples(st.just("receive confirmation"), st.just(0)),
    st.tuples(st.sampled_from(["broker dies", "node restarts"]), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(0, 50)),
)  # fmt: skip
TRIM = st.tuples(st.just("trim"), st.integers(0, 10))


def act(of: World, what: str, how: int) -> None:
    names = list(of.hubs)
    name = names[how % len(names)]
    hub = of.hubs[name]
    match what:
        case "make":
            of.make(how)
        case "trim":
            of.trim(how)
        case "send":
            of.send(how)
        case "pass":
            of.now_ns += how * NS_PER_S
        case "receive":
            hub.receive()
        case "crash before":
            hub.receive(commits=False)
            hub.restart()
        case "crash after":
            hub.receive()
            hub.restart()
        case "hub away":
            hub.queue.clear()
        case "confirm":
            of.confirm(name)
        case "receive confirmation":
            of.receive_confirmation()
        case "broker dies":
            of.lose_connection()
        case "node restarts":
            of.restart_node()
        case "repeat":
            of.repeat_old(how)


def made(of: World) -> list[str]:
    return [f"1-{number}" for number in range(of.made)]


@given(st.lists(STEPS, max_size=60))
def test_nothing_is_lost_and_nothing_doubled(steps: list[tuple[str, int]]) -> None:
    """Whatever dies when: in the end each named hub has every row once, in order, and counts no loss."""
    of = world("hub-a", "hub-b")
    for what, how in steps:
        act(of, what, how)
    of.make(1)
    of.settle()

    assert {name: hub.events() for name, hub in of.hubs.items()} == dict.fromkeys(of.hubs, made(of))
    assert [hub.known["n1"].lost for hub in of.hubs.values()] == [0, 0]


@given(st.lists(STEPS, max_size=60))
def test_one_hub_suffices_where_none_is_named(steps: list[tuple[str, int]]) -> None:
    """Each row is with one of them at least, and what a hub has not it has counted."""
    of = world()
    for what, how in steps:
        act(of, what, how)
    of.make(1)
    of.settle()
    have = [hub.events() for hub in of.hubs.values()]

    assert {each for events in have for each in events} == set(made(of))
    assert [len(events) + hub.known["n1"].lost for events, hub in zip(have, of.hubs.values(), strict=True)] == [
        hub.stored_up_to for hub in of.hubs.values()
    ]


@given(st.lists(st.one_of(STEPS, TRIM), max_size=60))
def test_what_is_trimmed_is_counted_exactly(steps: list[tuple[str, int]]) -> None:
    """What a hub lacks is what it counts as lost, is among what was trimmed, and does not stop the rest."""
    of = world("hub-a", hubs=("hub-a",))
    for what, how in steps:
        act(of, what, how)
    of.make(1)
    of.settle()
    hub = of.hubs["hub-a"]
    missing = set(made(of)) - set(hub.events())

    assert hub.events() == sorted(hub.events(), key=lambda each: int(each[2:]))
    assert (len(missing), hub.stored_up_to) == (hub.known["n1"].lost, of.made)
    assert missing <= of.trimmed


def delete_rows(missing: set[int]) -> Delete:
    return delete(tables.outbox).where(tables.outbox.c.sequence.in_(missing))


def spoil_rows(missing: set[int]) -> Update:
    return update(tables.outbox).where(tables.outbox.c.sequence.in_(missing)).values(row={})


@pytest.mark.parametrize("damage", [delete_rows, spoil_rows])
@pytest.mark.parametrize("missing", [{1, 2}, {10, 11}, {10, 12}, {29, 30}])
def test_a_hole_in_the_outbox_stops_nothing(missing: set[int], damage: Callable[[set[int]], Executable]) -> None:
    """Rows that are deleted or damaged are lost and counted; nothing is sent over and over, and the rest is stored."""
    of = world("hub-a", hubs=("hub-a",))
    of.make(30)
    with of.engine.begin() as connection:
        connection.execute(damage(missing))
    of.settle()
    of.make(1)
    of.settle()
    hub = of.hubs["hub-a"]

    assert hub.events() == [each for number, each in enumerate(made(of), 1) if number not in missing]
    assert (hub.stored_up_to, hub.known["n1"].lost) == (31, 2)
    assert sum(len(batch.rows) for batch in of.old) < 90
