"""
The communicators of a rank: each process group of torch, and each pair of ranks with a tag that exchanges messages in
it. Each has its own numbers of synchronizations, which are the same on all its ranks, and its own marks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d

from timesyncd.client.group_meter import GroupMeter
from timesyncd.client.step_waits import StepWaits
from timesyncd.ipc.group_marks import Communicator

#: What a device mesh puts before the name of a dimension, as the description of the dimension's groups.
_MESH = "mesh_"


class Channel:
    """
    One communicator as one of its ranks uses it. `size`, `dimension`: the group's. `text`: the same for groups that do
    the same. `open` holds the records that this rank is inside of, or may be, of all channels.
    """

    __slots__ = ("_meter", "_next", "_number", "_open", "dimension", "marked", "size", "text")

    def __init__(
        self, meter: GroupMeter, number: int, size: int, communicator: Communicator, open_records: set[object]
    ) -> None:
        self._meter = meter
        self._number = number
        self._next = 0
        self._open = open_records
        self.size = size
        self.dimension = communicator.dimension
        self.text = communicator.text
        self.marked: Callable[[Any], None] | None = None  #: called with each record that is marked

    def take_number(self) -> int:
        """How many synchronizations the communicator had before this one, whether they were marked or not."""
        number = self._next
        self._next = number + 1
        return number

    def enter(self, record: object) -> None:
        self._open.add(record)

    def leave(self, record: object) -> None:
        self._open.discard(record)

    def mark(self, record: Any, arrival_ns: int, begin_ns: int, end_ns: int) -> None:
        """The record's times are known."""
        kept = self._meter.mark(
            self._number, record.key, record.number, record.kind, arrival_ns, begin_ns, end_ns, record.bytes
        )
        if kept and self.marked is not None:
            self.marked(record)


class Communicators:
    """All channels of this rank. `marked` is called with each record of them that is marked."""

    def __init__(self, meter: GroupMeter, marked: Callable[[Any], None]) -> None:
        self._meter = meter
        self._marked = marked
        self._groups: WeakKeyDictionary[dist.ProcessGroup, Channel | None] = WeakKeyDictionary()
        self._messages: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, int, int], Channel | None]]
        self._messages = WeakKeyDictionary()
        self._any_source: WeakKeyDictionary[dist.ProcessGroup, bool] = WeakKeyDictionary()
        self.open_records: set[object] = set()
        self._places: set[tuple[str, int]] = set()
        self.waits = StepWaits()
        self.is_account: Callable[[], bool] = lambda: True  #: whether nearly all calls of this rank have marks

    @property
    def place(self) -> str:
        """This rank's place among those with which it exchanges messages, by the dimension: its stages of pipelines."""
        return str(sorted(self._places))

    def of(self, group: dist.ProcessGroup) -> Channel | None:
        """The group's own; None: it is not recorded."""
        try:
            return self._groups[group]
        except KeyError:
            found = self._groups[group] = self._made(group, None)
            return found

    def of_messages(self, group: dist.ProcessGroup, sender: int, receiver: int, tag: int) -> Channel | None:
        """Of the messages with this tag from one rank of the group to another one. None: they are not recorded."""
        channels = self._messages.get(group)
        if channels is None:
            channels = self._messages[group] = {}
        key = sender, receiver, tag
        if key not in channels:
            channels[key] = self._made(group, key)
        return channels[key]

    def receive_from_any(self, group: dist.ProcessGroup) -> None:
        """The rank receives a message from any rank, so the numbers of the messages to it are not known any more."""
        if group not in self._any_source:
            self._any_source[group] = True
            self._meter.receive_from_any(group.group_name)

    def write(self) -> None:
        """Write what is marked so far."""
        self._meter.write()

    def _made(self, group: dist.ProcessGroup, message: tuple[int, int, int] | None) -> Channel | None:
        try:
            ranks = tuple(distributed_c10d.get_process_group_ranks(group))
        except KeyError:  # torch does not know it: it was not made by new_group
            return None
        dimension, tag = dimension_of(group), None
        size = len(ranks)
        if message is not None:
            sender, receiver, tag = message
            ranks = ranks[sender], ranks[receiver]
            self._places.add((str(dimension), group.rank()))
        if len(set(ranks)) < len(ranks):  # a rank that sends to itself
            return None
        communicator = Communicator(group.group_name, ranks, dimension, tag)
        number = self._meter.add(communicator)
        if number is None:
            return None
        channel = Channel(self._meter, number, size, communicator, self.open_records)
        channel.marked = self._marked
        return channel


def dimension_of(group: dist.ProcessGroup) -> str | None:
    """The name of the device mesh's dimension that the group is of; None: of none."""
    description = str(group.group_desc)
    return description.removeprefix(_MESH) if description.startswith(_MESH) else None
