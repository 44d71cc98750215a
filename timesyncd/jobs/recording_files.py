"""
Reads recordings: the files that a job's ranks wrote (TIMESYNCD_RECORD), the JSON of a daemon, or a running job by a
daemon's HTTP API.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from timesyncd.bound import Bound
from timesyncd.client.api import get_json, list_items, unlike_timesyncd
from timesyncd.config import read_file, validation_text
from timesyncd.errors import Malformed, Refused, TraceError
from timesyncd.ipc.group_marks import GROUP_SUFFIX
from timesyncd.ipc.job_datagram import (
    Datagram,
    Header,
    Kind,
    Mark,
    OwnPart,
    Trait,
    decode,
    kinds_with,
    loss_of,
    step_text,
)
from timesyncd.ipc.network_record import MAX_RECORD_BYTES, NETWORK_SUFFIX, NetworkRecord, parse_network
from timesyncd.jobs.arrivals import StepMark, Sync
from timesyncd.jobs.exposed import OwnWait, own_part, own_wait
from timesyncd.jobs.group_recording import GroupRecording, block_places, recorded_groups
from timesyncd.jobs.issued_calls import read_calls
from timesyncd.jobs.joining import STEP_CLOSED_AFTER_NS, Jobs
from timesyncd.jobs.missing_ranks import Presence
from timesyncd.jobs.ranks import node_name
from timesyncd.jobs.recording import LossMark, RankRecord, Recording, RecordingMessage, ServerRequest
from timesyncd.messages.jobs import MarkBatch
from timesyncd.units import duration_text

COLLECTIVES = kinds_with(Trait.COLLECTIVE)
REQUESTS = kinds_with(Trait.REQUEST)
LOSSES = frozenset({Kind.LOSS, Kind.VALIDATION})

#: The most marks that are read of a job, the newest: ten minutes of steps of 100 ms with ten synchronizations each, of
#: eight ranks.
MAX_RECORDING_MARKS = 500_000

#: Larger than any that is written (`client.recorder.MAX_RECORD_BYTES`).
MAX_RECORDING_BYTES = 1 << 31

#: What `timesyncd audit --job` keeps beside its report.
DOCUMENT = "recording.json"

#: The most lines that are read of a rank's file of notes, and that are passed on.
MAX_NOTES = 10

#: Synchronizations that are joined at a time: they come in fewer batches of each rank, with the one before each, than a
#: hub remembers.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class RankFile:
    """
    The file of one process of a job: the places of its datagrams, in order, and their `size` in bytes. `newest` is the
    newest header.
    """

    path: Path
    places: Sequence[slice]
    size: int
    newest: Header
    first_ns: int
    newest_ns: int

    @property
    def pid(self) -> int:
        """The process id in the file's name; 0: there is none."""
        number = self.path.stem.split("-")[2:3]
        return int(number[0]) if number and number[0].isdecimal() else 0


@dataclass(frozen=True, slots=True)
class _FilePart:
    """The newest datagrams of a file. `after`: only the steps after this key are whole; None: all are."""

    file: RankFile
    datagrams: Sequence[Datagram]
    after: int | None

    def marks(self, kinds: Iterable[int], after: int) -> list[Mark]:
        """The marks of these kinds, of the steps after that key."""
        return [mark for each in self.datagrams for mark in each.marks if mark.kind in kinds and mark.step > after]


def _owner(header: Header) -> tuple[str, int, int]:
    """The rank that wrote a datagram: datagrams of other ranks in the same file are left out."""
    return header.job, header.attempt, header.rank


def load(path: Path) -> Recording:
    """
    Read a folder of *.marks files (or the newest `marks-*` folder inside it, else its DOCUMENT), or one JSON file.

    Of several jobs in a folder it reads the one with the largest files, of several runs of it the newest, and of
    several processes with one rank the newest. Raises TraceError.
    """
    if os.path.isfile(path):
        return read_document(path)
    files = [file for file in map(_read, _paths(path)) if file is not None]
    if not files and os.path.isfile(path / DOCUMENT):
        return read_document(path / DOCUMENT)
    if not files:
        raise TraceError(
            f"{path}: contains no marks: a recording is a folder of *.marks files that ranks wrote with TIMESYNCD_RECORD, "
            f"or the folder of an audit with its {DOCUMENT}"
        )
    jobs: dict[tuple[str, int], list[RankFile]] = {}
    for file in files:
        jobs.setdefault((file.newest.job, file.newest.attempt), []).append(file)
    recording = join(max(jobs.values(), key=lambda group: sum(file.size for file in group)))
    folder = files[0].path.parent
    calls = read_calls(folder)
    beside = [] if calls is None or not calls.beside else [_beside(calls.beside)]
    return replace(recording, notes=(*recording.notes, *_unmetered(folder), *beside), calls=calls)


