"""
The marks that the ranks recorded of their communicators, joined over each communicator's ranks: collectives by their
number there, messages by sender, receiver, tag and number. Pure but for `recorded_groups`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from timesyncd.client.files import read_file
from timesyncd.client.recorder import LENGTH
from timesyncd.errors import Malformed
from timesyncd.ipc.group_marks import AnySource, Communicator, decode_communicator, is_communicator, split_kind
from timesyncd.ipc.job_datagram import Datagram, Kind, Mark, Trait, decode, kinds_with
from timesyncd.jobs.arrivals import Arrival
from timesyncd.jobs.ranks import BatchNumbers, Rank, ReceivedMark, head_of, is_plausible, node_name
from timesyncd.messages.jobs import MarkBatch

MESSAGES = kinds_with(Trait.MESSAGE)
_RECORDED = kinds_with(Trait.COLLECTIVE) | MESSAGES


@dataclass(frozen=True, slots=True)
class GroupMark:
    """One rank's part in a synchronization of a communicator. `step` is a key."""

    communicator: Communicator
    number: int
    step: int
    kind: int
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class GroupSync:
    """
    A collective with the marks of all its ranks, or a message with those of both ends. `step`: the key of the step of
    its first rank.
    """

    communicator: Communicator
    number: int
    step: int
    kind: int
    arrivals: Mapping[int, Arrival]


@dataclass(frozen=True)
class GroupRecording:
    """
    By rank its marks, in the order of their arrivals; and what has all marks. `unmatched`: the communicators whose
    ranks called different collectives under one number, which are not joined.
    """

    marks: Mapping[int, Sequence[GroupMark]]
    syncs: Sequence[GroupSync]
    unmatched: Sequence[Communicator] = ()

    def after(self, step: int) -> GroupRecording:
        """Without the steps up to this key."""
        return replace(
            self,
            marks={rank: [mark for mark in marks if mark.step > step] for rank, marks in self.marks.items()},
            syncs=[sync for sync in self.syncs if sync.step > step],
        )


@dataclass(frozen=True)
class RankGroupFile:
    """One rank's file. `unpaired`: the names of the groups of which its messages are not known."""

    rank: int
    datagrams: Sequence[tuple[Datagram, Sequence[tuple[Communicator, Mark]]]]
    unpaired: frozenset[str] = field(default_factory=frozenset)


def block_places(data: bytes) -> list[slice]:
    """The places of the whole blocks of a rank's file; only the last one can be partial."""
    found: list[slice] = []
    at = 0
    while at + LENGTH.size <= len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + length > len(data):
            break
        found.append(slice(at, at + length))
        at += length
    return found


def parse_groups(data: bytes, rank: int, most_marks: int) -> RankGroupFile:
    """The file of a rank, at most its newest marks. Raises Malformed."""
    communicators: dict[int, Communicator] = {}
    unpaired: set[str] = set()
    datagrams: list[tuple[Datagram, Sequence[tuple[Communicator, Mark]]]] = []
    for block in (data[place] for place in block_places(data)):
        if is_communicator(block):
            found = decode_communicator(block)
            if isinstance(found, AnySource):
                unpaired.add(found.name)
            else:
                communicators[found[0]] = found[1]
            continue
        datagram = decode(block)
        if datagram.header.rank == rank:
            marks = [_known(mark, communicators) for mark in datagram.marks]
            datagrams.append((datagram, [each for each in marks if each is not None]))
    kept = 0
    for at in reversed(range(len(datagrams))):
        kept += len(datagrams[at][1])
        if kept > most_marks:
            datagrams = datagrams[at + 1 :]
            break
    return RankGroupFile(rank, datagrams, frozenset(unpaired))


def _known(mark: Mark, communicators: Mapping[int, Communicator]) -> tuple[Communicator, Mark] | None:
    number, kind = split_kind(mark.kind)
    communicator = communicators.get(number)
    if communicator is None or kind not in _RECORDED or (kind in MESSAGES) != (communicator.tag is not None):
        return None
    return communicator, replace(mark, kind=kind)


