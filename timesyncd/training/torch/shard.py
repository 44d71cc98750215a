"""
One shard of a parameter server: its part of the parameters, the clock of each rank, and which ranks wait. It contains
no networking.

Also a model's parameters as flat buffers on the CPU, one per type, which are split into shards; and what a rank pushes:
the difference that its update made, uncompressed or compressed with error feedback.
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

from timesyncd.training.compression.compressors import Payload, QuantizedPayload, SparsePayload
from timesyncd.training.compression.interface import is_finite
from timesyncd.training.policy.encoding import Gain
from timesyncd.training.policy.policies import SSP, Decision, Policy, PolicyContext
from timesyncd.training.policy.text import E3M0, Compression, Fp16, Int8, PowerSGD, TopK, topk_count

FlatBuffers: TypeAlias = list[torch.Tensor]


class FlatParameters:
    """
    Parameters as flat buffers on the CPU, one per type. Raises ValueError for parameters that are not floating-point,
    and where there are none.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._by_dtype: dict[torch.dtype, FlatBuffers] = {}
        for parameter in parameters:
            self._by_dtype.setdefault(parameter.dtype, []).append(parameter)
        unsupported = [str(kind) for kind in self._by_dtype if not kind.is_floating_point]
        if unsupported:
            raise ValueError(f"the model has parameters of type {', '.join(unsupported)}; all must be floating-point")
        if not self._by_dtype:
            raise ValueError("the model has no parameters that require gradients")
        self.sizes = tuple(
            (str(kind), sum(part.numel() for part in parameters)) for kind, parameters in self._by_dtype.items()
        )
        self.nbytes = sum(part.nbytes for parameters in self._by_dtype.values() for part in parameters)

    def read(self) -> FlatBuffers:
        """A copy of the parameters."""
        return [
            torch.cat([parameter.detach().reshape(-1).cpu() for parameter in parameters])
            for parameters in self._by_dtype.values()
        ]

    def write(self, flats: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameters, flat in zip(self._by_dtype.values(), flats, strict=True):
                parts = torch.split(flat, [parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))


def sizes_of(flats: Iterable[torch.Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((str(flat.dtype), flat.numel()) for flat in flats)


def split_shards(flats: Iterable[torch.Tensor], shards: int) -> list[FlatBuffers]:
    """By shard, one contiguous piece of each buffer, as views. The lengths differ by one element at most."""
    pieces = [flat.tensor_split(shards) for flat in flats]
    return [[piece[shard] for piece in pieces] for shard in range(shards)]


def join_shards(pieces: Sequence[FlatBuffers]) -> FlatBuffers:
    """The inverse of `split_shards`."""
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)]


#: What is pushed of one flat buffer: a tensor of any type, or a compressed payload.
PushPart: TypeAlias = "torch.Tensor | Payload"

#: A push has one receiver, so for the gain test it costs as much as between two ranks.
_GAIN_RANKS = 2

_MAX_HALF = torch.finfo(torch.float16).max


class PushEncoder:
    """
    Encodes the pushes of one rank. What a push omits is added to the next push, also where the compression changed
    meanwhile.

    `sent_bytes`: octets of the newest push. `residuals`: what was not sent yet, one flat buffer per type; None: nothing
    was omitted so far.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.residuals: FlatBuffers | None = None
        self._compression: Compression | None = None
        self._gain: Gain | None = None

    def use(self, compression: Compression | None) -> None:
        """From the next push on. Raises ValueError for a compression that needs all ranks at once."""
        if type(compression) is PowerSGD:
            raise ValueError("powersgd reduces over all ranks at once; a parameter server allows fp16, int8 and topk")
        if type(compression) is E3M0:
            raise ValueError("e3m0 has no error feedback; a parameter server allows fp16, int8 and topk")
        if compression is not None and not isinstance(compression, Fp16 | Int8 | TopK):
            raise ValueError(f"a parameter server allows fp16, int8 and topk, and no {type(compression).__name__}")
        if compression != self._compression:
            self._gain = Gain(_GAIN_RANKS) if compression == TopK() else None
        self._compression = compression

    def encode(self, differences: FlatBuffers, shards: int) -> list[list[PushPart]]:
        """
        What to push, by shard. Differences that are not finite are sent uncompressed, so that they show in the
        parameters; the residuals then stay.
        """
        if self._compression is None and self.residuals is None:
            pieces: Sequence[Sequence[PushPart]] = split_shards(differences, shards)
        else:
            pieces = self._compressed(differences, shards)
        self.sent_bytes = sum(nbytes(part) for piece in pieces for part in piece)
        return [list(piece) for piece in pieces]

    def _compressed(self, differences: FlatBuffers, shards: int) -> list[list[PushPart]]:
        if not all(bool(is_finite(each)) for each in differences):
            return [list[PushPart](piece) for piece in split_shards(differences, shards)]
        residuals = self.residuals or [torch.zeros_like(flat) for flat in differences]
        whole = [flat + residual for flat, residual in zip(differences, residuals, strict=True)]
        parts = [[self._part(flat) for flat in piece] for piece in split_shards(whole, shards)]
        if self._compression is None:
            self.residuals = None
            return parts
        sent = join_shards(
            [_decoded(piece, part) for piece, part in zip(split_shards(whole, shards), parts, strict=True)]
        )
        self.residuals = [flat - decoded for flat, decoded in zip(whole, sent, strict=True)]
        if self._gain is not None:
            self._gain.add_step(*_squares(sent, whole))
        return parts

    def _part(self, flat: torch.Tensor) -> PushPart:
        """An empty buffer, where a shard has no elements of a type, stays empty."""
        ratio = self._gain.ratio if self._gain is not None else getattr(self._compression, "ratio", None)
        match self._compression:
            case Fp16():
                return flat.clamp(-_MAX_HALF, _MAX_HALF).half()
            case Int8() if len(flat):
                return QuantizedPayload(flat)
            case TopK() if len(flat) and ratio is not None:
                return SparsePayload(flat, topk_count(len(flat), ratio), flat.dtype)
        return flat

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self.residuals, "gain": self._gain and asdict(self._gain)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.residuals = state["residuals"]
        if self._gain is not None and state["gain"] is not None:
            self._gain = Gain(**state["gain"])


def add_parts(flats: Iterable[torch.Tensor], parts: Iterable[PushPart]) -> FlatBuffers:
    """The sums, as new tensors: the old ones may be in transfer to a rank."""
    return [_add_part(flat, part) for flat, part in zip(flats, parts, strict=True)]


def nbytes(part: PushPart) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else part.octets.nbytes


def _add_part(flat: torch.Tensor, part: PushPart) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return flat + part.to(flat.dtype)
    total = flat.clone()
    part.add(total, part.octets, 1)
    return total


def _decoded(flats: FlatBuffers, parts: Sequence[PushPart]) -> FlatBuffers:
    return add_parts([torch.zeros_like(flat) for flat in flats], parts)


def _squares(*sides: FlatBuffers) -> tuple[float, ...]:
    """The squared norm of each side; zeros where one is not finite."""
    norms = [
        math.fsum(torch.linalg.vector_norm(flat, dtype=torch.float64).item() ** 2 for flat in side) for side in sides
    ]
    return tuple(norms) if all(map(math.isfinite, norms)) else (0.0,) * len(norms)


_Value = TypeVar("_Value")

#: The clock of a rank that takes no more steps, so that no rank waits for it.
DONE = sys.maxsize


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The parameters after `version` updates of all ranks together. The tensors are never written to."""

    version: int
    parameters: FlatBuffers


@dataclass(frozen=True, slots=True)
class RejectedRequest:
    """The reply of a shard that has failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobSignature:
    """What must be equal on all ranks of a job. `model`: each type's name and number of elements."""

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
    """A rank that waits for a reply. `is_ready`: whether the shard may reply."""

    rank: int
    is_ready: Callable[[], bool]
    reply: ParametersFuture
    since_ns: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """Why the ranks cannot continue. `rank` is the silent one, None where all wait for each other."""

    rank: int | None
    reason: str


class Shard:
    """
    A rank's clock is the number of updates that it pushed. The shard replies to a rank when the policy no longer
    decides WAIT; the reply contains every update up to the clock of the slowest rank. Where the policy lets no rank
    ahead (`ssp(s=0)`), the updates of one clock are added together, in the order of the ranks, when all have arrived;
    otherwise each is added when it arrives.

    All methods may be called in any thread. `finished` is set when all ranks are done, and when the shard failed.
    `failed`: why; empty: it has not.
    """

    def __init__(self, ranks: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.failed = ""
        self.finished = threading.Event()
        self._ranks = ranks
        self._now_ns = now_ns
        self._lock = (
            threading.RLock()
        )  # reentrant: a rank that gets its reply may send its next request in the same thread
        self._signature: JobSignature | None = None
        self._policy: Policy = SSP(0)
        self._parameters = ServerParameters(0, [])
        self._clocks = [0] * ranks
        self._last_request_ns = [now_ns()] * ranks
        self._pending: dict[tuple[int, int], Sequence[PushPart]] = {}
        self._waiting: list[_Waiting] = []
        self._joined: set[int] = set()
        self._joins = 0

    def join(self, rank: int, signature: JobSignature, clock: int, start: ServerParameters | None) -> ParametersFuture:
        """Start at this clock. The shard replies when all ranks have joined; one of them provides the parameters."""
        with self._lock:
            self._signature = self._signature or signature
            if signature != self._signature:
                self.failed = self.failed or f"rank {rank} joins with {signature}; other ranks with {self._signature}"
            elif rank in self._joined:
                self.failed = self.failed or f"two processes join as rank {rank} of {signature}"
            self._clocks[rank] = clock
            self._parameters = start or self._parameters
            number = self._joins
            self._joined.add(rank)
            if len(self._joined) == self._ranks:
                self._joined.clear()
                self._joins += 1
            return self._wait(rank, lambda: self._joins > number)

    def push(
        self, rank: int, clock: int, difference: Sequence[PushPart]
    ) -> torch.futures.Future[int | RejectedRequest]:
        """
        Add this rank's next update. The shard replies at once, with the version before it; the update may be computed
        from an older one.
        """
        with self._lock:
            version = self._parameters.version
            expected = self._clocks[rank] + 1
            if not self.failed and clock != expected:
                self.failed = (
                    f"rank {rank} pushed update {clock}, and update {expected} was expected: the ranks are out of step"
                )
            self._last_request_ns[rank] = self._now_ns()
            if not self.failed:
                self._clocks[rank] = clock
                self._pending[clock, rank] = difference
            self._advance()
            return _completed(RejectedRequest(self.failed) if self.failed else version)

    def pull(self, rank: int, clock: int) -> ParametersFuture:
        """
        The shard replies when this rank's update of that clock has arrived, and the policy lets the rank continue.
        """
        with self._lock:
            self._last_request_ns[rank] = self._now_ns()
            return self._wait(rank, lambda: self._clocks[rank] >= clock and not self._must_wait(clock))

    def read(self, rank: int) -> ParametersFuture:
        """The present parameters."""
        with self._lock:
            return self._wait(rank, lambda: True)

    def finish(self, rank: int) -> ParametersFuture:
        """This rank takes no more steps. The shard replies when no rank does."""
        with self._lock:
            self._clocks[rank] = DONE
            return self._wait(rank, lambda: self._slowest() == DONE)

    def use(self, policy: Policy) -> torch.futures.Future[None | RejectedRequest]:
        """From now on, also for ranks that wait already."""
        with self._lock:
            self._policy = policy
            self._advance()
        return _completed(None)

    def fail(self, reason: str) -> torch.futures.Future[None | RejectedRequest]:
        """Reject all waiting and future requests. The first reason counts."""
        with self._lock:
            self.failed = self.failed or reason
            self._advance()
        return _completed(None)

    def overdue(self, patience_ns: int) -> Overdue | None:
        """Which rank was silent for longer than this while another waited for it, or that all wait for each other."""
        with self._lock:
            if not self._waiting:
                return None
            first, now_ns = self._waiting[0], self._now_ns()
            absent = set(range(self._ranks)) - {waiting.rank for waiting in self._waiting}
            if not absent and now_ns - self._waiting[-1].since_ns > patience_ns:
                return Overdue(None, "all ranks wait for each other: the ranks are out of step")
            for rank in sorted(absent):
                silent_ns = now_ns - max(first.since_ns, self._last_request_ns[rank])
                if silent_ns > patience_ns:
                    silence = f"pushed no update for {silent_ns / 1e9:.0f} s, while rank {first.rank} waited"
                    return Overdue(rank, f"rank {rank} {silence}")
            return None

    def _slowest(self) -> int:
        return min(self._clocks)

    def _must_wait(self, clock: int) -> bool:
        """Whether a rank that has pushed `clock` updates must wait."""
        context = PolicyContext(
            step=clock - 1,
            steps_since_sync=1,
            ranks=self._ranks,
            rounds=clock - 1,
            updates_ahead=clock - self._slowest(),
        )
        return self._policy.decide(context) is Decision.WAIT

    def _wait(self, rank: int, is_ready: Callable[[], bool]) -> ParametersFuture:
        reply: ParametersFuture = torch.futures.Future()
        self._waiting.append(_Waiting(rank, is_ready, reply, self._now_ns()))
        self._advance()
        return reply

    def _advance(self) -> None:
        """Add the updates that may be added, and reply to the ranks that may continue."""
        self._add_updates()
        ready: list[_Waiting] = []
        blocked: list[_Waiting] = []
        for waiting in self._waiting:
            (ready if self.failed or waiting.is_ready() else blocked).append(waiting)
        self._waiting = blocked
        if self.failed or self._slowest() == DONE:
            self.finished.set()
        for waiting in ready:
            waiting.reply.set_result(RejectedRequest(self.failed) if self.failed else self._parameters)

    def _add_updates(self) -> None:
        slowest = self._slowest()
        together = self._must_wait(slowest + 1)
        for clock, rank in sorted(self._pending):
            if together and clock > slowest:
                return
            self._parameters = ServerParameters(
                self._parameters.version + 1, add_parts(self._parameters.parameters, self._pending.pop((clock, rank)))
            )


def _completed(value: _Value) -> torch.futures.Future[_Value]:
    reply: torch.futures.Future[_Value] = torch.futures.Future()
    reply.set_result(value)
    return reply
