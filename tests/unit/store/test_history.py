"""Questions to the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_clocks import FakeClocks
from grandmaster_samples import EVERYTHING
from samples import HEALTHY, nth

from timesyncd.bound import Bound, Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.config import StoreSettings as Settings
from timesyncd.errors import StoreError
from timesyncd.messages.node import AlarmEventMessage
from timesyncd.model.grandmaster import GrandmasterAssessment
from timesyncd.model.observation import Observation
from timesyncd.sample import (
    ClockState,
    GrandmasterSample,
    KernelSample,
    NoSample,
    PhcSample,
    Satellite,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation
from timesyncd.store.writer import Store

START_NS = HEALTHY.as_of_ns + HEALTHY.real_minus_boot_ns
END_NS = START_NS + 3_600 * NS_PER_S


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    """
    A store that stopped: eight samples of ptp, one of gm, and dead, which never gave one.

    Its folder is readable for everybody, which pytest's own are not.
    """
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    store = Store(Settings(path=folder / "history.sqlite"), FakeClocks(), lambda problem: None)
    store.start()
    for index in range(8):
        store.put(Observation(nth(index, offset_ns=index), None))
    store.put(Observation(GrandmasterSample("gm", HEALTHY.as_of_ns, clock_class=6), None))
    store.put(Observation(NoSample("dead", HEALTHY.as_of_ns, "no answer"), None))
    store.stop()
    try:
        yield folder / "history.sqlite"
    finally:
        shutil.rmtree(folder)


@contextmanager
def without_write_permission(folder: Path) -> Iterator[None]:
    """As an unprivileged user if possible, else in a folder without write permission."""
    is_root = os.geteuid() == 0
    folder.chmod(0o755 if is_root else 0o555)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def offsets(path: Path, since_ns: int = START_NS, until_ns: int = END_NS, limit: int | None = None) -> list[int]:
    return [
        record["offset_ns"] for record in history.samples(StoreLocation(path=path), "ptp", since_ns, until_ns, limit)
    ]


def test_a_store_in_a_closed_folder_is_one_error(path: Path) -> None:
    """Another user than root and the daemon's group gets one line, and not "no such store"."""
    is_root = os.geteuid() == 0
    path.parent.chmod(0o700 if is_root else 0o000)
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match=r"permission denied; read it as root"):
            history.sources(StoreLocation(path=path))
    finally:
        if is_root:
            os.seteuid(0)
        path.parent.chmod(0o755)


def test_a_span_begins_inside_and_ends_outside(path: Path) -> None:
    """Two spans that meet hold each sample once."""
    middle_ns = START_NS + 3 * NS_PER_S // 8

    assert offsets(path, until_ns=middle_ns) == [0, 1, 2]
    assert offsets(path, since_ns=middle_ns) == [3, 4, 5, 6, 7]


def test_a_limit_keeps_the_newest_in_order(path: Path) -> None:
    """With a limit the newest so many come, oldest first."""
    assert offsets(path, limit=3) == [5, 6, 7]
    assert offsets(path, limit=100) == list(range(8))


def test_a_record_has_its_kind_and_no_id(path: Path) -> None:
    """A record is a row by its columns' names; a flag is a flag and not a number."""
    record = next(history.samples(StoreLocation(path=path), "ptp", START_NS, END_NS))

    assert (record["kind"], record["port_state"], record["ptp_timescale"]) == ("clock", "SLAVE", False)
    assert "id" not in record


def test_a_grandmaster_is_asked_for_alike(path: Path) -> None:
    """The same question answers for a grandmaster."""
    found = list(history.samples(StoreLocation(path=path), "gm", START_NS, END_NS))

    assert [(record["kind"], record["clock_class"], record["alarms"]) for record in found] == [("grandmaster", 6, None)]


def test_every_source_is_known_by_its_kind(path: Path) -> None:
    """One that never gave a sample is known, too, and why it gave none is reported."""
    known = history.sources(StoreLocation(path=path))
    events = list(history.events(StoreLocation(path=path), "dead", START_NS, END_NS))

    assert known == {"dead": "event", "gm": "grandmaster", "ptp": "clock"}
    assert [(event["kind"], event["reason"]) for event in events] == [("event", "no answer")]


NAMES = ("gm", "silent", "blind", "torn", "liar", "freed", "jumped")
TORN: tuple[tuple[ClockState, tuple[Satellite, ...] | None], ...] = (
    (ClockState.LOCKED, (Satellite(3, 45, True),)), (ClockState.HOLDOVER, ()), (ClockState.LOCKED, ()), (ClockState.HOLDOVER, ()),
)  # fmt: skip
JUMPED: tuple[tuple[ClockState | None, tuple[Satellite, ...] | None, Reason], ...] = (
    (ClockState.LOCKED, None, Reason.OK), (ClockState.HOLDOVER, None, Reason.OK),
    (ClockState.HOLDOVER, None, Reason.GRANDMASTER_JUMPED), (None, None, Reason.GRANDMASTER_STATE_UNKNOWN),
    (ClockState.LOCKED, (), Reason.GRANDMASTER_CONTRADICTS_ITSELF),
)  # fmt: skip


