"""An average that arrives in the next forward pass: what waits for which chunk, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from timesyncd.client.torch.stamps import HostTimes
from timesyncd.errors import SyncError
from timesyncd.training.torch import averaging
from timesyncd.training.torch.averaging import Averaging
from timesyncd.training.torch.forward_order import ForwardOrder, checked_order


class Sent:
    """A transfer that arrives where it is waited for, and doubles what was sent."""

    def __init__(self, flat: torch.Tensor, number: int, events: list[str], fails: bool) -> None:
        self._flat, self._number, self._events, self._fails = flat, number, events, fails

    def wait(self) -> None:
        self._events.append(f"chunk {self._number}")
        if self._fails:
            raise RuntimeError("Connection closed by peer")
        self._flat.mul_(2)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        pass


class Link:
    """The group of these tests."""

    sent_bytes = 0

    def __init__(self, events: list[str], fails: bool = False) -> None:
        self._events, self._fails = events, fails

    def hook(self, bucket: Any) -> Any:
        return Sent(bucket.buffer(), bucket.index(), self._events, self._fails)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tensor each."""
    monkeypatch.setattr(averaging, "CHUNK_BYTES", 1)


@contextmanager
def errors(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise SyncError(f"{what}: {error}") from error


def begun(module: nn.Module, events: list[str], fails: bool = False) -> ForwardOrder:
    order = ForwardOrder(module, HostTimes(), lambda begin, end: None, errors)
    order.begin(Averaging(module.parameters(), Link(events, fails)), 1)  # type: ignore[arg-type]
    order.follow(lambda: events.append("begin"), lambda: events.append("end"))
    return order


def layers(events: list[str]) -> nn.Sequential:
    made = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    for number, layer in enumerate(made):
        layer.register_forward_hook(lambda *_, number=number: events.append(f"layer {number}"))
    return made


def test_a_layer_runs_before_the_chunks_of_later_ones_have_arrived() -> None:
    """Each chunk is waited for by the layer that uses it."""
    events: list[str] = []
    module = layers(events)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    order = begun(module, events)
    module(torch.ones(1, 2))

    assert events == ["begin", "chunk 0", "layer 0", "chunk 1", "layer 1", "chunk 2", "end", "layer 2"]
    assert not order.is_pending
    for parameter, former in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, 2 * former)


def test_a_parameter_that_another_module_uses_has_arrived() -> None:
    """As attention uses its projection's, and a tied head the embedding's: no module's own hook would see that."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.unused, self.embedding = nn.Linear(4, 4), nn.Embedding(8, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            seen = functional.embedding(tokens, self.embedding.weight.view(8, 4))
            mixed, _ = self.attention(seen, seen, seen)
            return functional.linear(mixed, self.embedding.weight)

    torch.manual_seed(1)
    module, expected, tokens = Tied(), Tied(), torch.arange(6)[None]
    expected.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})
    order = begun(module, [])
    assert torch.equal(module(tokens), expected(tokens))
    assert not order.is_pending  # the unused layer's too, at the end of the pass


def test_gradients_are_those_of_the_mean() -> None:
    """What arrives in the pass is not among what the pass has saved before."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    expected = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    expected.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})
    begun(module, [])
    for each in (module, expected):
        each(torch.ones(1, 2)).sum().backward()
    for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def test_a_state_dictionary_waits_for_the_whole_average() -> None:
    """A checkpoint never has a part of it."""
    events: list[str] = []
    module = layers(events)
    begun(module, events)
    module.state_dict()
    assert events == ["begin", "chunk 0", "chunk 1", "chunk 2", "end"]


def test_a_view_of_a_parameter_counts_as_the_parameter() -> None:
    """Also one that was made before, of one memory that holds several chunks."""
    events: list[str] = []
    flat = torch.ones(4)
    module = nn.Module()
    for number in range(2):
        module.register_parameter(f"of_{number}", nn.Parameter(flat[2 * number : 2 * number + 2]))
    module.forward = lambda: flat.sum()
    begun(module, events)
    assert float(module()) == 8.0
    assert events == ["begin", "chunk 0", "chunk 1", "end"]


def test_a_rank_that_is_lost_ends_the_forward_pass() -> None:
    """With the error of the policy, and not of torch."""
    module = layers([])
    begun(module, [], fails=True)
    with pytest.raises(SyncError, match="^averaging: Connection closed by peer$"):
        module(torch.ones(1, 2))


def test_a_closed_order_leaves_the_module_as_it_was() -> None:
    """Without a hook."""
    module = layers([])
    begun(module, []).close()
    assert not module._forward_pre_hooks and not module._forward_hooks and not module._state_dict_pre_hooks


@pytest.mark.parametrize(("order", "is_compiled"), [("layers", False), ("forward", True)])
def test_an_order_that_cannot_be_kept_is_rejected(order: str, is_compiled: bool) -> None:
    """With what is allowed, or why."""
    with pytest.raises(ValueError, match="must be None or 'forward'|torch.compile hides them"):
        checked_order(order, nn.Linear(1, 1), is_compiled)
