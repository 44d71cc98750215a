"""Reads the files of `timesyncd audit --from`, each by what it contains, and recordings, into the ranks' traces."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from timesyncd.client.files import open_file
from timesyncd.errors import TraceError
from timesyncd.jobs.recorded_traces import recorded_traces
from timesyncd.jobs.recording_files import load
from timesyncd.traces.flight_recorder import read_flight_recorder
from timesyncd.traces.nccl_inspector import InspectedCall, inspected_ranks, read_inspector_log
from timesyncd.traces.operations import RankTrace, UnusableTrace
from timesyncd.traces.pipeline_timeline import MARK, read_pipeline_timeline
from timesyncd.traces.profiler_trace import read_profiler_trace
from timesyncd.traces.reader import EVENTS, read_trace

_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_PICKLE_MAGIC = b"\x80"

#: The names of traces in a folder end so; a dump of the flight recorder has no suffix.
_SUFFIXES = (".json", ".gz", ".jsonl", ".log", ".pickle", ".pkl", "")

#: A dump or a log is read whole; a profiler's trace may be larger.
MAX_WHOLE_BYTES = 1 << 30


def read_traces(paths: Sequence[Path]) -> tuple[list[RankTrace | UnusableTrace], list[TraceError]]:
    """The traces of all files, and one error for each file that cannot be read."""
    found: list[RankTrace | UnusableTrace] = []
    inspected: list[InspectedCall] = []
    errors = []
    for path in itertools.chain.from_iterable(map(_files, paths)):
        try:
            for each in _read(path):
                if isinstance(each, InspectedCall):
                    inspected.append(each)
                else:
                    found.append(each)
        except TraceError as error:
            errors.append(error)
    if inspected:
        try:
            found += inspected_ranks(inspected, "the logs of NCCL Inspector")
        except TraceError as error:
            errors.append(error)
    return found, errors


def _files(path: Path) -> list[Path]:
    """The traces in a folder; a folder that ranks recorded to, and a file, are themselves."""
    if not os.path.isdir(path) or any(path.glob("*.marks")) or any(path.glob("marks-*")):
        return [path]
    found = [each for each in sorted(path.glob("*")) if os.path.isfile(each) and each.suffix in _SUFFIXES]
    return [each for each in found if not each.name.startswith(".")] or [path]


def _read(path: Path) -> Sequence[RankTrace | UnusableTrace] | list[InspectedCall]:
    name = str(path)
    if os.path.isdir(path):
        if not any(path.glob("*.marks")) and not any(path.glob("marks-*")):
            raise TraceError(
                f"{name}: the folder has no traces ({', '.join(filter(None, _SUFFIXES))}) and no marks of ranks"
            )
        return recorded_traces(load(path))
    head = b"".join(itertools.islice(trace_blocks(path), 1))
    if not head.strip():
        raise TraceError(f"{name}: the file is empty")
    if head[:1] == _PICKLE_MAGIC:
        return [read_flight_recorder(_whole(path), name)]
    if b'"' + EVENTS.encode() + b'"' in head or head.lstrip()[:1] == b"[":
        return _profiler_traces(path, head)
    if b'"entries"' in head and (b'"pg_config"' in head or b'"version"' in head or b'"profiling_name"' in head):
        return [read_flight_recorder(_whole(path), name)]
    if b'"coll_perf"' in head:
        return read_inspector_log(_whole(path), name)
    if head.lstrip()[:1] == b"{" and b'"world_size"' in head and b'"syncs"' in head:
        return recorded_traces(load(path))
    if head.lstrip()[:1] != b"{":
        raise TraceError(
            f"{name}: the file is no profiler's trace, no log of NCCL Inspector and no dump of torch's flight recorder"
        )
    return _profiler_traces(path, head)


def _profiler_traces(path: Path, head: bytes) -> list[RankTrace | UnusableTrace]:
    entries = _entries(path, head.lstrip()[:1] == b"[")
    if f'"{MARK}"'.encode() in head:
        return list(read_pipeline_timeline(entries, str(path)))
    return [read_profiler_trace(entries, str(path))]


def _entries(path: Path, is_list: bool) -> Iterator[tuple[str, Any]]:
    """The entries of a trace; Chrome's other form is the list of events alone."""
    text = trace_text(path)
    if is_list:
        text = itertools.chain([f'{{"{EVENTS}": '], text, ["}"])
    return read_trace(text, str(path))


def _whole(path: Path) -> bytes:
    found = bytearray()
    for block in trace_blocks(path):
        found += block
        if len(found) > MAX_WHOLE_BYTES:
            raise TraceError(f"{path}: the file has more than {MAX_WHOLE_BYTES >> 20} MiB")
    return bytes(found)


def trace_text(path: Path) -> Iterator[str]:
    """The text of a trace, decompressed, in blocks. Raises TraceError."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    for block in trace_blocks(path):
        if text := decoder.decode(block):
            yield text


def trace_blocks(path: Path) -> Iterator[bytes]:
    """The content of a file, decompressed, in blocks. Raises TraceError."""
    try:
        with open_file(path) as raw:
            is_packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if is_packed else raw
            while block := stream.read(_CHUNK):
                yield block
    except EOFError as error:
        raise TraceError(f"{path}: the compressed file is truncated") from error
    except (OSError, zlib.error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