@pytest.fixture(scope="module")
def grandmasters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    gm: a sample a second, locked for two, then in holdover, its satellites gone in the last; time errors at 0, 10, 20 and 30
    ns; an alarm event between the samples. silent: locked, then without a state, then in holdover. blind: states that it is
    locked without a satellite, then in holdover; torn: does so once, between two holdovers, after it was locked with one; liar: locked with a class
    of free run; freed: locked, then in free run, then in holdover; jumped: held to be astray in its holdover, then
    silent, then without a satellite.
    """
    path = tmp_path_factory.mktemp("grandmasters") / "history.sqlite"
    store = Store(Settings(path=path), FakeClocks(), lambda problem: None)
    store.start()
    for second in range(4):
        sample = replace(
            EVERYTHING,
            boottime_ns=HEALTHY.as_of_ns + second * NS_PER_S,
            clock_state=ClockState.LOCKED if second < 2 else ClockState.HOLDOVER,
            clock_class=6,
            satellites=() if second == 3 else (Satellite(3, 45, True),),
            time_errors=None,
        )
        store.put(Observation(sample, None))
    for second, state in enumerate((ClockState.LOCKED, None, ClockState.HOLDOVER_OUT_OF_SPEC)):
        sample = GrandmasterSample("silent", HEALTHY.as_of_ns + second * NS_PER_S, clock_state=state)
        store.put(Observation(sample, None))
    for second, state in enumerate((ClockState.LOCKED, ClockState.LOCKED, ClockState.HOLDOVER)):
        sample = GrandmasterSample("blind", HEALTHY.as_of_ns + second * NS_PER_S, clock_state=state, satellites=())
        store.put(Observation(sample, None))
    for second, (state, seen) in enumerate(TORN):
        sample = GrandmasterSample("torn", HEALTHY.as_of_ns + second * NS_PER_S, clock_state=state, satellites=seen)
        store.put(Observation(sample, None))
    for second, state in enumerate((ClockState.LOCKED, ClockState.FREERUN, ClockState.HOLDOVER)):
        store.put(
            Observation(GrandmasterSample("freed", HEALTHY.as_of_ns + second * NS_PER_S, clock_state=state), None)
        )
    liar = GrandmasterSample("liar", HEALTHY.as_of_ns, clock_state=ClockState.LOCKED, clock_class=248)
    store.put(Observation(liar, None))
    for second, (state, seen, reason) in enumerate(JUMPED):
        sample = GrandmasterSample("jumped", HEALTHY.as_of_ns + second * NS_PER_S, clock_state=state, satellites=seen)
        own_error = Bound(100) if reason is Reason.OK else unbounded(reason)
        store.put(Observation(sample, assessment=GrandmasterAssessment(own_error, "", None)))
    points = tuple((START_NS + index * 10, value) for index, value in enumerate((5, -7, 9, 1)))
    store.put(Observation(TimeErrorSeries("gm", "gnss-1", "te", points), None))
    store.put_alarm_event(
        AlarmEventMessage(
            node="n1", incarnation=1, sequence=1, name="gm", published_realtime_ns=START_NS + NS_PER_S + 1, action="raise",
            id=97, index=1, severity="major", text="GNSS antenna open",
        )
    )  # fmt: skip
    store.stop()
    return path


def test_a_sample_is_read_whole(grandmasters: Path) -> None:
    """What a row leaves out is as in the last whole row before it, also where that lies before the span."""
    found = list(history.samples(StoreLocation(path=grandmasters), "gm", START_NS + NS_PER_S, END_NS))
    newest = list(history.samples(StoreLocation(path=grandmasters), "gm", START_NS, END_NS, limit=2))

    assert [len(record["satellites"]) for record in found] == [1, 1, 0]
    assert [record["model"] for record in found] == ["TimeProvider 4100"] * 3
    assert newest == found[1:]
    assert "whole" not in found[0]


def test_time_errors_are_asked_for_by_span(grandmasters: Path) -> None:
    """In order of time, with a limit the newest."""
    span = (START_NS, START_NS + 30)
    values = [record["value_ns"] for record in history.time_errors(StoreLocation(path=grandmasters), "gm", *span)]
    newest = [
        record["value_ns"] for record in history.time_errors(StoreLocation(path=grandmasters), "gm", *span, limit=2)
    ]

    assert (values, newest) == ([5, -7, 9], [-7, 9])


def test_a_series_keeps_every_peak(grandmasters: Path) -> None:
    """However few the steps, each has its minimum, its maximum and its begin."""
    envelope = history.time_error_envelope(StoreLocation(path=grandmasters), "gm", START_NS, START_NS + 40, steps=2)

    assert envelope == [
        {"channel": "gnss-1", "metric": "te", "realtime_ns": START_NS, "lowest_ns": -7, "highest_ns": 5},
        {"channel": "gnss-1", "metric": "te", "realtime_ns": START_NS + 20, "lowest_ns": 1, "highest_ns": 9},
    ]


def test_alarm_events_are_among_the_events(grandmasters: Path) -> None:
    """What a grandmaster reported by itself is reported in order of time."""
    found = history.events(StoreLocation(path=grandmasters), "gm", START_NS, END_NS)

    assert [(event["kind"], event.get("text")) for event in found] == [("event", None), ("alarm", "GNSS antenna open")]


def test_a_holdover_began_after_the_last_locked_sample(grandmasters: Path) -> None:
    """The newest one that is to be believed, as long as nothing but holdover, silence and contradictions followed."""
    dated = {name: history.last_locked(StoreLocation(path=grandmasters), name) for name in (*NAMES, "nowhere")}

    assert {name: row["realtime_ns"] - START_NS for name, row in dated.items() if row} == {
        "gm": NS_PER_S, "silent": 0, "torn": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        *(f"satellites = '{json}'" for json in ("[1]", "[{}]", '"abc"', '{"a":1}', "5", '[{"healthy":"x"}]')),
        f"alarms = '[{'9' * 5_000}]', clock_class = 7",
        f"alarms = '{'[' * 900}{']' * 900}', clock_class = 7",
    ],
)
def test_a_damaged_lock_is_left_out(grandmasters: Path, tmp_path: Path, damage: str) -> None:
    """An earlier one dates the holdover then: it began no earlier, so no bound is too narrow."""
    path = Path(shutil.copy(grandmasters, tmp_path))
    with closing(sqlite3.connect(path)) as connection, connection:
        newest = f"source = 'gm' AND realtime_ns = {START_NS + NS_PER_S}"
        connection.execute(f"UPDATE grandmaster_sample SET whole = 1, {damage} WHERE {newest}")
    found = history.last_locked(StoreLocation(path=path), "gm")

    assert found is not None and found["realtime_ns"] == START_NS


def test_anybody_reads_a_store_at_rest(path: Path) -> None:
    """A daemon that stopped leaves a file that needs no write permission to be read."""
    with without_write_permission(path.parent):
        found = offsets(path)

    assert found == list(range(8))


def test_anybody_reads_beside_the_writer(path: Path) -> None:
    """While a daemon writes, what it has committed is seen, without write permission too."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO gap VALUES (1, 'ptp', 'test', 'test', ?, ?, 5)", (START_NS, START_NS))
        connection.commit()
        with without_write_permission(path.parent):
            found = [
                record["rows_lost"]
                for record in history.events(StoreLocation(path=path), "ptp", START_NS, END_NS)
                if "rows_lost" in record
            ]
        connection.execute("DELETE FROM gap")
        connection.commit()

    assert found == [5]


