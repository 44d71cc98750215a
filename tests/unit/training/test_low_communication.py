"""DiLoCo, Streaming DiLoCo, DES-LOC and the outer optimizer: as data, and on plain tensors beside torch's own optimizer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from timesyncd.training.policy.low_communication import (
    DESLOC,
    AdamState,
    DiLoCo,
    Outer,
    StreamingDiLoCo,
    fragments_of,
)
from timesyncd.training.policy.policies import Decision, FedAvg, LocalSGD, PolicyContext
from timesyncd.training.policy.schedule import changes_interval_only, must_average_replicas, replicas_diverge
from timesyncd.training.policy.text import Int8, Strategy, Visible, parse_policy
from timesyncd.training.torch.averaging import Averaging
from timesyncd.training.torch.outer import OuterOptimizer


class Peers:
    """Ranks as threads that average without a group: no thread of gloo outlives a test."""

    def __init__(self, size: int = 2) -> None:
        self.pool, self.meeting = ThreadPoolExecutor(size), threading.Barrier(size)
        self.size, self.buffers = size, [torch.empty(0)] * size

    def all(self, do: Callable[[int], object]) -> None:
        list(self.pool.map(do, range(self.size)))

    def averagings(self, tensors: Sequence[Sequence[torch.Tensor]], outer: Outer) -> list[Averaging]:
        """Of each rank's first tensor by the outer optimizer, and of the rest as they are."""
        return [
            Averaging(own[:1], PeerReducer(self, rank), outer=OuterOptimizer(outer), apart=own[1:])
            for rank, own in enumerate(tensors)
        ]


class PeerReducer:
    """One rank's."""

    sent_bytes = 0

    def __init__(self, peers: Peers, rank: int) -> None:
        self._peers, self._rank = peers, rank

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        peers, buffer = self._peers, bucket.buffer()
        peers.buffers[self._rank] = buffer.clone()
        peers.meeting.wait(60)
        buffer.copy_(torch.stack(peers.buffers).mean(0))
        peers.meeting.wait(60)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture
def peers() -> Iterator[Peers]:
    found = Peers()
    with found.pool:
        yield found


def context(step: int) -> PolicyContext:
    return PolicyContext(step=step, steps_since_sync=step + 1, ranks=2)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("diloco(h=500)", Strategy(DiLoCo(500))),
        ("diloco(h=8, lr=1.0, momentum=0) + int8", Strategy(DiLoCo(8, 1.0, 0.0), Int8())),
        ("diloco(h=8) + visible", Strategy(DiLoCo(8), Visible())),
        ("streaming_diloco(h=100, fragments=2, delay=5)", Strategy(StreamingDiLoCo(100, 2, 5))),
        ("des_loc(kx=16)", Strategy(DESLOC(16))),
        ("des_loc(kx=16, ku=16, kv=32)", Strategy(DESLOC(16, 16, 32))),
        ("local_sgd(h=8, delay=4) + outer", Strategy(LocalSGD(8, 4), None, Outer())),
        ("fedavg(c=1.0, e=0.5) + outer(momentum=0.5) + int8", Strategy(FedAvg(1.0, 0.5), Int8(), Outer(momentum=0.5))),
    ],
)
def test_the_methods_survive_the_round_trip(text: str, strategy: Strategy) -> None:
    """An outer optimizer is written between the policy and its compression."""
    assert parse_policy(text) == strategy
    assert parse_policy(str(strategy)) == strategy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("diloco", r"diloco\(h, lr, momentum\): h must be given"),
        ("diloco(h=4, lr=0)", "lr is 0.0; it must be above 0"),
        ("diloco(h=4, momentum=1)", "momentum is 1.0; it must be at least 0 and below 1"),
        ("streaming_diloco(h=3)", "fragments is 4; it must be at most h=3"),
        ("streaming_diloco(h=8, fragments=2, delay=4)", "delay is 4; it must be below h / fragments = 4"),
        ("streaming_diloco(h=8, alpha=1)", "alpha is 1.0; it must be at least 0 and below 1"),
        ("des_loc(kx=4, kv=0)", "kv is 0; it must be at least 1"),
        ("bsp + outer", "outer goes behind policies that average parameters"),
        ("selsync(delta=1, aggregate=gradients) + outer", "outer goes behind policies that average parameters"),
        ("ssp(s=2) + outer", "outer goes behind policies that average parameters"),
        ("bsp + visible", "visible goes behind policies that average parameters"),
        ("diloco(h=4) + outer", "outer goes behind policies that have no outer optimizer of their own"),
        ("local_sgd(h=4) + outer + outer", "'outer' is unknown; allowed: fp16"),
        ("local_sgd(h=4) + int8 + outer", r"'int8 \+ outer' is unknown; allowed: fp16"),
    ],
)
def test_parts_that_do_not_fit_are_rejected(text: str, expected: str) -> None:
    """In one line that names the text."""
    with pytest.raises(ValueError, match=expected) as raised:
        parse_policy(text)
    assert text in str(raised.value) and "\n" not in str(raised.value)


