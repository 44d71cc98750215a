"""The store's one writer: a thread of its own that takes what the daemon hands over and commits it in batches."""

from __future__ import annotations

import logging
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
from timesyncd.feed import Observation
from timesyncd.messages.fleet import CloudEvent, HistoryBatch
from timesyncd.messages.node import AlarmEventMessage, FindingMessage
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
from timesyncd.store.archive import Progress
from timesyncd.store.backlog import Backlog, Batch, Inbox
from timesyncd.store.engine import Place, migrate, reading, store_error
from timesyncd.store.outbox import Page
from timesyncd.store.rollups import Keeps
from timesyncd.store.rows import (
    ClockEntry,
    Entry,
    EventEntry,
    SourceState,
    WholeRows,
    alarm_event_entry,
    event_entry,
    finding_entry,
    grandmaster_entries,
    kernel_entry,
    phc_entry,
    series_entries,
    state_of,
    utc_entry,
)
from timesyncd.store.session import WORK_S, Counts, OutboxLimits, Session

T = TypeVar("T")

log = logging.getLogger(__name__)

#: What a kill -9 may lose, less the commit itself.
BATCH_S = 0.9
BATCH_ROWS = 5_000
#: Of other nodes' histories: between two such parts the node's own rows have their turn.
ARCHIVE_ROWS = 500
RETRY_S = 2.0
#: Making the file ready starts a process, so it is tried again less often.
REOPEN_S = 30.0
#: A store further behind than this may come to drop rows, so none shall lean on an earlier one.
MAY_LOSE_AFTER_S = 5.0
ANSWER_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0


