"""The writer: what it is given is stored, and what it cannot store is reported."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import pytest
from fake_clocks import FakeClocks
from grandmaster_samples import EVERYTHING
from postgresql import location, locked, locked_error, migrate_here, rows_of, settings_of
from samples import HEALTHY, nth

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.node import AlarmEventMessage, ChainStep, FindingMessage
from timesyncd.model.observation import Observation
from timesyncd.sample import NoSample, PortState, TimeErrorSeries
from timesyncd.store import engine as store_engine
from timesyncd.store import history, rollups, writer
from timesyncd.store.backlog import GapReason
from timesyncd.store.engine import StoreLocation
from timesyncd.store.rollups import Retention
from timesyncd.store.session import StoreSession
from timesyncd.store.writer import Store

__all__ = ["location"]

NS_PER_DAY = 86_400 * NS_PER_S

FINDING = FindingMessage(
    id="store-failing",
    severity="warning",
    subject="n1",
    since_realtime_ns=1_699_999_999 * NS_PER_S,
    until_realtime_ns=None,
    evidence="disk full",
    cause="?",
    remedy="!",
)


NOW_NS = FakeClocks().real_ns


def alarm_event(realtime_ns: int = NOW_NS) -> AlarmEventMessage:
    return AlarmEventMessage(
        node="n1", incarnation=1, sequence=1, name="gm", published_realtime_ns=realtime_ns, action="clear", id=None, index=0,
        severity="clear", text="GNSS antenna open",
    )  # fmt: skip


def points(*of: tuple[int, int]) -> TimeErrorSeries:
    """(ns since now, value) of each."""
    return TimeErrorSeries("gm", "gnss-1", "te", tuple((NOW_NS + at, value) for at, value in of))


class Bench:
    """A store in its own location, with clocks that do not advance and its reported problems."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.clocks = FakeClocks()
        self.problems: Queue[str | None] = Queue()

    @contextmanager
    def running(self) -> Iterator[Store]:
        store = Store(settings_of(self.location), self.clocks, self.problems.put)
        store.start()
        try:
            yield store
        finally:
            store.stop()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return rows_of(self.location, sql)

    def locked(self) -> AbstractContextManager[None]:
        return locked(self.location, "clock_sample", "grandmaster_sample", "incarnation")

    def put_now(self, store: Store) -> None:
        """A sample of this moment."""
        sample = replace(
            HEALTHY,
            as_of_ns=self.clocks.boot_ns,
            real_minus_boot_ns=self.clocks.real_ns - self.clocks.boot_ns,
        )
        store.put(Observation(sample, None))


