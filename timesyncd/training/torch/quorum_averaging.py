"""
Local SGD and DiLoCo for ranks that may be lost, and come again, while the others go on.

No group of all ranks exists: each averaging has a quorum (`timesyncd.training.policy.quorum`), agreed on in a store, and
a gloo group of its ranks. Nothing is applied before all of them have the mean. The process that hosts the store is the
only one whose loss ends the job: host it apart from the ranks, by `python -m timesyncd.training.torch.quorum_store`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store

from timesyncd.client.job import Job
from timesyncd.client.torch.peer_loss import first_sentence
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import SyncError
from timesyncd.training.policy.low_communication import DiLoCo, StreamingDiLoCo
from timesyncd.training.policy.policies import LocalSGD
from timesyncd.training.policy.quorum import AveragingOutcome, Quorum, QuorumLimits
from timesyncd.training.policy.text import Strategy, parse_policy
from timesyncd.training.torch.outer import OuterOptimizer
from timesyncd.training.torch.quorum_room import QuorumRoom

_log = logging.getLogger(__name__)


class QuorumAveraging:
    """
    Averages a module's parameters every `h` optimizer steps over the ranks that are present.

    `policy`: local_sgd(h=...) or diloco(h=...), the first also with outer(...), without a delay or a compression.
    `store`: a store that outlives any rank. `silent_s`: a rank is lost after so long without a sign of life.
    `patience_s`: a rank that lives and does not come for so long is left out. `timeout_s`: of the groups' collectives.
    Every rank makes one; it waits for the first averaging, after which all have the lowest rank's parameters. A rank that
    starts later gets those of the present ranks, and their `step`.

    Its hook raises SyncError where the store is lost. The state of the script's optimizer stays on its rank.
    """

    def __init__(
        self,
        job: Job,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: str,
        store: Store,
        silent_s: float = 5.0,
        patience_s: float = 600.0,
        timeout_s: float = 30.0,
    ) -> None:
        strategy = _checked(parse_policy(policy))
        self._job, self._h = job, _interval(strategy)
        limits = QuorumLimits(round(silent_s * NS_PER_S), round(patience_s * NS_PER_S))
        own = PrefixStore(f"timesyncd/{job.name}", store)
        self._groups = _Groups(own, timedelta(seconds=timeout_s))
        outer = strategy.outer_optimizer
        parameters = [each for each in module.parameters() if each.requires_grad]
        self._parameters = _CommonTensors(parameters, None if outer is None else OuterOptimizer(outer))
        self._buffers = _CommonTensors([each for each in module.buffers() if each.is_floating_point()], None)
        self.step = self.rounds = self._averaged_step = 0
        #: The ranks of the newest averaging, and how many of its steps this rank has lost, since it was left out.
        self.members: tuple[int, ...] = ()
        self.steps_lost = 0
        with self._store_errors():
            self._room = QuorumRoom(job.rank, job.world_size, store, f"timesyncd/{job.name}", limits)
        self._hook = optimizer.register_step_post_hook(self._after_update)
        self._average()

    def _after_update(self, *_: object) -> None:
        self.step += 1
        if self.step % self._h == 0:
            self._average()

    def close(self) -> None:
        """Average what this rank did since the newest averaging, and leave. Raises SyncError."""
        if self.step % self._h:
            self._average()
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error this rank leaves, and the others go on."""
        if kind is None:
            self.close()
        else:
            self._leave()

    def _leave(self) -> None:
        self._hook.remove()
        self._room.leave()

    def _average(self) -> None:
        """Repeated, each time with the ranks that are left, until one averaging is complete."""
        while True:
            with self._store_errors():
                quorum = self._room.wait(self.rounds, self.step)
            apply = self._reduced(quorum)
            with self._store_errors():
                outcome = self._room.settle(quorum, apply is not None)
            if outcome is AveragingOutcome.COMMITTED and apply is not None:
                apply()
                self._update(quorum)
                return
            self._groups.drop()

    def _update(self, quorum: Quorum) -> None:
        members = tuple(member.rank for member in quorum.members)
        if self.members and members != self.members:
            _log.info("job %s: from step %d on the ranks %s average", self._job.name, quorum.step, members)
        if self._job.rank not in [member.rank for member in quorum.present]:
            self.steps_lost += self.step - self._averaged_step
        self.members, self.rounds = members, quorum.rounds + 1
        self.step = self._averaged_step = quorum.step

    def _reduced(self, quorum: Quorum) -> Callable[[], None] | None:
        """What applies the mean, which this rank has now; None: a rank was lost meanwhile."""
        place = quorum.processes.index(self._room.process)
        try:
            group = self._groups.of(self._room.number, quorum, place)
            applied = [each.reduce(group, quorum, place) for each in (self._parameters, self._buffers)]
        except RuntimeError as error:
            ranks = ", ".join(str(member.rank) for member in quorum.members)
            text = "job %s, rank %d, step %d: averaging among the ranks %s failed: %s"
            _log.warning(text, self._job.name, self._job.rank, self.step, ranks, first_sentence(error))
            return None

        def apply() -> None:
            for each in applied:
                each()

        return apply

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise SyncError(
                f"job {self._job.name}, rank {self._job.rank}, step {self.step}: the store of the quorums is lost "
                f"({first_sentence(error)}); restart the job from its last checkpoint"
            ) from error


