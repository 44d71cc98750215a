"""
The datagrams that a training job's rank sends to its node's daemon: the marks of what it timed, and requests for a
policy.

schemas/joblink.md specifies them byte by byte. Every change of a layout increments its version.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from typing import Self

from timesyncd.bound import UNKNOWN_PAST_PPB, ClockStatus
from timesyncd.errors import Malformed
from timesyncd.ipc.job_segment import MAX_POLICY
from timesyncd.ipc.wire_types import Int64
from timesyncd.sample import identity_number, identity_text

SOCKET_NAME = "job.sock"

#: The most marks of a datagram, and the most octets of UTF-8 of a name.
MAX_MARKS = 512
MAX_NAME = 255

_MAGIC = b"TSJL"
_VERSION = 3
_HEAD = struct.Struct("<4sBBBBBxHIIIqqqq8s16sqqqqq")
_MARK = struct.Struct("<qIIqqqq")
MARK_SIZE = _MARK.size
pack_mark = _MARK.pack_into
unpack_marks = _MARK.iter_unpack

_REQUEST_MAGIC = b"TSJP"
_REQUEST_VERSION = 1
_REQUEST_HEAD = struct.Struct("<4sBBxx8s")

_STEPS_OF_AN_EPOCH = 2**32
_EPOCHS = 2**31


class Trait(Flag):
    """What the readers of marks need to know of a kind."""

    #: Every rank has a mark of it, so the hub joins them over all ranks.
    COLLECTIVE = auto()
    #: From `begin_ns` to `end_ns` the rank only waits: this time counts as synchronization overhead.
    WAITED_FOR = auto()
    #: It completes on no rank before the last rank has arrived.
    NEEDS_ALL_RANKS = auto()
    #: The same, and with every size of the data: a rank that leaves before another arrives contradicts a clock.
    CLOCK_EVIDENCE = auto()
    #: Every rank contributes as many bytes.
    EQUAL_SIZES = auto()
    #: A bucket of gradients.
    BUCKET = auto()
    #: A request to a parameter server, and its reply.
    REQUEST = auto()
    #: One of the two ends of a message between two ranks, which the hub joins by `sync`.
    MESSAGE = auto()
    #: The hub keeps it in the window of the job's newest steps.
    IN_STEP = auto()
    #: A number of the training, made up to some steps later: no sign of where the rank is.
    VALUE = auto()
    #: It comes with the step's own mark, which shows where the rank is.
    OF_STEP = auto()

    NONE = 0
    ANY_COLLECTIVE = COLLECTIVE | WAITED_FOR | IN_STEP
    COMPLETE_COLLECTIVE = ANY_COLLECTIVE | NEEDS_ALL_RANKS


class Kind(IntEnum):
    """
    What a mark is of: number, label and traits. This is the only table of the kinds; every reader selects from it with
    `kinds_with`.

    Numbers and labels are part of the wire format: append, never renumber. schemas/joblink.md lists them. A broadcast,
    a reduce, a gather and a scatter have a root, so a rank may leave before another arrives. What the hook of HOOK does
    with a bucket is not known.
    """

    label: str
    traits: Trait

    CUSTOM = 0, "custom", Trait.ANY_COLLECTIVE
    ALL_REDUCE = 1, "all_reduce", Trait.COMPLETE_COLLECTIVE | Trait.CLOCK_EVIDENCE | Trait.EQUAL_SIZES
    BROADCAST = 2, "broadcast", Trait.ANY_COLLECTIVE | Trait.EQUAL_SIZES
    BARRIER = 3, "barrier", Trait.COMPLETE_COLLECTIVE | Trait.CLOCK_EVIDENCE
    PUSH = 4, "push", Trait.REQUEST | Trait.WAITED_FOR | Trait.IN_STEP
    PULL = 5, "pull", Trait.REQUEST | Trait.WAITED_FOR | Trait.IN_STEP
    BUCKET = 6, "bucket", Trait.COMPLETE_COLLECTIVE | Trait.CLOCK_EVIDENCE | Trait.BUCKET
    ALL_GATHER = 7, "all_gather", Trait.COMPLETE_COLLECTIVE
    REDUCE_SCATTER = 8, "reduce_scatter", Trait.COMPLETE_COLLECTIVE
    ALL_TO_ALL = 9, "all_to_all", Trait.COMPLETE_COLLECTIVE
    REDUCE = 10, "reduce", Trait.ANY_COLLECTIVE | Trait.EQUAL_SIZES
    GATHER = 11, "gather", Trait.ANY_COLLECTIVE
    SCATTER = 12, "scatter", Trait.ANY_COLLECTIVE
    STEP = 13, "step", Trait.IN_STEP
    STALENESS = 14, "staleness", Trait.NONE
    SEND = 15, "send", Trait.MESSAGE
    RECEIVE = 16, "receive", Trait.MESSAGE
    HOOK = 17, "bucket", Trait.ANY_COLLECTIVE | Trait.BUCKET
    REPLICA = 18, "replica", Trait.NONE
    ARRIVAL = 19, "arrival", Trait.NONE
    ALIVE = 20, "alive", Trait.NONE
    LEFT = 21, "left", Trait.NONE
    LOSS = 22, "loss", Trait.VALUE
    VALIDATION = 23, "validation", Trait.VALUE
    LEARNING = 24, "learning", Trait.VALUE
    OWN_TIME = 25, "own_time", Trait.IN_STEP | Trait.OF_STEP
    OWN_PART = 26, "own_part", Trait.IN_STEP | Trait.OF_STEP

    def __new__(cls, number: int, label: str = "", traits: Trait = Trait.NONE) -> Self:
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.label, kind.traits = label, traits
        return kind


class OwnPart(IntEnum):
    """
    The parts of a step that hooks know, as the number of an OWN_PART: append, never renumber. What is left of the rank's
    own time is its forward pass and all other work of the training loop.
    """

    DATA = 1
    BACKWARD = 2
    OPTIMIZER = 3


def kinds_with(trait: Trait) -> frozenset[Kind]:
    """The kinds that have this trait (or all of these)."""
    return frozenset(kind for kind in Kind if trait in kind.traits)


_LABELS = {int(kind): kind.label for kind in Kind}


def loss_word(loss: float) -> int:
    """A loss as the number that a mark has: the octets of a single-precision float, which is at least 0."""
    try:
        octets = struct.pack("<f", loss)
    except OverflowError:
        octets = struct.pack("<f", math.copysign(math.inf, loss))
    return int.from_bytes(octets, "little")


def loss_of(word: int) -> float:
    """
    The loss in a mark. It may be infinite or no number: so the job computed it. Any local user can send any number: one
    that no loss is written as is no number either.
    """
    if not 0 <= word < 1 << 32:
        return math.nan
    loss: float = struct.unpack("<f", word.to_bytes(4, "little"))[0]
    return loss


def kind_text(number: int) -> str:
    """For people: `all_reduce`, or `kind 99` where this version does not know the number."""
    return _LABELS.get(number) or f"kind {number}"


def step_key(epoch: int, step: int) -> int:
    """The key of a step in datagrams, messages and plans. Raises ValueError where either number is out of range."""
    if not (0 <= step < _STEPS_OF_AN_EPOCH and 0 <= epoch < _EPOCHS):
        raise ValueError(f"epoch {epoch}, step {step} is out of range: a step is 0 to 2^32 - 1, an epoch 0 to 2^31 - 1")
    return epoch << 32 | step


def split_step(key: int) -> tuple[int, int]:
    """Epoch and step of a key."""
    return key >> 32, key & (_STEPS_OF_AN_EPOCH - 1)


def step_text(key: int) -> str:
    """For people: the step, preceded by its epoch unless that is 0: `2:1203`."""
    epoch, step = split_step(key)
    return f"{epoch}:{step}" if epoch else str(step)


@dataclass(frozen=True, slots=True)
class Mark:
    """
    What a rank timed in the step with the key `step`: three readings of its CLOCK_REALTIME in nanoseconds, and a number
    of bytes.

    A synchronization: the rank was ready for it, only waited from `begin_ns` on, and it was complete here. A STEP: it
    began; its last own gradient was ready (equal to `arrival_ns`: unknown); its parameters were updated. PUSH and PULL:
    request, request, reply. SEND and RECEIVE: given to the transport, received completely; `sync` is the message's
    number. STALENESS: `bytes` is the number of updates by which the parameters were behind. REPLICA: `bytes` is a hash
    of the parameters. ARRIVAL: since `arrival_ns` the rank is inside a synchronization, and still was at `end_ns`;
    `bytes` is that one's kind, `sync` how many of its kind came before it in the step. ALIVE: at `end_ns` the rank's
    process ran, and was inside none. LEFT: at `end_ns` it closed its job; `bytes` 1: after an error that it did not
    handle. LOSS and VALIDATION: `bytes` is the loss of the step, as `loss_word` writes it. LEARNING: so is
    the least share by which the loss is above its reference's; NaN: it is not. OWN_TIME: the step of a rank that synchronizes in groups, from `arrival_ns` to `end_ns`. In all of them
    together it only waited as long as from `begin_ns` to `end_ns`. `sync` is the number of its work: ranks with the
    same number do the same; 0: unknown. `bytes` 1: calls have no mark, so for how long it waited is unknown. OWN_PART: in the
    part `sync` (OwnPart) of such a step, which began at `arrival_ns` and `begin_ns`, its own time is as long as from
    there to `end_ns`; a part that has no mark had none.
    """

    step: Int64
    sync: Int64
    kind: Int64
    arrival_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    bytes: Int64


@dataclass(frozen=True, slots=True)
class Header:
    """
    The sender of a datagram, and how well its clock was known at that time.

    `node` is the rank's name for its host. Ranks with equal `boot_id` and `time_namespace` read one clock. Since the
    rank's start, `lost` counts the marks that it dropped, and `own_overhead_ns` is the cost of metering. `joined_ns`
    (CLOCK_BOOTTIME at which it joined) distinguishes this process from a former one with the same rank. The bounds may
    have been larger by `past_growth_ppb` before this was sent: the clock may have been slewed so fast since a mark.
    """

    job: str
    attempt: int
    rank: int
    world_size: int
    node: str
    boot_id: int
    time_namespace: int
    real_minus_boot_ns: int
    status: ClockStatus
    gm_bound_ns: int | None
    utc_bound_ns: int | None
    utc_seconds_removed: int | None
    grandmaster_identity: str | None
    lost: int
    own_overhead_ns: int = 0
    joined_ns: int = 0
    past_growth_ppb: int = UNKNOWN_PAST_PPB


@dataclass(frozen=True, slots=True)
class Datagram:
    header: Header
    marks: tuple[Mark, ...]


def job_id(uid: int, job: str, attempt: int) -> str:
    """The id of a job, which names its segment and its topics: 16 hexadecimal digits."""
    return hashlib.sha256(f"{uid}/{job}/{attempt}".encode()).hexdigest()[:16]


#: The parts into which jobs fall, by their ids: a hub that owns some of the jobs owns whole parts.
JOB_PARTS = tuple(f"{number:02x}" for number in range(256))


def job_part(job_id: str) -> str:
    """The part of a job, which the topic of its marks names: the first two digits of its id."""
    return job_id[:2]


def encode_header(header: Header, mark_count: int) -> bytes:
    """
    A datagram up to its marks, which follow as `pack_mark` writes them. Raises struct.error for a number out of range.
    """
    job, node = header.job.encode(), header.node.encode()
    identity = header.grandmaster_identity
    optional = (header.gm_bound_ns, header.utc_bound_ns, header.utc_seconds_removed, identity)
    return (
        _HEAD.pack(
            _MAGIC,
            _VERSION,
            header.status,
            sum(1 << bit for bit, value in enumerate(optional) if value is not None),
            len(job),
            len(node),
            mark_count,
            header.attempt,
            header.rank,
            header.world_size,
            header.gm_bound_ns or 0,
            header.utc_bound_ns or 0,
            header.utc_seconds_removed or 0,
            header.real_minus_boot_ns,
            (identity_number(identity) if identity else 0).to_bytes(8, "big"),
            header.boot_id.to_bytes(16, "big"),
            header.time_namespace,
            header.lost,
            header.own_overhead_ns,
            header.joined_ns,
            header.past_growth_ppb,
        )
        + job
        + node
    )


def decode(data: bytes) -> Datagram:
    """
    The datagram in `data`. Raises Malformed for anything that `encode_header` and `pack_mark` cannot have written.
    """
    try:
        return _decode(data)
    except (struct.error, ValueError) as error:
        raise Malformed(f"job datagram of {len(data)} bytes: {error}") from error


def _decode(data: bytes) -> Datagram:
    (
        magic, version, status, present, job_length, node_length, mark_count, attempt, rank, world_size,
        gm_bound_ns, utc_bound_ns, utc_seconds_removed, real_minus_boot_ns, identity, boot, namespace, lost,
        own_overhead_ns, joined_ns, past_growth_ppb,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"magic {magic!r} version {version} instead of {_MAGIC!r} version {_VERSION}")
    names = _HEAD.size + job_length
    body = names + node_length
    if mark_count > MAX_MARKS or len(data) != body + mark_count * MARK_SIZE:
        raise ValueError(f"its length does not match its {mark_count} marks (at most {MAX_MARKS})")
    if not job_length or rank >= world_size:
        raise ValueError(f"rank {rank} of {world_size} ranks, in a job with a name of {job_length} bytes")
    if min(gm_bound_ns, utc_bound_ns, namespace, lost, own_overhead_ns, joined_ns, past_growth_ppb) < 0:
        raise ValueError("a bound, a count, a rate or a duration is negative")
    header = Header(
        job=data[_HEAD.size : names].decode(),
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        node=data[names:body].decode(),
        boot_id=int.from_bytes(boot, "big"),
        time_namespace=namespace,
        real_minus_boot_ns=real_minus_boot_ns,
        status=ClockStatus(status),
        gm_bound_ns=gm_bound_ns if present & 1 else None,
        utc_bound_ns=utc_bound_ns if present & 2 else None,
        utc_seconds_removed=utc_seconds_removed if present & 4 else None,
        grandmaster_identity=identity_text(int.from_bytes(identity, "big")) if present & 8 else None,
        lost=lost,
        own_overhead_ns=own_overhead_ns,
        joined_ns=joined_ns,
        past_growth_ppb=past_growth_ppb,
    )
    return Datagram(header, tuple(Mark(*fields) for fields in unpack_marks(data[body:])))


def encode_request(job: str, policy: str) -> bytes:
    """
    A request that the ranks of the job with this id follow `policy`. Raises ValueError for a bad id and for a bad text.
    """
    text = policy.encode("ascii")
    if not 0 < len(text) <= MAX_POLICY or not policy.isprintable():
        raise ValueError(f"a policy has 1 to {MAX_POLICY} printable ASCII characters; this one has {len(text)} octets")
    return _REQUEST_HEAD.pack(_REQUEST_MAGIC, _REQUEST_VERSION, len(text), _job_id_octets(job)) + text


def is_request(data: bytes) -> bool:
    """Whether a datagram is a request for a policy; all others hold marks or are malformed."""
    return data.startswith(_REQUEST_MAGIC)


def decode_request(data: bytes) -> tuple[str, str]:
    """
    The id of a job and the policy requested for it. Raises Malformed for anything that `encode_request` cannot have
    written.
    """
    try:
        _, _, length, job = _REQUEST_HEAD.unpack_from(data)
        policy = data[_REQUEST_HEAD.size :].decode("ascii")
        if encode_request(job.hex(), policy) != data:
            raise ValueError(f"version {data[4]} instead of {_REQUEST_VERSION}, or its length is not {length}")
    except (struct.error, ValueError) as error:
        raise Malformed(f"request of {len(data)} bytes: {error}") from error
    return job.hex(), policy


def _job_id_octets(job: str) -> bytes:
    octets = bytes.fromhex(job)
    if len(octets) != 8:
        raise ValueError(f"{job!r} is not the id of a job, which has 16 hexadecimal digits")
    return octets