@pytest.fixture
def bench(location: StoreLocation) -> Bench:
    return Bench(location)


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that waits neither for a lock nor long before it tries again."""
    monkeypatch.setattr(store_engine, "BUSY_S", 0.01)
    monkeypatch.setattr(writer, "RETRY_S", 0.01)


def test_what_is_put_is_stored_when_it_stops(bench: Bench) -> None:
    """Everything handed over before stop() is in the file after it, in order."""
    with bench.running() as store:
        for index in range(10):
            store.put(Observation(nth(index, offset_ns=index), None))

    assert bench.rows("SELECT offset_ns FROM clock_sample ORDER BY id") == [(index,) for index in range(10)]
    assert (store.stored, store.dropped, store.behind_s) == (11, 0, 0.0)


def test_only_a_change_of_reason_is_an_event(bench: Bench) -> None:
    """Samples begin, fail twice by one cause, fail by another, and resume: four rows, whatever the wording of the reason."""
    with bench.running() as store:
        failed = NoSample("ptp", 7, "no answer", port_state=PortState.LISTENING)
        reworded = replace(failed, reason="no reply")
        for reading in (HEALTHY, HEALTHY, failed, reworded, NoSample("ptp", 8, "restarted", restarted=True), HEALTHY):
            store.put(Observation(reading, None))

    assert bench.rows("SELECT source, reason_code, reason, restarted, port_state FROM source_event ORDER BY id") == [
        ("ptp", None, None, 0, None),
        ("ptp", "no_valid_sample", "no answer", 0, "LISTENING"),
        ("ptp", "source_restarted", "restarted", 1, None),
        ("ptp", None, None, 0, None),
    ]
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(3,)]


def test_more_than_60_s_behind_is_a_gap(bench: Bench, short_intervals: None) -> None:
    """While the file is locked the newest 60 s are kept; what is older is counted and becomes a row afterwards."""
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.locked():
            bench.put_now(store)
            problem = bench.problems.get(timeout=60)
            behind = []
            for _ in range(3):
                bench.clocks.advance(30 * NS_PER_S)
                bench.put_now(store)
                with pytest.raises(StoreError, match="lock"):
                    store.next_incarnation("n1")
                behind.append(store.behind_s)
            dropped = store.dropped
        over = bench.problems.get(timeout=60)

    start_ns = FakeClocks().real_ns
    assert (problem, over) == (locked_error(bench.location), None)
    assert (behind, dropped) == ([30, 60, 60], 2)
    assert bench.rows("SELECT source, realtime_ns, until_realtime_ns, rows_lost FROM gap") == [
        ("ptp", start_ns, start_ns, 2)
    ]
    assert bench.rows("SELECT realtime_ns FROM clock_sample") == [
        (start_ns + seconds * NS_PER_S,) for seconds in (30, 60, 90)
    ]


def test_a_problem_is_reported_once(bench: Bench, short_intervals: None) -> None:
    """However often it is tried again, a problem is reported when it begins and when it is over."""
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.locked():
            bench.put_now(store)
            reported = [bench.problems.get(timeout=60)]
            for _ in range(3):
                with pytest.raises(StoreError, match="lock"):
                    store.next_incarnation("n1")
        reported.append(bench.problems.get(timeout=60))

    assert reported == [locked_error(bench.location), None]
    assert bench.problems.empty()


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    """The store starts without its file, states why, and answers what it can: an error."""
    bench = Bench(StoreLocation(path=tmp_path))
    with bench.running() as store, pytest.raises(StoreError, match="unable to open database file"):
        store.next_incarnation("n1")

    assert "unable to open database file" in str(bench.problems.get(timeout=60))


def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    """Rows never go to a removed file, where no reader finds them."""
    path = tmp_path / "history.sqlite"
    bench = Bench(StoreLocation(path=path))
    with bench.running() as store:
        store.next_incarnation("n1")
        bench.clocks.advance(1)
        while store.behind_s:  # the round that found the file is still to write
            time.sleep(0.01)
        path.unlink()
        bench.put_now(store)

    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


def test_a_file_that_is_removed_while_rows_are_written_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeds, in a file without a name: the rows are written again."""
    bench, write = Bench(StoreLocation(path=tmp_path / "history.sqlite")), StoreSession.write

    def removing(session: StoreSession, batch: Any) -> bool:
        if not removed:
            removed.append(True)
            (tmp_path / "history.sqlite").unlink()
        return write(session, batch)

    removed: list[bool] = []
    monkeypatch.setattr(StoreSession, "write", removing)
    monkeypatch.setattr(writer, "BATCH_S", 0.01)
    with bench.running() as store:
        bench.put_now(store)
        while store.stored < 2:  # the sample, and that the source is available
            time.sleep(0.01)

    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


def test_an_incarnation_is_above_every_earlier_one(bench: Bench) -> None:
    """A node's number grows at each start, also when its clock was set back; nodes are apart."""
    numbers = []
    for node, step_ns in (("n1", 0), ("n1", -(10**18)), ("n1", 0), ("n2", 0)):
        bench.clocks.step(step_ns)
        with bench.running() as store:
            numbers.append(store.next_incarnation(node))

    assert numbers == [1_700_000_000, 1_700_000_001, 1_700_000_002, 700_000_000]


def test_a_finding_put_again_replaces_itself(bench: Bench) -> None:
    """Raised and ended is one row, in one batch or in two."""
    until_ns = bench.clocks.real_ns
    ended = FINDING.model_copy(update={"until_realtime_ns": until_ns})
    with bench.running() as store:
        store.put_finding(FINDING)
        store.put_finding(ended)
    with bench.running() as store:
        store.put_finding(ended.model_copy(update={"until_realtime_ns": until_ns + 1}))

    assert bench.rows("SELECT finding_id, subject, until_realtime_ns FROM finding") == [
        ("store-failing", "n1", until_ns + 1)
    ]


