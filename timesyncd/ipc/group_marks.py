"""
The file in which a rank records the marks of its communicators: the groups of a device mesh, and the messages between
two ranks. It lies beside the rank's other marks, as `rank-<rank>-<pid>-<job>.groups`.

Each block follows its length (u32, little-endian). A block is either a communicator, as JSON behind GROUP_MAGIC, or a
datagram of `job_datagram` whose marks have the number of their communicator in the upper 24 bits of `kind`. A
communicator precedes its first mark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from timesyncd.errors import Malformed

GROUP_SUFFIX = ".groups"
GROUP_MAGIC = b"TSJG"

#: So many communicators and pairs of ranks that exchange messages a rank can record.
MAX_COMMUNICATORS = 4_096

#: The longest name of a group and of a dimension, and the most ranks of a group, that are read.
MAX_GROUP_NAME = 255
MAX_GROUP_RANKS = 1 << 20

#: Above this part of all calls without a mark, the marks are no account of what synchronization costs.
MAX_UNMETERED_PART = 0.01

_KIND_BITS = 8


@dataclass(frozen=True, slots=True)
class Communicator:
    """
    The ranks (of the whole job) that synchronize with one another, in the order of the group. `name`: as torch names the
    group, the same on all its ranks. `dimension`: that of the device mesh which the group is of; None: of none.

    `tag` not None: these are the messages with this tag from the first of the two ranks to the second, within the group.
    """

    name: str
    ranks: tuple[int, ...]
    dimension: str | None = None
    tag: int | None = None

    @property
    def text(self) -> str:
        """For people: `shard groups of 2 ranks`, `pp messages to a higher rank`. The same for groups that do the same."""
        of = "" if self.dimension is None else f"{self.dimension} "
        if self.tag is None:
            return f"{of}groups of {len(self.ranks)} ranks"
        return f"{of}messages to a {'higher' if self.ranks[1] > self.ranks[0] else 'lower'} rank"


@dataclass(frozen=True, slots=True)
class AnySource:
    """The rank received from any rank of the group with this name: which message came is not known."""

    name: str


def encode_communicator(number: int, communicator: Communicator) -> bytes:
    """A block that gives this communicator its number in the marks of this file."""
    content = {
        "number": number,
        "name": communicator.name,
        "ranks": communicator.ranks,
        "dimension": communicator.dimension,
        "tag": communicator.tag,
    }
    return GROUP_MAGIC + json.dumps(content).encode()


def encode_any_source(name: str) -> bytes:
    return GROUP_MAGIC + json.dumps({"any_source": name}).encode()


def is_communicator(block: bytes) -> bool:
    """Whether the block is one that `encode_communicator` or `encode_any_source` wrote."""
    return block.startswith(GROUP_MAGIC)


def decode_communicator(block: bytes) -> tuple[int, Communicator] | AnySource:
    """Raises Malformed."""
    try:
        content = json.loads(block.removeprefix(GROUP_MAGIC))
        if "any_source" in content:
            return AnySource(_name(content["any_source"]))
        number, ranks, tag = content["number"], content["ranks"], content["tag"]
        dimension = None if content["dimension"] is None else _name(content["dimension"])
        if not isinstance(ranks, list) or not 0 < len(ranks) <= MAX_GROUP_RANKS:
            raise ValueError("a communicator without ranks")
        found = Communicator(_name(content["name"]), tuple(map(_number, ranks)), dimension, _tag(tag))
        if len(set(found.ranks)) < len(ranks) or (tag is not None and len(ranks) != 2):
            raise ValueError(f"ranks {ranks} are none of a communicator")
        return _number(number), found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"communicator of {len(block)} bytes: {error}") from error


def pack_kind(communicator: int, kind: int) -> int:
    """The `kind` of a mark in this file."""
    return communicator << _KIND_BITS | kind


def split_kind(packed: int) -> tuple[int, int]:
    """The number of the communicator, and the kind."""
    return packed >> _KIND_BITS, packed & ((1 << _KIND_BITS) - 1)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_GROUP_NAME:
        raise ValueError("a name of a group has at most 255 printable characters")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is not a number of 32 bits")
    return value


def _tag(value: object) -> int | None:
    """A tag may be negative."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise ValueError(f"{value!r} is not a tag")
    return value