def _beside(calls: int) -> str:
    return (
        f"{calls:,} calls were made by threads beside the one that trains. They are in no figure: a step waits only if it "
        "waits for such a thread."
    )


def _unmetered(folder: Path) -> list[str]:
    """What the ranks could not meter, from the `rank-*.note` files that they wrote; equal lines of several ranks once."""
    ranks: dict[str, set[str]] = {}
    for path in sorted(folder.glob("rank-*.note")):
        rank = path.stem.split("-")[1]
        if not rank.isdecimal():
            continue
        for line in _bytes(path).decode(errors="replace").splitlines()[:MAX_NOTES]:
            ranks.setdefault(line, set()).add(rank)
    return [f"Rank {', '.join(sorted(of))}: {line}" for line, of in list(ranks.items())[:MAX_NOTES]]


def read_document(path: Path) -> Recording:
    """Read a RecordingMessage as JSON. Raises TraceError."""
    try:
        return RecordingMessage.model_validate_json(read_file(path, MAX_RECORDING_BYTES)).recording()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        raise TraceError(f"{path}: not a recording of timesyncd: {validation_text(error)}") from error
    except ValueError as error:
        raise TraceError(f"{path}: unreadable recording: {error}") from error


def _paths(folder: Path) -> list[Path]:
    if not os.path.isdir(folder):
        raise TraceError(f"{folder}: no such file or folder, or this user may not read it")
    found = sorted(folder.glob("*.marks"))
    runs = sorted(run for run in folder.glob("marks-*") if run.is_dir())
    return found or (sorted(runs[-1].glob("*.marks")) if runs else [])


def _read(path: Path) -> RankFile | None:
    """
    A rank's file; None: it has no whole datagram. A rank that was killed leaves a partial last one, which is left out.
    Raises TraceError.
    """
    data = _bytes(path)
    places = block_places(data)
    if not places:
        return None
    newest = _decoded(path, data[places[-1]]).header
    datagrams = (_decoded(path, data[place]) for place in reversed(places))
    marked = next((each for each in datagrams if each.marks and _owner(each.header) == _owner(newest)), None)
    first_ns = newest.joined_ns + newest.real_minus_boot_ns
    if not newest.joined_ns:
        first_ns = min((mark.arrival_ns for mark in _decoded(path, data[places[0]]).marks), default=0)
    newest_ns = max((mark.end_ns for mark in marked.marks), default=0) if marked else first_ns
    return RankFile(path, places, places[-1].stop, newest, first_ns, newest_ns)


