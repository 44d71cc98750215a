"""
One shard of a parameter server: its part of the parameters, each rank's clock, and who waits for whom. No network in it.

A model's parameters as flat buffers on the CPU, one a type, and these cut into shards.

What a rank pushes to a parameter server: the difference that its update made, whole or compressed with error feedback.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from timesyncd.training.compression.gathered import Payload, QuantizedPayload, SparsePayload
from timesyncd.training.compression.interface import is_finite
from timesyncd.training.policy.gain import Gain
from timesyncd.training.policy.policies import SSP, Decision, Policy, PolicyContext
from timesyncd.training.policy.text import Compression, Fp16, Int8, PowerSGD, TopK, topk_count

FlatBuffers: TypeAlias = list[torch.Tensor]


class FlatParameters:
    """Raises ValueError for parameters that are no floats, and where there are none."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._of: dict[torch.dtype, FlatBuffers] = {}
        for parameter in parameters:
            self._of.setdefault(parameter.dtype, []).append(parameter)
        strange = [str(kind) for kind in self._of if not kind.is_floating_point]
        if strange or not self._of:
            raise ValueError(f"a model with parameters of floats is wanted, not of {', '.join(strange) or 'none'}")
        self.sizes = tuple(
            (str(kind), sum(part.numel() for part in parameters)) for kind, parameters in self._of.items()
        )
        self.nbytes = sum(part.nbytes for parameters in self._of.values() for part in parameters)

    def read(self) -> FlatBuffers:
        """A copy."""
        return [
            torch.cat([parameter.detach().reshape(-1).cpu() for parameter in parameters])
            for parameters in self._of.values()
        ]

    def write(self, flats: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameters, flat in zip(self._of.values(), flats, strict=True):
                parts = torch.split(flat, [parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))


def sizes_of(flats: Iterable[torch.Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((str(flat.dtype), flat.numel()) for flat in flats)


def split_shards(flats: Iterable[torch.Tensor], shards: int) -> list[FlatBuffers]:
    """Of each buffer one contiguous piece a shard; they differ by one element at most. Views."""
    pieces = [flat.tensor_split(shards) for flat in flats]
    return [[piece[shard] for piece in pieces] for shard in range(shards)]


def join_shards(pieces: Sequence[FlatBuffers]) -> FlatBuffers:
    """What `split_shards` has cut."""
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)]


#: Of one flat buffer: itself, in whatever type, or compressed.
PushPart: TypeAlias = "torch.Tensor | Payload"

#: A push has one receiver: for the gain test it costs what it costs between two ranks.
_ENDS = 2

_LARGEST_HALF = torch.finfo(torch.float16).max


class PushEncoder:
    """
    Of one rank. What a push leaves out is added to the next one, also where that one goes another way.

    `sent_bytes`: of the newest push. `kept`: what was not sent, a flat buffer a type; None: nothing was left out so far.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.kept: FlatBuffers | None = None
        self._compression: Compression | None = None
        self._gain: Gain | None = None

    def use(self, compression: Compression | None) -> None:
        """From the next push on. Raises ValueError for one that takes all ranks at once."""
        if type(compression) is PowerSGD:
            raise ValueError("powersgd reduces over all ranks at once: to a parameter server go fp16, int8 and topk")
        if compression != self._compression:
            self._gain = Gain(_ENDS) if compression == TopK() else None
        self._compression = compression

    def packed(self, differences: FlatBuffers, shards: int) -> list[list[PushPart]]:
        """By shard. What is not finite goes as it is, for whoever looks at the parameters to see; what was kept stays kept."""
        if self._compression is None and self.kept is None:
            pieces: Sequence[Sequence[PushPart]] = split_shards(differences, shards)
        else:
            pieces = self._compressed(differences, shards)
        self.sent_bytes = sum(nbytes(part) for piece in pieces for part in piece)
        return [list(piece) for piece in pieces]

    def _compressed(self, differences: FlatBuffers, shards: int) -> list[list[PushPart]]:
        if not all(map(is_finite, differences)):
            return [list[PushPart](piece) for piece in split_shards(differences, shards)]
        kept = self.kept or [torch.zeros_like(flat) for flat in differences]
        whole = [flat + residual for flat, residual in zip(differences, kept, strict=True)]
        parts = [[self._part(flat) for flat in piece] for piece in split_shards(whole, shards)]
        if self._compression is None:
            self.kept = None
            return parts
        sent = join_shards(
            [_decoded(piece, part) for piece, part in zip(split_shards(whole, shards), parts, strict=True)]
        )
        self.kept = [flat - decoded for flat, decoded in zip(whole, sent, strict=True)]
        if self._gain is not None:
            self._gain.saw(*_squares(sent, whole))
        return parts

    def _part(self, flat: torch.Tensor) -> PushPart:
        """Where a shard has nothing of a type, nothing is sent of it."""
        ratio = self._gain.ratio if self._gain is not None else getattr(self._compression, "ratio", None)
        match self._compression:
            case Fp16():
                return flat.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()
            case Int8() if len(flat):
                return QuantizedPayload(flat)
            case TopK() if len(flat) and ratio is not None:
                return SparsePayload(flat, topk_count(len(flat), ratio), flat.dtype)
        return flat

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "gain": self._gain and asdict(self._gain)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]
        if self._gain is not None and state["gain"] is not None:
            self._gain = Gain(**state["gain"])


def add_parts(flats: Iterable[torch.Tensor], parts: Iterable[PushPart]) -> FlatBuffers:
    """New tensors, since the old ones may be on their way to a rank."""
    return [_plus(flat, part) for flat, part in zip(flats, parts, strict=True)]


def nbytes(part: PushPart) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else part.octets.nbytes


def _plus(flat: torch.Tensor, part: PushPart) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return flat + part.to(flat.dtype)
    total = flat.clone()
    part.add(total, part.octets, 1)
    return total


def _decoded(flats: FlatBuffers, parts: Sequence[PushPart]) -> FlatBuffers:
    return add_parts([torch.zeros_like(flat) for flat in flats], parts)


def _squares(*sides: FlatBuffers) -> tuple[float, ...]:
    """The squared norm of each side; zeros where one has no number."""
    norms = [
        math.fsum(torch.linalg.vector_norm(flat, dtype=torch.float64).item() ** 2 for flat in side) for side in sides
    ]
    return tuple(norms) if all(map(math.isfinite, norms)) else (0.0,) * len(norms)


_Value = TypeVar("_Value")

#: The clock of a rank that takes no more steps, and holds nobody up.
DONE = sys.maxsize


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """Parameters after so many updates of all ranks together. The tensors are never written to."""

    version: int
    parameters: FlatBuffers


@dataclass(frozen=True, slots=True)
class RejectedRequest:
    reason: str


@dataclass(frozen=True, slots=True)
class JobSignature:
    """What all ranks of a job say alike. `model`: each type's name and number of elements."""

    protocol: int
    job: str
    attempt: int
    ranks: int
    model: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        model = ", ".join(f"{elements} {kind}" for kind, elements in self.model)
        return f"job {self.job!r}, attempt {self.attempt}, {self.ranks} ranks, {model}, protocol {self.protocol}"


ParametersFuture: TypeAlias = "torch.futures.Future[ServerParameters | RejectedRequest]"


@dataclass(frozen=True, slots=True)
class _Waiting:
    rank: int
    may_go: Callable[[], bool]
    answer: ParametersFuture
    since_ns: int


class Shard:
    """
    A rank's clock is the number of updates that it pushed. A rank is answered when the policy says no WAIT any more: what it gets then
    holds every update up to the clock of the slowest rank. Where the policy lets nobody ahead (`ssp(s=0)`), updates of one clock are
    added together, in the order of the ranks, when all are there; else each as it comes.

    All may be called in any thread. `over` is set when all ranks are done, and when it failed.
    """

    def __init__(self, ranks: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.failed = ""
        self.over = threading.Event()
        self._ranks = ranks
        self._now_ns = now_ns
        self._lock = threading.RLock()  # who is answered may ask the next thing
        self._identity: JobSignature | None = None
        self._policy: Policy = SSP(0)
        self._held = ServerParameters(0, [])
        self._clocks = [0] * ranks
        self._heard_ns = [now_ns()] * ranks
        self._kept: dict[tuple[int, int], Sequence[PushPart]] = {}
        self._waiting: list[_Waiting] = []
        self._entered: set[int] = set()
        self._entries = 0

    def enter(self, rank: int, identity: JobSignature, clock: int, start: ServerParameters | None) -> ParametersFuture:
        """Begin at this clock. Answered when all ranks have; one of them brings the parameters."""
        with self._lock:
            self._identity = self._identity or identity
            if identity != self._identity:
                self.failed = self.failed or f"rank {rank} is of {identity}; others of {self._identity}"
            elif rank in self._entered:
                self.failed = self.failed or f"there are two of rank {rank} in {identity}"
            self._clocks[rank] = clock
            self._held = start or self._held
            mine = self._entries
            self._entered.add(rank)
            if len(self._entered) == self._ranks:
                self._entered.clear()
                self._entries += 1
            return self._wait(rank, lambda: self._entries > mine)

    def push(
        self, rank: int, clock: int, difference: Sequence[PushPart]
    ) -> torch.futures.Future[int | RejectedRequest]:
        """Add this rank's next update. Answered at once, with the version as it came: what it was computed from may be older."""
        with self._lock:
            version = self._held.version
            expected = self._clocks[rank] + 1
            if not self.failed and clock != expected:
                self.failed = f"rank {rank} pushed update {clock} where {expected} was due: its ranks are out of step"
            self._heard_ns[rank] = self._now_ns()
            if not self.failed:
                self._clocks[rank] = clock
                self._kept[clock, rank] = difference
            self._turn()
            return _answered(RejectedRequest(self.failed) if self.failed else version)

    def pull(self, rank: int, clock: int) -> ParametersFuture:
        """Answered when this rank's update of that clock is in, and the policy lets it go on."""
        with self._lock:
            self._heard_ns[rank] = self._now_ns()
            return self._wait(rank, lambda: self._clocks[rank] >= clock and not self._waits(clock))

    def read(self, rank: int) -> ParametersFuture:
        """What is there now."""
        with self._lock:
            return self._wait(rank, lambda: True)

    def finish(self, rank: int) -> ParametersFuture:
        """This rank takes no more steps. Answered when none does."""
        with self._lock:
            self._clocks[rank] = DONE
            return self._wait(rank, lambda: self._slowest() == DONE)

    def follow(self, policy: Policy) -> torch.futures.Future[None | RejectedRequest]:
        """From now on, for those who wait as well."""
        with self._lock:
            self._policy = policy
            self._turn()
        return _answered(None)

    def fail(self, reason: str) -> torch.futures.Future[None | RejectedRequest]:
        """All who wait and all who come are refused; the first reason counts."""
        with self._lock:
            self.failed = self.failed or reason
            self._turn()
        return _answered(None)

    def overdue(self, patience_ns: int) -> str:
        """Who was silent for longer while somebody waited for it, or that all wait for each other; empty: neither."""
        with self._lock:
            if not self._waiting:
                return ""
            first, now_ns = self._waiting[0], self._now_ns()
            absent = set(range(self._ranks)) - {waiting.rank for waiting in self._waiting}
            if not absent and now_ns - self._waiting[-1].since_ns > patience_ns:
                return "all ranks wait for each other: they are out of step"
            for rank in sorted(absent):
                silent_ns = now_ns - max(first.since_ns, self._heard_ns[rank])
                if silent_ns > patience_ns:
                    return f"rank {rank} pushed no update for {silent_ns / 1e9:.0f} s, while rank {first.rank} waited"
            return ""

    def _slowest(self) -> int:
        return min(self._clocks)

    def _waits(self, clock: int) -> bool:
        """Whether the policy holds a rank that has pushed so many updates."""
        seen = PolicyContext(
            step=clock - 1, since=1, ranks=self._ranks, rounds=clock - 1, ahead=clock - self._slowest()
        )
        return self._policy.decide(seen) is Decision.WAIT

    def _wait(self, rank: int, may_go: Callable[[], bool]) -> ParametersFuture:
        answer: ParametersFuture = torch.futures.Future()
        self._waiting.append(_Waiting(rank, may_go, answer, self._now_ns()))
        self._turn()
        return answer

    def _turn(self) -> None:
        """Add what may be added, answer who may go."""
        self._add()
        going: list[_Waiting] = []
        staying: list[_Waiting] = []
        for waiting in self._waiting:
            (going if self.failed or waiting.may_go() else staying).append(waiting)
        self._waiting = staying
        if self.failed or self._slowest() == DONE:
            self.over.set()
        for waiting in going:
            waiting.answer.set_result(RejectedRequest(self.failed) if self.failed else self._held)

    def _add(self) -> None:
        slowest = self._slowest()
        together = self._waits(slowest + 1)
        for clock, rank in sorted(self._kept):
            if together and clock > slowest:
                return
            self._held = ServerParameters(
                self._held.version + 1, add_parts(self._held.parameters, self._kept.pop((clock, rank)))
            )


def _answered(value: _Value) -> torch.futures.Future[_Value]:
    answer: torch.futures.Future[_Value] = torch.futures.Future()
    answer.set_result(value)
    return answer