def _checked(strategy: Strategy) -> Strategy:
    """Raises ValueError for what these averagings cannot do; nothing of a policy is left out in silence."""
    refused = "; ".join(_refusals(strategy))
    if refused:
        raise ValueError(
            f"policy {strategy}: ranks that may be lost average by local_sgd(h=...), local_sgd(h=...) + outer(...) or "
            f"diloco(h=...), and cannot have {refused}"
        )
    return strategy


def _refusals(strategy: Strategy) -> Iterator[str]:
    policy = strategy.policy
    if isinstance(policy, StreamingDiLoCo):
        yield "fragments: each would need a quorum of its own, and a rank that comes again the state of all"
    elif not isinstance(policy, DiLoCo | LocalSGD):
        yield "another policy"
    if getattr(policy, "delay", 0):
        yield "a delay: a rank may be lost while its average is on its way, and the others could not repeat that one"
    if getattr(policy, "across", None) is not None:
        yield "near ranks: they have no groups of their own"
    if strategy.compression is not None:
        yield "a compression: a rank that comes again has no differences to send"


def _interval(strategy: Strategy) -> int:
    policy = strategy.policy
    assert isinstance(policy, DiLoCo | LocalSGD)
    return policy.h


class _CommonTensors:
    """The tensors that all ranks have in common after an averaging, in a flat wide copy on the host for each type."""

    def __init__(self, tensors: Sequence[torch.Tensor], outer: OuterOptimizer | None) -> None:
        self._outer = outer
        self._groups: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            self._groups.setdefault(torch.promote_types(tensor.dtype, torch.float32), []).append(tensor)
        #: The common parameters, of which the outer optimizer takes the difference.
        self._anchors: list[torch.Tensor] = []

    def reduce(self, group: Any, quorum: Quorum, place: int) -> Callable[[], None]:
        """Averages copies over the present ranks. What it returns applies the mean. Raises RuntimeError as torch does."""
        present = quorum.present
        counts = quorum.members[place] in present
        means = [self._flat(dtype, tensors) for dtype, tensors in self._groups.items()]
        for mean in means:
            mean = mean.mul_(1 / len(present)) if counts else mean.zero_()
            group.allreduce([mean]).wait()
        anchors, momenta = self._given(group, quorum, counts, means)
        return lambda: self._apply(means, anchors, momenta)

    def _given(
        self, group: Any, quorum: Quorum, counts: bool, means: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
        """The outer optimizer's state, where a rank needs it from a present one."""
        if self._outer is None or not quorum.rounds:
            return [], {}
        momenta = self._outer.state_dict() if counts else {}
        anchors = [each.clone() for each in self._anchors] if counts else [torch.empty_like(mean) for mean in means]
        if len(quorum.present) < len(quorum.members):
            options = BroadcastOptions()
            options.rootRank, options.rootTensor = quorum.members.index(quorum.present[0]), 0
            for number, anchor in enumerate(anchors):
                momenta.setdefault(number, torch.zeros_like(anchor))
                group.broadcast([anchor], options).wait()
                group.broadcast([momenta[number]], options).wait()
        return anchors, momenta

    @torch.no_grad()
    def _apply(
        self, means: list[torch.Tensor], anchors: Sequence[torch.Tensor], momenta: dict[int, torch.Tensor]
    ) -> None:
        if self._outer is not None and anchors:
            self._outer.load_state_dict(momenta)
            means = [
                anchor + self._outer.step(number, mean - anchor)
                for number, (mean, anchor) in enumerate(zip(means, anchors, strict=True))
            ]
        self._anchors = means if self._outer is not None else []
        for mean, tensors in zip(means, self._groups.values(), strict=True):
            parts = torch.split(mean, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    @staticmethod
    @torch.no_grad()
    def _flat(dtype: torch.dtype, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensor.detach().reshape(-1).to("cpu", dtype) for tensor in tensors])


class _Groups:
    """The gloo group of the newest quorum; it is made again where the ranks changed, or an averaging failed."""

    def __init__(self, store: Store, timeout: timedelta) -> None:
        self._store, self._timeout = store, timeout
        self._group: Any = None
        self._processes: tuple[tuple[int, int], ...] = ()

    def of(self, number: int, quorum: Quorum, place: int) -> Any:
        """`number`: of the quorum, so that no group meets an earlier one in the store. Raises RuntimeError."""
        if self._group is None or self._processes != quorum.processes:
            self._group = None
            store = PrefixStore(f"group/{number}", self._store)
            self._group = ProcessGroupGloo(store, place, len(quorum.members), self._timeout)
            self._processes = quorum.processes
        return self._group

    def drop(self) -> None:
        self._group = None
