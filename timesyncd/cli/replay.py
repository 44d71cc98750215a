"""Compute the bound at each row of a recorded trace or log, or at each stored sample of a source, as CSV."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_store_argument, load_config
from timesyncd.cli._log_output import print_error
from timesyncd.cli._parser import FileName
from timesyncd.cli._replay_output import Output
from timesyncd.errors import ConfigError, TraceError
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.reading import LogFormat, peek_kind, read_log, survey
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import Replay, StoredReplay, read_trace, seconds_text
from timesyncd.sample import ClockSample
from timesyncd.units import span_ns

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation

_STDIN = 0

#: Bytes of a trace, and rows of a store, between two updates of the progress bar.
_CHUNK, _BATCH = 1 << 16, 1_000

#: A longer line is cut and reported as an error: otherwise a binary file could be one line.
_LONGEST_LINE = 1 << 16

#: What has a longer line, as a device or a file with a hole, is no trace and no log.
_LONGEST_CUT_LINE = 1 << 24

_NO_LOG = "no line is one of a log of ptp4l, phc2sys or chronyd either (of journalctl, give -o short or -o json)"

#: Receives the amount that is done: bytes or rows.
OnProgress = Callable[[int], None]


EXAMPLES = (
    "timesyncd replay trace.csv",
    "journalctl -u ptp4l | timesyncd replay --from ptp4l-log",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "trace", nargs="?", type=FileName, metavar="FILE", help="a trace or a log (default, or -: standard input)"
    )
    parser.add_argument(
        "--from", dest="kind", choices=[kind.value for kind in LogFormat], help="what FILE holds (default: detected)"
    )
    parser.add_argument("--instance", metavar="NAME", help="of a log: only this pid, tag, host, clock or server")
    parser.add_argument("--port", metavar="PORT", help="of a log of ptp4l: only this port, by number or interface")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line; a log's summary is the last"
    )
    parser.add_argument(
        "--source", metavar="NAME", help="replay the stored samples of this [[source]] instead of a file"
    )
    parser.add_argument(
        "--since",
        type=span_ns,
        metavar="SPAN",
        help="begin of the stored samples, as an age: 90s, 15m, 1h, 2d (default: all)",
    )
    add_store_argument(parser)


def run(args: Namespace) -> int:
    """0; 2 if the trace cannot be read further, after the rows before that."""
    if args.source is not None and args.trace is not None:
        raise ConfigError("replay: FILE and --source exclude each other: give one of them")
    if args.source is not None and (args.kind or args.instance or args.port):
        raise ConfigError("replay: --from, --instance and --port are for FILE, not for --source")
    if args.source is None and (args.since is not None or args.store is not None):
        raise ConfigError("replay: --since and --store need --source NAME")
    return _replay_file(args) if args.source is None else _replay_stored(args)


def _replay_file(args: Namespace) -> int:
    name = "standard input" if args.trace in (None, "-") else str(args.trace)
    output = Output(args.json)
    try:
        with _opened(args.trace, name) as stream, _progress(_size(stream)) as on_progress:
            source = _Lines(stream, name, on_progress, output.flush)
            kind, lines = _kind(args, source)
            if kind in (None, LogFormat.CSV):
                _replay_csv(lines, name, output, is_recognized=kind is not None)
            else:
                _replay_log(lines, name, kind, args, output)
        output.flush()
    except TraceError as error:
        output.flush()
        print_error(f"timesyncd: {error}")
        return 2
    return 0


def _replay_csv(lines: Iterable[str], name: str, output: Output, is_recognized: bool) -> None:
    try:
        rows = read_trace(lines, name)
    except TraceError as error:
        raise error if is_recognized else TraceError(f"{error}; {_NO_LOG}") from error
    output.begin(LogFormat.CSV)
    put, take = output.put, Replay().accept
    for t_s, row in rows:
        put(t_s, take(row))


def _replay_log(lines: Iterable[str], name: str, kind: LogFormat, args: Namespace, output: Output) -> None:
    report, rows = read_log(lines, name, kind, args.instance, args.port)
    output.begin(kind)
    replay = Replay()
    for row in rows:
        if isinstance(row, BoundRow):
            output.put_bound(row)
        else:
            output.put(row[0], replay.accept(row[1]))
    output.summarize(name, kind, report)


def _kind(args: Namespace, source: _Lines) -> tuple[LogFormat | None, Iterator[str]]:
    """
    What the file holds (None: no line shows it), and its lines.

    A log in a regular file is read twice, so that several instances in it are found before the first row is written.
    Raises TraceError and ConfigError.
    """
    kind, lines = LogFormat(args.kind) if args.kind else None, iter(source)
    if source.is_file and kind is not LogFormat.CSV:
        kind = survey(lines, source.name, kind, args.instance)
        lines = source.again()
    elif kind is None:
        kind, lines = peek_kind(lines)
    if kind is None:
        return None, lines
    if kind is not LogFormat.PTP4L and args.port is not None:
        raise ConfigError(f"replay: --port is for a log of ptp4l, and {source.name} is {kind}")
    if kind in (LogFormat.CSV, LogFormat.CHRONY_TRACKING) and args.instance is not None:
        raise ConfigError(f"replay: --instance is for a log of several programs or servers; {source.name} is {kind}")
    return kind, lines


def _opened(trace: str | None, name: str) -> BufferedReader:
    """The trace as a stream of bytes. Raises TraceError."""
    try:
        return open(_STDIN, "rb", closefd=False) if trace in (None, "-") else open(name, "rb")
    except OSError as error:
        raise TraceError(f"{name}: {error.strerror}") from error


def _size(stream: BufferedReader) -> int | None:
    """The size in bytes; None: a pipe or a terminal, whose end is unknown."""
    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class _Lines:
    """
    The lines of a stream, each with its line feed; the last one has none where the stream ends without.

    `flush` is called before each read: so a single row from a pipe gets its result at once, and rows of a file are
    written in blocks.
    """

    def __init__(self, stream: BufferedReader, name: str, on_progress: OnProgress, flush: Callable[[], None]) -> None:
        self.name, self.is_file = name, _size(stream) is not None
        self._stream, self._on_progress, self._flush = stream, on_progress, flush

    def again(self) -> Iterator[str]:
        """From the begin of a regular file."""
        self._stream.seek(0)
        return iter(self)

    def __iter__(self) -> Iterator[str]:
        """Raises TraceError."""
        rest, done, cut = b"", 0, 0
        while True:
            self._flush()
            self._on_progress(done)
            try:
                chunk = self._stream.read1(_CHUNK)
            except OSError as error:
                raise TraceError(f"{self.name}: {error.strerror}") from error
            done += len(chunk)
            whole, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                cut = 0
                yield from [f"{line}\n" for line in whole.decode(errors="replace").split("\n")]
            if rest and (not chunk or len(rest) > _LONGEST_LINE):
                yield rest.decode(errors="replace")
                cut += len(rest)
                rest = b""
            if cut > _LONGEST_CUT_LINE:
                raise TraceError(
                    f"{self.name}: a line has more than {_LONGEST_CUT_LINE >> 20} MiB: it is no trace and no log"
                )
            if not chunk:
                return


def _replay_stored(args: Namespace) -> int:
    from timesyncd.store.history import clock_readings

    place, settings = _store(args)
    readings = clock_readings(place, args.source, args.since)
    replay, output, of_phc = StoredReplay(args.source, settings), Output(args.json), Counter[str]()
    samples = 0
    output.begin(LogFormat.CSV)
    with _progress(None) as on_progress:
        for done, (unix_ns, reading) in enumerate(readings, start=1):
            output.put(seconds_text(unix_ns), replay.accept(reading))
            if isinstance(reading, ClockSample):
                samples += 1
                of_phc.update([reading.clock] if reading.clock != "realtime" and reading.phc is None else [])
            if done % _BATCH == 0:
                output.flush()
                on_progress(done)
    output.flush()
    if of_phc:
        print(_phc_note(args.source, of_phc, samples), file=sys.stderr)
    return 0


def _phc_note(source: str, of_phc: Counter[str], samples: int) -> str:
    """Which rows bound a PHC: `of_phc` counts the samples that lack the reading of it by which a Sync is carried over."""
    clocks, without = ", ".join(sorted(of_phc)), of_phc.total()
    if without == samples:
        return f"{source} measures {clocks}: the bounds are those of that clock, not of the system clock"
    counts = f"in {without} of {samples} samples {source} did not read the PHC"
    return f"{counts}: these rows bound {clocks}, and not the system clock"


def _store(args: Namespace) -> tuple[StoreLocation, EnsembleSettings]:
    """The store and the settings of the source; the default settings with --store. Raises ConfigError."""
    from timesyncd.cli._common import store_place

    place = store_place(args, "so there is nothing to replay")
    if args.store is not None:
        return place, EnsembleSettings()
    bounds = [source.bounds.ensemble_settings() for source in load_config(args).source if source.name == args.source]
    return place, bounds[0] if bounds else EnsembleSettings()


@contextmanager
def _progress(total: int | None) -> Iterator[OnProgress]:
    """A progress bar, if stderr is a terminal and stdout is not."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, transient=True) as progress:
        task = progress.add_task("replay", total=total)
        yield lambda done: progress.update(task, completed=done)