def test_a_finding_keeps_its_chain(bench: Bench) -> None:
    """What led to what is stored with it, in its order."""
    with bench.running() as store:
        store.put_finding(
            FINDING.model_copy(
                update={"chain": [ChainStep(code="a", text="antenna open"), ChainStep(code="b", text="holdover")]}
            )
        )

    assert [json.loads(chain) for (chain,) in bench.rows("SELECT CAST(chain AS VARCHAR) FROM finding")] == [
        [{"code": "a", "text": "antenna open"}, {"code": "b", "text": "holdover"}]
    ]


def test_a_days_file_fills_holes_and_doubles_nothing(bench: Bench) -> None:
    """A time error that is stored stays as it is; a series that comes again, or overlaps, adds what is missing alone."""
    with bench.running() as store:
        store.put(Observation(points((10, 1), (30, 3)), None))
        store.next_incarnation("n1")
        store.put(Observation(points((10, 99), (20, 2), (30, 3)), None))
        store.put(Observation(replace(points((10, 4)), metric="cte"), None))

    assert bench.rows(f"SELECT metric, realtime_ns - {NOW_NS}, value_ns FROM time_error ORDER BY 1, 2") == [
        ("cte", 10, 4), ("te", 10, 1), ("te", 20, 2), ("te", 30, 3),
    ]  # fmt: skip
    assert bench.rows("SELECT count(*) FROM source_event") == [(0,)]


def test_a_grandmasters_newest_time_errors_meet_those_of_its_file(bench: Bench) -> None:
    """Polled again and again, and then read from the day's file, a point is one row."""
    series = TimeErrorSeries("gm", "gnss-1", "te", ((1_700_000_000_000_000_000, 23),))
    with bench.running() as store:
        store.put(Observation(EVERYTHING, None))
        store.put(Observation(replace(EVERYTHING, satellites=()), None))
        store.put(Observation(series, None))

    assert bench.rows("SELECT metric, value_ns FROM time_error ORDER BY id") == [("te", 23), ("cte", -4)]
    assert bench.rows("SELECT whole FROM grandmaster_sample") == [(1,), (1,)]


def test_lists_that_did_not_change_are_stored_once(bench: Bench) -> None:
    """Between whole rows a grandmaster's rows hold what is not slow."""
    with bench.running() as store:
        for phase_ns in range(3):
            store.put(Observation(replace(EVERYTHING, phase_offset_ns=phase_ns), None))

    assert bench.rows("SELECT phase_offset_ns, whole, satellites IS NULL FROM grandmaster_sample") == [
        (0, 1, 0), (1, 0, 1), (2, 0, 1),
    ]  # fmt: skip


def test_while_rows_may_be_lost_each_is_whole(bench: Bench, short_intervals: None) -> None:
    """While nothing can be stored no row leans on an earlier one, which may be among the lost."""
    with bench.running() as store:
        store.next_incarnation("n1")
        with bench.locked():
            for _ in range(3):
                at_ns = bench.clocks.boot_ns
                store.put(Observation(replace(EVERYTHING, boottime_ns=at_ns, time_errors=()), None))
                bench.clocks.advance(50 * NS_PER_S)

    assert bench.rows("SELECT whole FROM grandmaster_sample") == [(1,), (1,)]


def test_an_alarm_event_is_stored(bench: Bench) -> None:
    """What a grandmaster reported by itself is a row under the grandmaster's name."""
    with bench.running() as store:
        store.put_alarm_event(alarm_event())

    assert bench.rows("SELECT source, realtime_ns, action, alarm_id, alarm_index, lost FROM alarm_event") == [
        ("gm", NOW_NS, "clear", None, 0, 0)
    ]


def test_retention_covers_every_table_with_a_time(bench: Bench) -> None:
    """Time errors and alarm events go with the samples; what is young enough stays."""
    with bench.running() as store:
        store.put(Observation(points((0, 1), (10, 2)), None))
        store.put_alarm_event(alarm_event())
    engine = store_engine.writer_engine(bench.location)
    with engine.begin() as connection:
        deleted = rollups.delete_step(connection, NOW_NS + 5, Retention(0, 0, 0))
    engine.dispose()

    assert deleted == 2
    assert bench.rows("SELECT value_ns FROM time_error") == [(2,)]
    assert bench.rows("SELECT count(*) FROM alarm_event") == [(0,)]