def test_no_store_is_an_error(tmp_path: Path) -> None:
    """A query creates no file: an absent store is an error that names what creates it."""
    path = tmp_path / "history.sqlite"

    with pytest.raises(StoreError, match="no such store"):
        history.sources(StoreLocation(path=path))
    assert not path.exists()


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    """A foreign database is an error of one line."""
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (a)")

    with pytest.raises(StoreError, match=r"history\.sqlite: no such table: source_event$"):
        history.sources(StoreLocation(path=path))


def test_a_span_is_found_by_the_index(path: Path) -> None:
    """A span of any source is a search of its index, never a scan of the table."""
    sql = "SELECT * FROM clock_sample WHERE source = 'a' AND realtime_ns >= 1 AND realtime_ns < 2 ORDER BY realtime_ns, id"
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]

    index = "ix_clock_sample_source_realtime_ns (source=? AND realtime_ns>? AND realtime_ns<?)"
    assert plan == [f"SEARCH clock_sample USING INDEX {index}"]


def test_every_kind_of_clock_source_is_kept(tmp_path: Path) -> None:
    """PHC, UTC and kernel readings come back under their own kind, each with all that was read."""
    path = tmp_path / "history.sqlite"
    store = Store(Settings(path=path), FakeClocks(), lambda problem: None)
    store.start()
    at = (HEALTHY.as_of_ns, HEALTHY.real_minus_boot_ns)
    store.put(Observation(PhcSample("nic", "phc:0", *at, -37, 6, "extended", steered=True), None))
    store.put(Observation(UtcSample("ntp", *at, -5, 7, 51, "10.0.0.1", 2, "normal", 8, 9), None))
    kernel = KernelSample(
        "kernel", FakeClocks().boottime_ns(), 1, 2, 3, True, "none", 37, ("chronyd",), vm_disruptions=4
    )
    store.put(Observation(kernel, None))
    store.stop()
    found = {name: next(history.samples(StoreLocation(path=path), name, 0, 2**62)) for name in ("nic", "ntp", "kernel")}

    assert history.sources(StoreLocation(path=path)) == {"kernel": "kernel", "nic": "phc", "ntp": "utc"}
    assert (found["nic"]["kind"], found["nic"]["width_ns"], found["nic"]["steered"]) == ("phc", 6, True)
    assert (found["ntp"]["error_ns"], found["ntp"]["reference"], found["ntp"]["ntp_sources"]) == (7, "10.0.0.1", [])
    assert (found["kernel"]["disciplines"], found["kernel"]["vm_disruptions"]) == (["chronyd"], 4)
