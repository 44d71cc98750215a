"""Merge PyTorch profiler traces of several ranks on the time axis of a common clock, for Perfetto."""

from __future__ import annotations

import gzip
import io
import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from timesyncd.cli._log_output import print_error
from timesyncd.client.files import open_file, replacing
from timesyncd.errors import TraceError

if TYPE_CHECKING:
    from timesyncd.traces.anchors import AnchorFile
    from timesyncd.traces.merge import Merge
    from timesyncd.traces.reader import TraceOutline


EXAMPLES = (
    "timesyncd merge-traces rank0.json rank1.json -o merged.json.gz",
    "timesyncd merge-traces traces/rank0.json.gz traces/rank1.json.gz -o merged.json --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="trace of a rank: .json or .json.gz")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="merged trace; compressed if the name ends in .gz",
    )
    parser.add_argument("--json", action="store_true", help="print the alignment of each file as one JSON object")


def run(args: Namespace) -> int:
    """
    0: all traces are aligned; 1: some are not, as printed; 2: a file cannot be read or written, and there is no output.
    """
    from timesyncd.traces.alignment import align
    from timesyncd.traces.merge import Merge, TraceFile
    from timesyncd.traces.reader import read_outline

    try:
        _check_names(args.traces, args.output)
        outlines = [read_outline(_entries(path), str(path)) for path in args.traces]
        anchored = [_anchors(path, each) for path, each in zip(args.traces, outlines, strict=True)]
        axis = align(list(zip(outlines, anchored, strict=True)))
        files = [
            TraceFile(each, found, alignment, position)
            for position, (each, found, alignment) in enumerate(zip(outlines, anchored, axis.alignments, strict=True))
        ]
        merge = Merge(files, axis)
        with _written(args.output) as file:
            _write(file, merge, args.traces)
    except TraceError as error:
        print_error(f"timesyncd: {error}")
        return 2
    _print_result(merge, args)
    return 0 if all(alignment.bound_ns is not None for alignment in axis.alignments) else 1


def _check_names(traces: Sequence[Path], output: Path) -> None:
    """Raises TraceError if a path is given twice."""
    seen: set[str] = set()
    for path in traces:
        if os.path.realpath(path) in seen:
            raise TraceError(f"{path}: the trace is given twice")
        seen.add(os.path.realpath(path))
    if os.path.realpath(output) in seen:
        raise TraceError(f"{output}: the output is one of the traces; name another file")


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    from timesyncd.audit.trace_files import trace_text
    from timesyncd.traces.reader import read_trace

    return read_trace(trace_text(path), str(path))


def _anchors(path: Path, outline: TraceOutline) -> AnchorFile | None:
    """
    The anchors of the trace's own side file, else of the side file of its process, host and rank in the same folder.

    Of several files, the one with the most anchors counts. None: no file matches, or a trace without a host name
    matches files of several machines. Raises TraceError.
    """
    from timesyncd.client.anchors import SUFFIX

    own = [Path(f"{path}{SUFFIX}"), Path(f"{str(path).removesuffix('.gz')}{SUFFIX}")]
    for side in own:
        if os.path.exists(side):
            return _read_anchors(side)
    others = [_read_anchors(side) for side in sorted(path.parent.glob(f"rank-*{SUFFIX}"))]
    matching = [
        each
        for each in others
        if each.owner.pid in outline.pids()
        and outline.host_name in (None, each.owner.host_name)
        and outline.rank in (None, each.owner.rank)
    ]
    if outline.host_name is None and len({(each.owner.boot_id, each.owner.host_name) for each in matching}) > 1:
        return None
    return max(matching, key=lambda each: len(each.anchors), default=None)


def _read_anchors(side: Path) -> AnchorFile:
    """The anchors of the file and of the older file that it continues. Raises TraceError."""
    from dataclasses import replace

    from timesyncd.client.anchors import OLD_SUFFIX
    from timesyncd.traces.anchors import read_anchors

    def read(path: Path) -> AnchorFile:
        try:
            with open_file(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as lines:
                return read_anchors(lines, str(path))
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error

    found, old = read(side), Path(f"{side}{OLD_SUFFIX}")
    if not os.path.exists(old):
        return found
    before = read(old)
    return replace(found, anchors=before.anchors + found.anchors) if before.owner == found.owner else found


@contextmanager
def _written(output: Path) -> Iterator[IO[str]]:
    """Writes the file atomically. Raises TraceError."""
    try:
        with replacing(output) as part:
            compressed = output.suffix == ".gz"
            with gzip.open(part, "wt", encoding="utf-8") if compressed else open(part, "w", encoding="utf-8") as file:
                yield file
    except OSError as error:
        raise TraceError(f"{output}: {error.strerror or error}") from error


def _write(file: IO[str], merge: Merge, traces: Sequence[Path]) -> None:
    from timesyncd.traces.reader import EVENTS

    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": merge.base_ns,
        "timesyncd": _report(merge),
    }
    file.write(json.dumps(head)[:-1] + f', "{EVENTS}": [\n')
    separator = ""
    for trace, path in zip(merge.files, traces, strict=True):
        own = (event for key, event in _entries(path) if key == EVENTS)
        for events in (merge.descriptions(trace), merge.events(trace, own)):
            for event in events:
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
    file.write("\n]}\n")


def _report(merge: Merge) -> dict[str, Any]:
    return {
        "reference": merge.axis.reference,
        "pair_bound_ns": merge.axis.pair_bound_ns(),
        "files": [merge.report(file) for file in merge.files],
    }


def _print_result(merge: Merge, args: Namespace) -> None:
    from timesyncd.units import duration_text

    if args.json:
        print(json.dumps({"output": str(args.output)} | _report(merge)))
        return
    for file in merge.files:
        print(f"{file.outline.name}: {file.display_name}, {file.alignment_text(merge.axis.reference)}")
    pair_ns = merge.axis.pair_bound_ns()
    if pair_ns is not None:
        print(f"{args.output}: the error between events of two ranks is at most {duration_text(pair_ns)}")