def test_a_start_ends_what_stood(bench: Bench) -> None:
    """A finding that was active when the daemon was killed does not stay active for ever."""
    with bench.running() as store:
        store.put_finding(FINDING)
    stood = bench.rows("SELECT until_realtime_ns FROM finding")
    with bench.running():
        pass

    assert stood == [(None,)]
    assert bench.rows("SELECT until_realtime_ns FROM finding") == [(bench.clocks.real_ns,)]


def test_old_rows_go_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step deletes no more than its number of rows, the oldest first, over all sources, and none that is young enough."""
    monkeypatch.setattr(rollups, "STEP_ROWS", 4)
    with bench.running() as store:
        for source in ("a", "b"):
            for index in range(5):
                store.put(Observation(nth(index, source=source), None))
    engine = store_engine.writer_engine(bench.location)
    deleted, left = [], []
    before_ns = nth(3).as_of_ns + HEALTHY.real_minus_boot_ns
    for _ in range(3):
        with engine.begin() as connection:
            deleted.append(rollups.delete_step(connection, before_ns, Retention(0, 0, 0)))
        left.append(bench.rows("SELECT source, count(*) FROM clock_sample GROUP BY source ORDER BY source"))
    engine.dispose()

    assert deleted == [4, 4, 0]
    assert left == [[("a", 2), ("b", 4)], [("a", 2), ("b", 2)], [("a", 2), ("b", 2)]]


def test_what_is_older_than_keep_days_goes_while_the_store_runs(bench: Bench) -> None:
    """Eight days later the first start deletes it without being asked; an ended finding goes likewise."""
    with bench.running() as store:
        bench.put_now(store)
        store.put_finding(FINDING.model_copy(update={"until_realtime_ns": bench.clocks.real_ns}))
    bench.clocks.advance(8 * NS_PER_DAY)
    with bench.running() as store:
        bench.put_now(store)

    assert bench.rows("SELECT realtime_ns FROM clock_sample") == [(bench.clocks.real_ns,)]
    assert bench.rows("SELECT count(*) FROM finding") == [(0,)]


def test_a_number_that_no_column_holds_costs_its_row_alone(bench: Bench) -> None:
    """What was put before and after it is stored, its loss is a gap, and the store has no problem."""
    store = Store(settings_of(bench.location), bench.clocks, bench.problems.put)
    for number in (1, 2, 2**70, 3, 4, 2**71, 5):
        store.put(Observation(points((number, 1)), None))
    store.start()
    store.stop()
    found = history.time_errors(bench.location, "gm", 0, 2**62)

    assert [row["realtime_ns"] - NOW_NS for row in found] == [1, 2, 3, 4, 5]
    assert bench.rows("SELECT source, reason_code, sum(rows_lost) FROM gap GROUP BY 1, 2") == [
        ("gm", GapReason.UNSTORABLE_VALUE.code, 2)
    ]
    assert (store.stored, store.dropped, bench.problems.empty()) == (5, 2, True)


def test_a_stuck_thread_is_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that neither answers nor fails gives no error: `behind_s` shows it, even while no row waits."""
    stuck, go_on = Event(), Event()

    def hang(_: StoreSession) -> bool:
        stuck.set()
        return not go_on.wait(30)

    monkeypatch.setattr(StoreSession, "roll_up", hang)
    with bench.running() as store:
        assert stuck.wait(30)
        bench.clocks.advance(20 * NS_PER_S)
        behind_s = store.behind_s
        go_on.set()

    assert (behind_s, store.behind_s) == (20, 0)