def test_fragments_begin_in_turn() -> None:
    """Each every `h` updates at its own offset; with one fragment, as DiLoCo."""
    streaming = StreamingDiLoCo(10, fragments=4, delay=1)
    begun = {step + 1: streaming.fragment_in(step) for step in range(20) if streaming.fragment_in(step) is not None}

    assert begun == {2: 0, 5: 1, 7: 2, 10: 3, 12: 0, 15: 1, 17: 2, 20: 3}
    one, whole = StreamingDiLoCo(4, fragments=1), DiLoCo(4)
    assert [one.decide(context(step)) for step in range(4)] == [whole.decide(context(step)) for step in range(4)]


def test_states_are_due_at_their_own_periods() -> None:
    """The moments less often than the parameters, by default 3 and 6 times; a step with any of them synchronizes."""
    policy = DESLOC(kx=2)
    due = {step + 1: policy.due_in(step) for step in range(12) if policy.due_in(step)}

    assert due[2] == due[4] == {AdamState.PARAMETERS}
    assert due[6] == {AdamState.PARAMETERS, AdamState.FIRST_MOMENT}
    assert due[12] == set(AdamState) and sorted(due) == [2, 4, 6, 8, 10, 12]
    assert DESLOC(4, ku=3).decide(context(2)) is Decision.SYNC


@pytest.mark.parametrize(
    ("names", "fragments", "expected"),
    [
        (["weight", "bias"], 2, [0, 1]),
        (["wte.weight", "h.0.a.weight", "h.0.b.bias", "h.1.a.weight", "ln.weight"], 2, [0, 1, 1, 0, 1]),
        (["0.weight", "0.bias", "2.weight", "4.weight"], 3, [0, 0, 1, 2]),
        (["conv1.weight", "conv1.bias", "fc.weight"], 1, [0, 0, 0]),
    ],
)
def test_blocks_go_to_the_fragments_in_turn(names: list[str], fragments: int, expected: list[int]) -> None:
    """A block is what is numbered, as a transformer's layers are, else a module."""
    assert fragments_of(names, fragments) == expected


def test_more_fragments_than_blocks_are_an_error() -> None:
    """A fragment without parameters would synchronize nothing."""
    with pytest.raises(ValueError, match="the model has 1 blocks of layers, fewer than 2 fragments"):
        fragments_of(["fc.weight", "fc.bias"], 2)


def test_a_change_to_an_outer_optimizer_begins_from_equal_replicas() -> None:
    """Its differences are to what all ranks have in common. Another interval alone keeps the outer momentum."""
    local, outer = parse_policy("local_sgd(h=4)"), parse_policy("local_sgd(h=4) + outer")
    diloco = parse_policy("diloco(h=4)")
    assert must_average_replicas(local, outer) and must_average_replicas(local, diloco)
    assert changes_interval_only(diloco, parse_policy("diloco(h=9)"))
    assert not changes_interval_only(diloco, parse_policy("diloco(h=9, lr=0.5)"))
    assert not changes_interval_only(local, outer) and not changes_interval_only(local, diloco)
    assert all(replicas_diverge(parse_policy(text).policy) for text in ("diloco(h=2)", "des_loc(kx=2)"))


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0)])
def test_the_outer_step_is_torchs_nesterov(lr: float, momentum: float) -> None:
    """Step by step, with the outer gradient as the gradient."""
    theta = nn.Parameter(torch.randn(5, dtype=torch.float64))
    nesterov = torch.optim.SGD([theta], lr=lr, momentum=momentum, nesterov=momentum > 0)
    common, outer = theta.detach().clone(), OuterOptimizer(Outer(lr, momentum))
    for _ in range(4):
        mean = common + torch.randn(5, dtype=torch.float64)
        theta.grad = theta.detach() - mean
        nesterov.step()
        common += outer.step(0, mean - common)
        assert torch.allclose(common, theta.detach(), rtol=0, atol=1e-12)


