"""The store's one writer: a thread that commits in batches what the daemon puts."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import TypeVar

from sqlalchemy.exc import DataError, ProgrammingError, SQLAlchemyError

from timesyncd.clocks import NS_PER_S, Clocks, real_minus_boot_ns
from timesyncd.config import StoreSettings
from timesyncd.errors import StoreError
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, Rollup
from timesyncd.messages.node import AlarmEventMessage, FindingMessage
from timesyncd.messages.notes import OperatorNote
from timesyncd.model.observation import Observation
from timesyncd.sample import (
    ClockSample,
    GrandmasterSample,
    KernelSample,
    NoSample,
    PhcSample,
    TimeErrorSeries,
    UtcSample,
)
from timesyncd.store import outbox
from timesyncd.store import session as store_session
from timesyncd.store.archive import ArchiveProgress
from timesyncd.store.backlog import Backlog, HistoryBacklog, RowBatch
from timesyncd.store.damage import is_damage
from timesyncd.store.engine import (
    MigrationFailed,
    StoreDamaged,
    StoreLocation,
    migrate,
    prepare_file,
    reading,
    store_error,
    writer_engine,
)
from timesyncd.store.notes import note_entry
from timesyncd.store.outbox import OutboxPage
from timesyncd.store.recovery import Recovery
from timesyncd.store.rollups import Retention
from timesyncd.store.rows import (
    ClockEntry,
    Entry,
    EventEntry,
    SourceAvailability,
    WholeRowSchedule,
    alarm_event_entry,
    availability_of,
    finding_entry,
    grandmaster_entries,
    kernel_entry,
    phc_entry,
    rollup_entries,
    series_entries,
    source_event_entry,
    utc_entry,
)
from timesyncd.store.session import WORK_S, OutboxLimits, StoreCounters, StoreSession
from timesyncd.store.tables import has_current_tables

T = TypeVar("T")

log = logging.getLogger(__name__)

#: From one batch's begin to the next one's, however long the work between them takes. A `kill -9` loses what was put since the
#: last begin: of a running commit the kernel has every row before it waits for the disk.
BATCH_S = 0.5
BATCH_ROWS = 5_000
#: Rows of other nodes' histories per transaction; the node's own rows are written between two of them.
ARCHIVE_ROWS = 500
RETRY_S = 2.0
#: A migration starts a process, which takes most of a second of CPU, so it is retried less often.
REOPEN_S = 10.0
#: A store further behind than this may drop rows, so every row must be whole: none may depend on an earlier one.
MAY_LOSE_AFTER_S = 5.0
INCARNATION_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class Store:
    """
    Puts never wait and never fail. A write that fails (a full disk, a lock, an unreachable server) is retried; `on_problem` is
    called once with the error, and once with None when writing works again. `on_damage` is called with one line when a damaged file
    is set aside, and when its readable rows are in the new one.

    Without `outbox` no row waits for hubs. `on_history` is called when rows were added to the outbox, `on_stored` with the
    progress of another node's history. These four are called in the store's own thread.
    """

    def __init__(
        self,
        settings: StoreSettings,
        clocks: Clocks,
        on_problem: Callable[[str | None], None],
        *,
        node: str = "localhost",
        outbox: OutboxLimits | None = None,
        on_damage: Callable[[str], None] = lambda evidence: None,
        on_history: Callable[[], None] = lambda: None,
        on_stored: Callable[[ArchiveProgress], None] = lambda progress: None,
    ) -> None:
        """Raises ConfigError if the password cannot be read."""
        self.location = StoreLocation.of(settings)
        self._retention = Retention.of(settings)
        self._clocks = clocks
        self._node, self._limits = node, outbox
        self._on_problem, self._on_history, self._on_stored = on_problem, on_history, on_stored
        self._backlog = Backlog()
        self._history = HistoryBacklog()
        self._availability: dict[str, SourceAvailability] = {}
        self._whole_rows = WholeRowSchedule()
        self._incarnation_requests: SimpleQueue[tuple[str, Future[int]]] = SimpleQueue()
        self._cuts: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._outbox_lost = 0
        self.counts = StoreCounters()
        self._recovery = Recovery(self.location, clocks, on_damage)
        self._session: StoreSession | None = None
        self._round_began_ns: int | None = None
        self._has_problem = False
        self._wake = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Start the store's thread, which migrates and opens the store. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Store the waiting rows and end the thread. Blocks, at most STOP_TIMEOUT_S; rows that remain are lost and logged."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(STOP_TIMEOUT_S)
        if lost := len(self._backlog):
            log.warning("%s: the daemon stopped before %d rows were stored; they are lost", self.location, lost)

    def put(self, observation: Observation) -> None:
        """Put a reading; of readings without a sample only the changes of the reason are stored. Called by one thread."""
        if observation.reading is None:
            return
        now_ns, real_minus_boot = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        source, availability = observation.reading.source, availability_of(observation.reading)
        if availability is not None and self._availability.get(source) != availability:
            self._availability[source] = availability
            self._backlog.put(source_event_entry(source, availability, real_minus_boot, now_ns))
        for entry in self._entries(observation, real_minus_boot, now_ns):
            self._backlog.put(entry)

    def _entries(self, observation: Observation, real_minus_boot: int, now_ns: int) -> Iterable[Entry]:
        match observation.reading:
            case ClockSample() as sample:
                return [ClockEntry(sample, observation.bound, now_ns)]
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
            case NoSample() | None:
                return []

    def _is_whole(self, sample: GrandmasterSample) -> bool:
        if self.behind_s > MAY_LOSE_AFTER_S:
            self._whole_rows.reset()
        return self._whole_rows.is_due(sample)

    def put_finding(self, finding: FindingMessage) -> None:
        """Put a finding; it replaces the stored row with the same id, subject and since."""
        self._backlog.put(finding_entry(finding, self._clocks.boottime_ns()))

    def put_rollups(self, rollups: Iterable[Rollup]) -> None:
        """Put roll-ups that this hub made of its fleet and jobs. They stay here: no other hub gets them."""
        now_ns = self._clocks.boottime_ns()
        for entry in (entry for made in rollups for entry in rollup_entries(self._node, made, now_ns)):
            self._backlog.put(entry)

    def put_note(self, note: OperatorNote) -> None:
        self._backlog.put(note_entry(note, self._clocks.boottime_ns()))

    def put_alarm_event(self, message: AlarmEventMessage) -> None:
        self._backlog.put(alarm_event_entry(message, self._clocks.boottime_ns()))

    def put_event(self, event: CloudEvent, realtime_ns: int) -> None:
        """Put an event; it gets its sequence number, and joins the outbox, when it is stored."""
        self._backlog.put(EventEntry(event, realtime_ns, self._clocks.boottime_ns()))

    def put_history(self, batch: HistoryBatch, size: int) -> bool:
        """
        Put another node's batch, of `size` bytes as received. False if too much waits already: the batch is dropped, and the node
        repeats it, since it is not confirmed.
        """
        return self._history.put(batch, size)

    def outbox_page(self, after: int, limit: int) -> OutboxPage:
        """The lowest rows of the outbox above `after`. Blocks; raises StoreError."""
        with reading(self.location) as connection:
            return outbox.page(connection, after, limit)

    def cut_outbox(self, stream: int, up_to: int) -> None:
        """Delete soon the outbox's rows up to `up_to`, which every hub has stored; ignored if its stream is another one."""
        self._cuts.put((stream, up_to))

    def next_incarnation(self, node: str) -> int:
        """
        A number above every earlier one of this node, on the disk when it is returned. Blocks; raises StoreError.

        It is CLOCK_REALTIME in seconds or the last number plus one, whichever is larger, so it grows even if a clock steps or the
        file is lost.
        """
        incarnation: Future[int] = Future()
        self._incarnation_requests.put((node, incarnation))
        self._wake.set()
        try:
            return incarnation.result(INCARNATION_TIMEOUT_S)
        except TimeoutError as error:
            raise StoreError(f"{self.location}: the store did not answer within {INCARNATION_TIMEOUT_S:g} s") from error

    @property
    def dropped(self) -> int:
        """Rows dropped since the start, because the store fell behind or a value does not fit its column."""
        return self._backlog.dropped

    @property
    def stored(self) -> int:
        return self._backlog.stored

    @property
    def waiting(self) -> int:
        """Rows put and not yet committed."""
        return len(self._backlog)

    @property
    def outbox_lost(self) -> int:
        """Outbox rows dropped since the start, because they were too old or too many; not every hub had stored them."""
        return self._outbox_lost

    @property
    def history_rejected(self) -> int:
        """Batches of other nodes dropped since the start, because too many waited or they were malformed."""
        return self._history.rejected

    @property
    def behind_s(self) -> float:
        """
        The age of the oldest row that is not stored or the duration of the thread's present round, whichever is larger, in seconds;
        0 if there is neither. It grows while a server neither answers nor fails.
        """
        began_ns = [each for each in (self._backlog.oldest_ns(), self._round_began_ns) if each is not None]
        return (self._clocks.boottime_ns() - min(began_ns)) / NS_PER_S if began_ns else 0.0

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.is_set()
            self._round_began_ns = self._clocks.boottime_ns()
            pause_s = self._round()
            self._round_began_ns = None
            self._wake.wait(0 if is_last else pause_s)
            self._wake.clear()
        self._recovery.stop()
        self._close()
        self._recovery.close()

    def _round(self) -> float:
        """Do all pending work; returns the pause in seconds until the next round."""
        try:
            session = self._ready_session()
            began_s = monotonic()
            self._assign_incarnations()
            self._write(session)
            self._archive(session)
            self._maintain(session)
        except StoreError as error:
            self._failed(error)
            return REOPEN_S if isinstance(error, MigrationFailed) else RETRY_S
        except SQLAlchemyError as error:
            if self.location.path is not None and is_damage(getattr(error, "orig", None)):
                return self._recovered(store_error(self.location, error))
            self._failed(store_error(self.location, error))
            if isinstance(error, ProgrammingError):  # for example, the tables were dropped
                self._close()
            return RETRY_S
        except Exception as error:  # the end of this thread would show nowhere
            if not self._has_problem:
                log.error("%s: an unexpected error", self.location, exc_info=error)
            self._failed(StoreError(f"{self.location}: unexpected {type(error).__name__}: {error}"))
            self._close()
            return REOPEN_S
        self._succeeded()
        return 0 if len(self._history) else pause_after(monotonic() - began_s)

    def _recovered(self, error: StoreError) -> float:
        """SQLite reported damage: set the file aside at once. Returns the pause until the next round, which opens a new file."""
        try:
            self._recovery.set_aside(str(error).removeprefix(f"{self.location}: "), self._session)
            self._close()
        except (StoreError, SQLAlchemyError) as failure:
            self._failed(failure if isinstance(failure, StoreError) else store_error(self.location, failure))
            self._close()
            return REOPEN_S
        return 0

    def _failed(self, error: StoreError) -> None:
        for _, incarnation in _drained(self._incarnation_requests):
            incarnation.set_exception(error)
        if self._session is not None:
            self._session.close()
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(str(error))

    def _succeeded(self) -> None:
        if self._has_problem:
            self._has_problem = False
            self._on_problem(None)

    def _ready_session(self) -> StoreSession:
        if self._session is not None and (not self._session.is_current or self._recovery.has_request):
            self._close()
        if self._session is not None and (damage := self._recovery.damage(self._session)):
            self._recovery.set_aside(damage, self._session)
            self._close()
        if self._session is None:
            self._recovery.prepare()
            self._migrate()
            self._recovery.begin()
            self._session = StoreSession(
                self.location, self._node, self._clocks, self._retention, self._limits, self.counts
            )
        return self._session

    def _migrate(self) -> None:
        try:
            if not begin_writing(self.location):
                migrate(self.location)
        except StoreDamaged as error:
            self._recovery.set_aside(str(error).removeprefix(f"{self.location}: "), None)
            migrate(self.location)

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _assign_incarnations(self) -> None:
        for node, incarnation in _drained(self._incarnation_requests):
            try:
                incarnation.set_result(store_session.next_incarnation(self.location, node, self._clocks.realtime_ns()))
            except SQLAlchemyError as error:
                incarnation.set_exception(store_error(self.location, error))
                raise

    def _write(self, session: StoreSession) -> None:
        limit = BATCH_ROWS
        while (batch := self._backlog.take(limit)).entries or batch.gaps:
            try:
                added = session.write(batch)
            except _UNSTORABLE as error:
                limit = self._isolate(batch, error)
                continue
            except Exception:
                self._backlog.requeue(batch)
                raise
            if not session.is_current:  # the file was removed since this round began: the next one writes to a new file
                self._backlog.requeue(batch)
                return
            self._backlog.mark_stored(batch)
            limit = min(2 * limit, BATCH_ROWS)
            if added:
                self._on_history()

    def _isolate(self, batch: RowBatch, error: Exception) -> int:
        """Halve a batch with an entry that cannot be stored; a single such entry is discarded. Returns the next batch's row limit."""
        if len(batch.entries) > 1:
            self._backlog.requeue(batch)
            return max(1, sum(map(len, batch.entries)) // 2)
        self._backlog.discard(batch)
        for entry in batch.entries:
            log.warning("%s: dropped %d rows of %r", store_error(self.location, error), len(entry), entry.source)
        return 1

    def _archive(self, session: StoreSession) -> None:
        """Store other nodes' histories, for WORK_S at most. A batch that fails is not requeued, since its node repeats it."""
        until_s = monotonic() + WORK_S
        while monotonic() < until_s and (batches := self._history.take(ARCHIVE_ROWS)):
            self._archive_batches(session, batches)
            self._write(session)

    def _archive_batches(self, session: StoreSession, batches: list[HistoryBatch]) -> None:
        try:
            known, rejected = session.archive(batches)
        except _UNSTORABLE as error:
            if len(batches) > 1:
                for batch in batches:
                    self._archive_batches(session, [batch])
                return
            known, rejected = [], 1
            log.warning("%s: dropped a batch of node %s", store_error(self.location, error), batches[0].node)
        self._history.count_rejected(rejected)
        for progress in known:
            self._on_stored(progress)

    def _maintain(self, session: StoreSession) -> None:
        for stream, up_to in _drained(self._cuts):
            session.cut_outbox(stream, up_to)
        self._recovery.step(session)
        self._write_late_rows(session)
        if not self._recovery.is_salvaging and session.roll_up():
            self._on_history()
        self._write_late_rows(session)
        self._outbox_lost += session.delete_old()

    def _write_late_rows(self, session: StoreSession) -> None:
        """Between two pieces of other work, of up to WORK_S each: rows that were put half a batch ago do not wait for both."""
        oldest_ns = self._backlog.oldest_ns()
        if oldest_ns is not None and self._clocks.boottime_ns() - oldest_ns >= BATCH_S * NS_PER_S / 2:
            self._write(session)


def pause_after(round_s: float) -> float:
    """
    In seconds, after a round that took `round_s` without opening the store: the next one begins BATCH_S after it did, or
    after a short rest where it took longer.
    """
    return max(BATCH_S / 10, BATCH_S - round_s)


def begin_writing(location: StoreLocation) -> bool:
    """
    Begin a transaction and end it: a disk that is read-only, full or away, and a server that does not answer, fail here and cost no
    migration. Returns whether the store has this version's tables, so that it needs none. Blocks, some milliseconds. Raises
    StoreError, StoreDamaged.
    """
    try:
        if location.path is not None:
            prepare_file(location.path)
        engine = writer_engine(location)
        try:
            with engine.begin() as connection:
                return has_current_tables(connection)
        finally:
            engine.dispose()
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        failure = store_error(location, error)
        raise StoreDamaged(str(failure)) if is_damage(getattr(error, "orig", None) or error) else failure from error


#: What the database drivers raise for a number beyond 64 bits or a text that is not valid Unicode.
_UNSTORABLE = (OverflowError, UnicodeError, DataError)


def _drained(queue: SimpleQueue[T]) -> Iterator[T]:
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