def test_an_incarnation_that_the_store_does_not_give_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not answer (here it was never started) costs the daemon a limited time, and the error names it."""
    monkeypatch.setattr(writer, "INCARNATION_TIMEOUT_S", 0.001)
    silent = Store(settings_of(StoreLocation(path=tmp_path / "h.sqlite")), FakeClocks(), lambda problem: None)

    with pytest.raises(StoreError, match=r"h\.sqlite: the store did not answer within 0\.001 s"):
        silent.next_incarnation("n1")


def test_an_observation_without_a_reading_leaves_no_row(bench: Bench) -> None:
    """A bound that changed between two readings is published, and is no sample."""
    with bench.running() as store:
        store.put(Observation(None))
        store.put(Observation(HEALTHY, None))

    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


def test_an_unexpected_error_neither_ends_the_thread_nor_loses_rows(
    bench: Bench, short_intervals: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported as the store's problem, logged once with its traceback, and the rows are tried again."""
    monkeypatch.setattr(writer, "REOPEN_S", 0.01)
    failures, write = [2], StoreSession.write

    def failing(session: StoreSession, batch: Any) -> bool:
        if failures[0]:
            failures[0] -= 1
            raise TypeError("unsupported operand type(s) for -: 'str' and 'int'")
        return write(session, batch)

    monkeypatch.setattr(StoreSession, "write", failing)
    with bench.running() as store:
        bench.put_now(store)
        problem, over = bench.problems.get(timeout=60), bench.problems.get(timeout=60)

    assert problem is not None and "unexpected TypeError: unsupported operand" in problem
    assert over is None
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]


def test_a_store_that_cannot_be_opened_yet_costs_no_migration(
    tmp_path: Path, short_intervals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is away, full or read-only at the start is tried soon and cheaply; the process that migrates starts once it is back."""
    migrated: list[StoreLocation] = []

    def counted(location: StoreLocation) -> None:
        migrated.append(location)
        migrate_here(location)

    monkeypatch.setattr(writer, "migrate", counted)
    in_the_way = tmp_path / "disk"
    in_the_way.touch()
    bench = Bench(StoreLocation(path=in_the_way / "history.sqlite"))
    with bench.running() as store:
        bench.put_now(store)
        problem = bench.problems.get(timeout=60)
        before = len(migrated)
        in_the_way.unlink()
        over = bench.problems.get(timeout=60)

    assert problem is not None and "disk" in problem
    assert (before, over, len(migrated)) == (0, None, 1)
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


def test_a_store_with_its_tables_costs_no_migration(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that starts again stores at once; a table that is missing, or another revision, is left to the migration."""
    migrated: list[StoreLocation] = []

    def counted(location: StoreLocation) -> None:
        migrated.append(location)
        migrate_here(location)

    monkeypatch.setattr(writer, "migrate", counted)
    numbers = []
    for broken in (None, None, "DROP TABLE operator_note", "UPDATE alembic_version SET version_num = '0002'"):
        if broken is not None:
            change(bench.location, broken)
        with bench.running() as store:
            bench.put_now(store)
        numbers.append(len(migrated))

    assert numbers == [1, 1, 2, 3]
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(4,)]


def change(location: StoreLocation, sql: str) -> None:
    engine = store_engine.writer_engine(location)
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)
    engine.dispose()


def test_rows_do_not_wait_for_all_other_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll-ups and the deletion of old rows take a while each: what was put half a batch ago is stored between them."""
    waiting: list[int] = []

    def rolling_up(_session: StoreSession) -> bool:
        if not waiting:
            bench.put_now(store)
            bench.clocks.advance(round(writer.BATCH_S * NS_PER_S / 2))
        return False

    def deleting(_session: StoreSession) -> int:
        waiting.append(store.waiting)
        return 0

    monkeypatch.setattr(StoreSession, "roll_up", rolling_up)
    monkeypatch.setattr(StoreSession, "delete_old", deleting)
    store = Store(settings_of(bench.location), bench.clocks, bench.problems.put)
    store.start()
    store.stop()

    assert waiting[0] == 0
    assert bench.rows("SELECT count(*) FROM clock_sample") == [(1,)]


@pytest.mark.parametrize(("round_s", "pause_s"), [(0.0, 0.5), (0.3, 0.2), (0.49, 0.05), (9.0, 0.05)])
def test_a_batch_begins_when_it_is_due_however_long_the_last_one_took(round_s: float, pause_s: float) -> None:
    """A slow disk does not add to the interval, which bounds what a kill loses; the disk gets a short rest in any case."""
    assert writer.pause_after(round_s) == pytest.approx(pause_s)