def _bytes(path: Path) -> bytes:
    """Raises TraceError."""
    try:
        return read_file(path, MAX_RECORDING_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error


def _decoded(path: Path, datagram: bytes) -> Datagram:
    """Raises TraceError."""
    try:
        return decode(datagram)
    except Malformed as error:
        raise TraceError(f"{path}: {error}") from error


def join(files: Sequence[RankFile]) -> Recording:
    """
    Join the newest run of one job's files as a hub does. Of several files of one rank the one with the newest mark
    counts. Raises TraceError if they are of two jobs.
    """
    run = _newest_run(files)
    _refuse_two_at_once(run)
    ranks = {file.newest.rank: file for file in run}
    newest = run[-1].newest
    kept = {rank: _newest(file, MAX_RECORDING_MARKS // len(ranks)) for rank, file in sorted(ranks.items())}
    after = max((each.after for each in kept.values() if each.after is not None), default=-1)
    groups = _groups(ranks, newest.world_size, after)
    return Recording(
        job=newest.job,
        attempt=newest.attempt,
        world_size=newest.world_size,
        ranks={rank: _rank_record(each) for rank, each in kept.items()},
        syncs=_joined(kept, after),
        steps={rank: steps for rank, each in kept.items() if (steps := _steps(each, after))},
        requests={rank: requests for rank, each in kept.items() if (requests := _requests(each, after))},
        notes=tuple(_notes(len(files) - len(run), _apart_ns(run), after)),
        groups=groups,
        losses={rank: losses for rank, each in kept.items() if (losses := _losses(each, after))},
        own_waits={} if groups is None else _own_waits(kept, after),
        networks=_networks(ranks),
    )


def _own_waits(kept: Mapping[int, _FilePart], after: int) -> dict[int, dict[int, OwnWait]]:
    """By step and rank, of steps with groups; with the parts of their own time that the ranks state."""
    found: dict[int, dict[int, OwnWait]] = {}
    for rank, each in kept.items():
        parts: dict[int, dict[OwnPart, int]] = {}
        for mark in each.marks((Kind.OWN_PART,), after):
            if (part := own_part(mark)) is not None:
                parts.setdefault(mark.step, {}).update([part])
        for mark in each.marks((Kind.OWN_TIME,), after):
            if (own := own_wait(mark)) is not None:
                found.setdefault(mark.step, {})[rank] = replace(own, parts_ns=parts.get(mark.step))
    return found


def _networks(ranks: Mapping[int, RankFile]) -> dict[int, NetworkRecord]:
    """From the files beside these; one that is missing or damaged is left out."""
    found = {}
    for rank, file in ranks.items():
        with suppress(OSError, ValueError):
            found[rank] = parse_network(read_file(file.path.with_suffix(NETWORK_SUFFIX), MAX_RECORD_BYTES))
    return found


def _groups(ranks: Mapping[int, RankFile], world_size: int, after: int) -> GroupRecording | None:
    """The marks of communicators, of the steps after that key, from the files beside these."""
    paths = {rank: file.path.with_suffix(GROUP_SUFFIX) for rank, file in ranks.items()}
    found = recorded_groups(paths, world_size, MAX_RECORDING_MARKS, MAX_RECORDING_BYTES)
    return None if found is None else found.after(after)


def _newest_run(files: Iterable[RankFile]) -> list[RankFile]:
    """
    The files of one job and attempt that are of the newest file's run, in the order of their newest marks.

    Runs follow one another on each clock, and only times of one clock tell them apart. Where every clock has as many
    runs, the last of each is the newest run, however far the clocks are apart. Else a clock misses a run, and the files
    whose times overlap those of the newest file count.
    """
    in_order = sorted(files, key=lambda file: file.newest_ns)
    in_order = [file for file in in_order if file.newest.world_size == in_order[-1].newest.world_size]
    by_clock: dict[int, list[RankFile]] = {}
    for file in in_order:
        by_clock.setdefault(file.newest.boot_id, []).append(file)
    runs = [_runs(of_clock) for of_clock in by_clock.values()]
    if len({len(of_clock) for of_clock in runs}) > 1:
        return _overlapping(in_order)
    newest = {file.path for of_clock in runs for file in of_clock[-1]}
    return [file for file in in_order if file.path in newest]


def _runs(in_order: Sequence[RankFile]) -> list[list[RankFile]]:
    """The runs of the files of one clock, the newest last."""
    found: list[list[RankFile]] = []
    rest = list(in_order)
    while rest:
        found.insert(0, _overlapping(rest))
        rest = rest[: -len(found[0])]
    return found


def _overlapping(in_order: Sequence[RankFile]) -> list[RankFile]:
    """The files whose marks overlap those of the last file in time."""
    newest = in_order[-1]
    # A clock that was stepped back, or times from the caller, can lie before the rank's start.
    since_ns = min(newest.first_ns, newest.newest_ns)
    return [file for file in in_order if file.newest_ns >= since_ns]


def _refuse_two_at_once(run: Sequence[RankFile]) -> None:
    """A rank that is started again follows its former process; two processes at the same time are of two jobs of one name."""
    by_rank: dict[int, list[RankFile]] = {}
    for each in run:
        by_rank.setdefault(each.newest.rank, []).append(each)
    for file, other in chain.from_iterable(combinations(of_rank, 2) for of_rank in by_rank.values()):
        together_ns = min(file.newest_ns, other.newest_ns) - max(file.first_ns, other.first_ns)
        shorter_ns = min(file.newest_ns - file.first_ns, other.newest_ns - other.first_ns)
        if file.pid != other.pid and together_ns > shorter_ns / 2 > 0:
            raise TraceError(
                f"{file.path.parent}: rank {file.newest.rank} has marks of two processes at the same time ({file.pid} and {other.pid}), so "
                "two jobs ran at once, and their ranks cannot be separated: run each under a run-audit of its own"
            )


def _apart_ns(run: Sequence[RankFile]) -> int:
    """For how long, by their own clocks, no file of the run was written together with its last one; 0: all overlap."""
    since_ns = min(run[-1].first_ns, run[-1].newest_ns)
    return max(0, since_ns - run[0].newest_ns)


def _notes(others: int, apart_ns: int, after: int) -> list[str]:
    found = []
    if apart_ns:
        found.append(
            f"The nodes' clocks are {duration_text(apart_ns)} or more apart, or this folder has parts of two runs: the marks were joined by job and "
            "attempt. Record each run to a folder of its own."
        )
    if others:
        found.append(
            f"{others} *.marks files of this folder were not read: they are of another run of the job, or their clock is far off. "
            "Record each run to a folder of its own."
        )
    if after >= 0:
        found.append(
            f"Steps up to {step_text(after)} were not read: the newest {MAX_RECORDING_MARKS} marks of a job are read, equally many of each rank."
        )
    return found


def _rank_record(part: _FilePart) -> RankRecord:
    file, header = part.file, part.file.newest
    presence = Presence()
    for datagram in part.datagrams:
        for mark in datagram.marks:
            presence = presence.updated(mark)
    metered_ns = file.newest_ns - file.first_ns if header.joined_ns else 0
    metered_or_none = metered_ns if metered_ns > 0 else None
    return RankRecord(header.node, header.lost, header.own_overhead_ns, metered_or_none, presence)


def _steps(part: _FilePart, after: int) -> list[StepMark]:
    return sorted(
        (
            StepMark(m.step, m.arrival_ns, None if m.begin_ns == m.arrival_ns else m.begin_ns, m.end_ns)
            for m in part.marks((Kind.STEP,), after)
        ),
        key=lambda mark: mark.step,
    )


def _losses(part: _FilePart, after: int) -> list[LossMark]:
    marks = part.marks(LOSSES, after)
    return [LossMark(mark.step, loss_of(mark.bytes), mark.kind == Kind.VALIDATION) for mark in marks]


def _requests(part: _FilePart, after: int) -> list[ServerRequest]:
    marks = part.marks(REQUESTS, after)
    return sorted((ServerRequest(m.step, m.arrival_ns, m.end_ns) for m in marks), key=lambda request: request.begin_ns)


def _newest(file: RankFile, most: int) -> _FilePart:
    """The newest datagrams of a file with together at most so many marks, read from the end."""
    data = _bytes(file.path)
    datagrams: list[Datagram] = []
    for place in reversed(file.places):
        datagram = _decoded(file.path, data[place])
        if _owner(datagram.header) != _owner(file.newest):
            continue
        most -= len(datagram.marks)
        if most < 0 and datagrams and datagram.marks:
            after = max(mark.step for mark in datagram.marks)
            return _FilePart(file, datagrams[::-1], after)
        datagrams.append(datagram)
    return _FilePart(file, datagrams[::-1], None)


def _joined(kept: Mapping[int, _FilePart], after: int) -> list[Sync]:
    """
    Join all synchronizations of the steps after that key, block by block: a hub keeps fewer open than a recording has.
    """
    keys = sorted({(mark.step, mark.sync) for each in kept.values() for mark in each.marks(COLLECTIVES, after)})
    blocks = _blocks(kept.values(), keys)
    joined: list[Sync] = []
    for block in blocks:
        jobs = Jobs(window_steps=_AT_ONCE)
        for each, parts in zip(kept.values(), block, strict=True):
            _feed(jobs, each, parts)
        while any(job.pending for job in jobs):
            jobs.advance(STEP_CLOSED_AFTER_NS)
        joined += [sync for job in jobs for sync in job.window]
    return joined


#: A rank's marks of a block, by the number of their datagram.
_Parts = dict[int, list[Mark]]


def _blocks(kept: Iterable[_FilePart], keys: Sequence[tuple[int, int]]) -> list[list[_Parts]]:
    """The marks of each block of `_AT_ONCE` synchronizations, by rank and datagram."""
    firsts = keys[::_AT_ONCE]
    blocks: list[list[_Parts]] = [[] for _ in firsts]
    for each in kept:
        for block in blocks:
            block.append({})
        for number, datagram in enumerate(each.datagrams):
            for mark in datagram.marks:
                at = bisect_right(firsts, (mark.step, mark.sync)) - 1
                if at >= 0 and mark.kind in COLLECTIVES:
                    blocks[at][-1].setdefault(number, []).append(mark)
    return blocks


def _feed(jobs: Jobs, part: _FilePart, parts: _Parts) -> None:
    """
    Pass a rank's marks of a block to the hub, with the header before each datagram, so that a step of the clock is
    found.
    """
    for number, marks in parts.items():
        if number > 0 and number - 1 not in parts:
            jobs.accept(_batch(part, number - 1, []), 0)
        jobs.accept(_batch(part, number, marks), 0)


def _batch(part: _FilePart, number: int, marks: Sequence[Mark]) -> MarkBatch:
    """
    The batch that the node's daemon would have published, with these marks only. Its bounds are of the time at which
    the datagram was sent; what a slew may have removed since the newest of these marks is added.
    """
    datagram, header = part.datagrams[number], part.datagrams[number].header
    batch = MarkBatch.of(
        header, marks, node=node_name(header.node), incarnation=1, sequence=number, uid=os.getuid(), pid=part.file.pid
    )
    if len(marks) == len(datagram.marks) or not marks:
        return batch
    since_ns = max(mark.end_ns for mark in datagram.marks) - max(mark.end_ns for mark in marks)
    grown = {
        name: Bound(getattr(batch, name), batch.past_growth_ppb).at(since_ns)
        for name in ("gm_bound_ns", "utc_bound_ns")
    }
    return batch.model_copy(update=grown)


_TIMEOUT_S = 30.0


def recording_of(url: str, wanted: str) -> Recording:
    """
    The recording of a job by its id or name; of several with one name, the newest. Raises Unreachable, Refused,
    Malformed.
    """
    page = url.rstrip("/")
    try:
        return RecordingMessage.model_validate(_window(page, _id_of(page, wanted))).recording()
    except (ValueError, KeyError, TypeError) as error:
        why = validation_text(error) if isinstance(error, ValidationError) else "it has another form"
        raise unlike_timesyncd(page, f"jobs/{wanted}/window", why) from error


def _id_of(page: str, wanted: str) -> str:
    jobs = _jobs(page)
    named = [job for job in jobs if wanted in (job["job_id"], job["job"])]
    if not named:
        known = ", ".join(sorted({str(job["job"]) for job in jobs})) or "none"
        raise Refused(f"{page}/: no job {wanted!r}; known jobs: {known}")
    newest = max(named, key=lambda job: (job["job_id"] == wanted, job["published_realtime_ns"]))
    return str(newest["job_id"])


def _window(page: str, job_id: str) -> dict[str, Any]:
    """All pages of the job's window as one message."""
    path = f"jobs/{quote(job_id)}/window?limit=1000"
    whole: dict[str, Any] = _fetched(page, path)
    step = whole.get("next_step")
    last = -1
    while step is not None:
        if int(step) <= last:
            raise ValueError("its next page is an earlier one")
        last = int(step)
        more = _fetched(page, f"{path}&from_step={step}")
        for what in ("syncs", "steps", "requests"):
            whole[what] += more[what]
        whole["own_waits"] = whole.get("own_waits", []) + more.get("own_waits", [])  # an older daemon has none
        step = more.get("next_step")
    return whole


def _jobs(page: str) -> list[dict[str, Any]]:
    return list(list_items(lambda path: _fetched(page, path), page, "jobs"))


def _fetched(page: str, what: str) -> Any:
    status, reply = get_json(f"{page}/api/v1/{what}", os.environ.get("TIMESYNCD_TOKEN"), _TIMEOUT_S)
    if status == 200:
        return reply
    error = reply.get("error") if isinstance(reply, dict) else None
    advice = "; set TIMESYNCD_TOKEN to a token of the role reader" if status == 401 else ""
    raise Refused(f"{page}/: {error or f'HTTP status {status}'}{advice}")