class Store:
    """
    What is put never waits and never fails. What cannot be written now (a full disk, a lock, a server that is away) is tried again, and
    `on_problem` is told once, and once with None when it is over.

    Without `outbox` nothing waits for hubs. `on_history` is told when more waits for them, `on_stored` how far another
    node's history is stored; both, and `on_problem`, are called in the store's own thread.
    """

    def __init__(
        self,
        settings: StoreSettings,
        clocks: Clocks,
        on_problem: Callable[[str | None], None],
        *,
        node: str = "localhost",
        outbox: OutboxLimits | None = None,
        on_history: Callable[[], None] = lambda: None,
        on_stored: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Raises ConfigError when the password cannot be read."""
        self.place = Place.of(settings)
        self._keeps = Keeps.of(settings)
        self._clocks = clocks
        self._node, self._limits = node, outbox
        self._on_problem, self._on_history, self._on_stored = on_problem, on_history, on_stored
        self._backlog = Backlog()
        self._inbox = Inbox()
        self._states: dict[str, SourceState] = {}
        self._whole = WholeRows()
        self._questions: SimpleQueue[tuple[str, Future[int]]] = SimpleQueue()
        self._cuts: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._outbox_lost = 0
        self.counts = Counts()
        self._session: Session | None = None
        self._round_began_ns: int | None = None
        self._has_problem = False
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
            log.warning("%s: %d rows could not be stored before the end", self.place, lost)

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

    def put_event(self, event: CloudEvent, realtime_ns: int) -> None:
        """It is numbered, and waits for the hubs, when it is stored."""
        self._backlog.put(EventEntry(event, realtime_ns, self._clocks.boottime_ns()))

    def put_history(self, batch: HistoryBatch, size: int) -> bool:
        """Of another node, `size` bytes as it came. False: too much waits already; it is not confirmed, so it comes again."""
        return self._inbox.put(batch, size)

    def outbox_page(self, after: int, limit: int) -> Page:
        """The lowest rows above `after` that wait for the hubs. Blocks; raises StoreError."""
        with reading(self.place) as connection:
            return outbox.page(connection, after, limit)

    def cut_outbox(self, stream: int, up_to: int) -> None:
        """Forget, soon, what the hubs have stored; of another stream nothing."""
        self._cuts.put((stream, up_to))

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
            raise StoreError(f"{self.place}: no answer within {ANSWER_LIMIT_S:g} s") from error

    @property
    def dropped(self) -> int:
        """Rows lost since the start because the store fell behind, or because no column holds what is in them."""
        return self._backlog.dropped

    @property
    def stored(self) -> int:
        return self._backlog.stored

    @property
    def waiting(self) -> int:
        """Rows taken and not yet committed."""
        return len(self._backlog)

    @property
    def outbox_lost(self) -> int:
        """Rows since the start that no hub had stored when they had waited too long, or were too many."""
        return self._outbox_lost

    @property
    def history_refused(self) -> int:
        """Batches of other nodes since the start that were too many, or that no node would say."""
        return self._inbox.refused

    @property
    def behind_s(self) -> float:
        """
        The age of the oldest row that is not stored, or for how long the store's thread has been at what it does now, whichever is
        more; 0 when there is neither. It grows while a server neither answers nor fails.
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
        self._close()

    def _round(self) -> float:
        """Do what there is to do; returns after how many seconds to look again."""
        try:
            session = self._ready_session()
            self._answer()
            self._write(session)
            self._archive(session)
            self._tend(session)
        except StoreError as error:
            self._failed(error)
            return REOPEN_S
        except SQLAlchemyError as error:
            self._failed(store_error(self.place, error))
            if isinstance(error, ProgrammingError):  # as where somebody has removed the tables
                self._close()
            return RETRY_S
        self._succeeded()
        return 0 if len(self._inbox) else BATCH_S

    def _failed(self, error: StoreError) -> None:
        for _, answer in _drained(self._questions):
            answer.set_exception(error)
        if self._session is not None:
            self._session.close()
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(str(error))

    def _succeeded(self) -> None:
        if self._has_problem:
            self._has_problem = False
            self._on_problem(None)

    def _ready_session(self) -> Session:
        if self._session is None or not self._session.is_current:
            self._close()
            migrate(self.place)
            self._session = Session(self.place, self._node, self._clocks, self._keeps, self._limits, self.counts)
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _answer(self) -> None:
        for node, answer in _drained(self._questions):
            try:
                answer.set_result(store_session.next_incarnation(self.place, node, self._clocks.realtime_ns()))
            except SQLAlchemyError as error:
                answer.set_exception(store_error(self.place, error))
                raise

    def _write(self, session: Session) -> None:
        limit = BATCH_ROWS
        while (batch := self._backlog.take(limit)).entries or batch.gaps:
            try:
                added = session.write(batch)
            except _UNSTORABLE as error:
                limit = self._alone(batch, error)
                continue
            except (SQLAlchemyError, StoreError):
                self._backlog.give_back(batch)
                raise
            self._backlog.has_stored(batch)
            limit = min(2 * limit, BATCH_ROWS)
            if added:
                self._on_history()

    def _alone(self, batch: Batch, error: Exception) -> int:
        """What cannot be stored shall not take others with it: how many rows are to be tried next. One by itself is lost."""
        if len(batch.entries) > 1:
            self._backlog.give_back(batch)
            return max(1, sum(map(len, batch.entries)) // 2)
        self._backlog.lose(batch)
        for entry in batch.entries:
            log.warning("%s: %d rows of %r are lost", store_error(self.place, error), len(entry), entry.source)
        return 1

    def _archive(self, session: Session) -> None:
        """For WORK_S at most. What is not confirmed comes again, so nothing is taken back."""
        until_s = monotonic() + WORK_S
        while monotonic() < until_s and (batches := self._inbox.take(ARCHIVE_ROWS)):
            self._keep(session, batches)
            self._write(session)

    def _keep(self, session: Session, batches: list[HistoryBatch]) -> None:
        try:
            known, refused = session.archive(batches)
        except _UNSTORABLE as error:
            if len(batches) > 1:
                for batch in batches:
                    self._keep(session, [batch])
                return
            known, refused = [], 1
            log.warning("%s: a batch of %s is refused", store_error(self.place, error), batches[0].node)
        self._inbox.refuse(refused)
        for progress in known:
            self._on_stored(progress)

    def _tend(self, session: Session) -> None:
        for stream, up_to in _drained(self._cuts):
            session.cut_outbox(stream, up_to)
        if session.roll_up():
            self._on_history()
        self._outbox_lost += session.retain()


#: What the drivers say to a number beyond 64 bits, or a text that is no Unicode.
_UNSTORABLE = (OverflowError, UnicodeError, DataError)


def _drained(queue: SimpleQueue[T]) -> Iterator[T]:
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
