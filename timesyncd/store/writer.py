"""The store's one writer: a thread of its own that takes what the daemon hands over and commits it in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Thread

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.clocks import NS_PER_S, Clocks, real_minus_boot_ns
from timesyncd.config import Store as Settings
from timesyncd.errors import StoreError
from timesyncd.feed import Observation
from timesyncd.messages import AlarmEventMessage, FindingMessage
from timesyncd.sample import (
    ClockSample,
    GrandmasterSample,
    KernelSample,
    NoSample,
    PhcSample,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import retention, statements
from timesyncd.store.backlog import Backlog
from timesyncd.store.database import migrate, store_error, writer_engine
from timesyncd.store.rows import (
    Entry,
    SourceState,
    alarm_event_entry,
    clock_entry,
    event_entry,
    finding_entry,
    grandmaster_entries,
    kernel_entry,
    phc_entry,
    series_entries,
    state_of,
    utc_entry,
)
from timesyncd.store.whole import WholeRows

log = logging.getLogger(__name__)

#: What a kill -9 may lose, less the commit itself.
BATCH_S = 0.9
BATCH_ROWS = 5_000
RETRY_S = 2.0
#: Making the file ready starts a process, so it is tried again less often.
REOPEN_S = 30.0
#: A store further behind than this may come to drop rows, so none shall lean on an earlier one.
MAY_LOSE_AFTER_S = 5.0
RETENTION_EVERY_NS = 60 * NS_PER_S
ANSWER_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
NS_PER_DAY = 86_400 * NS_PER_S


class Store:
    """
    `put`, `put_finding` and `put_alarm_event` never wait and never fail. What cannot be written now (a full disk, a lock, a file that is
    read-only) is tried again, and `on_problem` is told once, and once with None when it is over. It is called in the
    store's own thread.
    """

    def __init__(self, settings: Settings, clocks: Clocks, on_problem: Callable[[str | None], None]) -> None:
        self._path = settings.path
        self._keep_ns = int(settings.keep_days * NS_PER_DAY)
        self._clocks = clocks
        self._on_problem = on_problem
        self._backlog = Backlog()
        self._states: dict[str, SourceState] = {}
        self._whole = WholeRows()
        self._questions: SimpleQueue[tuple[str, Future[int]]] = SimpleQueue()
        self._engine: Engine | None = None
        self._inode = 0
        self._has_problem = False
        self._retain_at_ns = 0
        self._wake = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Returns at once; the file is made ready in the store's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store what waits, and end. Blocks, at most STOP_LIMIT_S; what could not be stored is lost and logged."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(STOP_LIMIT_S)
        if lost := len(self._backlog):
            log.warning("%s: %d rows could not be stored before the end", self._path, lost)

    def put(self, observation: Observation) -> None:
        """Of a reading without a sample only a change of its reason is stored. Called by one thread."""
        now_ns, real_minus_boot = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        source, state = observation.reading.source, state_of(observation.reading)
        if state is not None and self._states.get(source) != state:
            self._states[source] = state
            self._backlog.put(event_entry(source, state, real_minus_boot, now_ns))
        for entry in self._entries(observation, real_minus_boot, now_ns):
            self._backlog.put(entry)

    def _entries(self, observation: Observation, real_minus_boot: int, now_ns: int) -> Iterable[Entry]:
        match observation.reading:
            case ClockSample() as sample:
                return [clock_entry(sample, observation.bound, now_ns)]
            case PhcSample() as sample:
                return [phc_entry(sample, now_ns)]
            case UtcSample() as sample:
                return [utc_entry(sample, observation.bound, now_ns)]
            case KernelSample() as sample:
                return [kernel_entry(sample, real_minus_boot, now_ns)]
            case GrandmasterSample() as sample:
                whole = self._is_whole(sample)
                return grandmaster_entries(sample, observation.own_error, real_minus_boot, now_ns, whole=whole)
            case TimeErrorSeries() as series:
                return series_entries(series, now_ns)
            case NoSample():
                return []

    def _is_whole(self, sample: GrandmasterSample) -> bool:
        if self.behind_s > MAY_LOSE_AFTER_S:
            self._whole.forget()
        return self._whole.is_due(sample)

    def put_finding(self, finding: FindingMessage) -> None:
        """The same finding (id, subject, since) again replaces what was stored of it."""
        self._backlog.put(finding_entry(finding, self._clocks.boottime_ns()))

    def put_alarm_event(self, message: AlarmEventMessage) -> None:
        self._backlog.put(alarm_event_entry(message, self._clocks.boottime_ns()))

    def next_incarnation(self, node: str) -> int:
        """
        A number above every earlier one of this node, on the disk when it is returned. Blocks; raises StoreError.

        It is CLOCK_REALTIME in seconds or one above the last, whichever is larger: so it grows although clocks step, and
        although the file is lost.
        """
        answer: Future[int] = Future()
        self._questions.put((node, answer))
        self._wake.set()
        try:
            return answer.result(ANSWER_LIMIT_S)
        except TimeoutError as error:
            raise StoreError(f"{self._path}: no answer within {ANSWER_LIMIT_S:g} s") from error

    @property
    def dropped(self) -> int:
        """Rows lost since the start because the store fell behind."""
        return self._backlog.dropped

    @property
    def stored(self) -> int:
        return self._backlog.stored

    @property
    def behind_s(self) -> float:
        """The age of the oldest row that is not stored; 0 when there is none."""
        oldest_ns = self._backlog.oldest_ns()
        return 0.0 if oldest_ns is None else (self._clocks.boottime_ns() - oldest_ns) / NS_PER_S

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.is_set()
            pause_s = self._round()
            self._wake.wait(0 if is_last else pause_s)
            self._wake.clear()
        self._close()

    def _round(self) -> float:
        """Do what there is to do; returns after how many seconds to look again."""
        try:
            engine = self._ready_engine()
            self._answer()
            self._write(engine)
            self._retain(engine)
        except StoreError as error:
            self._failed(error)
            return REOPEN_S
        except SQLAlchemyError as error:
            self._failed(store_error(self._path, error))
            return RETRY_S
        self._succeeded()
        return BATCH_S

    def _failed(self, error: StoreError) -> None:
        for _, answer in self._asked():
            answer.set_exception(error)
        if self._engine is not None:
            self._engine.dispose()
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(str(error))

    def _succeeded(self) -> None:
        if self._has_problem:
            self._has_problem = False
            self._on_problem(None)

    def _ready_engine(self) -> Engine:
        """Opened anew when somebody has removed or replaced the file: rows would go where nobody finds them."""
        if self._engine is None or self._inode_now() != self._inode:
            self._close()
            migrate(self._path)
            self._engine = writer_engine(self._path)
            with self._engine.begin() as connection:
                statements.end_findings(connection, self._clocks.realtime_ns())
            self._inode = self._inode_now()
        return self._engine

    def _inode_now(self) -> int:
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine, self._inode = None, 0

    def _asked(self) -> Iterator[tuple[str, Future[int]]]:
        while True:
            try:
                yield self._questions.get_nowait()
            except Empty:
                return

    def _answer(self) -> None:
        for node, answer in self._asked():
            try:
                answer.set_result(statements.next_incarnation(self._path, node, self._clocks.realtime_ns()))
            except SQLAlchemyError as error:
                answer.set_exception(store_error(self._path, error))
                raise

    def _write(self, engine: Engine) -> None:
        while True:
            batch = self._backlog.take(BATCH_ROWS)
            if not batch.entries and not batch.gaps:
                return
            try:
                with engine.begin() as connection:
                    statements.insert_batch(connection, batch)
            except SQLAlchemyError:
                self._backlog.give_back(batch)
                raise
            except OverflowError as error:
                self._backlog.lose(batch)
                raise StoreError(
                    f"{self._path}: a number that no column holds: {len(batch.entries)} rows are lost"
                ) from error
            self._backlog.has_stored(batch)

    def _retain(self, engine: Engine) -> None:
        """One step a round; when nothing is left to delete, it rests."""
        now_ns = self._clocks.boottime_ns()
        if now_ns < self._retain_at_ns:
            return
        with engine.begin() as connection:
            deleted = retention.delete_step(connection, self._clocks.realtime_ns() - self._keep_ns)
        if deleted < retention.STEP_ROWS:
            self._retain_at_ns = now_ns + RETENTION_EVERY_NS
