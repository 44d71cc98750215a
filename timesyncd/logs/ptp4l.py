"""
From the log of ptp4l to the rows of a trace: one for each Sync, and one for each event that the model must know. Pure.

The clock follows one port at a time, the one that is SLAVE or UNCALIBRATED; only that port's changes of state count. A
line that may hide a step (cut, dropped by the logging service, or missing between two states) makes all earlier samples
invalid.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from timesyncd.errors import TraceError
from timesyncd.logs.entries import Entry, LogTime, concerns
from timesyncd.logs.instances import Instance, Instances
from timesyncd.logs.lines import PTP4L, Lost
from timesyncd.logs.messages import (
    BestMaster,
    ClockCheck,
    ClockSelected,
    Measurement,
    Message,
    OffsetSummary,
    Transition,
    Unreadable,
)
from timesyncd.logs.report import LogReport
from timesyncd.model.replay import TraceEvent, TraceRow
from timesyncd.sample import PortState
from timesyncd.units import median

_FOLLOWING = (PortState.SLAVE, PortState.UNCALIBRATED)

#: With syslog and `-m` both in the journal, each message comes twice within a few lines.
_RECENT = 16

#: A Sync is no older than one Sync interval when ptp4l logs it, or the next one would have replaced it. The interval is
#: the median of so many recent ones.
_GAPS, _LEAST_GAPS = 15, 5

#: Two clocks without pid or tag are distinguished when frequency and delay alternate over so many Syncs,
_ALTERNATING = 16
#: by so many times more than they change from one Sync to the next but one.
_ALTERNATING_FACTOR = 10

SUMMARY_ERROR = (
    'a summary ("rms ... max ...") of several Syncs: no single Sync can be replayed from it;'
    " set summary_interval in ptp4l.conf no larger than logSyncInterval"
)


@dataclass(slots=True)
class _Ports:
    """The states of the ports of one instance, as far as its log shows them."""

    states: dict[int, PortState] = field(default_factory=dict)
    interfaces: dict[int, str] = field(default_factory=dict)
    followed: int | None = None
    lost: bool = False
    """The followed port stopped following, and no other began."""

    @property
    def following(self) -> list[int]:
        return [port for port, state in self.states.items() if state in _FOLLOWING]

    def describe(self, port: int) -> str:
        interface = self.interfaces.get(port)
        return f"{port} ({interface})" if interface else str(port)


class _Instance:
    """One start of ptp4l: what its log said so far."""

    def __init__(self) -> None:
        self.ports = _Ports()
        self.pending: TraceEvent | None = None
        self.last: LogTime | None = None
        self.last_sync_ns: int | None = None
        self.gaps_ns: deque[int] = deque(maxlen=_GAPS)
        self.freq_ppb: int | None = None
        self.master: str | None = None
        self.parent = 0
        self.syncs = 0
        self._recent: deque[tuple[str, str]] = deque(maxlen=_RECENT)
        self._newest: deque[tuple[int, int]] = deque(maxlen=3)
        self._alternations = 0

    def is_repeated(self, t_s: str, text: str) -> bool:
        """Whether the same message came before, by another way."""
        if (t_s, text) in self._recent:
            return True
        self._recent.append((t_s, text))
        return False

    def add_sync(self, time_ns: int) -> int | None:
        """Count a Sync that was logged now, and return a moment before it arrived; None: not known better."""
        last_ns, self.last_sync_ns, self.syncs = self.last_sync_ns, time_ns, self.syncs + 1
        if last_ns is None:
            return None
        gap_ns = median(self.gaps_ns) if len(self.gaps_ns) >= _LEAST_GAPS else None
        self.gaps_ns.append(time_ns - last_ns)
        return None if gap_ns is None else max(last_ns, time_ns - gap_ns)

    def alternates(self, freq_ppb: int, delay_ns: int) -> bool:
        """Whether two clocks take turns in these lines."""
        self._newest.append((freq_ppb, delay_ns))
        if len(self._newest) < 3:
            return False
        first, second, third = self._newest
        alternating = all(
            abs(second[index] - first[index]) > _ALTERNATING_FACTOR * (abs(third[index] - first[index]) + 1)
            for index in (0, 1)
        )
        self._alternations = self._alternations + 1 if alternating else 0
        return self._alternations >= _ALTERNATING


class Ptp4lLog:
    """Reads the messages of ptp4l. `port` is the number or the interface of the only port to replay; None: any."""

    def __init__(self, name: str, instances: Instances, report: LogReport, port: str | None = None) -> None:
        self._name, self._instances, self._report, self._port = name, instances, report, port
        self._trackers: defaultdict[Instance, _Instance] = defaultdict(_Instance)
        self._current: Instance | None = None

    def rows(self, entries: Iterable[Entry]) -> Iterator[tuple[str, TraceRow]]:
        """Each row with its time as the log shows it. Raises TraceError, also during iteration."""
        for entry in entries:
            row = self._row(entry)
            if row is not None and entry.time is not None:
                yield entry.time.t_s, row
        if self._report.measurements == 0:
            raise TraceError(self._nothing())

    def _row(self, entry: Entry) -> TraceRow | None:
        report, instance, message = self._report, entry.instance, entry.message
        if isinstance(message, Lost):
            report.lost += 1
            report.lost_lines += message.lines or 0
            self._interrupt()
            return None
        if not concerns(entry, PTP4L, self._instances):
            return None
        report.messages += 1
        if message is not None and entry.time is None and instance is not None:
            self._without_time(message, entry.line)
        elif isinstance(message, Unreadable):
            self._unreadable(message.may_hide_step, entry.line)
        elif message is None or instance is None:
            report.other_messages += 1
        elif entry.time is not None:
            return self._dated(message, instance, entry, entry.time)
        return None

    def _without_time(self, message: Message, line: int) -> None:
        """One line among others has lost its stamp; where none has one, nothing can be replayed."""
        if self._current is None:
            raise TraceError(f"{self._name}:{line}: no time: the line has neither ptp4l's [seconds] nor a date")
        self._unreadable(not isinstance(message, Measurement) or message.servo == 1, line)

    def _unreadable(self, may_hide_step: bool, line: int) -> None:
        self._report.add_unreadable(line)
        if may_hide_step:
            self._interrupt()

    def _dated(self, message: Message, instance: Instance, entry: Entry, time: LogTime) -> TraceRow | None:
        report = self._report
        if isinstance(message, (Measurement, OffsetSummary)) and not self._select(instance, entry.line, time):
            report.other_instances += 1
            return None
        tracker = self._trackers[instance]
        if tracker.is_repeated(time.t_s, entry.text):
            report.duplicates += 1
            return None
        self._advance(tracker, entry.line, time)
        row = self._of_message(tracker, message, entry.line, time)
        return None if row is None or instance != self._current else self._with_event(tracker, row)

    def _select(self, instance: Instance, line: int, time: LogTime) -> bool:
        """Whether the measurement is one of the instance to replay, which it may begin."""
        self._instances.add(instance, line, time.time_ns)
        if instance not in self._instances:
            return False
        if instance != self._current:
            self._instances.check(line)
            if self._current is not None:
                self._report.restarts += 1
                self._trackers[instance].pending = TraceEvent.RESTARTED
            self._current = instance
        return True

    def _interrupt(self) -> None:
        for tracker in self._trackers.values():
            tracker.pending = tracker.pending or TraceEvent.RESTARTED

    def _with_event(self, tracker: _Instance, row: TraceRow) -> TraceRow:
        event, tracker.pending = tracker.pending, None
        if row.event is not None or event is None:
            return row
        return row._replace(event=event)

    def _of_message(self, tracker: _Instance, message: Message, line: int, time: LogTime) -> TraceRow | None:
        match message:
            case Measurement():
                return self._sync(tracker, message, line, time)
            case OffsetSummary():
                raise TraceError(f"{self._name}:{line}: {SUMMARY_ERROR}")
            case Transition():
                return self._transition(tracker, message, line, time)
            case BestMaster():
                return self._best_master(tracker, message, time)
            case ClockSelected():
                return self._clock_selected(tracker, message, time)
            case ClockCheck():
                self._report.foreign_steering += 1
                event = TraceEvent.STEPPED if message.is_jump else TraceEvent.RESTARTED
                return TraceRow(time.time_ns, None, event=event)
        return None

    def _advance(self, tracker: _Instance, line: int, time: LogTime) -> None:
        """Check that time goes on, by the same clock. Raises TraceError."""
        last = tracker.last or time
        tracker.last = time
        if time.base != last.base:
            raise TraceError(
                f"{self._name}:{line}: the line is dated by another clock ({time.base}) than the one before"
                f" ({last.base}): give lines of one form"
            )
        if time.time_ns < last.time_ns:
            raise TraceError(
                f"{self._name}:{line}: time goes back from {last.t_s} s to {time.t_s} s: these are lines of two boots,"
                " hosts or instances; give one of them"
            )

    def _sync(self, tracker: _Instance, sync: Measurement, line: int, time: LogTime) -> TraceRow | None:
        if not self._is_followed(tracker, sync, line):
            self._report.other_ports += 1
            return None
        if sync.delay_ns is not None and tracker.alternates(sync.freq_ppb, sync.delay_ns):
            raise TraceError(
                f"{self._name}:{line}: two clocks take turns in these lines, which no pid or tag tells apart: record"
                " one instance, or set message_tag in ptp4l.conf"
            )
        report, last_ns = self._report, tracker.last_sync_ns
        report.add_measurement(time.t_s, 0 if last_ns is None else time.time_ns - last_ns, line)
        after_ns = tracker.add_sync(time.time_ns)
        if sync.servo == 1:
            report.steps += 1
            tracker.freq_ppb = None
            return TraceRow(time.time_ns, None, event=TraceEvent.STEPPED)
        tracker.freq_ppb = self._applied_ppb(sync, time)
        return TraceRow(
            time.time_ns,
            sync.offset_ns,
            sync.delay_ns,
            tracker.freq_ppb,
            PortState.UNCALIBRATED if sync.servo == 0 else PortState.SLAVE,
            is_sync=True,
            after_ns=after_ns,
            sync_interval_ns=min(tracker.gaps_ns) if after_ns is not None else None,
            parent=tracker.parent,
        )

    def _applied_ppb(self, sync: Measurement, time: LogTime) -> int | None:
        """
        The frequency that is applied from now on; None: not known.

        In s0 the servo applies none, and with `free_running` ptp4l prints an estimate. In s3 with `write_phase_mode`
        the hardware corrects the phase, and ptp4l prints 0.
        """
        if sync.servo == 0:
            self._report.unlocked += 1
            return None
        if time.base == "whole":
            self._report.add_note("times are whole seconds, so the frequency is not used and the bounds are wider")
            return None
        return None if sync.servo == 3 and sync.freq_ppb == 0 else sync.freq_ppb

    def _is_followed(self, tracker: _Instance, sync: Measurement, line: int) -> bool:
        """Whether this is a Sync of the port to replay. Raises TraceError where that is not clear."""
        ports = tracker.ports
        if sync.port is not None:
            ports.states.setdefault(sync.port, PortState.SLAVE)
        following = ports.following if sync.port is None else [sync.port]
        if self._port is not None:
            chosen = [port for port in ports.states if self._is_chosen(ports, port)]
            return bool(set(chosen) & set(following)) or (not chosen and not following and self._port.isdecimal())
        if len(ports.following) > 1:
            listed = ", ".join(ports.describe(port) for port in ports.following)
            raise TraceError(
                f"{self._name}:{line}: a Sync, and several ports follow a master: choose one with --port: {listed}"
            )
        if ports.lost:
            ports.lost = False
            self._contradicted(tracker)
        return True

    def _is_chosen(self, ports: _Ports, port: int) -> bool:
        return self._port is None or self._port in (str(port), ports.interfaces.get(port))

    def _contradicted(self, tracker: _Instance) -> None:
        """Lines are missing."""
        self._report.contradictions += 1
        tracker.pending = tracker.pending or TraceEvent.RESTARTED

    def _transition(self, tracker: _Instance, change: Transition, line: int, time: LogTime) -> TraceRow | None:
        if change.port == 0:
            return None
        ports = tracker.ports
        if change.old is PortState.INITIALIZING and tracker.syncs:
            self._restarted(tracker)
            ports = tracker.ports
        self._check_interface(ports, change, line)
        known = ports.states.get(change.port)
        is_first = known is None and tracker.syncs > 0 and change.old not in _FOLLOWING
        if is_first and self._port is not None and self._is_chosen(ports, change.port):
            raise TraceError(
                f"{self._name}:{line}: port {change.port} was {change.old.name}, so the Syncs above are not of it:"
                " choose another --port"
            )
        if known is not None and known is not change.old:
            self._contradicted(tracker)
        ports.states[change.port] = change.new
        if not self._is_chosen(ports, change.port) or {change.old, change.new}.isdisjoint(_FOLLOWING):
            return None
        if change.new in _FOLLOWING:
            ports.lost = False
            if ports.followed not in (None, change.port):
                self._parent_changed(tracker)
            ports.followed = change.port
        else:
            ports.lost = not ports.following
        state = change.new if ports.lost or change.new in _FOLLOWING else None
        return TraceRow(time.time_ns, None, freq_ppb=tracker.freq_ppb, port_state=state, parent=tracker.parent)

    def _check_interface(self, ports: _Ports, change: Transition, line: int) -> None:
        if change.interface is None:
            return
        known = ports.interfaces.setdefault(change.port, change.interface)
        if known != change.interface:
            raise TraceError(
                f"{self._name}:{line}: port {change.port} is {known} above and {change.interface} here: these are lines"
                " of several instances, which no pid or tag tells apart; record one of them"
            )

    def _restarted(self, tracker: _Instance) -> None:
        """ptp4l was started again under the same name: its ports start from their initial state."""
        self._report.restarts += 1
        tracker.ports, tracker.freq_ppb, tracker.syncs = _Ports(), None, 0
        tracker.pending = TraceEvent.RESTARTED

    def _best_master(self, tracker: _Instance, best: BestMaster, time: LogTime) -> TraceRow | None:
        """ptp4l 3 repeats the line for the same master; while there is none, the clock itself is selected."""
        if best.identity is None:
            return TraceRow(time.time_ns, None, freq_ppb=tracker.freq_ppb, parent=tracker.parent)
        if tracker.syncs and best.identity != tracker.master:
            self._parent_changed(tracker)
        tracker.master = best.identity
        return None

    def _parent_changed(self, tracker: _Instance) -> None:
        self._report.parent_changes += 1
        tracker.parent = self._report.parent_changes

    def _clock_selected(self, tracker: _Instance, selected: ClockSelected, time: LogTime) -> TraceRow | None:
        self._report.clock = selected.device
        if selected.is_switch:
            return TraceRow(time.time_ns, None, event=TraceEvent.RESTARTED)
        if tracker.syncs:
            self._restarted(tracker)
        return None

    def _nothing(self) -> str:
        """Why no Sync was found."""
        if self._port is not None and self._report.other_ports:
            trackers = self._trackers.values()
            listed = ", ".join(tracker.ports.describe(port) for tracker in trackers for port in tracker.ports.states)
            return f"{self._name}: no Sync of port {self._port!r}; its ports are {listed or 'not named'}"
        unreadable = self._report.first_unreadable
        if unreadable is not None:
            return f"{self._name}:{unreadable}: the line is cut or garbled, and no other line is a Sync"
        return f"{self._name}: no Sync: ptp4l logs them at level info (logging_level 6)"