def joined_groups(files: Sequence[RankGroupFile], world_size: int) -> GroupRecording:
    """The marks of these ranks, joined."""
    by_grandmaster = _share_grandmaster(files)
    marks = {file.rank: _marks(file, world_size, by_grandmaster) for file in files}
    unpaired = {(file.rank, name) for file in files for name in file.unpaired}
    by_number: dict[Communicator, dict[int, dict[int, GroupMark]]] = defaultdict(lambda: defaultdict(dict))
    for rank, own in marks.items():
        for mark in own:
            by_number[mark.communicator][mark.number].setdefault(rank, mark)
    syncs: list[GroupSync] = []
    unmatched: list[Communicator] = []
    for communicator, numbers in by_number.items():
        if communicator.tag is not None and any((rank, communicator.name) in unpaired for rank in communicator.ranks):
            continue
        found = list(_joined(communicator, numbers))
        if any(sync is None for sync in found):
            unmatched.append(communicator)
        else:
            syncs += [sync for sync in found if sync is not None]
    syncs.sort(key=lambda sync: (sync.step, min(arrival.arrival_ns for arrival in sync.arrivals.values())))
    return GroupRecording(marks, syncs, unmatched)


def _joined(communicator: Communicator, numbers: Mapping[int, Mapping[int, GroupMark]]) -> Iterator[GroupSync | None]:
    """None: its ranks called different collectives."""
    for number, marks in sorted(numbers.items()):
        if len(marks) < len(communicator.ranks):
            continue
        kinds = [marks[rank].kind for rank in communicator.ranks]
        right = kinds == [Kind.SEND, Kind.RECEIVE] if communicator.tag is not None else len(set(kinds)) == 1
        first = marks[communicator.ranks[0]]
        arrivals = {rank: marks[rank].arrival for rank in communicator.ranks}
        yield GroupSync(communicator, number, first.step, first.kind, arrivals) if right else None


def _marks(file: RankGroupFile, world_size: int, by_grandmaster: bool) -> list[GroupMark]:
    """The rank's marks, each with the error of its clock."""
    rank: Rank | None = None
    found: list[GroupMark] = []
    for number, (datagram, marks) in enumerate(file.datagrams):
        batch = _batch(datagram, [mark for _, mark in marks], number)
        if not is_plausible(batch):
            continue
        head = head_of(batch, batch.job)
        newest_end_ns = max((mark.end_ns for _, mark in marks), default=0)
        rank = Rank(head) if rank is None else rank
        rank.accept(head, newest_end_ns)
        numbers = BatchNumbers.of(head)
        for communicator, mark in marks:
            if file.rank in communicator.ranks and max(communicator.ranks) < world_size:
                arrival = rank.arrival(ReceivedMark(mark, numbers, newest_end_ns), by_grandmaster)
                found.append(GroupMark(communicator, mark.sync, mark.step, mark.kind, arrival))
    return sorted(found, key=lambda mark: (mark.arrival.arrival_ns, mark.arrival.end_ns))


def _batch(datagram: Datagram, marks: Sequence[Mark], number: int) -> MarkBatch:
    header = datagram.header
    return MarkBatch.of(
        header, marks, node=node_name(header.node), incarnation=1, sequence=number, uid=os.getuid(), pid=0
    )


def _share_grandmaster(files: Sequence[RankGroupFile]) -> bool:
    """Whether all ranks' bounds are against one grandmaster and one timescale, throughout."""
    references = {
        (datagram.header.grandmaster_identity, datagram.header.utc_seconds_removed)
        for file in files
        for datagram, _ in file.datagrams
    }
    return len(references) == 1 and None not in references.pop()


def recorded_groups(
    paths: Mapping[int, Path], world_size: int, most_marks: int, most_bytes: int
) -> GroupRecording | None:
    """
    Of the files of these ranks, at most so many marks of all. None: no rank recorded a communicator. A file that is
    damaged or longer counts as absent.
    """
    files = []
    for rank, path in sorted(paths.items()):
        try:
            files.append(parse_groups(read_file(path, most_bytes), rank, most_marks // len(paths)))
        except (OSError, Malformed):
            continue
    found = joined_groups(files, world_size)
    return found if any(found.marks.values()) else None
