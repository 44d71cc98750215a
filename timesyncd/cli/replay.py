"""Compute the bound at each row of a recorded trace, or at each stored sample of a source, as CSV."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, load_config
from timesyncd.errors import ConfigError, TraceError
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.replay import REPLAYED_HEADER, Replay, StoredReplay, read_trace, replayed_line, seconds_text
from timesyncd.sample import ClockSample
from timesyncd.units import span_ns

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation

_STDIN = 0

#: Bytes of a trace, and rows of a store, between two updates of the progress bar.
_CHUNK, _BATCH = 1 << 16, 1_000

#: A longer line is cut and reported as an error: otherwise a binary file could be one line.
_LONGEST_LINE = 1 << 16

#: Receives the amount that is done: bytes or rows.
OnProgress = Callable[[int], None]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a CSV file (default, or -: standard input)")
    parser.add_argument(
        "--source", metavar="NAME", help="replay the stored samples of this [[source]] instead of a trace"
    )
    parser.add_argument(
        "--since",
        type=span_ns,
        metavar="SPAN",
        help="begin of the stored samples, as an age: 90s, 15m, 1h, 2d (default: all)",
    )
    parser.add_argument("--store", metavar="PATH", help="file or URL of the store (default: from the configuration)")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0; 2 if the trace cannot be read further, after the rows before that."""
    if args.source is not None and args.trace is not None:
        raise ConfigError("replay: TRACE and --source exclude each other: give one of them")
    if args.source is None and (args.since is not None or args.store is not None):
        raise ConfigError("replay: --since and --store need --source NAME")
    return _replay_trace(args.trace) if args.source is None else _replay_stored(args)


def _replay_trace(trace: str | None) -> int:
    name = "standard input" if trace in (None, "-") else str(trace)
    output = _Output()
    try:
        with _opened(trace, name) as stream, _progress(_size(stream)) as on_progress:
            rows = read_trace(_lines(stream, name, output, on_progress), name)
            put, take = output.lines.append, Replay().accept
            put(REPLAYED_HEADER)
            for t_s, row in rows:
                put(replayed_line(t_s, take(row)))
        output.flush()
    except TraceError as error:
        output.flush()
        print(f"timesyncd: {error}", file=sys.stderr)
        return 2
    return 0


class _Output:
    """Collects rows for one write: a system call per row would double the cost where Python does not buffer stdout."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def flush(self) -> None:
        sys.stdout.write("".join(self.lines))
        self.lines.clear()
        sys.stdout.flush()


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


def _lines(stream: BufferedReader, name: str, output: _Output, on_progress: OnProgress) -> Iterator[str]:
    """
    The lines without their ends. The results of all lines so far are written before each read: a single row from a pipe
    gets its result at once, and rows of a file are written in blocks. Raises TraceError.
    """
    rest, done = b"", 0
    while True:
        output.flush()
        on_progress(done)
        try:
            chunk = stream.read1(_CHUNK)
        except OSError as error:
            raise TraceError(f"{name}: {error.strerror}") from error
        done += len(chunk)
        whole, end, rest = (rest + chunk).rpartition(b"\n")
        if end:
            yield from whole.decode(errors="replace").split("\n")
        if rest and (not chunk or len(rest) > _LONGEST_LINE):
            yield rest.decode(errors="replace")
            rest = b""
        if not chunk:
            return


def _replay_stored(args: Namespace) -> int:
    from timesyncd.store.history import clock_readings

    place, settings = _store(args)
    readings = clock_readings(place, args.source, args.since)
    replay, output, hardware = StoredReplay(args.source, settings), _Output(), set()
    output.lines.append(REPLAYED_HEADER)
    with _progress(None) as on_progress:
        for done, (unix_ns, reading) in enumerate(readings, start=1):
            output.lines.append(replayed_line(seconds_text(unix_ns), replay.accept(reading)))
            if isinstance(reading, ClockSample) and reading.clock != "realtime":
                hardware.add(reading.clock)
            if done % _BATCH == 0:
                output.flush()
                on_progress(done)
    output.flush()
    if hardware:
        clocks = ", ".join(sorted(hardware))
        print(
            f"{args.source} measures {clocks}: the bounds are those of that clock, not of the system clock",
            file=sys.stderr,
        )
    return 0


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
