"""`auto` on a device whose work the host does not wait for: simulated streams, and a group whose collectives take a set time there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch.stamps import DeviceStamps, DeviceTimes, EventPool
from timesyncd.client.torch.steps import Steps
from timesyncd.training import synchronized
from timesyncd.training.policy.policies import ChangeReason
from timesyncd.training.policy.row import Row
from timesyncd.training.torch import averaging, synchronizer
from timesyncd.training.torch.rows import RowExchange

MS = 1_000_000
COMPUTE_NS = 8 * MS

#: The host runs so far ahead of the device, and no further.
AHEAD_NS = 3 * COMPUTE_NS


class Timeline:
    """A host and two streams of a device: one computes, one runs collectives. Only the host's time decides what is reached."""

    def __init__(self, transfer_ns: int) -> None:
        self.host_ns = self.compute_ns = self.collective_ns = 0
        self.transfer_ns = transfer_ns
        self._behind_ns: int | None = None

    def work(self, ns: int) -> None:
        self.compute_ns = max(self.compute_ns, self.host_ns) + ns
        self.host_ns = max(self.host_ns, self.compute_ns - AHEAD_NS)

    def collective(self) -> int:
        """When it ends. It begins after what the compute stream has in its queue."""
        self.collective_ns = max(self.collective_ns, self.compute_ns, self.host_ns) + self.transfer_ns
        return self.collective_ns

    def wait(self, until_ns: int) -> None:
        """The compute stream waits, and the host does not."""
        self.compute_ns = max(self.compute_ns, until_ns)

    @contextmanager
    def behind(self, ns: int) -> Iterator[None]:
        """In the stream of a collective that ends then."""
        self._behind_ns = ns
        try:
            yield
        finally:
            self._behind_ns = None

    def record(self) -> int:
        """When the current stream reaches what is recorded now."""
        return max(self.compute_ns, self.host_ns) if self._behind_ns is None else self._behind_ns


class Event:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.reached_ns = 0

    def record(self) -> None:
        self.reached_ns = self._timeline.record()

    def query(self) -> bool:
        return self.reached_ns <= self._timeline.host_ns

    def elapsed_time(self, end_event: Event, /) -> float:
        return (end_event.reached_ns - self.reached_ns) / MS


class TimedFuture(torch.futures.Future[Any]):
    """A result that is in its stream at `end_ns`. As on CUDA, to wait for it holds the current stream, and callbacks run in the result's."""

    def __new__(cls, timeline: Timeline, end_ns: int) -> Self:
        return super().__new__(cls)

    def __init__(self, timeline: Timeline, end_ns: int) -> None:
        super().__init__()
        self._timeline, self._end_ns = timeline, end_ns

    def wait(self) -> Any:
        self._timeline.wait(self._end_ns)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        with self._timeline.behind(self._end_ns):
            return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        with self._timeline.behind(self._end_ns):
            super().add_done_callback(callback)


class TimedWork(dist.Work):
    def __init__(self, future: TimedFuture, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._future = future
        future.set_result(tensors)

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        self._future.wait()
        return True

    def get_future(self) -> Any:
        return self._future


class TimedGroup(dist.ProcessGroup):
    """One rank, whose all-reduces take the timeline's set time. What DDP's constructor needs is real."""

    def __init__(self, timeline: Timeline, real: dist.ProcessGroup) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # the overload without a store is missing in torch's stubs
        self._timeline, self._real = timeline, real

    def getBackendName(self) -> str:
        return "timed"

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        return TimedWork(TimedFuture(self._timeline, self._timeline.collective()), tensors)

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        return self._real.broadcast(tensors, *options)

    def allgather(self, gathered: Any, tensors: Any, *options: Any) -> dist.Work:
        return self._real.allgather(gathered, tensors, *options)


class Trained:
    """A job of one rank on the simulated device: the rows that it sent, and the policies that were in force."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, transfer_ns: int, steps: int) -> None:
        self.rows: list[Row] = []
        timeline = Timeline(transfer_ns)
        self._simulate(timeline, patch)
        torch.manual_seed(0)
        ddp = self._module(timeline, patch)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with synchronized(Job("job", rank=0, world_size=1, runtime_dir=folder), ddp, optimizer, "auto") as sync:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = ddp(torch.randn(4, 8)).square().mean()
                timeline.work(COMPUTE_NS)
                torch.autograd.backward(loss)
                if ddp.require_backward_grad_sync:
                    timeline.wait(timeline.collective_ns)  # DDP's reducer waits for its futures in C++
                sync.record_loss(loss)
                optimizer.step()
            self.report = sync.report()

    def _simulate(self, timeline: Timeline, patch: pytest.MonkeyPatch) -> None:
        stamps = DeviceStamps(lambda: Event(timeline), lambda: timeline.host_ns)
        patch.setattr(Steps, "stamps_for", lambda steps, tensor: stamps)
        for module in (averaging, synchronizer):
            patch.setattr(module, "times_of", lambda device: DeviceTimes(EventPool(lambda: Event(timeline))))
        send = RowExchange.send

        def kept(exchange: RowExchange, row: Row) -> None:
            self.rows.append(row)
            send(exchange, row)

        patch.setattr(RowExchange, "send", kept)

    def _module(self, timeline: Timeline, patch: pytest.MonkeyPatch) -> DistributedDataParallel:
        world = distributed_c10d._get_default_group()
        group = TimedGroup(timeline, world)
        patch.setitem(distributed_c10d._world.pg_group_ranks, group, {0: 0})
        return DistributedDataParallel(nn.Linear(8, 8), process_group=group)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ratio", [0.01, 0.5, 3.0])
def test_under_bsp_a_step_s_compute_and_waiting_are_the_device_s(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are exact, though the host is steps ahead and waits for nothing; the first row has the steps that the device has reached."""
    transfer_ns = int(ratio * COMPUTE_NS)
    trained = Trained(tmp_path, monkeypatch, transfer_ns, 12)
    measured = [row for row in trained.rows if row.compute_ns and row.transfer_ns is None]

    assert measured
    assert {(row.compute_ns, row.wait_ns) for row in measured} == {(COMPUTE_NS, transfer_ns)}


@pytest.mark.usefixtures("alone")
def test_auto_stays_with_bsp_where_the_device_waits_for_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An all-reduce of 1 % of a step's computing."""
    trained = Trained(tmp_path, monkeypatch, COMPUTE_NS // 100, 60)

    assert [change.policy for change in trained.report.changes] == ["auto"]


@pytest.mark.usefixtures("alone")
def test_auto_averages_replicas_where_the_device_waits_for_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An all-reduce of 1.5 times a step's computing: replicas are averaged rarely, and an averaging is timed in the device's stream."""
    trained = Trained(tmp_path, monkeypatch, 3 * COMPUTE_NS // 2, 300)
    changes = trained.report.changes
    transfers = {row.transfer_ns for row in trained.rows if row.transfer_ns is not None}

    assert [change.policy.partition("(")[0] for change in changes[:2]] == ["auto", "local_sgd"]
    assert changes[1].reason_code in (ChangeReason.SAME_DATA, ChangeReason.TRIAL)
    assert transfers == {3 * COMPUTE_NS // 2}