def test_small_steps_survive_narrow_parameters(peers: Peers) -> None:
    """A change below bfloat16's rounding adds up in the common parameters, which are kept in float32."""
    weights = [[torch.ones(4, dtype=torch.bfloat16)] for _ in range(2)]
    averagings = peers.averagings(weights, Outer(lr=0.1, momentum=0.0))
    for _ in range(8):
        for own in weights:
            own[0].sub_(2.0**-8)  # the smallest change that bfloat16 has below 1
        peers.all(lambda rank: averagings[rank].average())
    assert float(weights[0][0][0]) < 1


def train(tensors: Sequence[Sequence[torch.Tensor]], step: int) -> None:
    """Each rank's own update: another one in each step and on each rank."""
    for rank, own in enumerate(tensors):
        for number, tensor in enumerate(own):
            tensor.sub_(0.1 * (1 + rank) * torch.cos(torch.arange(tensor.numel()) + step + number).view(tensor.shape))


@pytest.mark.parametrize("delay", [0, 2])
def test_the_averaging_is_that_of_the_paper(peers: Peers, delay: int) -> None:
    """Three rounds on two ranks, beside the equations on all ranks' values: the mean difference steps the common one."""
    tensors = [[torch.full((3,), 5.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)] for _ in range(2)]
    expected = [[tensor.clone() for tensor in own] for own in tensors]
    common = nn.Parameter(expected[0][0].clone())
    nesterov = torch.optim.SGD([common], lr=0.7, momentum=0.9, nesterov=True)
    averagings = peers.averagings(tensors, Outer())
    starts = [averaging.begin if delay else averaging.average for averaging in averagings]
    for step in range(14):
        train(tensors, step)
        train(expected, step)
        if step % 4 == 3:
            began = [[tensor.clone() for tensor in own] for own in expected]
            peers.all(lambda rank: starts[rank]())
        if step % 4 == (3 + delay) % 4 and step >= 3:
            if delay:
                peers.all(lambda rank: averagings[rank].finish())
            common.grad = common.detach() - (began[0][0] + began[1][0]) / 2
            nesterov.step()
            for rank in range(2):
                expected[rank][0] += common.detach() - began[rank][0]
                expected[rank][1] += (began[0][1] + began[1][1]) / 2 - began[rank][1]
        for mine, theirs in zip(tensors, expected, strict=True):
            assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, theirs, strict=True)), step


def test_merging_keeps_a_share_of_the_rank_s_own(peers: Peers) -> None:
    """Streaming DiLoCo's alpha: a quarter of the rank's own values of now, and three quarters of the new common ones."""
    tensors = [[torch.zeros(2, dtype=torch.float64)] for _ in range(2)]
    averagings = peers.averagings(tensors, Outer(lr=1.0, momentum=0.0))
    for rank in range(2):
        tensors[rank][0] += 1 + rank
    peers.all(lambda rank: averagings[rank].begin(keep=False))
    for rank in range(2):
        tensors[rank][0] += 10
    peers.all(lambda rank: averagings[rank].merge(0.25))
    assert [float(own[0][0]) for own in tensors] == [0.25 * 11 + 0.75 * 1.5, 0.25 * 12 + 0.75 * 1.5]


def test_an_outer_momentum_is_restored() -> None:
    """With its state the next step is the same to the bit."""
    outer, other = OuterOptimizer(Outer()), OuterOptimizer(Outer())
    outer.step(3, torch.ones(2))
    other.load_state_dict(outer.state_dict())
    assert torch.equal(outer.step(3, torch.ones(2)), other.step(3, torch.ones(2)))
